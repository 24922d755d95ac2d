"""Metrics that engines report, and their health; figures over windows are in ``engine_figures``."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from exporter.catalog.spec import (
    REPLICA,
    HistogramSample,
    Metric,
    MetricKind,
    ReadHistograms,
    ReadSamples,
    Sample,
    SeriesSet,
    Unit,
)
from exporter.model import Quantity, ReplicaState, Snapshot, Stage

# A request's duration depends more on the length of the answer than on the service: the common set has quantiles, the
# full set also its 24 bucket series a replica.
COMMON_HISTOGRAMS = (Stage.TIME_TO_FIRST_TOKEN, Stage.INTER_TOKEN)


def quantity_by_rank(quantity: Quantity) -> ReadSamples:
    """Return a reader of a quantity of every rank."""

    def read(snapshot: Snapshot) -> Iterator[Sample]:
        for replica in snapshot.replicas:
            if replica.reading is not None:
                for rank, numbers in replica.reading.ranks.items():
                    if quantity in numbers:
                        yield (*replica.labels, rank), numbers[quantity]

    return read


def quantity_total(quantity: Quantity) -> ReadSamples:
    """Return a reader of the sum over the ranks, with an empty rank; queries sum to the same in both sets.

    Counters of departed ranks stay in the sum, which must not decrease while the engine lives.
    """

    def read(snapshot: Snapshot) -> Iterator[Sample]:
        for replica in snapshot.replicas:
            if quantity in replica.quantity_totals:
                yield (*replica.labels, ""), replica.quantity_totals[quantity]

    return read


def _replica(value: Callable[[Snapshot, ReplicaState], float | None]) -> ReadSamples:
    def read(snapshot: Snapshot) -> Iterator[Sample]:
        for replica in snapshot.replicas:
            number = value(snapshot, replica)
            if number is not None:
                yield replica.labels, number

    return read


def _up(_: Snapshot, replica: ReplicaState) -> float:
    return float(replica.reading is not None)


def _duration(_: Snapshot, replica: ReplicaState) -> float | None:
    return replica.status.duration


def _age(snapshot: Snapshot, replica: ReplicaState) -> float | None:
    return None if replica.last_read_at is None else max(0.0, snapshot.at - replica.last_read_at)


def _frozen(_: Snapshot, replica: ReplicaState) -> float | None:
    return None if replica.frozen is None else float(replica.frozen)


def _stalled(_: Snapshot, replica: ReplicaState) -> float | None:
    if replica.frozen is None or replica.reading is None:
        return None
    work = (Quantity.REQUESTS_RUNNING, Quantity.REQUESTS_WAITING)
    return float(replica.frozen) * sum(
        values.get(quantity, 0.0) for values in replica.reading.ranks.values() for quantity in work
    )


def _restarts(_: Snapshot, replica: ReplicaState) -> float:
    return float(replica.restarts)


def _certificate(_: Snapshot, replica: ReplicaState) -> float | None:
    return replica.certificate_expires


def _engine_info(snapshot: Snapshot) -> Iterator[Sample]:
    for replica in snapshot.replicas:
        if replica.reading is not None:
            yield (*replica.labels, replica.reading.version), 1.0


def _finished(snapshot: Snapshot) -> Iterator[Sample]:
    for replica in snapshot.replicas:
        for outcome, count in replica.finished_totals.items():
            yield (*replica.labels, outcome), count


def _reasons(snapshot: Snapshot) -> Iterator[Sample]:
    for replica in snapshot.replicas:
        if replica.reading is not None:
            for rank, reasons in replica.reading.finish_reasons.items():
                for reason, count in reasons.items():
                    if count:
                        yield (*replica.labels, rank, reason), count


def _responses(snapshot: Snapshot) -> Iterator[Sample]:
    for replica in snapshot.replicas:
        if replica.reading is not None:
            for status, count in replica.reading.responses.items():
                yield (*replica.labels, status), count


def histogram_of(stage: Stage) -> ReadHistograms:
    """Return a reader of a latency's buckets, summed over the ranks."""

    def read(snapshot: Snapshot) -> Iterator[HistogramSample]:
        for replica in snapshot.replicas:
            if replica.reading is not None and stage in replica.histograms:
                yield replica.labels, replica.histograms[stage]

    return read


def _rank_counter(noun: str, quantity: Quantity, help_: str, unit: Unit = Unit.NONE) -> Metric:
    """Declare a counter that only the full set exposes by rank."""
    return REPLICA.counter(
        noun,
        quantity_total(quantity),
        f"{help_} The common set has the sum over the ranks, departed ones included, with an empty rank.",
        "rank",
        unit=unit,
        read_full=quantity_by_rank(quantity),
    )


def _latency(stage: Stage, noun: str, help_: str) -> Metric:
    return Metric(
        subject=REPLICA,
        noun=noun,
        kind=MetricKind.HISTOGRAM,
        unit=Unit.SECONDS,
        help=f"{help_} The engine's own buckets, summed over its ranks, departed ones included.",
        series=SeriesSet.COMMON if stage in COMMON_HISTOGRAMS else SeriesSet.FULL,
        read_histogram=histogram_of(stage),
    )


HEALTH = (
    REPLICA.gauge("up", _replica(_up), "1 while the engine's metrics are read successfully, else 0."),
    REPLICA.gauge(
        "scrape_duration",
        _replica(_duration),
        "Duration of the last scrape of the engine; slow responses under load are normal.",
        unit=Unit.SECONDS,
        series=SeriesSet.FULL,
    ),
    REPLICA.gauge("data_age", _replica(_age), "Age of the replica's newest reading.", unit=Unit.SECONDS),
    REPLICA.gauge(
        "frozen",
        _replica(_frozen),
        "1 while requests are running and no counter of the replica, or of a rank that runs some, has moved for as "
        "long as docs/engines.md says of the engine, or requests wait, none runs, and no counter has moved; absent "
        "while that is not known.",
    ),
    REPLICA.gauge(
        "stalled_requests",
        _replica(_stalled),
        "Running and waiting requests of a replica that makes no progress (llm_frozen is 1), else 0. No counter and "
        "no histogram has these requests while they hang.",
    ),
    REPLICA.counter(
        "restarts", _replica(_restarts), "Restarts of the engine since the daemon's start.", series=SeriesSet.FULL
    ),
    REPLICA.gauge(
        "certificate_expiry_timestamp",
        _replica(_certificate),
        "Unix time at which the engine's TLS certificate expires; absent over plain HTTP.",
        unit=Unit.SECONDS,
    ),
    REPLICA.info("engine", _engine_info, "The engine's version, empty if it does not report one.", "version"),
)

LOAD = (
    REPLICA.gauge(
        "requests_running", quantity_by_rank(Quantity.REQUESTS_RUNNING), "Requests in the running batch.", "rank"
    ),
    REPLICA.gauge(
        "requests_waiting", quantity_by_rank(Quantity.REQUESTS_WAITING), "Requests waiting to be scheduled.", "rank"
    ),
    REPLICA.gauge(
        "requests_swapped",
        quantity_by_rank(Quantity.REQUESTS_SWAPPED),
        "Requests swapped out to host memory (old engines).",
        "rank",
        series=SeriesSet.FULL,
    ),
    REPLICA.counter(
        "requests",
        _finished,
        "Requests by how they ended: success, error, rejected (load shed on purpose), invalid (the client's "
        "mistake), cancelled. Few engines count clients that go away; docs/outcomes.md has each engine's words.",
        "outcome",
    ),
    REPLICA.counter(
        "requests_by_reason",
        _reasons,
        "The same requests by the engine's own word for their end, such as stop, length or max_num_queued_reqs. "
        "A word begins with its first request.",
        "rank",
        "reason",
        series=SeriesSet.FULL,
    ),
    REPLICA.counter(
        "responses",
        _responses,
        "HTTP responses of the inference paths by status class. A stream that fails after its headers stays 2xx.",
        "status",
        series=SeriesSet.FULL,
    ),
    _rank_counter(
        "prompt",
        Quantity.PROMPT_TOKENS,
        "Prompt tokens processed, cached ones included.",
        Unit.TOKENS,
    ),
    _rank_counter("generation", Quantity.GENERATION_TOKENS, "Tokens generated.", Unit.TOKENS),
    _rank_counter("preemptions", Quantity.PREEMPTIONS, "Running requests preempted because the KV cache was full."),
)

KV_CACHE = (
    REPLICA.gauge(
        "kv_cache_usage",
        quantity_by_rank(Quantity.KV_CACHE_USAGE),
        "Ratio of the KV cache held by live requests; cached blocks that can be evicted count as free.",
        "rank",
        unit=Unit.RATIO,
    ),
    REPLICA.gauge(
        "kv_cache_capacity",
        quantity_total(Quantity.KV_CACHE_CAPACITY),
        "Tokens that the KV cache can hold. The common set has the sum over the ranks, with an empty rank.",
        "rank",
        unit=Unit.TOKENS,
        read_full=quantity_by_rank(Quantity.KV_CACHE_CAPACITY),
    ),
    _rank_counter(
        "prefix_cache_queries",
        Quantity.PREFIX_CACHE_QUERIES,
        "Tokens looked up in the prefix cache; blocks with the engines that docs/engines.md names.",
    ),
    _rank_counter(
        "prefix_cache_hits",
        Quantity.PREFIX_CACHE_HITS,
        "Tokens found in the prefix cache; blocks with the engines that docs/engines.md names.",
    ),
)

LATENCY = (
    _latency(
        Stage.TIME_TO_FIRST_TOKEN, "time_to_first_token", "Arrival to first token, including queue and prefill."
    ),
    _latency(
        Stage.INTER_TOKEN,
        "inter_token_latency",
        "Time between engine steps of a request; with speculative decoding a step yields several tokens.",
    ),
    _latency(
        Stage.TIME_PER_OUTPUT_TOKEN, "time_per_output_token", "Mean time per output token of each finished request."
    ),
    _latency(Stage.REQUEST, "request_duration", "Arrival to last token of finished requests."),
    _latency(Stage.QUEUE, "queue_duration", "Time that finished requests waited for the scheduler."),
    _latency(Stage.PREFILL, "prefill_duration", "Time from scheduling to the first token."),
    _latency(Stage.DECODE, "decode_duration", "Time from the first to the last token."),
)

ENGINE_METRICS = (*HEALTH, *LOAD, *KV_CACHE, *LATENCY)
