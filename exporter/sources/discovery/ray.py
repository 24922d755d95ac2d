"""This node's page of a Ray cluster, from the list that Ray gives Prometheus: in a file, or from its dashboard.

It names the metrics agents of all nodes, then the autoscaler and the dashboard.  Every node has a daemon of its own,
so only the agents at an address of this machine are taken.  The file stands on the head node alone.
"""

from __future__ import annotations

import ipaddress
import pwd
from collections.abc import Callable, Collection
from urllib.parse import urlsplit

from msgspec.structs import replace

from exporter.sources.discovery.http_sd import HttpList
from exporter.sources.discovery.provider import DiscoveredEngine, DiscoveryResult
from exporter.sources.discovery.target_file import TargetFile
from exporter.sources.own_host import local_addresses

_NO_AGENTS = frozenset({44217, 44227})  # the autoscaler's port and the dashboard's: pages without request metrics


class Ray:
    """Reads one cluster's list."""

    name = "ray"

    def __init__(
        self,
        place: str | HttpList,
        *,
        users: Collection[str] = (),
        addresses: Callable[[], frozenset[str]] = local_addresses,
    ) -> None:
        """``place``: the file's name, or the dashboard's list.  ``users``: names or ids that may own the file."""
        self._list = TargetFile(place, lambda: map(_uid, users)) if isinstance(place, str) else place
        self._addresses = addresses

    def refresh(self) -> DiscoveryResult:
        """Return the agents of this machine."""
        self._list.refresh()
        listed = [engine for engine in self._list.engines if _is_agent(engine)]
        own = self._addresses() if listed else frozenset()
        local = tuple(replace(engine, kind="") for engine in listed if _is_on_this_host(engine, own))
        warning = "" if local or not listed else f"targets={len(listed)}: none is at an address of this machine"
        return DiscoveryResult(engines=local, problem=self._list.problem, warning=warning)

    def close(self) -> None:
        """Close the connection, where there is one."""
        if isinstance(self._list, HttpList):
            self._list.close()


def _is_agent(engine: DiscoveredEngine) -> bool:
    """Return whether a target may be a metrics agent; Ray's have one path, and any other is not Ray's request."""
    parts = urlsplit(engine.url)
    return parts.port not in _NO_AGENTS and (parts.path, parts.query) == ("/metrics", "")


def _uid(user: str) -> int:
    """Return a user's id; -1, which owns no file, for a name that is not known here."""
    try:
        return int(user) if user.isdecimal() else pwd.getpwnam(user).pw_uid
    except KeyError:
        return -1


def _is_on_this_host(engine: DiscoveredEngine, own: frozenset[str]) -> bool:
    host = urlsplit(engine.url).hostname or ""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost"
    return address.is_loopback or str(address) in own
