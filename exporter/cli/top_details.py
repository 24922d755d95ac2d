"""What ``shardwatch top`` says about the selected row, in lines."""

from __future__ import annotations

from collections.abc import Iterator

from exporter.cli.check_text import finding_lines
from exporter.cli.terminal import duration, painter, printable
from exporter.cli.top_model import NodeState, TopRow
from exporter.cli.top_rows import freshness, latency, short_name, signals_of, throttle_reasons
from exporter.diagnosis.verdict_names import VERDICT_NAMES
from exporter.model import Quantity, Signal, Stage
from exporter.model.finding import VerdictState
from exporter.model.text import Language, Text
from exporter.render import api
from exporter.web import values
from exporter.web.marks import reason_words
from exporter.web.texts import TEXTS

MAX_LINES = 200
MAX_FINDINGS = 8
MAX_ADAPTERS = 32
_PLAIN = painter(enabled=False)
_STAGES = {
    Stage.TIME_TO_FIRST_TOKEN: Text("time to first token", "首 token 延迟"),
    Stage.INTER_TOKEN: Text("inter-token latency", "token 间延迟"),
    Stage.TIME_PER_OUTPUT_TOKEN: Text("time per output token", "每输出 token 时间"),
    Stage.REQUEST: Text("end to end", "端到端延迟"),
    Stage.QUEUE: Text("in the queue", "排队时间"),
    Stage.PREFILL: Text("prefill", "prefill"),
    Stage.DECODE: Text("decode", "decode"),
}
_OF_RANK = (
    (Quantity.REQUESTS_RUNNING, Text("running", "运行中"), values.count),
    (Quantity.REQUESTS_WAITING, Text("waiting", "排队"), values.count),
    (Quantity.KV_CACHE_USAGE, Text("KV cache", "KV 缓存"), values.percent),
)


def details(row: TopRow, state: NodeState, language: Language, unix_now: float) -> list[str]:
    """Return the lines about a row, with the findings that name its subject."""
    lines: list[str] = []
    if state.problem or row.subject is None:
        lines.append(f"{short_name(state)}: {freshness(state, language, unix_now)}")
    node = state.document
    if node is None:
        return lines
    for line in _lines(row, node, language, unix_now):
        lines.append(line)
        if len(lines) == MAX_LINES:
            break
    return lines


def _lines(row: TopRow, node: api.NodeDocument, language: Language, unix_now: float) -> Iterator[str]:
    subject = row.subject
    if isinstance(subject, api.FindingDocument):
        yield from finding_lines(subject, node, language, _PLAIN, unix_now)
        return
    if isinstance(subject, api.GpuDocument):
        yield from _gpu(subject, language, unix_now)
        name = subject.uuid
    elif isinstance(subject, api.ReplicaDocument):
        yield from _replica(subject, language)
        name = subject.replica
    else:
        yield from _node(node, language)
        name = ""
    concerning = [finding for finding in node.findings if not name or _names(finding, name)]
    for finding in concerning[:MAX_FINDINGS]:
        yield from finding_lines(finding, node, language, _PLAIN, unix_now)


def _names(finding: api.FindingDocument, name: str, depth: int = 0) -> bool:
    if name in (finding.subject, finding.replica):
        return True
    return depth < 4 and any(_names(cause, name, depth + 1) for cause in finding.causes[:12])


def _verdict(verdict: api.VerdictDocument, language: Language) -> str:
    if verdict.state is VerdictState.SERVE:
        return ""
    why = printable(verdict.detail or verdict.reason)
    return f"{Text('verdict', '判定').in_(language)} {VERDICT_NAMES[verdict.state].in_(language)}: {why}"


def _condition(subject: api.GpuDocument | api.ReplicaDocument, language: Language) -> Iterator[str]:
    """Yield the verdict on a GPU or replica, and why it is down where the verdict does not say so."""
    verdict, why = _verdict(subject.verdict, language), reason_words(subject.reason, language)
    yield from _joined(verdict, "" if subject.up or why in verdict else why)


def _joined(*parts: str) -> Iterator[str]:
    if line := "  ".join(part for part in parts if part):
        yield line


def _pair(name: Text, value: str, of: str, language: Language) -> str:
    """Return a named value and its limit; "" without the value."""
    if value == values.ABSENT:
        return ""
    return f"{name.in_(language)} {value}" + ("" if of == values.ABSENT else f" / {of}")


def _gpu(gpu: api.GpuDocument, language: Language, unix_now: float) -> Iterator[str]:
    signals = signals_of(gpu)

    def read(name: Text, signal: Signal, unit: str, scale: float = 1.0, of: Signal | None = None) -> str:
        most = values.ABSENT if of is None else values.unit(signals.get(of), unit, scale)
        return _pair(name, values.unit(signals.get(signal), unit, scale), most, language)

    def ratio(name: Text, signal: Signal) -> str:
        return _pair(name, values.percent(signals.get(signal)), values.ABSENT, language)

    yield from _joined(
        f"GPU {printable(gpu.gpu)}", printable(gpu.name), printable(gpu.pci_bus_id), printable(gpu.uuid),
        printable(" ".join(gpu.replicas[:8])),
    )  # fmt: skip
    yield from _condition(gpu, language)
    used, whole = (values.gibibytes(signals.get(signal)) for signal in (Signal.MEMORY_USED, Signal.MEMORY_TOTAL))
    holders = (f"pid {printable(pid)} {values.gibibytes(size)}" for pid, size in list(gpu.processes.items())[:8])
    yield from _joined(_pair(Text("memory", "显存"), used, whole, language), *holders)
    yield from _joined(
        ratio(Text("utilization", "利用率"), Signal.UTILIZATION),
        ratio(Text("SM active", "SM 活跃"), Signal.SM_ACTIVE),
        ratio(Text("tensor active", "Tensor 活跃"), Signal.TENSOR_ACTIVE),
        ratio(Text("DRAM active", "DRAM 活跃"), Signal.DRAM_ACTIVE),
    )
    yield from _joined(
        read(Text("temperature", "温度"), Signal.TEMPERATURE_GPU, "°C", of=Signal.TEMPERATURE_LIMIT_SLOWDOWN),
        read(Text("power", "功耗"), Signal.POWER, "W", of=Signal.POWER_LIMIT),
        read(Text("SM clock", "SM 时钟"), Signal.CLOCK_SM, "MHz", 1e-6, of=Signal.CLOCK_MAX_SM),
        _pair(Text("throttle", "降频"), throttle_reasons(gpu, language) or values.ABSENT, values.ABSENT, language),
    )
    yield from _joined(*(_xid(xid, language, unix_now) for xid in gpu.xids[:8]))


def _xid(xid: api.XidDocument, language: Language, unix_now: float) -> str:
    text = f"XID {printable(xid.xid)} ×{xid.count}"
    if xid.last is None:
        return text
    ago = Text("{} ago", "{}前").in_(language)
    return f"{text} {ago.format(duration(max(0.0, unix_now - xid.last), language))}"


def _replica(replica: api.ReplicaDocument, language: Language) -> Iterator[str]:
    yield from _joined(
        printable(replica.replica), printable(f"{replica.engine} {replica.version}".strip()), printable(replica.model)
    )
    yield from _condition(replica, language)
    for stage in Stage:
        quantiles = [(name, latency(replica, stage, name)) for name in ("0.5", "0.95", "0.99")]
        shown = [f"p{float(name) * 100:g} {values.seconds(value)}" for name, value in quantiles if value is not None]
        name = _STAGES[stage].in_(language) if stage in _STAGES else stage.value.replace("_", " ")
        yield from _joined(*([name, *shown] if shown else []))
    ranks = replica.ranks if len(replica.ranks) > 1 else {}
    for rank, numbers in list(ranks.items())[:64]:
        shown = [
            f"{name.in_(language)} {write(numbers[quantity.value])}"
            for quantity, name, write in _OF_RANK
            if quantity.value in numbers
        ]
        yield from _joined(f"rank {printable(rank)}", *shown)


def _node(node: api.NodeDocument, language: Language) -> Iterator[str]:
    if node.node:
        yield printable(node.node)
    models = sorted({printable(gpu.name) for gpu in node.gpus if gpu.name})[:4]
    driver = printable(node.driver.get("driver_version", ""))
    yield from _joined(
        f"Shardwatch {printable(node.version)}",
        *models,
        Text(f"driver {driver}", f"驱动 {driver}").in_(language) if driver else "",
    )
    yield from _joined(_verdict(node.verdict, language))
    down = [_source(source, node, language) for source in node.sources if not source.up]
    yield from _joined(Text("sources down:", "异常数据源：").in_(language) if down else "", *down[:16])
    for adapter in node.adapters[:MAX_ADAPTERS]:
        yield from _joined(*_adapter(adapter, node, language))
    for gateway in node.gateways[:8]:
        shares = (
            f"{printable(backend.replica or backend.backend)} {values.percent(backend.share)}"
            for backend in gateway.backends[:16]
            if backend.share is not None
        )
        yield from _joined(f"{Text('gateway', '网关').in_(language)} {printable(gateway.gateway)}", *shares)


def _source(source: api.HealthDocument, node: api.NodeDocument, language: Language) -> str:
    """Return a source that does not answer, a GPU by its number, with the reason in words."""
    kind, _, uuid = source.source.partition(":")
    label = next((gpu.gpu for gpu in node.gpus if kind == "gpu" and gpu.uuid == uuid), None)
    name = source.source if label is None else f"GPU {label}"
    why = Text(" ({})", "（{}）").in_(language).format(reason_words(source.reason, language))
    return printable(name) + printable(why)


def _adapter(adapter: api.AdapterDocument, node: api.NodeDocument, language: Language) -> Iterator[str]:
    """Yield a port of an adapter: state, rate, errors, and the GPUs beside it."""
    labels = {gpu.uuid: gpu.gpu for gpu in node.gpus}
    yield f"{Text('adapter', '网络适配器').in_(language)} {printable(adapter.device)}/{printable(adapter.port)}"
    if adapter.up:
        yield TEXTS["up"].in_(language)
    elif adapter.up is not None:
        yield f"{TEXTS['down' if adapter.down else 'unused'].in_(language)} {printable(adapter.physical_state)}"
    if adapter.rate is not None:
        yield values.gigabits(adapter.rate)
    if adapter.errors:
        yield f"{TEXTS['errors_count'].in_(language)} {values.count(sum(adapter.errors.values()))}"
    if gpus := values.ranges(labels[uuid] for uuid in adapter.gpus if uuid in labels):
        yield f"GPU {gpus}"
