"""Which card of a group the others wait for in one cycle, and why: judged on work, never on utilisation.

The cards of a group take every step together: each does the same work, then all meet in a collective.  Whoever
arrives early waits in a kernel, so the driver shows 100 % utilisation on all of them, and wall time is the same for
all.  What differs is how long each card works for the same work.

**Measured (cards with GPM, Hopper and newer).**  Work done per second is the memory bandwidth used (DRAM_ACTIVE) and
the tensor cycles (TENSOR_ACTIVE x SM clock); time spent on it is the share of the time in which the processors are
busy (SM_ACTIVE).

- In step means: work per second is the same on all cards, within ``SAME_WORK``.  A group in which most cards do not
  agree is not judged: there the work is spread unevenly (a scheduler's skew over ranks, a hot expert), or stages of a
  pipeline do different things, and no card is to blame for that.
- The slowness of a card in step is its busy time for a unit of work, over the median of the others'.  The card that
  is waited for is busy longer for the same work; those who wait are busy less.  Waiting keeps some processors busy,
  so the figure is a lower bound of the time lost; a card that is resident longer than the others is given the
  benefit of that (``SPINNING``).
- A card is accused from ``SLOW`` on (groups of two, where nothing says how far cards scatter: ``SLOW_PAIR``), if it
  stands beyond the scatter of the others, and is the slowest or next to it.  Without a visible cause it takes
  ``SLOW_UNEXPLAINED`` and three cards; the cause is then "unknown".

**Weaker (cards without GPM).**  A card is accused when its SM clock is ``SLOW_CLOCK`` below the others' (groups of
two, where nothing says how far clocks wander: ``SLOW_CLOCK_PAIR``), beyond their scatter, and a clock event, or the
absence of one, says why.  That the group works and is in step is seen from utilisation: it can only
exonerate.  How much time the low clock costs is not known (memory-bound work hardly minds), so no slowdown is given.
Another tenant is then seen by the time in which the card's memory is in use.

**What the work signals cannot show**, because all cards wait for it alike, the culprit too, is judged by its state,
while the group works, and only if no card is measured to be slow:

- ``pcie``: a link with fewer lanes or of a lower generation than the others', with so much traffic that the
  difference costs ``LINK_COST`` of the time; its slowdown is that estimate, as if nothing ran beside the transfers.
  A group whose cards all talk over PCIe alike has no straggler.  It takes the card's traffic: where the driver's byte
  counters are too narrow for the link, and the card measures no rates itself, that is not known.
- ``nvlink``: fewer active links than the others, or errors that come in quick succession on this card only.  A link
  whose state was not read is not counted as gone.
- ``memory_pressure``: the card is full while the others have room.

The cause of a slow card, the first that holds: another tenant, if the card does more work than the others (DRAM
bandwidth, tensor cycles, or cycles with busy processors, of which a lower clock makes no more) and somebody else's
process or replica is on it; then, if its clock is below the others', power brake, heat, power cap, and clocks set by
somebody; then its links, its memory, and unknown.  An event alone accuses nobody: busy cards reach their power limit,
and a whole group that is capped, or hot, alike has no straggler.

Limits.  If most of a group is slow, the rest looks fast and nobody is accused.  A host that feeds one worker too
slowly (its processor, its disk) does not show on cards.  Kernels that occupy every processor while they wait hide
the difference.  Lockstep over several ranks (experts spread over data-parallel ranks) is not seen where ranks are
known.  In a pair, a second process on one card and a skewed scheduler look alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from exporter.derive.card_evidence import CardEvidence
from exporter.derive.slow_card_cause import FULL, cause_of, held_back, held_up_by, median, paces, stands_out, tenants
from exporter.model import EMPTY, Cause

SLOW = 1.06
SLOW_PAIR = 1.10
SLOW_UNEXPLAINED = 1.20
SLOW_CLOCK = 1.08
SLOW_CLOCK_PAIR = 1.20
SLOWEST = 0.97  # of the slowness of the slowest: as slow as it, and waited for alike
SAME_WORK = 0.20  # of the median
SAME_RESIDENCE = 0.15  # of the time
SPINNING = 0.25  # most of the processors that waiting keeps busy

# Gates: below these a group does nothing worth a verdict.
WORKING, MOVING = 0.10, 0.02  # busiest card's SM_ACTIVE; median DRAM_ACTIVE, or tensor cycles
RESIDENT = 0.30  # without GPM


class Suspicion(Struct, frozen=True, kw_only=True):
    """Why a card is thought to be waited for in this cycle."""

    cause: Cause
    slowdown: float | None = None


class Judgement(Struct, frozen=True, kw_only=True):
    """One group in one cycle.  ``judged`` is False where it does not work, is not in step, or shows too little."""

    judged: bool = False
    suspects: Mapping[str, Suspicion] = EMPTY  # uuid →


def judge(group: Sequence[CardEvidence]) -> Judgement:
    """Judge the cards that work in step; at least two of them, in any order."""
    if len(group) < 2:
        return Judgement()
    measured = [card for card in group if card.busy is not None and (card.dram, _cycles(card)) != (None, None)]
    enough = len(measured) >= 2 and 2 * len(measured) > len(group)
    found = _measured(measured) if enough else _by_clock(group)
    if found is None:
        return Judgement()
    return Judgement(judged=True, suspects=found or _held_up(group))


# ── With the work measured ──────────────────────────────────────────────────────────────────────────────────────


def _measured(group: Sequence[CardEvidence]) -> Mapping[str, Suspicion] | None:
    """Accuse whoever needs longer for the same work; None when the group cannot be judged."""
    if max(card.busy or 0.0 for card in group) < WORKING:
        return None
    kinds = [
        [card.dram for card in group],
        [_cycles(card) for card in group],
    ]
    works = [[value for value in kind if value is not None] for kind in kinds if None not in kind]
    works = [work for work in works if median(work) >= MOVING]
    if not works:
        return None
    in_step = [all(_near(work, place) for work in works) for place in range(len(group))]
    visited = tenants(group, works, _busy_cycles(group))
    if 2 * sum(in_step) <= len(group) and not visited:
        return None
    suspects = {card.uuid: Suspicion(cause=Cause.OTHER_TENANT) for card in visited}
    steady = [place for place in range(len(group)) if in_step[place] and group[place].uuid not in suspects]
    return suspects | _slow([group[place] for place in steady], [works[0][place] for place in steady])


def _near(work: Sequence[float], place: int) -> bool:
    """Return whether a card does the same work as its group; the middle of two is halfway between them."""
    middle = median(work)
    return abs(work[place] - middle) <= (SAME_WORK if len(work) > 2 else SAME_WORK / 2) * middle


def _cycles(card: CardEvidence) -> float | None:
    """Return the tensor work per second, as a share of what is possible at the highest clock."""
    if card.tensor is None or card.clock is None or card.clock_max is None:
        return None
    return card.tensor * card.clock / card.clock_max


def _busy_cycles(group: Sequence[CardEvidence]) -> Sequence[float]:
    """Return the cycles in which processors work, as a share of what is possible; empty without a clock."""
    paces = [card.clock / card.clock_max for card in group if card.clock is not None and card.clock_max is not None]
    if len(paces) < len(group):
        return ()
    return [busy * pace for busy, pace in zip(_worked(group), paces, strict=True)]


def _worked(group: Sequence[CardEvidence]) -> list[float]:
    """Return the share of the time in which processors work, less what a longer wait than the others' keeps busy."""
    known = [card.resident for card in group if card.resident is not None]
    usual = median(known) if known else 1.0
    spinning = [SPINNING * max(0.0, (card.resident or 0.0) - usual) for card in group]
    return [max(0.0, (card.busy or 0.0) - spun) for card, spun in zip(group, spinning, strict=True)]


def _slow(group: Sequence[CardEvidence], work: Sequence[float]) -> dict[str, Suspicion]:
    """Compare the busy time for a unit of work."""
    if len(group) < 2:
        return {}
    slowness = _slowness([busy / done for busy, done in zip(_worked(group), work, strict=True)])
    worst = max(slowness)
    found = {}
    for place, ratio in enumerate(slowness):
        if ratio >= (SLOW if len(group) > 2 else SLOW_PAIR) and ratio >= SLOWEST * worst:
            cause = cause_of(group[place], [*group[:place], *group[place + 1 :]])
            if cause is not Cause.UNKNOWN or (ratio >= SLOW_UNEXPLAINED and len(group) > 2):
                found[group[place].uuid] = Suspicion(cause=cause, slowdown=ratio)
    return found


def _slowness(costs: Sequence[float]) -> list[float]:
    """Compare each cost with the middle of the others; 1 for one that is within their scatter."""
    slowness = []
    for place, cost in enumerate(costs):
        others = [*costs[:place], *costs[place + 1 :]]
        middle = median(others)
        slowness.append(cost / middle if middle > 0.0 and stands_out(cost, others) else 1.0)
    return slowness


# ── By clocks alone ─────────────────────────────────────────────────────────────────────────────────────────────


def _by_clock(group: Sequence[CardEvidence]) -> Mapping[str, Suspicion] | None:
    """Accuse whoever is held at a lower clock; None when the group cannot be judged."""
    known = [card for card in group if card.clock is not None and card.resident is not None]
    if len(known) < 2 or 2 * len(known) <= len(group):
        return None
    usual = median([card.resident or 0.0 for card in known])
    steady = [card for card in known if abs((card.resident or 0.0) - usual) <= SAME_RESIDENCE]
    if usual < RESIDENT or 2 * len(steady) <= len(known):
        return None
    activity = [card.memory_activity for card in steady]
    visited = tenants(steady, [[value for value in activity if value is not None]]) if None not in activity else []
    if visited:
        return {card.uuid: Suspicion(cause=Cause.OTHER_TENANT) for card in visited}
    ratios = _slowness([1.0 / pace for pace in paces(steady)])
    least = SLOW_CLOCK if len(steady) > 2 else SLOW_CLOCK_PAIR
    worst = max(ratios, default=0.0)
    found = {}
    for place, (card, ratio) in enumerate(zip(steady, ratios, strict=True)):
        if ratio >= max(least, SLOWEST * worst):
            cause = held_back(card, [*steady[:place], *steady[place + 1 :]])
            if cause is not None:
                found[card.uuid] = Suspicion(cause=cause)
    return found


# ── By state ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _held_up(group: Sequence[CardEvidence]) -> Mapping[str, Suspicion]:
    """Accuse whoever holds up a working group without being busier than the others."""
    first = group[0]
    if all(
        card.pcie_capacity == first.pcie_capacity
        and card.nvlinks == first.nvlinks
        and not card.nvlink_error_rate
        and (card.memory_free is None or card.memory_free > FULL)
        for card in group
    ):
        return EMPTY  # as nearly always: nothing to compare
    found = {}
    for place, card in enumerate(group):
        held = held_up_by(card, [*group[:place], *group[place + 1 :]])
        if held is not None:
            found[card.uuid] = Suspicion(cause=held[0], slowdown=held[1])
    return found
