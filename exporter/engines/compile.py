"""Compile an engine's table and one page's layout into positions in the page's numbers.

Whatever needs names and labels happens here, when series appear or vanish, and not on every page.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import NamedTuple
from weakref import ref

from exporter.engines.compiled import (
    CompiledEngine,
    CompiledHistogram,
    CompiledNewest,
    CompiledNumber,
    Extract,
    RankWord,
)
from exporter.engines.engine import (
    RELAYED_FROZEN_AFTER,
    ROLES,
    Engine,
    EngineField,
    Factor,
    Family,
    clean,
    status_class,
)
from exporter.engines.parse.layout import Layout
from exporter.engines.parse.line import Series
from exporter.engines.select import MAX_RANKS, SeriesSelector, candidates
from exporter.errors import PageError
from exporter.model import EMPTY, Detail, Quantity, Stage

MAX_WORDS = 100  # outcomes or status classes of one field of a page; more is a fault of the engine
MAX_SERIES = 4_000  # of one field that are added up: a relay keeps the counters of every process it ever had
MAX_OTHER_MODELS = 16  # that are reported as missing
MODEL, ONE_MODEL = "model:", "one_model_per_page"

_HistogramKey = frozenset[tuple[str, str]]  # the labels of one histogram, without le


class Sample(NamedTuple):
    """A series, and where its number is."""

    position: int
    series: Series

    @property
    def labels(self) -> Mapping[str, str]:
        """Return the labels of the series."""
        return self.series.labels


_ByName = Mapping[str, list[Sample]]


def compile_layout(engine: Engine, layout: Layout, selector: SeriesSelector) -> CompiledEngine:
    """Find every field of the table on the page; raise PageError when no series of this engine is there."""
    compiled = CompiledEngine(ref(layout))
    by_name = _of_ranks(engine, _own_series(engine, layout, selector, compiled), selector, compiled)
    for row in engine.fields:
        if isinstance(row.target, Stage):
            _compile_histogram(engine, row, row.target, by_name, compiled)
        else:
            _compile_number(engine, row, by_name, compiled)
    if engine.frozen_after is not None and (not engine.live or any(name in by_name for name in engine.live)):
        compiled.frozen_after = max(engine.frozen_after, RELAYED_FROZEN_AFTER if compiled.relayed else 0.0)
    for name in sorted(engine.activity_names() & by_name.keys()):
        for sample in by_name[name][:MAX_RANKS]:
            rank = engine.rank(sample.labels)
            compiled.activity[rank] = (*compiled.activity.get(rank, ()), sample.position)
    starts = by_name.get(engine.process_start)
    # The process of a page that relays is the relay's: its restart is none of the engine.
    compiled.process_start = starts[0].position if starts and not compiled.relayed else None
    compiled.hits_from_first = compiled.relayed or any(name in by_name for name in engine.hits_from_first)
    for sample in by_name.get(engine.created, [])[:MAX_RANKS]:
        rank = engine.rank(sample.labels)
        compiled.created[rank] = (*compiled.created.get(rank, ()), sample.position)
    return compiled


def _own_series(
    engine: Engine, layout: Layout, selector: SeriesSelector, compiled: CompiledEngine
) -> dict[str, list[Sample]]:
    """Return the series by canonical name: of one spelling of each prefix, of one model, and of no router."""
    spellings: dict[str, Counter[str]] = {}
    kept: list[_Spelt] = []
    for position, series in enumerate(layout.series()):
        prefix, spelling = engine.name_style(series.name)
        if prefix and engine.is_router_series(series.labels):
            compiled.parse_warnings["router_series"] += 1
            continue
        kept.append(_Spelt(Sample(position, series), prefix, spelling))
        if prefix:
            spellings.setdefault(prefix, Counter())[spelling] += 1
    if not spellings:
        hint = "They are a router's: poll the engines behind it." if compiled.parse_warnings else engine.hint
        raise PageError("no_engine_metrics", f"the page has {engine.lacking}. {hint}".strip())
    chosen = {prefix: _most(counts) for prefix, counts in spellings.items()}
    compiled.name_style = next(chosen[prefix] for prefix in engine.prefixes if prefix in chosen)
    _name_model(engine, [spelt.sample for spelt in kept], selector, compiled)
    by_name: dict[str, list[Sample]] = {}
    for sample, prefix, spelling in kept:
        if prefix and spelling != chosen[prefix]:
            compiled.parse_warnings["other_spelling"] += 1
        elif not engine.several_models and engine.model(sample.labels) not in ("", compiled.model):
            compiled.parse_warnings["other_model"] += 1
        else:
            by_name.setdefault(engine.canonical(sample.series.name), []).append(sample)
            if engine.version_label and not compiled.version:
                compiled.version = clean(sample.labels.get(engine.version_label, ""))
            if not compiled.role and sample.labels.get(engine.role_label) in ROLES:
                compiled.role = sample.labels[engine.role_label]
    return by_name


class _Spelt(NamedTuple):
    """A sample, the prefix of ours that its name begins with ("" for other names), and how it is written."""

    sample: Sample
    prefix: str
    spelling: str


def _most(counts: Counter[str]) -> str:
    """Return what most have, the first by name among equals, so that the choice does not depend on the order."""
    return min(counts, key=lambda name: (-counts[name], name)) if counts else ""


def _name_model(engine: Engine, samples: list[Sample], selector: SeriesSelector, compiled: CompiledEngine) -> None:
    """Set the served model; none where several applications share the page."""
    models: dict[str, list[int]] = {}
    for sample in samples:
        name = engine.model(sample.labels)
        if name:
            models.setdefault(name, []).append(sample.position)
    compiled.several_models = engine.several_models and len(models) > 1
    if not compiled.several_models:
        compiled.model = selector.model(Counter({name: len(positions) for name, positions in models.items()}))
    if not engine.several_models:
        compiled.candidates = candidates(models, {})
        others = sorted(models.keys() - {compiled.model})[:MAX_OTHER_MODELS]
        compiled.missing = {f"{MODEL}{name}": ONE_MODEL for name in others} or EMPTY


def _of_ranks(engine: Engine, by_name: _ByName, selector: SeriesSelector, compiled: CompiledEngine) -> _ByName:
    """Bound the ranks of the page, all fields alike."""
    ranks: dict[str, list[int]] = {}
    for samples in by_name.values():
        for sample in samples:
            ranks.setdefault(engine.rank(sample.labels), []).append(sample.position)
    shown = selector.ranks(ranks)
    if len(shown) == len(ranks):
        return by_name
    compiled.candidates = {**compiled.candidates, **candidates({}, ranks)}
    kept = {
        name: [sample for sample in samples if engine.rank(sample.labels) in shown]
        for name, samples in by_name.items()
    }
    dropped = sum(map(len, by_name.values())) - sum(map(len, kept.values()))
    compiled.parse_warnings["too_many_label_sets"] += dropped
    return {name: samples for name, samples in kept.items() if samples}


# ---------------------------------------------------------------------------------------- choosing series


def _wanted(engine: Engine, row: EngineField, samples: Iterable[Sample]) -> list[Sample]:
    """Select what the field asks for, and of ranks in lockstep the first."""
    kept = [sample for sample in samples if row.where is None or row.where(sample.labels)]
    if not engine.leader_labels or row.is_share:
        return kept
    ranks = [engine.rank(sample.labels) for sample in kept]
    order = [tuple(_order(sample.labels.get(name, "")) for name in engine.leader_labels) for sample in kept]
    leaders: dict[str, tuple[int, ...]] = {}
    for rank, place in zip(ranks, order, strict=True):
        leaders[rank] = min(place, leaders.get(rank, place))
    return [sample for sample, rank, place in zip(kept, ranks, order, strict=True) if place == leaders[rank]]


def _order(text: str) -> int:
    return int(text) if text.isdecimal() and len(text) < 10 else -1


def _distinct(samples: list[Sample], compiled: CompiledEngine) -> list[Sample]:
    """Drop repeated label sets (labels in another order are the same series) and bound their number."""
    first: dict[frozenset[tuple[str, str]], Sample] = {}
    for sample in samples:
        key = frozenset(sample.labels.items())
        if key in first:
            compiled.parse_warnings["duplicate"] += 1
        elif len(first) >= MAX_SERIES:
            compiled.parse_warnings["too_many_label_sets"] += 1
        else:
            first[key] = sample
    return list(first.values())


# ---------------------------------------------------------------------------------------- numbers


def _compile_number(engine: Engine, row: EngineField, by_name: _ByName, compiled: CompiledEngine) -> None:
    # The first name that has what the field asks for: of a family whose labels say what is counted, a server that
    # never does the one may show the other alone.
    matching = ((name, _distinct(_wanted(engine, row, by_name.get(name, ())), compiled)) for name in row.names)
    name, samples = next(((name, samples) for name, samples in matching if samples), ("", []))
    if not samples:
        return
    factors = _factors(row.factor, by_name[name], by_name)
    if factors is not None:
        samples = [sample for sample in samples if sample.position in factors]
    if name in row.plus:
        samples += _distinct(_wanted(engine, row, by_name.get(row.plus[name], ())), compiled)
    groups = _grouped(engine, row, samples, compiled)
    if isinstance(row.target, Quantity):
        _add_quantity(engine, row, groups, factors, compiled)
        return
    by_word = {key: tuple(sample.position for sample in members) for key, members in groups.items()}
    if isinstance(row.target, Detail):
        _add_detail(row, row.target, groups, compiled)
        return
    if row.target is Family.RESPONSES:
        for key, positions in by_word.items():
            status = status_class(key.word)
            compiled.responses[status] = compiled.responses.get(status, ()) + positions
        return
    compiled.reasons.update({key: positions for key, positions in by_word.items() if key.word})
    for sample in samples:  # all of them, however many words there are
        outcome = row.outcomes.classify(_word(row, sample.labels))
        ended = RankWord(engine.rank(sample.labels), outcome.value)
        compiled.finished[ended] = (*compiled.finished.get(ended, ()), sample.position)


def _add_detail(
    row: EngineField, detail: Detail, groups: Mapping[RankWord, list[Sample]], compiled: CompiledEngine
) -> None:
    for key, members in groups.items():
        positions = tuple(sample.position for sample in members)
        if row.newest is None:
            compiled.details.setdefault(detail, {})[key] = positions
        else:
            words = tuple(row.newest(sample.labels) for sample in members)
            compiled.newest.append(CompiledNewest(detail, key.rank, positions, words))


def _add_quantity(
    engine: Engine,
    row: EngineField,
    groups: Mapping[RankWord, list[Sample]],
    factors: Mapping[int, int] | None,
    compiled: CompiledEngine,
) -> None:
    assert isinstance(row.target, Quantity)
    ranks = Counter(engine.server(members[0].labels) for members in groups.values())
    for key, members in groups.items():
        labels = members[0].labels
        fixed = row.from_labels(labels, ranks[engine.server(labels)]) if row.from_labels else None
        if row.from_labels is not None and fixed is None:
            continue
        compiled.numbers.append(
            CompiledNumber(
                quantity=row.target,
                rank=key.rank,
                positions=tuple(sample.position for sample in members),
                scale=row.scale,
                reduce=row.reduce,
                ratio=row.ratio,
                fixed=fixed,
                equal=row.equal,
                factors=() if factors is None else tuple(factors[sample.position] for sample in members),
            )
        )


def _factors(factor: Factor | None, samples: list[Sample], by_name: _ByName) -> dict[int, int] | None:
    """Return, by position, where the number is that each is multiplied by; None if unasked."""
    if factor is None:
        return None
    others = by_name.get(factor.name, []) if factor.name else samples
    places = {frozenset(sample.labels.items()): sample.position for sample in others}
    changed = {factor.label: factor.value} if factor.label else {}
    wanted = {sample.position: frozenset({**sample.labels, **changed}.items()) for sample in samples}
    return {position: places[labels] for position, labels in wanted.items() if labels in places}


def _grouped(
    engine: Engine, row: EngineField, samples: list[Sample], compiled: CompiledEngine
) -> dict[RankWord, list[Sample]]:
    """Return what is added up."""
    groups: dict[RankWord, list[Sample]] = {}
    words: set[str] = set()
    for sample in samples:
        key = RankWord(engine.rank(sample.labels), _word(row, sample.labels))
        if key.word not in words and len(words) >= MAX_WORDS:
            compiled.parse_warnings["too_many_label_sets"] += 1
            continue
        words.add(key.word)
        groups.setdefault(key, []).append(sample)
    return groups


def _word(row: EngineField, labels: Mapping[str, str]) -> str:
    return clean(next((labels[label] for label in row.labels if labels.get(label)), row.word))


# ---------------------------------------------------------------------------------------- histograms


def _compile_histogram(
    engine: Engine, row: EngineField, stage: Stage, by_name: _ByName, compiled: CompiledEngine
) -> None:
    if row.count:
        _compile_mean(engine, row, stage, by_name, compiled)
        return
    base = next((n for n in row.names if n + "_bucket" in by_name), None)
    if base is None:
        return
    by_rank = _edges(engine, _wanted(engine, row, by_name[base + "_bucket"]), compiled)
    sums = {_key(sample.labels): sample.position for sample in reversed(by_name.get(base + "_sum", []))}
    for rank, histograms in by_rank.items():
        whole = {key: edges for key, edges in histograms.items() if math.inf in edges and len(edges) > 1}
        compiled.parse_warnings["no_inf_bucket"] += len(histograms) - len(whole)
        common = set.intersection(*map(set, whole.values())) if whole else set()
        if len(common) < 2:
            continue
        ordered = sorted(common)
        extracts = [itemgetter(*[edges[edge] for edge in ordered]) for edges in whole.values()]
        totals = tuple(sums[key] for key in whole if key in sums)
        compiled.buckets.append(
            CompiledHistogram(
                stage=stage,
                rank=rank,
                bounds=tuple(_scaled(edge, row.scale) for edge in ordered[:-1]),
                extract=extracts[0] if len(extracts) == 1 else _summed(extracts),
                total=totals[0] if len(totals) == len(whole) else None,
                more_totals=totals[1:],
                scale=row.scale,
            )
        )
    compiled.parse_warnings = +compiled.parse_warnings  # without zeros


def _compile_mean(engine: Engine, row: EngineField, stage: Stage, by_name: _ByName, compiled: CompiledEngine) -> None:
    """Compile a latency of which sum and count are known alone: a histogram without finite bounds."""
    sums = {engine.rank(sample.labels): sample.position for name in row.names for sample in by_name.get(name, ())}
    for sample in by_name.get(row.count, ()):
        rank = engine.rank(sample.labels)
        if rank in sums:
            compiled.buckets.append(
                CompiledHistogram(
                    stage=stage,
                    rank=rank,
                    bounds=(),
                    extract=_alone(sample.position),
                    total=sums[rank],
                    more_totals=(),
                    scale=row.scale,
                )
            )


def _alone(position: int) -> Extract:
    return lambda numbers: (numbers[position],)


def _edges(
    engine: Engine, samples: list[Sample], compiled: CompiledEngine
) -> dict[str, dict[_HistogramKey, dict[float, int]]]:
    """Return rank → histogram → bound → position; bounded in histograms of a rank."""
    by_rank: dict[str, dict[_HistogramKey, dict[float, int]]] = {}
    for sample in samples:
        rank = engine.rank(sample.labels)
        histograms = by_rank.get(rank, {})
        key = _key(sample.labels)
        if key not in histograms and len(histograms) >= MAX_SERIES:
            compiled.parse_warnings["too_many_label_sets"] += 1
            continue
        try:
            edge = float(sample.labels.get("le", ""))
        except ValueError:
            compiled.parse_warnings["bad_bucket"] += 1
            continue
        edges = by_rank.setdefault(rank, histograms).setdefault(key, {})
        if edge in edges:
            compiled.parse_warnings["duplicate"] += 1
        elif not math.isnan(edge):
            edges[edge] = sample.position
    return by_rank


def _key(labels: Mapping[str, str]) -> _HistogramKey:
    return frozenset((name, value) for name, value in labels.items() if name != "le")


def _summed(extracts: Sequence[Extract]) -> Extract:
    return lambda numbers: tuple(map(sum, zip(*[extract(numbers) for extract in extracts], strict=True)))


def _scaled(edge: float, scale: float) -> float:
    """Scale a bound without the noise of binary fractions: 700 ms are 0.7 s, as a query would write it."""
    return edge if scale == 1.0 else float(f"{edge * scale:.12g}")
