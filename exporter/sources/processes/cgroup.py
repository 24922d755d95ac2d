"""Parses /proc/PID/cgroup: the pod, container, Slurm job and systemd unit that a process belongs to.

Control groups are named by whoever creates them.  Kubelet, container runtimes, slurmstepd and systemd do so as root,
from the root of the tree downwards; below, a container or a user may have a part of the tree of their own.  So the
outermost name counts, and below a user's session no pod and no job does.  Paths start with ``/..`` where the daemon
has a control group namespace of its own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from exporter.model.owner import ProcessOwner

_MAX_LINES = 64
_MAX_PATH = 4096  # characters; the kernel has no longer names
_MAX_DEPTH = 64
_DELETED = " (deleted)"

_UID = r"[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32}"  # the second: a static pod's
# kubepods-burstable-podUID.slice (systemd driver), podUID (cgroupfs driver), …-podUID.slice:cri-containerd:ID.
_POD = re.compile(rf"(?:^|-)pod({_UID})(?:\.slice)?(?::|\Z)")
# docker-ID.scope, cri-containerd-ID.scope, crio-ID.scope, libpod-payload-ID, …:cri-containerd:ID, ID; ECS' ID-NUMBER.
_CONTAINER = re.compile(r"(?:^|[-:])([0-9a-f]{64})(?:\.scope)?\Z|^([0-9a-f]{32})-[0-9]+\Z")
_LXC = re.compile(r"lxc\.payload\.([A-Za-z0-9._-]{1,64})\Z")
_SLURM = re.compile(r"slurm(?:_[A-Za-z0-9._-]+)?\Z|(?:[A-Za-z0-9._-]+_)?slurmstepd\.scope\Z")
_JOB = re.compile(r"job_([0-9]{1,20})\Z")
_UNIT = re.compile(r"[A-Za-z0-9:_.\\@-]{1,240}\.(?:service|scope)\Z", re.ASCII)
_NO_UNIT = re.compile(r"user@[0-9]+\.service\Z|init\.scope\Z")  # holds a whole session, or all that has no other


def parse_cgroup(text: str) -> ProcessOwner:
    """Return what the lines of a ``/proc/PID/cgroup`` say; fields are "" where they say nothing, user always."""
    found = ProcessOwner()
    for path in _paths(text):
        of_path = _of_path(path)
        if of_path.pod_uid or of_path.container_id or of_path.slurm_job:
            return of_path
        if not found.unit:
            found = of_path
    return found


def _paths(text: str) -> list[str]:
    """Return the paths: the unified hierarchy's first, then systemd's, then those of controllers (version 1)."""
    lines = [line.split(":", 2) for line in text.split("\n")[:_MAX_LINES]]
    rows = [(line[1], line[2]) for line in lines if len(line) == 3]
    rows.sort(key=lambda row: {"": 0, "name=systemd": 1}.get(row[0], 2))
    return list(dict.fromkeys(path.removesuffix(_DELETED)[:_MAX_PATH] for _, path in rows))


def _of_path(path: str) -> ProcessOwner:
    parts = [part for part in path.split("/") if part not in ("", "..")][:_MAX_DEPTH]
    at = next((place for place, part in enumerate(parts) if _container(part)), len(parts))
    container = _container(parts[at]) if at < len(parts) else ""
    if "user.slice" in parts:
        return ProcessOwner(container_id=container, session=True, unit=_unit(parts[:at]))
    pod_uid = next((match[1].replace("_", "-") for part in parts[: at + 1] if (match := _POD.search(part))), "")
    # Below a container, a job is the container's word; a pod may run a slurmd, and stays the owner's name.
    job = _job(parts if pod_uid else parts[:at])
    unit = "" if pod_uid or job else _unit(parts[:at])
    return ProcessOwner(pod_uid=pod_uid, container_id=container, slurm_job=job, unit=unit)


def _container(part: str) -> str:
    if "conmon" in part:  # watches a container, in a group beside it that is named after it
        return ""
    match = _CONTAINER.search(part)
    if match is not None:
        return match[1] or match[2]
    match = _LXC.match(part)
    return match[1] if match is not None else ""


def _job(parts: Sequence[str]) -> str:
    """Return the job below slurmstepd's scope, or below ``slurm`` and ``uid_N`` (version 1)."""
    at = next((place for place, part in enumerate(parts) if _SLURM.match(part)), len(parts))
    return next((match[1] for part in parts[at + 1 : at + 4] if (match := _JOB.match(part))), "")


def _unit(parts: Sequence[str]) -> str:
    units = [part for part in parts if _UNIT.match(part) and not _NO_UNIT.match(part)]
    return units[-1] if units else ""
