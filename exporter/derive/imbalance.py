"""Imbalance: between the cards of each replica, between its ranks, and between replicas of one model.

Cards are compared only with the cards that they work in lockstep with.  The node's figure is therefore the imbalance
within groups, not between them: two busy cards of one model beside two idle cards of another are balanced.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import fsum, isfinite, sqrt

from msgspec import Struct

from exporter.model import (
    EMPTY,
    CardState,
    EngineReading,
    GpuAssignment,
    GroupImbalance,
    ModelSignal,
    Quantity,
    ReplicaState,
    Signal,
    Spread,
    WindowFigures,
)
from exporter.model.median import median

REPLICA = "replica"
NODE = "node"

SIGNALS = (
    Signal.UTILIZATION,
    Signal.MEMORY_ACTIVITY,
    Signal.MEMORY_USED,
    Signal.POWER,
    Signal.TEMPERATURE_GPU,
    Signal.CLOCK_SM,
)

_GAUGES = (Quantity.REQUESTS_RUNNING, Quantity.REQUESTS_WAITING, Quantity.KV_CACHE_USAGE)
_TOKEN_RATE = "generation_token_rate"  # noqa: S105 - a rate, no secret
PROMPT_RATE = "prompt_token_rate"  # whether some ranks are given the long prompts
_REQUEST_RATE = "request_rate"

_Readings = Mapping[str, Mapping[Signal, float]]  # uuid → signals


class _GroupSignal(Struct, frozen=True):
    """The values of one signal in one group, and their mean."""

    values: list[float]
    mean: float


def group_imbalances(cards: Sequence[CardState], assignments: Sequence[GpuAssignment]) -> tuple[GroupImbalance, ...]:
    """Return one row for each replica with at least two cards that were read, then one for the node.

    A card of two replicas counts in both.  Cards of no replica are left out of the node as soon as any assignment is
    known; without one, all cards are one group.  The order of the arguments does not matter.
    """
    present = {card.facts.uuid for card in cards}
    read = {card.facts.uuid: card.reading.signals for card in cards if card.reading is not None}
    members: dict[str, set[str]] = {}
    for assignment in assignments:
        if assignment.uuid in present:
            members.setdefault(assignment.replica, set()).add(assignment.uuid)
    groups = {
        replica: {uuid: read[uuid] for uuid in sorted(uuids) if uuid in read}
        for replica, uuids in sorted(members.items())
    }
    rows = [
        GroupImbalance(scope=REPLICA, group=replica, spreads=_spreads([group]), deviations=_deviations(group))
        for replica, group in groups.items()
        if len(group) >= 2
    ]
    whole: list[_Readings] = list(groups.values()) if members else [read]
    if sum(map(len, whole)) >= 2:
        deviations = EMPTY if members else _deviations(read)
        rows.append(GroupImbalance(scope=NODE, group="", spreads=_spreads(whole), deviations=deviations))
    return tuple(rows)


def _spreads(groups: Sequence[_Readings]) -> Mapping[Signal, Spread]:
    spreads: dict[Signal, Spread] = {}
    for signal in SIGNALS:
        measured = [_group_signal(readings, signal) for readings in groups]
        spread = _spread([group for group in measured if group is not None])
        if spread is not None:
            spreads[signal] = spread
    return spreads


def _group_signal(readings: _Readings, signal: Signal) -> _GroupSignal | None:
    values = [signals[signal] for signals in readings.values() if signal in signals]
    values = [value for value in values if isfinite(value)]
    return _GroupSignal(values, average(values)) if values else None


def _spread(measured: Sequence[_GroupSignal]) -> Spread | None:
    """Return the pooled deviations of each card from the mean of its own group."""
    values = [value for group in measured for value in group.values]
    if len(values) < 2:
        return None
    deviations = [value - group.mean for group in measured for value in group.values]
    squares = fsum(deviation * deviation for deviation in deviations)  # ** would raise OverflowError
    stddev, mean = sqrt(squares / len(values)), average(values)
    return Spread(
        stddev=stddev,
        spread=max(max(group.values) - min(group.values) for group in measured),
        coefficient_of_variation=stddev / mean if mean > 0 else None,
        max_to_mean=max((max(group.values) / group.mean for group in measured if group.mean > 0), default=None),
    )


def average(values: Sequence[float]) -> float:
    """Return the mean of at least one value, the same in any order; exactly the common value when all are equal."""
    lowest = min(values)
    return lowest if lowest == max(values) else fsum(values) / len(values)


def _deviations(group: _Readings) -> Mapping[Signal, Mapping[str, float]]:
    deviations: dict[Signal, Mapping[str, float]] = {}
    for signal in SIGNALS:
        values = {uuid: signals[signal] for uuid, signals in group.items() if signal in signals}
        values = {uuid: value for uuid, value in values.items() if isfinite(value)}
        middle = median(values.values()) if len(values) > 1 else 0.0
        if middle > 0:
            deviations[signal] = {uuid: (value - middle) / middle for uuid, value in values.items()}
    return deviations


# ── Ranks and replicas ──────────────────────────────────────────────────────────────────────────────────────────


def rank_imbalance(reading: EngineReading, window: WindowFigures | None) -> Mapping[str, float]:
    """Return maximum ÷ mean over the data-parallel ranks by signal; absent without two ranks, or with a mean of 0.

    ``window``: the shortest, for tokens per second.
    """
    ratios: dict[str, float] = {}
    for name in _GAUGES:
        ratio = max_to_mean(values[name] for values in reading.ranks.values() if name in values)
        if ratio is not None:
            ratios[name.value] = ratio
    if window is None:
        return ratios
    for signal, by_rank in ((_TOKEN_RATE, window.rank_token_rates), (PROMPT_RATE, window.rank_prompt_token_rates)):
        ratio = max_to_mean(by_rank.values())
        if ratio is not None:
            ratios[signal] = ratio
    return ratios


def replica_imbalance(replicas: Sequence[ReplicaState]) -> Mapping[ModelSignal, float]:
    """Return maximum ÷ mean between replicas of one model, by model and signal; needs two with readings.

    Requests are summed over a replica's ranks, cache usage is averaged; rates are of the first window that at least
    two replicas have.  Replicas whose model is not known are left out.
    """
    models: dict[str, list[ReplicaState]] = {}
    for replica in replicas:
        if replica.reading is not None and replica.labels.model:
            models.setdefault(replica.labels.model, []).append(replica)
    ratios: dict[ModelSignal, float] = {}
    for model, members in models.items():
        for name in _GAUGES:
            levels = [_level(member.reading, name) for member in members if member.reading is not None]
            ratio = max_to_mean(level for level in levels if level is not None)
            if ratio is not None:
                ratios[ModelSignal(model, name.value)] = ratio
        for signal in (_TOKEN_RATE, _REQUEST_RATE):
            ratio = max_to_mean(_rates(members, signal))
            if ratio is not None:
                ratios[ModelSignal(model, signal)] = ratio
    return ratios


def _level(reading: EngineReading, name: Quantity) -> float | None:
    levels = [values[name] for values in reading.ranks.values() if name in values]
    if not levels:
        return None
    return fsum(levels) / len(levels) if name is Quantity.KV_CACHE_USAGE else fsum(levels)


def _rates(members: Sequence[ReplicaState], signal: str) -> list[float]:
    for label in dict.fromkeys(label for member in members for label in member.windows):
        rates = [getattr(member.windows[label], signal) for member in members if label in member.windows]
        known = [rate for rate in rates if rate is not None]
        if len(known) >= 2:
            return known
    return []


def max_to_mean(values: Iterable[float]) -> float | None:
    """Return the maximum over the mean; None without two values, or with a mean of 0."""
    valid = [value for value in values if isfinite(value) and value >= 0]
    if len(valid) < 2:
        return None
    highest, mean = max(valid), fsum(valid) / len(valid)
    if not mean > 0:
        return None
    return 1.0 if min(valid) == highest else highest / mean
