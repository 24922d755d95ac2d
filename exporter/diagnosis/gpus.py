"""Findings about GPUs: lost, stuck, failing memory, held clocks, links, memory that runs out, stragglers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct

from exporter.diagnosis import thresholds as limit
from exporter.diagnosis.view import View, measured, median, signal
from exporter.diagnosis.xid_meanings import meaning
from exporter.model import CardState, Cause, Signal, Straggler
from exporter.model.finding import Evidence, Finding, Severity, Subject, SubjectKind
from exporter.model.text import Text
from exporter.model.xid_catalog import Class, Xid, describe

GIB = 2**30
_MHZ = 1e6


class _Words(Struct, frozen=True, kw_only=True):
    """What is said of a GPU that is out of service, by the reason of its state."""

    id: str
    summary: Text
    actions: tuple[Text, ...]


_DRAIN_NODE = Text(
    "Drain the node: cordon it, end the processes on its GPUs.", "排空节点：禁止调度，结束其 GPU 上的进程。"
)
_DRAIN = Text(
    "Drain the GPU: let its replica finish, then end its processes.", "排空该 GPU：等副本处理完后结束其进程。"
)
_RESET = Text("Run nvidia-smi --gpu-reset -i GPU.", "执行 nvidia-smi --gpu-reset -i GPU。")
_OUT_OF_SERVICE = {
    "lost": _Words(
        id="GpuLost",
        summary=Text(" is lost", " 掉卡"),
        actions=(
            _DRAIN_NODE,
            Text("Reboot the node; power-cycle it if the GPU stays lost.", "重启节点；若 GPU 仍缺失则断电冷启动。"),
        ),
    ),
    "reset_required": _Words(
        id="GpuRecoveryNeeded", summary=Text(" needs a reset", " 需要复位"), actions=(_DRAIN, _RESET)
    ),
    "hung": _Words(
        id="SourceHung",
        summary=Text(": a driver call does not return", "：驱动调用没有返回"),
        actions=(
            Text("Check the kernel log: dmesg -T | grep -i nvrm.", "查看内核日志：dmesg -T | grep -i nvrm。"),
            Text(
                "If the call does not return within minutes, drain the node and reboot it.",
                "若数分钟内仍未返回，排空节点并重启。",
            ),
        ),
    ),
}
_RESETS = {
    Class.RESET_CARD: _Words(
        id="GpuXidResetGpu",
        summary=Text(" needs a reset after XID ", " 需要复位，因为 XID "),
        actions=(_DRAIN, _RESET),
    ),
    Class.RESET_NODE: _Words(
        id="GpuXidResetNode",
        summary=Text(" needs a reboot of the node after XID ", " 需要重启节点，因为 XID "),
        actions=(
            _DRAIN_NODE,
            Text("Reboot the node: a reset of the GPU will not do.", "重启节点：仅复位 GPU 无效。"),
        ),
    ),
}


def findings(view: View) -> Iterator[Finding]:
    """Yield what is wrong with each GPU of the snapshot."""
    for card in view.snapshot.cards:
        if card.facts.instance is None or card.reading is not None:
            yield from _health(view, card)
        if card.reading is not None:
            yield from _memory_errors(view, card)
            yield from _links(view, card)
            yield from _straggler(view, card)
            yield from _clocks(view, card)
    for replica in view.replicas:
        yield from _memory(view, replica)


def _owner(view: View, card: CardState) -> str:
    return next(iter(view.replicas_of.get(card.facts.uuid, ())), "")


def _where(card: CardState) -> tuple[Evidence, ...]:
    return (Evidence("pci_bus_id", card.facts.pci_bus_id),) if card.facts.pci_bus_id else ()


def _health(view: View, card: CardState) -> Iterator[Finding]:
    xids = view.recent_xids(card.facts.uuid, limit.XID_RECENT_SECONDS)
    known = [describe(events.xid) for events in xids if events.xid is not None]
    known.sort(key=lambda xid: xid.kind is not Class.RESET_NODE)  # stable: the gravest, then the newest first
    evidence = (*_where(card), *(Evidence("xid", _xid(xid)) for xid in known))
    if card.status.reason in _OUT_OF_SERVICE:
        yield _out_of_service(view, card, known, evidence)
    elif card.reading is not None:
        yield from _reset_wanted(view, card, known, evidence)


def _xid(xid: Xid) -> Text:
    means = meaning(xid.code)
    return Text(f"{xid.code} ({means.en})", f"{xid.code}（{means.zh}）")


def _out_of_service(view: View, card: CardState, known: Sequence[Xid], evidence: tuple[Evidence, ...]) -> Finding:
    """Return the finding of a GPU that answers no more, or with errors only."""
    words, gpu, owner = _OUT_OF_SERVICE[card.status.reason], view.gpu(card), _owner(view, card)
    actions = words.actions
    if card.status.reason == "lost" and any(xid.kind is Class.RESET_NODE for xid in known):
        actions = _RESETS[Class.RESET_NODE].actions
    used = Text(f"; {owner} runs on it", f"；{owner} 正在使用它") if owner else Text("", "")
    return Finding(
        id=words.id,
        severity=Severity.CRITICAL if owner and words.id != "SourceHung" else Severity.WARNING,
        subject=gpu,
        summary=Text(gpu.label, gpu.label) + words.summary + used,
        evidence=evidence,
        cause=Text("XID ", "XID ") + _xid(known[0]) if known else None,
        actions=actions,
        relief=view.relief(owner),
        replica=owner,
    )


def _reset_wanted(
    view: View, card: CardState, known: Sequence[Xid], evidence: tuple[Evidence, ...]
) -> Iterator[Finding]:
    """Yield one finding for the newest XID after which a GPU that still answers needs a reset."""
    gpu, owner = view.gpu(card), _owner(view, card)
    for xid in known:
        if xid.kind in _RESETS:
            words = _RESETS[xid.kind]
            yield Finding(
                id=words.id,
                severity=Severity.CRITICAL if xid.kind is Class.RESET_NODE else Severity.WARNING,
                subject=gpu,
                summary=Text(gpu.label, gpu.label) + words.summary + _xid(xid),
                evidence=evidence,
                actions=words.actions,
                relief=view.relief(owner),
                replica=owner,
            )
            return


def _memory_errors(view: View, card: CardState) -> Iterator[Finding]:
    gpu, owner = view.gpu(card), _owner(view, card)
    failed = signal(card, Signal.ROW_REMAP_FAILED)
    pending = signal(card, Signal.ROW_REMAP_PENDING)
    if failed:
        yield Finding(
            id="GpuRowRemapFailed",
            severity=Severity.WARNING,
            subject=gpu,
            summary=Text(
                f"{gpu.label} has a defective memory row that it cannot replace",
                f"{gpu.label} 有无法替换的损坏显存行",
            ),
            evidence=_where(card),
            actions=(_DRAIN, Text("Have the GPU replaced.", "更换该 GPU。")),
            replica=owner,
        )
    elif pending:
        yield Finding(
            id="GpuRowRemapPending",
            severity=Severity.WARNING,
            subject=gpu,
            summary=Text(
                f"{gpu.label} replaces a defective memory row at its next reset",
                f"{gpu.label} 将在下次复位时替换损坏的显存行",
            ),
            evidence=_where(card),
            actions=(Text("Reset the GPU at the next opportunity.", "择机复位该 GPU。"),),
            replica=owner,
        )


def _links(view: View, card: CardState) -> Iterator[Finding]:
    health = view.snapshot.topology.links.get(card.facts.uuid)
    if health is None:
        return
    gpu, owner = view.gpu(card), _owner(view, card)
    if health.nvlinks_down:
        yield Finding(
            id="GpuNvlinkDown",
            severity=Severity.WARNING,
            subject=gpu,
            summary=Text(
                f"{gpu.label}: {health.nvlinks_down} NVLink{'s are' if health.nvlinks_down > 1 else ' is'} down",
                f"{gpu.label}：{health.nvlinks_down} 条 NVLink 断开",
            ),
            evidence=(Evidence("nvlinks_down", float(health.nvlinks_down)), *_where(card)),
            actions=(
                Text(
                    "Check the kernel log for XID 74 and the fabric manager (systemctl status nvidia-fabricmanager).",
                    "查看内核日志中的 XID 74 与 fabric manager（systemctl status nvidia-fabricmanager）。",
                ),
                _DRAIN,
                _RESET,
            ),
            replica=owner,
        )
    if health.pcie_degraded:
        generation, width = signal(card, Signal.PCIE_LINK_GENERATION), signal(card, Signal.PCIE_LINK_WIDTH)
        best = signal(card, Signal.PCIE_LINK_GENERATION_MAX), signal(card, Signal.PCIE_LINK_WIDTH_MAX)
        known = None not in (generation, width, *best)
        actual = f" (gen {generation:g} x{width:g} of gen {best[0]:g} x{best[1]:g})" if known else ""
        yield Finding(
            id="GpuPcieDowngraded",
            severity=Severity.WARNING,
            subject=gpu,
            summary=Text(
                f"{gpu.label}: PCIe link runs below its best under load{actual}",
                f"{gpu.label}：负载下 PCIe 链路低于最佳速率{actual}",
            ),
            evidence=(*measured("pcie_generation", generation), *measured("pcie_width", width), *_where(card)),
            actions=(
                Text("Check the PCIe errors (gpu_pcie_replays_total).", "检查 PCIe 错误（gpu_pcie_replays_total）。"),
                _RESEAT,
            ),
            replica=owner,
        )
    for problem in health.fabric_problems:
        yield Finding(
            id="GpuFabricProblem",
            severity=Severity.WARNING,
            subject=gpu,
            summary=Text(f"{gpu.label}: NVSwitch fabric: {problem}", f"{gpu.label}：NVSwitch fabric：{problem}"),
            evidence=_where(card),
            actions=(Text("Read the fabric manager's log and restart it.", "查看 fabric manager 日志并重启它。"),),
            replica=owner,
        )
        break


CAUSES = {
    Cause.THERMAL: Text("thermal throttling", "过热降频"),
    Cause.POWER_CAP: Text("power cap", "功耗限制"),
    Cause.POWER_BRAKE: Text("power brake", "供电制动"),
    Cause.CLOCK_LOCK: Text("clocks locked below its peers'", "时钟被锁定在较低值"),
    Cause.OTHER_TENANT: Text("another tenant uses it", "被其他租户占用"),
    Cause.PCIE: Text("degraded PCIe link", "PCIe 链路降级"),
    Cause.NVLINK: Text("NVLink down", "NVLink 断开"),
    Cause.MEMORY_PRESSURE: Text("memory nearly full", "显存将满"),
    Cause.UNKNOWN: Text("cause unknown", "原因未知"),
}
_FAN = Text("Check fan, airflow and inlet temperature.", "检查风扇、风道与进风温度。")
_POWER = Text("Check the power supplies of the chassis.", "检查机箱电源。")
_RESEAT = Text("Reseat the GPU or its riser.", "重新插拔 GPU 或转接卡。")
_OTHER_PROCESS = Text(
    "Find the process that does not belong to the replica (nvidia-smi) and end or move it.",
    "找到不属于该副本的进程（nvidia-smi），结束或迁走它。",
)
_SOLUTIONS = {
    Cause.THERMAL: (_FAN,),
    Cause.POWER_CAP: (
        Text(
            "Compare the power limits of the group (nvidia-smi -q -d POWER) and set them equal (nvidia-smi -pl).",
            "对比同组 GPU 的功耗上限（nvidia-smi -q -d POWER）并设为一致（nvidia-smi -pl）。",
        ),
    ),
    Cause.POWER_BRAKE: (_POWER,),
    Cause.CLOCK_LOCK: (
        Text("Reset locked clocks: nvidia-smi --reset-gpu-clocks.", "解除锁频：nvidia-smi --reset-gpu-clocks。"),
    ),
    Cause.OTHER_TENANT: (_OTHER_PROCESS,),
    Cause.PCIE: (_RESEAT,),
    Cause.NVLINK: (_DRAIN, _RESET),
    Cause.MEMORY_PRESSURE: (_OTHER_PROCESS,),
    Cause.UNKNOWN: (
        Text(
            "Compare clocks, power and processes with those of its peers: nvidia-smi -q -i GPU.",
            "与同组 GPU 对比时钟、功耗与进程：nvidia-smi -q -i GPU。",
        ),
    ),
}


def _straggler(view: View, card: CardState) -> Iterator[Finding]:
    found = view.stragglers.get(card.facts.uuid)
    if found is None or (found.cause is Cause.MEMORY_PRESSURE and found.slowdown is None):
        return  # a full GPU is a finding of its own; it slows the group only where that is measured
    gpu = view.gpu(card)
    word = CAUSES[found.cause]
    slower = f", {found.slowdown:.2f}x slower than its group" if found.slowdown is not None else ""
    slower_zh = f"，比同组慢 {found.slowdown:.2f} 倍" if found.slowdown is not None else ""
    yield Finding(
        id="GpuStraggler",
        severity=Severity.WARNING,
        subject=gpu,
        summary=Text(
            f"{found.replica} waits for {gpu.label}: {word.en}{slower}",
            f"{found.replica} 在等待 {gpu.label}：{word.zh}{slower_zh}",
        ),
        evidence=(*measured("slowdown", found.slowdown, "ratio"), *_conditions(view, card, found), *_where(card)),
        cause=word,
        actions=_SOLUTIONS[found.cause],
        relief=Text(f"Move load off {found.replica}.", f"减少发往 {found.replica} 的流量。"),
        replica=found.replica,
    )


def _conditions(view: View, card: CardState, found: Straggler) -> Iterator[Evidence]:
    peers = [peer for peer in view.gpus_of(found.replica) if peer is not card]
    for name, source, unit in (
        ("temperature", Signal.TEMPERATURE_GPU, "celsius"),
        ("temperature_margin", Signal.TEMPERATURE_MARGIN, "celsius"),
        ("sm_clock", Signal.CLOCK_SM, "hertz"),
        ("power", Signal.POWER, "watts"),
    ):
        yield from measured(name, signal(card, source), unit)
        others = [value for peer in peers if (value := signal(peer, source)) is not None]
        if others:
            yield Evidence(f"{name}_of_peers", median(others), unit)


def _clocks(view: View, card: CardState) -> Iterator[Finding]:
    assert card.reading is not None
    busy = (signal(card, Signal.UTILIZATION) or 0.0) >= limit.BUSY_UTILIZATION
    if not busy:
        return
    events, gpu, owner = card.reading.clock_events, view.gpu(card), _owner(view, card)
    clock, best = signal(card, Signal.CLOCK_SM), signal(card, Signal.CLOCK_MAX_SM)
    evidence = (
        *measured("temperature", signal(card, Signal.TEMPERATURE_GPU), "celsius"),
        *measured("temperature_margin", margin := signal(card, Signal.TEMPERATURE_MARGIN), "celsius"),
        *measured("sm_clock", clock, "hertz"),
        *measured("sm_clock_max", best, "hertz"),
        *_where(card),
    )
    held = f" ({clock / _MHZ:.0f} of {best / _MHZ:.0f} MHz)" if clock is not None and best else ""
    if events.get("hw_power_brake_slowdown"):
        yield Finding(
            id="GpuPowerBrake",
            severity=Severity.WARNING,
            subject=gpu,
            summary=Text(f"{gpu.label} is under power brake{held}", f"{gpu.label} 处于供电制动状态{held}"),
            evidence=evidence,
            actions=(_POWER,),
            replica=owner,
        )
    if events.get("sw_thermal_slowdown") or events.get("hw_thermal_slowdown"):
        yield Finding(
            id="GpuThermalThrottling",
            severity=Severity.WARNING,
            subject=gpu,
            summary=Text(f"{gpu.label} is thermally throttled{held}", f"{gpu.label} 因过热降频{held}"),
            evidence=evidence,
            actions=(_FAN,),
            replica=owner,
        )
    elif margin is not None and margin < limit.TEMPERATURE_MARGIN_CELSIUS:
        yield Finding(
            id="GpuHot",
            severity=Severity.WARNING,
            subject=gpu,
            summary=Text(
                f"{gpu.label} is {margin:.0f} °C below its slowdown temperature",
                f"{gpu.label} 距降频温度仅 {margin:.0f} °C",
            ),
            evidence=evidence,
            actions=(_FAN,),
            replica=owner,
        )


def _used(card: CardState) -> float | None:
    return signal(card, Signal.MEMORY_USED)


def _memory(view: View, replica: str) -> Iterator[Finding]:
    """Evaluate memory inside one group: shards are equal, so more on one GPU is another process or a leak."""
    gpus = [card for card in view.gpus_of(replica) if _used(card) is not None]
    for card in gpus:
        total, used = signal(card, Signal.MEMORY_TOTAL), _used(card)
        assert used is not None
        peers = [value for peer in gpus if peer is not card and (value := _used(peer)) is not None]
        share = used / total if total else None
        usual = median(peers) if peers else None
        gpu = view.gpu(card)
        uneven = usual is not None and used > limit.MEMORY_SKEW * (used + usual * len(peers)) / (len(peers) + 1)
        full = share is not None and share > limit.GPU_MEMORY_USED
        if not uneven and not (full and usual is not None and used > 1.03 * usual):
            continue
        assert usual is not None
        held = {process.pid: process.memory for process in (card.reading.processes or ())} if card.reading else {}
        largest = max((memory or 0.0 for memory in held.values()), default=0.0)
        percent = f": {share:.0%} used" if share is not None else ""
        percent_zh = f"：已用 {share:.0%}" if share is not None else ""
        yield Finding(
            id="GpuMemoryFull" if full else "GroupMemoryUneven",
            severity=Severity.WARNING,
            subject=gpu,
            summary=Text(
                f"{gpu.label} holds {(used - usual) / GIB:.1f} GiB more than its peers in {replica}{percent}",
                f"{gpu.label} 比 {replica} 的同组 GPU 多占 {(used - usual) / GIB:.1f} GiB{percent_zh}",
            ),
            evidence=(
                Evidence("memory_used", used, "bytes"),
                Evidence("memory_used_of_peers", usual, "bytes"),
                *measured("largest_process", largest or None, "bytes"),
                *measured("processes", float(len(held)) or None),
                *_where(card),
            ),
            actions=(
                _OTHER_PROCESS,
                Text(
                    "If there is none, a worker leaks: restart the replica with a lower --gpu-memory-utilization.",
                    "若没有，则是某个 worker 泄漏：调低 --gpu-memory-utilization 并重启副本。",
                ),
            ),
            replica=replica,
        )


def node_findings(view: View) -> Iterator[Finding]:
    """Yield what is wrong with reading GPUs at all."""
    status = next((status for status in view.snapshot.sources if status.source == "driver"), None)
    if status is None or status.up or status.reason == "starting":
        return
    node = Subject(SubjectKind.NODE, "", "node")
    if status.reason == "released":
        yield Finding(
            id="GpusReleased",
            severity=Severity.INFO,
            subject=node,
            summary=Text("The GPUs are released (SIGUSR1) and not monitored", "GPU 已释放（SIGUSR1），未被监控"),
            actions=(Text("Send SIGUSR2 to re-acquire them.", "发送 SIGUSR2 以重新接管。"),),
        )
    else:
        yield Finding(
            id="GpuDriverUnreadable",
            severity=Severity.WARNING,
            subject=node,
            summary=Text(f"The GPU driver cannot be read: {status.reason}", f"无法读取 GPU 驱动：{status.reason}"),
            evidence=(Evidence("reason", status.reason),),
            actions=(
                Text(
                    "Run nvidia-smi on the node; without GPUs set gpu: {enabled: false}.",
                    "在节点上运行 nvidia-smi；无 GPU 时设置 gpu: {enabled: false}。",
                ),
            ),
        )
