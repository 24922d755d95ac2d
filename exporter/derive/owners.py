"""Who holds which GPU's memory: the owners of the processes on each GPU, and the processes that are left over.

An orphan is a worker of an engine whose server is gone: it has no parent left that is more than a shell, an init or a
supervisor, so nobody sends it work, and nobody ends it.  Or it is a process that has exited, whose memory the driver
still holds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

from msgspec.structs import replace

from exporter.derive.process_tree import ProcessTree
from exporter.model import CardProcess, CardState
from exporter.model.owner import GpuOwner, OwnedProcess, Owner, Pod, ProcessOwner
from exporter.model.process import Process, ProcessTable

MAX_OWNERS = 32  # of one GPU; those with the least memory beyond are one owner without a name
_SHORT_ID = 12  # digits, as docker ps shows them
_UNKNOWN = Owner()
# A supervisor that itself starts workers of engines: below it, one without a server is no orphan.
_STARTS_WORKERS = frozenset(("raylet",))


def process_owners(
    pids: Iterable[int], table: ProcessTable, pods: Collection[Pod] = ()
) -> Mapping[int, OwnedProcess]:
    """Return the owner of each process on a GPU; ``pods``: those of this node, as far as they are known.

    A pid that is not in the table has an owner without a name.
    """
    tree = ProcessTree(table)
    by_container = {container: pod for pod in pods for container in pod.containers}
    by_uid = {pod.uid: pod for pod in pods if pod.uid}
    # Only where all pids can be seen does a missing one mean that the process is gone.
    exited = not table.limits and not table.problems.keys() & {"no_permission", "pid_namespace"}
    owned = {}
    for pid in pids:
        process = table.processes.get(pid)
        if process is None:
            owned[pid] = OwnedProcess(owner=_UNKNOWN, orphaned=exited)
        else:
            known = process.owner or ProcessOwner()
            pod = by_container.get(known.container_id) or by_uid.get(known.pod_uid)
            owned[pid] = OwnedProcess(owner=_owner(known, pod), orphaned=process.zombie or _is_orphan(tree, process))
    return owned


def _owner(known: ProcessOwner, pod: Pod | None) -> Owner:
    container = pod.containers.get(known.container_id, "") if pod is not None else ""
    short = known.container_id[:_SHORT_ID]
    return Owner(
        name=_name(known, pod, container, short),
        namespace=pod.namespace if pod is not None else "",
        pod=pod.name if pod is not None else "",
        pod_uid=pod.uid if pod is not None else known.pod_uid,
        container=container,
        container_id=short,
        workload=pod.workload if pod is not None else "",
        workload_type=pod.workload_type if pod is not None else "",
        slurm_job=known.slurm_job,
        unit=known.unit,
        user=known.user,
    )


def _name(known: ProcessOwner, pod: Pod | None, container: str, short: str) -> str:
    if pod is not None:
        return "/".join(part for part in (pod.namespace, pod.name, container) if part)
    if known.pod_uid:
        return f"pod {known.pod_uid}"
    if known.slurm_job:
        return f"job {known.slurm_job}"
    if known.unit and not known.session:
        return known.unit
    return f"container {short}" if short else known.user


def _is_orphan(tree: ProcessTree, process: Process) -> bool:
    """Return whether a worker has no program above it that could have started it."""
    for pid in tree.ancestry(process.pid):
        ancestor = tree.table.processes[pid]
        if pid != process.pid and (ancestor.shared or pid == 1):
            return ancestor.title not in _STARTS_WORKERS
        if not ancestor.worker:
            return False
    return False  # the ancestors above are not known


def gpu_owners(
    cards: Sequence[CardState], owned: Mapping[int, OwnedProcess], pods: Iterable[Pod] = ()
) -> tuple[GpuOwner, ...]:
    """Return what each owner holds of each GPU, the most memory first; without processes that ``owned`` lacks.

    A pod of ``pods`` owns the GPUs that are allocated to it without a process, too.
    """
    allocated: defaultdict[str, list[Owner]] = defaultdict(list)
    for pod in pods:
        for device, container in pod.devices.items():
            name = "/".join(part for part in (pod.namespace, pod.name, container) if part)
            allocated[device].append(Owner(name=name, namespace=pod.namespace, pod=pod.name, container=container))
    return tuple(
        owner
        for card in cards
        for owner in _with_allocated(card.facts.uuid, _of_card(card, owned), allocated.get(card.facts.uuid, ()))
    )


def _with_allocated(uuid: str, found: list[GpuOwner], allocated: Sequence[Owner]) -> list[GpuOwner]:
    """Name the one pod of which only the UID is known after the one that has the GPU; add those without a process."""
    unnamed = [held for held in found if held.owner.pod_uid and not held.owner.pod]
    if len(unnamed) == len(allocated) == 1:
        (pod,) = allocated
        names = {"name": pod.name, "namespace": pod.namespace, "pod": pod.pod, "container": pod.container}
        found = [replace(held, owner=replace(held.owner, **names)) if held is unnamed[0] else held for held in found]
    known = {(held.owner.namespace, held.owner.pod) for held in found}
    idle = [pod for pod in allocated if (pod.namespace, pod.pod) not in known]
    return found + [GpuOwner(uuid=uuid, owner=pod) for pod in idle[:MAX_OWNERS]]


def _of_card(card: CardState, owned: Mapping[int, OwnedProcess]) -> list[GpuOwner]:
    processes = (card.reading.processes if card.reading is not None else None) or ()
    groups: defaultdict[str, list[CardProcess]] = defaultdict(list)
    for process in processes:
        if process.pid in owned:
            groups[owned[process.pid].owner.name].append(process)
    for name in sorted(groups.keys() - {""}, key=lambda name: (-_known_bytes(groups[name]), name))[MAX_OWNERS:]:
        groups[""] += groups.pop(name)
    found = [_gpu_owner(card.facts.uuid, held, owned) for held in groups.values()]
    return sorted(found, key=lambda owner: (-(owner.memory or 0.0), owner.owner.name))


def _known_bytes(processes: Iterable[CardProcess]) -> float:
    return sum(process.memory or 0.0 for process in processes)


def _gpu_owner(uuid: str, held: Sequence[CardProcess], owned: Mapping[int, OwnedProcess]) -> GpuOwner:
    pids = tuple(sorted(process.pid for process in held))
    is_complete = all(process.memory is not None for process in held)
    return GpuOwner(
        uuid=uuid,
        owner=_common({owned[pid].owner for pid in pids}),
        memory=_known_bytes(held) if is_complete else None,
        pids=pids,
        orphans=tuple(pid for pid in pids if owned[pid].orphaned),
    )


def _common(owners: Collection[Owner]) -> Owner:
    """Return what all these owners have in common, "" where they differ."""
    first, *others = owners
    if not others:
        return first
    return Owner(
        **{
            name: getattr(first, name)
            if all(getattr(first, name) == getattr(other, name) for other in others)
            else ""
            for name in Owner.__struct_fields__
        }
    )
