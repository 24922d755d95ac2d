"""Replicas that span nodes: which GPUs of this node belong to one, under a key that is the same on all nodes.

The key is the address at which the processes of all nodes meet.  A command line is a claim, so it decides nothing
about this node's own replicas: which GPUs those have is known from processes and sockets.  And where processes of two
owners claim the same place in a replica, neither gets it, unless one of them is known to belong to a replica here.
"""

from __future__ import annotations

import ipaddress
from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import NamedTuple

from exporter.derive.process_tree import ProcessTree
from exporter.model import DisputedPlace, MultiNodeGpu, Pod
from exporter.model.process import Process, ProcessTable, Rendezvous

MAX_KEYS = 4  # of one GPU
MAX_DISPUTED = 4  # places that are named
_SHOWN = 64  # characters of a control group
LOOPBACK_NAMES = frozenset(("localhost", "localhost.localdomain", "ip6-localhost", "ip6-loopback"))
_RAY, _LWS = "ray", "lws"
_RAY_ACTOR = "ray::"
_NO_STARTERS = frozenset(("IDLE", "ProxyActor", "ServeController"))  # what any node of a cluster may have


class MultiNode(NamedTuple):
    """The GPUs of replicas that span nodes, one row for each GPU and replica, and the places that nobody has."""

    gpus: tuple[MultiNodeGpu, ...]
    disputed: tuple[DisputedPlace, ...]


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
) -> MultiNode:
    """Return the GPUs of replicas that span nodes, and which of the places in them are disputed.

    ``users``: GPU process → UUIDs.  ``assigned``: GPU process → the replica of this node that has it.  ``replicas``:
    the names of all, which no key may take.
    """
    finder = _Finder(table, users, assigned, pods)
    claims = [claim for pid in sorted(users) if (claim := finder.claim(pid)) is not None]
    rows: dict[tuple[str, str], MultiNodeGpu] = {}
    keys: defaultdict[str, set[str]] = defaultdict(set)  # uuid →
    undisputed, disputed = _by_dispute(claims)
    for claim in sorted(undisputed, key=lambda claim: not claim.replica):
        for uuid in users[claim.process.pid] if claim.key not in replicas else ():
            if len(keys[uuid] | {claim.key}) <= MAX_KEYS:
                keys[uuid].add(claim.key)
                rows.setdefault((uuid, claim.key), _row(uuid, claim))
    return MultiNode(tuple(rows.values()), tuple(disputed[:MAX_DISPUTED]))


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


def _by_dispute(claims: Collection[_Membership]) -> tuple[list[_Membership], list[DisputedPlace]]:
    places: defaultdict[tuple[str, int | None, int | None], list[_Membership]] = defaultdict(list)
    for claim in claims:
        places[claim.key, claim.rendezvous.node_rank, claim.rendezvous.first_rank].append(claim)
    undisputed, disputed = [], []
    for (key, node_rank, _), same in places.items():
        of_owner = {claim.rendezvous.owner: claim for claim in reversed(same)}
        known = [claim for claim in same if claim.replica]
        if known or len(of_owner) == 1:
            undisputed += known or same
        else:
            named = tuple((claim.process.pid, _whose(claim)) for claim in of_owner.values())[:MAX_KEYS]
            disputed.append(DisputedPlace(key=key, node_rank=node_rank, claims=named))
    return undisputed, disputed


def _whose(claim: _Membership) -> str:
    owner = claim.rendezvous.owner
    if not owner.lstrip("-").isdecimal():
        return f"container {owner.rpartition('/')[2][:_SHOWN]}"
    known = claim.process.owner
    return f"user {known.user}" if known is not None and known.user else f"uid {owner}"


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
        self.above_gpus = {ancestor for pid in users for ancestor in self.tree.ancestry(pid)}

    def claim(self, pid: int) -> _Membership | None:
        """Return what a GPU process claims; None for one whose replica is on this node alone."""
        process = self.table.processes.get(pid)
        if process is None:
            return None
        replica = self.assigned.get(pid, "")
        engine = self.table.processes[server].engine if (server := self.tree.engine(pid)) else process.ray_worker
        rendezvous = _of_server(self.tree, pid) or self._of_pod(process, engine) or self._of_ray(process)
        if rendezvous is None:
            return None
        engine = engine or rendezvous.scheme
        key = self._key(process, rendezvous)
        return _Membership(key, engine, process, rendezvous, replica) if key else None

    def _of_ray(self, actor: Process) -> Rendezvous | None:
        """Return the Ray cluster of an engine's actor whose replica is known to be more than what is here.

        Either a server beside it says so, or nothing here can have started it, so that its server is on another node.
        An actor of Ray Serve does not say how many GPUs its replica has: it may be complete.
        """
        raylet = self.table.processes.get(actor.parent)
        if not actor.ray_worker or raylet is None or raylet.rendezvous is None or raylet.rendezvous.scheme != _RAY:
            return None
        beside = [process for process in self.table.processes.values() if process.cgroup == actor.cgroup]
        gpus = {
            uuid
            for process in beside
            if process.parent == raylet.pid and process.ray_worker
            for uuid in self.users.get(process.pid, ())
        }
        without_gpus = [process for process in beside if not self._has_gpus(process)]
        is_larger = any((process.gpus or 0) > len(gpus) for process in without_gpus if process.engine)
        is_started_here = any(_may_start(process, raylet.pid) for process in without_gpus)
        return raylet.rendezvous if is_larger or not is_started_here else None

    def _has_gpus(self, process: Process) -> bool:
        """Return whether a process, its engine's server or what is below it has a GPU."""
        return process.pid in self.above_gpus or self.tree.engine(process.pid) in self.above_gpus

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


def _may_start(process: Process, raylet: int) -> bool:
    """Return whether a process without a GPU may be what has asked a raylet for an engine's actors."""
    name = process.command[0] if process.command else process.title
    if process.parent == raylet:
        actor = name.removeprefix(_RAY_ACTOR).partition(".")[0].partition(":")[0]
        return name.startswith(_RAY_ACTOR) and not process.ray_worker and actor not in _NO_STARTERS
    if process.engine:
        return any(word == _RAY or word.endswith(f"={_RAY}") for word in process.command)
    return bool(process.ray_worker)  # an engine's process that is no actor, as its core


def _is_own(host: str) -> bool:
    """Return whether an address leads to whatever node uses it."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host in LOOPBACK_NAMES or host.endswith(".localhost")
    return address.is_loopback or address.is_unspecified


def _is_ipv4(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).version == 4
    except ValueError:
        return False
