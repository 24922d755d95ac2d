"""Metrics of SXids, the numbered errors of NVSwitches."""

from __future__ import annotations

from collections.abc import Iterator

from exporter.catalog.spec import NODE, Sample, Unit
from exporter.model import Snapshot

_LABELS = ("pci_bus_id", "sxid", "severity")
_ABOUT = (
    "severity as reported by the switch's driver: fatal, non_fatal, correctable, or unrated without one. Absent "
    "until the kernel log reports one."
)


def _counts(snapshot: Snapshot) -> Iterator[Sample]:
    for events in snapshot.sxids:
        yield events.labels, float(events.count)


def _last(snapshot: Snapshot) -> Iterator[Sample]:
    for events in snapshot.sxids:
        yield events.labels, events.last_unix_time


SXIDS = (
    NODE.counter(
        "nvswitch_sxid_events",
        _counts,
        "SXid errors of NVSwitches since the daemon's start, by the switch's PCI address; the daemon's log "
        "names the link. sxid other counts codes beyond 16 of a switch, pci_bus_id other switches beyond "
        f"16; {_ABOUT}",
        *_LABELS,
    ),
    NODE.gauge(
        "nvswitch_sxid_last_timestamp",
        _last,
        "Unix time of the newest SXid error of the switch and code, also of one before the daemon's start "
        f"in the kernel log; {_ABOUT}",
        *_LABELS,
        unit=Unit.SECONDS,
    ),
)
