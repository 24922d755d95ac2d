"""Metrics of the software that the processes on the GPUs have loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

from exporter.catalog.spec import GPU, NODE, ReadSamples, Sample, SeriesSet, Unit
from exporter.model import GpuLabels, Snapshot
from exporter.model.software import SharedMemory

T = TypeVar("T")


def _versions(snapshot: Snapshot) -> Iterator[Sample]:
    for version in snapshot.software.versions:
        yield version, 1.0


def _of_read_cards(snapshot: Snapshot, values: Mapping[str, T]) -> Iterator[tuple[GpuLabels, T]]:
    """Return the values by the labels of their GPU.

    Software is read once a minute: for a GPU that stopped answering meanwhile, nobody knows its processes any more.
    """
    for card in snapshot.cards:
        if card.reading is not None and card.facts.uuid in values:
            yield card.labels, values[card.facts.uuid]


def _shared_memory(value: Callable[[SharedMemory], float]) -> ReadSamples:
    def read(snapshot: Snapshot) -> Iterator[Sample]:
        for labels, memory in _of_read_cards(snapshot, snapshot.software.shared_memory):
            yield labels, value(memory)

    return read


def _mps(snapshot: Snapshot) -> Iterator[Sample]:
    for labels, active in _of_read_cards(snapshot, snapshot.software.mps):
        yield labels, float(active)


def _fabric_manager(snapshot: Snapshot) -> Iterator[Sample]:
    if snapshot.software.fabric_manager is not None:
        yield (), float(snapshot.software.fabric_manager)


SOFTWARE = (
    NODE.info(
        "software",
        _versions,
        "Versions that processes on the node's GPUs have loaded, or installed beside what they loaded, by component: "
        "nccl, torch, cuda_runtime, cuda_driver, and engines (vllm, sglang, tensorrt_llm, lmdeploy, aphrodite, tgi, "
        "ray). At most four versions of each. Absent without permission to read those processes.",
        "component",
        "version",
    ),
    GPU.gauge(
        "process_shared_memory_size",
        _shared_memory(lambda memory: memory.size),
        "Size of /dev/shm as the GPU's processes see it, the smallest of several; NCCL fails in one of 64 MiB.",
        unit=Unit.BYTES,
        series=SeriesSet.FULL,
    ),
    GPU.gauge(
        "process_shared_memory_used",
        _shared_memory(lambda memory: memory.used),
        "Used part of that /dev/shm.",
        unit=Unit.BYTES,
        series=SeriesSet.FULL,
    ),
    GPU.gauge(
        "mps_active",
        _mps,
        "1 if CUDA's multi-process service (MPS) holds the GPU for its clients, else 0. Absent without processes.",
        series=SeriesSet.FULL,
    ),
    NODE.gauge(
        "fabric_manager_running",
        _fabric_manager,
        "1 if NVIDIA's fabric manager runs on the node, else 0; NVSwitch systems need it. Absent where the host's "
        "processes are not visible.",
        series=SeriesSet.FULL,
    ),
)
