"""Whose a GPU's processes are: pod, Slurm job, container, systemd unit, user."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from exporter.model.source import EMPTY


class ProcessOwner(Struct, frozen=True, kw_only=True):
    """What the kernel records about a process: its control group's names, and its user; "" where there is none.

    ``session``: it runs in a user's session, where the user names the control groups.
    """

    pod_uid: str = ""
    container_id: str = ""  # 64 hexadecimal digits, or the name of an LXC container
    slurm_job: str = ""
    unit: str = ""  # innermost systemd service or scope, outside of pods, jobs and container scopes
    session: bool = False
    user: str = ""  # name, or uid where it has none


class PodGroup(Struct, frozen=True, kw_only=True):
    """The group of a LeaderWorkerSet that a pod belongs to, and its place in it."""

    leader: str  # host name of the first pod
    size: int | None = None
    index: int | None = None


class Pod(Struct, frozen=True, kw_only=True):
    """A pod of this node.  ``containers``: id → name.

    ``devices``: id of what kubelet has allocated to it → name of the container, "" if there are several.  Where that
    is known, ``uid`` is not.
    """

    uid: str
    namespace: str
    name: str
    workload: str = ""
    workload_type: str = ""  # deployment, statefulset, job …: the kind in lower case
    containers: Mapping[str, str] = EMPTY
    devices: Mapping[str, str] = EMPTY
    group: PodGroup | None = None


class Owner(Struct, frozen=True, kw_only=True):
    """Who runs processes on a GPU; "" where not known.

    ``name`` identifies the owner on this node: NAMESPACE/POD/CONTAINER, ``pod UID``, ``job ID``, a system service,
    ``container ID``, or the user.
    """

    name: str = ""
    namespace: str = ""
    pod: str = ""
    pod_uid: str = ""
    container: str = ""
    container_id: str = ""  # first 12 digits
    workload: str = ""
    workload_type: str = ""
    slurm_job: str = ""
    unit: str = ""
    user: str = ""


class OwnedProcess(Struct, frozen=True, kw_only=True):
    """The owner of one process.

    ``orphaned``: it has exited, or the engine server that started it has, and yet it is on a GPU.
    """

    owner: Owner
    orphaned: bool = False


class GpuOwner(Struct, frozen=True, kw_only=True):
    """What one owner holds of one GPU; ``memory``: bytes, None where the driver does not report it of a process."""

    uuid: str
    owner: Owner
    memory: float | None = None
    pids: tuple[int, ...] = ()
    orphans: tuple[int, ...] = ()  # pids
