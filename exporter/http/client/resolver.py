"""Resolves host names within a deadline, in at most one thread a host, however long the system hangs.

No timeout reaches into ``getaddrinfo``, so it runs in a thread of its own; another caller for the same host waits for
that thread and starts no other.  A result serves all clients of the host until one of them fails (``forget``) or it
is a minute old, because addresses move from one server to another.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from exporter.errors import EndpointError, ThreadLimitError
from exporter.http.client.deadline import Deadline
from exporter.threads import Thread

Address = tuple[int, tuple[Any, ...]]  # family, socket address with port 0
LookUp = Callable[[str], Sequence[Address]]

_MAX_AGE = 60.0  # seconds
_MAX_ADDRESSES = 8
_LOCALHOST: tuple[Address, ...] = (
    (socket.AF_INET, ("127.0.0.1", 0)),
    (socket.AF_INET6, ("::1", 0, 0, 0)),
)


def look_up_system(host: str) -> list[Address]:
    """Return the addresses of ``host``, after any time; raise OSError when there are none."""
    results = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return [(family, address) for family, _, _, _, address in results]


class _Lookup:
    """One look-up, under way or done; ``done`` is set last, so that readers see all of the rest."""

    __slots__ = ("addresses", "at", "done", "problem")

    def __init__(self) -> None:
        self.done = threading.Event()
        self.addresses: tuple[Address, ...] = ()
        self.problem = ""
        self.at = 0.0


class Resolver:
    """Addresses by host, shared by the clients of a process.  Safe to use from many threads."""

    def __init__(self, look_up: LookUp = look_up_system) -> None:
        self._look_up = look_up
        self._lock = threading.Lock()
        self._lookups: dict[str, _Lookup] = {}

    def addresses(self, host: str, deadline: Deadline) -> tuple[Address, ...]:
        """Return one or more addresses of ``host``; raise EndpointError ``dns``, also at the deadline."""
        fixed = _without_lookup(host)
        if fixed:
            return fixed
        with self._lock:
            lookup = self._lookups.get(host)
            if lookup is None or (lookup.done.is_set() and time.monotonic() - lookup.at > _MAX_AGE):
                lookup = self._start(host)
        if not lookup.done.wait(deadline.remaining()):
            raise EndpointError(
                "dns", f"the resolver did not answer for {host} within {deadline.seconds:g} s", detail=host
            )
        if lookup.problem:
            self.forget(host)
            raise EndpointError("dns", f"cannot resolve {host}: {lookup.problem}", detail=host)
        return lookup.addresses

    def cached(self, host: str) -> tuple[Address, ...]:
        """Return the addresses of an earlier look-up; none where there was none, or it is not done yet."""
        lookup = self._lookups.get(host)
        return lookup.addresses if lookup is not None and lookup.done.is_set() else ()

    def forget(self, host: str) -> None:
        """Clear the addresses, for the next request to resolve anew; a look-up under way will be used."""
        with self._lock:
            lookup = self._lookups.get(host)
            if lookup is not None and lookup.done.is_set():
                del self._lookups[host]

    def _start(self, host: str) -> _Lookup:
        lookup = _Lookup()
        # daemon: a thread stuck in the system's resolver must not keep the process from ending
        thread = Thread(self._run, name=f"resolve-{host}", args=(host, lookup))
        try:
            thread.start()
        except ThreadLimitError:
            raise EndpointError("dns", f"cannot resolve {host}: no thread could be started") from None
        self._lookups[host] = lookup
        return lookup

    def _run(self, host: str, lookup: _Lookup) -> None:
        try:
            lookup.addresses = tuple(dict.fromkeys(self._look_up(host)))[:_MAX_ADDRESSES]
            lookup.problem = "" if lookup.addresses else "no address"
        except OSError as problem:
            lookup.problem = problem.strerror or type(problem).__name__
        except Exception as problem:
            # UnicodeError for labels that are too long, among others; a dead thread would leave its callers waiting
            lookup.problem = type(problem).__name__
        lookup.at = time.monotonic()
        lookup.done.set()


def _without_lookup(host: str) -> tuple[Address, ...]:
    name = host.rstrip(".")
    if name == "localhost" or name.endswith(".localhost"):
        return _LOCALHOST
    if ":" not in host and not host[-1:].isdigit():
        return ()  # no literal: IPv6 has colons, IPv4 ends in a digit
    try:
        results = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except (OSError, UnicodeError):
        return ()
    return tuple((family, address) for family, _, _, _, address in results)


default_resolver = Resolver()
