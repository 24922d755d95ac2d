"""This node's page of a Ray cluster, from the list that Ray gives Prometheus: in a file, or from its dashboard.

It names the metrics agents of all nodes, then the autoscaler and the dashboard.  Every node has a daemon of its own,
so only the agents at an address of this machine are taken.  The file stands on the head node alone.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from dataclasses import replace
from urllib.parse import urlsplit

from exporter.sources.discovery.found import DiscoveryResult, FoundEngine
from exporter.sources.discovery.http_sd import HttpList
from exporter.sources.discovery.target_file import TargetFile
from exporter.sources.own_host import local_addresses

_NO_AGENTS = frozenset({44217, 44227})  # the autoscaler's port and the dashboard's: pages without a word on requests


class Ray:
    """Follows one cluster's list."""

    name = "ray"

    def __init__(self, place: str | HttpList, *, addresses: Callable[[], frozenset[str]] = local_addresses) -> None:
        """``place``: the file's name, or the dashboard's list."""
        self._list = TargetFile(place) if isinstance(place, str) else place
        self._addresses = addresses

    def refresh(self) -> DiscoveryResult:
        """Return the agents of this machine."""
        self._list.refresh()
        listed = [engine for engine in self._list.found if urlsplit(engine.url).port not in _NO_AGENTS]
        own = self._addresses() if listed else frozenset()
        here = tuple(replace(engine, kind="") for engine in listed if _is_here(engine, own))
        warning = "" if here or not listed else f"targets={len(listed)}: none is at an address of this machine"
        return DiscoveryResult(found=here, problem=self._list.problem, warning=warning)

    def close(self) -> None:
        """Set up the connection, where there is one."""
        if isinstance(self._list, HttpList):
            self._list.close()


def _is_here(engine: FoundEngine, own: frozenset[str]) -> bool:
    host = urlsplit(engine.url).hostname or ""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost"
    return address.is_loopback or str(address) in own
