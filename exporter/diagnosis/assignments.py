"""Findings about replicas whose GPUs are not known, or are claimed by processes of several owners."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from exporter.diagnosis.view import View
from exporter.model import DisputedPlace
from exporter.model.finding import Evidence, Finding, Severity, Subject, SubjectKind
from exporter.model.text import Text

_SAY_GPUS = Text("Name its GPUs: gpus under the engine.", "在该引擎配置下用 gpus 写明其 GPU。")
_ASSIGN = {  # what to do where the GPUs of a replica are not known, by reason
    "no_driver": Text(
        "Run nvidia-smi on the node; without GPUs set gpu: {enabled: false}.",
        "在节点上运行 nvidia-smi；无 GPU 时设置 gpu: {enabled: false}。",
    ),
    "pid_namespace": Text(
        "Run Shardwatch in the PID namespace of the host (hostPID: true, --pid host), or name the GPUs: gpus under "
        "the engine.",
        "让 Shardwatch 运行在宿主机 PID 命名空间（hostPID: true、--pid host），或在该引擎配置下用 gpus 写明 GPU。",
    ),
    "no_permission": Text(
        "Run Shardwatch as root or give it CAP_SYS_PTRACE, or name the GPUs: gpus under the engine.",
        "以 root 运行 Shardwatch 或授予 CAP_SYS_PTRACE，或在该引擎配置下用 gpus 写明其 GPU。",
    ),
    "no_listener": Text(
        "Compare the port of its URL with the open ones (ss -ltnp); if it is on another node, name no GPU.",
        "将其 URL 的端口与已打开的端口比较（ss -ltnp）；若在其他节点则无需写 GPU。",
    ),
    "unknown_gpu": Text(
        "Compare gpus of the engine in the configuration with nvidia-smi -L.",
        "将配置中该引擎的 gpus 与 nvidia-smi -L 比较。",
    ),
    "hung": Text(
        "Find the process that is stuck in the kernel (ps -eo pid,stat,wchan,args, state D); end its wait or reboot.",
        "找到卡在内核中的进程（ps -eo pid,stat,wchan,args，状态 D）；解除其等待或重启节点。",
    ),
}


def findings(view: View) -> Iterator[Finding]:
    """Yield each replica whose GPUs are not known, with the reason, and the places that are disputed."""
    for name, reason in view.snapshot.daemon.unassigned.items():
        if reason == "remote" or name not in view.replicas:
            continue
        yield Finding(
            id="ReplicaUnassigned",
            severity=Severity.INFO,
            subject=Subject(SubjectKind.REPLICA, name, name),
            summary=Text(f"The GPUs of {name} are not known: {reason}", f"未知 {name} 使用哪些 GPU：{reason}"),
            evidence=(Evidence("reason", reason),),
            actions=(_ASSIGN.get(reason, _SAY_GPUS),),
            replica=name,
        )
    if view.snapshot.disputed:
        yield _disputed(view.snapshot.disputed)


def _disputed(places: Sequence[DisputedPlace]) -> Finding:
    keys = ", ".join(sorted({place.key for place in places}))
    return Finding(
        id="ReplicaPlaceDisputed",
        severity=Severity.WARNING,
        subject=Subject(SubjectKind.NODE, "", "node"),
        summary=Text(
            f"Processes of several owners claim one place in a replica that spans nodes ({keys}); none counts",
            f"多个所有者的进程声称在跨节点副本中占同一位置（{keys}）；均不计入",
        ),
        evidence=tuple(Evidence(f"claims_{number}", str(place)) for number, place in enumerate(places)),
        actions=(
            Text(
                "Compare the users and command lines of these processes (ps -o pid,user,args -p PID); end the one "
                "that is none of the replica's.",
                "比较这些进程的用户与命令行（ps -o pid,user,args -p PID）；结束不属于该副本的进程。",
            ),
        ),
    )
