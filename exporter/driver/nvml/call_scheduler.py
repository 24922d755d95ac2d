"""Which questions are put to a card in one cycle: all that are due, unless the card is too slow to answer them.

Some cards take 100 ms for each call, and a cycle has sixty.  Each question has a tier: how much it matters, and for
how long its answer may be shown.  What each costs is measured.  Where the sum is over the cycle's budget, the
questions that have waited longest, by the measure of their tier, are put, and the rest waits for a later cycle.  So
what matters most is asked each time, everything else in turn, and nothing is stale: an answer that is too old is
absent as "slow".  A card that has become fast again is asked everything again within a few cycles.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Hashable, Iterable
from dataclasses import dataclass
from math import inf
from typing import Any

from exporter.model import Missing

BUDGET = 1.5  # seconds, until the daemon says what its deadline leaves


@dataclass(frozen=True, slots=True, eq=False)
class Tier:
    """``measure``: seconds of waiting, equally bad in each tier; ``life``: seconds for which an answer is shown."""

    measure: float
    life: float


ESSENTIAL = Tier(0.1, 3.0)
CHANGING = Tier(1.0, 10.0)
LINKS = Tier(5.0, 60.0)
SLOW_TIER = Tier(10.0, 120.0)
_ALWAYS = (ESSENTIAL, CHANGING)


class _Question:
    """``since``: when it was put, or first came up; ``read_at``: when it was answered; ``cycle``: of the answer."""

    __slots__ = ("answer", "cost", "cycle", "read_at", "since", "tier")

    def __init__(self, tier: Tier, since: float) -> None:
        self.tier, self.since = tier, since
        self.read_at, self.cycle, self.cost = -inf, 0, 0.0
        self.answer: Any = Missing.SLOW


class CallScheduler:
    """The questions of one card.  ``clock`` measures what they cost; ages are by what ``begin`` is told."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known: dict[Hashable, _Question] = {}
        self._wanted: dict[Tier, int] = {}
        self._chosen: Collection[_Question] | None = None  # None: all that are due
        self._costs: list[float] = []  # of what was put in this cycle
        self._usual = 0.0  # the middle one of the cycle before
        self._at = self._until = 0.0
        self._cycle = 0
        self.behind: frozenset[Tier] = frozenset()

    @staticmethod
    def unbounded() -> CallScheduler:
        """Make turns in which everything is asked."""
        turns = CallScheduler()
        turns.begin(0.0, inf)
        return turns

    def begin(self, at: float, budget: float, tiers: Iterable[Tier] = ()) -> None:
        """Begin a cycle at ``at`` that may take ``budget`` seconds; ``tiers``: which are due beside the two first.

        ``behind`` is then which tiers have questions to put, new ones or of an earlier cycle.
        """
        self._at, self._until = at, self._clock() + budget
        self._cycle += 1
        if self._costs:
            self._usual = sorted(self._costs)[len(self._costs) // 2]
            self._costs.clear()
        tiers = (*_ALWAYS, *tiers)
        self._wanted |= dict.fromkeys(tiers, self._cycle)
        due = [one for one in self._known.values() if one.cycle < self._wanted.get(one.tier, 0)]
        self.behind = frozenset([*tiers, *[one.tier for one in due]])
        fits = sum([self._expected(one) for one in due]) <= budget
        self._chosen = None if fits else self._choose(due, budget)

    def _expected(self, one: _Question) -> float:
        """Give what a question is likely to cost: what was cheap before the card became slow is not any more."""
        return one.cost if one.answer is Missing.UNSUPPORTED else max(one.cost, self._usual)

    def _since(self, one: _Question) -> float:
        """Give since when a question waits by its tier's measure; one without any answer waits impatiently."""
        measure = one.tier.measure if one.cycle else min(one.tier.measure, CHANGING.measure)
        return (one.since - self._at) / measure

    def _choose(self, due: list[_Question], budget: float) -> Collection[_Question]:
        """Give what fits into the budget, and the first whether it fits or not."""
        chosen: set[_Question] = set()
        for one in sorted(due, key=self._since):
            cost = self._expected(one)
            if cost <= budget or not chosen:
                chosen.add(one)
                budget -= cost
        return chosen

    def ask(self, key: Hashable, tier: Tier, put: Callable[[], Any]) -> Any:
        """Put a question if it is due and its turn has come; else give its last answer, or Missing.SLOW."""
        one = self._known.get(key)
        if one is None:
            one = self._known[key] = _Question(tier, self._at)
            may = True
        else:
            may = one.cycle < self._wanted.get(tier, self._cycle) and (self._chosen is None or one in self._chosen)
        begun = self._clock() if may else inf
        if begun < self._until:
            one.answer = put()
            one.cost = self._clock() - begun
            self._costs.append(one.cost)
            one.read_at = one.since = self._at
            one.cycle = self._cycle
            return one.answer
        young = one.read_at >= self._at - tier.life
        return one.answer if young or one.answer is Missing.UNSUPPORTED else Missing.SLOW

    def fresh(self, key: Hashable) -> bool:
        """Say whether a question was answered in this cycle."""
        one = self._known.get(key)
        return one is not None and one.cycle == self._cycle

    def forget(self, keys: Iterable[Hashable]) -> None:
        """Drop questions that nobody will put any more."""
        for key in keys:
            self._known.pop(key, None)
