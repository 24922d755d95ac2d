"""Readings of one replica made of few counters, and what ``update`` makes of a row of them."""

from __future__ import annotations

from array import array

from exporter.derive.delta import BucketCounts, ReplicaCounters, update
from exporter.model import EngineReading, Histogram, Quantity, Stage

TTFT = Stage.TIME_TO_FIRST_TOKEN
GEN = Quantity.GENERATION_TOKENS
PROMPT = Quantity.PROMPT_TOKENS
BOUNDS = (0.1, 0.5, 1.0)


def histogram(*counts: float, bounds=BOUNDS) -> Histogram:
    return Histogram(bounds=bounds, counts=tuple(map(float, counts)))


def buckets(*counts: float, bounds=BOUNDS) -> BucketCounts:
    return BucketCounts(bounds=bounds, counts=array("d", counts))


def page(at: float, ranks=None, **fields) -> EngineReading:
    return EngineReading(at=at, engine="vllm", ranks={"0": {}} if ranks is None else ranks, **fields)


def run(*readings: EngineReading) -> ReplicaCounters:
    progress = None
    for reading in readings:
        progress = update(progress, reading)
    assert progress is not None
    return progress


def tokens(at: float, *by_rank: float, **fields) -> EngineReading:
    return page(at, {str(rank): {GEN: value} for rank, value in enumerate(by_rank)}, **fields)


def stages(at: float, *by_rank: Histogram, **fields) -> EngineReading:
    return page(at, histograms={TTFT: {str(rank): h for rank, h in enumerate(by_rank)}}, **fields)
