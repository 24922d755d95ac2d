"""Which driver call killed a worker, so that the next one leaves it out and everything else comes back.

A library that crashes takes all cards of its process with it, and would again and again.  The worker's fault handler
writes on its way out in which Python functions the thread was that died: the binding's are named after NVML's, and a
card's thread runs in a function named after the card's index.  That card is not asked that question for a while,
longer each time it crashes again.  A crash of which nothing is known (in a thread of the library's own, an exit
without a signal) costs the worker only.
"""

from __future__ import annotations

import logging
import re

from exporter.driver.call_names import THREAD, call_group, place
from exporter.driver.daemon.cooldown import Cooldown
from exporter.logs import log_event
from exporter.model import CardFacts

_log = logging.getLogger(__name__)

REST_FIRST, REST_LAST = 120.0, 6 * 3600.0  # seconds; each try of a call that crashes costs a worker
# Whoever cannot be without them starts again and again, ever less often.
INDISPENSABLE = ("nvmlInit", "nvmlShutdown", "nvmlSystem", "nvmlDeviceGetCount", "nvmlGpm")
OPENING = frozenset({"nvmlDeviceGetHandleByIndex", "nvmlDeviceGetUUID"})  # asked of whatever stands at an index
MOST_CALLS = 2  # of one card; with more the card is left alone as a whole

_CALL = re.compile(r'^  File "[^"\n]*", line \d+ in (nvml\w{1,80})$', re.MULTILINE)
_THREAD = re.compile(rf'^  File "[^"\n]*", line \d+ in {THREAD}(\d{{1,4}})$', re.MULTILINE)


def crashing_call(crash_trace: str) -> tuple[int | None, str] | None:
    """Give the card's index (None: no card's thread) and the NVML function; None where they do not say."""
    calls, thread = _CALL.findall(crash_trace), _THREAD.search(crash_trace)
    # The outermost: the binding tries several versions of a function under one name.
    return (int(thread[1]) if thread else None, calls[-1]) if calls else None


class Crashes:
    """What workers died of.  Keys are WHO/FUNCTION: a UUID, a ``place``, or nothing for what no card's thread did.

    Without a function the card is left alone as a whole.  Times are monotonic seconds.
    """

    def __init__(self) -> None:
        self._rests = Cooldown(REST_FIRST, REST_LAST)
        self._uuids: dict[int, str] = {}  # index → card, since the driver was last initialised

    def begin(self) -> None:
        """Note that a worker initialises the driver: any card may stand anywhere."""
        self._uuids = {}

    def found(self, facts: CardFacts) -> None:
        """Note which card it is."""
        self._uuids[facts.index] = facts.uuid

    def died(self, crash_trace: str, now: float) -> str:
        """Take in what a worker said when it died; give the function that it died in, "" where that is not known."""
        found = crashing_call(crash_trace)
        if found is None:
            return ""
        index, function = found
        who = "" if index is None else place(index)
        if index is not None and function not in OPENING:
            who = self._uuids.get(index, who)
        what = call_group(function)
        if not who and function.startswith(INDISPENSABLE):
            return function
        resting = {key for key in self._rests.left(now) if key.startswith(f"{who}/")} - {f"{who}/{what}"}
        if who and len(resting) >= MOST_CALLS:
            what = ""
        seconds = self._rests.begin(f"{who}/{what}", now)
        source = f"gpu:{who}" if who else "driver"
        log_event(
            _log, logging.ERROR, "call_crashed", "the driver crashed in this call; what is skipped is not asked for",
            source=source, function=function, skipped=what or "gpu", seconds=round(seconds),
        )  # fmt: skip
        return function

    def left(self, now: float) -> dict[str, float]:
        """Give what the next worker leaves out: WHO/FUNCTION → seconds."""
        return self._rests.left(now)
