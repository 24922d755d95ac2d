"""Findings about GPUs that are out of service or damaged: lost, stuck, XIDs, memory rows, links."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct

from exporter.diagnosis import gpu_actions as action
from exporter.diagnosis import thresholds as limit
from exporter.diagnosis.view import View, location, measured, signal
from exporter.diagnosis.xid_meanings import meaning
from exporter.model import CardState, Signal
from exporter.model.card import RECOVERY_ACTIONS
from exporter.model.finding import Evidence, Finding, Severity, Subject, SubjectKind
from exporter.model.gpu_page import EXPORTER_DOWN
from exporter.model.sxid import FATAL_SEVERITY
from exporter.model.text import Text
from exporter.model.xid_catalog import Class, Xid, describe


class _Words(Struct, frozen=True, kw_only=True):
    """What is said of a GPU that is out of service, by the reason of its state."""

    id: str
    summary: Text
    actions: tuple[Text, ...]


_CERTAIN = frozenset({"lost", "reset_required"})
_KERNEL_LOG = Text("Check the kernel log: dmesg -T | grep -i nvrm.", "查看内核日志：dmesg -T | grep -i nvrm。")
_REBOOT_IF_HUNG = Text(
    "If the call does not return within minutes, drain the node and reboot it.",
    "若数分钟内仍未返回，排空节点并重启。",
)
_OUT_OF_SERVICE = {
    "lost": _Words(
        id="GpuLost",
        summary=Text(" is lost", "掉卡"),
        actions=(
            action.DRAIN_NODE,
            Text("Reboot the node; power-cycle it if the GPU stays lost.", "重启节点；若 GPU 仍缺失则断电冷启动。"),
        ),
    ),
    "reset_required": _Words(
        id="GpuLost",
        summary=Text(" answers no more until it is reset", "在复位之前无应答"),
        actions=(action.DRAIN, action.RESET),
    ),
    "hung": _Words(
        id="SourceHung",
        summary=Text(": a driver call does not return", "：驱动调用没有返回"),
        actions=(_KERNEL_LOG, _REBOOT_IF_HUNG),
    ),
}
_UNANSWERED = _Words(id="GpuLost", summary=Text(" does not answer", "无应答"), actions=(_KERNEL_LOG, _REBOOT_IF_HUNG))
_BY_XID = {
    Class.RESET_CARD: _Words(
        id="GpuXidResetGpu",
        summary=Text(" needs a reset after XID ", "需要复位，因为 XID "),
        actions=(action.DRAIN, action.RESET),
    ),
    Class.INSPECT: _Words(
        id="GpuXidInspect",
        summary=Text(" needs an inspection after XID ", "需要人工检查，因为 XID "),
        actions=(
            Text(
                "Follow the recommended action; the sub-code is in the kernel log (dmesg | grep -i xid).",
                "按建议操作处理；子代码见内核日志（dmesg | grep -i xid）。",
            ),
        ),
    ),
    Class.APPLICATION: _Words(
        id="GpuXidApplication",
        summary=Text(" ended a process with XID ", "终止了一个进程，XID "),
        actions=(
            Text(
                "Read the engine's log at that time and report it with the engine's version; the GPU itself is "
                "healthy.",
                "查看当时的引擎日志，连同引擎版本一并上报；该卡本身正常。",
            ),
        ),
    ),
    Class.RESET_NODE: _Words(
        id="GpuXidResetNode",
        summary=Text(" needs a reboot of the node after XID ", "需要重启节点，因为 XID "),
        actions=(
            action.DRAIN_NODE,
            Text("Reboot the node: a reset of the GPU will not do.", "重启节点：仅复位 GPU 无效。"),
        ),
    ),
}


def findings(view: View) -> Iterator[Finding]:
    """Yield the faults of each GPU of the snapshot."""
    for card in view.snapshot.cards:
        for finding in _of_gpu(view, card):
            yield action.with_index(finding, str(card.facts.index))


def _of_gpu(view: View, card: CardState) -> Iterator[Finding]:
    if card.facts.instance is None or card.reading is not None:
        yield from _state(view, card)
    if card.reading is not None:
        yield from _memory_errors(view, card)
        yield from _links(view, card)


def _state(view: View, card: CardState) -> Iterator[Finding]:
    xids = view.recent_xids(card.facts.uuid, limit.XID_RECENT_SECONDS)
    known = [describe(events.xid) for events in xids if events.xid is not None]
    known.sort(key=lambda xid: xid.kind is not Class.RESET_NODE)  # stable: the gravest, then the newest first
    evidence = (*location(card), *(item for xid in known for item in _xid_evidence(xid)))
    if card.reading is not None:
        yield from _recovery(view, card, evidence)
        yield from _after_xid(view, card, known, evidence)
        return
    words = _out_of_service(view, card)
    if words is not None:
        yield _unanswered(view, card, words, known, evidence)


def _out_of_service(view: View, card: CardState) -> _Words | None:
    """Return what is said of a GPU without a reading; None while that may be normal."""
    reason, read_at = card.status.reason, card.last_read_at
    if reason in _CERTAIN:
        return _OUT_OF_SERVICE[reason]
    if reason in {"starting", "released", EXPORTER_DOWN}:
        return None
    if read_at is not None and view.snapshot.at - read_at >= limit.UNANSWERED_SECONDS:
        return _UNANSWERED
    return _OUT_OF_SERVICE["hung"] if card.status.hung else None


def _xid(xid: Xid) -> Text:
    means = meaning(xid.code)
    return Text(f"{xid.code} ({means.en})", f"{xid.code}（{means.zh}）")


def _xid_evidence(xid: Xid) -> tuple[Evidence, Evidence]:
    """Return the code as a number for programs, and its meaning for people."""
    return Evidence("xid", float(xid.code)), Evidence(f"xid_{xid.code}", meaning(xid.code))


def _unanswered(
    view: View, card: CardState, words: _Words, known: Sequence[Xid], evidence: tuple[Evidence, ...]
) -> Finding:
    """Return the finding of a GPU that answers no more, or with errors only."""
    gpu, owner = view.gpu(card), view.owner(card)
    actions = words.actions
    if card.status.reason == "lost" and any(xid.kind is Class.RESET_NODE for xid in known):
        actions = _BY_XID[Class.RESET_NODE].actions
    used = Text(f"; {owner} runs on it", f"；{owner} 正在使用它") if owner else Text("", "")
    return Finding(
        id=words.id,
        severity=Severity.CRITICAL if words.id == "GpuLost" else Severity.WARNING,
        subject=gpu,
        summary=gpu.text + words.summary + used,
        evidence=evidence,
        cause=Text("XID ", "XID ") + _xid(known[0]) if known else None,
        actions=actions,
        solves_causes=words.id == "GpuLost",
        relief=view.relief(owner),
        replica=owner,
    )


def _recovery(view: View, card: CardState, evidence: tuple[Evidence, ...]) -> Iterator[Finding]:
    number = signal(card, Signal.RECOVERY_ACTION)
    if not number:
        return
    gpu, owner = view.gpu(card), view.owner(card)
    known = number.is_integer() and 0 < number < len(RECOVERY_ACTIONS)
    wanted = (RECOVERY_ACTIONS[int(number)] if known else f"{number:g}").replace("_", " ")
    yield Finding(
        id="GpuRecoveryNeeded",
        severity=Severity.WARNING,
        subject=gpu,
        summary=Text(f"The driver requests {wanted} for {gpu.label}", f"驱动要求对 {gpu.text.zh}执行 {wanted}"),
        evidence=evidence,
        actions=(
            action.DRAIN,
            Text(
                f"Do what the driver requests: {wanted}.",
                f"按驱动要求执行：{wanted}。",
            ),
        ),
        relief=view.relief(owner),
        replica=owner,
    )


def _after_xid(
    view: View, card: CardState, known: Sequence[Xid], evidence: tuple[Evidence, ...]
) -> Iterator[Finding]:
    """Yield one finding for the newest XID of each class of a GPU that still answers."""
    gpu, owner = view.gpu(card), view.owner(card)
    newest: dict[Class, Xid] = {}
    for xid in known:
        newest.setdefault(Class.INSPECT if xid.kind is Class.UNKNOWN else xid.kind, xid)
    for kind, xid in newest.items():
        if kind not in _BY_XID:
            continue
        words = _BY_XID[kind]
        serves = kind in {Class.RESET_CARD, Class.RESET_NODE}
        yield Finding(
            id=words.id,
            severity=Severity.INFO if kind is Class.APPLICATION else Severity.WARNING,
            subject=gpu,
            summary=gpu.text + words.summary + _xid(xid),
            evidence=evidence,
            actions=words.actions,
            solves_causes=kind is Class.RESET_NODE,
            relief=view.relief(owner) if serves else None,
            replica=owner,
        )


def _sram(card: CardState, gpu: Subject, owner: str) -> Finding:
    errors = signal(card, Signal.SRAM_UNCORRECTED_AGGREGATE)
    counted = () if errors is None else (Evidence("uncorrectable_sram_errors", errors),)
    return Finding(
        id="GpuSramEccThreshold",
        severity=Severity.WARNING,
        subject=gpu,
        summary=Text(
            f"{gpu.label} exceeds its threshold of uncorrectable SRAM errors",
            f"{gpu.label} 的 SRAM 不可纠正错误超过阈值",
        ),
        evidence=(*counted, *location(card)),
        actions=(
            action.DRAIN,
            Text(
                "Run the vendor's field diagnostic: the GPU may qualify for replacement; a reset does not repair it.",
                "运行厂商诊断：该卡可能符合更换条件，复位无法修复。",
            ),
        ),
        replica=owner,
    )


def _memory_errors(view: View, card: CardState) -> Iterator[Finding]:
    gpu, owner = view.gpu(card), view.owner(card)
    uncorrected = signal(card, Signal.ECC_UNCORRECTED_VOLATILE)
    if uncorrected:
        yield Finding(
            id="GpuEccUncorrectable",
            severity=Severity.WARNING,
            subject=gpu,
            summary=Text(
                f"{gpu.label} has {uncorrected:g} uncorrectable memory errors since its last reset",
                f"{gpu.text.zh}自上次复位以来有 {uncorrected:g} 次不可纠正的显存错误",
            ),
            evidence=(Evidence("uncorrectable_errors", uncorrected), *location(card)),
            actions=(
                action.DRAIN,
                Text(
                    "Reset the GPU, so that the row is remapped; if it recurs within a month, request service.",
                    "复位该 GPU 以重映射坏行；一个月内再次出现则报修。",
                ),
            ),
            replica=owner,
        )
    if signal(card, Signal.SRAM_THRESHOLD_EXCEEDED):
        yield _sram(card, gpu, owner)
    failed = signal(card, Signal.ROW_REMAP_FAILED)
    pending = signal(card, Signal.ROW_REMAP_PENDING)
    if failed:
        yield Finding(
            id="GpuRowRemapFailed",
            severity=Severity.WARNING,
            subject=gpu,
            summary=Text(
                f"{gpu.label} has a defective memory row that it cannot replace",
                f"{gpu.text.zh}有无法替换的损坏显存行",
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
                f"{gpu.text.zh}将在下次复位时替换损坏的显存行",
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
                f"{gpu.text.zh}：{health.nvlinks_down} 条 NVLink 断开",
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
        actual = Text("", "")
        if known:
            now, rated = f"gen {generation:g} x{width:g}", f"gen {best[0]:g} x{best[1]:g}"
            actual = Text(f" ({now} of {rated})", f"（{now}，最高 {rated}）")
        yield Finding(
            id="GpuPcieDowngraded",
            severity=Severity.WARNING,
            subject=gpu,
            summary=Text(
                f"{gpu.label}: PCIe link runs below its best under load{actual.en}",
                f"{gpu.text.zh}：负载下 PCIe 链路低于最佳速率{actual.zh}",
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
            summary=Text(f"{gpu.label}: NVSwitch fabric: {problem}", f"{gpu.text.zh}：NVSwitch fabric：{problem}"),
            evidence=location(card),
            actions=(Text("Read the fabric manager's log and restart it.", "查看 fabric manager 日志并重启它。"),),
            replica=owner,
        )
        break


def switch_findings(view: View) -> Iterator[Finding]:
    """Yield the NVSwitches with a fatal error within the last hour."""
    for count in view.snapshot.sxids:
        if count.labels.severity != FATAL_SEVERITY:
            continue
        if view.snapshot.unix_time - count.last_unix_time >= limit.XID_RECENT_SECONDS:
            continue
        pci, code = count.labels.pci_bus_id, count.labels.sxid
        yield Finding(
            id="GpuNvswitchFatal",
            severity=Severity.CRITICAL,
            subject=Subject(SubjectKind.NODE, f"nvswitch {pci}", f"NVSwitch {pci}"),
            summary=Text(
                f"NVSwitch {pci} reports the fatal error SXid {code}", f"NVSwitch {pci} 报告致命错误 SXid {code}"
            ),
            evidence=(Evidence("sxid", code), Evidence("pci_bus_id", pci)),
            actions=(
                action.DRAIN_NODE,
                Text(
                    "Reset GPUs and switches together (nvidia-smi --gpu-reset without -i) or reboot the node.",
                    "将 GPU 与交换机一起复位（nvidia-smi --gpu-reset，不带 -i），或重启节点。",
                ),
            ),
        )
