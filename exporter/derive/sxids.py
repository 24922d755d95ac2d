"""Counters of SXids by NVSwitch, code and severity; without events there are none.

Only the kernel log reports SXids.  A log file that two daemons write has each line twice, so lines of one code,
severity and link within ``BURST`` seconds of the first are one event.  The number of counters is bounded: switches
beyond MAX_SWITCHES share the address "other", codes of a switch beyond MAX_CODES share the code "other"; both keep
the severity.
"""

from __future__ import annotations

from typing import TypeVar

from msgspec import Struct, field

from exporter.model import SxidCount, SxidLabels, SxidReport

BURST = 1.0  # seconds
MAX_SWITCHES = 16  # at most six per node, except twelve in one old model
MAX_CODES = 16  # of a switch
OTHER = "other"
_MAX_LINKS = 256  # whose last line is remembered, per code

_Inner = TypeVar("_Inner")


class _SxidCounter(Struct):
    count: int = 0
    last_unix_time: float = 0.0
    burst_started: dict[int | None, float] = field(default_factory=dict)  # link → start of its burst

    def record(self, report: SxidReport) -> bool:
        """Count a report; return whether it is a new event."""
        self.last_unix_time = max(self.last_unix_time, report.unix_time)
        if report.old or report.at - self.burst_started.get(report.link, float("-inf")) < BURST:
            return False
        if len(self.burst_started) >= _MAX_LINKS:
            self.burst_started.clear()
        self.burst_started[report.link] = report.at
        self.count += 1
        return True


class SxidCounters:
    """SXid counters of all switches.  Not locked; the owner does that."""

    def __init__(self) -> None:
        self._switches: dict[str, dict[str, dict[str, _SxidCounter]]] = {}  # PCI address → code → severity
        self._cached: tuple[SxidCount, ...] | None = ()

    def add(self, report: SxidReport) -> bool:
        """Count a report; return whether it is a new event since the daemon started."""
        codes = _bounded(self._switches, report.pci, MAX_SWITCHES)
        severities = _bounded(codes, str(report.sxid), MAX_CODES)
        self._cached = None
        return severities.setdefault(report.severity, _SxidCounter()).record(report)

    def counts(self) -> tuple[SxidCount, ...]:
        """Return all counts by address, code and severity."""
        if self._cached is None:
            self._cached = tuple(
                SxidCount(
                    labels=SxidLabels(pci, sxid, severity), count=counter.count, last_unix_time=counter.last_unix_time
                )
                for pci, codes in sorted(self._switches.items())
                for sxid, severities in sorted(codes.items())
                for severity, counter in sorted(severities.items())
            )
        return self._cached


def _bounded(table: dict[str, dict[str, _Inner]], key: str, max_keys: int) -> dict[str, _Inner]:
    """Return the value of a key, or of "other" when the table is full."""
    if key not in table and len(table) >= max_keys:
        key = OTHER
    return table.setdefault(key, {})
