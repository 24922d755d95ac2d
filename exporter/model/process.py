"""The process table: processes, listening sockets, and what could not be read."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from msgspec import Struct

from exporter.model import EMPTY
from exporter.model.owner import ProcessOwner
from exporter.model.server import ServerRole


def flag_value(command: Sequence[str], names: Collection[str]) -> str:
    """Return the value of the first ``--name value`` or ``--name=value`` of a command line, else ""."""
    for position, word in enumerate(command):
        name, equals, value = word.partition("=")
        if name in names:
            return value if equals else "".join(command[position + 1 : position + 2])
    return ""


class Rendezvous(Struct, frozen=True, kw_only=True):
    """Where the nodes of a replica meet, as a process claims it.

    ``scheme``: the kind of engine, ``ray`` or ``lws``.  ``host`` is normalised; for Ray it may be a cluster's id.
    ``first_rank``: the first data-parallel rank of this node.  ``headless``: it has no server.  ``owner``: whose the
    process is, its container or uid.
    """

    scheme: str
    host: str
    port: int = 0
    nodes: int | None = None
    node_rank: int | None = None
    first_rank: int | None = None
    headless: bool = False
    owner: str = ""

    @property
    def is_worker(self) -> bool:
        """Whether the replica's server is on another node."""
        return self.headless or bool(self.node_rank) or bool(self.first_rank)


class Process(Struct, frozen=True, kw_only=True):
    """One process.  ``started``: seconds after boot.  ``cgroup``: the container's, "" outside of containers.

    ``engine``: the kind of engine whose server the command line starts, else "".  ``rank``: the data-parallel rank
    that it names, else "".  ``shared``: a shell, supervisor or container runtime, whose descendants are not one
    server.  ``relay``: it forwards a published port into a container.  ``mps``: CUDA's multi-process service, which
    holds a GPU for its clients.  ``worker``: what an engine server starts beside itself, which is of no use without
    it.  ``zombie``: it has exited, and something of it is left.  ``owner``: of processes on GPUs.  ``rendezvous``: of
    an engine's server that is one of several nodes', and of Ray's raylet.  ``ray_worker``: the kind of engine whose
    Ray actor it is, else "".  ``gpus``: how many a server says that its replica has, where it may be started with
    Ray.  ``pipeline_rank`` and ``tensor_rank``: those that its title names, else "".
    """

    pid: int
    parent: int
    command: tuple[str, ...] = ()  # the first 4 KiB; a process that sets its title has it in command[0]
    title: str = ""
    cgroup: str = ""
    netns: int = 0  # 0: not known
    started: float | None = None
    engine: str = ""
    rank: str = ""
    shared: bool = False
    relay: bool = False
    mps: bool = False
    worker: bool = False
    zombie: bool = False
    owner: ProcessOwner | None = None
    rendezvous: Rendezvous | None = None
    ray_worker: str = ""
    gpus: int | None = None
    pipeline_rank: str = ""
    tensor_rank: str = ""

    def flag(self, *names: str) -> str:
        """Return the value of the first ``--name value`` or ``--name=value`` on the command line, else ""."""
        return flag_value(self.command, names)

    def has_flag(self, *names: str) -> bool:
        """Return whether ``--name``, with or without a value, is on the command line; ``--name=`` does not count."""
        words = (word.partition("=") for word in self.command)
        return any(name in names and bool(value or not equals) for name, equals, value in words)


class ListeningSocket(Struct, frozen=True, kw_only=True):
    """A listening TCP socket; ``pids``: its holders as far as they could be read."""

    port: int
    address: str
    netns: int
    pids: frozenset[int] = frozenset()


class ProcessTable(Struct, frozen=True, kw_only=True):
    """The processes of interest at one instant.

    ``problems`` counts what could not be read: no_permission, vanished, pid_namespace (the GPU pids belong to
    another pid namespace).  ``limits`` were reached: processes, descriptors, sockets.  ``home`` is the daemon's
    network namespace, ``outer`` that of pid 1; ``addresses`` are those of each namespace, without loopback.
    ``reader`` is the daemon's pid.
    """

    processes: Mapping[int, Process]
    listeners: tuple[ListeningSocket, ...] = ()
    problems: Mapping[str, int] = EMPTY
    home: int = 0
    limits: frozenset[str] = frozenset()
    outer: int = 0
    addresses: Mapping[int, frozenset[str]] = EMPTY
    reader: int = 0


class ListeningEngine(Struct, frozen=True, kw_only=True):
    """An engine's server that was found on this node, and where the daemon reaches its metrics endpoint.

    ``probe``: its page must be seen before it counts as an engine.  ``owner``: its container, else its uid.
    ``uses_gpu``: the process, or one that it started, holds a GPU.
    """

    kind: str
    role: ServerRole = ServerRole.SERVER
    host: str
    port: int
    pid: int
    path: str = "/metrics"
    tls: bool = False
    probe: bool = False
    owner: str = ""
    uses_gpu: bool = False
