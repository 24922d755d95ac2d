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
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from exporter.sources.driver import pipe
from exporter.sources.driver.nvml_errors import UNSUPPORTED_CODES, code_of, word_of

XID_EVENT = 0x8
OUTSIDE_MIG = 0xFFFFFFFF  # instead of an instance's id
TIMEOUT = 10
SLICE = 200  # milliseconds of one wait, so that neither a new initialisation nor the end is held up
YOUNG, SLICE_YOUNG = 5.0, 50  # seconds in which cards still come one by one, milliseconds of a wait meanwhile
DRAIN = 512  # events taken in a row; what follows waits for PAUSE, which bounds the cost of a storm
PAUSE = 0.05
RETRY_FIRST, RETRY_LAST = 0.25, 60.0  # seconds after a failure; a lost card fails one wait, and then is left out
STUCK = 5.0  # seconds in one call that should take SLICE


class Card(Protocol):
    """What is needed of a card's thread: UUID and handle while the card answers."""

    def standing(self) -> tuple[str, Any] | None: ...  # noqa: D102


class EventThread:
    """Registers every card that answers and tells the daemon of its XIDs.

    ``working``: a call may be running, or the driver holds something for us.  Between ``pause`` and ``resume`` it
    becomes False as soon as the wait that runs is over.
    """

    def __init__(self, driver: Any, cards: Sequence[Card], send: Callable[[pipe.Message], None]) -> None:
        self.working = True
        self._driver, self._cards, self._send = driver, cards, send
        self._go, self._ending = threading.Event(), threading.Event()
        self._go.set()
        self._since: float | None = None  # when the call now running began
        self._set: Any = None
        self._owners: dict[Any, str] = {}  # who is behind a handle, of all cards that ever answered
        self._taken: dict[Any, Any] = {}  # key → handle, what is registered in the set
        self._refused: dict[Any, tuple[float, str]] = {}  # key → until when it is not tried again, and why
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
            self._send(pipe.Listening(cards=0, reason="hung"))
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
        function = getattr(self._driver, name)
        self._since = time.monotonic()
        try:
            return function(*args)
        finally:
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
        events: Counter[tuple[str, int, int | None, int | None]] = Counter()
        taken = 0
        event = self._next(milliseconds)
        while event is not None:
            taken += 1
            if event.eventType & XID_EVENT:
                uuid, xid = self._owners.get(_key(event.device), ""), int(event.eventData)
                part, compute = _instance(event, "gpuInstanceId"), _instance(event, "computeInstanceId")
                events[uuid, xid, part, compute] += 1
            event = self._next(0) if taken < DRAIN else None
        now = time.monotonic()
        for (uuid, xid, part, compute), times in events.items():
            code = min(xid, pipe.MAX_XID)
            seen = pipe.XidSeen(uuid=uuid, xid=code, times=times, at=now, gpu_instance=part, compute_instance=compute)
            self._send(seen)
        return taken > 0

    def _next(self, milliseconds: int) -> Any:
        try:
            return self._call("nvmlEventSetWait_v2", self._set, milliseconds)
        except Exception as error:
            if code_of(error) == TIMEOUT:
                return None
            raise

    def _say(self, reason: str, cards: int) -> None:
        """Tell the daemon of every failure, and once of what lasts."""
        if reason not in {"", "unsupported"} or self._said != (reason, cards):
            self._send(pipe.Listening(cards=cards, reason=reason))
        self._said = (reason, cards)


def _is_unsupported(error: Exception) -> bool:
    return isinstance(error, AttributeError) or code_of(error) in UNSUPPORTED_CODES


def _instance(event: Any, name: str) -> int | None:
    """Give the id of an instance that an event names; None outside MIG, and from drivers that know none."""
    found = getattr(event, name, OUTSIDE_MIG)
    return found if isinstance(found, int) and 0 <= found < OUTSIDE_MIG else None


def _key(handle: Any) -> Any:
    """Give what two copies of a handle have in common: the address that a pointer holds, else the handle itself."""
    return ctypes.addressof(handle.contents) if hasattr(handle, "contents") else handle
