"""Findings about GPUs that are out of service or damaged: lost, stuck, XIDs, memory rows, links."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct

from exporter.diagnosis import gpu_actions as action
from exporter.diagnosis import thresholds as limit
from exporter.diagnosis.view import View, location, measured, signal
from exporter.diagnosis.xid_meanings import meaning
from exporter.model import CardState, Signal
from exporter.model.finding import Evidence, Finding, Severity, Subject, SubjectKind
from exporter.model.text import Text
from exporter.model.xid_catalog import Class, Xid, describe


class _Words(Struct, frozen=True, kw_only=True):
    """What is said of a GPU that is out of service, by the reason of its state."""

    id: str
    summary: Text
    actions: tuple[Text, ...]


_OUT_OF_SERVICE = {
    "lost": _Words(
        id="GpuLost",
        summary=Text(" is lost", " 掉卡"),
        actions=(
            action.DRAIN_NODE,
            Text("Reboot the node; power-cycle it if the GPU stays lost.", "重启节点；若 GPU 仍缺失则断电冷启动。"),
        ),
    ),
    "reset_required": _Words(
        id="GpuRecoveryNeeded", summary=Text(" needs a reset", " 需要复位"), actions=(action.DRAIN, action.RESET)
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
        actions=(action.DRAIN, action.RESET),
    ),
    Class.RESET_NODE: _Words(
        id="GpuXidResetNode",
        summary=Text(" needs a reboot of the node after XID ", " 需要重启节点，因为 XID "),
        actions=(
            action.DRAIN_NODE,
            Text("Reboot the node: a reset of the GPU will not do.", "重启节点：仅复位 GPU 无效。"),
        ),
    ),
}


def findings(view: View) -> Iterator[Finding]:
    """Yield the faults of each GPU of the snapshot."""
    for card in view.snapshot.cards:
        if card.facts.instance is None or card.reading is not None:
            yield from _state(view, card)
        if card.reading is not None:
            yield from _memory_errors(view, card)
            yield from _links(view, card)


def _state(view: View, card: CardState) -> Iterator[Finding]:
    xids = view.recent_xids(card.facts.uuid, limit.XID_RECENT_SECONDS)
    known = [describe(events.xid) for events in xids if events.xid is not None]
    known.sort(key=lambda xid: xid.kind is not Class.RESET_NODE)  # stable: the gravest, then the newest first
    evidence = (*location(card), *(Evidence("xid", _xid(xid)) for xid in known))
    if card.status.reason in _OUT_OF_SERVICE:
        yield _out_of_service(view, card, known, evidence)
    elif card.reading is not None:
        yield from _reset_wanted(view, card, known, evidence)


def _xid(xid: Xid) -> Text:
    means = meaning(xid.code)
    return Text(f"{xid.code} ({means.en})", f"{xid.code}（{means.zh}）")


def _out_of_service(view: View, card: CardState, known: Sequence[Xid], evidence: tuple[Evidence, ...]) -> Finding:
    """Return the finding of a GPU that answers no more, or with errors only."""
    words, gpu, owner = _OUT_OF_SERVICE[card.status.reason], view.gpu(card), view.owner(card)
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
    gpu, owner = view.gpu(card), view.owner(card)
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
    gpu, owner = view.gpu(card), view.owner(card)
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
            evidence=location(card),
            actions=(action.DRAIN, Text("Have the GPU replaced.", "更换该 GPU。")),
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
            evidence=location(card),
            actions=(Text("Reset the GPU at the next opportunity.", "择机复位该 GPU。"),),
            replica=owner,
        )


def _links(view: View, card: CardState) -> Iterator[Finding]:
    health = view.snapshot.topology.links.get(card.facts.uuid)
    if health is None:
        return
    gpu, owner = view.gpu(card), view.owner(card)
    if health.nvlinks_down:
        yield Finding(
            id="GpuNvlinkDown",
            severity=Severity.WARNING,
            subject=gpu,
            summary=Text(
                f"{gpu.label}: {health.nvlinks_down} NVLink{'s are' if health.nvlinks_down > 1 else ' is'} down",
                f"{gpu.label}：{health.nvlinks_down} 条 NVLink 断开",
            ),
            evidence=(Evidence("nvlinks_down", float(health.nvlinks_down)), *location(card)),
            actions=(
                Text(
                    "Check the kernel log for XID 74 and the fabric manager (systemctl status nvidia-fabricmanager).",
                    "查看内核日志中的 XID 74 与 fabric manager（systemctl status nvidia-fabricmanager）。",
                ),
                action.DRAIN,
                action.RESET,
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
            evidence=(*measured("pcie_generation", generation), *measured("pcie_width", width), *location(card)),
            actions=(
                Text("Check the PCIe errors (gpu_pcie_replays_total).", "检查 PCIe 错误（gpu_pcie_replays_total）。"),
                action.RESEAT,
            ),
            replica=owner,
        )
    for problem in health.fabric_problems:
        yield Finding(
            id="GpuFabricProblem",
            severity=Severity.WARNING,
            subject=gpu,
            summary=Text(f"{gpu.label}: NVSwitch fabric: {problem}", f"{gpu.label}：NVSwitch fabric：{problem}"),
            evidence=location(card),
            actions=(Text("Read the fabric manager's log and restart it.", "查看 fabric manager 日志并重启它。"),),
            replica=owner,
        )
        break


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
