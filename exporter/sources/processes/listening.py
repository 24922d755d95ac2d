"""Finds the engine servers of this node by command line, and where each shows its metrics.

A command line is a claim.  What bounds the reading and the list is shared between owners (containers, users) in
turns, those of GPUs first, so that nobody's fakes crowd out another's engines.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from msgspec import Struct

from exporter.model.process import ListeningEngine, Process
from exporter.model.server import ServerProcess
from exporter.sources.processes import procfs
from exporter.sources.processes.classifier import ServerClassifier
from exporter.sources.processes.table import ProcessReader
from exporter.sources.processes.turns import in_turns


class _EngineServer(NamedTuple):
    """A process that is an engine's server, by what declaration, and whose it is."""

    process: Process
    kind: str
    declared: ServerProcess
    owner: str
    uses_gpu: bool

    @property
    def names_port(self) -> bool:
        """Whether its command line names the port."""
        return bool(self.process.flag(*self.declared.endpoint.port_flags))


class EngineScan(Struct, frozen=True, kw_only=True):
    """The engine servers that were found, and which limits were reached: ``processes, descriptors, sockets``."""

    engines: tuple[ListeningEngine, ...]
    limits: frozenset[str] = frozenset()


def listening_engines(
    *,
    classifier: ServerClassifier,
    gpu_pids: Collection[int] = (),
    root: str = "/proc",
    limit: int = 4096,
) -> EngineScan:
    """Return the engine servers, one per address: first those above ``gpu_pids``, then the owners in turns."""
    reader = ProcessReader(classifier, root, limit)
    reader.load_chains(gpu_pids)
    above_gpus = frozenset(reader.processes)
    servers = []
    for pid in (*above_gpus, *reader.all_pids()):
        classified = reader.classify(pid)
        process = reader.process(pid) if classified is not None else None
        is_headless = process is not None and process.rendezvous is not None and process.rendezvous.headless
        if classified is not None and process is not None and not is_headless:
            servers.append(_EngineServer(process, *classified, procfs.owner(root, pid), pid in above_gpus))
    if not servers:
        return EngineScan(engines=(), limits=frozenset(reader.limits))
    by_pid = {server.process.pid: server for server in servers}
    reader.load_sockets(server.process for server in by_pid.values())
    inodes = {row.inode for held in reader.sockets.values() for row in held}
    # Several API servers hold one socket; the one whose command line names the port speaks for them.
    ordered = sorted(by_pid.values(), key=lambda server: (not server.names_port, server.process.pid))
    ordered = in_turns(ordered, lambda server: server.owner)
    ordered.sort(key=lambda server: not server.uses_gpu)
    for server in ordered:
        reader.load_descriptors(server.process.pid, inodes)
    chosen: dict[tuple[int, str, int], ListeningEngine] = {}
    for server in ordered:
        process, endpoint = server.process, server.declared.endpoint
        # Of a replica whose server is on another node; SGLang's answers health checks, and may show metrics.
        is_worker = process.rendezvous is not None and process.rendezvous.is_worker
        row = reader.serving_socket(process, endpoint)
        host = reader.reachable(process, row.address) if row else None
        if row and host:
            engine = ListeningEngine(
                kind=server.kind,
                role=server.declared.role,
                host=host,
                port=row.port,
                pid=process.pid,
                path=endpoint.path,
                tls=process.has_flag(*endpoint.tls_flags),
                probe=endpoint.probe or is_worker,
                owner=server.owner,
                uses_gpu=server.uses_gpu,
            )
            # By host too: another engine may have the same port on another address.
            chosen.setdefault((process.netns, host, row.port), engine)
    return EngineScan(engines=tuple(chosen.values()), limits=frozenset(reader.limits))
