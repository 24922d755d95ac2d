"""Metrics of MIG instances: parent and profile."""

from __future__ import annotations

from collections.abc import Iterator

from exporter.catalog.spec import GPU, Sample
from exporter.model import Snapshot


def _instances(snapshot: Snapshot) -> Iterator[Sample]:
    for card in snapshot.cards:
        part = card.facts.instance
        if part is not None:
            numbers = str(part.gpu_instance), str(part.compute_instance)
            yield (*card.labels, part.parent, part.profile, *numbers), 1.0


MIG = (
    GPU.info(
        "mig",
        _instances,
        "A MIG instance, which has all gpu_* series of its own; gpu is the parent's index and its position.",
        "parent_uuid",
        "profile",
        "gpu_instance",
        "compute_instance",
    ),
)
