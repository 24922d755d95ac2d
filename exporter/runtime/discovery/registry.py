"""The targets of all discovery providers as a bounded set of replicas: each URL once, each name once.

At most 32 discovered engines are polled, few come and go at a refresh, and one that is no longer listed stays for a
minute: lists are rewritten, and flicker.  An engine that several providers list is one replica; a configured one
wins, then files, lists over HTTP, Ray, pods, processes.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from urllib.parse import urlsplit

from msgspec import Struct
from msgspec.structs import replace

from exporter.config import parsers
from exporter.config.settings import ENGINE_KINDS, EngineSettings, TlsSettings
from exporter.logs import log_event
from exporter.sources.discovery.provider import DiscoveredEngine
from exporter.sources.own_host import is_local_host
from exporter.sources.processes import procfs

logger = logging.getLogger(__name__)

MAX_DISCOVERED = 32  # engines, of all providers together
MAX_CHANGES = 8  # at one refresh, but for a provider's first: a list gone mad must not have threads made by the dozen
TARGET_TTL = 60.0  # seconds since an engine was last listed
PROCESSES = "processes"
ANY = "*"  # address of this host

_PROVIDERS = ("file_sd", "http_sd", "ray", "kubernetes", PROCESSES)  # the first that lists an engine names it

TargetKey = tuple[str, int, str]  # host, port, path with its query


class _Entry(Struct):
    discovered: DiscoveredEngine
    engine: EngineSettings
    last_seen: float


class TargetRegistry:
    """Which engines were seen at which provider, and when last.  Not thread-safe."""

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        is_local: Callable[[str], bool] = is_local_host,
    ) -> None:
        """``is_local`` returns whether a host is this machine: an engine may be listed by any of its names."""
        self._clock = clock
        self._is_local = is_local
        self._configured_keys: set[TargetKey] = set()
        self._entries: dict[str, dict[TargetKey, _Entry]] = {}
        self._at_limit: set[str] = set()

    def update(
        self, provider: str, engines: Sequence[DiscoveredEngine], configured: Sequence[EngineSettings]
    ) -> bool:
        """Record what a provider lists now; return whether ``engines`` may have changed."""
        now = self._clock()
        moved = self._rekey()
        left = MAX_CHANGES if provider in self._entries else MAX_DISCOVERED
        budget, limit_reached = left, False
        known = self._entries.setdefault(provider, {})
        keys, ports = self._keys(configured)
        moved, self._configured_keys = moved or keys != self._configured_keys, set(keys)
        listed = {engine.url: engine for engine in engines}
        for engine in engines:
            key = self._key(provider, engine.url)
            if key in keys or (provider == PROCESSES and _is_polled(key, ports)):
                continue
            entry = known.get(key)
            if entry is not None:
                entry.last_seen = now
                # Who was first keeps the address while it lives: another command line may claim the same.
                first = listed.get(entry.discovered.url, engine)
                engine = first if first.uses_gpu >= engine.uses_gpu else engine  # noqa: PLW2901
            if entry is None and not self._has_capacity(key, engine):
                limit_reached = True
            elif left and (entry is None or entry.discovered != engine):
                self._evict(known, engine.name, key, {self._key(provider, other.url) for other in engines})
                known[key] = _Entry(engine, _settings(engine, self._names_in_use(provider, key, configured)), now)
                left -= 1
            keys.add(key)  # a provider that lists a page twice means its first entry
        self._log_limit(provider, limit_reached=limit_reached)
        for key, entry in list(known.items()):
            if left and now - entry.last_seen > TARGET_TTL:
                log_event(
                    logger, logging.INFO, "target_expired", "it is no longer listed",
                    source=f"discovery:{provider}", target=entry.engine.name,
                )  # fmt: skip
                del known[key]
                left -= 1
        return moved or left < budget

    def remove(self, provider: str) -> None:
        """Remove a provider that is no longer configured."""
        self._entries.pop(provider, None)
        self._at_limit.discard(provider)

    @property
    def limit_reached(self) -> bool:
        """Whether a provider's last list had engines for which there was no room."""
        return bool(self._at_limit)

    def engines(self, configured: Sequence[EngineSettings]) -> tuple[EngineSettings, ...]:
        """Return what to poll beside the configured engines; none is one of them, and all names differ."""
        self._rekey()
        keys, ports = self._keys(configured)
        names = {engine.name for engine in configured}
        chosen: list[EngineSettings] = []
        for provider in _PROVIDERS:
            for key, entry in self._entries.get(provider, {}).items():
                if len(chosen) == MAX_DISCOVERED:  # names that moved may have made two targets of one
                    return tuple(chosen)
                # A process says where it listens, not under which path; who names the port means it.
                if key in keys or (provider == PROCESSES and _is_polled(key, ports)):
                    continue
                engine = entry.engine
                if engine.name in names:
                    engine = replace(engine, name=engine.url)
                if engine.name not in names:
                    names.add(engine.name)
                    chosen.append(engine)
                keys.add(key)
                ports |= {key[:2]} if provider == PROCESSES else self._ports(engine.url)
        return tuple(chosen)

    def target_key(self, url: str) -> TargetKey:
        """Return the ways to write one page equal, so that an engine is not polled twice."""
        parts = urlsplit(url)
        host = (parts.hostname or "").rstrip(".")
        return "localhost" if self._is_local(host) else host, parsers.port_of(parts), f"{parts.path}?{parts.query}"

    def _key(self, provider: str, url: str) -> TargetKey:
        """Return the key of a provider's target: processes may listen at several addresses with the same port."""
        key = self.target_key(url)
        host = urlsplit(url).hostname or ""
        # Anybody may listen at ::1, and an engine of that port at 127.0.0.1 is another.
        is_specific = provider == PROCESSES and (host == "::1" or not procfs.is_loopback(host))
        return (host, *key[1:]) if is_specific else key

    def _ports(self, url: str) -> set[tuple[str, int]]:
        """Return what may be the address of a process that is polled at ``url``; ANY for a name of this host."""
        host, port = self.target_key(url)[:2]
        literal = urlsplit(url).hostname or ""
        if host != "localhost":
            return {(host, port)}
        if procfs.is_loopback(literal):
            return {(host, port), ("::1", port)}  # a process that listens at :: mostly answers at 127.0.0.1, too
        return {(host, port), (literal if is_address(literal) else ANY, port)}

    def _rekey(self) -> bool:
        """Rekey every engine by where its URL leads now, and return whether one has moved.

        Addresses change owners, and a name may be seen to lead to this host only after it has been resolved.
        """
        moved = False
        for provider, known in self._entries.items():
            keys = {self._key(provider, entry.discovered.url): entry for entry in known.values()}
            if keys.keys() != known.keys():
                self._entries[provider], moved = keys, True
        return moved

    def _keys(self, engines: Sequence[EngineSettings]) -> tuple[set[TargetKey], set[tuple[str, int]]]:
        keys = {self.target_key(engine.url) for engine in engines}
        return keys, set[tuple[str, int]]().union(*[self._ports(engine.url) for engine in engines])

    def _has_capacity(self, key: TargetKey, engine: DiscoveredEngine) -> bool:
        """Return whether there is room for an engine, after making some where fairness asks for it.

        Engines that users of the node add themselves make room: those without a GPU for those with one, and the
        newest of the owner who has most for an owner who would still have fewer.
        """
        listings = Counter(key for known in self._entries.values() for key in known)
        if key in listings or len(listings) < MAX_DISCOVERED:
            return True
        removable = [
            (known, other, entry.discovered)
            for known in self._entries.values()
            for other, entry in known.items()
            if entry.discovered.owner and listings[other] == 1
        ]
        for uses_gpu in (False, True) if engine.owner and engine.uses_gpu else (False,):
            places = Counter(found.owner for _, _, found in removable if found.uses_gpu == uses_gpu)
            owner, count = places.most_common(1)[0] if places else ("", 0)
            is_peer = engine.owner and engine.uses_gpu == uses_gpu
            if count > (places[engine.owner] + 1 if is_peer else 0):
                known, other = [
                    (known, other)
                    for known, other, found in removable
                    if (found.owner, found.uses_gpu) == (owner, uses_gpu)
                ][-1]
                del known[other]
                return True
        return False

    def _log_limit(self, provider: str, *, limit_reached: bool) -> None:
        if limit_reached and provider not in self._at_limit:
            log_event(
                logger, logging.WARNING, "target_limit_reached", "more engines are listed than are polled",
                source=f"discovery:{provider}", limit=MAX_DISCOVERED,
            )  # fmt: skip
        (self._at_limit.add if limit_reached else self._at_limit.discard)(provider)

    def _evict(self, known: dict[TargetKey, _Entry], name: str, key: TargetKey, listed: set[TargetKey]) -> None:
        """Remove at once the engine that had the name and is no longer listed: it has moved, as pods do."""
        for other, entry in list(known.items()):
            if name and entry.engine.name == name and other != key and other not in listed:
                del known[other]

    def _names_in_use(self, provider: str, key: TargetKey, configured: Sequence[EngineSettings]) -> set[str]:
        """Return the names that another engine has; a process on the same port is the same engine."""
        taken = {engine.name for engine in configured}
        for where, known in self._entries.items():
            same = key[:2] if PROCESSES in (provider, where) else key
            taken |= {entry.engine.name for other, entry in known.items() if other[: len(same)] != same}
        return taken


def _is_polled(key: TargetKey, ports: Collection[tuple[str, int]]) -> bool:
    return key[:2] in ports or (key[0] != "localhost" and (ANY, key[1]) in ports)


def is_address(host: str) -> bool:
    """Return whether a URL's host is an address."""
    return ":" in host or host.replace(".", "").isdecimal()


def _settings(engine: DiscoveredEngine, taken: set[str]) -> EngineSettings:
    names = [name for name in (engine.name, parsers.host_port(engine.url)) if name and name not in taken]
    kind = engine.kind if engine.kind in ENGINE_KINDS else "auto"
    return EngineSettings(
        name=names[0] if names else engine.url,
        kind=kind,
        url=engine.url,
        image=engine.image,
        tls=TlsSettings(insecure_skip_verify=engine.unverified),
    )
