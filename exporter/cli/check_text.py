"""The report of ``shardwatch check`` for people: a line for each node, the worst first, and the findings below."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from exporter.cli.check_nodes import Answer
from exporter.cli.check_versions import differences
from exporter.cli.exit_codes import OK, UNKNOWN
from exporter.cli.terminal import duration, padded, painter, printable
from exporter.model import Quantity, Stage
from exporter.model.finding import Severity, VerdictState
from exporter.model.text import Language, Text
from exporter.render import api
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
_GIB = 2**30

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
        yield Text("versions differ:", "版本不一致：").in_(language)
        yield from (f"  {line}" for line in lines)
    for answer, _, cells in rows:
        details = list(_details(answer, language, paint, unix_now))
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
    age = answer.problem or Text("data {} old", "数据 {}前").in_(language).format(
        duration(max(0.0, unix_now - node.time), language)
    )
    return [
        answer.url,
        f"{sum(gpu.up for gpu in node.gpus)}/{len(node.gpus)} GPUs{f' {models[0]}' if len(models) == 1 else ''}",
        printable(f"driver {node.driver['driver_version']}") if node.driver.get("driver_version") else "",
        Text(f"{count} replica{'' if count == 1 else 's'}", f"{count} 个副本").in_(language)
        + (f" {engines[0]}" if len(engines) == 1 else ""),
        age,
    ]


def _details(answer: Answer, language: Language, paint: Paint, unix_now: float) -> Iterator[str]:
    if answer.note:
        yield f"{Text('note', '注意').in_(language)}: {answer.note}"
    node = answer.document
    if node is None:
        return
    verdict = node.verdict
    if verdict.state is not VerdictState.SERVE:
        text = f"{Text('verdict', '判定').in_(language)} {verdict.state.value}: {printable(verdict.detail)}"
        yield f"{text} ({printable(verdict.reason)})" if verdict.reason else text
    for finding in node.findings[:MAX_FINDINGS]:
        yield from finding_lines(finding, node, language, paint, unix_now)
    if (more := len(node.findings) - MAX_FINDINGS) > 0:
        yield Text(f"and {more} more findings", f"另有 {more} 个问题").in_(language)


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
    if finding.evidence:
        yield f"{inner}{Text('evidence', '依据').in_(language)}: {_evidence(finding, language)}"
    if impact := _impact(finding, node, language):
        yield f"{inner}{Text('impact', '影响').in_(language)}: {impact}"
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
        if cause.evidence:
            yield f"{indent}  {_evidence(cause, language)}"
        yield from _causes(cause, language, unix_now, f"{indent}  ", depth + 1)
    yield from (f"{indent}{word}: {more}" for more in _omitted(finding.causes, language))


def _evidence(finding: api.FindingDocument, language: Language) -> str:
    values = (
        f"{printable(item.label or item.name)} {_value(item.value, item.unit)}"
        for item in finding.evidence[:MAX_ENTRIES]
    )
    return "  ".join((*values, *_omitted(finding.evidence, language)))


def _omitted(entries: Sequence[object], language: Language) -> tuple[str, ...]:
    """Return how many entries are not printed, which --json has; nothing where all are."""
    count = len(entries) - MAX_ENTRIES
    return (Text(f"and {count} more (--json)", f"另有 {count} 项（--json）").in_(language),) if count > 0 else ()


def _value(value: float | str, unit: str) -> str:
    if isinstance(value, str):
        return printable(value)
    shown = {
        "ratio": lambda: f"{value:.2f}" if value > 1 else f"{value:.0%}",
        "bytes": lambda: f"{value / _GIB:.1f} GiB",
        "hertz": lambda: f"{value / 1e6:.0f} MHz",
        "celsius": lambda: f"{value:.0f} °C",
        "watts": lambda: f"{value:.0f} W",
        "seconds": lambda: f"{value * 1e3:.1f} ms" if value < 1 else f"{value:.2f} s",
    }
    return printable(shown.get(unit, lambda: f"{value:g}")())


# ---------------------------------------------------------------------- impact


_LATENCIES = (
    ("ITL p50", Stage.INTER_TOKEN, "0.5", "itl_mean"),
    ("TTFT p99", Stage.TIME_TO_FIRST_TOKEN, "0.99", "ttft_mean"),
)


def _impact(finding: api.FindingDocument, node: api.NodeDocument, language: Language) -> str:
    """Return what users of the finding's replica feel, beside its siblings of the same model; no evidence again."""
    replica = next((known for known in node.replicas if known.replica == finding.replica), None)
    if not finding.replica or replica is None:
        return ""
    siblings = [known for known in node.replicas if known.model == replica.model and known is not replica]
    shown = {item.name for item in finding.evidence}
    if replica.progress is False or not replica.up:  # its latencies are of before
        felt = [_stalled(replica, language)]
    else:
        felt = [
            # Another quantile than that of the evidence would seem to contradict it.
            *(
                _latency(label, replica, siblings, stage, quantile)
                for label, stage, quantile, mean in _LATENCIES
                if mean not in shown
            ),
            "" if Quantity.REQUESTS_RUNNING.value in shown else _requests(replica, language),
        ]
    parts = [
        *felt,
        *(
            Text(f"gateway {gateway} sends it {share:.0%}", f"网关 {gateway} 仍向其发送 {share:.0%}").in_(language)
            for gateway, share in _shares(node, replica.replica)
            if f"gateway_{gateway}_share" not in shown
        ),
    ]
    return "  ".join(part for part in parts if part)


def _latency(
    label: str, replica: api.ReplicaDocument, siblings: Sequence[api.ReplicaDocument], stage: Stage, quantile: str
) -> str:
    def seconds(of: api.ReplicaDocument) -> float | None:
        window = next(iter(of.windows.values()), None)
        return None if window is None else window.latency.get(stage.value, {}).get(quantile)

    own = seconds(replica)
    if own is None:
        return ""
    best = min(
        ((value, sibling.replica) for sibling in siblings if (value := seconds(sibling)) is not None), default=None
    )
    beside = "" if best is None else f" ({printable(best[1])} {_value(best[0], 'seconds')})"
    return f"{label} {_value(own, 'seconds')}{beside}"


def _stalled(replica: api.ReplicaDocument, language: Language) -> str:
    """Return how many requests a replica without progress holds; "" where it does not answer."""
    running, waiting = total(replica, Quantity.REQUESTS_RUNNING), total(replica, Quantity.REQUESTS_WAITING)
    if running is None and waiting is None:
        return ""
    held = (running or 0.0) + (waiting or 0.0)
    return Text(f"{held:g} request{'' if held == 1 else 's'} stalled", f"{held:g} 个请求停滞").in_(language)


def _requests(replica: api.ReplicaDocument, language: Language) -> str:
    running, waiting = total(replica, Quantity.REQUESTS_RUNNING), total(replica, Quantity.REQUESTS_WAITING)
    if running is None or waiting is None:
        return ""
    return Text(f"{running:g} running, {waiting:g} waiting", f"{running:g} 个运行中，{waiting:g} 个等待").in_(
        language
    )


def total(replica: api.ReplicaDocument, quantity: Quantity) -> float | None:
    """Return the sum over a replica's ranks; None if none reports it."""
    values = [rank[quantity.value] for rank in replica.ranks.values() if quantity.value in rank]
    return sum(values) if values else None


def _shares(node: api.NodeDocument, replica: str) -> Iterator[tuple[str, float]]:
    for gateway in node.gateways[:4]:
        shares = [backend.share for backend in gateway.backends if backend.replica == replica and backend.share]
        if shares:
            yield printable(gateway.gateway), shares[0]
