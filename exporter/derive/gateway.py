"""How a gateway spreads requests: each backend's share over a window, the pool's unevenness, and who a backend is.

Increases are summed from page to page, so that windows continue across a restart.  A backend that a later page shows
for the first time had no series before its first request: all of it is increase.  One that goes and comes back is
remembered, because its old count must not look like new requests.  What a backend that is gone was sent during the
window still counts for the others' shares.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from math import fsum

from msgspec import Struct

from exporter.derive.assignment import Endpoint
from exporter.derive.engine import max_to_mean
from exporter.derive.windows import History
from exporter.model import EMPTY, Backend, GatewayFigures, GatewayReading

MAX_REMEMBERED = 256  # backends, those that are gone included
_CLOCK_STEP = 1.5  # seconds; start times are often computed from an uptime and jitter

_LOCAL = frozenset(("localhost", "127.0.0.1", "::1", "0.0.0.0"))
# http://10.0.0.1:8000, grpc://[::1]:8000, 10.0.0.1:8000, and http://10.0.0.1:8000@0 with a rank at the end
_ADDRESS = re.compile(r"(?:[a-z0-9+]+://)?(?:\[([0-9a-fA-F:.]+)\]|([^\s:/@\[\]]+)):(\d{1,5})(?:@\d{1,4})?(?:/.*)?\Z")


class GatewayTotals(Struct, frozen=True, kw_only=True):
    """What every backend was sent since the gateway was first read."""

    at: float
    sent: Mapping[Backend, float]


class GatewayCounters(Struct, frozen=True, kw_only=True):
    """The sums, and the counters they go on from."""

    totals: GatewayTotals
    counters: Mapping[Backend, float]
    pools: Mapping[str, float]
    truncated_pools: frozenset[str]
    started: float | None
    uptime: float | None
    restarts: int = 0


def update(progress: GatewayCounters | None, reading: GatewayReading) -> GatewayCounters | None:
    """Add what the page shows to the sums; a page cut off in the middle is no base for anything."""
    if not reading.complete:
        return progress
    now = {key: load.requests for key, load in reading.backends.items() if load.requests is not None}
    pools = {pool: load.requests for pool, load in reading.pools.items() if load.requests is not None}
    shown = [key for key in reading.backends if _counts(key, reading)]
    restarted = progress is not None and _restarted(progress, reading, now, pools)
    sent = dict.fromkeys(shown, 0.0) if progress is None else _sent(progress, reading, now, restarted=restarted)
    return GatewayCounters(
        totals=GatewayTotals(at=reading.at, sent=_bounded({key: sent[key] for key in shown}, sent)),
        counters=_bounded(now, EMPTY if progress is None or restarted else progress.counters),
        pools=pools,
        truncated_pools=reading.truncated_pools,
        started=reading.started,
        uptime=reading.uptime,
        restarts=(progress.restarts if progress is not None else 0) + restarted,
    )


def _sent(
    progress: GatewayCounters, reading: GatewayReading, now: Mapping[Backend, float], *, restarted: bool
) -> dict[Backend, float]:
    sent = dict(progress.totals.sent)
    seconds = max(0.0, reading.at - progress.totals.at)
    for key, load in reading.backends.items():
        counter = now.get(key)
        if counter is not None:
            # In a pool that was cut, a backend may be new to us only.
            unseen = counter if key.pool in progress.truncated_pools else 0.0
            before = 0.0 if restarted else progress.counters.get(key, unseen)
            # A single counter that falls is a backend that was taken out and put back in.
            sent[key] = sent.get(key, 0.0) + (counter - before if counter >= before else counter)
        elif load.rate is not None:
            sent[key] = sent.get(key, 0.0) + load.rate * seconds
    return sent


def _bounded(present: Mapping[Backend, float], all_: Mapping[Backend, float]) -> Mapping[Backend, float]:
    """Put the present ones first; of those that are gone, forget the oldest beyond the bound."""
    gone = [key for key in all_ if key not in present]
    room = max(0, MAX_REMEMBERED - len(present))
    return {**{key: all_[key] for key in gone[max(0, len(gone) - room) :]}, **present}


def _restarted(
    progress: GatewayCounters, reading: GatewayReading, now: Mapping[Backend, float], pools: Mapping[str, float]
) -> bool:
    if progress.started is not None and reading.started is not None:
        return abs(reading.started - progress.started) > _CLOCK_STEP
    if progress.uptime is not None and reading.uptime is not None:
        return reading.uptime < progress.uptime
    return any(counter < progress.counters.get(key, 0.0) for key, counter in now.items()) or any(
        counter < progress.pools.get(pool, 0.0) for pool, counter in pools.items()
    )


def window_figures(history: History[GatewayTotals], reading: GatewayReading) -> Mapping[str, GatewayFigures]:
    """Give the figures by window label; a window that covers no time yet is left out."""
    found: dict[str, GatewayFigures] = {}
    latest = history.latest
    for label in history.labels:
        base = history.base(label)
        if latest is not None and base is not None and latest.at > base.at:
            found[label] = _window(base, latest, reading)
    return found


def _window(base: GatewayTotals, latest: GatewayTotals, reading: GatewayReading) -> GatewayFigures:
    pools: dict[str, dict[Backend, float]] = {}
    for key, total in latest.sent.items():
        if key.pool not in reading.truncated_pools:
            pools.setdefault(key.pool, {})[key] = max(0.0, total - base.sent.get(key, 0.0))
    shares: dict[Backend, float] = {}
    imbalance: dict[str, float] = {}
    for pool, sent in pools.items():
        total = fsum(sent.values())
        shown = {key: number for key, number in sent.items() if _counts(key, reading)}
        if total > 0:
            shares.update({key: number / total for key, number in shown.items()})
        # A backend that is down and was sent nothing is no unevenness of the gateway's making.
        able = [number for key, number in shown.items() if number > 0 or reading.backends[key].up is not False]
        ratio = max_to_mean(able)
        if ratio is not None:
            imbalance[pool] = ratio
    return GatewayFigures(seconds=latest.at - base.at, shares=shares, imbalance=imbalance)


def _counts(key: Backend, reading: GatewayReading) -> bool:
    load = reading.backends.get(key)
    return load is not None and (load.requests is not None or load.rate is not None)


# ---------------------------------------------------------------------------------------- who a backend is


def match_backends(
    backends: Sequence[Backend], places: Sequence[Endpoint], here: Callable[[str], bool] = lambda _: False
) -> Mapping[Backend, str]:
    """Say which replica a backend is: the one polled at its address, else the one of its name.

    Addresses are compared as written, those of this machine as one, which ``here`` tells beside the usual loopback
    names: a gateway names a replica by the node's address where the daemon found it on loopback.  Nothing is
    resolved.  Where two replicas are at one address, there is no answer.
    """
    if not backends or not places:
        return EMPTY
    by_address: dict[tuple[str, int], set[str]] = {}
    for place in places:
        by_address.setdefault(_spot(place.host, place.port, here), set()).add(place.replica)
    names = {place.replica for place in places}
    found: dict[Backend, str] = {}
    for backend in backends:
        address = _ADDRESS.match(backend.name)
        there = by_address.get(_spot(address[1] or address[2], int(address[3]), here), set()) if address else set()
        if len(there) == 1:
            found[backend] = next(iter(there))
        elif not there and backend.name in names:
            found[backend] = backend.name
    return found


def _spot(host: str, port: int, here: Callable[[str], bool]) -> tuple[str, int]:
    host = host.lower()
    return ("localhost" if host in _LOCAL or here(host) else host, port)
