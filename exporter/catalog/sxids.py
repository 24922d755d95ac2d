"""What the page says of SXids, the errors that NVSwitches report by number."""

from __future__ import annotations

from collections.abc import Iterator

from exporter.catalog.spec import NODE, Metric, MetricKind, Sample, Unit
from exporter.model import Snapshot

_LABELS = ("pci_bus_id", "sxid", "severity")
_ABOUT = (
    "severity as the switch's driver says it: fatal, non_fatal, correctable, or unrated where it says none. Absent "
    "until the kernel log tells of one."
)


def _counts(snapshot: Snapshot) -> Iterator[Sample]:
    for one in snapshot.sxids:
        yield one.labels, float(one.count)


def _last(snapshot: Snapshot) -> Iterator[Sample]:
    for one in snapshot.sxids:
        yield one.labels, one.last_unix_time


SXIDS = (
    Metric(
        subject=NODE,
        noun="nvswitch_sxid_events",
        kind=MetricKind.COUNTER,
        labels=_LABELS,
        help="SXid errors of NVSwitches since the daemon's start, by the switch's place on the bus; the daemon's log "
        "says which link it was. sxid other holds what is beyond 16 codes of a switch, pci_bus_id other what is "
        f"beyond 16 switches; {_ABOUT}",
        read=_counts,
    ),
    Metric(
        subject=NODE,
        noun="nvswitch_sxid_last_timestamp",
        kind=MetricKind.GAUGE,
        unit=Unit.SECONDS,
        labels=_LABELS,
        help="Unix time of the newest SXid error of the switch and code, also of one before the daemon's start that "
        f"the kernel log still holds; {_ABOUT}",
        read=_last,
    ),
)
