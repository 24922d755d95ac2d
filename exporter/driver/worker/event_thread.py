"""The worker's one thread that waits for XID events of all cards, from one initialisation to the next.

Whatever happens here costs events only: a wait that fails or never returns marks no card, and the daemon reads the
kernel log beside it.  A card may be unreadable when its event arrives, so who is behind a handle is remembered.
"""

from __future__ import annotations

import ctypes
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from exporter.driver import protocol
from exporter.driver.call_names import left_out
from exporter.driver.nvml.arrays import event_of
from exporter.driver.nvml.errors import UNSUPPORTED_CODES, code_of, word_of
from exporter.errors import DriverError
from exporter.model import EMPTY

XID_EVENT = 0x8
OUTSIDE_MIG = 0xFFFFFFFF  # instead of an instance's id
TIMEOUT = 10
SLICE = 200  # milliseconds of one wait, so that neither a new initialisation nor the end is held up
YOUNG, SLICE_YOUNG = 5.0, 50  # seconds in which cards still come one by one, milliseconds of a wait meanwhile
# What follows DRAIN events in a row waits for PAUSE: a storm costs no more than eleven thousand events a second.
# Beyond that the driver's own queue decides, and NVML has no word for what it dropped: what is drained is counted.
DRAIN = 550
PAUSE = 0.05
TOGETHER = 0.25  # seconds of a storm that are told at once, counted by card and code
KINDS_A_SECOND = 500.0  # of card and code; with more, what is told at once is longer
RETRY_FIRST, RETRY_LAST = 0.25, 60.0  # seconds after a failure; a lost card fails one wait, and then is left out
STUCK = 5.0  # seconds in one call that should take SLICE


class Card(Protocol):
    """What is needed of a card's thread: UUID and handle while the card answers."""

    def standing(self) -> tuple[str, Any] | None: ...  # noqa: D102


class EventThread:
    """Registers every card that answers and tells the daemon of its XIDs.

    ``working``: a call may be running, or the driver holds something for us.  Between ``pause`` and ``resume`` it
    becomes False as soon as the wait that runs is over.  ``left``: calls that are left out.
    """

    def __init__(
        self,
        driver: Any,
        cards: Sequence[Card],
        send: Callable[[protocol.Message], None],
        left: Mapping[str, float] = EMPTY,
    ) -> None:
        self.working = True
        self._driver, self._cards, self._send, self._left = driver, cards, send, left
        self._go, self._ending = threading.Event(), threading.Event()
        self._go.set()
        self._since: float | None = None  # when the call now running began
        self._set: Any = None
        self._owners: dict[Any, str] = {}  # who is behind a handle, of all cards that ever answered
        self._taken: dict[Any, Any] = {}  # key → handle, what is registered in the set
        self._refused: dict[Any, tuple[float, str]] = {}  # key → until when it is not tried again, and why
        self._heard: Counter[Any] = Counter()  # events as they came, not told yet → how often
        self._tell_at = 0.0  # not before, lest a storm be a message for each of its moments
        self._said: tuple[str, int] | None = None
        self._retry = RETRY_FIRST
        self._started = time.monotonic()
        self._hung = False
        self.thread = threading.Thread(target=self._run, name="events", daemon=True)
        self.thread.start()

    # ------------------------------------------------------------------ called from other threads

    def pause(self) -> None:
        """Let go of the driver after the wait that runs now."""
        self._go.clear()

    def resume(self) -> None:
        """Go on."""
        self.working = True
        self._go.set()

    def end(self) -> None:
        """Let the thread end; ``pause`` comes first."""
        self._ending.set()
        self._go.set()

    def stuck(self, now: float) -> float:
        """Give the seconds that the call now running has taken; 0 between two calls.  A long one is told once."""
        since = self._since
        seconds = max(0.0, now - since) if since is not None else 0.0
        if seconds > STUCK and not self._hung:
            self._hung = True
            self._send(protocol.EventSubscription(cards=0, reason="hung"))
        return seconds

    # ------------------------------------------------------------------ the loop

    def _run(self) -> None:
        while not self._ending.is_set():
            if self._go.is_set():
                self._guarded_turn()
            else:
                self._free()
                self.working = False
                self._go.wait()
        self._free()

    def _guarded_turn(self) -> None:
        try:
            self._turn()
        except Exception as error:
            unsupported = _is_unsupported(error)
            self._say("unsupported" if unsupported else word_of(error), 0)
            self._free()
            self._rest(self._retry)
            self._retry = RETRY_LAST if unsupported else min(self._retry * 2, RETRY_LAST)

    def _rest(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while self._go.is_set() and not self._ending.is_set() and (left := end - time.monotonic()) > 0:
            self._ending.wait(min(left, 0.2))

    def _turn(self) -> None:
        self._register()
        if self._taken:
            self._wait()
            self._retry = RETRY_FIRST
            self._say("", len(self._taken))
        elif self._refused:
            self._say(next(iter(self._refused.values()))[1], 0)
            self._rest(1.0)
        else:
            self._rest(0.05)  # no card has answered yet

    def _call(self, name: str, *args: Any) -> Any:
        function = self._function(name)
        self._since = time.monotonic()
        try:
            return function(*args)
        finally:
            self._returned()

    def _function(self, name: str) -> Callable[..., Any]:
        if left_out(name, self._left):
            raise DriverError("crashed", f"{name} is left out: the driver crashed in it")
        found: Callable[..., Any] = getattr(self._driver, name)
        return found

    def _returned(self) -> None:
        """Note that no call runs."""
        self._since = None
        if self._hung:
            self._hung, self._said = False, None

    # ------------------------------------------------------------------ who is listened to

    def _register(self) -> None:
        """Bring the set up to date."""
        standing = [found for card in self._cards if (found := card.standing()) is not None]
        opened = {_key(handle): (uuid, handle) for uuid, handle in standing}
        self._owners.update((key, uuid) for key, (uuid, _) in opened.items())
        if any(self._taken.get(key, handle) is not handle for key, (_, handle) in opened.items()):
            # A card that was opened anew may have been reset, and what a reset leaves of a registration is not known.
            self._hear(0)
            self._free()
        now = time.monotonic()
        for key, (_, handle) in opened.items():
            if key not in self._taken and self._refused.get(key, (0.0, ""))[0] <= now:
                self._add(key, handle)

    def _add(self, key: Any, handle: Any) -> None:
        if self._set is None:
            self._set = self._call("nvmlEventSetCreate")
        try:
            if self._call("nvmlDeviceGetSupportedEventTypes", handle) & XID_EVENT:
                self._call("nvmlDeviceRegisterEvents", handle, XID_EVENT, self._set)
                self._taken[key] = handle
                self._refused.pop(key, None)
            else:
                self._refused[key] = (math.inf, "unsupported")
        except Exception as error:
            # The neighbours are listened to all the same.
            unsupported = _is_unsupported(error)
            until = math.inf if unsupported else time.monotonic() + RETRY_LAST
            self._refused[key] = (until, "unsupported" if unsupported else word_of(error))

    def _free(self) -> None:
        self._tell(time.monotonic())
        old, self._set, self._taken = self._set, None, {}
        if old is not None:
            try:
                self._call("nvmlEventSetFree", old)
            except Exception:
                return

    # ------------------------------------------------------------------ what is heard

    def _wait(self) -> None:
        young = time.monotonic() - self._started < YOUNG
        # At first only to see that it works: whoever starts is waiting for the verdict.
        if self._hear(0 if self._said is None else SLICE_YOUNG if young else SLICE):
            self._rest(PAUSE)

    def _hear(self, milliseconds: int) -> bool:
        """Take what comes within that time and whatever follows at once; say whether there was anything."""
        taken = self._drain(milliseconds)
        now = time.monotonic()
        if self._heard and now >= self._tell_at:
            self._tell_at = now + max(TOGETHER, len(self._heard) / KINDS_A_SECOND)
            self._tell(now)
        return taken > 0

    def _drain(self, milliseconds: int) -> int:
        """Take events until there is none or it is enough; say how many.  A storm is thousands of them a second."""
        wait, heard, taken = self._function("nvmlEventSetWait_v2"), self._heard, 0
        try:
            while taken < DRAIN:
                self._since = time.monotonic()
                event = wait(self._set, 0 if taken else milliseconds)
                taken += 1
                # The bytes say all, and looking at each attribute would cost more than the driver does.
                heard[bytes(event) if isinstance(event, ctypes.Structure) else _parts(event)] += 1
        except Exception as error:
            if code_of(error) != TIMEOUT:
                raise
        finally:
            self._returned()
        return taken

    def _tell(self, now: float) -> None:
        """Tell the daemon what was heard."""
        heard, self._heard = self._heard, Counter()
        seen: Counter[tuple[str, int, int | None, int | None]] = Counter()
        for event, times in heard.items():
            handle, kind, data, part, compute = event_of(event) if isinstance(event, bytes) else event
            if kind & XID_EVENT:
                who = self._owners.get(handle, "")
                seen[who, min(data, protocol.MAX_XID), _instance(part), _instance(compute)] += times
        for (uuid, xid, part, compute), times in seen.items():
            self._send(
                protocol.XidSeen(uuid=uuid, xid=xid, times=times, at=now, gpu_instance=part, compute_instance=compute)
            )

    def _say(self, reason: str, cards: int) -> None:
        """Tell the daemon of every failure, and once of what lasts."""
        if reason not in {"", "unsupported"} or self._said != (reason, cards):
            self._send(protocol.EventSubscription(cards=cards, reason=reason))
        self._said = (reason, cards)


def _is_unsupported(error: Exception) -> bool:
    return isinstance(error, AttributeError) or code_of(error) in UNSUPPORTED_CODES


def _parts(event: Any) -> tuple[Any, int, int, Any, Any]:
    """Take apart what is no structure of the binding; instances are unknown to old drivers."""
    instances = (getattr(event, name, OUTSIDE_MIG) for name in ("gpuInstanceId", "computeInstanceId"))
    return (_key(event.device), event.eventType, int(event.eventData), *instances)


def _instance(found: Any) -> int | None:
    """Give the id of an instance that an event names; None outside MIG."""
    return found if isinstance(found, int) and 0 <= found < OUTSIDE_MIG else None


def _key(handle: Any) -> Any:
    """Give what two copies of a handle have in common: the address that a pointer holds, else the handle itself."""
    return ctypes.addressof(handle.contents) if hasattr(handle, "contents") else handle
