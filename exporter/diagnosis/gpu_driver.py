"""Findings about the GPU driver as a whole, and about GPUs that it does not list any more."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from exporter.diagnosis.view import View
from exporter.model import CardFacts, SourceStatus
from exporter.model.finding import Evidence, Finding, Severity, Subject, SubjectKind
from exporter.model.text import Text

_MAX_REMOVED = 16  # that a finding names
_UNANSWERED = "gpus_unanswered"  # evidence that the driver answers for no GPU at all
_WITHOUT_GPUS = Text(
    "Run nvidia-smi on the node; without GPUs set gpu: {enabled: false}.",
    "在节点上运行 nvidia-smi；无 GPU 时设置 gpu: {enabled: false}。",
)
_STEPS = {  # by reason
    "hung": (
        Text(
            "Run nvidia-smi on the node; if it hangs too, end what holds the driver: ps -eo pid,stat,args, state D.",
            "在节点上运行 nvidia-smi；若同样挂起，结束占住驱动的进程：ps -eo pid,stat,args，状态 D。",
        ),
        Text("If it stays hung, drain the node and reboot it.", "若仍然挂起，排空节点并重启。"),
    ),
    "mismatch": (
        Text(
            "Load the kernel module of the installed driver: drain the node and reboot it.",
            "加载与已安装驱动一致的内核模块：排空节点并重启。",
        ),
    ),
    "permission": (
        Text(
            "Give Shardwatch the devices /dev/nvidia*; in a container check the NVIDIA runtime.",
            "让 Shardwatch 可访问 /dev/nvidia* 设备；在容器中检查 NVIDIA 运行时。",
        ),
    ),
}
_ANY_REASON = Text(
    "Run nvidia-smi on the node, and read in the daemon's log why it fails: journalctl -u shardwatch.",
    "在节点上运行 nvidia-smi，并在守护进程日志中查看原因：journalctl -u shardwatch。",
)


def _removed(gone: Sequence[CardFacts]) -> Finding:
    named = "; ".join(f"GPU {facts.index} {facts.uuid} at {facts.pci_bus_id or '-'}" for facts in gone[:_MAX_REMOVED])
    plural = "GPUs are" if len(gone) > 1 else "GPU is"
    return Finding(
        id="GpusRemoved",
        severity=Severity.INFO,
        subject=Subject(SubjectKind.NODE, "", "node"),
        summary=Text(f"{len(gone)} {plural} not counted by the driver any more", f"驱动不再列出 {len(gone)} 张 GPU"),
        evidence=(Evidence("removed", named),),
        actions=(
            Text(
                "Nothing, if they were removed on purpose; else look for them with lspci and in the kernel log.",
                "若为有意移除则无需处理；否则用 lspci 与内核日志查找。",
            ),
        ),
    )


def findings(view: View) -> Iterator[Finding]:
    """Yield what is wrong with reading GPUs at all, and which are not expected any more."""
    if view.snapshot.removed:
        yield _removed(view.snapshot.removed)
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
        yield _unreadable(view, status)


def _unreadable(view: View, status: SourceStatus) -> Finding:
    cards, reason = view.snapshot.cards, status.reason
    has_no_gpu = reason in {"library", "driver"} and not cards
    unanswered: tuple[Evidence, ...] = ()
    if reason == "hung" and cards and all(card.reading is None for card in cards):
        unanswered = (Evidence(_UNANSWERED, " ".join(card.labels.gpu for card in cards)),)
    return Finding(
        id="GpuDriverUnreadable",
        severity=Severity.WARNING,
        subject=Subject(SubjectKind.NODE, "", "node"),
        summary=Text(f"The GPU driver cannot be read: {reason}", f"无法读取 GPU 驱动：{reason}"),
        evidence=(Evidence("reason", reason), *unanswered),
        actions=(_WITHOUT_GPUS,) if has_no_gpu else _STEPS.get(reason, (_ANY_REASON,)),
    )


def without_explained(found: Sequence[Finding]) -> list[Finding]:
    """Return the findings without those of single GPUs that do not answer because the whole driver does not."""
    if not any(item.name == _UNANSWERED for finding in found for item in finding.evidence):
        return list(found)
    return [finding for finding in found if finding.id != "SourceHung" or finding.subject.kind is not SubjectKind.GPU]
