"""SXids of all NVSwitches, counted per switch, code and severity; nothing is shown before the first.

Only the kernel log tells of them.  A log file into which two daemons write holds each line twice, so lines of one
code, severity and link within ``BURST`` seconds of the first are one event.  What can be counted apart is bounded:
switches beyond MAX_SWITCHES share the place "other", codes of a switch beyond MAX_CODES share the code "other";
the severity is kept in both.
"""

from __future__ import annotations

from typing import TypeVar

from msgspec import Struct, field

from exporter.model import SxidCount, SxidLabels, SxidReport

BURST = 1.0  # seconds
MAX_SWITCHES = 16  # a node has six at most, except those of one old model with twelve
MAX_CODES = 16  # of a switch
OTHER = "other"
_MAX_LINKS = 256  # whose last line is remembered, of one code

_Inner = TypeVar("_Inner")


class _Tally(Struct):
    count: int = 0
    last_unix_time: float = 0.0
    began: dict[int | None, float] = field(default_factory=dict)  # link → when its burst began

    def take(self, report: SxidReport) -> bool:
        """Count a report; say whether it is an event of its own."""
        self.last_unix_time = max(self.last_unix_time, report.unix_time)
        if report.old or report.at - self.began.get(report.link, float("-inf")) < BURST:
            return False
        if len(self.began) >= _MAX_LINKS:
            self.began.clear()
        self.began[report.link] = report.at
        self.count += 1
        return True


class SxidCounters:
    """Every switch's SXids.  Not locked: the owner sees to that."""

    def __init__(self) -> None:
        self._switches: dict[str, dict[str, dict[str, _Tally]]] = {}  # place → code → severity
        self._shown: tuple[SxidCount, ...] | None = ()

    def add(self, report: SxidReport) -> bool:
        """Take in a report; say whether it is an event that happened while this daemon watched."""
        codes = _room(self._switches, report.pci, MAX_SWITCHES)
        severities = _room(codes, str(report.sxid), MAX_CODES)
        self._shown = None
        return severities.setdefault(report.severity, _Tally()).take(report)

    def counts(self) -> tuple[SxidCount, ...]:
        """Give all counts by place, code and severity."""
        if self._shown is None:
            self._shown = tuple(
                SxidCount(
                    labels=SxidLabels(pci, sxid, severity), count=tally.count, last_unix_time=tally.last_unix_time
                )
                for pci, codes in sorted(self._switches.items())
                for sxid, severities in sorted(codes.items())
                for severity, tally in sorted(severities.items())
            )
        return self._shown


def _room(table: dict[str, dict[str, _Inner]], key: str, most: int) -> dict[str, _Inner]:
    """Give what is under a key, or under "other" where there is no room for another key."""
    if key not in table and len(table) >= most:
        key = OTHER
    return table.setdefault(key, {})
