"""Which engines were seen where and when, as a bounded set of replicas: each page once, each name once.

At most 32 engines are polled because somebody lists them, few come and go at a look, and one that is no longer listed
stays for a minute: lists are rewritten, and flicker.  An engine listed at several places is one replica; a configured
one wins, then files, lists over HTTP, Ray, pods, processes.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from exporter.config import parsers
from exporter.config.settings import ENGINE_KINDS, EngineSettings, TlsSettings
from exporter.logs import log_event
from exporter.sources.discovery.found import FoundEngine
from exporter.sources.own_host import is_local_host

logger = logging.getLogger(__name__)

MAX_DISCOVERED = 32  # engines, of all places together
MAX_CHANGES = 8  # at one look, but for a place's first: a list gone mad must not have threads made by the dozen
FORGET_AFTER = 60.0  # seconds since an engine was last listed
PROCESSES = "processes"

_PLACES = ("file_sd", "http_sd", "ray", "kubernetes", PROCESSES)  # whoever stands first names an engine

Spot = tuple[str, int, str]  # host, port, path with its query


@dataclass(slots=True)
class _Known:
    found: FoundEngine
    engine: EngineSettings
    seen: float


class Book:
    """Which engines were seen at which place, and when last.  Its owner keeps the threads apart."""

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        here: Callable[[str], bool] = is_local_host,
    ) -> None:
        """Begin empty.  ``here`` says which hosts are this machine: an engine may be listed by any of its names."""
        self._clock = clock
        self._here = here
        self._spots_before: set[Spot] = set()
        self._known: dict[str, dict[Spot, _Known]] = {}
        self._crowded: set[str] = set()

    def saw(self, place: str, found: Sequence[FoundEngine], configured: Sequence[EngineSettings]) -> bool:
        """Note what a place lists now; tell whether ``engines`` may have changed."""
        now = self._clock()
        moved = self._place_anew()
        left = MAX_CHANGES if place in self._known else MAX_DISCOVERED
        budget, crowded = left, False
        known = self._known.setdefault(place, {})
        spots, ports = self._spots(configured)
        moved, self._spots_before = moved or spots != self._spots_before, set(spots)
        for one in found:
            spot = self.spot(one.url)
            if spot in spots or (place == PROCESSES and spot[:2] in ports):
                continue
            entry = known.get(spot)
            if entry is not None:
                entry.seen = now
            if entry is None and not self._has_room(spot):
                crowded = True
            elif left and (entry is None or entry.found != one):
                self._make_way(known, one.name, spot, {self.spot(other.url) for other in found})
                known[spot] = _Known(one, _settings(one, self._taken(place, spot, configured)), now)
                left -= 1
            spots.add(spot)  # a place that lists a page twice means its first entry
        self._say_if_crowded(place, crowded=crowded)
        for spot, entry in list(known.items()):
            if left and now - entry.seen > FORGET_AFTER:
                log_event(
                    logger, logging.INFO, "target_expired", "it is no longer listed",
                    source=f"discovery:{place}", target=entry.engine.name,
                )  # fmt: skip
                del known[spot]
                left -= 1
        return moved or left < budget

    def drop(self, place: str) -> None:
        """Forget a place that is no longer looked at."""
        self._known.pop(place, None)

    def engines(self, configured: Sequence[EngineSettings]) -> tuple[EngineSettings, ...]:
        """Give what to poll beside the configured engines; none is one of them, all names differ from all others."""
        self._place_anew()
        spots, ports = self._spots(configured)
        names = {engine.name for engine in configured}
        chosen = []
        for place in _PLACES:
            for spot, entry in self._known.get(place, {}).items():
                # A process says where it listens, not under which path; who names the port means it.
                if spot in spots or (place == PROCESSES and spot[:2] in ports):
                    continue
                engine = entry.engine
                if engine.name in names:
                    engine = replace(engine, name=engine.url)
                if engine.name not in names:
                    names.add(engine.name)
                    chosen.append(engine)
                spots.add(spot)
                ports.add(spot[:2])
        return tuple(chosen)

    def spot(self, url: str) -> Spot:
        """Make the ways to write one page equal, so that an engine is not polled twice."""
        parts = urlsplit(url)
        host = (parts.hostname or "").rstrip(".")
        return "localhost" if self._here(host) else host, parsers.port_of(parts), f"{parts.path}?{parts.query}"

    def _place_anew(self) -> bool:
        """Put every engine where its URL leads now, and tell whether one has moved.

        Addresses change owners, and a name may be seen to lead here only after somebody has resolved it.
        """
        moved = False
        for place, known in self._known.items():
            spots = {self.spot(entry.found.url): entry for entry in known.values()}
            if spots.keys() != known.keys():
                self._known[place], moved = spots, True
        return moved

    def _spots(self, engines: Sequence[EngineSettings]) -> tuple[set[Spot], set[tuple[str, int]]]:
        spots = {self.spot(engine.url) for engine in engines}
        return spots, {spot[:2] for spot in spots}

    def _has_room(self, spot: Spot) -> bool:
        everywhere = {one for known in self._known.values() for one in known}
        return spot in everywhere or len(everywhere) < MAX_DISCOVERED

    def _say_if_crowded(self, place: str, *, crowded: bool) -> None:
        if crowded and place not in self._crowded:
            log_event(
                logger, logging.WARNING, "target_limit_reached", "more engines are listed than are polled",
                source=f"discovery:{place}", limit=MAX_DISCOVERED,
            )  # fmt: skip
        (self._crowded.add if crowded else self._crowded.discard)(place)

    def _make_way(self, known: dict[Spot, _Known], name: str, spot: Spot, listed: set[Spot]) -> None:
        """Forget at once who had the name and is listed no more: it has moved, as pods do."""
        for other, entry in list(known.items()):
            if name and entry.engine.name == name and other != spot and other not in listed:
                del known[other]

    def _taken(self, place: str, spot: Spot, configured: Sequence[EngineSettings]) -> set[str]:
        """Give the names that another engine has; a process on the same port is the same engine."""
        taken = {engine.name for engine in configured}
        for where, known in self._known.items():
            same = spot[:2] if PROCESSES in (place, where) else spot
            taken |= {entry.engine.name for other, entry in known.items() if other[: len(same)] != same}
        return taken


def _settings(one: FoundEngine, taken: set[str]) -> EngineSettings:
    names = [name for name in (one.name, parsers.host_port(one.url)) if name and name not in taken]
    kind = one.kind if one.kind in ENGINE_KINDS else "auto"
    return EngineSettings(
        name=names[0] if names else one.url,
        kind=kind,
        url=one.url,
        image=one.image,
        tls=TlsSettings(insecure_skip_verify=one.unverified),
    )
