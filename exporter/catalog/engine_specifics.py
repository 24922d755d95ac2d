"""Metrics of what differs between kinds of engines: names, missing signals, special figures."""

from __future__ import annotations

from collections.abc import Iterator

from exporter.catalog.engines import histogram_of, quantity_by_rank, quantity_total
from exporter.catalog.spec import REPLICA, Metric, MetricKind, Sample, SeriesSet, Unit
from exporter.model import Quantity, Snapshot, Stage


def _dialect(snapshot: Snapshot) -> Iterator[Sample]:
    for replica in snapshot.replicas:
        if replica.reading is not None and replica.reading.name_style:
            yield (*replica.labels, replica.reading.name_style), 1.0


def _missing(snapshot: Snapshot) -> Iterator[Sample]:
    for replica in snapshot.replicas:
        if replica.reading is not None:
            for signal, reason in replica.reading.missing.items():
                yield (*replica.labels, signal, reason), 1.0


def _stale(snapshot: Snapshot) -> Iterator[Sample]:
    for replica in snapshot.replicas:
        if replica.reading is not None:
            for rank in sorted(replica.reading.stale_ranks):
                yield (*replica.labels, rank), 1.0


def _proxies(snapshot: Snapshot) -> Iterator[Sample]:
    states = (("healthy", Quantity.PROXIES_HEALTHY), ("unhealthy", Quantity.PROXIES_UNHEALTHY))
    for replica in snapshot.replicas:
        if replica.reading is not None:
            for numbers in replica.reading.ranks.values():
                for state, quantity in states:
                    if quantity in numbers:
                        yield (*replica.labels, state), numbers[quantity]


def _duration(stage: Stage, noun: str, help_: str) -> Metric:
    return Metric(
        subject=REPLICA,
        noun=noun,
        kind=MetricKind.HISTOGRAM,
        unit=Unit.SECONDS,
        help=f"{help_} The engine's own buckets.",
        series=SeriesSet.FULL,
        read_histogram=histogram_of(stage),
    )


ENGINE_SPECIFICS = (
    REPLICA.info(
        "engine_dialect",
        _dialect,
        "Prefix of the engine's metric names, such as vllm:, ray_vllm_ or sglang_.",
        "dialect",
        series=SeriesSet.FULL,
    ),
    REPLICA.info(
        "signal_missing",
        _missing,
        "What this kind of engine never reports, and why; these figures are absent by design. A signal "
        "model:NAME is a second model on one page, of which one is read.",
        "signal",
        "reason",
    ),
    REPLICA.info(
        "rank_stale",
        _stale,
        "A rank on a Ray node whose figures do not change while others' do: its replica has ended or hangs. "
        "Its load is not counted.",
        "rank",
    ),
    REPLICA.gauge(
        "proxies",
        _proxies,
        "HTTP and gRPC proxies of Ray Serve in the whole cluster, as its controller sees them; starting and "
        "draining proxies are in neither state.",
        "state",
    ),
    REPLICA.counter(
        "aborted_requests",
        quantity_total(Quantity.REQUESTS_ABORTED),
        "Requests cancelled before their end, in engines that count them; llm_requests_total includes them.",
        "rank",
        series=SeriesSet.FULL,
        read_full=quantity_by_rank(Quantity.REQUESTS_ABORTED),
    ),
    _duration(
        Stage.INFERENCE,
        "inference_duration",
        "Time from scheduling to the last token, in engines that do not separate prefill and decode.",
    ),
    _duration(
        Stage.BATCH_PREFILL,
        "batch_prefill_duration",
        "Prefill time of one batch, in engines that do not measure requests; the batch's requests count once.",
    ),
    _duration(
        Stage.BATCH_DECODE,
        "batch_decode_duration",
        "Time of one decode step of one batch, in engines that do not measure requests.",
    ),
)
