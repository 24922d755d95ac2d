"""Which driver call killed a worker, so that the next one skips it and everything else comes back.

A library that crashes takes all GPUs of its process with it, and would again and again.  The worker's fault handler
writes on its way out in which Python functions the thread was that died: the binding's are named after NVML's, and a
GPU's thread runs in a function named after the GPU's index.  That GPU is not asked that question for a while, longer
each time it crashes again.  A crash of which nothing is known (in a thread of the library's own, an exit without a
signal) costs the worker only.
"""

from __future__ import annotations

import logging
import re

from msgspec import Struct

from exporter.driver.calls import THREAD_FUNCTION, call_group, slot_key
from exporter.driver.cooldown import Cooldown
from exporter.logs import log_event
from exporter.model import CardFacts

_log = logging.getLogger(__name__)

FIRST, LAST = 120.0, 6 * 3600.0  # seconds; each try of a call that crashes costs a worker
# A worker cannot do without these; those that crash are started again, ever less often.
INDISPENSABLE = ("nvmlInit", "nvmlShutdown", "nvmlSystem", "nvmlDeviceGetCount", "nvmlGpm")
OPENING = frozenset({"nvmlDeviceGetHandleByIndex", "nvmlDeviceGetUUID"})  # asked of whatever stands at an index
MAX_CALLS = 2  # of one GPU; with more none of its calls is made

_CALL = re.compile(r'^  File "[^"\n]*", line \d+ in (nvml\w{1,80})$', re.MULTILINE)
_THREAD = re.compile(rf'^  File "[^"\n]*", line \d+ in {THREAD_FUNCTION}(\d{{1,4}})$', re.MULTILINE)


class CrashingCall(Struct, frozen=True):
    """An NVML function, and the index of the GPU whose thread made the call; None where no GPU's thread did."""

    index: int | None
    function: str


def crashing_call(crash_trace: str) -> CrashingCall | None:
    """Return the call that a worker died in; None where the trace does not say."""
    calls, thread = _CALL.findall(crash_trace), _THREAD.search(crash_trace)
    # The outermost: the binding tries several versions of a function under one name.
    return CrashingCall(int(thread[1]) if thread else None, calls[-1]) if calls else None


class Crashes:
    """What workers died of.  Keys are WHO/FUNCTION: a UUID, a ``slot_key``, or nothing for other threads' calls.

    Without a function none of that GPU's calls is made.  Times are monotonic seconds.
    """

    def __init__(self) -> None:
        self._cooldown = Cooldown(FIRST, LAST)
        self._uuids: dict[int, str] = {}  # by index, since the driver was last initialised

    def on_initialising(self) -> None:
        """Clear the addresses of GPUs: after an initialisation they may differ."""
        self._uuids = {}

    def on_found(self, facts: CardFacts) -> None:
        """Remember which GPU stands at an index."""
        self._uuids[facts.index] = facts.uuid

    def on_death(self, crash_trace: str, now: float) -> str:
        """Skip the call that a worker died in and return its function, "" where that is not known."""
        crash = crashing_call(crash_trace)
        if crash is None:
            return ""
        who, function = self._who(crash), crash.function
        if not who and function.startswith(INDISPENSABLE):
            return function
        group = call_group(function)
        others = {key for key in self._cooldown.remaining(now) if key.startswith(f"{who}/")} - {f"{who}/{group}"}
        if who and len(others) >= MAX_CALLS:
            group = ""
        seconds = self._cooldown.begin(f"{who}/{group}", now)
        log_event(
            _log, logging.ERROR, "call_crashed", "the driver crashed in this call; what is skipped is not asked for",
            source=f"gpu:{who}" if who else "driver", function=function, skipped=group or "gpu",
            seconds=round(seconds),
        )  # fmt: skip
        return function

    def _who(self, crash: CrashingCall) -> str:
        if crash.index is None:
            return ""
        key = slot_key(crash.index)
        return key if crash.function in OPENING else self._uuids.get(crash.index, key)

    def remaining(self, now: float) -> dict[str, float]:
        """Return what the next worker skips: WHO/FUNCTION → seconds."""
        return self._cooldown.remaining(now)
