"""A page as plain text, for a terminal: ``curl HOST:9853/``."""

from __future__ import annotations

from collections.abc import Iterator

from exporter.model.text import Language
from exporter.web import values
from exporter.web.html import SIGNS
from exporter.web.model import Level, NodePage, PageTable, ShownFinding
from exporter.web.texts import Words, pair, words


def write(page: NodePage) -> str:
    """Return the page."""
    return "\n".join(_lines(page, words(Language(page.language)))) + "\n"


def _lines(page: NodePage, say: Words) -> Iterator[str]:
    data = say("no_data")
    if page.unix_time is not None:
        data = say("data_aged").format(time=page.time, age=values.age(page.age, say))
    verdict = pair(say, "verdict", page.verdict.with_detail(say("reason")))
    counts = [f"{SIGNS[count.level]} {count.text}" for count in page.counts]
    yield "  ".join([f"Shardwatch {page.version}", page.node, verdict, *counts, *page.facts, data])
    if page.unix_time is not None and page.age > values.TOO_OLD:
        yield say("old").format(age=values.age(page.age, say), time=page.time)
    yield ""
    if not page.problems:
        yield page.summary.text
    for problem in page.problems:
        yield from _problem(problem, say)
    if page.more_problems:
        yield say("more_items").format(count=page.more_problems)
    for table in page.tables:
        yield ""
        yield from _table(table)
    if page.events:
        yield ""
        yield say("events").upper()
        yield from (f"  {event.time}  {SIGNS.get(event.level, ' ')} {event.text}" for event in page.events)


def _problem(problem: ShownFinding, say: Words) -> Iterator[str]:
    yield f"{SIGNS.get(problem.level, '')} {problem.word} {problem.summary}" + (
        f"  {problem.since}" if problem.since else ""
    )
    yield from _causes(problem, say, "    ")
    if problem.evidence:
        yield "    " + pair(say, "evidence", _evidence(problem, say))
    if problem.impact:
        yield "    " + pair(say, "impact", problem.impact)
    if len(problem.steps) == 1:
        yield "    " + pair(say, "do", problem.steps[0])
    elif problem.steps:
        yield "    " + pair(say, "do", "").rstrip()
        yield from (f"      {number}. {step}" for number, step in enumerate(problem.steps, 1))
    yield "    " + pair(say, "runbook", problem.runbook)


def _causes(problem: ShownFinding, say: Words, indent: str) -> Iterator[str]:
    for cause in problem.causes:
        yield indent + pair(say, "cause", cause.summary)
        if cause.evidence:
            yield f"{indent}  {_evidence(cause, say)}"
        yield from _causes(cause, say, indent + "  ")
    if problem.more_causes:
        yield indent + say("more_items").format(count=problem.more_causes)


def _evidence(problem: ShownFinding, say: Words) -> str:
    items = [f"{name} {value}" for name, value in problem.evidence]
    if problem.more_evidence:
        items.append(say("more_items").format(count=problem.more_evidence))
    return "  ".join(items)


def _table(table: PageTable) -> Iterator[str]:
    """Yield aligned columns; marks stand as a sign before the value."""
    grid = [[column.heading for column in table.columns]]
    for row in table.rows:
        line = []
        for cell in row.cells:
            sign = f"{SIGNS[cell.level]} " if cell.level in (Level.UNKNOWN, Level.WARNING, Level.CRITICAL) else ""
            line.append(f"{sign}{cell.text} {cell.detail}".strip())
        grid.append(line)
    widths = [max(values.width(line[number]) for line in grid) for number in range(len(table.columns))]
    yield table.heading.upper() + (f"  {table.note}" if table.note else "")
    for line in grid:
        padded = (text + " " * (width - values.width(text)) for text, width in zip(line, widths, strict=True))
        yield "  " + "  ".join(padded).rstrip()
