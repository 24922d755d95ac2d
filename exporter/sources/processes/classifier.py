"""Classify processes by command line and title: which engine's server each is, if any.

Both are what a process claims about itself, so they decide only how a process-to-GPU assignment is looked for, never
that there is one.  Titles are compared as the kernel keeps them, cut at 15 bytes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from exporter.model.process import Rendezvous, flag_value
from exporter.model.server import ServerProcess, ServerRole
from exporter.sources.processes.program import program_of
from exporter.sources.processes.rendezvous import of_server, replica_gpus

_TITLE_BYTES = 15
# pt_main_thread: what torch 2.4 and newer call the main thread of any Python program, once it is loaded.
_INTERPRETERS = ("python", "pypy", "pt_main_thread")
_CHILD_OF_PYTHON = "from multiprocessing."  # after -c: spawned by a Python program, not started by anybody
_CHILD_WORDS = 8  # of a command line, in which that stands
_RAY_ACTOR = "ray::"
_MAX_TITLE = 128
# VLLM::Worker_DP1_PP0_TP3_EP3, sglang::scheduler_PP1_TP8: ranks of the whole replica, not of the node.
_GROUP_RANK = re.compile(r"_(PP|TP)(\d{1,4})(?![0-9A-Za-z])")


class GroupRanks(NamedTuple):
    """The pipeline and tensor ranks that a worker names in its title, "" where it does not."""

    pipeline: str
    tensor: str


class ClassifiedServer(NamedTuple):
    """An engine's kind, and the declaration of the server process that matched."""

    kind: str
    server: ServerProcess

    @property
    def engine(self) -> str:
        """The kind of engine, "" for a frontend, which is not to be taken for the engine behind it."""
        return self.kind if self.server.role is ServerRole.SERVER else ""

    def rendezvous(self, command: tuple[str, ...]) -> Rendezvous | None:
        """Return where the nodes of the server's replica meet; None where it does not say that there are several."""
        return of_server(self.kind, self.server.rendezvous, command)

    def gpus(self, command: tuple[str, ...]) -> int | None:
        """Return how many GPUs the server says that its replica has; None where its kind does not."""
        return replica_gpus(self.server.size, command)


class ServerClassifier:
    """Classifies command lines by the declarations of all engines."""

    def __init__(self, servers: Mapping[str, Sequence[ServerProcess]]) -> None:
        """``servers``: by the engine's kind."""
        self._servers = [ClassifiedServer(kind, server) for kind, declared in servers.items() for server in declared]
        names = [name.rstrip("*") for _, server in self._servers for name in (*server.programs, *server.titles)]
        self._rank_titles = [re.compile(text) for text in {server.rank_title for _, server in self._servers} - {""}]
        self._rank_flags = tuple({flag for _, server in self._servers for flag in server.rank_flags})
        self._worker_titles = tuple({name for _, server in self._servers for name in server.worker_titles})
        self._titles = (*_INTERPRETERS, *(name[:_TITLE_BYTES] for name in names))

    def classify(self, command: tuple[str, ...]) -> ClassifiedServer | None:
        """Return the engine whose server the command line starts; None for everything else."""
        program, arguments = program_of(command)
        return next(
            (engine for engine in self._servers if _matches(engine.server, command, program, arguments)),
            None,
        )

    def engine(self, command: tuple[str, ...]) -> str:
        """Return the kind of engine whose server the command line starts, else ""."""
        server = self.classify(command)
        return server.engine if server is not None else ""

    def rank(self, title: str, command: tuple[str, ...]) -> str:
        """Return the data-parallel rank that a process names in its title or on its command line, else ""."""
        if command or len(title) < _TITLE_BYTES:  # a number at the end of a full title may be truncated
            text = command[0] if command else title
            match = next((match for pattern in self._rank_titles if (match := pattern.search(text))), None)
            if match is not None:
                return match[1]
        rank = flag_value(command, self._rank_flags)
        return rank if rank.isascii() and rank.isdecimal() and len(rank) < 6 else ""

    def group_ranks(self, command: tuple[str, ...]) -> GroupRanks:
        """Return the pipeline and tensor ranks of an engine's worker."""
        if not command or not command[0].startswith(self._worker_titles):
            return GroupRanks("", "")
        found = dict(_GROUP_RANK.findall(command[0][:_MAX_TITLE]))
        return GroupRanks(found.get("PP", ""), found.get("TP", ""))

    def ray_worker(self, command: tuple[str, ...]) -> str:
        """Return the kind of engine whose Ray actor the process is, else ""."""
        if not command:
            return ""
        if not command[0].startswith(_RAY_ACTOR):
            return next((kind for kind, server in self._servers if command[0].startswith(server.worker_titles)), "")
        name = command[0].removeprefix(_RAY_ACTOR).partition(".")[0]
        return next((kind for kind, server in self._servers if name in server.ray_workers), "")

    def is_worker(self, command: tuple[str, ...]) -> bool:
        """Return whether the process is one that an engine's server, or another Python program, starts beside itself.

        It ends with that program unless something goes wrong.
        """
        if not command or self.classify(command) is not None:
            return False
        return command[0].startswith(self._worker_titles) or any(
            word.startswith(_CHILD_OF_PYTHON) for word in command[:_CHILD_WORDS]
        )

    def is_titled_worker(self, title: str) -> bool:
        """Return whether a title is that of what an engine's server starts beside itself."""
        return title.startswith(self._worker_titles)

    def may_be_server(self, title: str) -> bool:
        """Return whether the command line of a process with this title is worth reading."""
        return title.startswith(self._titles)


def _matches(server: ServerProcess, command: tuple[str, ...], program: str, arguments: tuple[str, ...]) -> bool:
    if command and command[0].startswith(server.titles):
        return True
    dotted = f".{program.removesuffix('.py').replace('/', '.')}"
    if dotted.endswith(tuple(f".{module}" for module in server.modules)):
        return True
    name = program.rpartition("/")[2]
    return (
        any(name.startswith(known[:-1]) if known.endswith("*") else name == known for known in server.programs)
        and arguments[: len(server.subcommand)] == server.subcommand
        and arguments[:1] not in [(word,) for word in server.other_subcommands]
    )
