"""Interpret pages of any engine by its table.

Values that cannot be (NaN, infinite, negative, a ratio above 1) are dropped and counted, never repaired.
A histogram that is the same as on the page before is the very same object, so that comparing it is cheap.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from itertools import accumulate
from weakref import ref

from exporter.engines.compile import compile_layout
from exporter.engines.compiled import CompiledEngine, CompiledHistogram, CompiledNumber, RankWord
from exporter.engines.engine import Engine, Reduce
from exporter.engines.parse.layout import Layout, Values
from exporter.engines.select import SeriesSelector
from exporter.engines.stale_ranks import StaleRankDetector
from exporter.model import COUNTERS, EMPTY, Detail, EngineReading, Histogram, Quantity, Stage

_MAX_OBSERVATIONS = 2.0**62  # observations; more is nonsense, and sums over ranks must stay finite
_MAX_BOUNDS = 128  # of a histogram; engines have up to some thirty, and a window keeps 65 states of each
_BOUNDS_AGE = 60.0  # seconds that bounds must stay the same, but for a first change: a restart may bring others
_OFF = -1.0  # what several engines write for a ratio whose feature is switched off: missing, without a warning


class EngineInterpreter:
    """Turns pages of one engine kind into readings; keeps what was compiled for the last layout.  One per replica."""

    def __init__(self, engine: Engine, *, lengths: bool = True) -> None:
        """``lengths``: whether distributions of lengths are read."""
        self.engine = engine
        self._compiled = CompiledEngine(ref(Layout(())))
        self._bounds: dict[Stage, frozenset[tuple[float, ...]]] = {}  # of all ranks
        self._bounds_changed: dict[Stage, float] = {}
        self._unstable: dict[Stage, float] = {}  # when the bounds last changed
        self._too_large: dict[Stage, str] = {}
        self._histograms: Mapping[Stage, Mapping[str, Histogram]] = EMPTY
        self._selector = SeriesSelector()
        self._stale_ranks = StaleRankDetector()
        self._missing = engine.missing() or EMPTY
        names = engine.wanted_names(lengths=lengths)
        self.wanted: Callable[[str], bool] = lambda name: engine.canonical(name) in names

    def read(self, page: Values, at: float) -> EngineReading:
        """Interpret one page read at ``at``; raise PageError when no series of this engine is on it."""
        if page.layout is not self._compiled.layout():
            self._compile(page.layout, at)
        if self._compiled.candidates and self._selector.should_reselect(self._compiled.candidates, page.numbers, at):
            self._compile(page.layout, at)
        compiled, numbers = self._compiled, page.numbers
        warnings = Counter(page.parse_warnings) + compiled.parse_warnings
        ranks: dict[str, dict[Quantity, float]] = {}
        for item in compiled.numbers:
            number = _reduce(item, numbers) if item.fixed is None else item.fixed
            if 0.0 <= number < math.inf and not (item.ratio and number > 1.0):
                ranks.setdefault(item.rank, {})[item.quantity] = number
            elif number != _OFF or item.quantity in COUNTERS:
                warnings["bad_number"] += 1
        refused = self._refused(at)
        self._histograms = _histograms(compiled, numbers, warnings, self._histograms, refused)
        missing = {**compiled.missing, **{stage.value: reason for stage, reason in refused.items()}}
        warnings.update(refused.values())
        start = None if compiled.process_start is None else numbers[compiled.process_start]
        is_judged = compiled.frozen_after is not None and not compiled.relayed
        return EngineReading(
            at=at,
            engine=self.engine.kind,
            model=compiled.model,
            several_models=compiled.several_models,
            version=compiled.version,
            role=compiled.role,
            name_style=compiled.name_style,
            relayed=compiled.relayed,
            missing={**self._missing, **missing} if missing else self._missing,
            ranks=ranks,
            finished=_by_rank(compiled.finished, numbers, warnings),
            finish_reasons=_by_rank(compiled.reasons, numbers, Counter()),
            responses=_responses(compiled, numbers, warnings),
            details=_details(compiled, numbers, warnings),
            histograms=self._histograms,
            activity={rank: _known(positions, numbers) for rank, positions in compiled.activity.items()},
            process_start=start,
            created={rank: max([numbers[p] for p in positions]) for rank, positions in compiled.created.items()},
            complete=page.complete,
            stale_ranks=self._stale_ranks.withdraw(ranks, at) if compiled.relayed else frozenset(),
            frozen_after=compiled.frozen_after,
            stalled_after=self.engine.stalled_after if is_judged else None,
            idle_after=self.engine.idle_after if is_judged else None,
            hits_from_first=compiled.hits_from_first,
            parse_warnings=dict(warnings),
        )

    def _compile(self, layout: Layout, at: float) -> None:
        self._compiled, self._histograms = compile_layout(self.engine, layout, self._selector), EMPTY
        large = [item.stage for item in self._compiled.buckets if len(item.bounds) > _MAX_BOUNDS]
        self._too_large = dict.fromkeys(large, "too_many_buckets")
        self._compiled.buckets = [item for item in self._compiled.buckets if item.stage not in self._too_large]
        bounds: dict[Stage, set[tuple[float, ...]]] = {}
        for item in self._compiled.buckets:
            bounds.setdefault(item.stage, set()).add(item.bounds)
        for stage, edges in bounds.items():
            if self._bounds.get(stage, edges) != edges:
                if at - self._bounds_changed.get(stage, -math.inf) < _BOUNDS_AGE:
                    self._unstable[stage] = at
                self._bounds_changed[stage] = at
            self._bounds[stage] = frozenset(edges)

    def _refused(self, at: float) -> dict[Stage, str]:
        """Return the histograms that are not read, with the reason: each state of them would be kept for a window."""
        if not (self._unstable or self._too_large):
            return {}
        self._unstable = {stage: since for stage, since in self._unstable.items() if at - since < _BOUNDS_AGE}
        return {**dict.fromkeys(self._unstable, "unstable_buckets"), **self._too_large}


def _reduce(item: CompiledNumber, numbers: list[float]) -> float:
    if item.equal is not None:
        found = [numbers[p] for p in item.positions]
        return math.nan if any(map(math.isnan, found)) else float(found.count(item.equal))
    if item.factors:
        return sum(numbers[p] * numbers[f] for p, f in zip(item.positions, item.factors, strict=True)) * item.scale
    if len(item.positions) == 1:
        return numbers[item.positions[0]] * item.scale
    chosen = [numbers[p] for p in item.positions]
    if item.reduce is Reduce.MAX:
        return max(chosen) * item.scale
    total = sum(chosen) * item.scale
    return total / len(chosen) if item.reduce is Reduce.MEAN else total


def _known(positions: tuple[int, ...], numbers: list[float]) -> tuple[float, ...]:
    """Return the numbers without NaN, which never equals what it was."""
    return tuple([number for position in positions if (number := numbers[position]) == number])


def _count(numbers: list[float], positions: tuple[int, ...], warnings: Counter[str]) -> float | None:
    number = sum([numbers[p] for p in positions])
    if 0.0 <= number < math.inf:
        return number
    warnings["bad_number"] += 1
    return None


def _by_rank(
    positions: Mapping[RankWord, tuple[int, ...]], numbers: list[float], warnings: Counter[str]
) -> dict[str, dict[str, float]]:
    counts: dict[str, dict[str, float]] = {}
    for key, added in positions.items():
        number = _count(numbers, added, warnings)
        if number is not None:
            counts.setdefault(key.rank, {})[key.word] = number
    return counts


def _details(
    compiled: CompiledEngine, numbers: list[float], warnings: Counter[str]
) -> dict[Detail, dict[str, Mapping[str, float]]]:
    details: dict[Detail, dict[str, Mapping[str, float]]] = {
        detail: {**_by_rank(positions, numbers, warnings)} for detail, positions in compiled.details.items()
    }
    for item in compiled.newest:
        times = [numbers[position] for position in item.positions]
        newest = max(range(len(times)), key=lambda place: times[place])
        details.setdefault(item.detail, {})[item.rank] = item.words[newest]
    return details


def _responses(compiled: CompiledEngine, numbers: list[float], warnings: Counter[str]) -> dict[str, float]:
    counts = {status: _count(numbers, positions, warnings) for status, positions in compiled.responses.items()}
    return {status: number for status, number in counts.items() if number is not None}


def _histograms(
    compiled: CompiledEngine,
    numbers: list[float],
    warnings: Counter[str],
    before: Mapping[Stage, Mapping[str, Histogram]],
    refused: Mapping[Stage, str] = EMPTY,
) -> Mapping[Stage, Mapping[str, Histogram]]:
    """Read every histogram that is not refused; those of ``before``, which were sound, stand for equal ones."""
    histograms: dict[Stage, dict[str, Histogram]] = {}
    for item in compiled.buckets:
        if item.stage in refused:
            continue
        counts, total = item.extract(numbers), _total(item, numbers)
        known = before.get(item.stage, EMPTY).get(item.rank)
        if known is None or known.counts != counts or known.sum != total:
            known = _histogram(item, counts, total, warnings)
        if known is not None:
            histograms.setdefault(item.stage, {})[item.rank] = known
    return histograms


def _total(item: CompiledHistogram, numbers: list[float]) -> float | None:
    if item.total is None:
        return None
    total = numbers[item.total]
    if item.more_totals:
        total += sum([numbers[p] for p in item.more_totals])
    return total * item.scale if 0.0 <= total < math.inf else None


def _histogram(
    item: CompiledHistogram, counts: tuple[float, ...], total: float | None, warnings: Counter[str]
) -> Histogram | None:
    # Neither NaN nor infinity is an integer, and OpenMetrics readers refuse a page with half an observation.
    if not (counts[0] >= 0.0 and all(map(float.is_integer, counts)) and max(counts) <= _MAX_OBSERVATIONS):
        warnings["bad_number"] += 1
        return None
    if (
        tuple(sorted(counts)) != counts
    ):  # counts that fall with le: keep the running maximum, as quantile functions do
        warnings["falling_buckets"] += 1
        counts = tuple(accumulate(counts, max))
    return Histogram(bounds=item.bounds, counts=counts, sum=total)
