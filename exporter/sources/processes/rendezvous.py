"""Parses where the nodes of a replica meet, from the command line and environment of its processes.

All of it is what a process claims.  Names are not resolved: two nodes may resolve one name differently, and a process
must not make the daemon ask for names of its choice.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Mapping, Sequence
from math import prod

from exporter.model.process import Rendezvous
from exporter.model.server import RendezvousFlags

LWS_VARIABLES = ("LWS_LEADER_ADDRESS", "LWS_GROUP_SIZE", "LWS_WORKER_INDEX")
LWS, RAY = "lws", "ray"
RAYLET = "raylet"  # the title of Ray's process on each node, which starts the actors
_LABEL = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_HOST = re.compile(rf"(?=.{{1,253}}\Z){_LABEL}(?:\.{_LABEL})*\Z", re.ASCII)
_NUMERIC = re.compile(r"(?:.*\.)?(?:[0-9]+|0x[0-9a-f]*)\Z", re.ASCII)  # its last label: no name can end so
_PORT = re.compile(r"[0-9]{1,5}\Z", re.ASCII)
_COUNT = re.compile(r"[0-9]{1,4}\Z", re.ASCII)
# Also inside the command line that a raylet starts its workers with, which stands before its own flag.
_CLUSTER_ID = re.compile(r"--cluster-id=([0-9a-f]{16})[0-9a-f]{12,48}(?![0-9a-f])", re.ASCII)
_GCS_ADDRESS = re.compile(r"--gcs-address=([^\s\"']{1,300})")
_RAY_PORT = 6379


def of_server(kind: str, ways: Sequence[RendezvousFlags], command: Sequence[str]) -> Rendezvous | None:
    """Return where the nodes of a server's replica meet; None where it does not say that there are several."""
    flags = _flags(command)
    return next((found for way in ways if (found := _of_way(kind, way, flags)) is not None), None)


def of_raylet(command: Sequence[str]) -> Rendezvous | None:
    """Return the Ray cluster of a raylet: its id, which is the same on all nodes, else the address of its store."""
    text = " ".join(command)
    if match := _CLUSTER_ID.search(text):
        return Rendezvous(scheme=RAY, host=match[1])
    match = _GCS_ADDRESS.search(text)
    host, port = _address(match[1], _RAY_PORT) if match is not None else ("", 0)
    return Rendezvous(scheme=RAY, host=host, port=port) if host else None


def of_group(variables: Mapping[str, str]) -> Rendezvous | None:
    """Return the group of a LeaderWorkerSet that the environment names; None outside of one, and for a single pod."""
    leader, size, index = (variables.get(name, "") for name in LWS_VARIABLES)
    host, _ = _address(leader, 0)
    nodes = _count(size)
    if not host or nodes is None or nodes < 2:
        return None
    return Rendezvous(scheme=LWS, host=host, nodes=nodes, node_rank=_count(index))


def replica_gpus(size: Sequence[Sequence[str]], command: Sequence[str]) -> int | None:
    """Return how many GPUs a replica has by its server's flags, each of which is 1 where it is not given."""
    flags = _flags(command)
    return prod(_count(_first(flags, names)) or 1 for names in size) if size else None


def _of_way(kind: str, way: RendezvousFlags, flags: Mapping[str, str]) -> Rendezvous | None:
    nodes, node_rank = _count(_first(flags, way.nodes)), _count(_first(flags, way.node_rank))
    ranks, local_ranks = _count(_first(flags, way.ranks)), _count(_first(flags, way.local_ranks))
    first_rank = _count(_first(flags, way.first_rank))
    has_others = bool(ranks and local_ranks and ranks > local_ranks)  # on how many nodes, their own flags say
    address = _first(flags, way.address)
    is_headless = any(name in flags for name in way.headless)
    if not (nodes is not None and nodes > 1) and not has_others and not (is_headless and address):
        return None
    host, port = _address(address, _port(_first(flags, way.port)) or way.default_port)
    if node_rank is None and (nodes is not None or has_others) and not is_headless and not first_rank:
        node_rank = 0
    return Rendezvous(
        scheme=kind,
        host=host,
        port=port,
        nodes=nodes,
        node_rank=node_rank,
        first_rank=first_rank,
        headless=is_headless,
    )


def _flags(command: Sequence[str]) -> dict[str, str]:
    """Return the flags of a command line with their values, the last of each; underscores are dashes."""
    found = {}
    for position, word in enumerate(command):
        name, equals, value = word.partition("=")
        if name.startswith("-"):
            following = "".join(command[position + 1 : position + 2])
            found[name.replace("_", "-")] = value if equals else following
    return found


def _first(flags: Mapping[str, str], names: Sequence[str]) -> str:
    return next((flags[name] for name in names if name in flags), "")


def _count(text: str) -> int | None:
    return int(text) if _COUNT.match(text) else None


def _port(text: str) -> int:
    number = int(text) if _PORT.match(text) else 0
    return number if number < 65_536 else 0


def _address(text: str, default_port: int) -> tuple[str, int]:
    """Return a host in lower case without brackets and final dot, and a port; ("", 0) for what is no address.

    Neither is an address with a scope, which is any text and says nothing on other nodes.
    """
    text = text.strip().lower().rpartition("://")[2]
    host, port = text, default_port
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        port = _port(rest.removeprefix(":")) or default_port
    elif text.count(":") == 1:
        host, _, number = text.partition(":")
        port = _port(number) or default_port
    host = _normalised(host)
    return (host, port) if host else ("", 0)


def _normalised(host: str) -> str:
    """Return a name, or an address as ``ipaddress`` spells it; "" for neither."""
    if "%" in host:
        return ""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        host = host.removesuffix(".")
        if not _HOST.match(host):
            return ""
        return _of_old_spelling(host) if _NUMERIC.match(host) else host
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


def _of_old_spelling(host: str) -> str:
    """Return the IPv4 address that the C library reads in ``127.1`` or ``2130706433``, "" for none."""
    try:
        return socket.inet_ntoa(socket.inet_aton(host))
    except OSError:
        return ""
