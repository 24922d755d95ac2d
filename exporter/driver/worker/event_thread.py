"""The worker's one thread that waits for XID events of all GPUs, from one initialisation to the next.

Whatever fails here costs events only: a wait that fails or never returns withdraws no GPU, and the daemon reads the
kernel log beside it.  A GPU may be unreadable when its event arrives, so which GPU is behind a handle is remembered.
"""

from __future__ import annotations

import ctypes
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from exporter.driver import protocol
from exporter.driver.calls import is_disabled
from exporter.driver.cooldown import Backoff
from exporter.driver.nvml.arrays import DriverEvent, event_of
from exporter.driver.nvml.errors import UNSUPPORTED_CODES, code_of, reason_of
from exporter.driver.worker.driver_thread import DriverThread, Gpu
from exporter.driver.worker.frame_writer import Sender
from exporter.errors import DriverError
from exporter.model import EMPTY

XID_EVENT = 0x8
OUTSIDE_MIG = 0xFFFFFFFF  # instead of an instance's id
TIMEOUT = 10
SLICE = 200  # milliseconds of one wait, so that neither a new initialisation nor the end is held up
EARLY, EARLY_SLICE = 5.0, 50  # seconds in which GPUs still come one by one, milliseconds of a wait meanwhile
# What follows MAX_DRAINED events in a row waits for PAUSE: a storm costs no more than 11,000 events a second.
# Beyond that the driver's own queue decides, and NVML does not report what it dropped: what is drained is counted.
MAX_DRAINED = 550
PAUSE = 0.05
SEND_EVERY = 0.25  # seconds of a storm that are sent at once, counted by GPU and code
MAX_MESSAGES_PER_SECOND = 500.0  # one per GPU and code; with more of them it is sent less often
RETRY_FIRST, RETRY_LAST = 0.25, 60.0  # seconds after a failure; a lost GPU fails one wait, and is then not registered
HUNG = 5.0  # seconds in one call that should take SLICE


class _Refusal(NamedTuple):
    """Until when a GPU is not registered again, and why."""

    until: float
    reason: str


class _Subject(NamedTuple):
    """What events are counted by."""

    uuid: str
    xid: int
    gpu_instance: int | None
    compute_instance: int | None


class EventThread(DriverThread):
    """Registers every GPU that answers and sends its XIDs to the daemon; ``skipped_calls``: see ``is_disabled``.

    ``busy``: a call may be running, or the driver holds an event set.  Paused, it frees that after the current wait.
    """

    def __init__(
        self,
        driver: Any,
        gpus: Sequence[Gpu],
        sender: Sender,
        skipped_calls: Mapping[str, float] = EMPTY,
        *,
        again: bool = False,
    ) -> None:
        """``again``: the driver was initialised before, by this process or another one of this daemon."""
        super().__init__("nvml-events")
        self._driver, self._gpus, self._sender, self._skipped_calls = driver, gpus, sender, skipped_calls
        self._again = again
        self._call_started: float | None = None
        self._event_set: Any = None
        self._uuids: dict[Any, str] = {}  # handle's key → UUID, of all GPUs that ever answered
        self._registered: dict[Any, Any] = {}  # key → handle
        self._refused: dict[Any, _Refusal] = {}  # by key
        self._events: Counter[Any] = Counter()  # as they came, not sent yet → how often
        self._send_at = 0.0  # not before, lest a storm be a message for each of its moments
        self._reported: protocol.EventSubscription | None = None
        self._backoff = Backoff(RETRY_FIRST, RETRY_LAST)
        self._started = time.monotonic()
        self._hung = False

    def call_started(self) -> float | None:
        """Return when the call now running began; None between two."""
        return self._call_started

    def check_hang(self, now: float) -> None:
        """Report once that a call hangs; from another thread, as this one is in the call."""
        if self.call_seconds(now) > HUNG and not self._hung:
            self._hung = True
            self._sender.send(protocol.EventSubscription(cards=0, reason="hung"))

    # ------------------------------------------------------------------ the loop

    def _run(self) -> None:
        while not self._ending:
            if not self._paused:
                self._guarded_wait()
                continue
            self._free()
            self._set_idle()
            while self._paused and not self._ending:
                self._sleep()
        self._free()

    def _guarded_wait(self) -> None:
        try:
            self._register_and_wait()
        except Exception as error:
            unsupported = _is_unsupported(error)
            self._report("unsupported" if unsupported else reason_of(error), 0)
            self._free()
            self._rest(self._backoff.next())
            if unsupported:
                self._backoff.saturate()

    def _rest(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while not self._paused and (remaining := end - time.monotonic()) > 0:
            self._sleep(remaining)

    def _register_and_wait(self) -> None:
        self._register()
        if self._registered:
            self._wait()
            self._backoff.reset()
            self._report("", len(self._registered))
        elif self._refused:
            self._report(next(iter(self._refused.values())).reason, 0)
            self._rest(1.0)
        else:
            self._rest(0.05)  # no GPU has answered yet

    def _call(self, name: str, *args: Any) -> Any:
        function = self._function(name)
        self._call_started = time.monotonic()
        try:
            return function(*args)
        finally:
            self._on_returned()

    def _function(self, name: str) -> Callable[..., Any]:
        if is_disabled(name, self._skipped_calls):
            raise DriverError("crashed", f"{name} is not called: the driver crashed in it")
        found: Callable[..., Any] = getattr(self._driver, name)
        return found

    def _on_returned(self) -> None:
        self._call_started = None
        if self._hung:
            self._hung, self._reported = False, None

    # ------------------------------------------------------------------ which GPUs are registered

    def _register(self) -> None:
        """Register GPUs that have become available."""
        available = [found for gpu in self._gpus if (found := gpu.available()) is not None]
        opened = {_key(gpu.handle): gpu for gpu in available}
        self._uuids.update((key, gpu.uuid) for key, gpu in opened.items())
        if any(self._registered.get(key, gpu.handle) is not gpu.handle for key, gpu in opened.items()):
            # A GPU that was opened anew may have been reset, and what a reset leaves of a registration is not known.
            self._receive(0)
            self._free()
        now = time.monotonic()
        for key, gpu in opened.items():
            refusal = self._refused.get(key)
            if key not in self._registered and (refusal is None or refusal.until <= now):
                self._add(key, gpu.handle)

    def _add(self, key: Any, handle: Any) -> None:
        if self._event_set is None:
            self._event_set = self._call("nvmlEventSetCreate")
        try:
            if self._call("nvmlDeviceGetSupportedEventTypes", handle) & XID_EVENT:
                self._call("nvmlDeviceRegisterEvents", handle, XID_EVENT, self._event_set)
                self._registered[key] = handle
                self._refused.pop(key, None)
            else:
                self._refused[key] = _Refusal(math.inf, "unsupported")
        except Exception as error:
            # The neighbours are registered all the same.
            unsupported = _is_unsupported(error)
            until = math.inf if unsupported else time.monotonic() + RETRY_LAST
            self._refused[key] = _Refusal(until, "unsupported" if unsupported else reason_of(error))

    def _free(self) -> None:
        self._send(time.monotonic())
        old, self._event_set, self._registered = self._event_set, None, {}
        if old is not None:
            try:
                self._call("nvmlEventSetFree", old)
            except Exception:
                return

    # ------------------------------------------------------------------ what is received

    def _wait(self) -> None:
        early = time.monotonic() - self._started < EARLY
        # At first only to see that it works: the first snapshot waits for that.
        if self._receive(0 if self._reported is None else EARLY_SLICE if early else SLICE):
            self._rest(PAUSE)

    def _receive(self, milliseconds: int) -> bool:
        """Drain what comes within that time and whatever follows at once; return whether there was anything."""
        drained = self._drain(milliseconds)
        now = time.monotonic()
        if self._events and now >= self._send_at:
            self._send_at = now + max(SEND_EVERY, len(self._events) / MAX_MESSAGES_PER_SECOND)
            self._send(now)
        return drained > 0

    def _drain(self, milliseconds: int) -> int:
        """Drain events until there is none or it is enough; return how many.  A storm is thousands a second."""
        wait, events, drained = self._function("nvmlEventSetWait_v2"), self._events, 0
        try:
            while drained < MAX_DRAINED:
                self._call_started = time.monotonic()
                event = wait(self._event_set, 0 if drained else milliseconds)
                drained += 1
                # The bytes hold all, and reading each attribute would cost more than the driver does.
                events[bytes(event) if isinstance(event, ctypes.Structure) else _event(event)] += 1
        except Exception as error:
            if code_of(error) != TIMEOUT:
                raise
        finally:
            self._on_returned()
        return drained

    def _send(self, now: float) -> None:
        """Send what was received."""
        events, self._events = self._events, Counter()
        seen: Counter[_Subject] = Counter()
        for raw, times in events.items():
            event = event_of(raw) if isinstance(raw, bytes) else raw
            if event.kind & XID_EVENT and self._is_new(event.handle):
                uuid, xid = self._uuids.get(event.handle, ""), min(event.data, protocol.MAX_XID)
                seen[_Subject(uuid, xid, _instance_id(event.gpu_instance), _instance_id(event.compute_instance))] += (
                    times
                )
        for subject, times in seen.items():
            self._sender.send(protocol.XidSeen(**subject._asdict(), times=times, at=now))

    def _is_new(self, handle: Any) -> bool:
        """Return whether an event was not delivered before.

        After an initialisation some drivers deliver once more what a GPU reported before it was lost.  Such a GPU is
        not opened any more, and its errors have been counted.
        """
        return handle in self._uuids or not self._again or time.monotonic() - self._started >= EARLY

    def _report(self, reason: str, cards: int) -> None:
        """Report every failure, and once what lasts."""
        subscription = protocol.EventSubscription(cards=cards, reason=reason)
        if reason not in {"", "unsupported"} or self._reported != subscription:
            self._sender.send(subscription)
        self._reported = subscription


def _is_unsupported(error: Exception) -> bool:
    return isinstance(error, AttributeError) or code_of(error) in UNSUPPORTED_CODES


def _event(event: Any) -> DriverEvent:
    """Return an event that is no structure of the binding; instances are unknown to old drivers."""
    instances = (getattr(event, name, OUTSIDE_MIG) for name in ("gpuInstanceId", "computeInstanceId"))
    return DriverEvent(_key(event.device), event.eventType, int(event.eventData), *instances)


def _instance_id(found: Any) -> int | None:
    """Return the id of an instance that an event names; None outside MIG."""
    return found if isinstance(found, int) and 0 <= found < OUTSIDE_MIG else None


def _key(handle: Any) -> Any:
    """Return what two copies of a handle have in common: the address that a pointer holds, else the handle itself."""
    return ctypes.addressof(handle.contents) if hasattr(handle, "contents") else handle
