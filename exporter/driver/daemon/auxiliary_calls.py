"""Calls of the worker that hang and cost no card its figures: counting the cards, and questions about two of them."""

from __future__ import annotations

import logging
from collections import Counter

from exporter.logs import log_event

_log = logging.getLogger(__name__)

HANGS = 5.0  # seconds after which a question about two cards hangs; the deadline, where that is longer


class AuxiliaryCallMonitor:
    """How long those calls have been running, in seconds; ``failures`` is told of each that hangs."""

    def __init__(self, failures: Counter[str]) -> None:
        self._failures = failures
        self._counting = self._joining = 0.0

    def end(self) -> None:
        """Note that the worker is gone, and its calls with it."""
        self._counting = self._joining = 0.0

    def any(self, deadline: float) -> bool:
        """Say whether one hangs."""
        return self._counting > deadline or self._joining > max(deadline, HANGS)

    def take(self, counting: float, joining: float, deadline: float) -> None:
        """Take in what a Heartbeat says."""
        self._count(counting, deadline)
        self._join(joining, max(deadline, HANGS))

    def _count(self, seconds: float, limit: float) -> None:
        """Note how long the driver has been counting its cards: until it has, none that comes or goes is noticed."""
        before, now = self._counting > limit, seconds > limit
        self._counting = seconds
        if now and not before:
            self._failures["count_hung"] += 1
            msg = "the driver does not count its GPUs; those known are still read"
            log_event(_log, logging.WARNING, "device_count_hung", msg, source="driver")
        elif before and not now:
            log_event(_log, logging.INFO, "device_count_recovered", source="driver")

    def _join(self, seconds: float, limit: float) -> None:
        """Note how long a question about two cards has taken: until it returns, some paths may be unknown."""
        before, now = self._joining > limit, seconds > limit
        self._joining = seconds
        if now and not before:
            self._failures["topology_hung"] += 1
            msg = "a call that asks how two GPUs are connected does not return"
            log_event(_log, logging.WARNING, "topology_hung", msg, source="driver")
        elif before and not now:
            log_event(_log, logging.INFO, "topology_recovered", source="driver")
