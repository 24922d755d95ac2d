"""What the page says of gateways, their pools, and the backends behind them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from exporter.catalog.spec import BACKEND, GATEWAY, POOL, Metric, MetricKind, ReadSamples, Sample, Subject, Unit
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


def _metric(
    subject: Subject, noun: str, kind: MetricKind, read: ReadSamples, help_: str, *labels: str, unit: Unit = Unit.NONE
) -> Metric:
    return Metric(subject=subject, noun=noun, kind=kind, unit=unit, labels=labels, help=help_, read=read)


HEALTH = (
    _metric(
        GATEWAY,
        "up",
        MetricKind.GAUGE,
        _gateway(lambda _, g: float(g.reading is not None)),
        "1 while the gateway's page is read and understood, else 0.",
    ),
    _metric(
        GATEWAY,
        "data_age",
        MetricKind.GAUGE,
        _gateway(_age),
        "Age of the gateway's newest reading when this page was made.",
        unit=Unit.SECONDS,
    ),
    _metric(
        GATEWAY,
        "scrape_duration",
        MetricKind.GAUGE,
        _gateway(lambda _, g: g.status.duration),
        "How long the last exchange with the gateway took.",
        unit=Unit.SECONDS,
    ),
    _metric(
        GATEWAY,
        "restarts",
        MetricKind.COUNTER,
        _gateway(lambda _, g: float(g.restarts)),
        "Restarts of the gateway that its counters have shown since the daemon started.",
    ),
)

BACKENDS = (
    _metric(
        BACKEND,
        "requests",
        MetricKind.COUNTER,
        _of_backend(lambda load: load.requests),
        "Requests that the gateway sent to the backend; a retry counts again. Absent where the gateway counts none "
        "by backend: nginx without VTS, Envoy without per-endpoint statistics.",
    ),
    _metric(
        BACKEND,
        "errors",
        MetricKind.COUNTER,
        _of_backend(lambda load: load.errors),
        "Requests that failed at the backend: answers 5xx, and answers that never came.",
    ),
    _metric(
        BACKEND,
        "requests_active",
        MetricKind.GAUGE,
        _of_backend(lambda load: load.active),
        "Requests that the backend is working on, as the gateway sees it.",
    ),
    _metric(
        BACKEND,
        "requests_queued",
        MetricKind.GAUGE,
        _of_backend(lambda load: load.queued),
        "Requests that wait for this backend; of model-aware routers that say it, inside its engine.",
    ),
    _metric(
        BACKEND,
        "backend_up",
        MetricKind.GAUGE,
        _of_backend(_up),
        "1 while the gateway holds the backend fit for new requests; draining and maintenance are 0.",
    ),
    _metric(
        BACKEND,
        "backend_replica",
        MetricKind.INFO,
        _replicas,
        "Which replica the backend is: the one polled at its address, else the one of its name.",
        "replica",
    ),
    _metric(
        BACKEND,
        "request_share",
        MetricKind.GAUGE,
        _shares,
        "Share of the pool's requests that the backend was sent during the window; absent without requests.",
        "window",
        unit=Unit.RATIO,
    ),
)

POOLS = (
    _metric(
        POOL,
        "backend_imbalance_max_to_mean",
        MetricKind.GAUGE,
        _imbalance,
        "Highest over mean of the requests sent to the pool's backends during the window: 1 is even. Weights are "
        "not taken out; backends that are down and were sent nothing are left out.",
        "window",
        unit=Unit.RATIO,
    ),
    _metric(
        POOL,
        "pool_requests",
        MetricKind.COUNTER,
        _of_pool(lambda load: load.requests),
        "Requests of the whole pool, or of the whole gateway where the pool is empty. nginx counts the requests for "
        "its own status page too.",
    ),
    _metric(
        POOL,
        "pool_errors",
        MetricKind.COUNTER,
        _of_pool(lambda load: load.errors),
        "Requests of the whole pool that were answered 5xx, by a backend or by the gateway itself.",
    ),
    _metric(
        POOL,
        "pool_requests_active",
        MetricKind.GAUGE,
        _of_pool(lambda load: load.active),
        "Requests in work in the whole pool.",
    ),
    _metric(
        POOL,
        "pool_requests_queued",
        MetricKind.GAUGE,
        _of_pool(lambda load: load.queued),
        "Requests that wait in the pool and have no backend yet.",
    ),
)

GATEWAYS = (*HEALTH, *BACKENDS, *POOLS)
