"""What one scan of the processes found: who runs, who listens where, and what could not be read."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from exporter.model import EMPTY
from exporter.model.server import ServerRole


class Process(Struct, frozen=True, kw_only=True):
    """One process.  ``started`` counts seconds from boot; ``cgroup`` ends at the container, "" outside of one.

    ``engine``: the kind of engine whose server the command line starts, else "".  ``shared``: a shell, supervisor or
    container runtime; what stands below it is not one server.  ``relay``: it only passes a published port on into a
    container.  ``mps``: CUDA's multi-process service, which holds a GPU for its clients.
    """

    pid: int
    parent: int
    command: tuple[str, ...] = ()  # the first 4 KiB; a process that renames itself has its title in command[0]
    title: str = ""
    cgroup: str = ""
    netns: int = 0  # 0: not known
    started: float | None = None
    engine: str = ""
    shared: bool = False
    relay: bool = False
    mps: bool = False

    def flag(self, *names: str) -> str:
        """Return the value of the first ``--name value`` or ``--name=value`` on the command line, else ""."""
        for position, word in enumerate(self.command):
            name, equals, value = word.partition("=")
            if name in names:
                return value if equals else "".join(self.command[position + 1 : position + 2])
        return ""

    def has_flag(self, *names: str) -> bool:
        """Return whether ``--name``, with or without a value, is on the command line; ``--name=`` does not count."""
        words = (word.partition("=") for word in self.command)
        return any(name in names and bool(value or not equals) for name, equals, value in words)


class Listener(Struct, frozen=True, kw_only=True):
    """A listening TCP socket; ``pids`` are those holders that were found, none when it is a stranger's."""

    port: int
    address: str
    netns: int
    pids: frozenset[int] = frozenset()


class ProcessTable(Struct, frozen=True, kw_only=True):
    """The processes of interest at one moment.

    ``problems`` counts what could not be read: no_permission, vanished, pid_namespace (the GPU pids belong to
    another pid namespace), truncated.  ``home`` is the daemon's network namespace, ``outer`` that of pid 1;
    ``addresses`` holds what each namespace is reached by, without loopback.  ``reader`` is the daemon's own pid.
    """

    processes: Mapping[int, Process]
    listeners: tuple[Listener, ...] = ()
    problems: Mapping[str, int] = EMPTY
    home: int = 0
    outer: int = 0
    addresses: Mapping[int, frozenset[str]] = EMPTY
    reader: int = 0


class ListeningEngine(Struct, frozen=True, kw_only=True):
    """An engine's server that was found on this node, and where the daemon reaches its metrics endpoint.

    ``probe``: its page must be seen before it counts as an engine.
    """

    kind: str
    role: ServerRole = ServerRole.SERVER
    host: str
    port: int
    pid: int
    path: str = "/metrics"
    tls: bool = False
    probe: bool = False
