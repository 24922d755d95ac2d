"""Which hosts are this machine: its addresses, its name, and the names that are known to lead to it.

An engine on this machine may be listed by any of them, and must not be polled, or counted, twice.  Nobody waits for a
name server here: a name counts once somebody who polls it has resolved it, to addresses of this machine and no other.
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
    """Says of a host, as it stands in a URL, whether it is this machine.  Safe to ask from many threads."""

    def __init__(
        self,
        *,
        addresses: Callable[[], frozenset[str]] = local_addresses,
        name: Callable[[], str] = local_hostname,
        hosts: Callable[[], str] = read_hosts_file,
        known: Callable[[str], Iterable[Address]] = default_resolver.cached,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``known`` gives the addresses of a name without asking anybody, none where nobody has asked lately."""
        self._addresses, self._name, self._hosts, self._known = addresses, name, hosts, known
        self._clock = clock
        self._due = float("-inf")
        self._own = _ALWAYS
        self._lock = threading.Lock()
        self._resolved: dict[str, frozenset[str]] = {}  # the newest last

    def __call__(self, host: str) -> bool:
        """Return whether the host is this machine; loopback addresses but the usual ones are places of their own."""
        now = self._clock()
        if now >= self._due:
            self._due = now + _AGAIN
            self._own = self._read()
        host = host.lower().rstrip(".")
        return host in self._own or self._leads_here(host)

    def _read(self) -> frozenset[str]:
        addresses = self._addresses()
        aliases = {name for address, names in _entries(self._hosts()) if _is(address, addresses) for name in names}
        return _ALWAYS | addresses | aliases | ({self._name()} - {""})

    def _leads_here(self, host: str) -> bool:
        # Remembered, because the resolver forgets a name while what it leads to does not answer.
        found = frozenset(str(where[0]).partition("%")[0] for _, where in self._known(host))
        with self._lock:
            if found:
                self._resolved.pop(host, None)
                self._resolved[host] = found
                if len(self._resolved) > _MAX_RESOLVED:
                    del self._resolved[next(iter(self._resolved))]
            addresses = self._resolved.get(host, frozenset())
        return bool(addresses) and all(_is(address, self._own) for address in addresses)


def _is(address: str, own: frozenset[str]) -> bool:
    return address in own or address == "::1" or address.startswith("127.")


def _entries(text: str) -> Iterator[tuple[str, list[str]]]:
    for line in text.splitlines():
        words = line.partition("#")[0].lower().split()
        if len(words) > 1:
            yield words[0], words[1:]


is_local_host = LocalHost()
