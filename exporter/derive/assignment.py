"""Decides which card serves which replica, from the configuration or from who listens where; guesses nothing.

A replica's cards are those of the GPU processes that belong to the server behind its URL.  Evidence is tried from the
strongest down: one process tree, one container, one private network namespace, and last a published port where only
one replica and one container are left.  Equal evidence for two replicas is evidence for none.
"""

from __future__ import annotations

import ipaddress
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from msgspec import Struct

from exporter.derive.gpu_processes import GpuProcesses, gpu_processes
from exporter.model import EMPTY, CardState, GpuAssignment, Missing, Signal
from exporter.model.process import Listener, Process, ProcessTable

_DEPTH = 128  # generations; deeper trees are not real
_LOOPBACK_NAMES = frozenset(("localhost", "localhost.localdomain", "ip6-localhost", "ip6-loopback"))
_ANY = frozenset(("0.0.0.0", "::"))
# VLLM::Worker_DP1_TP0, VLLM::EngineCore_DP1, sglang::scheduler_DP1_TP0; the prefix may be changed by the user.
_RANK = re.compile(r"::.*_DP(\d{1,5})(?![0-9A-Za-z])")
_TITLE_BYTES = 15  # what the kernel keeps of a title; a number at its end may have been cut


class Endpoint(Struct, frozen=True, kw_only=True):
    """Where a replica is polled.  ``host`` is an address, or a name of this node; ``gpus`` indices or UUIDs."""

    replica: str
    host: str
    port: int
    gpus: tuple[int | str, ...] | None


class Assignment(Struct, frozen=True, kw_only=True):
    """Who owns what, and why the other replicas own nothing (or, for unknown_gpu, not all they should).

    Reasons: remote (not on this node), no_driver (no card was read), no_processes (no GPU process is known to belong
    to the server), pid_namespace (the daemon does not see the GPU processes), no_permission (it may not look),
    no_listener (nobody listens on the port), ambiguous (as near to another replica), unknown_gpu (no such card); and
    hung (the process table cannot be read), which ``placement`` says.
    """

    gpus: tuple[GpuAssignment, ...] = ()
    unassigned: Mapping[str, str] = EMPTY

    def among(self, replicas: Collection[str]) -> Assignment:
        """Leave out the replicas that are not among these."""
        if all(one.replica in replicas for one in self.gpus) and all(name in replicas for name in self.unassigned):
            return self
        return Assignment(
            gpus=tuple(one for one in self.gpus if one.replica in replicas),
            unassigned={name: reason for name, reason in self.unassigned.items() if name in replicas},
        )


def assign_gpus(
    cards: Sequence[CardState],
    endpoints: Sequence[Endpoint],
    table: ProcessTable | None,
    sitting: GpuProcesses | None = None,
) -> Assignment:
    """Assign cards to replicas; rows are unique, in the order of the cards.

    ``sitting``: who sits on which card, where that is known better than from what the
    cards say now; see ``gpu_processes``.
    """
    configured = {one.replica: _named(cards, one.gpus) for one in endpoints if one.gpus is not None}
    search = _Search(cards, endpoints, table, configured, sitting) if table is not None else None
    rows: dict[str, set[tuple[str, str]]] = defaultdict(set)  # replica → (uuid, rank)
    unassigned: dict[str, str] = {}
    for endpoint in endpoints:
        name = endpoint.replica
        found = search.claims.get(name, set()) if search else set()
        if endpoint.gpus is not None:
            rows[name] |= _ranked(configured[name][0], found)
            if not configured[name][1]:
                unassigned[name] = "unknown_gpu" if cards else "no_driver"
        elif found:
            rows[name] |= found
        else:
            unassigned[name] = search.reason(endpoint) if search else ("no_processes" if cards else "no_driver")
    place = {card.facts.uuid: position for position, card in enumerate(cards)}
    ordered = sorted(
        (place[uuid], name, rank, uuid)
        for name, pairs in rows.items()
        for uuid, rank in pairs
        if rank or not any(one == uuid and other for one, other in pairs)  # a known rank says more than none
    )
    return Assignment(
        gpus=tuple(GpuAssignment(uuid=uuid, replica=name, rank=rank) for _, name, rank, uuid in ordered),
        unassigned=unassigned,
    )


def _named(cards: Sequence[CardState], gpus: Iterable[int | str]) -> tuple[frozenset[str], bool]:
    """Find the configured cards, and say whether all are there; an index names all instances of a card."""
    found: set[str] = set()
    complete = True
    for gpu in gpus:
        word = str(gpu).lower()
        matching = {card.facts.uuid for card in cards if word in (str(card.facts.index), card.facts.uuid.lower())}
        found |= matching
        complete = complete and bool(matching)
    return frozenset(found), complete


def _ranked(uuids: Iterable[str], found: Collection[tuple[str, str]]) -> set[tuple[str, str]]:
    """Give configured cards the ranks that their processes show, "" where there are none."""
    return {pair for uuid in uuids for pair in [one for one in found if one[0] == uuid] or [(uuid, "")]}


class _Forest:
    """The processes as trees, proof against cycles, holes and reused pids."""

    def __init__(self, table: ProcessTable) -> None:
        self.table = table
        self.chains: dict[int, tuple[int, ...]] = {}
        self.roots: dict[int, int] = {}

    def chain(self, pid: int) -> tuple[int, ...]:
        """Give the process and its ancestors, nearest first, as far as they are known."""
        if pid not in self.chains:
            found: list[int] = []
            at, process = pid, self.table.processes.get(pid)
            while process is not None and at not in found and len(found) < _DEPTH:
                found.append(at)
                at, child = process.parent, process
                process = self.table.processes.get(at)
                if process is not None and _younger(process, child):
                    break
            self.chains[pid] = tuple(found)
        return self.chains[pid]

    def root(self, pid: int) -> int:
        """Give the highest engine server that the process is or descends from, or 0."""
        if pid not in self.roots:
            engines = [one for one in self.chain(pid) if self.table.processes[one].engine]
            self.roots[pid] = engines[-1] if engines else 0
        return self.roots[pid]

    def strangers(self, user: int, server: int) -> bool:
        """Say whether the two belong to different engine servers, which nothing may join."""
        return bool(self.root(user)) and bool(self.root(server)) and self.root(user) != self.root(server)

    def glue(self, pid: int) -> bool:
        """Say whether being below this process makes two processes one server."""
        process = self.table.processes.get(pid)
        return process is not None and pid not in (1, self.table.reader) and not process.shared

    def distance(self, user: int, server: int) -> int | None:
        """Count generations from a GPU process up to the server, or to the ancestor they share."""
        if self.strangers(user, server):
            return None
        above_server = self.chain(server)
        for steps, pid in enumerate(self.chain(user)):
            if pid == server:
                return steps
            if pid in above_server:
                return steps if self.glue(pid) else None
            if pid == self.root(user) and server not in self.chain(pid):
                return None  # what stands beside an engine's tree is no part of it
        return None


class _Search:
    """Joins GPU processes with the servers behind the endpoints."""

    def __init__(
        self,
        cards: Sequence[CardState],
        endpoints: Sequence[Endpoint],
        table: ProcessTable,
        configured: Mapping[str, tuple[frozenset[str], bool]],
        sitting: GpuProcesses | None,
    ) -> None:
        self.cards = cards
        self.table = table
        self.forest = _Forest(table)
        self.users = self._users(gpu_processes(cards) if sitting is None else sitting)
        self.relayed: set[str] = set()
        self.sockets = {one.replica: self._sockets(one) for one in endpoints}
        self.servers = {name: self._servers(rows) for name, rows in self.sockets.items()}
        self.claims: dict[str, set[tuple[str, str]]] = defaultdict(set)
        self.ambiguous: set[str] = set()
        left: list[int] = []
        for pid in sorted(self.users.keys() & table.processes.keys()):
            names = self._nearest(pid)
            if len(names) == 1:
                self._claim(names[0], pid)
            elif names:
                self.ambiguous.update(names)
            else:
                left.append(pid)
        taken = {uuid for uuids, _ in configured.values() for uuid in uuids}
        self._join_published(
            [pid for pid in left if not self.users[pid] <= taken],
            [one for one in endpoints if one.gpus is None],
        )

    def reason(self, endpoint: Endpoint) -> str:
        """Say why no card was found for a replica."""
        name = endpoint.replica
        problems = self.table.problems
        if not self._spaces(endpoint.host):
            return "remote"
        if not self.users:
            return self._why_no_users()
        if not self.users.keys() & self.table.processes.keys():
            return next((word for word in ("pid_namespace", "no_permission") if problems.get(word)), "no_processes")
        if name in self.ambiguous:
            return "ambiguous"
        if problems.get("no_permission") and any(not row.pids for row in self.sockets[name]):
            return "no_permission"
        return "no_processes" if self.sockets[name] or name in self.relayed else "no_listener"

    def _why_no_users(self) -> str:
        readings = [card.reading for card in self.cards if card.reading is not None]
        if not readings:
            return "no_driver"
        if any(one.missing.get(Signal.PROCESSES) == Missing.NO_PERMISSION for one in readings):
            return "no_permission"
        return "no_processes"

    def _users(self, sitting: GpuProcesses) -> dict[int, set[str]]:
        """Collect the GPU processes and their cards, without those that hold a card for others."""
        users: dict[int, set[str]] = defaultdict(set)
        for uuid, pids in sitting.items():
            for pid in pids:
                process = self.table.processes.get(pid)
                if process is None or not process.mps:
                    users[pid].add(uuid)
        return users

    def _spaces(self, host: str) -> frozenset[int]:
        """Find the network namespaces that a host name or address leads to; none when it is not on this node."""
        address = _address(host)
        if address is None:
            return frozenset((self.table.home,))
        return frozenset(space for space, known in self.table.addresses.items() if address in known)

    def _sockets(self, endpoint: Endpoint) -> tuple[Listener, ...]:
        """Find the sockets that answer an endpoint, through the relay of a published port where there is one."""
        spaces = self._spaces(endpoint.host)
        here = [one for one in self.table.listeners if one.port == endpoint.port and one.netns in spaces]
        host = _plain(endpoint.host)
        exact = {"127.0.0.1", "::1"} if host in _LOOPBACK_NAMES | _ANY else {host}
        general = {"::"} if ":" in host else _ANY
        rows = [one for one in here if one.address in exact] or [one for one in here if one.address in general]
        relays = [relay for row in rows for relay in self._relays(row)]
        if not relays:
            return tuple(rows)
        # The relay knows better than any guess, also when it leads to nothing that uses a card.
        self.relayed.add(endpoint.replica)
        return tuple(inner for relay in relays for inner in self._behind(relay))

    def _relays(self, row: Listener) -> list[Process]:
        """Find the relays of a published port whose command line says where they lead (docker-proxy's does)."""
        holders = (self.table.processes.get(pid) for pid in row.pids)
        return [one for one in holders if one is not None and one.relay and one.flag("-host-port") == str(row.port)]

    def _behind(self, relay: Process) -> list[Listener]:
        address, port = relay.flag("-container-ip"), relay.flag("-container-port")
        inside = {space for space, known in self.table.addresses.items() if address in known}
        return [one for one in self.table.listeners if one.netns in inside and str(one.port) == port]

    def _servers(self, rows: Iterable[Listener]) -> frozenset[int]:
        """Collect who holds the sockets; a supervisor that opened one for its child does not count."""
        known = (self.table.processes.get(pid) for row in rows for pid in row.pids)
        return frozenset(one.pid for one in known if one is not None and not one.shared and not one.relay)

    def _nearest(self, pid: int) -> list[str]:
        """Name the replicas for which the evidence is strongest: one is an answer, more are a tie."""
        near: dict[str, int] = {}
        for name, servers in self.servers.items():
            steps = [far for server in servers if (far := self.forest.distance(pid, server)) is not None]
            if steps:
                near[name] = min(steps)
        if near:
            return [name for name, steps in near.items() if steps == min(near.values())]
        user = self.table.processes[pid]
        return self._sharing(user, lambda one: one.cgroup) or self._sharing(user, self._private)

    def _sharing(self, user: Process, trait: Callable[[Process], object]) -> list[str]:
        """Name the replicas with a server that shares a trait with a GPU process; an empty trait says nothing."""
        own = trait(user)
        if not own:
            return []
        return [
            name
            for name, servers in self.servers.items()
            if any(
                trait(self.table.processes[one]) == own and not self.forest.strangers(user.pid, one)
                for one in servers
            )
        ]

    def _private(self, process: Process) -> int:
        """Give the network namespace of a process where it is a container's or pod's own, else 0."""
        return 0 if process.netns in (self.table.home, self.table.outer) else process.netns

    def _join_published(self, pids: Iterable[int], endpoints: Iterable[Endpoint]) -> None:
        """Join the last replica without cards with the last container without replica, if there is one of each."""
        containers: dict[object, list[int]] = defaultdict(list)
        for pid in pids:
            process = self.table.processes[pid]
            key = process.cgroup or self._private(process)
            if key and any(self._engine_listens(one, process) for one in self.table.listeners):
                containers[key].append(pid)
        waiting = {
            one.replica
            for one in endpoints
            if one.replica not in self.claims
            and one.replica not in self.ambiguous | self.relayed
            and not self.servers[one.replica]
            and self._spaces(one.host) & {self.table.home, self.table.outer}
        }
        if len(containers) == 1 and len(waiting) == 1:
            for pid in next(iter(containers.values())):
                self._claim(next(iter(waiting)), pid)

    def _engine_listens(self, listener: Listener, user: Process) -> bool:
        """Say whether an engine's server listens there, in the container of a GPU process."""
        for pid in listener.pids & self.table.processes.keys():
            holder = self.table.processes[pid]
            same = holder.cgroup == user.cgroup if user.cgroup else holder.netns == user.netns
            if same and self.forest.root(pid) and not self.forest.strangers(user.pid, pid):
                return True
        return False

    def _claim(self, name: str, pid: int) -> None:
        rank = self._rank(pid)
        self.claims[name].update((uuid, rank) for uuid in self.users[pid])

    def _rank(self, pid: int) -> str:
        """Find the data-parallel rank on the way from a GPU process up to its server."""
        for one in self.forest.chain(pid):
            process = self.table.processes[one]
            if process.shared:
                return ""
            title = process.command[0] if process.command else process.title
            match = _RANK.search(title)
            if match and (process.command or len(title) < _TITLE_BYTES):
                return match.group(1)
            rank = process.flag("--data-parallel-rank", "-dpn")
            if rank.isascii() and rank.isdecimal() and len(rank) < 6:
                return rank
        return ""


def _younger(parent: Process, child: Process) -> bool:
    """Say whether the parent started after its child: then its pid was reused while the table was read."""
    return parent.started is not None and child.started is not None and parent.started > child.started


def _plain(host: str) -> str:
    """Write a host as the table writes addresses: lower case, no brackets, no zone, IPv4 out of IPv6."""
    text = host.strip().strip("[]").partition("%")[0].rstrip(".").lower()
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return text
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


def _address(host: str) -> str | None:
    """Give the plain host, or None for the node itself (loopback, or the address that stands for all)."""
    text = _plain(host)
    if text in _LOOPBACK_NAMES or text in _ANY or text == "::1" or _loopback(text):
        return None
    return text


def _loopback(text: str) -> bool:
    try:
        return ipaddress.ip_address(text).is_loopback
    except ValueError:
        return False
