"""Metrics of XIDs, the numbered errors of GPUs."""

from __future__ import annotations

from collections.abc import Iterator

from exporter.catalog.spec import GPU, Labels, Sample, Unit
from exporter.model import Snapshot
from exporter.model.xid_catalog import RESETTING, describe

_SOURCE = (
    "The label source names the sources that this daemon listens to (nvml, kernel_log or nvml+kernel_log), not the "
    "reporter of the event, which is in the daemon's log."
)


def _counts(snapshot: Snapshot) -> Iterator[Sample]:
    for events in snapshot.xids:
        yield events.labels, float(events.count)


def _all_counts(snapshot: Snapshot) -> Iterator[Sample]:
    """Return the counts, and for each GPU that the driver lists 0 for codes that need a reset and were not seen."""
    seen: dict[Labels, set[int | None]] = {}
    for events in snapshot.xids:
        if events.is_whole_gpu:
            seen.setdefault((events.labels.gpu, events.labels.uuid, events.labels.source), set()).add(events.xid)
    yield from _counts(snapshot)
    for (gpu, uuid, source), codes in seen.items():
        for code in sorted(RESETTING - codes):
            yield (gpu, uuid, str(code), source), 0.0


def _last(snapshot: Snapshot) -> Iterator[Sample]:
    for events in snapshot.xids:
        if events.last_unix_time is not None:
            yield events.labels, events.last_unix_time


def _actions(snapshot: Snapshot) -> Iterator[Sample]:
    for events in snapshot.xids:
        if events.last_unix_time is not None and events.xid is not None:
            known = describe(events.xid)
            gpu, uuid = events.labels.gpu, events.labels.uuid
            yield (gpu, uuid, str(events.xid), known.kind.value, known.action, known.meaning), 1.0


XIDS = (
    GPU.counter(
        "xid_events",
        _counts,
        "XID errors since the daemon's start, each counted once although two sources may report it. Codes that "
        "make a GPU unusable are exposed from the start, in the full set all that require a reset of GPU or node; "
        "xid other counts codes beyond 32 of a GPU. A GPU that is known only by its PCI address has the uuid "
        f"unknown-ADDRESS. {_SOURCE}",
        "xid",
        "source",
        read_full=_all_counts,
    ),
    GPU.gauge(
        "xid_last_timestamp",
        _last,
        "Unix time of the newest XID error of the code, also of one before the daemon's start in the kernel "
        f"log; absent without any. {_SOURCE}",
        "xid",
        "source",
        unit=Unit.SECONDS,
    ),
    GPU.info(
        "xid_action",
        _actions,
        "Action for an XID code that was reported: class application, reset_card, reset_node, inspect, "
        "informational or unknown; the action of NVIDIA's XID catalogue; and the meaning.",
        "xid",
        "class",
        "action",
        "meaning",
    ),
)
