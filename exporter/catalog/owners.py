"""Metrics of who holds which GPU."""

from __future__ import annotations

from collections.abc import Iterator

from exporter.catalog.spec import GPU, Labels, Sample, Unit
from exporter.model import GpuOwner, Snapshot


def _owners(snapshot: Snapshot) -> Iterator[tuple[Labels, GpuOwner]]:
    labels = {card.facts.uuid: card.labels for card in snapshot.cards}
    for held in snapshot.owners:
        if held.uuid in labels:
            yield labels[held.uuid], held


def _info(snapshot: Snapshot) -> Iterator[Sample]:
    for labels, held in _owners(snapshot):
        owner = held.owner
        yield (
            (
                *labels,
                owner.name,
                owner.namespace,
                owner.pod,
                owner.pod_uid,
                owner.container,
                owner.container_id,
                owner.workload,
                owner.workload_type,
                owner.slurm_job,
                owner.unit,
                owner.user,
            ),
            1.0,
        )


def _memory(snapshot: Snapshot) -> Iterator[Sample]:
    for labels, held in _owners(snapshot):
        if held.memory is not None:
            yield (*labels, held.owner.name), held.memory


def _orphans(snapshot: Snapshot) -> Iterator[Sample]:
    for labels, held in _owners(snapshot):
        if held.pids:
            yield (*labels, held.owner.name), float(len(held.orphans))


OWNERS = (
    GPU.info(
        "owner",
        _info,
        "Who runs processes on the GPU; a series for each owner. Labels are empty where they do not apply or are not "
        "known. owner is the owner's name in the other metrics by owner: NAMESPACE/POD/CONTAINER, pod UID, job ID "
        "(Slurm), a systemd unit, container ID, or a user. Join on uuid, or on uuid and owner.",
        "owner",
        "namespace",
        "pod",
        "pod_uid",
        "container",
        "container_id",
        "workload",
        "workload_type",
        "slurm_job",
        "unit",
        "user",
    ),
    GPU.gauge(
        "owner_memory",
        _memory,
        "Device memory that the owner's processes hold, as the driver reports it by process. owner is empty where "
        "it is not known, and beyond the 32 owners with the most memory.",
        "owner",
        unit=Unit.BYTES,
    ),
    GPU.gauge(
        "orphan_processes",
        _orphans,
        "Processes of the owner that are on the GPU though nothing needs them: workers of an engine whose server has "
        "exited, and processes that have exited themselves.",
        "owner",
    ),
)
