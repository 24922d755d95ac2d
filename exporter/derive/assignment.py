"""Assignment of GPUs to replicas, from the configuration or from processes and listening sockets; nothing is guessed.

A replica's cards are those of the GPU processes that belong to the server behind its URL.  The evidence, strongest
first: one process tree, one container, one private network namespace, and last a published port where only one
replica and one container are left.  Equal evidence for two replicas is evidence for none.
"""

from __future__ import annotations

import ipaddress
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct

from exporter.derive.gpu_processes import GpuProcesses, gpu_processes
from exporter.derive.multi_node import LOOPBACK_NAMES, MultiNode, find_multi_node, is_of_other_node
from exporter.derive.parallel_sizes import parallel_sizes
from exporter.derive.process_tree import ProcessTree
from exporter.model import EMPTY, CardState, GpuAssignment, Missing, MultiNodeGpu, ParallelSizes, Pod, Signal
from exporter.model.node import DisputedPlace
from exporter.model.process import ListeningSocket, Process, ProcessTable

_ANY = frozenset(("0.0.0.0", "::"))


class Endpoint(Struct, frozen=True, kw_only=True):
    """Where a replica is polled.  ``host``: an address, or a name of this node; ``gpus``: indices or UUIDs."""

    replica: str
    host: str
    port: int
    gpus: tuple[int | str, ...] | None


class Assignment(Struct, frozen=True, kw_only=True):
    """The cards of all replicas, and why the others have none (for unknown_gpu: not all that are configured).

    ``multi_node``: those of replicas that span nodes.  A replica whose metrics endpoint is on another node has rows
    in ``gpus`` too, under its key.  ``parallel_sizes``: of the replicas of this node whose processes tell them.

    Reasons: remote (not on this node), no_driver (no card was read), no_processes (no known GPU process belongs to
    the server), pid_namespace (the GPU processes are not visible), no_permission (they may not be read), no_listener
    (the port is closed), ambiguous (equal evidence for another replica), unknown_gpu (no such card), and hung (the
    process table cannot be read), which the assignment watcher adds.
    """

    gpus: tuple[GpuAssignment, ...] = ()
    multi_node: tuple[MultiNodeGpu, ...] = ()
    disputed: tuple[DisputedPlace, ...] = ()
    unassigned: Mapping[str, str] = EMPTY
    parallel_sizes: Mapping[str, ParallelSizes] = EMPTY

    def among(self, replicas: Collection[str]) -> Assignment:
        """Return the assignment without replicas that are not among these; those of other nodes stay."""
        known = {*replicas, *(gpu.key for gpu in self.multi_node)}
        if known.issuperset(
            (*(gpu.replica for gpu in self.gpus), *(gpu.replica for gpu in self.multi_node), *self.unassigned)
        ):
            return self
        return Assignment(
            gpus=tuple(gpu for gpu in self.gpus if gpu.replica in known),
            multi_node=tuple(gpu for gpu in self.multi_node if gpu.replica in known),
            disputed=self.disputed,
            unassigned={name: reason for name, reason in self.unassigned.items() if name in known},
            parallel_sizes={name: sizes for name, sizes in self.parallel_sizes.items() if name in known},
        )


class _Configured(NamedTuple):
    """The cards that the configuration names, and whether all of them exist."""

    uuids: frozenset[str]
    complete: bool


class _Claim(NamedTuple):
    """A card that one of the replica's processes uses, and the data-parallel rank, "" where not known."""

    uuid: str
    rank: str


def assign_gpus(
    cards: Sequence[CardState],
    endpoints: Sequence[Endpoint],
    table: ProcessTable | None,
    processes: GpuProcesses | None = None,
    pods: Collection[Pod] = (),
) -> Assignment:
    """Assign cards to replicas; rows are unique, in the order of the cards.

    ``processes``: those on each card, where more is known of them than the cards report now; see ``gpu_processes``.
    ``pods``: those of this node.
    """
    configured = {
        endpoint.replica: _configured(cards, endpoint.gpus) for endpoint in endpoints if endpoint.gpus is not None
    }
    assigner = _Assigner(cards, endpoints, table, configured, processes) if table is not None else None
    claims: dict[str, set[_Claim]] = defaultdict(set)
    unassigned: dict[str, str] = {}
    for endpoint in endpoints:
        name = endpoint.replica
        of_processes = assigner.claims.get(name, set()) if assigner else set()
        if endpoint.gpus is not None:
            claims[name] |= _with_ranks(configured[name].uuids, of_processes)
            if not configured[name].complete:
                unassigned[name] = "unknown_gpu" if cards else "no_driver"
        elif of_processes:
            claims[name] |= of_processes
        else:
            unassigned[name] = assigner.reason(endpoint) if assigner else ("no_processes" if cards else "no_driver")
    multi_node, disputed = assigner.multi_node(endpoints, pods) if assigner is not None else MultiNode((), ())
    for gpu in multi_node:
        if gpu.is_remote and assigner is not None:
            claims[gpu.key] |= {_Claim(gpu.uuid, rank) for rank in assigner.ranks_on(gpu.uuid)}
    order = {card.facts.uuid: position for position, card in enumerate(cards)}
    rows = sorted(
        (order[claim.uuid], name, claim.rank, claim.uuid)
        for name, of_replica in claims.items()
        for claim in of_replica
        # A known rank replaces an unknown one.
        if claim.rank or not any(other.uuid == claim.uuid and other.rank for other in of_replica)
    )
    return Assignment(
        gpus=tuple(GpuAssignment(uuid=uuid, replica=name, rank=rank) for _, name, rank, uuid in rows),
        multi_node=multi_node,
        disputed=disputed,
        unassigned=unassigned,
        parallel_sizes=assigner.parallel_sizes(multi_node) if assigner is not None else EMPTY,
    )


def _configured(cards: Sequence[CardState], gpus: Iterable[int | str]) -> _Configured:
    """Find the configured cards; an index stands for all MIG instances of a GPU."""
    uuids: set[str] = set()
    complete = True
    for gpu in gpus:
        name = str(gpu).lower()
        matching = {card.facts.uuid for card in cards if name in (str(card.facts.index), card.facts.uuid.lower())}
        uuids |= matching
        complete = complete and bool(matching)
    return _Configured(frozenset(uuids), complete)


def _with_ranks(uuids: Iterable[str], claims: Collection[_Claim]) -> set[_Claim]:
    """Return configured cards with the ranks of their processes, "" without any."""
    known = [{claim for claim in claims if claim.uuid == uuid} or {_Claim(uuid, "")} for uuid in uuids]
    return set().union(*known)


class _Assigner:
    """Joins GPU processes with the servers behind the endpoints."""

    def __init__(
        self,
        cards: Sequence[CardState],
        endpoints: Sequence[Endpoint],
        table: ProcessTable,
        configured: Mapping[str, _Configured],
        processes: GpuProcesses | None,
    ) -> None:
        self.cards = cards
        self.table = table
        self.tree = ProcessTree(table)
        self.users = self._users(gpu_processes(cards) if processes is None else processes)
        self.relayed: set[str] = set()
        self.sockets = {endpoint.replica: self._sockets(endpoint) for endpoint in endpoints}
        self.servers = {name: self._servers(listeners) for name, listeners in self.sockets.items()}
        self.claims: dict[str, set[_Claim]] = defaultdict(set)
        self.assigned: dict[int, str] = {}  # GPU process → replica
        self.configured = configured
        self.ambiguous: set[str] = set()
        unclaimed: list[int] = []
        for pid in sorted(self.users.keys() & table.processes.keys()):
            names = self._nearest(pid)
            if len(names) == 1:
                self._claim(names[0], pid)
            elif names:
                self.ambiguous.update(names)
            else:
                unclaimed.append(pid)
        taken = {uuid for gpus in configured.values() for uuid in gpus.uuids}
        self._join_published(
            [pid for pid in unclaimed if not self.users[pid] <= taken and not is_of_other_node(self.tree, pid)],
            [endpoint for endpoint in endpoints if endpoint.gpus is None],
        )

    def reason(self, endpoint: Endpoint) -> str:
        """Return why a replica has no card."""
        name = endpoint.replica
        problems = self.table.problems
        if not self._namespaces(endpoint.host):
            return "remote"
        if not self.users:
            return self._why_no_users()
        if not self.users.keys() & self.table.processes.keys():
            return next((word for word in ("pid_namespace", "no_permission") if problems.get(word)), "no_processes")
        if name in self.ambiguous:
            return "ambiguous"
        if problems.get("no_permission") and any(not listener.pids for listener in self.sockets[name]):
            return "no_permission"
        return "no_processes" if self.sockets[name] or name in self.relayed else "no_listener"

    def multi_node(self, endpoints: Iterable[Endpoint], pods: Collection[Pod]) -> MultiNode:
        """Return the GPUs of replicas that span nodes, and the disputed places in them."""
        configured = {
            pid: name
            for name, gpus in self.configured.items()
            for pid, uuids in self.users.items()
            if uuids <= gpus.uuids
        }
        replicas = {endpoint.replica for endpoint in endpoints}
        return find_multi_node(self.table, self.users, {**configured, **self.assigned}, replicas, pods)

    def parallel_sizes(self, multi_node: Iterable[MultiNodeGpu]) -> dict[str, ParallelSizes]:
        """Return the sizes that processes tell, of replicas with all their GPUs on this node."""
        spread = {gpu.replica for gpu in multi_node}
        processes: dict[str, list[Process]] = defaultdict(list)
        for pid, name in self.assigned.items():
            processes[name].append(self.table.processes[pid])
        sizes = {
            name: parallel_sizes(of_replica, len({claim.uuid for claim in self.claims[name]}))
            for name, of_replica in processes.items()
            if name not in spread
        }
        return {name: found for name, found in sizes.items() if found is not None}

    def ranks_on(self, uuid: str) -> set[str]:
        """Return the data-parallel ranks of the processes on a GPU that no replica of this node has."""
        return {self._rank(pid) for pid, uuids in self.users.items() if uuid in uuids and pid not in self.assigned}

    def _why_no_users(self) -> str:
        readings = [card.reading for card in self.cards if card.reading is not None]
        if not readings:
            return "no_driver"
        if any(reading.missing.get(Signal.PROCESSES) == Missing.NO_PERMISSION for reading in readings):
            return "no_permission"
        return "no_processes"

    def _users(self, processes: GpuProcesses) -> dict[int, set[str]]:
        """Collect the GPU processes and their cards, without those that hold a card for others."""
        users: dict[int, set[str]] = defaultdict(set)
        for uuid, pids in processes.items():
            for pid in pids:
                process = self.table.processes.get(pid)
                if process is None or not process.mps:
                    users[pid].add(uuid)
        return users

    def _namespaces(self, host: str) -> frozenset[int]:
        """Return the network namespaces that a host name or address leads to; none when it is not on this node."""
        address = _remote_address(host)
        if address is None:
            return frozenset((self.table.home,))
        return frozenset(space for space, known in self.table.addresses.items() if address in known)

    def _sockets(self, endpoint: Endpoint) -> tuple[ListeningSocket, ...]:
        """Return the sockets that answer an endpoint, behind the relay of a published port where there is one."""
        spaces = self._namespaces(endpoint.host)
        on_port = self._listeners(spaces, str(endpoint.port))
        host = _normalised(endpoint.host)
        exact = {"127.0.0.1", "::1"} if host in LOOPBACK_NAMES | _ANY else {host}
        general = {"::"} if ":" in host else _ANY
        listeners = [listener for listener in on_port if listener.address in exact] or [
            listener for listener in on_port if listener.address in general
        ]
        relays = [relay for listener in listeners for relay in self._relays(listener)]
        if not relays:
            return tuple(listeners)
        # The relay is certain, also when it leads to nothing that uses a card.
        self.relayed.add(endpoint.replica)
        return tuple(listener for relay in relays for listener in self._behind(relay))

    def _relays(self, listener: ListeningSocket) -> list[Process]:
        """Return the relays of a published port whose command line names their target (docker-proxy's does)."""
        holders = (self.table.processes.get(pid) for pid in listener.pids)
        port = str(listener.port)
        relays = [holder for holder in holders if holder is not None and holder.relay]
        return [relay for relay in relays if relay.flag("-host-port") == port]

    def _behind(self, relay: Process) -> list[ListeningSocket]:
        address, port = relay.flag("-container-ip"), relay.flag("-container-port")
        return self._listeners({space for space, known in self.table.addresses.items() if address in known}, port)

    def _listeners(self, spaces: Collection[int], port: str) -> list[ListeningSocket]:
        listeners = self.table.listeners
        return [listener for listener in listeners if listener.netns in spaces and str(listener.port) == port]

    def _servers(self, listeners: Iterable[ListeningSocket]) -> frozenset[int]:
        """Return the sockets' holders, without supervisors that opened one for a child."""
        processes = self.table.processes
        holders = [processes[pid] for listener in listeners for pid in listener.pids if pid in processes]
        return frozenset(holder.pid for holder in holders if not holder.shared and not holder.relay)

    def _nearest(self, pid: int) -> list[str]:
        """Return the replicas with the strongest evidence: one is an answer, several are a tie."""
        near: dict[str, int] = {}
        for name, servers in self.servers.items():
            distances = [far for server in servers if (far := self.tree.distance(pid, server)) is not None]
            if distances:
                near[name] = min(distances)
        if near:
            return [name for name, distance in near.items() if distance == min(near.values())]
        user = self.table.processes[pid]
        return self._sharing(user, lambda process: process.cgroup) or self._sharing(user, self._private_namespace)

    def _sharing(self, user: Process, trait: Callable[[Process], object]) -> list[str]:
        """Return the replicas with a server that shares a trait with a GPU process; an empty trait is no evidence."""
        own = trait(user)
        if not own:
            return []
        return [
            name
            for name, servers in self.servers.items()
            if any(
                trait(self.table.processes[server]) == own and not self.tree.unrelated(user.pid, server)
                for server in servers
            )
        ]

    def _private_namespace(self, process: Process) -> int:
        """Return the network namespace of a process where it is a container's or pod's own, else 0."""
        return 0 if process.netns in (self.table.home, self.table.outer) else process.netns

    def _join_published(self, pids: Iterable[int], endpoints: Iterable[Endpoint]) -> None:
        """Join the last replica without cards with the last container without replica, if there is one of each."""
        containers: dict[object, list[int]] = defaultdict(list)
        for pid in pids:
            process = self.table.processes[pid]
            key = process.cgroup or self._private_namespace(process)
            if key and any(self._engine_listens(listener, process) for listener in self.table.listeners):
                containers[key].append(pid)
        waiting = {
            endpoint.replica
            for endpoint in endpoints
            if endpoint.replica not in self.claims
            and endpoint.replica not in self.ambiguous | self.relayed
            and not self.servers[endpoint.replica]
            and self._namespaces(endpoint.host) & {self.table.home, self.table.outer}
        }
        if len(containers) == 1 and len(waiting) == 1:
            for pid in next(iter(containers.values())):
                self._claim(next(iter(waiting)), pid)

    def _engine_listens(self, listener: ListeningSocket, user: Process) -> bool:
        """Return whether an engine's server listens there, in the container of a GPU process."""
        for pid in listener.pids & self.table.processes.keys():
            holder = self.table.processes[pid]
            same = holder.cgroup == user.cgroup if user.cgroup else holder.netns == user.netns
            if same and self.tree.engine(pid) and not self.tree.unrelated(user.pid, pid):
                return True
        return False

    def _claim(self, name: str, pid: int) -> None:
        rank = self._rank(pid)
        self.assigned[pid] = name
        self.claims[name].update(_Claim(uuid, rank) for uuid in self.users[pid])

    def _rank(self, pid: int) -> str:
        """Return the data-parallel rank that a GPU process or an ancestor below its server names, else ""."""
        for ancestor in self.tree.ancestry(pid):
            process = self.table.processes[ancestor]
            if process.shared:
                return ""
            if process.rank:
                return process.rank
        return ""


def _normalised(host: str) -> str:
    """Return a host as the table writes addresses: lower case, no brackets, no zone, IPv4 out of mapped IPv6."""
    text = host.strip().strip("[]").partition("%")[0].rstrip(".").lower()
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return text
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


def _remote_address(host: str) -> str | None:
    """Return the normalised host, or None for this node (loopback, or the unspecified address)."""
    text = _normalised(host)
    if text in LOOPBACK_NAMES or text in _ANY or text == "::1" or _is_loopback(text):
        return None
    return text


def _is_loopback(text: str) -> bool:
    try:
        return ipaddress.ip_address(text).is_loopback
    except ValueError:
        return False
