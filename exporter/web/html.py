"""A page as HTML.  Everything that comes from outside goes through ``_text``, the only place that escapes.

No style attribute and no inline script: the Content-Security-Policy allows neither.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import blake2b
from html import escape
from math import isnan

from exporter.model.text import Language
from exporter.web import values
from exporter.web.history import POINTS, NodeHistory
from exporter.web.model import Curve, Level, NodePage, PageCell, PageRow, PageTable, ShownEvent, ShownFinding
from exporter.web.texts import Words, pair, words

RELOAD = 5  # seconds, without script
HEIGHT = 40  # of a curve's coordinates
SIGNS = {
    Level.GOOD: "●",
    Level.INFO: "◆",
    Level.UNKNOWN: "?",
    Level.WARNING: "▲",
    Level.CRITICAL: "■",
}
_ABBREVIATED: Mapping[str, Callable[[float], str]] = {
    "utilization": values.percent,
    "sm_active": values.percent,
    "memory": values.percent,
    "hit_ratio": values.percent,
    "kv": values.percent,
    "temperature": lambda value: values.unit(value, "°C"),
    "power": lambda value: values.unit(value, "W"),
    "clock": lambda value: values.unit(value, "MHz", 1e-6),
    "ttft": values.seconds,
    "itl": values.seconds,
}
_WIDE = frozenset({"replicas", "gpus"})
_HEADINGS = {"utilization": "work", "sm_active": "work"}


def _text(text: str) -> str:
    """Return text for an element's content or a quoted attribute's value."""
    return escape(text, quote=True)


def unique_keys(keys: Iterable[str]) -> list[str]:
    """Return a data-key for each key of one list: hashes, because names come from outside, and no two the same.

    The script keeps one element for each data-key, so that it would drop the second of two that are equal.
    """
    seen: Counter[str] = Counter()
    found = []
    for key in keys:
        number = f"-{seen[key]}" if seen[key] else ""
        seen[key] += 1
        found.append(blake2b(key.encode(errors="backslashreplace"), digest_size=8).hexdigest() + number)
    return found


class HtmlWriter:
    """Writes pages; keeps the curves of the newest points, because most pages show the same."""

    def __init__(self, history: NodeHistory, *, links: Iterable[str] = ()) -> None:
        """``links``: paths of the other endpoints."""
        self._history = history
        self._links = tuple(links)
        self._curves: dict[tuple[Curve, str], str] = {}
        self._curves_of = -1

    def write(self, page: NodePage, *, curves: bool = True) -> str:
        """Return the document; without ``curves`` their places are empty, for the script keeps what it has."""
        if self._curves_of != self._history.slot:
            self._curves_of, self._curves = self._history.slot, {}
        say = words(Language(page.language))
        body = "".join(self._body(page, say, curves=curves))
        shown = page.counts or (PageCell(level=page.summary.level),)
        if page.verdict.level is Level.UNKNOWN and page.age > values.TOO_OLD:
            shown = (PageCell(level=Level.UNKNOWN),)
        signs = " ".join(f"{SIGNS.get(count.level, '')} {count.detail}".strip() for count in shown)
        title = f"{signs} {say('title').format(node=page.node)}".strip()
        other = "en" if page.language == "zh" else "zh"
        return (
            f'<!DOCTYPE html>\n<html lang="{page.language}" data-version="{_text(page.version)}">\n<head>\n'
            '<meta charset="utf-8">\n<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            '<meta name="color-scheme" content="light dark">\n<meta name="robots" content="noindex">\n'
            f"<title>{_text(title)}</title>\n"
            '<link rel="stylesheet" href="/web/page.css">\n<link rel="icon" href="/web/icon.svg">\n'
            f'<link rel="alternate" hreflang="{other}" href="/?lang={other}">\n'
            '<script type="module" src="/web/page.js"></script>\n'
            f'<noscript><meta http-equiv="refresh" content="{RELOAD}"></noscript>\n'
            f"</head>\n<body>\n{body}</body>\n</html>\n"
        )

    def _body(self, page: NodePage, say: Words, *, curves: bool) -> Iterable[str]:
        yield f'<a class="skip" href="#main">{_text(say("skip"))}</a>\n'
        yield _header(page, say)
        lost = say("lost").replace("{time}", page.time or "–")
        old = ""
        if page.unix_time is not None and page.age > values.TOO_OLD:
            old = _text(say("old").format(age=values.age(page.age, say), time=page.time))
        yield f'<p id="old" class="alert" role="alert"{"" if old else " hidden"}>{old}</p>\n'
        yield (
            f'<p id="lost" class="alert" role="alert" hidden data-own data-text="{_text(lost)}"'
            f' data-refused="{_text(say("lost_refused"))}" data-timeout="{_text(say("lost_timeout"))}"'
            f' data-title="? {_text(say("title").format(node=page.node))}"></p>\n'
        )
        yield _navigation(page, say)
        yield f'<main id="main" tabindex="-1"{" class=old" if old else ""}>\n'
        yield _findings(page, say)
        for table in page.tables:
            if table.id in _WIDE:
                yield self._table(table, say, curves=curves)
        yield '<div class="columns" data-key="columns">\n'
        for table in page.tables:
            if table.id not in _WIDE:
                yield self._table(table, say, curves=curves)
        if page.unix_time is not None:
            yield _events(page.events, say)
        yield "</div>\n</main>\n"
        links = "".join(f'<a href="{path}">{path}</a> ' for path in self._links)
        yield f"<footer>Shardwatch {_text(page.version)} · {_text(pair(say, 'more', ''))}{links}</footer>\n"

    # ------------------------------------------------------------------ tables

    def _table(self, table: PageTable, say: Words, *, curves: bool) -> str:
        heads = "".join(
            f'<th scope="col"{" class=n" * column.numeric}{_title(column.title)}>{_text(column.heading)}</th>'
            for column in table.columns
        )
        keys = unique_keys(row.key for row in table.rows)
        rows = "".join(
            self._row(table, row, key, say, curves=curves) for row, key in zip(table.rows, keys, strict=True)
        )
        note = f"<small>{_text(table.note)}</small>" if table.note else ""
        if table.id == "gpus" and len(table.rows) > 1:
            note += (
                f'<label><input type="checkbox" id="only" autocomplete="off"> {_text(say("only_problems"))}</label>'
            )
        nothing = ""
        if table.id == "gpus" and not any(row.level for row in table.rows):
            nothing = f'<p class="quiet nothing" data-key="nothing">{_text(say("nothing_wrong"))}</p>'
        inner = (
            f'{nothing}<div class="scroll" data-key="rows" role="group" tabindex="0" aria-labelledby="h-{table.id}">'
            f"<table{' class=matrix' if table.matrix else ''}><thead><tr>{heads}</tr></thead>\n"
            f"<tbody>\n{rows}</tbody></table></div>"
        )
        return _section(table.id, table.heading, inner, note)

    def _row(self, table: PageTable, row: PageRow, key: str, say: Words, *, curves: bool) -> str:
        cells = []
        for number, (column, cell) in enumerate(zip(table.columns, row.cells, strict=True)):
            inner = self._cell(cell, say, curves=curves)
            names = "n " * column.numeric + cell.level.value
            classes = f' class="{names.strip()}"' if names else ""
            if number == 0:
                cells.append(f'<th scope="row"{classes}{_title(cell.title)}>{inner}</th>')
            elif table.matrix:
                cells.append(f'<td class="p-{_text(cell.text[:2])}">{inner}</td>')
            else:
                cells.append(f"<td{classes}{_title(cell.title)}>{inner}</td>")
        level = f' data-level="{row.level.value}"' if row.level.value else ""
        return f'<tr data-key="{key}"{level}>{"".join(cells)}</tr>\n'

    def _cell(self, cell: PageCell, say: Words, *, curves: bool) -> str:
        detail = f"<small><bdi>{_text(cell.detail)}</bdi></small>" if cell.detail else ""
        inner = f'<span class="v">{_sign(cell.level, say)}<bdi>{_text(cell.text)}</bdi></span>{detail}'
        if cell.bar is not None:
            width = min(100.0, max(0.0, 100 * cell.bar))
            inner += (
                '<svg class="bar" viewBox="0 0 100 4" preserveAspectRatio="none" aria-hidden="true">'
                f'<rect class="track" width="100" height="4"/><rect width="{width:.0f}" height="4"/></svg>'
            )
        if cell.curve is not None:
            inner = f'<span class="t">{inner}</span><span class="c" data-keep>'
            inner += f"{self._curve(cell.curve, say) if curves else ''}</span>"
        return inner

    # ------------------------------------------------------------------ curves

    def _curve(self, curve: Curve, say: Words) -> str:
        key = (curve, say("title"))
        known = self._curves.get(key)
        if known is None:
            known = self._curves[key] = self._draw(curve, say)
        return known

    def _draw(self, curve: Curve, say: Words) -> str:
        series = [self._history.curve(curve.kind, curve.name, name) for name in curve.series]
        present = [[value for value in points if not isnan(value)] for points in series]
        if not any(present):
            return ""
        top = max([curve.top or 0.0, *map(max, filter(None, present))]) or 1.0
        name = curve.series[0]
        shown = _ABBREVIATED.get(name, values.count)
        own = present[0] or present[-1]
        title = say("curve").format(series=say(_HEADINGS.get(name, name)), low=shown(min(own)), high=shown(max(own)))
        lines = [stretches(points, top) for points in series]
        paths = "".join(
            f'<path class="s{number}" d="{path(lines[number])}"/>' for number in range(len(lines) - 1, -1, -1)
        )
        return (
            f'<svg viewBox="0 0 {POINTS} {HEIGHT}" preserveAspectRatio="none" aria-hidden="true">'
            f'<title>{_text(title)}</title><path class="area" d="{area(lines[0])}"/>{paths}</svg>'
        )


def path(lines: Iterable[Sequence[str]]) -> str:
    """Return the ``d`` of lines."""
    return "".join(f"M{' '.join(line)}" for line in lines)


def area(lines: Iterable[Sequence[str]]) -> str:
    """Return the ``d`` of the areas under lines."""
    ends = ((line, line[0].partition(" ")[0], line[-1].partition(" ")[0]) for line in lines)
    return "".join(f"M{first} {HEIGHT} {' '.join(line)} {last} {HEIGHT}Z" for line, first, last in ends)


def stretches(points: Sequence[float], top: float) -> list[list[str]]:
    """Return the coordinates of lines between gaps; flat stretches are two points."""
    low, scale = HEIGHT - 2 + 0.5, (HEIGHT - 4) / top
    heights = [-1 if isnan(point) else int(low - point * scale) for point in points]
    lines: list[list[str]] = []
    before = -1
    for x, (height, after) in enumerate(zip(heights, [*heights, -1][1:], strict=True)):
        if height != before or height != after:  # else in the middle of a flat stretch, or of a gap
            if height >= 0:
                if before < 0:
                    lines.append([])
                lines[-1].append(f"{x} {height}")
            before = height
    return lines


# ---------------------------------------------------------------------- the other sections


def _header(page: NodePage, say: Words) -> str:
    other = "en" if page.language == "zh" else "zh"
    verdict = f'<span class="badge {page.verdict.level.value}">{_sign(page.verdict.level, say)}'
    verdict += f"{_text(pair(say, 'verdict', page.verdict.with_detail(say('reason'))))}</span>"
    for count in page.counts:
        sign = f'<i aria-hidden="true">{SIGNS[count.level]}</i>'
        verdict += f' <span class="badge {count.level.value}" data-key="{count.level.value}">'
        verdict += f"{sign}{_text(count.text)}</span>"
    # The style sheet shows it instead of those where the script gets no answer.
    unknown = _text(pair(say, "verdict", say("unknown")))
    verdict += f' <span class="badge unknown then">{_sign(Level.UNKNOWN, say)}{unknown}</span>'
    # Only the script writes the age: without it, a page that cannot be loaded again would stay new for ever.
    data = say("no_data") if page.unix_time is None else say("data_of").format(time=page.time)
    template = _text(say("data_aged").replace("{time}", page.time))
    at = "" if page.unix_time is None else f"{page.unix_time:.3f}"
    facts = "".join(f"<li>{_text(fact)}</li>" for fact in page.facts)
    return (
        f'<header><img src="/web/icon.svg" alt="" width="28" height="28"><h1><bdi>{_text(page.node)}</bdi></h1>'
        f'<ul class="facts">{facts}</ul>'
        f'<p class="status">{verdict} '
        f'<span id="age" data-key="age" data-own data-at="{at}" data-age="{page.age:.1f}" data-text="{template}"'
        f' data-units="{_units(say)}">{_text(data)}</span> '
        f"<noscript>{_text(say('reloads').format(count=RELOAD))}</noscript> "
        f'<a href="/?lang={other}" hreflang="{other}" lang="{other}">{_text(say("other_language"))}</a>'
        "</p></header>\n"
    )


def _units(say: Words) -> str:
    """Return the words of seconds, minutes and hours, for the script."""
    return _text("|".join(say(name) for name in ("seconds", "minutes", "hours")))


def _navigation(page: NodePage, say: Words) -> str:
    items = [("findings", say("findings"), len(page.problems) + page.more_problems)]
    items += [(table.id, table.heading, len(table.rows)) for table in page.tables]
    if page.unix_time is not None:
        items.append(("events", say("events"), len(page.events)))
    links = "".join(
        f'<li data-key="{name}"><a href="#{name}">{_text(heading)} <small>{number}</small></a></li>'
        for name, heading, number in items
    )
    return f'<nav aria-label="{_text(say("sections"))}"><ul>{links}</ul></nav>\n'


def _section(name: str, heading: str, inner: str, note: str = "") -> str:
    return (
        f'<section id="{name}" data-key="{name}" aria-labelledby="h-{name}">'
        f'<h2 id="h-{name}">{_text(heading)}</h2>{note}\n{inner}</section>\n'
    )


def _findings(page: NodePage, say: Words) -> str:
    summary = page.summary
    keys = unique_keys(problem.key for problem in page.problems)
    inner = "".join(_problem(problem, key, say) for problem, key in zip(page.problems, keys, strict=True))
    now = f"{_sign(summary.level, say)}{_text(summary.text)}"
    then = f"{_sign(Level.UNKNOWN, say)}{_text(page.past_summary)}"
    well = f'<p class="well {summary.level.value}"><span class="now">{now}</span>'
    well += f'<span class="then">{then}</span></p>'
    if page.more_problems:
        inner += f'<p class="quiet">{_text(say("more_items").format(count=page.more_problems))}</p>'
    return _section("findings", say("findings"), inner or well)


def _problem(problem: ShownFinding, key: str, say: Words) -> str:
    steps = "".join(f"<li><bdi>{_text(step)}</bdi></li>" for step in problem.steps)
    causes = _causes(problem, say)
    parts = []
    if causes:
        parts.append(f"<dt>{_text(say('cause'))}</dt><dd>{causes}</dd>")
    if problem.evidence:
        parts.append(f"<dt>{_text(say('evidence'))}</dt><dd>{_evidence(problem, say)}</dd>")
    if problem.impact:
        parts.append(f'<dt>{_text(say("impact"))}</dt><dd class="impact"><bdi>{_text(problem.impact)}</bdi></dd>')
    if steps:
        kind = "one" if len(problem.steps) == 1 else "many"
        parts.append(f'<dt>{_text(say("do"))}</dt><dd><ol class="{kind}">{steps}</ol></dd>')
    return (
        f'<article class="finding {problem.level.value}" data-key="{key}">'
        f'<h3><span class="badge {problem.level.value}"><i aria-hidden="true">{SIGNS.get(problem.level, "")}</i>'
        f"{_text(problem.word)}</span> <bdi>{_text(problem.summary)}</bdi></h3>"
        f'<p class="since">{_text(problem.since)} <span>{_text(pair(say, "runbook", problem.runbook))}</span></p>'
        f"<dl>{''.join(parts)}</dl></article>\n"
    )


def _causes(problem: ShownFinding, say: Words) -> str:
    items = "".join(_cause(cause, say) for cause in problem.causes) + _more(problem.more_causes, say)
    return f'<ul class="causes">{items}</ul>' if items else ""


def _cause(cause: ShownFinding, say: Words) -> str:
    since = f' <small class="since">{_text(cause.since)}</small>' if cause.since else ""
    return f"<li><bdi>{_text(cause.summary)}</bdi>{since}{_evidence(cause, say)}{_causes(cause, say)}</li>"


def _more(count: int, say: Words) -> str:
    """Return an item that says how many others there are, nothing without others."""
    return f"<li>{_text(say('more_items').format(count=count))}</li>" if count else ""


def _evidence(problem: ShownFinding, say: Words) -> str:
    items = "".join(
        f"<li><bdi>{_text(name)}</bdi> <b><bdi>{_text(value)}</bdi></b></li>" for name, value in problem.evidence
    )
    return f'<ul class="evidence">{items}{_more(problem.more_evidence, say)}</ul>' if items else ""


def _events(events: Sequence[ShownEvent], say: Words) -> str:
    if not events:
        return _section("events", say("events"), f'<p class="quiet">{_text(say("no_events"))}</p>')
    items = "".join(
        f'<li data-key="{key}" class="{event.level.value}"><time>{_text(event.time)}</time>'
        f" {_sign(event.level, say)}<bdi>{_text(event.text)}</bdi></li>\n"
        for event, key in zip(events, unique_keys(event.key for event in events), strict=True)
    )
    scroll = f'<ol class="events scroll" tabindex="0" aria-labelledby="h-events">\n{items}</ol>'
    return _section("events", say("events"), scroll)


def _sign(level: Level, say: Words) -> str:
    """Return the sign of a mark, and for readers of the screen its word where the value does not say it."""
    if level is Level.NONE:
        return ""
    spoken = f'<span class="spoken">{_text(say(level.value))}: </span>' if level.value in _SPOKEN else ""
    return f'<i aria-hidden="true">{SIGNS[level]}</i>{spoken}'


_SPOKEN = frozenset({Level.WARNING.value, Level.CRITICAL.value})


def _title(text: str) -> str:
    return f' title="{_text(text)}"' if text else ""
