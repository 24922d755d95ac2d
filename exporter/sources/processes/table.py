"""Reads the processes behind GPU pids and listening ports from /proc; bounded in size, and never raises.

Whatever is read may vanish between two reads, may belong to another user, and may be forged: a command line and a
title are what a process claims about itself.  What cannot be read is left out and counted in
``ProcessTable.problems``.
A read of ``cmdline`` waits for a lock that a process stuck in the driver may hold for ever, so the command line of a
process in uninterruptible sleep is left alone, and callers still run these functions where a hang stops nothing else.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TypeVar

from msgspec.structs import replace

from exporter.model.process import ListeningSocket, Process, ProcessTable, Rendezvous
from exporter.model.server import EndpointDefaults, ServerRole
from exporter.sources.processes import procfs
from exporter.sources.processes.classifier import ClassifiedServer, ServerClassifier
from exporter.sources.processes.owners import OwnerReader
from exporter.sources.processes.program import is_mps, is_relay, is_shared
from exporter.sources.processes.rendezvous import LWS_VARIABLES, RAYLET, of_group, of_raylet
from exporter.sources.processes.turns import in_turns

_DESCRIPTORS = 4096  # a process; a listening socket is opened early, so its number is low
_LINKS = 65_536  # all processes of one call
_DEPTH = 128  # generations
_LOOPBACK_OF = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # of a socket that is bound to every address
_LINK_LOCAL = ("169.254.", "fe8", "fe9", "fea", "feb")

_T = TypeVar("_T")


def read_processes(
    pids: Iterable[int],
    ports: Iterable[int],
    *,
    classifier: ServerClassifier,
    root: str = "/proc",
    limit: int = 4096,
    owners: OwnerReader | None = None,
) -> ProcessTable:
    """Read the GPU processes ``pids``, their ancestors, and who listens on ``ports`` or in their containers.

    ``owners`` reads whose the GPU processes are; None: it is not asked for.

    At most ``limit`` processes are kept.  The whole of /proc is looked through only when some port's listener is
    neither a GPU process nor an ancestor of one.
    """
    reader = ProcessReader(classifier, root, limit)
    return reader.table(sorted({pid for pid in pids if pid > 0}), frozenset(ports), owners)


class ProcessReader:
    """What one call has read so far, and how much it may still read."""

    def __init__(self, classifier: ServerClassifier, root: str, limit: int) -> None:
        self.classifier = classifier
        self.root = root
        self.limit = limit
        self.links = _LINKS
        self.problems: Counter[str] = Counter()
        self.limits: set[str] = set()  # that were reached: processes, descriptors, sockets
        self.processes: dict[int, Process] = {}
        self.sockets: dict[int, tuple[procfs.Socket, ...]] = {}
        self.addresses: dict[int, frozenset[str]] = {}
        self.holders: defaultdict[int, set[int]] = defaultdict(set)
        self.searched: set[int] = set()
        self.stats: dict[int, procfs.Stat | None] = {}
        self.commands: dict[int, tuple[str, ...]] = {}
        self.cgroups: dict[int, str] = {}
        self.home = self.netns("self")
        self.outer = self.netns(1)

    def table(self, pids: Collection[int], ports: frozenset[int], owners: OwnerReader | None = None) -> ProcessTable:
        """Read the GPU processes, then look for the listeners."""
        self.load_chains(pids)
        if owners is not None:
            self._load_owners(pids, owners)
        users = [self.processes[pid] for pid in pids if pid in self.processes]
        self._load_beside_actors(users)
        if len(users) < len(pids) and "processes" not in self.limits:
            self.problems[self._why_missing(any_found=bool(users))] += len(pids) - len(users)
        self.problems["no_permission"] += sum(user.netns == 0 for user in users)
        if ports:  # the kernel walks all of its tables for a list of sockets: 8 ms where the rest takes 0.1
            self.load_sockets(users)
        own = procfs.link(f"{self.root}/self")
        return ProcessTable(
            listeners=self._listeners(users, ports) if users else (),
            processes=self.processes,
            problems={reason: count for reason, count in self.problems.items() if count},
            home=self.home,
            outer=self.outer,
            addresses=self.addresses,
            limits=frozenset(self.limits),
            reader=int(own) if own.isascii() and own.isdecimal() and len(own) < 10 else 0,
        )

    def load_chains(self, pids: Iterable[int]) -> None:
        """Read processes and their ancestors, the owners in turns."""
        for pid in self.by_owner(pids):
            self.load_chain(pid)

    def _load_owners(self, pids: Iterable[int], owners: OwnerReader) -> None:
        for pid in pids:
            process = self.processes.get(pid)
            if process is not None:
                owner = owners.owner(self.root, pid, process.started)
                self.processes[pid] = replace(process, owner=owner)

    def _load_beside_actors(self, users: Iterable[Process]) -> None:
        """Read what may have started the Ray actors on GPUs: Ray does that, so it is not above them."""
        parents = {user.parent for user in users if user.ray_worker}
        raylets = {pid for pid in parents if pid in self.processes and self.processes[pid].title == RAYLET}
        for pid in self.all_pids() if raylets else ():
            stat = self.stat(pid)
            if stat is not None and (
                stat.parent in raylets or self.classifier.is_titled_worker(stat.title) or self.looks_like_engine(pid)
            ):
                self.load_chain(pid)

    def by_owner(self, pids: Iterable[int]) -> list[int]:
        """Return the processes, their owners in turns: whoever has many must not hide another's."""
        return in_turns(sorted(pids), lambda pid: procfs.owner(self.root, pid))

    def load_chain(self, pid: int) -> None:
        """Read a process and its ancestors; a chain that is too deep, or turns back on itself, just ends."""
        for _ in range(_DEPTH):
            if pid <= 0 or pid in self.processes:
                return
            if len(self.processes) >= self.limit:
                self.limits.add("processes")
                return
            process = self.process(pid)
            if process is None:
                return
            self.processes[pid] = process
            pid = process.parent

    def load_sockets(self, processes: Iterable[Process]) -> None:
        """Read the listening sockets and addresses of the namespaces of the daemon, of pid 1 and of these."""
        spaces: dict[int, int | str] = {self.home: "self"}
        for space, pid in ((self.outer, 1), *((process.netns, process.pid) for process in processes)):
            if space:
                spaces.setdefault(space, pid)
        for space, owner in spaces.items():
            sockets, addresses = procfs.listening(self.root, owner), procfs.addresses(self.root, owner)
            if any(sum((":" in row.address) is v6 for row in sockets) >= procfs.MAX_SOCKETS for v6 in (False, True)):
                self.limits.add("sockets")
            if self.netns(owner) == space:  # else it changed its namespace meanwhile: these are another's
                self.sockets[space], self.addresses[space] = sockets, addresses
        name = procfs.hostname(self.root)
        self.addresses[self.home] = self.addresses.get(self.home, frozenset()) | ({name} - {""})

    def load_descriptors(self, pid: int, inodes: Collection[int]) -> None:
        """Record which of the sockets ``inodes`` the process holds."""
        if pid in self.searched:
            return
        self.searched.add(pid)
        limit = min(_DESCRIPTORS, self.links)
        read, is_listening = 0, False
        try:
            for target in procfs.descriptors(self.root, pid, limit):
                read += 1
                inode = procfs.bracketed(target, "socket:")
                if inode in inodes:
                    self.holders[inode].add(pid)
                    is_listening = True
        except PermissionError:
            self.problems["no_permission"] += 1
        self.links -= read
        if read >= limit and not is_listening:
            self.limits.add("descriptors")

    def all_pids(self) -> Iterator[int]:
        """Yield the pids of all processes but the kernel's own, at most ``limit``."""
        second = self.stat(2)  # inside of a container it is an ordinary process
        kernel = 2 if second is not None and second.title == "kthreadd" else 0
        pids = list(procfs.pids(self.root))
        if len(pids) >= procfs.MAX_PIDS:
            self.limits.add("processes")
        if len(pids) > self.limit:
            pids = self.by_owner(pids)  # thousands of processes cost nothing while they sleep
        left = self.limit
        for pid in pids:
            stat = self.stat(pid)
            if stat is None or (kernel and kernel in (pid, stat.parent)):
                continue
            left -= 1
            if left < 0:
                self.limits.add("processes")
                return
            yield pid

    def looks_like_engine(self, pid: int) -> bool:
        """Return whether the command line is an engine server's."""
        classified = self.classify(pid)
        return classified is not None and classified.server.role is ServerRole.SERVER

    def classify(self, pid: int) -> ClassifiedServer | None:
        """Return which engine's server the process is, None for anything else."""
        stat = self.stat(pid)
        if stat is None or not self.classifier.may_be_server(stat.title):
            return None
        return self.classifier.classify(self.command(pid))

    def serving_socket(self, server: Process, endpoint: EndpointDefaults) -> procfs.Socket | None:
        """Return the metrics' socket among those a server holds: the configured one, else its default."""
        held = [row for row in self.sockets.get(server.netns, ()) if server.pid in self.holders.get(row.inode, ())]
        variable = endpoint.port_variable and self.variable(server.pid, endpoint.port_variable)
        for port in (server.flag(*endpoint.port_flags), variable, *map(str, endpoint.ports)):
            for row in held:
                if str(row.port) == port:
                    return row
        return held[0] if len({row.port for row in held}) == 1 else None

    def reachable(self, process: Process, address: str) -> str | None:
        """Return the host under which the daemon reaches a socket that a process has bound to ``address``.

        Anybody may bind an address that is another's (``IP_FREEBIND``): a metadata service's, say.  So only an
        address counts that the namespace has, and no link-local one.

        Anybody may also enter a network namespace of their own and have any address there.  Without privileges that
        takes a user namespace of their own, and the kernel keeps which user namespace owns a network namespace.  So
        another one counts only where that is the daemon's, as with those that a container runtime of root creates,
        and there no address of this host.
        """
        space = process.netns
        if space == self.home:
            host = _LOOPBACK_OF.get(address, address)
            is_own = procfs.is_loopback(host) or host in self.addresses.get(space, ())
            return host if is_own and not host.startswith(_LINK_LOCAL) else None
        host_in_space = self._address_in(space, address)
        if host_in_space is None or host_in_space in self.addresses.get(self.home, ()):
            return None
        if host_in_space.startswith(_LINK_LOCAL):
            return None
        owner = procfs.user_namespace(self.root, process.pid, "net")
        is_of_runtime = owner != 0 and owner == procfs.user_namespace(self.root, "self", "net")
        return host_in_space if is_of_runtime and self.netns(process.pid) == space else None

    def _address_in(self, space: int, address: str) -> str | None:
        own = self.addresses.get(space, frozenset())
        if address not in _LOOPBACK_OF:
            return address if address in own else None
        numeric = sorted(host for host in own if host[:1].isdigit() and ":" not in host)
        return numeric[0] if numeric else None

    def process(self, pid: int) -> Process | None:
        """Read one process; None when it is gone."""
        stat = self.stat(pid)
        if stat is None:
            return None
        command = self.command(pid)
        server, ranks = self.classifier.classify(command), self.classifier.group_ranks(command)
        return Process(
            pid=pid,
            parent=stat.parent,
            command=command,
            title=stat.title,
            cgroup=self.cgroup(pid),
            netns=self.netns(pid),
            started=stat.started,
            engine=server.engine if server is not None else "",
            rank=self.classifier.rank(stat.title, command),
            shared=is_shared(stat.title, command),
            relay=is_relay(stat.title),
            mps=is_mps(stat.title),
            worker=self.classifier.is_worker(command),
            zombie=stat.state in ("Z", "X"),
            rendezvous=self.rendezvous(pid, stat.title, command, server),
            ray_worker=self.classifier.ray_worker(command) if server is None else "",
            gpus=server.gpus(command) if server is not None else None,
            pipeline_rank=ranks.pipeline,
            tensor_rank=ranks.tensor,
        )

    def rendezvous(
        self, pid: int, title: str, command: tuple[str, ...], server: ClassifiedServer | None
    ) -> Rendezvous | None:
        """Read where the nodes of the process's replica meet; None where nothing says that there are several."""
        found = of_raylet(command) if title == RAYLET else None
        if server is not None:
            found = server.rendezvous(command)
        if found is None and (server.engine if server is not None else self.classifier.ray_worker(command)):
            found = of_group(procfs.variables(self.root, pid, LWS_VARIABLES))
        return None if found is None else replace(found, owner=procfs.owner(self.root, pid))

    def stat(self, pid: int) -> procfs.Stat | None:
        """Read the fixed part once."""
        return _once(self.stats, pid, lambda: procfs.stat(self.root, pid))

    def command(self, pid: int) -> tuple[str, ...]:
        """Read the command line once, unless reading it might block."""
        stat = self.stat(pid)
        if stat is None or stat.state == "D":
            return ()
        return _once(self.commands, pid, lambda: procfs.command(self.root, pid))

    def variable(self, pid: int, name: str) -> str:
        """Read a variable of the environment, unless reading it might block."""
        stat = self.stat(pid)
        return "" if stat is None or stat.state == "D" else procfs.variable(self.root, pid, name)

    def cgroup(self, pid: int) -> str:
        """Read the container's control group once."""
        return _once(self.cgroups, pid, lambda: procfs.cgroup(self.root, pid))

    def netns(self, pid: int | str) -> int:
        """Read the network namespace's inode; 0 when it is hidden."""
        return procfs.bracketed(procfs.namespace(self.root, pid, "net"), "net:")

    def _why_missing(self, *, any_found: bool) -> str:
        """Return why a GPU pid is not in /proc: hidden from this user, another pid namespace, or simply over."""
        if procfs.stat(self.root, 1) is None:
            return "no_permission"  # mounted with hidepid
        if any_found or procfs.namespace(self.root, "self", "pid") == procfs.INITIAL_PID_NAMESPACE:
            return "vanished"
        return "pid_namespace"

    def _listeners(self, users: Collection[Process], ports: frozenset[int]) -> tuple[ListeningSocket, ...]:
        """Search in three steps, each wider than the one before, until every port's listener is known."""
        # In a container every port counts: it may be published under another number.
        private = self.sockets.keys() - {self.home, self.outer}
        rows = [
            (space, row)
            for space, held in self.sockets.items()
            for row in held
            if space in private or row.port in ports
        ]
        inodes = {row.inode for _, row in rows} - {0}
        wanted = {row.inode for _, row in rows if row.port in ports}
        everywhere = ports <= {row.port for _, row in rows}
        pids = {user.pid for user in users}
        for step in (self._ancestors(pids), self.by_owner(pids), self._relatives(users)):
            if everywhere and wanted <= self.holders.keys():
                break
            for pid in step:
                self.load_descriptors(pid, inodes)
        return tuple(
            ListeningSocket(
                port=row.port, address=row.address, netns=space, pids=frozenset(self.holders.get(row.inode, ()))
            )
            for space, row in rows
            if row.port in ports or row.inode in self.holders
        )

    def _ancestors(self, pids: Collection[int]) -> list[int]:
        return [pid for pid, process in self.processes.items() if pid not in pids and not process.shared]

    def _relatives(self, users: Collection[Process]) -> Iterator[int]:
        """Yield relays, the relatives of the GPU processes, their containers' other processes, and other engines."""
        containers = {user.cgroup for user in users} - {""}
        private = {user.netns for user in users} - {0, self.home, self.outer}
        all_pids = list(self.all_pids())
        related = self._descendants({self._top(user) for user in users}, all_pids)
        for pid in all_pids:
            stat = self.stat(pid)
            if (
                pid in related
                or (stat is not None and is_relay(stat.title))
                or (containers and self.cgroup(pid) in containers)
                or (private and self.netns(pid) in private)
                or self.looks_like_engine(pid)
            ):
                self.load_chain(pid)
                yield pid

    def _top(self, process: Process) -> int:
        """Return the highest ancestor that still belongs to one server."""
        for _ in range(_DEPTH):
            parent = self.processes.get(process.parent)
            if parent is None or parent.shared or parent.pid == 1:
                break
            process = parent
        return process.pid

    def _descendants(self, tops: Iterable[int], all_pids: Iterable[int]) -> set[int]:
        children: defaultdict[int, list[int]] = defaultdict(list)
        for pid in all_pids:
            if (stat := self.stat(pid)) is not None:
                children[stat.parent].append(pid)
        related: set[int] = set()
        waiting = list(tops)
        while waiting:
            pid = waiting.pop()
            if pid not in related:
                related.add(pid)
                waiting.extend(children[pid])
        return related


def _once(known: dict[int, _T], pid: int, read: Callable[[], _T]) -> _T:
    if pid not in known:
        known[pid] = read()
    return known[pid]
