"""Calls of the worker that hang without costing a GPU its figures: counting GPUs, and questions about two of them."""

from __future__ import annotations

import logging
from collections import Counter

from exporter.logs import log_event

_log = logging.getLogger(__name__)

TOPOLOGY_HANGS = 5.0  # seconds after which a question about two GPUs hangs; the deadline, where that is longer


class AuxiliaryCallMonitor:
    """How long those calls have been running, in seconds; each that hangs is counted in ``failures``."""

    def __init__(self, failures: Counter[str]) -> None:
        self._failures = failures
        self._count_hangs = self._topology_hangs = False

    def reset(self) -> None:
        """Discard the calls: they ended with the worker."""
        self._count_hangs = self._topology_hangs = False

    def any_hung(self) -> bool:
        """Return whether one hangs."""
        return self._count_hangs or self._topology_hangs

    def update(self, counting: float, joining: float, deadline: float) -> None:
        """Apply what a Heartbeat reports."""
        self._update_count(counting > deadline)
        self._update_topology(joining > max(deadline, TOPOLOGY_HANGS))

    def _update_count(self, hangs: bool) -> None:  # noqa: FBT001
        """Until the driver has counted its GPUs, none that comes or goes is noticed."""
        before, self._count_hangs = self._count_hangs, hangs
        if hangs and not before:
            self._failures["count_hung"] += 1
            msg = "the driver does not count its GPUs; those known are still read"
            log_event(_log, logging.WARNING, "device_count_hung", msg, source="driver")
        elif before and not hangs:
            log_event(_log, logging.INFO, "device_count_recovered", source="driver")

    def _update_topology(self, hangs: bool) -> None:  # noqa: FBT001
        """Until the question returns, some paths may be unknown."""
        before, self._topology_hangs = self._topology_hangs, hangs
        if hangs and not before:
            self._failures["topology_hung"] += 1
            msg = "a call that asks how two GPUs are connected does not return"
            log_event(_log, logging.WARNING, "topology_hung", msg, source="driver")
        elif before and not hangs:
            log_event(_log, logging.INFO, "topology_recovered", source="driver")
