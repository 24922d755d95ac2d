"""Which calls about a GPU are made in one cycle: all that are due, unless the GPU is too slow to answer them.

Some GPUs take 100 ms for each call, and a cycle has sixty.  Each call has a tier: how much it matters, and for how
long its answer may be shown.  What each costs is measured.  Where the sum is over the cycle's budget, the calls that
have waited longest, relative to the refresh period of their tier, are made, and the rest waits for a later cycle.  So
what matters most is called each time, everything else round robin, and nothing is stale: an answer that is too old is
absent as "slow".  For a GPU that has become fast again every call is made again within a few cycles.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Hashable, Iterable
from math import inf
from typing import Any

from msgspec import Struct

from exporter.model import Missing

BUDGET = 1.5  # seconds, until the daemon says what its deadline leaves


class Tier(Struct, frozen=True, eq=False):
    """``refresh_period``: seconds of waiting, equally bad in each tier; ``max_age``: seconds an answer is shown."""

    refresh_period: float
    max_age: float


ESSENTIAL = Tier(0.1, 3.0)
CHANGING = Tier(1.0, 10.0)
LINKS = Tier(5.0, 60.0)
SLOW_TIER = Tier(10.0, 120.0)
_EACH_CYCLE = (ESSENTIAL, CHANGING)


class _Call:
    """``since``: when it was made, or first asked for; ``read_at`` and ``cycle``: of the answer."""

    __slots__ = ("answer", "cost", "cycle", "read_at", "since", "tier")

    def __init__(self, tier: Tier, since: float) -> None:
        self.tier, self.since = tier, since
        self.read_at, self.cycle, self.cost = -inf, 0, 0.0
        self.answer: Any = Missing.SLOW


class CallScheduler:
    """The calls about one GPU.  ``clock`` measures what they cost; ages count from the time of ``begin_cycle``."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._calls: dict[Hashable, _Call] = {}
        self._due_cycles: dict[Tier, int] = {}  # in which cycle a tier was last due
        self._chosen: Collection[_Call] | None = None  # None: all that are due
        self._costs: list[float] = []  # of what was called in this cycle
        self._usual_cost = 0.0  # the median of the cycle before
        self._at = self._until = 0.0
        self._cycle = 0
        self.tiers_due: frozenset[Tier] = frozenset()

    @staticmethod
    def unbounded() -> CallScheduler:
        """Return a scheduler that makes every call."""
        scheduler = CallScheduler()
        scheduler.begin_cycle(0.0, inf)
        return scheduler

    def begin_cycle(self, at: float, budget: float, tiers: Iterable[Tier] = ()) -> None:
        """Begin a cycle at ``at`` that may take ``budget`` seconds; ``tiers``: which are due beside the first two.

        ``tiers_due`` is then which tiers have calls to make, new ones or of an earlier cycle.
        """
        self._at, self._until = at, self._clock() + budget
        self._cycle += 1
        if self._costs:
            self._usual_cost = sorted(self._costs)[len(self._costs) // 2]
            self._costs.clear()
        tiers = (*_EACH_CYCLE, *tiers)
        self._due_cycles |= dict.fromkeys(tiers, self._cycle)
        due = [call for call in self._calls.values() if call.cycle < self._due_cycles.get(call.tier, 0)]
        self.tiers_due = frozenset([*tiers, *[call.tier for call in due]])
        fits = sum([self._expected_cost(call) for call in due]) <= budget
        self._chosen = None if fits else self._choose(due, budget)

    def _expected_cost(self, call: _Call) -> float:
        """Return what a call is likely to cost: what was cheap before the GPU became slow is not any more."""
        return call.cost if call.answer is Missing.UNSUPPORTED else max(call.cost, self._usual_cost)

    def _urgency(self, call: _Call) -> float:
        """Return since when a call waits in refresh periods, lowest first; one without an answer is urgent."""
        period = call.tier.refresh_period
        return (call.since - self._at) / (period if call.cycle else min(period, CHANGING.refresh_period))

    def _choose(self, due: list[_Call], budget: float) -> Collection[_Call]:
        """Return what fits into the budget, and the first whether it fits or not."""
        chosen: set[_Call] = set()
        for call in sorted(due, key=self._urgency):
            cost = self._expected_cost(call)
            if cost <= budget or not chosen:
                chosen.add(call)
                budget -= cost
        return chosen

    def run(self, key: Hashable, tier: Tier, function: Callable[[], Any]) -> Any:
        """Call ``function`` if it is due and fits; else return its last answer, or Missing.SLOW."""
        call = self._calls.get(key)
        if call is None:
            call = self._calls[key] = _Call(tier, self._at)
            may_run = True
        else:
            due = call.cycle < self._due_cycles.get(tier, self._cycle)
            may_run = due and (self._chosen is None or call in self._chosen)
        begun = self._clock() if may_run else inf
        if begun < self._until:
            call.answer = function()
            call.cost = self._clock() - begun
            self._costs.append(call.cost)
            call.read_at = call.since = self._at
            call.cycle = self._cycle
            return call.answer
        young = call.read_at >= self._at - tier.max_age
        return call.answer if young or call.answer is Missing.UNSUPPORTED else Missing.SLOW

    def answered_now(self, key: Hashable) -> bool:
        """Return whether a call was answered in this cycle."""
        call = self._calls.get(key)
        return call is not None and call.cycle == self._cycle

    def forget(self, keys: Iterable[Hashable]) -> None:
        """Drop calls that are not made any more."""
        for key in keys:
            self._calls.pop(key, None)
