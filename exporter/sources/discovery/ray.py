"""This node's page of a Ray cluster, from the file that Ray writes for Prometheus.

The file lists the metrics agents of all nodes, then the autoscaler and the dashboard.  Every node has a daemon of its
own, so only the agents at an address of this machine are taken.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from dataclasses import replace
from urllib.parse import urlsplit

from exporter.sources.discovery.found import FoundEngine, Seen
from exporter.sources.discovery.target_file import TargetFile
from exporter.sources.processes import procfs

_NO_AGENTS = frozenset({44217, 44227})  # the autoscaler's port and the dashboard's: pages without a word on requests


def own_addresses() -> frozenset[str]:
    """Read the addresses of this machine, or of the daemon's container, without loopback."""
    return procfs.addresses("/proc", "self")


class Ray:
    """Follows one cluster's file."""

    name = "ray"

    def __init__(self, path: str, *, addresses: Callable[[], frozenset[str]] = own_addresses) -> None:
        self._file = TargetFile(path)
        self._addresses = addresses

    def look(self) -> Seen:
        """Give the agents of this machine."""
        self._file.look()
        listed = [engine for engine in self._file.found if urlsplit(engine.url).port not in _NO_AGENTS]
        own = self._addresses() if listed else frozenset()
        here = tuple(replace(engine, kind="") for engine in listed if _is_here(engine, own))
        remark = "" if here or not listed else f"targets={len(listed)}: none is at an address of this machine"
        return Seen(found=here, problem=self._file.problem, remark=remark)

    def close(self) -> None:
        """Have nothing to let go of."""


def _is_here(engine: FoundEngine, own: frozenset[str]) -> bool:
    host = urlsplit(engine.url).hostname or ""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost"
    return address.is_loopback or str(address) in own
