"""Metrics derived from engines: figures over windows, and the imbalance of ranks and replicas."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import NamedTuple

from exporter.catalog.spec import MODEL, REPLICA, Metric, MetricKind, ReadSamples, Sample, SeriesSet, Unit
from exporter.model import COMMON_STAGES, LATENCIES, ReplicaState, Snapshot, Stage, WindowFigures


class _ReplicaWindow(NamedTuple):
    replica: ReplicaState
    label: str  # of the window
    figures: WindowFigures


Windows = Callable[[Snapshot], Iterator[_ReplicaWindow]]


def _windows(snapshot: Snapshot) -> Iterator[_ReplicaWindow]:
    for replica in snapshot.replicas:
        if replica.reading is not None:
            for label, figures in replica.windows.items():
                yield _ReplicaWindow(replica, label, figures)


def _longest(snapshot: Snapshot) -> Iterator[_ReplicaWindow]:
    """Return each replica's longest window with latencies; labels ascend."""
    for replica in snapshot.replicas:
        if replica.reading is not None:
            for label in reversed(list(replica.windows)):
                if replica.windows[label].latency:
                    yield _ReplicaWindow(replica, label, replica.windows[label])
                    break


def _longest_labels(snapshot: Snapshot) -> dict[str, str]:
    return {replica.name: label for replica, label, _ in _longest(snapshot)}


def _windowed(value: Callable[[WindowFigures], float | None]) -> ReadSamples:
    def read(snapshot: Snapshot) -> Iterator[Sample]:
        for replica, label, figures in _windows(snapshot):
            number = value(figures)
            if number is not None:
                yield (*replica.labels, label), number

    return read


# A p99.9 over one minute is the maximum of some hundred requests: the common set has it for the longest window only.
_RARE = 0.99


def _quantiles(stages: tuple[Stage, ...], *, rare_everywhere: bool) -> ReadSamples:
    def read(snapshot: Snapshot) -> Iterator[Sample]:
        longest = _longest_labels(snapshot)
        for replica, label, figures in _windows(snapshot):
            is_longest = longest.get(replica.name) == label
            max_quantile = 1.0 if rare_everywhere or is_longest else _RARE
            for stage in stages if is_longest else COMMON_STAGES:
                latency = figures.latency.get(stage)
                if latency is not None:
                    name = stage.value
                    for quantile, seconds in latency.quantiles.items():
                        if quantile <= max_quantile:
                            yield (*replica.labels, name, _quantile_label(quantile), label), seconds

    return read


@functools.lru_cache(maxsize=64)
def _quantile_label(quantile: float) -> str:
    return repr(quantile)  # all digits: two quantiles must not become one series


def _observations(stages: tuple[Stage, ...]) -> ReadSamples:
    def read(snapshot: Snapshot) -> Iterator[Sample]:
        for replica, label, figures in _longest(snapshot):
            for stage in stages:
                latency = figures.latency.get(stage)
                if latency is not None:
                    yield (*replica.labels, stage.value, label), latency.observations

    return read


def _above_top(stages: tuple[Stage, ...], windows: Windows) -> ReadSamples:
    def read(snapshot: Snapshot) -> Iterator[Sample]:
        for replica, label, figures in windows(snapshot):
            for stage in stages:
                latency = figures.latency.get(stage)
                ratio = None if latency is None else latency.overflow_ratio
                if ratio or (ratio is not None and stage in COMMON_STAGES):
                    yield (*replica.labels, stage.value, label), ratio

    return read


def _rank_imbalance(snapshot: Snapshot) -> Iterator[Sample]:
    for replica in snapshot.replicas:
        for signal, value in replica.rank_imbalance.items():
            yield (*replica.labels, signal), value


def _replica_imbalance(snapshot: Snapshot) -> Iterator[Sample]:
    yield from snapshot.replica_imbalance.items()


def figure(
    noun: str,
    value: Callable[[WindowFigures], float | None],
    help_: str,
    unit: Unit = Unit.NONE,
    series: SeriesSet = SeriesSet.COMMON,
) -> Metric:
    """Declare a figure of every window."""
    return REPLICA.gauge(noun, _windowed(value), help_, "window", unit=unit, series=series)


KV_CACHE = (
    figure(
        "kv_cache_hit",
        lambda figures: figures.hit_ratio,
        "Prefix-cache hits over queries during the window; absent without queries. window=lifetime marks the "
        "lifetime average that old engines report instead of counters.",
        Unit.RATIO,
    ),
)

LATENCY = (
    REPLICA.metric(
        MetricKind.SUMMARY,
        "latency_quantile",
        _quantiles(COMMON_STAGES, rare_everywhere=False),
        "Quantile of a latency during the window, equal to histogram_quantile over the same observations. "
        "At most the last finite bucket bound, see llm_latency_above_top_bucket_ratio. The common set has three "
        "stages, and quantiles above 0.99 for the longest window only; the full set has the other stages for that "
        "window only.",
        "stage",
        "quantile",
        "window",
        unit=Unit.SECONDS,
        read_full=_quantiles(LATENCIES, rare_everywhere=True),
    ),
    REPLICA.gauge(
        "latency_observations",
        _observations(LATENCIES),
        "Observations behind the quantiles of the longest window; a p99 of 20 observations is their maximum.",
        "stage",
        "window",
        series=SeriesSet.FULL,
    ),
    REPLICA.gauge(
        "latency_above_top_bucket",
        _above_top(COMMON_STAGES, _longest),
        "Ratio of the window's observations beyond the last finite bucket bound, where quantiles are truncated. "
        "For the longest window only; the full set has the other stages while the ratio is above 0.",
        "stage",
        "window",
        unit=Unit.RATIO,
        read_full=_above_top(LATENCIES, _longest),
    ),
)

RATES = (
    figure(
        "error",
        lambda figures: figures.error_ratio,
        "Failed over finished requests during the window: server and engine errors, without client errors.",
        Unit.RATIO,
    ),
    figure(
        "request_rate",
        lambda figures: figures.request_rate,
        "Requests finished per second during the window, without those that were rejected.",
        series=SeriesSet.FULL,
    ),
    figure(
        "rejected_request_rate",
        lambda figures: figures.rejected_rate,
        "Requests per second during the window that the engine rejected because its queue was full.",
        series=SeriesSet.FULL,
    ),
    figure(
        "generation_token_rate",
        lambda figures: figures.generation_token_rate,
        "Tokens generated per second during the window.",
        series=SeriesSet.FULL,
    ),
)

IMBALANCE = (
    REPLICA.gauge(
        "rank_imbalance_max_to_mean",
        _rank_imbalance,
        "Maximum over mean of a signal between the replica's data-parallel ranks: 1 is balanced. Caused by the "
        "engine's scheduler.",
        "signal",
        unit=Unit.RATIO,
    ),
    MODEL.gauge(
        "replica_imbalance_max_to_mean",
        _replica_imbalance,
        "Maximum over mean of a signal between the replicas of one model on this node: 1 is balanced. Caused by "
        "the gateway.",
        "signal",
        unit=Unit.RATIO,
    ),
)

ENGINE_FIGURES = (*KV_CACHE, *LATENCY, *RATES, *IMBALANCE)
