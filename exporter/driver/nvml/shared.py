"""What the GPUs of one worker share, and what outlives an initialisation of the driver."""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field

from exporter.driver.nvml.counter_units import UnitEvidence
from exporter.driver.nvml.gpm import GpmLock
from exporter.driver.nvml.nvlink_counters import NvLinkCounters


class SharedState(Struct, frozen=True):
    """``units``: reason → unit of its counter of clock event time, as some GPU has shown it.

    ``evidence``: UUID → reason → what that GPU's counter has shown.  ``nvlink_counters``: UUID → the sums over its
    NVLinks.  ``skipped_calls``: see ``open_card``.
    """

    gpm_lock: GpmLock = field(default_factory=GpmLock)
    units: dict[str, float] = {}
    evidence: dict[str, dict[str, UnitEvidence]] = {}
    nvlink_counters: dict[str, NvLinkCounters] = {}
    skipped_calls: dict[str, dict[str, float]] = {}

    def release(self, driver: Any) -> None:
        """Free what the driver has allocated: it is about to be shut down."""
        self.gpm_lock.free_buffers(driver)

    def reset_units(self) -> None:
        """Clear what was learnt from counters: another driver may count otherwise."""
        self.units.clear()
        self.evidence.clear()

    def confirmed_units(self) -> dict[str, float]:
        """Return the units of the counters that no GPU's evidence disproves."""
        shown = [item for evidence in list(self.evidence.values()) for item in list(evidence.items())]
        disproved = {reason for reason, evidence in shown if evidence.disproved}
        return {reason: unit for reason, unit in list(self.units.items()) if reason not in disproved}
