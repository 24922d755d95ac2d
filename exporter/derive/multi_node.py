"""Replicas that span nodes: which GPUs of this node belong to one, under a key that is the same on all nodes.

The key is the address at which the processes of all nodes meet.  A command line is a claim, so it decides nothing
about this node's own replicas: which GPUs those have is known from processes and sockets.  And where processes of two
owners claim the same place in a replica, neither gets it, unless one of them is known to belong to a replica here.
"""

from __future__ import annotations

import ipaddress
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from exporter.derive.process_tree import ProcessTree
from exporter.model import MultiNodeGpu, Pod
from exporter.model.process import Process, ProcessTable, Rendezvous

MAX_KEYS = 4  # of one GPU
_LOOPBACK_NAMES = frozenset(("localhost", "localhost.localdomain", "ip6-localhost", "ip6-loopback"))
_RAY, _LWS = "ray", "lws"


class _Membership(NamedTuple):
    """What one process says of the replica that it belongs to."""

    key: str
    engine: str
    process: Process
    rendezvous: Rendezvous
    replica: str  # that is known to have it, "" for none


def find_multi_node(
    table: ProcessTable,
    users: Mapping[int, Collection[str]],
    assigned: Mapping[int, str],
    replicas: Collection[str] = (),
    pods: Collection[Pod] = (),
) -> tuple[MultiNodeGpu, ...]:
    """Return the GPUs of replicas that span nodes, one row for each GPU and replica.

    ``users``: GPU process → UUIDs.  ``assigned``: GPU process → the replica of this node that has it.  ``replicas``:
    the names of all, which no key may take.
    """
    finder = _Finder(table, users, assigned, pods)
    claims = [claim for pid in sorted(users) if (claim := finder.claim(pid)) is not None]
    rows: dict[tuple[str, str], MultiNodeGpu] = {}
    keys: defaultdict[str, set[str]] = defaultdict(set)  # uuid →
    for claim in sorted(_undisputed(claims), key=lambda claim: not claim.replica):
        for uuid in users[claim.process.pid] if claim.key not in replicas else ():
            if len(keys[uuid] | {claim.key}) <= MAX_KEYS:
                keys[uuid].add(claim.key)
                rows.setdefault((uuid, claim.key), _row(uuid, claim))
    return tuple(rows.values())


def is_of_other_node(tree: ProcessTree, pid: int) -> bool:
    """Return whether a GPU process says that the server of its replica is on another node."""
    rendezvous = _of_server(tree, pid)
    return rendezvous is not None and rendezvous.is_worker


def _of_server(tree: ProcessTree, pid: int) -> Rendezvous | None:
    """Return what the nearest server at or above a GPU process says."""
    for ancestor in tree.ancestry(pid):
        process = tree.table.processes[ancestor]
        if process.shared:
            return None
        if process.rendezvous is not None:
            return process.rendezvous
    return None


def _undisputed(claims: Collection[_Membership]) -> Iterator[_Membership]:
    places: defaultdict[tuple[str, int | None, int | None], list[_Membership]] = defaultdict(list)
    for claim in claims:
        places[claim.key, claim.rendezvous.node_rank, claim.rendezvous.first_rank].append(claim)
    for same in places.values():
        known = [claim for claim in same if claim.replica]
        if known:
            yield from known
        elif len({claim.rendezvous.owner for claim in same}) == 1:
            yield from same


def _row(uuid: str, claim: _Membership) -> MultiNodeGpu:
    rank = claim.rendezvous.node_rank
    return MultiNodeGpu(
        uuid=uuid,
        replica=claim.replica or claim.key,
        key=claim.key,
        engine=claim.engine,
        head=not claim.rendezvous.is_worker and (rank == 0 or bool(claim.replica)),
        node_rank=rank,
        nodes=claim.rendezvous.nodes,
        pipeline_rank=claim.process.pipeline_rank,
        tensor_rank=claim.process.tensor_rank,
    )


class _Finder:
    """Finds what each GPU process claims."""

    def __init__(
        self,
        table: ProcessTable,
        users: Mapping[int, Collection[str]],
        assigned: Mapping[int, str],
        pods: Collection[Pod],
    ) -> None:
        self.table, self.tree, self.users, self.assigned = table, ProcessTree(table), users, assigned
        self.by_container = {container: pod for pod in pods for container in pod.containers}
        self.by_uid = {pod.uid: pod for pod in pods}

    def claim(self, pid: int) -> _Membership | None:
        """Return what a GPU process claims; None for one whose replica is on this node alone."""
        process = self.table.processes.get(pid)
        if process is None:
            return None
        replica = self.assigned.get(pid, "")
        engine = self.table.processes[server].engine if (server := self.tree.engine(pid)) else process.ray_worker
        rendezvous = _of_server(self.tree, pid) or self._of_ray(process) or self._of_pod(process, engine)
        if rendezvous is None:
            return None
        engine = engine or rendezvous.scheme
        key = self._key(process, rendezvous)
        return _Membership(key, engine, process, rendezvous, replica) if key else None

    def _of_ray(self, actor: Process) -> Rendezvous | None:
        """Return the Ray cluster of an engine's actor, where its replica has GPUs on other nodes too."""
        parent = self.table.processes.get(actor.parent)
        if not actor.ray_worker or parent is None or parent.rendezvous is None or self._is_complete(actor):
            return None
        return parent.rendezvous if parent.rendezvous.scheme == _RAY else None

    def _is_complete(self, actor: Process) -> bool:
        """Return whether the replica of a Ray actor has all of its GPUs here, by what the server beside it says.

        Ray starts the actors, so the server has no GPU process below it.
        """
        beside = [process for process in self.table.processes.values() if process.cgroup == actor.cgroup]
        with_gpus = {self.tree.engine(pid) for pid in self.users}
        servers = [process for process in beside if process.engine and process.pid not in with_gpus]
        sizes = [process.gpus for process in servers if process.gpus is not None]
        gpus = {uuid for process in beside if process.ray_worker for uuid in self.users.get(process.pid, ())}
        return bool(sizes) and max(sizes) <= len(gpus)

    def _of_pod(self, process: Process, engine: str) -> Rendezvous | None:
        """Return the LeaderWorkerSet group of an engine's process, from the list of pods."""
        if process.owner is None or not engine:
            return None
        pod = self.by_container.get(process.owner.container_id) or self.by_uid.get(process.owner.pod_uid)
        if pod is None or pod.group is None or (pod.group.size or 0) < 2:
            return None
        group = pod.group
        return Rendezvous(scheme=_LWS, host=group.leader, nodes=group.size, node_rank=group.index, owner=pod.uid)

    def _key(self, process: Process, rendezvous: Rendezvous) -> str:
        """Return the key, "" where the address says nothing on other nodes."""
        host = rendezvous.host
        if _is_own(host):
            host = "" if rendezvous.is_worker else self._only_address(process)
        if not host:
            return ""
        host = f"[{host}]" if ":" in host else host
        port = f":{rendezvous.port}" if rendezvous.port else ""
        return f"{rendezvous.scheme}://{host}{port}"

    def _only_address(self, process: Process) -> str:
        """Return the IPv4 address of a process's network, where it has one alone."""
        known = [address for address in self.table.addresses.get(process.netns, ()) if _is_ipv4(address)]
        return known[0] if len(known) == 1 else ""


def _is_own(host: str) -> bool:
    """Return whether an address leads to whatever node uses it."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host in _LOOPBACK_NAMES or host.endswith(".localhost")
    return address.is_loopback or address.is_unspecified


def _is_ipv4(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).version == 4
    except ValueError:
        return False
