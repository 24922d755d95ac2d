"""Metrics of gateways, their pools and backends."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from exporter.catalog.spec import BACKEND, GATEWAY, POOL, ReadSamples, Sample, Unit
from exporter.model import BackendLoad, GatewayState, Snapshot


def _gateway(value: Callable[[Snapshot, GatewayState], float | None]) -> ReadSamples:
    def read(snapshot: Snapshot) -> Iterator[Sample]:
        for gateway in snapshot.gateways:
            number = value(snapshot, gateway)
            if number is not None:
                yield gateway.labels, number

    return read


def _age(snapshot: Snapshot, gateway: GatewayState) -> float | None:
    return None if gateway.last_read_at is None else max(0.0, snapshot.at - gateway.last_read_at)


def _of_backend(value: Callable[[BackendLoad], float | None]) -> ReadSamples:
    def read(snapshot: Snapshot) -> Iterator[Sample]:
        for gateway in snapshot.gateways:
            if gateway.reading is not None:
                for key, load in gateway.reading.backends.items():
                    number = value(load)
                    if number is not None:
                        yield (*gateway.labels, *key), number

    return read


def _of_pool(value: Callable[[BackendLoad], float | None]) -> ReadSamples:
    def read(snapshot: Snapshot) -> Iterator[Sample]:
        for gateway in snapshot.gateways:
            if gateway.reading is not None:
                for pool, load in gateway.reading.pools.items():
                    number = value(load)
                    if number is not None:
                        yield (*gateway.labels, pool), number

    return read


def _up(load: BackendLoad) -> float | None:
    return None if load.up is None else float(load.up)


def _decisions(snapshot: Snapshot) -> Iterator[Sample]:
    for gateway in snapshot.gateways:
        for pool, load in gateway.reading.pools.items() if gateway.reading is not None else ():
            for decision, number in (("decode_only", load.decode_only), ("disaggregated", load.disaggregated)):
                if number is not None:
                    yield (*gateway.labels, pool, decision), number


def _shares(snapshot: Snapshot) -> Iterator[Sample]:
    for gateway in snapshot.gateways:
        for label, figures in gateway.windows.items():
            for key, share in figures.shares.items():
                yield (*gateway.labels, *key, label), share


def _imbalance(snapshot: Snapshot) -> Iterator[Sample]:
    for gateway in snapshot.gateways:
        for label, figures in gateway.windows.items():
            for pool, ratio in figures.imbalance.items():
                yield (*gateway.labels, pool, label), ratio


def _replicas(snapshot: Snapshot) -> Iterator[Sample]:
    for gateway in snapshot.gateways:
        for key, replica in gateway.replicas.items():
            yield (*gateway.labels, *key, replica), 1.0


HEALTH = (
    GATEWAY.gauge(
        "up",
        _gateway(lambda _, g: float(g.reading is not None)),
        "1 while the gateway's metrics are read successfully, else 0.",
    ),
    GATEWAY.gauge("data_age", _gateway(_age), "Age of the gateway's newest reading.", unit=Unit.SECONDS),
    GATEWAY.gauge(
        "scrape_duration",
        _gateway(lambda _, g: g.status.duration),
        "Duration of the last scrape of the gateway.",
        unit=Unit.SECONDS,
    ),
    GATEWAY.counter(
        "restarts", _gateway(lambda _, g: float(g.restarts)), "Restarts of the gateway since the daemon's start."
    ),
)

BACKENDS = (
    BACKEND.counter(
        "requests",
        _of_backend(lambda load: load.requests),
        "Requests that the gateway sent to the backend; a retry counts again. Absent where the gateway does not "
        "count by backend: nginx without VTS, Envoy without per-endpoint statistics.",
    ),
    BACKEND.counter(
        "errors",
        _of_backend(lambda load: load.errors),
        "Requests that failed at the backend: 5xx responses, and missing responses.",
    ),
    BACKEND.gauge(
        "requests_active",
        _of_backend(lambda load: load.active),
        "Requests in progress at the backend, as the gateway sees them.",
    ),
    BACKEND.gauge(
        "requests_queued",
        _of_backend(lambda load: load.queued),
        "Requests queued for this backend; with model-aware routers, inside its engine.",
    ),
    BACKEND.gauge(
        "backend_up",
        _of_backend(_up),
        "1 while the gateway sends new requests to the backend; draining and maintenance are 0.",
    ),
    BACKEND.info(
        "backend_replica",
        _replicas,
        "The replica behind the backend: the one polled at its address, else the one with its name.",
        "replica",
    ),
    BACKEND.gauge(
        "request_share",
        _shares,
        "Ratio of the pool's requests that were sent to the backend during the window; absent without requests.",
        "window",
        unit=Unit.RATIO,
    ),
)

POOLS = (
    POOL.gauge(
        "backend_imbalance_max_to_mean",
        _imbalance,
        "Maximum over mean of the requests sent to the pool's backends during the window: 1 is balanced. Weights are "
        "not considered; backends that are down and were sent nothing are left out.",
        "window",
        unit=Unit.RATIO,
    ),
    POOL.counter(
        "pool_requests",
        _of_pool(lambda load: load.requests),
        "Requests of the whole pool, or of the whole gateway where the pool is empty. nginx includes the requests "
        "for its own status page.",
    ),
    POOL.counter(
        "pool_errors",
        _of_pool(lambda load: load.errors),
        "5xx responses of the whole pool, from a backend or from the gateway itself.",
    ),
    POOL.gauge("pool_requests_active", _of_pool(lambda load: load.active), "Requests in progress in the whole pool."),
    POOL.gauge(
        "pool_requests_queued", _of_pool(lambda load: load.queued), "Requests queued in the pool without a backend."
    ),
    POOL.gauge(
        "pool_stale_endpoints",
        _of_pool(lambda load: load.stale_endpoints),
        "Endpoints whose metrics are missing or too old for an endpoint picker to choose by; of pickers with flow "
        "control.",
    ),
    POOL.counter(
        "pool_poll_errors",
        _of_pool(lambda load: load.poll_errors),
        "Endpoints' metrics that an endpoint picker could not fetch or understand.",
    ),
    POOL.counter(
        "pool_disaggregation_decisions",
        _decisions,
        "Requests by what an endpoint picker decided about their prefill: disaggregated, or decode_only.",
        "decision",
    ),
)

GATEWAY_METRICS = (*HEALTH, *BACKENDS, *POOLS)
