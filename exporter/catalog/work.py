"""What the page says of the work of cards: how much of each really worked, where its own counters (GPM) say it."""

from __future__ import annotations

from collections.abc import Iterator

from exporter.catalog.card_reads import gauge, readings, signal
from exporter.catalog.spec import Sample, SeriesSet, Unit
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
    gauge(
        "sm_active",
        Unit.RATIO,
        signal(Signal.SM_ACTIVE),
        "Share of the card's processors busy since the previous cycle; waiting in a collective keeps few busy.",
    ),
    gauge(
        "sm_occupancy",
        Unit.RATIO,
        signal(Signal.SM_OCCUPANCY),
        "Warps that were active since the previous cycle, over the most that the card holds.",
        series=SeriesSet.FULL,
    ),
    gauge(
        "tensor_active",
        Unit.RATIO,
        signal(Signal.TENSOR_ACTIVE),
        "Share of time since the previous cycle in which the tensor cores worked.",
    ),
    gauge(
        "dram_active",
        Unit.RATIO,
        signal(Signal.DRAM_ACTIVE),
        "Memory bandwidth used since the previous cycle, over the highest possible.",
    ),
    gauge(
        "graphics_active",
        Unit.RATIO,
        signal(Signal.GRAPHICS_ACTIVE),
        "Share of time since the previous cycle in which any compute or graphics work was on the card.",
        series=SeriesSet.FULL,
    ),
    gauge(
        "pipe_active",
        Unit.RATIO,
        _pipes,
        "Share of time since the previous cycle in which the processors did this kind of arithmetic; a "
        "kind is shown from its first use on.",
        "pipe",
        series=SeriesSet.FULL,
    ),
    gauge(
        "traffic_bytes_per_second",
        Unit.NONE,
        _traffic,
        "Bytes per second since the previous cycle, as the card's own counters have them; link is pcie or nvlink.",
        "link",
        "direction",
        series=SeriesSet.FULL,
    ),
)
