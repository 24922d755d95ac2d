"""The errors that NVSwitches report by number (SXids): one report, and what was counted of them."""

from __future__ import annotations

from msgspec import Struct

# How bad the driver says an error is.  UNRATED: the line does not say.
FATAL_SEVERITY, NON_FATAL, CORRECTABLE, UNRATED = "fatal", "non_fatal", "correctable", "unrated"


class SxidReport(Struct, frozen=True, kw_only=True):
    """One line of the kernel log about one error of the switch at ``pci`` (canonical, see ``canonical_pci``).

    ``link``: the switch's own number of the NVLink it is about; None where the line names none.  ``old``: it happened
    before this daemon could count; ``unix_time`` says when.
    """

    pci: str
    sxid: int
    severity: str
    link: int | None
    at: float  # monotonic
    unix_time: float  # Unix time
    old: bool = False


class SxidCount(Struct, frozen=True, kw_only=True):
    """One code of one switch and severity as the page shows it."""

    labels: tuple[str, str, str]  # pci_bus_id, sxid, severity
    count: int  # events since the daemon's start
    last_unix_time: float  # Unix time of the newest, also of one before the start
