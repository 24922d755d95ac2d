"""Findings about GPUs: lost, stuck, failing memory, held clocks, links, memory that runs out, stragglers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct

from exporter.diagnosis import thresholds as limit
from exporter.diagnosis.view import View, measured, median, signal
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
    action: Text


_OUT_OF_SERVICE = {
    "lost": _Words(
        id="GpuLost",
        summary=Text(" is lost", " 掉卡"),
        action=Text("Drain the node and reboot it.", "排空节点并重启。"),
    ),
    "reset_required": _Words(
        id="GpuRecoveryNeeded",
        summary=Text(" needs a reset", " 需要复位"),
        action=Text(
            "End the processes on it and run nvidia-smi --gpu-reset.", "结束其上的进程并执行 nvidia-smi --gpu-reset。"
        ),
    ),
    "hung": _Words(
        id="SourceHung",
        summary=Text(": a driver call does not return", "：驱动调用没有返回"),
        action=Text(
            "Check the kernel log; if the call does not return within minutes, drain the node and reboot it.",
            "查看内核日志；若数分钟内仍未返回，请排空节点并重启。",
        ),
    ),
}
_RESETS = {
    Class.RESET_CARD: (
        "GpuXidResetGpu",
        Severity.WARNING,
        Text("Drain it, then reset the GPU.", "先排空，然后复位显卡。"),
    ),
    Class.RESET_NODE: (
        "GpuXidResetNode",
        Severity.CRITICAL,
        Text("Drain it, then reboot the node.", "先排空，然后重启节点。"),
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
    evidence = (*_where(card), *(Evidence("xid", f"{xid.code} ({xid.meaning})") for xid in known))
    if card.status.reason in _OUT_OF_SERVICE:
        yield _out_of_service(view, card, known, evidence)
    elif card.reading is not None:
        yield from _reset_wanted(view, card, known, evidence)


def _out_of_service(view: View, card: CardState, known: Sequence[Xid], evidence: tuple[Evidence, ...]) -> Finding:
    """Return the finding of a GPU that answers no more, or with errors only."""
    words, gpu, owner = _OUT_OF_SERVICE[card.status.reason], view.gpu(card), _owner(view, card)
    action = words.action
    if card.status.reason == "lost" and any(xid.kind is Class.RESET_NODE for xid in known):
        action = Text(
            "Drain the node and reboot it: a reset will not do after this XID.",
            "排空节点并重启：出现该 XID 后仅复位显卡无效。",
        )
    used = Text(f"; {owner} runs on it", f"；{owner} 正在使用它") if owner else Text("", "")
    return Finding(
        id=words.id,
        severity=Severity.CRITICAL if owner and words.id != "SourceHung" else Severity.WARNING,
        subject=gpu,
        summary=Text(gpu.label + words.summary.en, gpu.label + words.summary.zh) + used,
        evidence=evidence,
        cause=Text(f"XID {known[0].code}: {known[0].meaning}", f"XID {known[0].code}：{known[0].meaning}")
        if known
        else None,
        action=action,
        replica=owner,
    )


def _reset_wanted(
    view: View, card: CardState, known: Sequence[Xid], evidence: tuple[Evidence, ...]
) -> Iterator[Finding]:
    """Yield one finding for the newest XID after which a GPU that still answers needs a reset."""
    gpu = view.gpu(card)
    for xid in known:
        if xid.kind in _RESETS:
            name, severity, action = _RESETS[xid.kind]
            yield Finding(
                id=name,
                severity=severity,
                subject=gpu,
                summary=Text(
                    f"{gpu.label} reported XID {xid.code}: {xid.meaning}",
                    f"{gpu.label} 报告了 XID {xid.code}：{xid.meaning}",
                ),
                evidence=evidence,
                action=action,
                replica=_owner(view, card),
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
            action=Text("Drain the GPU and have it replaced.", "排空该显卡并更换。"),
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
            action=Text("Reset the GPU at the next opportunity.", "择机复位该显卡。"),
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
            action=Text(
                "Look for XID 74 and at the fabric manager; reset the GPU when it is drained.",
                "查看 XID 74 与 fabric manager；排空后复位显卡。",
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
            action=Text(
                "Reseat the GPU or its riser; look at the PCIe errors.", "重新插拔显卡或转接卡；检查 PCIe 错误。"
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
            action=Text("Look at the fabric manager's log and restart it.", "查看并重启 fabric manager。"),
            replica=owner,
        )
        break


_WORDS = {
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
_ACTIONS = {
    Cause.THERMAL: Text(
        "Check fan and airflow; until then move load off {replica}.", "检查风扇与风道；在此之前将流量移出 {replica}。"
    ),
    Cause.POWER_CAP: Text(
        "Compare the power limits of the group (nvidia-smi -q -d POWER).",
        "对比同组显卡的功耗上限（nvidia-smi -q -d POWER）。",
    ),
    Cause.POWER_BRAKE: Text("Check the power supplies of the chassis.", "检查机箱电源。"),
    Cause.CLOCK_LOCK: Text(
        "Reset locked clocks: nvidia-smi --reset-gpu-clocks.", "解除锁频：nvidia-smi --reset-gpu-clocks。"
    ),
    Cause.OTHER_TENANT: Text(
        "Find the other process (nvidia-smi) and move it.", "找到其他进程（nvidia-smi）并迁走。"
    ),
    Cause.PCIE: Text("Reseat the GPU or its riser.", "重新插拔显卡或转接卡。"),
    Cause.NVLINK: Text("Drain {replica} and reset the GPU.", "排空 {replica} 并复位该显卡。"),
    Cause.MEMORY_PRESSURE: Text("Find whose bytes fill it.", "查明是谁占满了显存。"),
    Cause.UNKNOWN: Text("Compare it with its peers on the Node dashboard.", "在节点仪表板上与同组显卡对比。"),
}


def _straggler(view: View, card: CardState) -> Iterator[Finding]:
    found = view.stragglers.get(card.facts.uuid)
    if found is None:
        return
    gpu = view.gpu(card)
    word, action = _WORDS[found.cause], _ACTIONS[found.cause]
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
        action=Text(action.en.format(replica=found.replica), action.zh.format(replica=found.replica)),
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
            action=Text("Check the power supplies of the chassis.", "检查机箱电源。"),
            replica=owner,
        )
    if events.get("sw_thermal_slowdown") or events.get("hw_thermal_slowdown"):
        yield Finding(
            id="GpuThermalThrottling",
            severity=Severity.WARNING,
            subject=gpu,
            summary=Text(f"{gpu.label} is thermally throttled{held}", f"{gpu.label} 因过热降频{held}"),
            evidence=evidence,
            action=Text("Check fan, airflow and inlet temperature.", "检查风扇、风道与进风温度。"),
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
            action=Text("Check fan, airflow and inlet temperature.", "检查风扇、风道与进风温度。"),
            replica=owner,
        )


def _used(card: CardState) -> float | None:
    return signal(card, Signal.MEMORY_USED)


def _memory(view: View, replica: str) -> Iterator[Finding]:
    """Judge memory inside one group: shards are equal, so more on one GPU is another process or a leak."""
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
                f"{gpu.label} 比 {replica} 的同组显卡多占 {(used - usual) / GIB:.1f} GiB{percent_zh}",
            ),
            evidence=(
                Evidence("memory_used", used, "bytes"),
                Evidence("memory_used_of_peers", usual, "bytes"),
                *measured("largest_process", largest or None, "bytes"),
                Evidence("processes", float(len(held))),
                *_where(card),
            ),
            action=Text(
                "Look for another process on it, then for a leak in one worker; lower --gpu-memory-utilization.",
                "检查是否有其他进程，再检查某个 worker 是否泄漏；调低 --gpu-memory-utilization。",
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
            summary=Text("The GPUs are released (SIGUSR1) and not monitored", "显卡已释放（SIGUSR1），未被监控"),
            action=Text("Send SIGUSR2 to re-acquire them.", "发送 SIGUSR2 以重新接管。"),
        )
    else:
        yield Finding(
            id="GpuDriverUnreadable",
            severity=Severity.WARNING,
            subject=node,
            summary=Text(f"The GPU driver cannot be read: {status.reason}", f"无法读取 GPU 驱动：{status.reason}"),
            evidence=(Evidence("reason", status.reason),),
            action=Text(
                "Run nvidia-smi on the node; without GPUs set gpu: {enabled: false}.",
                "在节点上运行 nvidia-smi；无 GPU 时设置 gpu: {enabled: false}。",
            ),
        )
