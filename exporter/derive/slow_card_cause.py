"""Why a card of a group is the slow one, from what its driver says of it beside the others.

Nothing here accuses a card by itself: ``derive.straggler`` says when these questions are asked, and in which order
the answers count.  Clocks are compared as shares of the highest where all cards say it, so that makes may differ.
"""

from __future__ import annotations

from collections.abc import Sequence

from exporter.derive.card_evidence import CardEvidence
from exporter.model import Cause

MORE_WORK = 1.15  # another tenant's, over the median of the group
MORE_BUSY = 1.20  # the same of busy cycles, which waiting scatters more
LESS_WORK = 0.80  # of one kind: the card does other work than its group, not more
LOWER_CLOCK = 0.97
AT_LIMIT = 0.98  # of the power limit
NEAR = 2.0  # degrees to the slowdown limit
LINK_COST = 1.05
LINK_YIELD = 0.8  # of a PCIe link's rate that transfers reach
NARROWER = 0.75  # of the others' capacity
FEWER_LINKS = 0.96
LINK_USED = 1e6  # bytes per second over NVLink; below that nobody waits for it
LINK_ERRORS = 1.0  # per second
FULL, ROOM = 0.01, 0.08  # share of memory free
BEYOND = 4.0  # scaled median deviations
SCATTER = 1.4826  # of a median deviation to a standard deviation

_HEAT = ("sw_thermal_slowdown", "hw_thermal_slowdown")


def cause_of(card: CardEvidence, others: Sequence[CardEvidence]) -> Cause:
    """Return why a card that was measured to be slow is slow."""
    cause = held_back(card, others)
    if cause is not None:
        return cause
    held = held_up_by(card, others)
    return held[0] if held is not None else Cause.UNKNOWN


def held_back(card: CardEvidence, others: Sequence[CardEvidence]) -> Cause | None:
    """Return what holds the clock of a card below the others'; None when it is not below or the cause is unknown."""
    clock, usual = clocks(card, others)
    lower = clock is not None and usual is not None and clock <= LOWER_CLOCK * usual
    if not lower and (clock is not None or not card.events):
        return None
    cause = _said(card)
    if cause is not None or not lower or not card.events or card.events.get("gpu_idle"):
        return cause
    # A card at its limit is held by it, even if no look has caught the event.
    return Cause.THERMAL if _near(card) else Cause.POWER_CAP if _at_limit(card) else Cause.CLOCK_LOCK


def _said(card: CardEvidence) -> Cause | None:
    """Return what the card's events say that holds its clock; without events, what its limits say."""
    events = card.events
    if events.get("hw_power_brake_slowdown"):
        return Cause.POWER_BRAKE
    if any(events.get(event) for event in _HEAT) or (_near(card) and (events.get("hw_slowdown") or not events)):
        return Cause.THERMAL
    if events.get("sw_power_cap") or (_at_limit(card) and not events):
        return Cause.POWER_CAP
    return Cause.POWER_BRAKE if events.get("hw_slowdown") else None


def _near(card: CardEvidence) -> bool:
    return card.margin is not None and card.margin <= NEAR


def _at_limit(card: CardEvidence) -> bool:
    return card.power_share is not None and card.power_share >= AT_LIMIT


def clocks(card: CardEvidence, others: Sequence[CardEvidence]) -> tuple[float | None, float | None]:
    """Return the card's clock and the others' median, relative to the highest where all of them say it."""
    known = [other.clock for other in others if other.clock is not None]
    if card.clock is None or not known:
        return card.clock, None
    if card.clock_max is not None and all(other.clock_max is not None for other in others):
        shares = [other.clock / other.clock_max for other in others if other.clock and other.clock_max]
        return card.clock / card.clock_max, median(shares)
    return card.clock, median(known)


def paces(group: Sequence[CardEvidence]) -> list[float]:
    """Return the clocks of cards that all have one, relative to the highest where all of them say it."""
    if all(card.clock_max is not None for card in group):
        return [card.clock / card.clock_max for card in group if card.clock and card.clock_max]
    return [card.clock for card in group if card.clock]


def tenants(
    group: Sequence[CardEvidence], works: Sequence[Sequence[float]], busy: Sequence[float] = ()
) -> list[CardEvidence]:
    """Return the cards that do more work than the group's, and on which somebody is who is not on the others.

    ``works``: for each kind of work, what each card does of it; more of one kind is enough, but a card that does less
    of another does work of its own.  ``busy``: the cycles for which each card is busy, at the highest clock; empty
    where not known.  They show work of a kind that is not measured.
    """
    found = []
    for place, card in enumerate(group):
        more = any(_more(kind, place, MORE_WORK) for kind in works) or (busy and _more(busy, place, MORE_BUSY))
        if more and not any(_less(kind, place) for kind in works):
            others = [*group[:place], *group[place + 1 :]]
            if card.replicas > median([float(other.replicas) for other in others]) or _visited(card, others):
                found.append(card)
    return found


def _more(work: Sequence[float], place: int, least: float) -> bool:
    others = [*work[:place], *work[place + 1 :]]
    usual = median(others)
    return usual > 0.0 and work[place] >= least * usual and stands_out(work[place], others)


def _less(work: Sequence[float], place: int) -> bool:
    return work[place] < LESS_WORK * median([*work[:place], *work[place + 1 :]])


def _visited(card: CardEvidence, others: Sequence[CardEvidence]) -> bool:
    """Return whether more processes are on this card alone than is usual.

    One process may drive the whole group, or one each card; and workers open contexts on cards that are not theirs.
    The others are therefore compared among themselves, except where there is one only.
    """
    alone = len(_only_on(card, others))
    usual = [_only_on(other, [one for one in others if one is not other] or [card]) for other in others]
    return alone > median([float(len(processes)) for processes in usual])


def _only_on(card: CardEvidence, others: Sequence[CardEvidence]) -> frozenset[int]:
    return (card.processes or frozenset()).difference(*[other.processes or frozenset() for other in others])


def held_up_by(card: CardEvidence, others: Sequence[CardEvidence]) -> tuple[Cause, float | None] | None:
    """Inspect a card's links and memory beside the others'; with the slowdown where it can be told."""
    cost = _narrow(card, others)
    if cost >= LINK_COST:
        return Cause.PCIE, cost
    if _poor_links(card, others):
        return Cause.NVLINK, None
    room = [other.memory_free for other in others if other.memory_free is not None]
    if card.memory_free is not None and card.memory_free <= FULL and room and median(room) >= ROOM:
        return Cause.MEMORY_PRESSURE, None
    return None


def _narrow(card: CardEvidence, others: Sequence[CardEvidence]) -> float:
    """Return how much longer a step takes because of the card's PCIe link; 1 where it is as good as the others'.

    With the traffic r and the capacities C of the card and of the others, the card's transfers take the share
    s = r / C_card of the time, and would take s x C_card / C_others: the rest is lost.
    """
    capacities = [other.pcie_capacity for other in others if other.pcie_capacity is not None]
    if card.pcie_capacity is None or card.pcie_rate is None or not capacities:
        return 1.0
    usual = median(capacities)
    if card.pcie_capacity > NARROWER * usual:
        return 1.0
    share = min(1.0, card.pcie_rate / (LINK_YIELD * card.pcie_capacity))
    return 1.0 / (1.0 - share * (1.0 - card.pcie_capacity / usual))


def _poor_links(card: CardEvidence, others: Sequence[CardEvidence]) -> bool:
    """Return whether the card's NVLinks are fewer than the others', or fail again and again, and theirs do not.

    A link that was not read is not one that is gone: there only those count that were seen down.
    """
    traffic = [other.nvlink_rate for other in others if other.nvlink_rate is not None]
    if traffic and median(traffic) < LINK_USED:
        return False
    known = [float(other.nvlinks) for other in others if other.nvlinks is not None]
    usual = median(known) if known else 0.0
    active = usual - card.nvlinks_down if card.nvlinks is None else card.nvlinks
    if usual > 0.0 and active <= FEWER_LINKS * usual:
        return True
    errors = card.nvlink_error_rate or 0.0
    rates = [other.nvlink_error_rate or 0.0 for other in others]
    return errors >= LINK_ERRORS and errors > 10.0 * median(rates)


def stands_out(value: float, others: Sequence[float]) -> bool:
    """Return whether a value is above the middle of the others by more than these scatter."""
    middle = median(others)
    return value - middle > BEYOND * SCATTER * median([abs(other - middle) for other in others])


def median(values: Sequence[float]) -> float:
    """Return the middle of at least one value."""
    known = sorted(values)
    upper = len(known) // 2
    return known[upper] if len(known) % 2 else (known[upper - 1] + known[upper]) / 2
