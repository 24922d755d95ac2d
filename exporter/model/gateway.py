"""Gateways: what their pages report, and what is derived from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from msgspec import Struct

from exporter.model.source import EMPTY, SourceStatus


class Backend(NamedTuple):
    """A backend as the gateway names it; the pool is "" where the gateway has no pools."""

    pool: str
    name: str


class BackendLoad(Struct, frozen=True, kw_only=True):
    """What a gateway counts for one backend, or for a whole pool.  None: not reported."""

    requests: float | None = None  # counter; retries count again
    errors: float | None = None  # counter
    active: float | None = None  # requests at the backend now
    queued: float | None = None  # requests waiting for it
    rate: float | None = None  # requests per second, of gateways that do not count requests
    up: bool | None = None  # takes new requests
    # Of the pools of an endpoint picker, which reads the engines' metrics itself.
    stale_endpoints: float | None = None  # endpoints whose metrics are missing or too old to choose by
    poll_errors: float | None = None  # counter: their metrics could not be fetched or understood
    decode_only: float | None = None  # counter: requests for which no separate prefill was chosen
    disaggregated: float | None = None  # counter: requests for which one was


class GatewayReading(Struct, frozen=True, kw_only=True):
    """One parsed gateway page, free of upstream names."""

    at: float
    gateway: str  # the kind: haproxy, nginx, envoy, …
    backends: Mapping[Backend, BackendLoad]
    pools: Mapping[str, BackendLoad] = EMPTY
    truncated_pools: frozenset[str] = frozenset()  # with backends beyond the cap: shares would be wrong
    started: float | None = None  # Unix time; a change is a restart
    uptime: float | None = None  # seconds; a decrease is a restart
    complete: bool = True
    parse_warnings: Mapping[str, int] = EMPTY


class GatewayFigures(Struct, frozen=True, kw_only=True):
    """How a gateway distributed its requests during one window; empty where nothing was sent."""

    seconds: float  # time covered
    shares: Mapping[Backend, float] = EMPTY  # of the pool's requests
    imbalance: Mapping[str, float] = EMPTY  # pool → max ÷ mean
    error_ratios: Mapping[Backend, float] = EMPTY  # failed ÷ sent, of backends whose errors are counted


class GatewayLabels(NamedTuple):
    """The labels of every series about a gateway; ``kind`` is "" until a page was recognised."""

    gateway: str
    kind: str


class GatewayState(Struct, frozen=True, kw_only=True):
    """A gateway in a snapshot."""

    name: str
    labels: GatewayLabels
    status: SourceStatus
    reading: GatewayReading | None
    last_read_at: float | None
    windows: Mapping[str, GatewayFigures] = EMPTY
    replicas: Mapping[Backend, str] = EMPTY  # which replica a backend is
    restarts: int = 0
