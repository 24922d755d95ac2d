"""The report of ``shardwatch check`` for people: a line for each node, the worst first, and the findings below."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from exporter.cli.check_impact import impact
from exporter.cli.check_nodes import Answer
from exporter.cli.check_versions import differences
from exporter.cli.check_well import well
from exporter.cli.exit_codes import OK, UNKNOWN
from exporter.cli.multi_node import spanning_lines
from exporter.cli.terminal import duration, padded, painter, printable
from exporter.diagnosis.evidence import own_evidence
from exporter.diagnosis.verdict_names import VERDICT_NAMES
from exporter.model.finding import Severity, VerdictState
from exporter.model.text import Language, Text
from exporter.render import api
from exporter.web import values
from exporter.web.values import width

WARNING, CRITICAL = 1, 2  # with OK and UNKNOWN the codes of Nagios and Icinga plugins
SEVERITY_CODE = {Severity.CRITICAL: CRITICAL, Severity.WARNING: WARNING, Severity.INFO: OK}
MAX_FINDINGS = 100  # of one node
MAX_DEPTH = 4  # of causes
MAX_ENTRIES = 12  # of evidence, steps and causes of one finding
_WORST_FIRST = (CRITICAL, UNKNOWN, WARNING, OK)
_WORDS = {
    CRITICAL: Text("CRITICAL", "严重"),
    WARNING: Text("WARNING", "警告"),
    UNKNOWN: Text("UNKNOWN", "未知"),
    OK: Text("OK", "正常"),
}
SEVERITY_WORDS = {
    Severity.CRITICAL: _WORDS[CRITICAL],
    Severity.WARNING: _WORDS[WARNING],
    Severity.INFO: Text("INFO", "提示"),
}
_COLOURS = {CRITICAL: "31;1", WARNING: "33;1", UNKNOWN: "35;1", OK: "32"}
_DAY = 86_400.0

Paint = Callable[[str, str], str]


def report(judged: Sequence[tuple[Answer, int]], language: Language, *, colour: bool) -> Iterator[str]:
    """Return the lines: of every node one, then of every node with findings its own."""
    paint, unix_now = painter(enabled=colour), time.time()
    ordered = sorted(judged, key=lambda pair: _WORST_FIRST.index(pair[1]))
    rows = [(answer, code, _cells(answer, language, unix_now)) for answer, code in ordered]
    columns = [
        max(map(width, column)) for column in zip(*(cells for _, _, cells in rows if len(cells) > 2), strict=True)
    ]
    of_word = max(width(_WORDS[code].in_(language)) for _, code in ordered)
    of_url = max(width(cells[0]) for _, _, cells in rows)
    for _, code, cells in rows:
        word = padded(_WORDS[code].in_(language), of_word)
        widths = [of_url, *columns[1:]] if len(cells) > 2 else [of_url, 0]
        yield f"{paint(_COLOURS[code], word)}  {'  '.join(map(padded, cells, widths))}".rstrip()
    if lines := list(differences([answer for answer, _, _ in rows], language)):
        yield ""
        yield Text("the nodes differ:", "节点之间不一致：").in_(language)
        yield from (f"  {line}" for line in lines)
    if lines := list(spanning_lines([answer for answer, _, _ in rows], language)):
        yield ""
        yield Text("replicas that span nodes:", "跨节点的副本：").in_(language)
        yield from (f"  {line}" for line in lines)
    for answer, _, cells in rows:
        details = list(_details(answer, language, paint, unix_now, is_alone=len(rows) == 1))
        if details and len(rows) > 1:
            yield ""
            yield f"{cells[0]}:"
        yield from (f"  {line}" for line in details)


def _cells(answer: Answer, language: Language, unix_now: float) -> list[str]:
    """Return what stands side by side on the line of a node: of one without a document, why."""
    node = answer.document
    if node is None:
        return [answer.url, printable(answer.problem)]
    models = sorted({printable(gpu.name) for gpu in node.gpus if gpu.name})
    count = len(node.replicas)
    engines = sorted({printable(f"{replica.engine} {replica.version}").strip() for replica in node.replicas})
    up, driver = sum(gpu.up for gpu in node.gpus), node.driver.get("driver_version")
    released = Text(" released", "已释放") if node.verdict.reason == "released" else Text("", "")
    age = answer.problem or Text("data {} old", "数据 {}前").in_(language).format(
        duration(max(0.0, unix_now - node.time), language)
    )
    return [
        f"{answer.url} ({printable(node.node)})" if node.node else answer.url,
        (Text(f"{up}/{len(node.gpus)} GPUs", f"{up}/{len(node.gpus)} 张 GPU") + released).in_(language)
        + (f" {models[0]}" if len(models) == 1 else ""),
        printable(Text(f"driver {driver}", f"驱动 {driver}").in_(language)) if driver else "",
        Text(f"{count} replica{'' if count == 1 else 's'}", f"{count} 个副本").in_(language)
        + (f" {engines[0]}" if len(engines) == 1 else ""),
        age,
    ]


def _details(answer: Answer, language: Language, paint: Paint, unix_now: float, *, is_alone: bool) -> Iterator[str]:
    if answer.note:
        yield f"{Text('note', '注意').in_(language)}: {answer.note}"
    node = answer.document
    if node is None:
        return
    yield from _verdict(Text("verdict", "判定为"), node.verdict, language)
    for replica in node.replicas:
        name = printable(replica.replica)
        yield from _verdict(Text(f"verdict on {name}", f"{name} 的判定为"), replica.verdict, language)
    for finding in node.findings[:MAX_FINDINGS]:
        yield from finding_lines(finding, node, language, paint, unix_now)
    if (more := len(node.findings) - MAX_FINDINGS) > 0:
        yield Text(f"and {more} more findings", f"另有 {more} 个问题").in_(language)
    if is_alone:
        ok = paint(_COLOURS[OK], _WORDS[OK].in_(language))
        yield from (f"{ok}  {line}" for line in well(node, language))


def _verdict(subject: Text, verdict: api.VerdictDocument, language: Language) -> Iterator[str]:
    """Yield the line about a verdict other than serve."""
    if verdict.state is not VerdictState.SERVE:
        said = subject + Text(" ", "") + VERDICT_NAMES[verdict.state] + Text(": ", "：")
        text = f"{said.in_(language)}{printable(verdict.detail)}"
        yield f"{text} ({printable(verdict.reason)})" if verdict.reason else text


def finding_lines(
    finding: api.FindingDocument, node: api.NodeDocument, language: Language, paint: Paint, unix_now: float
) -> Iterator[str]:
    """Return a finding as lines: what and since when, its causes, evidence, impact, steps and runbook."""
    word = SEVERITY_WORDS.get(finding.severity, SEVERITY_WORDS[Severity.INFO]).in_(language)
    colour = _COLOURS[SEVERITY_CODE.get(finding.severity, OK)]
    since = since_text(finding.since, language, unix_now)
    yield f"{paint(colour, word)} {printable(finding.summary)}{f'  {since}' if since else ''}"
    inner = " " * 4
    yield from _causes(finding, language, unix_now, inner)
    if evidence := _evidence(finding, language):
        yield f"{inner}{Text('evidence', '依据').in_(language)}: {evidence}"
    if felt := impact(finding, node, language):
        yield f"{inner}{Text('impact', '影响').in_(language)}: {felt}"
    heading = Text("do", "处理").in_(language)
    if len(finding.steps) == 1:
        yield f"{inner}{heading}: {printable(finding.steps[0])}"
    elif finding.steps:
        yield f"{inner}{heading}:"
        steps = finding.steps[:MAX_ENTRIES]
        yield from (f"{inner}  {number}. {printable(step)}" for number, step in enumerate(steps, 1))
        yield from (f"{inner}  {more}" for more in _omitted(finding.steps, language))
    yield f"{inner}{Text('runbook', '运行手册').in_(language)}: {printable(finding.runbook)}"


def since_text(since: float | None, language: Language, unix_now: float) -> str:
    """Return when a finding began, in this machine's time; "" where that is not known or cannot be."""
    if since is None or not 0 <= since <= unix_now + 1:
        return ""
    form = "%H:%M:%S" if unix_now - since < _DAY else "%Y-%m-%d %H:%M"
    at, ago = time.strftime(form, time.localtime(since)), duration(max(0.0, unix_now - since), language)
    return Text(f"since {at} ({ago})", f"自 {at} 起（{ago}）").in_(language)


def _causes(
    finding: api.FindingDocument, language: Language, unix_now: float, indent: str, depth: int = 1
) -> Iterator[str]:
    word = Text("cause", "原因").in_(language)
    for cause in finding.causes[:MAX_ENTRIES] if depth <= MAX_DEPTH else ():
        began = since_text(cause.since, language, unix_now)
        yield f"{indent}{word}: {printable(cause.summary)}{f'  {began}' if began else ''}"
        if evidence := _evidence(cause, language):
            yield f"{indent}  {evidence}"
        yield from _causes(cause, language, unix_now, f"{indent}  ", depth + 1)
    yield from (f"{indent}{word}: {more}" for more in _omitted(finding.causes, language))


def _evidence(finding: api.FindingDocument, language: Language) -> str:
    of_causes = [item for cause in finding.causes[:MAX_ENTRIES] for item in cause.evidence]
    evidence = own_evidence(finding.evidence, of_causes)
    shown = (
        printable(f"{item.label or item.name} {values.evidence(item.value, item.unit, language)}")
        for item in evidence[:MAX_ENTRIES]
    )
    return "  ".join((*shown, *_omitted(evidence, language)))


def _omitted(entries: Sequence[object], language: Language) -> tuple[str, ...]:
    """Return how many entries are not printed, which --json has; nothing where all are."""
    count = len(entries) - MAX_ENTRIES
    return (Text(f"and {count} more (--json)", f"另有 {count} 项（--json）").in_(language),) if count > 0 else ()
