"""Metrics of paths between GPUs, and between the GPUs of one replica."""

from __future__ import annotations

from collections.abc import Iterator

from exporter.catalog.spec import GPU, REPLICA, ReadSamples, Sample, SeriesSet
from exporter.model import GroupPaths, Snapshot


def _paths(snapshot: Snapshot) -> Iterator[Sample]:
    labels = {card.facts.uuid: card.labels for card in snapshot.cards}
    shown: set[tuple[str, str, str, str]] = set()
    for path in snapshot.topology.paths:
        if (path.peer, path.uuid, path.path, path.access) not in shown:
            shown.add((path.uuid, path.peer, path.path, path.access))
            yield (*labels[path.uuid], path.peer, path.path, path.access), 1.0


def _groups(snapshot: Snapshot) -> Iterator[tuple[tuple[str, str, str], GroupPaths]]:
    labels = {replica.name: replica.labels for replica in snapshot.replicas}
    for group in snapshot.topology.groups:
        if group.replica in labels:
            yield labels[group.replica], group


def _worst(snapshot: Snapshot) -> Iterator[Sample]:
    for labels, group in _groups(snapshot):
        if group.worst:
            yield (*labels, group.worst), 1.0


def _flag(attribute: str) -> ReadSamples:
    def read(snapshot: Snapshot) -> Iterator[Sample]:
        for labels, group in _groups(snapshot):
            value: bool | None = getattr(group, attribute)
            if value is not None:
                yield labels, float(value)

    assert attribute in GroupPaths.__struct_fields__  # a misspelt one would fail on the first page only
    return read


def _layout(snapshot: Snapshot) -> Iterator[Sample]:
    gpus: dict[str, set[str]] = {}
    for assignment in snapshot.assignments:
        gpus.setdefault(assignment.replica, set()).add(assignment.uuid)
    for replica in snapshot.replicas:
        if replica.reading is not None and replica.name in gpus:
            ranks = max(1, len(replica.reading.ranks))
            sizes = replica.reading.parallel_sizes or snapshot.parallel_sizes.get(replica.name)
            tensor, pipeline = (str(sizes.tensor), str(sizes.pipeline)) if sizes is not None else ("", "")
            yield (*replica.labels, str(len(gpus[replica.name])), str(ranks), tensor, pipeline), 1.0


TOPOLOGY = (
    GPU.info(
        "peer_path",
        _paths,
        "Current path from the GPU to another one (peer: its uuid), in the words of nvidia-smi topo -m: NV# "
        "over that many NVLinks, PIX over one PCIe switch, PXB over several, PHB over a host bridge, NODE over "
        "several of one NUMA node, SYS between sockets. p2p: the capabilities that the driver grants (read, write, "
        "nvlink, atomics, pci), or why none. The reverse path is a series of its own only where it differs.",
        "peer",
        "path",
        "p2p",
        series=SeriesSet.FULL,
    ),
    REPLICA.info(
        "card_path",
        _worst,
        "Slowest path between two GPUs of the replica that work together (of one rank, where ranks are known), "
        "in the words of nvidia-smi topo -m. Absent with one GPU, and while a pair is not known.",
        "path",
    ),
    REPLICA.info(
        "parallel_layout",
        _layout,
        "GPUs of the replica on this node, its data-parallel ranks, and its sizes of tensor and pipeline "
        "parallelism: as SGLang tells them, else by the titles of the processes on the GPUs, and empty where neither "
        "does. With data-parallel attention the ranks share the GPUs of one tensor-parallel group.",
        "gpus",
        "ranks",
        "tensor",
        "pipeline",
        series=SeriesSet.FULL,
    ),
    REPLICA.gauge(
        "cards_over_pcie",
        _flag("over_pcie"),
        "1 if two GPUs of the replica that work together have no active NVLink between them and communicate "
        "over PCIe, else 0.",
    ),
    REPLICA.gauge(
        "cards_cross_sockets",
        _flag("cross_sockets"),
        "1 if two GPUs of the replica that work together are attached to different sockets (NUMA nodes). With "
        "NVLink between them that costs little; over PCIe it is the slowest path.",
    ),
)
