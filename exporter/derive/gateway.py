"""How a gateway distributes requests: shares of backends, imbalance of pools, and the replicas behind backends.

Increases are summed from page to page, so that windows continue across a restart.  A backend that a later page shows
for the first time had no series before its first request: all of it is increase.  A backend that disappears is
remembered, because its old count must not look like new requests when it returns.  What a departed backend was sent
during the window still counts for the shares of the others.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from math import fsum

from msgspec import Struct

from exporter.derive.assignment import Endpoint
from exporter.derive.imbalance import max_to_mean
from exporter.derive.windows import History
from exporter.model import EMPTY, Backend, GatewayFigures, GatewayReading

MAX_REMEMBERED = 256  # backends, departed ones included
_CLOCK_STEP = 1.5  # seconds; start times computed from an uptime jitter

_LOCAL = frozenset(("localhost", "127.0.0.1", "::1", "0.0.0.0"))
# http://10.0.0.1:8000, grpc://[::1]:8000, 10.0.0.1:8000, and http://10.0.0.1:8000@0 with a rank at the end
_ADDRESS = re.compile(r"(?:[a-z0-9+]+://)?(?:\[([0-9a-fA-F:.]+)\]|([^\s:/@\[\]]+)):(\d{1,5})(?:@\d{1,4})?(?:/.*)?\Z")


class GatewayTotals(Struct, frozen=True, kw_only=True):
    """Requests sent to each backend since the gateway was first read, and those that failed where it counts them."""

    at: float
    sent: Mapping[Backend, float]
    failed: Mapping[Backend, float] = EMPTY


class GatewayCounters(Struct, frozen=True, kw_only=True):
    """The totals, and the counters that they continue from."""

    totals: GatewayTotals
    counters: Mapping[Backend, float]
    errors: Mapping[Backend, float]
    pools: Mapping[str, float]
    truncated_pools: frozenset[str]
    started: float | None
    uptime: float | None
    restarts: int = 0


def update(known: GatewayCounters | None, reading: GatewayReading) -> GatewayCounters | None:
    """Return the totals with the increases on this page added; a truncated page changes nothing."""
    if not reading.complete:
        return known
    now = {key: load.requests for key, load in reading.backends.items() if load.requests is not None}
    errors = {key: load.errors for key, load in reading.backends.items() if load.errors is not None}
    pools = {pool: load.requests for pool, load in reading.pools.items() if load.requests is not None}
    shown = [key for key in reading.backends if _counts_requests(key, reading)]
    restarted = known is not None and _restarted(known, reading, now, pools)
    sent = dict.fromkeys(shown, 0.0) if known is None else _sent(known, reading, now, restarted=restarted)
    return GatewayCounters(
        totals=GatewayTotals(
            at=reading.at,
            sent=_bounded({key: sent[key] for key in shown}, sent),
            failed={} if known is None else _failed(known, errors, restarted=restarted),
        ),
        counters=_bounded(now, EMPTY if known is None or restarted else known.counters),
        errors=errors,
        pools=pools,
        truncated_pools=reading.truncated_pools,
        started=reading.started,
        uptime=reading.uptime,
        restarts=(known.restarts if known is not None else 0) + restarted,
    )


def _sent(
    known: GatewayCounters, reading: GatewayReading, now: Mapping[Backend, float], *, restarted: bool
) -> dict[Backend, float]:
    sent = dict(known.totals.sent)
    seconds = max(0.0, reading.at - known.totals.at)
    for key, load in reading.backends.items():
        counter = now.get(key)
        if counter is not None:
            # In a truncated pool, a backend may be new to this daemon only.
            unseen = counter if key.pool in known.truncated_pools else 0.0
            before = 0.0 if restarted else known.counters.get(key, unseen)
            # A single counter that decreases is a backend that was removed and added again.
            sent[key] = sent.get(key, 0.0) + (counter - before if counter >= before else counter)
        elif load.rate is not None:
            sent[key] = sent.get(key, 0.0) + load.rate * seconds
    return sent


def _failed(known: GatewayCounters, errors: Mapping[Backend, float], *, restarted: bool) -> dict[Backend, float]:
    """Return the failed requests of the backends that are there; one that is new to this page has none yet."""
    failed = {}
    for key, counter in errors.items():
        before = 0.0 if restarted else known.errors.get(key, counter)
        failed[key] = known.totals.failed.get(key, 0.0) + (counter - before if counter >= before else counter)
    return failed


def _bounded(present: Mapping[Backend, float], remembered: Mapping[Backend, float]) -> Mapping[Backend, float]:
    """Return the present ones, and of the departed ones the newest within the limit."""
    departed = [key for key in remembered if key not in present]
    room = max(0, MAX_REMEMBERED - len(present))
    return {**{key: remembered[key] for key in departed[max(0, len(departed) - room) :]}, **present}


def _restarted(
    known: GatewayCounters, reading: GatewayReading, now: Mapping[Backend, float], pools: Mapping[str, float]
) -> bool:
    if known.started is not None and reading.started is not None:
        return abs(reading.started - known.started) > _CLOCK_STEP
    if known.uptime is not None and reading.uptime is not None:
        return reading.uptime < known.uptime
    return any(counter < known.counters.get(key, 0.0) for key, counter in now.items()) or any(
        counter < known.pools.get(pool, 0.0) for pool, counter in pools.items()
    )


def window_figures(history: History[GatewayTotals], reading: GatewayReading) -> Mapping[str, GatewayFigures]:
    """Return the figures by window label; a window that covers no time yet is left out."""
    figures: dict[str, GatewayFigures] = {}
    latest = history.latest
    for label in history.labels:
        base = history.base(label)
        if latest is not None and base is not None and latest.at > base.at:
            figures[label] = _window(base, latest, reading)
    return figures


def _window(base: GatewayTotals, latest: GatewayTotals, reading: GatewayReading) -> GatewayFigures:
    pools: dict[str, dict[Backend, float]] = {}
    for key, total in latest.sent.items():
        if key.pool not in reading.truncated_pools:
            pools.setdefault(key.pool, {})[key] = max(0.0, total - base.sent.get(key, 0.0))
    shares: dict[Backend, float] = {}
    imbalance: dict[str, float] = {}
    for pool, sent in pools.items():
        total = fsum(sent.values())
        shown = {key: number for key, number in sent.items() if _counts_requests(key, reading)}
        if total > 0:
            shares.update({key: number / total for key, number in shown.items()})
        # A backend that is down and was sent nothing is no imbalance that the gateway causes.
        able = [number for key, number in shown.items() if number > 0 or reading.backends[key].up is not False]
        ratio = max_to_mean(able)
        if ratio is not None:
            imbalance[pool] = ratio
    return GatewayFigures(
        seconds=latest.at - base.at, shares=shares, imbalance=imbalance, error_ratios=_error_ratios(base, latest)
    )


def _error_ratios(base: GatewayTotals, latest: GatewayTotals) -> Mapping[Backend, float]:
    """Return the failed requests by those sent, of the backends that were sent any."""
    found = {}
    for key, failed in latest.failed.items():
        sent = latest.sent.get(key, 0.0) - base.sent.get(key, 0.0)
        if sent > 0:
            found[key] = min(1.0, max(0.0, failed - base.failed.get(key, 0.0)) / sent)
    return found


def _counts_requests(key: Backend, reading: GatewayReading) -> bool:
    load = reading.backends.get(key)
    return load is not None and (load.requests is not None or load.rate is not None)


# ---------------------------------------------------------------------------------------- backends and replicas


def match_backends(
    backends: Sequence[Backend], endpoints: Sequence[Endpoint], is_local_host: Callable[[str], bool] = lambda _: False
) -> Mapping[Backend, str]:
    """Return the replica of each backend: the one polled at its address, else the one with its name.

    Addresses are compared as written, without resolving names.  All addresses of this machine are one: loopback
    names, and those for which ``is_local_host`` is true, because a gateway may name a replica by the node's address
    where the daemon polls it on loopback.  A backend whose address belongs to two replicas has none.
    """
    if not backends or not endpoints:
        return EMPTY
    by_address: dict[tuple[str, int], set[str]] = {}
    for endpoint in endpoints:
        by_address.setdefault(_address_key(endpoint.host, endpoint.port, is_local_host), set()).add(endpoint.replica)
    names = {endpoint.replica for endpoint in endpoints}
    matches: dict[Backend, str] = {}
    for backend in backends:
        address = _ADDRESS.match(backend.name)
        at_address = (
            by_address.get(_address_key(address[1] or address[2], int(address[3]), is_local_host), set())
            if address
            else set()
        )
        if len(at_address) == 1:
            matches[backend] = next(iter(at_address))
        elif not at_address and backend.name in names:
            matches[backend] = backend.name
    return matches


def _address_key(host: str, port: int, is_local_host: Callable[[str], bool]) -> tuple[str, int]:
    host = host.lower()
    return ("localhost" if host in _LOCAL or is_local_host(host) else host, port)
