"""How the processes of a kind of server are recognised, and where such a server shows its metrics."""

from __future__ import annotations

from enum import Enum

from msgspec import Struct


class ServerRole(Enum):
    """What a process of a server does.

    ``SERVER``: takes requests and owns the GPUs' processes.  ``FRONTEND`` and ``WORKER``: the two halves of a server
    that is divided; the same requests are counted by both, so frontends are left out beside workers.
    """

    SERVER = "server"
    FRONTEND = "frontend"
    WORKER = "worker"


class EndpointDefaults(Struct, frozen=True, kw_only=True):
    """How a server's metrics port is configured, and its defaults.

    ``port_flags``, then ``port_variable`` of its environment, then ``ports``.  ``tls_flags``: those that make it
    speak TLS.  ``probe``: the page must be seen before the server counts as an engine, because such a server may show
    nothing, or be no language model's; without it the server counts also while it does not answer.
    """

    port_flags: tuple[str, ...] = ("--port", "-p")
    port_variable: str = ""
    ports: tuple[int, ...] = ()
    path: str = "/metrics"
    tls_flags: tuple[str, ...] = ()
    probe: bool = False


class RendezvousFlags(Struct, frozen=True, kw_only=True):
    """Which flags say that a replica spans nodes, which of them this is, and at which address they meet.

    ``address``: flags of the host, or of HOST:PORT; ``port``: of the port, ``default_port`` where none is given.
    ``nodes`` and ``node_rank`` count nodes.  Where ranks are counted instead: ``ranks`` in all, ``local_ranks`` on
    this node, ``first_rank`` here.  ``headless``: this node is one of several, and has no server.
    """

    address: tuple[str, ...]
    port: tuple[str, ...] = ()
    default_port: int = 0
    nodes: tuple[str, ...] = ()
    node_rank: tuple[str, ...] = ()
    ranks: tuple[str, ...] = ()
    local_ranks: tuple[str, ...] = ()
    first_rank: tuple[str, ...] = ()
    headless: tuple[str, ...] = ()


class ServerProcess(Struct, frozen=True, kw_only=True):
    """How a server's command line and title look; any one of the three is enough.

    ``modules``: dotted names of the Python modules that are run, also as the path of a script.  ``programs``: file
    names of executables, or scripts; a ``*`` at the end stands for anything.  ``subcommand``: the first arguments
    that such a program must have; with one of ``other_subcommands`` first, it is something else.  ``titles``: how a
    process that has renamed itself begins.

    ``worker_titles``: how the processes that it starts beside itself begin, if they rename themselves.
    ``rank_title``: a regular expression for the titles of its processes, whose group is the data-parallel rank.
    ``rank_flags``: those that set the rank on their command lines.  ``ray_workers``: the classes of the Ray actors
    that hold its GPUs.  ``size``: the flags whose numbers multiply to how many GPUs the replica has.  ``rendezvous``:
    how its command line says that the replica spans nodes, each way of doing so.
    """

    modules: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    subcommand: tuple[str, ...] = ()
    other_subcommands: tuple[str, ...] = ()
    titles: tuple[str, ...] = ()
    worker_titles: tuple[str, ...] = ()
    rank_title: str = ""
    rank_flags: tuple[str, ...] = ()
    ray_workers: tuple[str, ...] = ()
    size: tuple[tuple[str, ...], ...] = ()
    rendezvous: tuple[RendezvousFlags, ...] = ()
    role: ServerRole = ServerRole.SERVER
    endpoint: EndpointDefaults = EndpointDefaults()
