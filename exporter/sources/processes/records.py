"""What one look at the processes brings: who runs, who listens where, and what could not be read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from exporter.model import EMPTY
from exporter.sources.processes.kind import engine_kind, is_mps, is_relay, is_shared


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One process.  ``started`` counts seconds from boot; ``cgroup`` ends at the container, "" outside of one."""

    pid: int
    parent: int
    command: tuple[str, ...] = ()  # the first 4 KiB; a process that renames itself has its title in command[0]
    title: str = ""
    cgroup: str = ""
    netns: int = 0  # 0: not known
    started: float | None = None

    @property
    def engine(self) -> str:
        """Give the engine kind when the command line starts one of its servers, else ""."""
        return engine_kind(self.command)

    @property
    def shared(self) -> bool:
        """Say whether it is a shell, supervisor or runtime: what stands below it is not one server."""
        return is_shared(self.title, self.command)

    @property
    def relay(self) -> bool:
        """Say whether it only passes a published port on into a container."""
        return is_relay(self.title)

    @property
    def mps(self) -> bool:
        """Say whether it is CUDA's multi-process service, which holds a card for its clients."""
        return is_mps(self.title)

    def flag(self, *names: str) -> str:
        """Give the value of the first ``--name value`` or ``--name=value`` on the command line, else ""."""
        for position, word in enumerate(self.command):
            name, equals, value = word.partition("=")
            if name in names:
                return value if equals else "".join(self.command[position + 1 : position + 2])
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """A listening TCP socket; ``pids`` are those holders that were found, none when it is a stranger's."""

    port: int
    address: str
    netns: int
    pids: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessTable:
    """The processes of interest at one moment.

    ``problems`` counts what could not be read: no_permission, vanished, pid_namespace (the GPU pids belong to
    another pid namespace), truncated.  ``home`` is the daemon's network namespace, ``outer`` that of pid 1;
    ``addresses`` holds what each namespace is reached by, without loopback.  ``reader`` is the daemon's own pid.
    """

    processes: Mapping[int, Process]
    listeners: tuple[Listener, ...] = ()
    problems: Mapping[str, int] = field(default_factory=lambda: EMPTY)
    home: int = 0
    outer: int = 0
    addresses: Mapping[int, frozenset[str]] = field(default_factory=lambda: EMPTY)
    reader: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A server that looks like an engine, and where the daemon reaches it.

    ``certain``: it need not be seen first.
    """

    kind: str
    host: str
    port: int
    pid: int
    path: str = "/metrics"
    tls: bool = False
    certain: bool = True
