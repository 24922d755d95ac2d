"""What the page says about the room that is left in KV caches."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from exporter.catalog.spec import REPLICA, Metric, MetricKind, ReadSamples, Sample, SeriesSet, Unit
from exporter.model import KvTokens, Snapshot

Value = Callable[[KvTokens], float | None]


def _total(value: Value) -> ReadSamples:
    """Read the total over the ranks, with an empty rank, so that a query's sum is the same in both sets of series."""

    def read(snapshot: Snapshot) -> Iterator[Sample]:
        for replica in snapshot.replicas:
            total = None if replica.headroom is None else replica.headroom.total
            number = None if total is None else value(total)
            if number is not None:
                yield (*replica.labels, ""), number

    return read


def _seconds_to_full(snapshot: Snapshot) -> Iterator[Sample]:
    for replica in snapshot.replicas:
        if replica.headroom is not None and replica.headroom.seconds_to_full is not None:
            yield replica.labels, replica.headroom.seconds_to_full


def _metric(noun: str, unit: Unit, value: Value, help_: str, series: SeriesSet = SeriesSet.COMMON) -> Metric:
    return Metric(
        subject=REPLICA,
        noun=noun,
        kind=MetricKind.GAUGE,
        unit=unit,
        labels=("rank",),
        help=f"{help_} Shown is the sum over the ranks, with an empty rank.",
        series=series,
        read=_total(value),
    )


CAPACITY = (
    _metric(
        "kv_cache_used",
        Unit.TOKENS,
        lambda tokens: tokens.used,
        "Tokens of KV cache that live requests hold: usage times capacity, both as the engine says them.",
        SeriesSet.FULL,
    ),
    _metric(
        "kv_cache_free",
        Unit.TOKENS,
        lambda tokens: tokens.free,
        "Tokens of KV cache that requests could still take; cached blocks that could be evicted are free.",
    ),
    _metric(
        "kv_cache_free_sequences",
        Unit.NONE,
        lambda tokens: tokens.sequences,
        "Sequences of the recent mean length (prompt and answer of finished requests) that fit into the free tokens; "
        "a low estimate where prefixes are shared. The engine's limit on running requests may be reached first.",
    ),
    Metric(
        subject=REPLICA,
        noun="kv_cache_time_to_full",
        kind=MetricKind.GAUGE,
        unit=Unit.SECONDS,
        help="Seconds until the KV cache of the first rank is full and requests begin to queue, if it goes on "
        "growing as during the shortest window; 0 when full, absent while it does not grow.",
        read=_seconds_to_full,
    ),
)
