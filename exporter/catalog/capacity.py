"""Metrics of KV-cache headroom."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from exporter.catalog.spec import REPLICA, Metric, ReadSamples, Sample, SeriesSet, Unit
from exporter.model import KvTokens, Snapshot

Value = Callable[[KvTokens], float | None]


def _total(value: Value) -> ReadSamples:
    """Return a reader of the total, with an empty rank, so that a query's sum is the same in both sets of series."""

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
    return REPLICA.gauge(
        noun, _total(value), f"{help_} The sum over the ranks, with an empty rank.", "rank", unit=unit, series=series
    )


CAPACITY = (
    _metric(
        "kv_cache_used",
        Unit.TOKENS,
        lambda tokens: tokens.used,
        "Tokens of the KV cache held by live requests: the usage times the capacity that the engine reports.",
        SeriesSet.FULL,
    ),
    _metric(
        "kv_cache_free",
        Unit.TOKENS,
        lambda tokens: tokens.free,
        "Tokens of the KV cache that are free, including cached blocks that can be evicted.",
    ),
    _metric(
        "kv_cache_free_sequences",
        Unit.NONE,
        lambda tokens: tokens.sequences,
        "Sequences of the recent mean length (prompt and answer of finished requests) that fit into the free tokens; "
        "underestimated where prefixes are shared. The engine's limit on running requests may be reached first.",
    ),
    REPLICA.gauge(
        "kv_cache_time_to_full",
        _seconds_to_full,
        "Seconds until the KV cache of the first rank is full and requests begin to queue, at the growth rate "
        "of the shortest window; 0 when full, absent while it does not grow.",
        unit=Unit.SECONDS,
    ),
)
