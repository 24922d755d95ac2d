"""The layer at which imbalance arises: between replicas, between ranks of a replica, or between cards of a rank.

The gateway distributes load over replicas, the engine's scheduler over ranks, and the cards of a rank should all do
the same.  A nested analysis of variance gives the part of a model's variance that arises at each layer.
With x the signal of card k in rank j of replica i, and m the mean over what its index names:

    sum (x_ijk - m)^2  =  sum n_i (m_i - m)^2  +  sum n_ij (m_ij - m_i)^2  +  sum (x_ijk - m_ij)^2
         total                 "replica"                 "rank"                     "card"

A share is one term over the total.  Every card has the same weight, so a replica of four cards (n_i = 4) weighs
twice as much as one of two; only cards that have the signal count.  Request load is reported by rank: there a rank
takes the place of a card, every rank has the same weight, and there is no layer "card".

- A layer without two members to compare (one replica, one rank in every replica, one card in every rank) has no
  share; the others still sum to 1.
- A total of 0 gives no shares; neither does one that is only rounding (standard deviation below a billionth of the
  largest value).
- Shares say where, not how much: read them with the coefficient of variation.  They are shares of the sample, and no
  estimates of variance components: pure noise over n cards gives each layer its degrees of freedom over n - 1, so
  2 replicas of 4 cards show 1/7 for "replica" although nothing is wrong.
- Cards whose rank is not known are one rank.  Cards that several ranks of a replica share are a rank of their own.
  A card of several replicas is left out, because its load cannot be attributed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import fsum, isfinite, sqrt
from typing import NamedTuple

from exporter.derive.imbalance import PROMPT_RATE, SIGNALS, average
from exporter.model import (
    EMPTY,
    CardState,
    EngineReading,
    GpuAssignment,
    Quantity,
    ReplicaState,
    Signal,
    VarianceBreakdown,
    WindowFigures,
)

REPLICA, RANK, CARD = "replica", "rank", "card"
TOKEN_RATE = "generation_token_rate"  # noqa: S105 - a rate, no secret

_LOADS = (Quantity.REQUESTS_RUNNING, Quantity.REQUESTS_WAITING)
_ROUNDING = 1e-9  # of the largest value

Nested = Sequence[Sequence[Sequence[float]]]  # replicas of ranks of cards
_Group = Sequence[Sequence[Sequence[Mapping[Signal, float]]]]


def variance_breakdowns(
    cards: Sequence[CardState], replicas: Sequence[ReplicaState], assignments: Sequence[GpuAssignment]
) -> tuple[VarianceBreakdown, ...]:
    """Return one row per model and signal that at least two cards (or ranks) have; models by name.

    Replicas whose model is not known are left out.  The order of the arguments does not matter.
    """
    groups = _groups(cards, replicas, assignments)
    models: dict[str, list[ReplicaState]] = {}
    for replica in replicas:
        if replica.labels.model:
            models.setdefault(replica.labels.model, []).append(replica)
    rows: list[VarianceBreakdown | None] = []
    for model in sorted(models):
        if model in groups:
            rows += [_row(model, signal.value, _values(groups[model], signal)) for signal in SIGNALS]
        rows += [_row(model, quantity.value, _loads(models[model], quantity)) for quantity in _LOADS]
        rows.append(_row(model, TOKEN_RATE, _rates(models[model], lambda window: window.rank_token_rates)))
        rows.append(_row(model, PROMPT_RATE, _rates(models[model], lambda window: window.rank_prompt_token_rates)))
    return tuple(row for row in rows if row is not None)


class NestedVariance(NamedTuple):
    """The coefficient of variation, None if the mean is not above 0, and the shares of the variance by layer."""

    coefficient: float | None
    shares: Mapping[str, float]


def variance_breakdown(values: Nested) -> NestedVariance | None:
    """Return the variance of finite values by layer; None for fewer than two values."""
    group = [[rank for rank in replica if rank] for replica in values]
    group = [replica for replica in group if replica]
    every = [value for replica in group for rank in replica for value in rank]
    if len(every) < 2:
        return None
    peak = max(map(abs, every))
    if peak == 0:
        return NestedVariance(None, EMPTY)
    # Relative to the largest value, so that squares neither overflow nor underflow.
    every = [value / peak for value in every]
    mean = average(every)
    sums = _sums_of_squares(group, peak, mean)
    total = fsum(sums.values())
    if total <= len(every) * _ROUNDING * _ROUNDING:
        return NestedVariance(0.0 if mean > 0 else None, EMPTY)
    coefficient = sqrt(total / len(every)) / mean if mean > 0 else None
    return NestedVariance(coefficient, {layer: square / total for layer, square in sums.items()})


def _sums_of_squares(group: Nested, peak: float, mean: float) -> dict[str, float]:
    """Return the terms of the layers that exist; the others' are 0."""
    replica_squares: list[float] = []
    rank_squares: list[float] = []
    card_squares: list[float] = []
    for replica in group:
        ranks = [[value / peak for value in rank] for rank in replica]
        replica_mean = average([value for rank in ranks for value in rank])
        replica_squares.append(sum(map(len, ranks)) * (replica_mean - mean) ** 2)
        for rank in ranks:
            rank_mean = average(rank)
            rank_squares.append(len(rank) * (rank_mean - replica_mean) ** 2)
            if len(rank) > 1:
                card_squares += [(value - rank_mean) ** 2 for value in rank]
    squares = {}
    if len(group) > 1:
        squares[REPLICA] = fsum(replica_squares)
    if len(rank_squares) > len(group):
        squares[RANK] = fsum(rank_squares)
    if card_squares:
        squares[CARD] = fsum(card_squares)
    return squares


def _row(model: str, signal: str, values: Nested) -> VarianceBreakdown | None:
    variance = variance_breakdown(values)
    if variance is None:
        return None
    return VarianceBreakdown(
        model=model, signal=signal, coefficient_of_variation=variance.coefficient, shares=variance.shares
    )


# ── Groups ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _groups(
    cards: Sequence[CardState], replicas: Iterable[ReplicaState], assignments: Iterable[GpuAssignment]
) -> dict[str, _Group]:
    """Return the signals of every model's cards, nested: replicas of ranks of cards."""
    users: dict[str, dict[str, set[str]]] = {}  # uuid → replica → ranks
    for assignment in assignments:
        users.setdefault(assignment.uuid, {}).setdefault(assignment.replica, set()).add(assignment.rank)
    models = {replica.name: replica.labels.model for replica in replicas if replica.labels.model}
    groups: dict[str, dict[str, dict[frozenset[str], list[Mapping[Signal, float]]]]] = {}
    for card in cards:
        replica_ranks = users.get(card.facts.uuid, EMPTY)
        if card.reading is None or len(replica_ranks) != 1:
            continue
        ((replica, ranks),) = replica_ranks.items()
        if replica in models:
            group = groups.setdefault(models[replica], {}).setdefault(replica, {})
            group.setdefault(frozenset(ranks), []).append(card.reading.signals)
    return {model: [list(ranks.values()) for ranks in by_replica.values()] for model, by_replica in groups.items()}


def _values(group: _Group, signal: Signal) -> Nested:
    return [
        [[card[signal] for card in rank if signal in card and isfinite(card[signal])] for rank in replica]
        for replica in group
    ]


def _loads(replicas: Sequence[ReplicaState], quantity: Quantity) -> Nested:
    return [_by_rank(replica.reading, quantity) for replica in replicas if replica.reading is not None]


def _by_rank(reading: EngineReading, quantity: Quantity) -> list[list[float]]:
    levels = [numbers[quantity] for numbers in reading.ranks.values() if quantity in numbers]
    return [[number] for number in levels if isfinite(number)]


def _rates(replicas: Sequence[ReplicaState], by_rank: Callable[[WindowFigures], Mapping[str, float]]) -> Nested:
    """Return the rates by rank of the first window that at least two ranks have: windows must not be mixed."""
    for label in dict.fromkeys(label for replica in replicas for label in replica.windows):
        rates = [
            [[rate] for rate in by_rank(replica.windows[label]).values() if isfinite(rate)]
            for replica in replicas
            if replica.reading is not None and label in replica.windows
        ]
        if sum(map(len, rates)) >= 2:
            return rates
    return []
