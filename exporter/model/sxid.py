"""SXids, the numbered errors of NVSwitches: reports and counts."""

from __future__ import annotations

from typing import NamedTuple

from msgspec import Struct

# The driver's severities.  UNRATED: the line names none.
FATAL_SEVERITY, NON_FATAL, CORRECTABLE, UNRATED = "fatal", "non_fatal", "correctable", "unrated"


class SxidReport(Struct, frozen=True, kw_only=True):
    """One line of the kernel log about one error of the switch at ``pci`` (see ``canonical_pci``).

    ``link``: the switch's number of the NVLink; None where the line names none.  ``old``: it happened at
    ``unix_time``, before this daemon counted.
    """

    pci: str
    sxid: int
    severity: str
    link: int | None
    at: float  # monotonic
    unix_time: float
    old: bool = False


class SxidLabels(NamedTuple):
    """The labels of a count."""

    pci_bus_id: str
    sxid: str
    severity: str


class SxidCount(Struct, frozen=True, kw_only=True):
    """The events of one SXid of one switch and severity."""

    labels: SxidLabels
    count: int  # events since the daemon's start
    last_unix_time: float  # of the newest event, also of one before the start
