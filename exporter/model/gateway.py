"""What gateways say, and what was derived from it."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from exporter.model.source import EMPTY, SourceStatus

Backend = tuple[str, str]  # (pool, backend) as the gateway names them; the pool is "" where it has no pools


class BackendLoad(Struct, frozen=True, kw_only=True):
    """What a gateway counts for one backend, or for a whole pool.  None: it does not say."""

    requests: float | None = None  # counter; retries count again
    errors: float | None = None  # counter
    active: float | None = None  # requests at the backend now
    queued: float | None = None  # requests that wait for it
    rate: float | None = None  # requests per second, from gateways that do not count them
    up: bool | None = None  # fit for new requests


class GatewayReading(Struct, frozen=True, kw_only=True):
    """What one gateway page said, upstream names gone."""

    at: float
    gateway: str  # the kind: haproxy, nginx, envoy, …
    backends: Mapping[Backend, BackendLoad]
    pools: Mapping[str, BackendLoad] = EMPTY
    cut: frozenset[str] = frozenset()  # pools with backends beyond the cap: shares would be wrong
    started: float | None = None  # wall; a change is a restart
    uptime: float | None = None  # seconds; a fall is a restart
    complete: bool = True
    parse_warnings: Mapping[str, int] = EMPTY


class GatewayFigures(Struct, frozen=True, kw_only=True):
    """How a gateway spread its requests during one window; empty where nothing was sent."""

    seconds: float  # time really covered
    shares: Mapping[Backend, float] = EMPTY  # of the pool's requests
    imbalance: Mapping[str, float] = EMPTY  # pool → max ÷ mean


class GatewayState(Struct, frozen=True, kw_only=True):
    """A gateway as the page shows it."""

    name: str
    labels: tuple[str, str]  # (gateway, kind); the kind is "" until the page says
    status: SourceStatus
    reading: GatewayReading | None
    last_read_at: float | None
    windows: Mapping[str, GatewayFigures] = EMPTY
    replicas: Mapping[Backend, str] = EMPTY  # which replica a backend is
    restarts: int = 0
