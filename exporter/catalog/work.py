"""Metrics of the work of GPUs, from their own counters (GPM)."""

from __future__ import annotations

from collections.abc import Iterator

from exporter.catalog.gpu_reads import readings, signal
from exporter.catalog.spec import GPU, Sample, SeriesSet, Unit
from exporter.model import Signal, Snapshot


def _pipes(snapshot: Snapshot) -> Iterator[Sample]:
    for card in snapshot.cards:
        if card.reading is not None:
            for pipe, share in card.reading.pipe_active.items():
                if pipe in card.pipes:
                    yield (*card.labels, pipe), share


def _traffic(snapshot: Snapshot) -> Iterator[Sample]:
    for labels, reading in readings(snapshot):
        for (link, direction), rate in reading.traffic.items():
            yield (*labels, link, direction), rate


WORK = (
    GPU.gauge(
        "sm_active",
        signal(Signal.SM_ACTIVE),
        "Ratio of the GPU's SMs that were busy since the previous cycle; waiting in a collective keeps few busy.",
        unit=Unit.RATIO,
    ),
    GPU.gauge(
        "sm_occupancy",
        signal(Signal.SM_OCCUPANCY),
        "Active warps since the previous cycle over the maximum of the GPU.",
        unit=Unit.RATIO,
        series=SeriesSet.FULL,
    ),
    GPU.gauge(
        "tensor_active",
        signal(Signal.TENSOR_ACTIVE),
        "Ratio of time since the previous cycle in which the tensor cores were active.",
        unit=Unit.RATIO,
    ),
    GPU.gauge(
        "dram_active",
        signal(Signal.DRAM_ACTIVE),
        "Memory bandwidth used since the previous cycle over the maximum.",
        unit=Unit.RATIO,
    ),
    GPU.gauge(
        "graphics_active",
        signal(Signal.GRAPHICS_ACTIVE),
        "Ratio of time since the previous cycle in which the compute or graphics engine was active.",
        unit=Unit.RATIO,
        series=SeriesSet.FULL,
    ),
    GPU.gauge(
        "pipe_active",
        _pipes,
        "Ratio of time since the previous cycle in which this pipe (kind of arithmetic) was active; exposed "
        "from its first use on.",
        "pipe",
        unit=Unit.RATIO,
        series=SeriesSet.FULL,
    ),
    GPU.gauge(
        "traffic_bytes_per_second",
        _traffic,
        "Bytes per second since the previous cycle, from the GPU's own counters; link is pcie or nvlink. Of GPUs "
        "before Hopper that count no PCIe bytes: over 20 ms, every 10 s.",
        "link",
        "direction",
        series=SeriesSet.FULL,
    ),
)
