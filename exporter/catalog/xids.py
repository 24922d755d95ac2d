"""What the page says of XIDs, the errors that cards report by number."""

from __future__ import annotations

from collections.abc import Iterator

from exporter.catalog.spec import CARD, Kind, Metric, Row, Unit
from exporter.model import Snapshot
from exporter.xid import describe

_SOURCE = (
    "The label source names what this daemon listens to (nvml, kernel_log or both), not who reported the event: "
    "that stands in the log."
)


def _counts(snapshot: Snapshot) -> Iterator[Row]:
    for one in snapshot.xids:
        yield one.labels, float(one.count)


def _last(snapshot: Snapshot) -> Iterator[Row]:
    for one in snapshot.xids:
        if one.last_wall is not None:
            yield one.labels, one.last_wall


def _actions(snapshot: Snapshot) -> Iterator[Row]:
    for one in snapshot.xids:
        if one.last_wall is not None and one.xid is not None:
            known = describe(one.xid)
            yield (*one.labels[:3], known.kind.value, known.action, known.meaning), 1.0


XIDS = (
    Metric(
        subject=CARD,
        noun="xid_events",
        kind=Kind.COUNTER,
        labels=("xid", "source"),
        help="XID errors since the daemon's start, each counted once although two sources may report it. Codes that "
        "leave a card useless are there from the start; xid other holds what is beyond 32 codes of a card. A card "
        f"that is known only by its place on the bus is called unknown-PLACE. {_SOURCE}",
        read=_counts,
    ),
    Metric(
        subject=CARD,
        noun="xid_last_timestamp",
        kind=Kind.GAUGE,
        unit=Unit.SECONDS,
        labels=("xid", "source"),
        help="Unix time of the newest XID error of the code, also of one before the daemon's start that the kernel "
        f"log still holds; absent without any. {_SOURCE}",
        read=_last,
    ),
    Metric(
        subject=CARD,
        noun="xid_action",
        kind=Kind.INFO,
        labels=("xid", "class", "action", "meaning"),
        help="What to do about an XID code that was seen: class application, reset_card, reset_node, inspect, "
        "informational or unknown; the action after NVIDIA's XID catalogue; and what it means.",
        read=_actions,
    ),
)
