"""How uneven the cards of one replica are, and how uneven the node is inside its replicas.

Cards are compared only with the cards they work in step with.  The node's figure is therefore the unevenness
within groups, not between them: two busy cards of one model beside two idle cards of another are balanced.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import fsum, isfinite, sqrt

from msgspec import Struct

from exporter.model import EMPTY, CardState, GpuAssignment, GroupImbalance, Signal, Spread

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

_Readings = Mapping[str, Mapping[Signal, float]]  # uuid → signals


class _Part(Struct, frozen=True):
    """One signal in one group: the values, and their mean."""

    values: list[float]
    mean: float


def group_imbalances(cards: Sequence[CardState], assignments: Sequence[GpuAssignment]) -> tuple[GroupImbalance, ...]:
    """Give one row per replica with at least two cards that were read, then one for the node.

    A card of two replicas counts in both.  Cards of no replica are left out of the node as soon as any ownership
    is known; while none is, all cards are one group.  The order of cards and owners does not matter.
    """
    present = {card.facts.uuid for card in cards}
    read = {card.facts.uuid: card.reading.signals for card in cards if card.reading is not None}
    members: dict[str, set[str]] = {}
    for assignment in assignments:
        if assignment.uuid in present:
            members.setdefault(assignment.replica, set()).add(assignment.uuid)
    teams = {
        replica: {uuid: read[uuid] for uuid in sorted(uuids) if uuid in read}
        for replica, uuids in sorted(members.items())
    }
    found = [
        GroupImbalance(scope=REPLICA, group=replica, spreads=_spreads([team]), deviations=_deviations(team))
        for replica, team in teams.items()
        if len(team) >= 2
    ]
    whole: list[_Readings] = list(teams.values()) if members else [read]
    if sum(map(len, whole)) >= 2:
        deviations = EMPTY if members else _deviations(read)
        found.append(GroupImbalance(scope=NODE, group="", spreads=_spreads(whole), deviations=deviations))
    return tuple(found)


def _spreads(teams: Sequence[_Readings]) -> Mapping[Signal, Spread]:
    found: dict[Signal, Spread] = {}
    for signal in SIGNALS:
        parts = [_part(team, signal) for team in teams]
        spread = _spread([part for part in parts if part is not None])
        if spread is not None:
            found[signal] = spread
    return found


def _part(team: _Readings, signal: Signal) -> _Part | None:
    values = [signals[signal] for signals in team.values() if signal in signals]
    values = [value for value in values if isfinite(value)]
    return _Part(values, average(values)) if values else None


def _spread(parts: Sequence[_Part]) -> Spread | None:
    """Pool the deviations of each card from the mean of its own group."""
    values = [value for part in parts for value in part.values]
    if len(values) < 2:
        return None
    squares = fsum((value - part.mean) * (value - part.mean) for part in parts for value in part.values)
    stddev, mean = sqrt(squares / len(values)), average(values)
    return Spread(
        stddev=stddev,
        spread=max(max(part.values) - min(part.values) for part in parts),
        coefficient_of_variation=stddev / mean if mean > 0 else None,
        max_to_mean=max((max(part.values) / part.mean for part in parts if part.mean > 0), default=None),
    )


def average(values: Sequence[float]) -> float:
    """Give the mean of at least one value, the same in any order; exactly the common value when all are equal."""
    lowest = min(values)
    return lowest if lowest == max(values) else fsum(values) / len(values)


def _deviations(team: _Readings) -> Mapping[Signal, Mapping[str, float]]:
    found: dict[Signal, Mapping[str, float]] = {}
    for signal in SIGNALS:
        values = {uuid: signals[signal] for uuid, signals in team.items() if signal in signals}
        values = {uuid: value for uuid, value in values.items() if isfinite(value)}
        middle = _median(values.values())
        if middle is not None and middle > 0:
            found[signal] = {uuid: (value - middle) / middle for uuid, value in values.items()}
    return found


def _median(values: Iterable[float]) -> float | None:
    known = sorted(values)
    if len(known) < 2:
        return None
    upper = len(known) // 2
    return known[upper] if len(known) % 2 else (known[upper - 1] + known[upper]) / 2
