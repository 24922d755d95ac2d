"""Metrics of replicas whose GPUs are on several nodes."""

from __future__ import annotations

from collections.abc import Iterator

from exporter.catalog.spec import GPU, Sample
from exporter.model import Snapshot


def _info(snapshot: Snapshot) -> Iterator[Sample]:
    labels = {card.facts.uuid: card.labels for card in snapshot.cards}
    for gpu in snapshot.multi_node:
        if gpu.uuid in labels:
            place = (_number(gpu.node_rank), _number(gpu.nodes), gpu.pipeline_rank, gpu.tensor_rank)
            yield (*labels[gpu.uuid], gpu.replica, gpu.key, gpu.engine, gpu.role, *place), 1.0


def _number(count: int | None) -> str:
    return "" if count is None else str(count)


MULTI_NODE = (
    GPU.info(
        "multi_node_replica",
        _info,
        "The GPU's place in a replica that spans nodes. `replica_key` is the same on all of them; on a node without "
        "the replica's metrics endpoint it is the name of the replica too. `role` is head on the first node, worker "
        "on the others; `node_rank` and `nodes` count nodes; numbers are empty if not known. Absent for replicas of "
        "one node.",
        "replica",
        "replica_key",
        "engine",
        "role",
        "node_rank",
        "nodes",
        "pipeline_rank",
        "tensor_rank",
    ),
)
