"""What the page says about the room that is left in KV caches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from exporter.catalog.spec import REPLICA, Metric, MetricKind, ReadSamples, Sample, SeriesSet, Unit
from exporter.model import KvCacheHeadroom, Snapshot

Of = Callable[[KvCacheHeadroom], Mapping[str, float]]


def _summed(value: Of) -> ReadSamples:
    """Sum over the ranks, shown with an empty rank, so that a query's sum is the same in both sets of series."""

    def read(snapshot: Snapshot) -> Iterator[Sample]:
        for replica in snapshot.replicas:
            if replica.headroom is not None and value(replica.headroom):
                yield (*replica.labels, ""), sum(value(replica.headroom).values())

    return read


def _full_in(snapshot: Snapshot) -> Iterator[Sample]:
    for replica in snapshot.replicas:
        if replica.headroom is not None and replica.headroom.full_in is not None:
            yield replica.labels, replica.headroom.full_in


def _metric(noun: str, unit: Unit, value: Of, help_: str, series: SeriesSet = SeriesSet.COMMON) -> Metric:
    return Metric(
        subject=REPLICA,
        noun=noun,
        kind=MetricKind.GAUGE,
        unit=unit,
        labels=("rank",),
        help=f"{help_} Shown is the sum over the ranks, with an empty rank.",
        series=series,
        read=_summed(value),
    )


CAPACITY = (
    _metric(
        "kv_cache_used",
        Unit.TOKENS,
        lambda room: room.used,
        "Tokens of KV cache that live requests hold: usage times capacity, both as the engine says them.",
        SeriesSet.FULL,
    ),
    _metric(
        "kv_cache_free",
        Unit.TOKENS,
        lambda room: room.free,
        "Tokens of KV cache that requests could still take; cached blocks that could be evicted are free.",
    ),
    _metric(
        "kv_cache_free_sequences",
        Unit.NONE,
        lambda room: room.sequences,
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
        read=_full_in,
    ),
)
