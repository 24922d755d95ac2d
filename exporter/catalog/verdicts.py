"""Metrics of verdicts: whether replicas and GPUs should get work, as /api/v1/verdicts answers."""

from __future__ import annotations

from collections.abc import Iterator

from exporter.catalog.spec import GPU, REPLICA, Sample
from exporter.model import Snapshot


def _replicas(snapshot: Snapshot) -> Iterator[Sample]:
    for replica in snapshot.replicas:
        found = snapshot.verdicts.replicas.get(replica.name)
        if found is not None:
            yield (*replica.labels, found.state.value, found.reason), 1.0


def _gpus(snapshot: Snapshot) -> Iterator[Sample]:
    for card in snapshot.cards:
        found = snapshot.verdicts.gpus.get(card.facts.uuid)
        if found is not None:
            yield (*card.labels, found.state.value, found.reason), 1.0


_STATES = (
    "serve, drain (finish what it has, take nothing new), eject, or unknown, which never ejects; reason is a closed "
    "word, empty for serve. The same as /api/v1/verdicts answers."
)
VERDICTS = (
    REPLICA.gauge("verdict", _replicas, f"1 for the state in force: {_STATES}", "state", "reason"),
    GPU.gauge("verdict", _gpus, f"1 for the state in force: {_STATES}", "state", "reason"),
)
