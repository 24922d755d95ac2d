"""Metrics of energy and cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from exporter.catalog.spec import GPU, REPLICA, Metric, ReadSamples, Sample, SeriesSet, Unit
from exporter.model import Economics, ReplicaWindow, Snapshot

ByWindow = Callable[[Economics], Mapping[ReplicaWindow, float]]
ByCard = Callable[[Economics], Mapping[str, float]]


def _replicas(value: ByWindow, *, currency: bool = False, longest: bool = False) -> ReadSamples:
    """Return a reader of every window's figure, or of that of each replica's longest window; windows ascend."""

    def read(snapshot: Snapshot) -> Iterator[Sample]:
        labels = {replica.name: replica.labels for replica in snapshot.replicas}
        more = (snapshot.economics.currency,) if currency else ()
        found = value(snapshot.economics)
        last = dict(found.keys()) if longest else {}
        for (name, window), number in found.items():
            if name in labels and (not longest or last[name] == window):
                yield (*labels[name], window, *more), number

    return read


def _cards(value: ByCard, *, currency: bool = False) -> ReadSamples:
    def read(snapshot: Snapshot) -> Iterator[Sample]:
        found = value(snapshot.economics)
        more = (snapshot.economics.currency,) if currency else ()
        for card in snapshot.cards:
            if card.facts.uuid in found:
                yield (*card.labels, *more), found[card.facts.uuid]

    return read


def _cost_of(tokens: str, help_: str, value: ByWindow) -> Metric:
    """Declare the cost over other tokens than the generated ones."""
    return REPLICA.gauge(
        f"cost_per_million_{tokens}_tokens",
        _replicas(value, currency=True),
        help_,
        "window",
        "currency",
        series=SeriesSet.FULL,
    )


ECONOMICS = (
    REPLICA.gauge(
        "energy_joules_per_generated_token",
        _replicas(lambda figures: figures.joules_per_token, longest=True),
        "Energy that the replica's GPUs drew over tokens generated in the same window, by the GPUs' own "
        "counters, without the host. A GPU of several replicas is split evenly between them. The common set has the "
        "longest window.",
        "window",
        read_full=_replicas(lambda figures: figures.joules_per_token),
    ),
    REPLICA.gauge(
        "generation_tokens_per_joule",
        _replicas(lambda figures: figures.tokens_per_joule, longest=True),
        "Tokens generated over energy that the replica's GPUs drew, in the longest window; 0 while idle.",
        "window",
        series=SeriesSet.FULL,
    ),
    REPLICA.gauge(
        "cost_per_million_generated_tokens",
        _replicas(lambda figures: figures.cost_per_million, currency=True, longest=True),
        "Price of the replica's GPUs, busy or idle, for the time of a million generated tokens at the window's "
        "rate; absent without tokens, and if a GPU has no price in costs.gpu_hour. A GPU of several replicas is "
        "split evenly between them. The common set has the longest window.",
        "window",
        "currency",
        read_full=_replicas(lambda figures: figures.cost_per_million, currency=True),
    ),
    _cost_of(
        "prompt",
        "Price of the replica's GPUs for the time of a million prompt tokens at the window's rate: the whole price "
        "over the input alone.",
        lambda figures: figures.cost_per_million_prompt,
    ),
    _cost_of(
        "processed",
        "Price of the replica's GPUs for the time of a million prompt and generated tokens at the window's rate.",
        lambda figures: figures.cost_per_million_processed,
    ),
    REPLICA.gauge(
        "revenue_per_hour",
        _replicas(lambda figures: figures.revenue_per_hour, currency=True),
        "What prompt and generated tokens at the window's rates are sold for, at the prices of costs.models; absent "
        "for models without one.",
        "window",
        "currency",
        series=SeriesSet.FULL,
    ),
    REPLICA.gauge(
        "revenue_to_cost",
        _replicas(lambda figures: figures.revenue_to_cost),
        "The same over the price of the replica's GPUs, busy or idle; below 1 the GPUs cost more than their tokens "
        "are sold for.",
        "window",
        unit=Unit.RATIO,
        series=SeriesSet.FULL,
    ),
    GPU.gauge(
        "price_per_hour",
        _cards(lambda figures: figures.prices, currency=True),
        "Price of an hour of the GPU, from costs.gpu_hour in the configuration.",
        "currency",
    ),
    GPU.counter(
        "idle",
        _cards(lambda figures: figures.idle_seconds),
        "Time in which nothing ran on the replica (or rank) that uses the GPU, or its utilisation was 0 while "
        "no replica was known to use it; evaluated at each reading since the daemon's start.",
        unit=Unit.SECONDS,
    ),
    GPU.counter(
        "idle_cost",
        _cards(lambda figures: figures.idle_cost, currency=True),
        "Price of the GPU's idle time, at the price configured at that time.",
        "currency",
        series=SeriesSet.FULL,
    ),
)
