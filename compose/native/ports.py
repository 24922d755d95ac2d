"""Whether the ports that the stack wants can be had, and which flag moves those that cannot."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator, Mapping

LOOPBACK = "127.0.0.1"


def problems(wanted: Mapping[str, int]) -> Iterator[str]:
    """Yield a line for each flag whose port is taken, out of range or given twice; 0 lets the server choose."""
    flag_by_port: dict[int, str] = {}
    for flag, port in wanted.items():
        if not 0 <= port <= 65535:
            yield f"{flag} {port}: a port is a number from 0 to 65535"
        elif port in flag_by_port:
            yield f"{flag} {port}: {flag_by_port[port]} wants the same port; give one of them another"
        elif port and not _free(port):
            other = another(port, wanted.values())
            yield f"port {port} on {LOOPBACK} is taken by another program; end that, or move ours: {flag} {other}"
        if port:
            flag_by_port.setdefault(port, flag)


def another(port: int, avoid: Iterable[int]) -> int:
    """Return a free port near ``port``; 0 (any) when there is none near."""
    taken = set(avoid)
    near = (port + step for step in (10000, 1, 2, 3, 10, 100, 1000, 20000))
    return next((port for port in near if 1024 <= port <= 65535 and port not in taken and _free(port)), 0)


def _free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the servers do: TIME_WAIT does not count
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def any_free() -> int:
    """Return a port that was free a moment ago, for a server that cannot choose and say one itself."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return port
