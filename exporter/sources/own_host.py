"""Which hosts are this machine: its addresses, its name, and the names that are known to lead to it.

An engine on this machine may be listed by any of them, and must not be polled, or counted, twice.  No name
server is asked here: a name counts once whoever polls it has resolved it, to addresses of this machine and no other.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator

from exporter.http.client.resolver import Address, default_resolver
from exporter.sources.processes import procfs

_AGAIN = 10.0  # seconds; addresses come and go
_ALWAYS = frozenset({"localhost", "127.0.0.1", "::1", "0.0.0.0", "::"})
_HOSTS_BYTES = 1 << 16
_MAX_RESOLVED = 512


def local_addresses() -> frozenset[str]:
    """Read the addresses of this machine, or of the daemon's container, without loopback."""
    return procfs.addresses("/proc", "self")


def local_hostname() -> str:
    """Read the host's name in lower case; "" when it is hidden."""
    return procfs.hostname("/proc")


def read_hosts_file(path: str = "/etc/hosts") -> str:
    """Read the beginning of the hosts file; "" without one."""
    try:
        with open(path, "rb") as opened:
            return opened.read(_HOSTS_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""


class LocalHost:
    """Returns whether a host, as it stands in a URL, is this machine.  Safe to call from many threads."""

    def __init__(
        self,
        *,
        addresses: Callable[[], frozenset[str]] = local_addresses,
        name: Callable[[], str] = local_hostname,
        hosts: Callable[[], str] = read_hosts_file,
        known: Callable[[str], Iterable[Address]] = default_resolver.cached,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``known`` returns the addresses of a name that were resolved lately, without a request."""
        self._addresses, self._name, self._hosts, self._known = addresses, name, hosts, known
        self._clock = clock
        self._due = float("-inf")
        self._own = _ALWAYS
        self._lock = threading.Lock()
        self._resolved: dict[str, frozenset[str]] = {}  # the newest last

    def __call__(self, host: str) -> bool:
        """Return whether the host is this machine; loopback addresses but the usual ones are hosts of their own."""
        now = self._clock()
        if now >= self._due:
            self._due = now + _AGAIN
            self._own = self._read()
        host = host.lower().rstrip(".")
        return host in self._own or self._resolves_to_this_host(host)

    def _read(self) -> frozenset[str]:
        addresses = self._addresses()
        aliases = {name for address, names in _entries(self._hosts()) if _is(address, addresses) for name in names}
        return _ALWAYS | addresses | aliases | ({self._name()} - {""})

    def _resolves_to_this_host(self, host: str) -> bool:
        # Remembered, because the resolver forgets a name while what it leads to does not answer.
        addresses = frozenset(str(where[0]).partition("%")[0] for _, where in self._known(host))
        with self._lock:
            if addresses:
                self._resolved.pop(host, None)
                self._resolved[host] = addresses
                if len(self._resolved) > _MAX_RESOLVED:
                    del self._resolved[next(iter(self._resolved))]
            known = self._resolved.get(host, frozenset())
        return bool(known) and all(_is(address, self._own) for address in known)


def _is(address: str, own: frozenset[str]) -> bool:
    return address in own or address == "::1" or address.startswith("127.")


def _entries(text: str) -> Iterator[tuple[str, list[str]]]:
    for line in text.splitlines():
        words = line.partition("#")[0].lower().split()
        if len(words) > 1:
            yield words[0], words[1:]


is_local_host = LocalHost()
