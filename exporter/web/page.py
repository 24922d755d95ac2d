"""Snapshot and history → page."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator

from exporter import __version__
from exporter.diagnosis.evidence import label, own_evidence
from exporter.model import Snapshot
from exporter.model.finding import Finding, VerdictState
from exporter.model.text import Language
from exporter.web import values
from exporter.web.history import Event
from exporter.web.impact import Impact, of_snapshot
from exporter.web.marks import severity_level, verdict_cell
from exporter.web.model import Level, NodePage, PageCell, ShownEvent, ShownFinding
from exporter.web.tables import tables
from exporter.web.texts import Words, words
from exporter.web.values import MAX_SENTENCE, clean

MAX_EVIDENCE = 12
MAX_CAUSES = 12
MAX_PROBLEMS = 100


def build(
    snapshot: Snapshot | None, events: tuple[Event, ...], language: Language, *, node: str, age: float
) -> NodePage:
    """Return the page of a snapshot that is ``age`` seconds old; ``node`` is the node's name."""
    say = words(language)
    empty = NodePage(
        node=clean(node), version=__version__, language=language.value, facts=(), unix_time=None, time="", age=age,
        verdict=PageCell(say("unknown"), level=Level.UNKNOWN), problems=(), counts=(), tables=(), events=(),
        summary=PageCell(say("starting"), level=Level.UNKNOWN), past_summary=say("starting"),
    )  # fmt: skip
    if snapshot is None:
        return empty
    now, is_old = snapshot.unix_time, age > values.TOO_OLD
    at = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now))
    impact = of_snapshot(snapshot)
    past = say("none_found_then").format(time=at)
    return NodePage(
        node=empty.node,
        version=empty.version,
        language=empty.language,
        facts=tuple(_facts(snapshot, say)),
        # What is not known any more is no verdict.
        verdict=PageCell(say("unknown"), level=Level.UNKNOWN)
        if is_old
        else verdict_cell(snapshot.verdicts.node, language),
        unix_time=now,
        time=at,
        age=age,
        problems=tuple(_problem(finding, language, say, now, impact) for finding in snapshot.findings[:MAX_PROBLEMS]),
        more_problems=max(0, len(snapshot.findings) - MAX_PROBLEMS),
        counts=tuple(_counts(snapshot, say)),
        summary=PageCell(past, level=Level.UNKNOWN) if is_old else _summary(snapshot, say),
        past_summary=past,
        tables=tables(snapshot, language),
        events=tuple(
            ShownEvent(
                key=f"{event.unix_time}-{event.text.en}",
                time=values.clock(event.unix_time, now),
                level=severity_level(event.severity),
                text=clean(event.text.in_(language), MAX_SENTENCE),
            )
            for event in events
        ),
    )


def _facts(snapshot: Snapshot, say: Words) -> list[str]:
    models = Counter(card.facts.name for card in snapshot.cards if card.facts.name and card.facts.instance is None)
    facts = [f"{number} × {clean(name)}" for name, number in models.most_common(4)]
    driver = snapshot.driver
    if driver is not None and driver.driver_version:
        facts.append(say("driver").format(version=clean(driver.driver_version)))
    if driver is not None and driver.cuda_version:
        facts.append(f"CUDA {clean(driver.cuda_version)}")
    return [*facts, _number(say, len(snapshot.replicas), "one_replica", "replicas_count")]


def _number(say: Words, count: int, one: str, several: str) -> str:
    return say(one) if count == 1 else say(several).format(count=count)


def _problem(
    finding: Finding, language: Language, say: Words, now: float, impact: Impact | None = None
) -> ShownFinding:
    since = ""
    if finding.since is not None:
        lasted = values.age(max(0.0, now - finding.since), say)
        since = say("since").format(time=values.clock(finding.since, now), age=lasted)
    level = severity_level(finding.severity)
    evidence = own_evidence(
        finding.evidence, [item for cause in finding.causes[:MAX_CAUSES] for item in cause.evidence]
    )
    return ShownFinding(
        key=f"{finding.id}-{finding.subject.name}",
        level=level,
        word=say(level.value or Level.INFO.value),
        summary=clean(finding.summary.in_(language), MAX_SENTENCE),
        since=since,
        evidence=tuple(
            (clean(label(item.name).in_(language)), values.evidence(item.value, item.unit, language))
            for item in evidence[:MAX_EVIDENCE]
        ),
        more_evidence=max(0, len(evidence) - MAX_EVIDENCE),
        causes=tuple(_problem(cause, language, say, now) for cause in finding.causes[:MAX_CAUSES]),
        more_causes=max(0, len(finding.causes) - MAX_CAUSES),
        steps=tuple(clean(step.in_(language), MAX_SENTENCE) for step in finding.steps),
        runbook=clean(finding.id),
        impact=impact.of(finding, language) if impact is not None else "",
    )


def _counts(snapshot: Snapshot, say: Words) -> Iterator[PageCell]:
    """Yield how many findings have each severity, the gravest first; nothing without findings."""
    levels = Counter(severity_level(finding.severity) for finding in snapshot.findings)
    for level in (Level.CRITICAL, Level.WARNING, Level.INFO):
        if count := levels[level]:
            key = f"one_{level.value}" if count == 1 else f"count_{level.value}"
            yield PageCell(say(key).format(count=count), f"{count}", level)


def _summary(snapshot: Snapshot, say: Words) -> PageCell:
    """Return the sentence of a node without findings; silence of a source is not health."""
    if snapshot.verdicts.node.state is VerdictState.SERVE and all(status.up for status in snapshot.sources):
        text = say("none_found").format(
            gpus=_number(say, len(snapshot.cards), "one_gpu", "gpus_number"),
            replicas=_number(say, len(snapshot.replicas), "one_replica", "replicas_count"),
            sources=_number(say, len(snapshot.sources), "one_source", "sources_number"),
        )
        return PageCell(text, level=Level.GOOD)
    return PageCell(say("none_found_partly"), level=Level.UNKNOWN)
