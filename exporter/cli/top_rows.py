"""The tables of ``shardwatch top`` from the documents of the nodes.  Pure: no clock, no terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from exporter.cli.check_impact import total
from exporter.cli.check_text import SEVERITY_WORDS
from exporter.cli.multi_node import named_across
from exporter.cli.terminal import duration
from exporter.cli.top_model import NodeState, TopCell, TopColumn, TopRow, TopTable
from exporter.diagnosis import thresholds as limit
from exporter.diagnosis.cause_names import CAUSE_NAMES
from exporter.diagnosis.verdict_names import VERDICT_NAMES
from exporter.model import Cause, Quantity, Signal, Stage
from exporter.model.finding import Severity, VerdictState
from exporter.model.text import Language, Text
from exporter.render import api
from exporter.web import values
from exporter.web.gpu_problems import gpu_problem
from exporter.web.history import memory_ratio
from exporter.web.marks import error_level, reason_words, severity_level
from exporter.web.model import Level
from exporter.web.texts import TEXTS
from exporter.web.values import ABSENT, clean

MAX_ROWS = 2000  # of one node and table
MAX_DEPTH = 4  # of causes
_SIGNALS = {signal.value: signal for signal in Signal}
_CAUSES = {cause.value: CAUSE_NAMES[cause] for cause in Cause if cause in CAUSE_NAMES}
_VERDICTS = {
    VerdictState.EJECT: Level.CRITICAL,
    VerdictState.DRAIN: Level.WARNING,
    VerdictState.UNKNOWN: Level.UNKNOWN,
}
_WORST_FIRST = (Level.CRITICAL, Level.UNKNOWN, Level.WARNING, Level.INFO, Level.NONE, Level.GOOD)  # as in check
_GRAVITY = (Severity.CRITICAL, Severity.WARNING, Severity.INFO)
_NODE = Text("Node", "节点")


class _Heading(NamedTuple):
    text: Text
    drop: int = 0
    numeric: bool = False


_FINDINGS = (
    _Heading(Text("Severity", "级别")),
    _Heading(Text("Subject", "对象"), 2),
    _Heading(Text("Since", "持续"), 3, numeric=True),
    _Heading(Text("Finding", "问题")),
)
_GPUS = (
    _Heading(Text("GPU", "GPU")),
    _Heading(Text("Replica", "副本"), 4),
    _Heading(Text("State", "状态")),
    _Heading(Text("Util", "利用率"), numeric=True),
    _Heading(Text("SM", "SM"), 5, numeric=True),
    _Heading(Text("Tens", "Tensor"), 8, numeric=True),
    _Heading(Text("Mem", "显存"), numeric=True),
    _Heading(Text("Temp", "温度"), numeric=True),
    _Heading(Text("Marg", "余量"), 9, numeric=True),
    _Heading(Text("SM MHz", "SM MHz"), 6, numeric=True),
    _Heading(Text("Power", "功耗"), 7, numeric=True),
    _Heading(Text("XID", "XID"), 2),
    _Heading(Text("Throttle", "降频"), 3),
)
_REPLICAS = (
    _Heading(Text("Replica", "副本")),
    _Heading(Text("Verdict", "判定")),
    _Heading(Text("Run", "运行"), numeric=True),
    _Heading(Text("Wait", "排队"), numeric=True),
    _Heading(Text("TTFT p99", "TTFT p99"), numeric=True),
    _Heading(Text("ITL p50", "ITL p50"), 3, numeric=True),
    _Heading(Text("KV", "KV"), 4, numeric=True),
    _Heading(Text("Hits", "命中率"), 5, numeric=True),
    _Heading(Text(f"Err {limit.WINDOW}", f"错误率 {limit.WINDOW}"), 2, numeric=True),
    _Heading(Text("Tok/s", "Token/s"), 7, numeric=True),
    _Heading(Text("GPUs", "GPU"), 8),
    _Heading(Text("Path", "路径"), 9),
    _Heading(Text("Engine", "引擎"), 9),
)
_NODES = (
    _Heading(_NODE),
    _Heading(Text("State", "状态")),
    _Heading(Text("Findings", "问题"), numeric=True),
    _Heading(Text("GPUs", "GPU"), numeric=True),
    _Heading(Text("Replicas", "副本"), 4, numeric=True),
    _Heading(Text("Run", "运行"), 5, numeric=True),
    _Heading(Text("Wait", "排队"), 6, numeric=True),
    _Heading(Text("Power", "功耗"), 7, numeric=True),
    _Heading(Text("Data", "数据")),
)


def tables(states: Sequence[NodeState], language: Language, unix_now: float) -> tuple[TopTable, ...]:
    """Return findings, GPUs, replicas and nodes; of several nodes each row names its node first."""
    states, is_many = named_across(states), len(states) > 1
    found: list[TopTable] = []
    for id_, headings, heading, rows_of in (
        ("findings", _FINDINGS, TEXTS["findings"], _findings),
        ("gpus", _GPUS, TEXTS["gpus"], _gpus),
        ("replicas", _REPLICAS, TEXTS["replicas"], _replicas),
    ):
        rows: list[TopRow] = []
        for number, state in enumerate(states):
            if state.document is None:
                continue
            of_node = list(rows_of(state.document, language, unix_now))[:MAX_ROWS]
            name = (
                (TopCell(short_name(state), level=Level.UNKNOWN if state.problem else Level.NONE),) if is_many else ()
            )
            rows += [
                TopRow(
                    key=f"{number}/{key}",
                    node=number,
                    subject=subject,
                    is_old=bool(state.problem),
                    cells=name + cells,
                )
                for key, subject, cells in of_node
            ]
        if id_ == "findings" and is_many:
            rows.sort(key=lambda row: _gravity(row.subject))
        found.append(_table(id_, heading, ((_Heading(_NODE),) if is_many else ()) + headings, rows, language))
    nodes = [
        TopRow(key=f"{number}", node=number, is_old=bool(state.problem), cells=_node(state, language, unix_now))
        for number, state in enumerate(states)
    ]
    nodes.sort(key=lambda row: _WORST_FIRST.index(row.cells[1].level))
    return (*found, _table("nodes", Text("Nodes", "节点"), _NODES, nodes, language))


def _table(
    id_: str, heading: Text, headings: Sequence[_Heading], rows: Sequence[TopRow], language: Language
) -> TopTable:
    columns = (
        TopColumn(heading=column.text.in_(language), numeric=column.numeric, drop=column.drop) for column in headings
    )
    return TopTable(id=id_, heading=heading.in_(language), columns=tuple(columns), rows=tuple(rows))


def short_name(state: NodeState) -> str:
    """Return the address of a node without its scheme and the default port."""
    return state.name.rpartition("://")[2].rstrip("/").removesuffix(":9853") or state.name


def freshness(state: NodeState, language: Language, unix_now: float) -> str:
    """Return how old the data of a node are, or why there are none of now and when the last were read."""
    node = state.document
    if not state.is_asked:
        return Text("connecting", "正在连接").in_(language)
    problem = clean(
        state.problem.partition("/api/v1/node: ")[2] or state.problem, 200
    )  # the address stands beside it
    if node is None:
        return problem
    age = duration(max(0.0, unix_now - node.time), language)
    if not state.problem:
        return Text(f"data {age} old", f"数据 {age}前").in_(language)
    if not 0 <= node.time <= unix_now + 1:
        return problem
    at = values.clock(node.time, unix_now)
    last = Text(f"last data of {at} UTC, {age} old", f"最后数据 {at} UTC（{age}前）").in_(language)
    return f"{last}: {problem}"


def _number(value: float | None, text: str, level: Level = Level.NONE) -> TopCell:
    return TopCell(text, value, level)


_Found = tuple[str, "api.FindingDocument | api.GpuDocument | api.ReplicaDocument", tuple[TopCell, ...]]

# ---------------------------------------------------------------------- findings


def _findings(node: api.NodeDocument, language: Language, unix_now: float) -> Iterator[_Found]:
    for number, finding in enumerate(node.findings):
        since = finding.since if finding.since is not None and 0 <= finding.since <= unix_now + 1 else None
        age = None if since is None else max(0.0, unix_now - since)
        cells = (
            TopCell(SEVERITY_WORDS[finding.severity].in_(language), level=severity_level(finding.severity)),
            TopCell(clean(finding.label)),
            _number(age, ABSENT if age is None else duration(age, language)),
            TopCell(clean(finding.summary, values.MAX_SENTENCE)),
        )
        same = sum(
            (other.id, other.subject) == (finding.id, finding.subject) for other in node.findings[: min(number, 100)]
        )
        yield f"{finding.id[:200]}/{finding.subject[:200]}/{same}/{number if number > 100 else ''}", finding, cells


def _gravity(subject: object) -> int:
    return _GRAVITY.index(subject.severity) if isinstance(subject, api.FindingDocument) else len(_GRAVITY)


# ---------------------------------------------------------------------- GPUs


def signals_of(gpu: api.GpuDocument) -> Mapping[Signal, float]:
    """Return the signals that this version knows."""
    return {_SIGNALS[name]: value for name, value in gpu.signals.items() if name in _SIGNALS}


def _gpus(node: api.NodeDocument, language: Language, unix_now: float) -> Iterator[_Found]:
    slowing: dict[str, list[api.GpuDocument]] = {}  # replica → its GPUs that the others wait for
    for gpu in node.gpus:
        if gpu.straggler or gpu.verdict.state is VerdictState.EJECT:
            for replica in gpu.replicas:
                slowing.setdefault(replica, []).append(gpu)
    marks, standstills = _marks(node.findings), _standstills(node)
    for gpu in node.gpus:
        standstill = next((standstills[name] for name in gpu.replicas if name in standstills), None)
        state = _gpu_state(gpu, slowing, marks.get(gpu.uuid), standstill, language)
        yield gpu.uuid[:200], gpu, _gpu(gpu, state, language, unix_now)


def _standstills(node: api.NodeDocument) -> dict[str, str]:
    """Return the replicas without progress, each with what its finding names as the cause, else ""."""
    causes = {found.subject: found.causes[0].label for found in node.findings[:MAX_ROWS] if found.causes}
    return {found.replica: causes.get(found.replica, "") for found in node.replicas if found.progress is False}


def _marks(findings: Sequence[api.FindingDocument], depth: int = 0) -> dict[str, api.FindingDocument]:
    """Return the gravest finding about each subject; causes count, too."""
    found: dict[str, api.FindingDocument] = {}
    for finding in findings[:MAX_ROWS]:
        causes = _marks(finding.causes, depth + 1) if depth < MAX_DEPTH else {}
        for subject, known in ((finding.subject, finding), *causes.items()):
            if subject not in found or _gravity(known) < _gravity(found[subject]):
                found[subject] = known
    return found


def _gpu(
    gpu: api.GpuDocument,
    state: TopCell,
    language: Language,
    unix_now: float,
) -> tuple[TopCell, ...]:
    signals = signals_of(gpu)

    def ratio(signal: Signal) -> TopCell:
        return _number(signals.get(signal), values.percent(signals.get(signal)))

    def whole(signal: Signal, unit: str, scale: float = 1.0, level: Level = Level.NONE) -> TopCell:
        return _number(signals.get(signal), values.unit(signals.get(signal), unit, scale).rstrip(), level)

    memory, margin = memory_ratio(signals), signals.get(Signal.TEMPERATURE_MARGIN)
    is_full = memory is not None and memory >= limit.GPU_MEMORY_USED
    is_hot = margin is not None and margin <= limit.TEMPERATURE_MARGIN_CELSIUS
    throttled = throttle_reasons(gpu, language)
    label = clean(gpu.gpu)
    return (
        TopCell(label, number=None),
        TopCell(clean(" ".join(gpu.replicas[:8])) or ABSENT),
        state,
        ratio(Signal.UTILIZATION),
        ratio(Signal.SM_ACTIVE),
        ratio(Signal.TENSOR_ACTIVE),
        _number(memory, values.percent(memory), Level.WARNING if is_full else Level.NONE),
        whole(Signal.TEMPERATURE_GPU, "°C", level=Level.WARNING if is_hot else Level.NONE),
        whole(Signal.TEMPERATURE_MARGIN, "°C"),
        whole(Signal.CLOCK_SM, "", 1e-6),
        whole(Signal.POWER, "W"),
        _xid(gpu, language, unix_now),
        TopCell(throttled or ABSENT),
    )


def throttle_reasons(gpu: api.GpuDocument, language: Language) -> str:
    """Return the active throttle reasons in words, without idleness."""
    reasons = [reason for reason in gpu.clock_events[:16] if reason != "gpu_idle"]
    words = (
        TEXTS[reason].in_(language) if reason in TEXTS else clean(reason.replace("_", " ")) for reason in reasons
    )
    return ", ".join(dict.fromkeys(words))


def _gpu_state(
    gpu: api.GpuDocument,
    slowing: Mapping[str, list[api.GpuDocument]],
    mark: api.FindingDocument | None,
    standstill: str | None,
    language: Language,
) -> TopCell:
    verdict = gpu.verdict.state
    if not gpu.up:
        reason = reason_words(gpu.reason, language) or TEXTS["not_known"].in_(language)
        return TopCell(reason, level=Level.CRITICAL if verdict is VerdictState.EJECT else Level.UNKNOWN)
    if gpu.straggler:
        cause = _CAUSES[gpu.straggler].in_(language) if gpu.straggler in _CAUSES else clean(gpu.straggler)
        slower = f"{gpu.slowdown:.2f}× " if gpu.slowdown is not None else ""
        return TopCell(f"{TEXTS['straggler'].in_(language)} {slower}{cause}", level=Level.WARNING)
    if verdict in (VerdictState.EJECT, VerdictState.DRAIN):
        return verdict_cell(gpu.verdict, language)
    if mark is not None:
        return TopCell(gpu_problem(mark.id, language), level=severity_level(mark.severity))
    return _waiting_state(gpu, slowing, standstill, language) or TopCell(TEXTS["ok"].in_(language), level=Level.GOOD)


def _waiting_state(
    gpu: api.GpuDocument, slowing: Mapping[str, list[api.GpuDocument]], standstill: str | None, language: Language
) -> TopCell | None:
    """Return what a healthy GPU waits for: another GPU, or what stops its replica; None where it works."""
    for replica in gpu.replicas:
        for other in slowing.get(replica, ()):
            if other.uuid != gpu.uuid:
                word = Text("waits for GPU {}", "等待 {} 号卡").in_(language)
                return TopCell(word.format(clean(other.gpu)), level=Level.INFO)
    if standstill is None:
        return None
    return TopCell(f"{reason_words('no_progress', language)} {clean(standstill)}".rstrip(), level=Level.WARNING)


def verdict_cell(verdict: api.VerdictDocument, language: Language, reason: str = "") -> TopCell:
    """Return a verdict with its reason, or with ``reason`` where it has none."""
    reason = reason_words(verdict.reason or reason, language) if verdict.state is not VerdictState.SERVE else ""
    text = f"{VERDICT_NAMES[verdict.state].in_(language)} {reason}".rstrip()
    return TopCell(text, level=_VERDICTS.get(verdict.state, Level.GOOD))


def _xid(gpu: api.GpuDocument, language: Language, unix_now: float) -> TopCell:
    last = max(gpu.xids, key=lambda xid: xid.last or 0.0, default=None)
    if last is None:
        return TopCell("")
    age = None if last.last is None else max(0.0, unix_now - last.last)
    is_recent = age is not None and age <= limit.XID_RECENT_SECONDS
    text = clean(last.xid) if age is None else f"{clean(last.xid)} {duration(age, language)}"
    return TopCell(text, level=Level.WARNING if is_recent else Level.NONE)


# ---------------------------------------------------------------------- replicas


def _replicas(node: api.NodeDocument, language: Language, _: float) -> Iterator[_Found]:
    labels = {gpu.uuid: gpu.gpu for gpu in node.gpus}
    for replica in node.replicas:
        yield replica.replica[:200], replica, _replica(replica, labels, language)


def latency(replica: api.ReplicaDocument, stage: Stage, quantile: str) -> float | None:
    """Return a latency of the shortest window in seconds."""
    window = next(iter(replica.windows.values()), None)
    return None if window is None else window.latency.get(stage.value, {}).get(quantile)


def _replica(replica: api.ReplicaDocument, labels: Mapping[str, str], language: Language) -> tuple[TopCell, ...]:
    window = next(iter(replica.windows.values()), None)
    running, waiting = total(replica, Quantity.REQUESTS_RUNNING), total(replica, Quantity.REQUESTS_WAITING)
    ttft, itl = latency(replica, Stage.TIME_TO_FIRST_TOKEN, "0.99"), latency(replica, Stage.INTER_TOKEN, "0.5")
    usages = [rank[Quantity.KV_CACHE_USAGE.value] for rank in replica.ranks.values()
              if Quantity.KV_CACHE_USAGE.value in rank]  # fmt: skip
    kv = max(usages, default=None)
    hits, tokens = (window.hit_ratio, window.generation_token_rate) if window is not None else (None, None)
    stalled = _stalled(replica)
    if stalled is not None:  # the figures are of before
        ttft = itl = hits = tokens = None
    judged = values.judged(replica.windows, None)
    errors = judged.error_ratio if judged is not None else None
    return (
        TopCell(clean(replica.replica)),
        verdict_cell(replica.verdict, language, replica.reason),
        _number(running, values.count(running)),
        _number(waiting, values.count(waiting)),
        _number(ttft, values.seconds(ttft)),
        _number(itl, values.seconds(itl)),
        _number(kv, values.percent(kv)),
        _number(hits, values.percent(hits)),
        _number(errors, values.percent(errors), error_level(errors))
        if stalled is None
        else _number(stalled, TEXTS["stalled"].in_(language).format(count=values.count(stalled)), Level.CRITICAL),
        _number(tokens, values.count(tokens)),
        TopCell(values.ranges(labels[uuid] for uuid in replica.gpus if uuid in labels) or ABSENT),
        TopCell(clean(replica.slowest_path) or ABSENT),
        TopCell(clean(f"{replica.engine} {replica.version}".strip())),
    )


def _stalled(replica: api.ReplicaDocument) -> float | None:
    """Return how many requests a replica without progress holds; None for one with progress."""
    held = [total(replica, quantity) for quantity in (Quantity.REQUESTS_RUNNING, Quantity.REQUESTS_WAITING)]
    known = [count for count in held if count is not None]
    return sum(known) if replica.progress is False and known else None


# ---------------------------------------------------------------------- nodes


def worst(node: api.NodeDocument) -> Severity | None:
    """Return the gravest severity of a node's findings."""
    return min((finding.severity for finding in node.findings), key=_GRAVITY.index, default=None)


def _node(state: NodeState, language: Language, unix_now: float) -> tuple[TopCell, ...]:
    name, node, data = TopCell(short_name(state)), state.document, freshness(state, language, unix_now)
    if state.problem:
        condition = TopCell(Text("UNKNOWN", "未知").in_(language), level=Level.UNKNOWN)
    elif node is None:
        condition = TopCell(ABSENT)
    elif (severity := worst(node)) is not None:
        condition = TopCell(SEVERITY_WORDS[severity].in_(language), level=severity_level(severity))
    else:
        condition = TopCell("OK" if language is Language.ENGLISH else "正常", level=Level.GOOD)
    if node is None:
        return (name, condition, *[TopCell(ABSENT)] * 6, TopCell(data))
    up = sum(gpu.up for gpu in node.gpus)
    power = [gpu.signals[Signal.POWER.value] for gpu in node.gpus if Signal.POWER.value in gpu.signals]
    running, waiting = (
        [found for replica in node.replicas if (found := total(replica, quantity)) is not None]
        for quantity in (Quantity.REQUESTS_RUNNING, Quantity.REQUESTS_WAITING)
    )
    watts = sum(power) if power else None
    return (
        name,
        condition,
        _number(len(node.findings), str(len(node.findings))),
        _number(up, f"{up}/{len(node.gpus)}"),
        _number(len(node.replicas), str(len(node.replicas))),
        _number(sum(running) if running else None, values.count(sum(running) if running else None)),
        _number(sum(waiting) if waiting else None, values.count(sum(waiting) if waiting else None)),
        _number(watts, values.unit(watts, "W")),
        TopCell(data),
    )
