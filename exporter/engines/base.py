"""What an engine is: a table of fields, and the one interpreter that reads every table.

A field says which of our quantities it fills and under which upstream names, newest first; the first name that the
page carries wins, so that a page with old and new names is not counted twice.  An upstream rename is one string.

Values that cannot be (NaN, infinite, negative, a ratio above 1) are dropped and counted, never repaired.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from operator import itemgetter

from exporter.engines.exposition import Layout, Series, Values
from exporter.errors import PageError
from exporter.model import EngineReading, Histogram, Quantity, Stage

MAX_LABEL_SETS = 100  # of one field on one page; more is a fault of the engine, and memory is ours
MAX_LABEL_CHARACTERS = 256


class Reduce(Enum):
    """How several series of one rank become one number."""

    SUM = "sum"
    MEAN = "mean"
    MAX = "max"


class Family(Enum):
    """Counters that are kept by a label's value instead of by rank alone."""

    FINISHED = "finished"  # outcome
    RESPONSES = "responses"  # HTTP status class


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One row of an engine's table.

    ``names`` are canonical (see ``Engine.canonical``): of the sample for numbers, without ``_bucket`` for
    histograms.  ``scale`` turns the upstream unit into ours.  ``label``: the label whose value is the outcome or the
    status, with ``constant`` instead where there is none.  ``where`` keeps only some series.  ``from_labels`` takes
    the number from an info series' labels instead of its value; it is told how many ranks the page has.
    """

    target: Quantity | Stage | Family
    names: tuple[str, ...]
    scale: float = 1.0
    reduce: Reduce = Reduce.SUM
    ratio: bool = False
    label: str = ""
    constant: str = ""
    where: Callable[[Mapping[str, str]], bool] | None = None
    from_labels: Callable[[Mapping[str, str], int], float | None] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """A kind of server: how to recognise its page and what its names mean."""

    kind: str
    prefixes: tuple[str, ...]  # "vllm:"; a page with a sample of such a name is of this kind
    fields: tuple[Field, ...]
    rank_label: str = ""
    model_label: str = "model_name"
    process_start: str = "process_start_time_seconds"
    created: str = ""  # canonical name of the _created series of a counter that exists from the start
    version_path: str = ""  # answers JSON with a "version"
    hint: str = ""  # what to do when the page has no series of this engine

    def canonical(self, name: str) -> str:
        """Undo what relays do to names: ``ray_vllm_x``, ``ray_vllm:x`` and ``vllm_x`` are all ``vllm:x``."""
        bare = name.removeprefix("ray_")
        for prefix in self.prefixes:
            if bare.startswith(prefix):
                return bare
            if bare.startswith(prefix[:-1] + "_"):
                return prefix + bare[len(prefix) :]
        return name

    def wanted_names(self) -> frozenset[str]:
        """Every canonical sample name whose value is needed."""
        names = {self.process_start, self.created}
        for row in self.fields:
            for name in row.names:
                names.update([name + end for end in _ENDS] if isinstance(row.target, Stage) else [name])
        return frozenset(names - {""})

    def owns(self, name: str) -> bool:
        """Say whether a sample of this name marks a page as this engine's."""
        return self.canonical(name).startswith(self.prefixes)


_OFF = -1.0  # what several engines write for a ratio whose feature is switched off: missing, and nothing odd
_ENDS = ("_bucket", "_sum", "_count")


def clean(text: str) -> str:
    """Bound a label value that will stand on our page, and take out control characters (some readers stop at NUL)."""
    text = text[:MAX_LABEL_CHARACTERS]
    return text if text.isprintable() else "".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in text)


# ---------------------------------------------------------------------------------------- the compiled plan


@dataclass(slots=True)
class _Number:
    quantity: Quantity
    rank: str
    positions: tuple[int, ...]
    scale: float
    reduce: Reduce
    ratio: bool
    fixed: float | None = None


@dataclass(slots=True)
class _Buckets:
    stage: Stage
    rank: str
    bounds: tuple[float, ...]
    take: Callable[[list[float]], tuple[float, ...]]
    total: int | None
    scale: float


@dataclass(slots=True)
class _Plan:
    """Positions in a page's numbers, compiled once per layout."""

    layout: Layout
    model: str = ""
    numbers: list[_Number] = field(default_factory=list)
    finished: list[tuple[str, str, tuple[int, ...]]] = field(default_factory=list)
    responses: list[tuple[str, tuple[int, ...]]] = field(default_factory=list)
    buckets: list[_Buckets] = field(default_factory=list)
    process_start: int | None = None
    created: tuple[int, ...] = ()
    oddities: Counter[str] = field(default_factory=Counter)


class Interpreter:
    """Turns pages of one engine kind into readings; keeps the plan of the last layout.  One per replica."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._plan = _Plan(Layout(()))
        names = engine.wanted_names()
        self.wanted: Callable[[str], bool] = lambda name: engine.canonical(name) in names

    def read(self, page: Values, at: float) -> EngineReading:
        """Interpret one page read at ``at``; raise PageError when no series of this engine is on it."""
        if page.layout is not self._plan.layout:
            self._plan = _compile(self.engine, page.layout)
        plan, numbers = self._plan, page.numbers
        odd = Counter(page.oddities) + plan.oddities
        ranks: dict[str, dict[Quantity, float]] = {}
        for item in plan.numbers:
            number = _reduce(item, numbers) if item.fixed is None else item.fixed
            if 0.0 <= number < math.inf and not (item.ratio and number > 1.0):
                ranks.setdefault(item.rank, {})[item.quantity] = number
            elif number != _OFF:
                odd["bad_number"] += 1
        start = None if plan.process_start is None else numbers[plan.process_start]
        return EngineReading(
            at=at,
            engine=self.engine.kind,
            model=plan.model,
            ranks=ranks,
            finished=_finished(plan, numbers, odd),
            responses=_responses(plan, numbers, odd),
            histograms=_histograms(plan, numbers, odd),
            process_start=start,
            created=max([numbers[p] for p in plan.created], default=None),
            complete=page.complete,
            oddities=dict(odd),
        )


def _reduce(item: _Number, numbers: list[float]) -> float:
    if len(item.positions) == 1:
        return numbers[item.positions[0]] * item.scale
    chosen = [numbers[p] for p in item.positions]
    if item.reduce is Reduce.MAX:
        return max(chosen) * item.scale
    total = sum(chosen) * item.scale
    return total / len(chosen) if item.reduce is Reduce.MEAN else total


def _count(numbers: list[float], positions: tuple[int, ...], odd: Counter[str]) -> float | None:
    number = sum([numbers[p] for p in positions])
    if 0.0 <= number < math.inf:
        return number
    odd["bad_number"] += 1
    return None


def _finished(plan: _Plan, numbers: list[float], odd: Counter[str]) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for rank, outcome, positions in plan.finished:
        number = _count(numbers, positions, odd)
        if number is not None:
            found.setdefault(rank, {})[outcome] = number
    return found


def _responses(plan: _Plan, numbers: list[float], odd: Counter[str]) -> dict[str, float]:
    found = {status: _count(numbers, positions, odd) for status, positions in plan.responses}
    return {status: number for status, number in found.items() if number is not None}


def _histograms(plan: _Plan, numbers: list[float], odd: Counter[str]) -> dict[Stage, dict[str, Histogram]]:
    found: dict[Stage, dict[str, Histogram]] = {}
    for item in plan.buckets:
        counts = item.take(numbers)
        top = counts[-1]
        if not (counts[0] >= 0.0 and top < math.inf) or any(map(math.isnan, counts)):
            odd["bad_number"] += 1
            continue
        rising = tuple(sorted(counts))
        if rising != counts:  # counts that fall with le: keep the running maximum, as quantile functions do
            odd["falling_buckets"] += 1
            counts = _running_maximum(counts)
        total = None if item.total is None else numbers[item.total] * item.scale
        if total is not None and not 0.0 <= total < math.inf:
            total = None
        found.setdefault(item.stage, {})[item.rank] = Histogram(bounds=item.bounds, counts=counts, sum=total)
    return found


def _running_maximum(counts: tuple[float, ...]) -> tuple[float, ...]:
    highest, out = 0.0, []
    for count in counts:
        highest = max(highest, count)
        out.append(highest)
    return tuple(out)


# ---------------------------------------------------------------------------------------- compiling a layout


def _compile(engine: Engine, layout: Layout) -> _Plan:
    plan = _Plan(layout)
    by_name: dict[str, list[tuple[int, Series]]] = {}
    for position, series in enumerate(layout.series):
        by_name.setdefault(engine.canonical(series.name), []).append((position, series))
    if not any(name.startswith(engine.prefixes) for name in by_name):
        raise PageError("no_engine_metrics", f"the page has no {engine.prefixes[0]}* series. {engine.hint}".strip())
    plan.model = _model(engine, by_name)
    for row in engine.fields:
        if isinstance(row.target, Stage):
            _compile_histogram(engine, row, row.target, by_name, plan)
        else:
            name = next((n for n in row.names if n in by_name), None)
            if name is not None:
                _compile_number(engine, row, by_name[name], plan)
    starts = by_name.get(engine.process_start)
    plan.process_start = starts[0][0] if starts else None
    plan.created = tuple(position for position, _ in by_name.get(engine.created, ()))
    return plan


def _model(engine: Engine, by_name: dict[str, list[tuple[int, Series]]]) -> str:
    """Name the served model: the one that most series carry, the first by name among equals."""
    counts: Counter[str] = Counter()
    for rows in by_name.values():
        for _, series in rows:
            if series.labels.get(engine.model_label):
                counts[series.labels[engine.model_label]] += 1
    return clean(min(counts, key=lambda name: (-counts[name], name))) if counts else ""


def _distinct(rows: list[tuple[int, Series]], plan: _Plan) -> list[tuple[int, Series]]:
    """Drop repeated label sets (labels in another order are the same series) and bound their number."""
    first: dict[frozenset[tuple[str, str]], tuple[int, Series]] = {}
    for position, series in rows:
        key = frozenset(series.labels.items())
        if key in first:
            plan.oddities["duplicate"] += 1
        elif len(first) >= MAX_LABEL_SETS:
            plan.oddities["too_many_label_sets"] += 1
        else:
            first[key] = (position, series)
    return list(first.values())


def _compile_number(engine: Engine, row: Field, rows: list[tuple[int, Series]], plan: _Plan) -> None:
    groups: dict[tuple[str, str], list[int]] = {}
    labels: dict[tuple[str, str], Mapping[str, str]] = {}
    for position, series in _distinct(rows, plan):
        if row.where is not None and not row.where(series.labels):
            continue
        kept = clean(series.labels.get(row.label, "")) if row.label else row.constant
        key = (clean(series.labels.get(engine.rank_label, "")), kept)
        groups.setdefault(key, []).append(position)
        labels.setdefault(key, series.labels)
    if row.target is Family.RESPONSES:
        by_status: dict[str, list[int]] = {}
        for (_, status), positions in groups.items():
            by_status.setdefault(status, []).extend(positions)
        plan.responses += [(status, tuple(positions)) for status, positions in by_status.items()]
        return
    for (rank, kept), positions in groups.items():
        if row.target is Family.FINISHED:
            plan.finished.append((rank, kept, tuple(positions)))
        elif isinstance(row.target, Quantity):
            fixed = row.from_labels(labels[(rank, kept)], len(groups)) if row.from_labels else None
            if row.from_labels is None or fixed is not None:
                plan.numbers.append(
                    _Number(row.target, rank, tuple(positions), row.scale, row.reduce, row.ratio, fixed)
                )


def _compile_histogram(
    engine: Engine, row: Field, stage: Stage, by_name: dict[str, list[tuple[int, Series]]], plan: _Plan
) -> None:
    base = next((n for n in row.names if n + "_bucket" in by_name), None)
    if base is None:
        return
    edges: dict[str, dict[float, int]] = {}
    for position, series in by_name[base + "_bucket"]:
        rank = clean(series.labels.get(engine.rank_label, ""))
        if rank not in edges and len(edges) >= MAX_LABEL_SETS:
            plan.oddities["too_many_label_sets"] += 1
            continue
        try:
            edge = float(series.labels.get("le", ""))
        except ValueError:
            plan.oddities["bad_bucket"] += 1
            continue
        if edge in edges.setdefault(rank, {}):
            plan.oddities["duplicate"] += 1
        elif not math.isnan(edge):
            edges[rank][edge] = position
    sums = {clean(s.labels.get(engine.rank_label, "")): p for p, s in reversed(by_name.get(base + "_sum", []))}
    for rank, found in edges.items():
        if math.inf not in found or len(found) < 2:
            plan.oddities["no_inf_bucket"] += 1
            continue
        ordered = sorted(found)
        bounds = tuple(edge * row.scale for edge in ordered[:-1])
        take = itemgetter(*[found[edge] for edge in ordered])
        plan.buckets.append(_Buckets(stage, rank, bounds, take, sums.get(rank), row.scale))
