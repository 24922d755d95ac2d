"""Whose the processes of a simulated node are: each replica is a pod, and the other tenant a Slurm job.

Their control groups are as kubelet and slurmstepd name them, and are read as those of real processes are.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

from exporter.model import Pod

NAMESPACE, CONTAINER = "ml", "engine"
JOB = "4711"


def pods(replicas: Iterable[str]) -> tuple[Pod, ...]:
    """Return the pod of each replica."""
    return tuple(
        Pod(
            uid=_uid(name),
            namespace=NAMESPACE,
            name=f"{name}-0",
            workload=name,
            workload_type="statefulset",
            containers={_digest(name): CONTAINER},
        )
        for name in replicas
    )


def cgroups(pids: Mapping[str, Iterable[int]]) -> dict[int, str]:
    """Return the control groups of the replicas' processes, by pid, as in ``/proc/PID/cgroup``."""
    return {pid: _of_pod(name) for name, of_replica in pids.items() for pid in of_replica}


def other_cgroup() -> str:
    """Return the control group of every other process on a simulated GPU."""
    return f"0::/system.slice/slurmstepd.scope/job_{JOB}/step_0/user/task_0\n"


def _of_pod(name: str) -> str:
    pod = f"kubepods-burstable-pod{_uid(name).replace('-', '_')}.slice"
    return f"0::/kubepods.slice/kubepods-burstable.slice/{pod}/cri-containerd-{_digest(name)}.scope\n"


def _digest(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()


def _uid(name: str) -> str:
    digest = _digest(name)
    return "-".join((digest[:8], digest[8:12], digest[12:16], digest[16:20], digest[20:32]))
