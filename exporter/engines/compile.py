"""An engine's table and one page's layout, compiled once into positions in the page's numbers.

Whatever needs names and labels happens here, when series appear or vanish, and not on every page.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter

from exporter.engines.engine import Engine, EngineField, Family, Reduce, clean
from exporter.engines.parse.layout import Layout
from exporter.engines.parse.line import Series
from exporter.engines.select import MAX_RANKS, Candidates, SeriesSelector, rivals
from exporter.errors import PageError
from exporter.model import EMPTY, Quantity, Stage

MAX_WORDS = 100  # outcomes or status classes of one field of a page; more is a fault of the engine
MAX_SERIES = 4_000  # of one field that are added up: a relay keeps the counters of every process it ever had
_RELAYED_FROZEN_AFTER = 60.0  # seconds; Ray passes figures on every 10
RELAYED = "ray_"  # how the spelling begins when another program shows the engine's series on its own page

_Rows = list[tuple[int, Series]]
_ByName = Mapping[str, _Rows]
_Take = Callable[[list[float]], tuple[float, ...]]  # out of a page's numbers


@dataclass(slots=True)
class Number:
    """One quantity of one rank: the positions to reduce, or a number that labels gave."""

    quantity: Quantity
    rank: str
    positions: tuple[int, ...]
    scale: float
    reduce: Reduce
    ratio: bool
    fixed: float | None = None
    equal: float | None = None  # count the series of this value instead
    factors: tuple[int, ...] = ()  # as many as positions: where to find what each is multiplied by


@dataclass(slots=True)
class Buckets:
    """One histogram of one rank; ``take`` gives its cumulative counts, summed where several series share the rank."""

    stage: Stage
    rank: str
    bounds: tuple[float, ...]
    take: _Take
    total: int | None  # position of the sum
    more_totals: tuple[int, ...]
    scale: float


@dataclass(slots=True)
class CompiledEngine:
    """Positions in a page's numbers, compiled once per layout."""

    layout: Layout
    model: str = ""
    several_models: bool = False
    version: str = ""
    name_style: str = ""
    numbers: list[Number] = field(default_factory=list)
    finished: dict[tuple[str, str], tuple[int, ...]] = field(default_factory=dict)  # (rank, outcome) → …
    responses: list[tuple[str, tuple[int, ...]]] = field(default_factory=list)
    buckets: list[Buckets] = field(default_factory=list)
    frozen_after: float | None = None
    process_start: int | None = None
    created: dict[str, tuple[int, ...]] = field(default_factory=dict)  # rank → …
    hits_from_first: bool = False  # as in a reading
    rivals: Candidates = field(default_factory=lambda: EMPTY)  # whose figures to watch, because not all can be shown
    parse_warnings: Counter[str] = field(default_factory=Counter)

    @property
    def relayed(self) -> bool:
        """Whether the page is another program's, which gathers the series of several servers."""
        return self.name_style.startswith(RELAYED)


def compile_layout(engine: Engine, layout: Layout, selector: SeriesSelector) -> CompiledEngine:
    """Find every field of the table on the page; raise PageError when no series of this engine is there."""
    plan = CompiledEngine(layout)
    by_name = _of_ranks(engine, _own_series(engine, layout, selector, plan), selector, plan)
    for row in engine.fields:
        if isinstance(row.target, Stage):
            _compile_histogram(engine, row, row.target, by_name, plan)
        else:
            _compile_number(engine, row, by_name, plan)
    if engine.frozen_after is not None and (not engine.live or engine.live in by_name):
        plan.frozen_after = max(engine.frozen_after, _RELAYED_FROZEN_AFTER if plan.relayed else 0.0)
    starts = by_name.get(engine.process_start)
    # The process of a page that relays is the relay's: its restart is none of the engine.
    plan.process_start = starts[0][0] if starts and not plan.relayed else None
    plan.hits_from_first = plan.relayed or any(name in by_name for name in engine.hits_from_first)
    for position, series in by_name.get(engine.created, ())[:MAX_RANKS]:
        rank = engine.rank(series.labels)
        plan.created[rank] = (*plan.created.get(rank, ()), position)
    return plan


def _own_series(engine: Engine, layout: Layout, selector: SeriesSelector, plan: CompiledEngine) -> _ByName:
    """Sort the series by canonical name: of one spelling of each prefix, of one model, and of no router."""
    spellings: dict[str, Counter[str]] = {}
    kept: list[tuple[int, Series, str, str]] = []
    for position, series in enumerate(layout.series()):
        prefix, spelling = engine.name_style(series.name)
        if prefix and engine.routers(series.labels):
            plan.parse_warnings["router_series"] += 1
            continue
        kept.append((position, series, prefix, spelling))
        if prefix:
            spellings.setdefault(prefix, Counter())[spelling] += 1
    if not spellings:
        hint = "They are a router's: poll the engines behind it." if plan.parse_warnings else engine.hint
        raise PageError("no_engine_metrics", f"the page has no {engine.prefixes[0]}* series. {hint}".strip())
    chosen = {prefix: _most(counts) for prefix, counts in spellings.items()}
    plan.name_style = next(chosen[prefix] for prefix in engine.prefixes if prefix in chosen)
    _name_model(engine, [(position, series) for position, series, _, _ in kept], selector, plan)
    by_name: dict[str, _Rows] = {}
    for position, series, prefix, spelling in kept:
        if prefix and spelling != chosen[prefix]:
            plan.parse_warnings["other_spelling"] += 1
        elif not engine.several_models and _of_other_model(series, engine.model_label, plan.model):
            plan.parse_warnings["other_model"] += 1
        else:
            by_name.setdefault(engine.canonical(series.name), []).append((position, series))
            if engine.version_label and not plan.version:
                plan.version = clean(series.labels.get(engine.version_label, ""))
    return by_name


def _most(counts: Counter[str]) -> str:
    """Give what most have, the first by name among equals, so that the choice does not depend on the order."""
    return min(counts, key=lambda name: (-counts[name], name)) if counts else ""


def _name_model(engine: Engine, rows: _Rows, selector: SeriesSelector, plan: CompiledEngine) -> None:
    """Name the served model; of several applications on one page none, and say so."""
    models: dict[str, list[int]] = {}
    for position, series in rows:
        name = clean(series.labels.get(engine.model_label, ""))
        if name:
            models.setdefault(name, []).append(position)
    plan.several_models = engine.several_models and len(models) > 1
    if not plan.several_models:
        plan.model = selector.model(Counter({name: len(positions) for name, positions in models.items()}))
    if not engine.several_models:
        plan.rivals = rivals(models, {})


def _of_other_model(series: Series, label: str, model: str) -> bool:
    return clean(series.labels.get(label, "")) not in ("", model)


def _of_ranks(engine: Engine, by_name: _ByName, selector: SeriesSelector, plan: CompiledEngine) -> _ByName:
    """Bound the ranks of the page, all fields alike."""
    ranks: dict[str, list[int]] = {}
    for rows in by_name.values():
        for position, series in rows:
            ranks.setdefault(engine.rank(series.labels), []).append(position)
    shown = selector.ranks(ranks)
    if len(shown) == len(ranks):
        return by_name
    plan.rivals = {**plan.rivals, **rivals({}, ranks)}
    kept = {
        name: [(position, series) for position, series in rows if engine.rank(series.labels) in shown]
        for name, rows in by_name.items()
    }
    plan.parse_warnings["too_many_label_sets"] += sum(map(len, by_name.values())) - sum(map(len, kept.values()))
    return {name: rows for name, rows in kept.items() if rows}


# ---------------------------------------------------------------------------------------- choosing series


def _chosen(engine: Engine, row: EngineField, rows: Iterable[tuple[int, Series]]) -> _Rows:
    """Keep what the field asks for, and of ranks in lockstep the first."""
    kept = [found for found in rows if row.where is None or row.where(found[1].labels)]
    if not engine.leader_labels:
        return kept
    places = [
        (engine.rank(s.labels), tuple(_order(s.labels.get(n, "")) for n in engine.leader_labels)) for _, s in kept
    ]
    lowest: dict[str, tuple[int, ...]] = {}
    for rank, place in places:
        lowest[rank] = min(place, lowest.get(rank, place))
    return [found for found, (rank, place) in zip(kept, places, strict=True) if place == lowest[rank]]


def _order(text: str) -> int:
    return int(text) if text.isdecimal() and len(text) < 10 else -1


def _distinct(rows: _Rows, plan: CompiledEngine) -> _Rows:
    """Drop repeated label sets (labels in another order are the same series) and bound their number."""
    first: dict[frozenset[tuple[str, str]], tuple[int, Series]] = {}
    for position, series in rows:
        key = frozenset(series.labels.items())
        if key in first:
            plan.parse_warnings["duplicate"] += 1
        elif len(first) >= MAX_SERIES:
            plan.parse_warnings["too_many_label_sets"] += 1
        else:
            first[key] = (position, series)
    return list(first.values())


# ---------------------------------------------------------------------------------------- numbers


def _compile_number(engine: Engine, row: EngineField, by_name: _ByName, plan: CompiledEngine) -> None:
    # The first name that has what the field asks for: of a family whose labels say what is counted, a server that
    # never does the one may show the other alone.
    found = ((name, _distinct(_chosen(engine, row, by_name.get(name, ())), plan)) for name in row.names)
    name, rows = next(((name, rows) for name, rows in found if rows), ("", []))
    if not rows:
        return
    neighbours = _neighbours(row, by_name[name])
    if neighbours is not None:
        rows = [one for one in rows if one[0] in neighbours]
    if name in row.plus:
        rows += _distinct(_chosen(engine, row, by_name.get(row.plus[name], ())), plan)
    groups, labels = _grouped(engine, row, rows, plan)
    if row.target is Family.RESPONSES:
        by_status: dict[str, list[int]] = {}
        for (_, status), positions in groups.items():
            by_status.setdefault(status, []).extend(positions)
        plan.responses += [(status, tuple(positions)) for status, positions in by_status.items()]
        return
    ranks = Counter(rank.rpartition("/")[0] for rank, _ in groups)  # of each server on the page
    for (rank, kept), positions in groups.items():
        if row.target is Family.FINISHED:
            plan.finished[rank, kept] = plan.finished.get((rank, kept), ()) + tuple(positions)
        elif isinstance(row.target, Quantity):
            here = ranks[rank.rpartition("/")[0]]
            fixed = row.from_labels(labels[(rank, kept)], here) if row.from_labels else None
            if row.from_labels is None or fixed is not None:
                factors = () if neighbours is None else tuple(neighbours[position] for position in positions)
                number = Number(row.target, rank, tuple(positions), row.scale, row.reduce, row.ratio, fixed)
                number.equal, number.factors = row.equal, factors
                plan.numbers.append(number)


def _neighbours(row: EngineField, rows: _Rows) -> dict[int, int] | None:
    """Return, by position, where the series stands that differs as ``EngineField.times`` says; None if unasked."""
    label, value = row.times
    if not label:
        return None
    places = {frozenset(series.labels.items()): position for position, series in rows}
    wanted = {position: frozenset({**series.labels, label: value}.items()) for position, series in rows}
    return {position: places[labels] for position, labels in wanted.items() if labels in places}


def _grouped(
    engine: Engine, row: EngineField, rows: _Rows, plan: CompiledEngine
) -> tuple[dict[tuple[str, str], list[int]], dict[tuple[str, str], Mapping[str, str]]]:
    """Give the positions that are added up, and the first labels, by (rank, word)."""
    groups: dict[tuple[str, str], list[int]] = {}
    labels: dict[tuple[str, str], Mapping[str, str]] = {}
    words: set[str] = set()
    for position, series in rows:
        key = (engine.rank(series.labels), _word(row, series.labels))
        if key[1] not in words and len(words) >= MAX_WORDS:
            plan.parse_warnings["too_many_label_sets"] += 1
            continue
        words.add(key[1])
        groups.setdefault(key, []).append(position)
        labels.setdefault(key, series.labels)
    return groups, labels


def _word(row: EngineField, labels: Mapping[str, str]) -> str:
    if not row.label:
        return row.constant
    text = labels.get(row.label, "")
    return clean(row.word(text) if row.word else text)


# ---------------------------------------------------------------------------------------- histograms

_Part = frozenset[tuple[str, str]]  # the labels of one histogram, without le


def _compile_histogram(
    engine: Engine, row: EngineField, stage: Stage, by_name: _ByName, plan: CompiledEngine
) -> None:
    base = next((n for n in row.names if n + "_bucket" in by_name), None)
    if base is None:
        return
    by_rank = _edges(engine, _chosen(engine, row, by_name[base + "_bucket"]), plan)
    sums = {_part(s.labels): position for position, s in reversed(by_name.get(base + "_sum", []))}
    for rank, parts in by_rank.items():
        whole = {part: edges for part, edges in parts.items() if math.inf in edges and len(edges) > 1}
        plan.parse_warnings["no_inf_bucket"] += len(parts) - len(whole)
        common = set.intersection(*map(set, whole.values())) if whole else set()
        if len(common) < 2:
            continue
        ordered = sorted(common)
        takes = [itemgetter(*[edges[edge] for edge in ordered]) for edges in whole.values()]
        totals = tuple(sums[part] for part in whole if part in sums)
        plan.buckets.append(
            Buckets(
                stage=stage,
                rank=rank,
                bounds=tuple(_scaled(edge, row.scale) for edge in ordered[:-1]),
                take=takes[0] if len(takes) == 1 else _summed(takes),
                total=totals[0] if len(totals) == len(whole) else None,
                more_totals=totals[1:],
                scale=row.scale,
            )
        )
    plan.parse_warnings = +plan.parse_warnings  # without zeros


def _edges(engine: Engine, rows: _Rows, plan: CompiledEngine) -> dict[str, dict[_Part, dict[float, int]]]:
    """Give rank → histogram → bound → position; bounded in histograms of a rank."""
    found: dict[str, dict[_Part, dict[float, int]]] = {}
    for position, series in rows:
        rank = engine.rank(series.labels)
        parts = found.get(rank, {})
        part = _part(series.labels)
        if part not in parts and len(parts) >= MAX_SERIES:
            plan.parse_warnings["too_many_label_sets"] += 1
            continue
        try:
            edge = float(series.labels.get("le", ""))
        except ValueError:
            plan.parse_warnings["bad_bucket"] += 1
            continue
        edges = found.setdefault(rank, parts).setdefault(part, {})
        if edge in edges:
            plan.parse_warnings["duplicate"] += 1
        elif not math.isnan(edge):
            edges[edge] = position
    return found


def _part(labels: Mapping[str, str]) -> _Part:
    return frozenset((name, value) for name, value in labels.items() if name != "le")


def _summed(takes: Sequence[_Take]) -> _Take:
    return lambda numbers: tuple(map(sum, zip(*[take(numbers) for take in takes], strict=True)))


def _scaled(edge: float, scale: float) -> float:
    """Scale a bound without the noise of binary fractions: 700 ms are 0.7 s, as a query would write it."""
    return edge if scale == 1.0 else float(f"{edge * scale:.12g}")
