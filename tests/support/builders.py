"""Small ready-made records for tests."""

from __future__ import annotations

from exporter.derive.ranks import finished_totals, quantity_totals
from exporter.model import (
    CardFacts,
    CardReading,
    CardState,
    EngineReading,
    GpuLabels,
    Histogram,
    LatencySummary,
    Quantity,
    ReplicaLabels,
    ReplicaState,
    Signal,
    Snapshot,
    SourceStatus,
    Stage,
    WindowFigures,
)


class Clock:
    """A clock that moves when it is told to."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def tick(self, seconds: float) -> None:
        self.now += seconds


def card(index: int = 0, *, at: float = 1000.0, up: bool = True, **signals: float) -> CardState:
    uuid = f"GPU-{index:04d}"
    values = {Signal(name): value for name, value in signals.items()}
    return CardState(
        facts=CardFacts(index=index, uuid=uuid, name="card"),
        status=SourceStatus(source=f"gpu:{uuid}", up=up, reason="" if up else "lost"),
        reading=CardReading(at=at, signals=values) if up else None,
        last_read_at=at,
        labels=GpuLabels(str(index), uuid),
    )


def replica(name: str = "a", *, at: float = 1000.0, up: bool = True, model: str = "m", **more) -> ReplicaState:
    reading = more.pop("reading", None) or EngineReading(at=at, engine="vllm", model=model, ranks={})
    totals = {
        "quantity_totals": quantity_totals(reading.ranks, {}) if up else {},
        "finished_totals": finished_totals(reading.finished, {}) if up else {},
    }
    return ReplicaState(
        name=name,
        kind="vllm",
        labels=ReplicaLabels(name, "vllm", model),
        status=SourceStatus(source=f"engine:{name}", up=up, reason="" if up else "refused"),
        reading=reading if up else None,
        last_read_at=at,
        **{**totals, **more},
    )


def snapshot(**parts) -> Snapshot:
    return Snapshot(at=1001.0, unix_time=1.7e9, **parts)


def busy_replica(name: str = "a", model: str = "m") -> ReplicaState:
    """Return a replica of two ranks with a value of every type."""
    latency = LatencySummary(quantiles={0.5: 0.1, 0.999: 2.0}, observations=7.0, overflow_ratio=0.0)
    reading = EngineReading(
        at=1000.0,
        engine="vllm",
        model=model,
        version="0.32.0",
        ranks={
            "0": {Quantity.REQUESTS_RUNNING: 3.0, Quantity.PROMPT_TOKENS: 10.0},
            "1": {Quantity.PROMPT_TOKENS: 5.0},
        },
        finished={"0": {"stop": 2.0}, "1": {"stop": 3.0}, "": {"rejected": 0.0}},
    )
    return replica(
        name,
        model=model,
        reading=reading,
        histograms={Stage.TIME_TO_FIRST_TOKEN: Histogram(bounds=(0.1, 1.0), counts=(1.0, 2.0, 7.0), sum=12.5)},
        windows={"1m": WindowFigures(seconds=60.0, hit_ratio=0.25, latency={Stage.TIME_TO_FIRST_TOKEN: latency})},
    )
