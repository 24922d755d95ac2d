"""All findings of a snapshot: users' symptoms first, each with the causes that explain it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from exporter.diagnosis import (
    assignments,
    balance,
    engine_features,
    gateways,
    gpu_driver,
    gpu_health,
    gpu_load,
    nics,
    owners,
    replica_changes,
    replicas,
    stores,
)
from exporter.diagnosis.history import Past
from exporter.diagnosis.view import View
from exporter.model import Snapshot
from exporter.model.finding import Evidence, Finding, Severity, Subject, SubjectKind
from exporter.model.text import Text

_NO_PAST = Past()
_READ_LOG = Text(
    "Read why in the daemon's log: journalctl -u shardwatch.", "在守护进程日志中查看原因：journalctl -u shardwatch。"
)
_SOURCE_STEPS = {  # by kind of source
    "discovery": Text(
        "Read in the daemon's log what it could not read (journalctl -u shardwatch); correct it under discovery.",
        "在守护进程日志中查看无法读取的内容（journalctl -u shardwatch），并在 discovery 中更正。",
    ),
    "gpu_page": Text(
        "Ask the GPU exporter itself (curl its URL under gpu.pages); start it or correct the URL.",
        "直接访问该 GPU exporter（curl gpu.pages 中的 URL）；启动它或更正 URL。",
    ),
    "kernel_log": Text(
        "Give Shardwatch the kernel log: CAP_SYSLOG, or the group systemd-journal or adm.",
        "让 Shardwatch 可读内核日志：CAP_SYSLOG，或加入 systemd-journal 或 adm 组。",
    ),
    "processes": Text(
        "Find the process that is stuck in the kernel: ps -eo pid,stat,wchan,args (state D).",
        "找到卡在内核中的进程：ps -eo pid,stat,wchan,args（状态 D）。",
    ),
}
_PUSH_STEPS = {  # by the beginning of the reason; the first that fits
    "http_429": Text(
        "Raise the receiver's rate limit, or push[].interval.", "提高接收端的速率限制，或增大 push[].interval。"
    ),
    "http_4": Text(
        "Correct URL, tenant or credentials under push: what is refused is lost at once.",
        "更正 push 下的 URL、租户或凭据：被拒绝的样本立即丢失。",
    ),
    "tls_unknown_ca": Text(
        "Name the authority of the receiver's certificate in push[].tls.ca_file.",
        "在 push[].tls.ca_file 中指定接收端证书的 CA。",
    ),
    "tls_name": Text(
        "Set push[].tls.server_name to a name that the receiver's certificate has.",
        "将 push[].tls.server_name 设为接收端证书中的名称。",
    ),
    "tls_expired": Text("Renew the receiver's certificate.", "更新接收端的证书。"),
    "": Text(
        "See whether the receiver runs and is reached: curl its URL from this node.",
        "检查接收端是否运行、能否连通：在本节点 curl 其 URL。",
    ),
}
# Which findings explain which; the first that applies to the same replica (or GPU) takes the cause.
_GPU_DEAD = (
    "GpuLost",
    "GpuXidResetNode",
    "GpuXidResetGpu",
    "GpuRecoveryNeeded",
    "SourceHung",
    "GpuNvlinkDown",
    "GpuFabricProblem",
)
_GPU_SLOW = (
    "GpuStraggler",
    "GpuThermalThrottling",
    "GpuPowerBrake",
    "GpuPcieDowngraded",
    "GpuNvlinkDown",
    "GpuHot",
    "GpuFabricProblem",
)
_NIC_BAD = ("NicPortDown", "NicLinkFlaps", "NicErrorsRise", "NicBelowRate")
_OF_A_WORKING_PORT = frozenset(_NIC_BAD) - {"NicPortDown"}
_EXPLAINED_BY = {
    "EngineFrozen": (*_GPU_DEAD, "NicPortDown", "NicLinkFlaps"),
    "EngineDown": (*_GPU_DEAD, "NicPortDown", "NicLinkFlaps"),
    "HighErrorRatio": ("GpuMemoryFull", "GroupMemoryUneven", *_GPU_DEAD),
    "KvCachePressure": _GPU_SLOW,
    "ReplicaSlowerThanSiblings": (
        *(name for name in _GPU_SLOW if name != "GpuStraggler"),
        "ReplicaUsesPcie",
        *_NIC_BAD,
    ),
    "RanksUneven": (),
    "EngineRestarting": ("GpuMemoryFull", "GroupMemoryUneven", *_GPU_DEAD),
    "GpuStraggler": ("GpuThermalThrottling", "GpuPowerBrake", "GpuPcieDowngraded", "GpuNvlinkDown", "GpuHot"),
    # A GPU whose links fail delays its replica before it is lost; the finding outlasts that by its linger.
    "GpuLost": ("GpuNvlinkDown", "GpuXidResetGpu", "GpuXidResetNode", "GpuStraggler"),
    "GpuXidResetNode": ("GpuXidResetGpu", "GpuNvlinkDown"),
    "GpuXidResetGpu": ("GpuNvlinkDown",),
}
_SYMPTOMS = tuple(_EXPLAINED_BY)
# A replica that stopped is not slow: its mean is of before.
_STOPPED = frozenset({"EngineFrozen", "EngineDown", "GpuLost"})
_RANK = {Severity.CRITICAL: 0, Severity.WARNING: 1, Severity.INFO: 2}
# Of the same severity, what users feel comes first.
_ORDER = (
    "EngineFrozen",
    "EngineDown",
    "EngineRestarting",
    "HighErrorRatio",
    "GpuLost",
    "KvCachePressure",
    "ReplicaSlowerThanSiblings",
    "RanksUneven",
)


def find(snapshot: Snapshot, past: Past = _NO_PAST) -> tuple[Finding, ...]:
    """Return every finding that this snapshot and its past support, in no order."""
    view = View(snapshot)
    of_replicas = tuple(replicas.findings(view, past))
    failing = {finding.replica for finding in of_replicas if finding.id == "HighErrorRatio"}
    return (
        *of_replicas,
        *engine_features.findings(view, past),
        *assignments.findings(view),
        *balance.findings(view, past),
        *replica_changes.findings(view, past),
        *gateways.findings(view, past, failing),
        *stores.findings(view, past),
        *gpu_health.findings(view),
        *gpu_load.findings(view, past),
        *owners.findings(view),
        *gpu_health.switch_findings(view),
        *nics.findings(view, past),
        *gpu_driver.findings(view),
        *_daemon(snapshot),
    )


def arrange(found: Sequence[Finding]) -> tuple[Finding, ...]:
    """Return the findings in order of urgency; one that explains another stands only under it."""
    return tuple(sorted(_nest(found), key=_place))


def _place(finding: Finding) -> tuple[int, int, str, str]:
    order = _ORDER.index(finding.id) if finding.id in _ORDER else len(_ORDER)
    return _RANK[finding.severity], order, finding.id, finding.subject.label


def _without_slow(found: Sequence[Finding]) -> list[Finding]:
    """Return the findings without slow replicas that a stopped replica or a straggler of theirs explains.

    What is slower becomes evidence of the straggler, whose summary names the GPU and which began earlier.
    """
    rest = list(found)
    for slow in [finding for finding in found if finding.id == "ReplicaSlowerThanSiblings"]:
        same = [finding for finding in rest if finding.replica == slow.replica]
        stragglers = [finding for finding in same if finding.id == "GpuStraggler"]
        if stragglers or any(finding.id in _STOPPED for finding in same):
            rest.remove(slow)
        if stragglers and not any(finding.id in _STOPPED for finding in same):
            first = stragglers[0]
            latency = (item for item in slow.evidence if item.unit == "seconds")
            rest[rest.index(first)] = replace(first, evidence=(*latency, *first.evidence))
    return rest


def _without_lingering(found: Sequence[Finding]) -> list[Finding]:
    """Return the findings without what lingers of a port that has gone down since."""
    down = {finding.subject for finding in found if finding.id == "NicPortDown"}
    return [finding for finding in found if finding.id not in _OF_A_WORKING_PORT or finding.subject not in down]


def _nest(found: Sequence[Finding]) -> list[Finding]:
    rest = _without_slow(_without_lingering(found))
    for symptom in _SYMPTOMS[::-1]:  # inner causes first, so that a cause carries its own causes along
        for finding in [other for other in rest if other.id == symptom]:
            causes = [
                other
                for name in _EXPLAINED_BY[symptom]
                for other in rest
                if other.id == name and other is not finding and _explains(other, finding)
            ]
            if not causes:
                continue
            rest = [other for other in rest if other is not finding and other not in causes]
            known = finding.cause or causes[0].summary
            rest.append(replace(finding, causes=tuple(causes), cause=known))
    return gpu_driver.without_explained(rest)


def _explains(cause: Finding, finding: Finding) -> bool:
    if finding.subject.kind is SubjectKind.GPU:
        return cause.subject == finding.subject
    return bool(finding.replica) and cause.replica == finding.replica


def _daemon(snapshot: Snapshot) -> Iterator[Finding]:
    node = Subject(SubjectKind.NODE, "", "node")
    if not snapshot.daemon.config_reload_successful:
        yield Finding(
            id="ConfigurationNotLoaded",
            severity=Severity.WARNING,
            subject=node,
            summary=Text(
                "The last reload of the configuration was refused; the old one is in effect",
                "最近一次重新加载配置被拒绝；旧配置仍在生效",
            ),
            actions=(Text("Run shardwatch check-config FILE.", "运行 shardwatch check-config FILE。"),),
        )
    if snapshot.daemon.discovery_limits:
        limits = ", ".join(sorted(snapshot.daemon.discovery_limits))
        yield Finding(
            id="DiscoveryLimitReached",
            severity=Severity.INFO,
            subject=node,
            summary=Text(
                f"Discovery reached a limit ({limits}); engines may be missing",
                f"自动发现达到上限（{limits}）；可能有引擎未被发现",
            ),
            evidence=(Evidence("limits", limits),),
            actions=(Text("List the engines under engines.", "将引擎列入 engines 配置。"),),
        )
    yield from _pushes(snapshot)
    for status in snapshot.sources:
        kind, _, _ = status.source.partition(":")
        if (
            kind not in {"discovery", "gpu_page", "kernel_log", "nics", "nvml_events", "processes"}
            or status.up
            or status.reason == "starting"
        ):
            continue
        yield Finding(
            id="SourceHung" if status.hung else "SourceDown",
            severity=Severity.WARNING if status.hung else Severity.INFO,
            subject=Subject(SubjectKind.SOURCE, status.source, status.source),
            summary=Text(
                f"{status.source} cannot be read: {status.reason}", f"无法读取 {status.source}：{status.reason}"
            ),
            evidence=(Evidence("reason", status.reason),),
            actions=(_SOURCE_STEPS.get(kind, _READ_LOG),),
        )


def _pushes(snapshot: Snapshot) -> Iterator[Finding]:
    statuses = {status.source: status for status in snapshot.sources}
    for push in snapshot.pushes:
        status = statuses.get(f"push:{push.target}")
        if status is None or status.up or push.failing_since is None:
            continue
        lasted = max(0.0, snapshot.unix_time - push.failing_since)
        english, chinese = (f"{lasted:.0f} s", f"{lasted:.0f} 秒") if lasted < 120 else _minutes(lasted)
        lost = sum(push.dropped.values())
        waits = _size(push.queue_bytes)
        yield Finding(
            id="PushFailing",
            severity=Severity.WARNING,
            subject=Subject(SubjectKind.SOURCE, status.source, status.source),
            summary=Text(
                f"Pushing to {push.target} has failed for {english} ({status.reason}); {waits} wait, "
                f"{lost} samples dropped",
                f"向 {push.target} 推送已失败 {chinese}（{status.reason}）；{waits} 等待发送，已丢弃 {lost} 个样本",
            ),
            evidence=(
                Evidence("reason", status.reason),
                Evidence("queue_age", push.queue_age, "seconds"),
                Evidence("samples_dropped", float(lost)),
            ),
            actions=(next(step for reason, step in _PUSH_STEPS.items() if status.reason.startswith(reason)),),
        )


def _minutes(seconds: float) -> tuple[str, str]:
    return f"{seconds / 60:.0f} min", f"{seconds / 60:.0f} 分钟"


def _size(size: float) -> str:
    return f"{size / 1e6:.1f} MB" if size >= 1e6 else f"{size / 1e3:.0f} kB"
