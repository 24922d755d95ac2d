"""Speculative decoding, tiers of the KV cache, queues and adapters: the full set, of engines that report them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from exporter.catalog.engine_figures import figure
from exporter.catalog.engines import histogram_of, quantity_by_rank
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
from exporter.model import AWAKE, Detail, Histogram, Quantity, Snapshot, Stage

_NORMAL = (Detail.SLEEP_STATES, AWAKE)
_STEP = 2.5  # of the bounds of lengths: engines have 1, 2, 5, 10, … tokens, and every second one tells as much


def _detail(noun: str, kind: MetricKind, detail: Detail, label: str, help_: str, *, unit: Unit = Unit.NONE) -> Metric:
    """Declare what an engine reports by a word of its own.

    A counter, a state and a reason begin with the first value above 0: most that an engine lists are unused.
    """
    is_used_only = kind is MetricKind.COUNTER or detail in (Detail.SLEEP_STATES, Detail.WAITING_REASONS)

    def read(snapshot: Snapshot) -> Iterator[Sample]:
        for replica in snapshot.replicas:
            if replica.reading is not None:
                for rank, words in replica.reading.details.get(detail, {}).items():
                    for word, value in words.items():
                        if (value or not is_used_only) and (detail, word) != _NORMAL:
                            yield (*replica.labels, rank, word), value

    return REPLICA.metric(kind, noun, read, help_, "rank", label, unit=unit, series=SeriesSet.FULL)


def _by_rank(noun: str, kind: MetricKind, read: ReadSamples, help_: str, unit: Unit = Unit.NONE) -> Metric:
    return REPLICA.metric(kind, noun, read, help_, "rank", unit=unit, series=SeriesSet.FULL)


def _counter(noun: str, quantity: Quantity, help_: str, unit: Unit = Unit.NONE) -> Metric:
    return _by_rank(noun, MetricKind.COUNTER, _used(quantity), help_, unit)


def _used(quantity: Quantity) -> ReadSamples:
    """Return a reader of a quantity by rank, without engines that list it as 0 while the feature is off."""
    every = quantity_by_rank(quantity)
    return lambda snapshot: ((labels, value) for labels, value in every(snapshot) if value > 0)


def _role(snapshot: Snapshot) -> Iterator[Sample]:
    for replica in snapshot.replicas:
        if replica.reading is not None and replica.reading.role:
            yield (*replica.labels, replica.reading.role), 1.0


def _host_usage(snapshot: Snapshot) -> Iterator[Sample]:
    for replica in snapshot.replicas:
        if replica.reading is not None:
            for rank, numbers in replica.reading.ranks.items():
                capacity = numbers.get(Quantity.HOST_CACHE_CAPACITY, 0.0)
                if Quantity.HOST_CACHE_USED in numbers and capacity > 0:
                    yield (*replica.labels, rank), numbers[Quantity.HOST_CACHE_USED] / capacity


def _coarser(every: ReadHistograms) -> ReadHistograms:
    def read(snapshot: Snapshot) -> Iterator[HistogramSample]:
        for labels, histogram in every(snapshot):
            kept = _kept(histogram.bounds)
            counts = tuple([histogram.counts[place] for place in (*kept, -1)])
            bounds = tuple([histogram.bounds[place] for place in kept])
            yield labels, Histogram(bounds=bounds, counts=counts, sum=histogram.sum)

    return read


@lru_cache(maxsize=64)
def _kept(bounds: tuple[float, ...]) -> tuple[int, ...]:
    """Return the places of the first bound and of each that is ``_STEP`` times the one kept before it."""
    kept: list[int] = []
    for place, bound in enumerate(bounds):
        if not kept or bound >= _STEP * bounds[kept[-1]]:
            kept.append(place)
    return tuple(kept)


def _length(stage: Stage, noun: str, help_: str) -> Metric:
    return Metric(
        subject=REPLICA,
        noun=noun,
        kind=MetricKind.HISTOGRAM,
        unit=Unit.TOKENS,
        help=f"{help_} Every second of the engine's own buckets, summed over its ranks, departed ones included.",
        series=SeriesSet.FULL,
        read_histogram=_coarser(histogram_of(stage)),
    )


DISTRIBUTIONS = (
    _length(Stage.PROMPT_LENGTH, "request_prompt", "Tokens of the prompts of requests."),
    _length(Stage.GENERATION_LENGTH, "request_generation", "Tokens of the answers of finished requests."),
    _length(
        Stage.STEP_TOKENS, "step", "Tokens of all requests in one step of the engine, prompt and generated ones."
    ),
)

SPECULATION = (
    _counter("spec_decode_drafts", Quantity.SPEC_DRAFTS, "Drafts of speculative decoding that were verified."),
    _counter("spec_decode_draft_tokens", Quantity.SPEC_DRAFT_TOKENS, "Tokens that were drafted."),
    _counter("spec_decode_accepted_tokens", Quantity.SPEC_ACCEPTED_TOKENS, "Drafted tokens that were accepted."),
    _detail(
        "spec_decode_accepted_tokens_by_position",
        MetricKind.COUNTER,
        Detail.SPEC_POSITIONS,
        "position",
        "Drafted tokens that were accepted, by their position in the draft.",
    ),
    figure(
        "spec_decode_acceptance",
        lambda figures: figures.spec_acceptance_ratio,
        "Accepted over drafted tokens during the window; absent without drafts.",
        Unit.RATIO,
        SeriesSet.FULL,
    ),
    figure(
        "spec_decode_accepted_length",
        lambda figures: figures.spec_accepted_length,
        "Tokens accepted of a draft during the window, on average; each step yields one more.",
        Unit.TOKENS,
        SeriesSet.FULL,
    ),
    _by_rank(
        "spec_decode_reported_accepted_length",
        MetricKind.GAUGE,
        _used(Quantity.SPEC_ACCEPTED_LENGTH_NOW),
        "Tokens that a step yields, as the engine averages them; of engines that count no drafts.",
        Unit.TOKENS,
    ),
    _by_rank(
        "spec_decode_reported_acceptance",
        MetricKind.GAUGE,
        _used(Quantity.SPEC_ACCEPTANCE_NOW),
        "Accepted over drafted tokens lately, as the engine averages it; of engines that count no drafts.",
        Unit.RATIO,
    ),
)

TIERS = (
    _counter(
        "external_cache_queries",
        Quantity.EXTERNAL_CACHE_QUERIES,
        "Tokens looked up in a KV cache outside of the engine, through its KV connector.",
    ),
    _counter("external_cache_hits", Quantity.EXTERNAL_CACHE_HITS, "Tokens found there."),
    figure(
        "external_cache_hit",
        lambda figures: figures.external_hit_ratio,
        "Hits over queries of a KV cache outside of the engine during the window; absent without queries.",
        Unit.RATIO,
        SeriesSet.FULL,
    ),
    _detail(
        "prompt_tokens_by_source",
        MetricKind.COUNTER,
        Detail.PROMPT_SOURCES,
        "source",
        "Prompt tokens by where they came from, in the engine's words: computed, found in a cache, transferred.",
    ),
    _detail(
        "cached_tokens_by_source",
        MetricKind.COUNTER,
        Detail.CACHED_SOURCES,
        "source",
        "Prompt tokens found in a tier of the KV cache, in the engine's words: device, host, disk or storage.",
    ),
    _detail(
        "kv_offload",
        MetricKind.COUNTER,
        Detail.OFFLOAD_BYTES,
        "direction",
        "Bytes of the KV cache moved between the GPU and host memory.",
        unit=Unit.BYTES,
    ),
    _detail(
        "kv_offload_duration",
        MetricKind.COUNTER,
        Detail.OFFLOAD_SECONDS,
        "direction",
        "Time spent moving the KV cache between the GPU and host memory.",
        unit=Unit.SECONDS,
    ),
    _by_rank(
        "kv_host_cache_usage",
        MetricKind.GAUGE,
        _host_usage,
        "Usage of the KV cache's tier in host memory.",
        Unit.RATIO,
    ),
)

SCHEDULER = (
    _detail(
        "requests_waiting_by_reason",
        MetricKind.GAUGE,
        Detail.WAITING_REASONS,
        "reason",
        "Waiting requests by the engine's reason: capacity, or deferred, such as until a KV cache has arrived. "
        "Absent for a reason that none waits for.",
    ),
    _detail(
        "scheduler_queue_requests",
        MetricKind.GAUGE,
        Detail.SCHEDULER_QUEUES,
        "queue",
        "Requests in the queues of disaggregation (SGLang's prefill_bootstrap, prefill_inflight, decode_prealloc, "
        "decode_transfer; vLLM's waiting_to_start, in_progress, completed_waiting, of caches that it loads) and of "
        "grammars.",
    ),
    _detail(
        "kv_transfer_failures",
        MetricKind.COUNTER,
        Detail.TRANSFER_FAILURES,
        "kind",
        "Transfers of KV caches between prefill and decode that failed, found the other side unconnected, were not "
        "confirmed, or expired unfetched.",
    ),
    _counter(
        "kv_transfers",
        Quantity.KV_TRANSFERS,
        "Transfers of KV caches between prefill and decode that ended well, counted by the side that measures them.",
    ),
    _counter(
        "kv_transfer",
        Quantity.KV_TRANSFER_BYTES,
        "Bytes that they moved. With SGLang each tensor-parallel rank counts its part, and without "
        "--enable-metrics-for-all-schedulers only rank 0 is on the page: its part alone.",
        Unit.BYTES,
    ),
    _counter(
        "kv_transfer_duration",
        Quantity.KV_TRANSFER_SECONDS,
        "Time that they took, added up over transfers, some of which overlap.",
        Unit.SECONDS,
    ),
    REPLICA.info(
        "disaggregation_role",
        _role,
        "Whether the replica does the prefill or the decode of disaggregation. Absent without, and where the metrics "
        "of the engine do not tell.",
        "role",
        series=SeriesSet.FULL,
    ),
    _detail(
        "scheduler_stage_duration",
        MetricKind.COUNTER,
        Detail.SCHEDULER_STAGES,
        "stage",
        "Time of the scheduler's loop by what it does, in the engine's words, such as run_batch or idle.",
        unit=Unit.SECONDS,
    ),
    _detail(
        "lora_slots",
        MetricKind.GAUGE,
        Detail.LORA_SLOTS,
        "state",
        "Slots for LoRA adapters in GPU memory: used and total. requested are the adapters of running and waiting "
        "requests, of engines that list them: more than there are slots, and requests wait for one.",
    ),
    _detail(
        "startup_duration",
        MetricKind.GAUGE,
        Detail.STARTUP_PHASES,
        "phase",
        "Duration of the phases of the engine's start, in the engine's words, such as load_weight.",
        unit=Unit.SECONDS,
    ),
    _detail(
        "engine_sleep_state",
        MetricKind.GAUGE,
        Detail.SLEEP_STATES,
        "state",
        "1 while the engine is asleep, by its state: weights offloaded, or discarded. Absent while it is awake.",
    ),
)

EXPERTS = (
    figure(
        "expert_balancedness",
        lambda figures: figures.expert_balance,
        "Mean over maximum of the tokens that the GPUs' experts were given in a pass, on average during the window: "
        "1 is balanced. Absent unless the engine measures it.",
        Unit.RATIO,
        SeriesSet.FULL,
    ),
)

ENGINE_DEPTH = (*DISTRIBUTIONS, *SPECULATION, *TIERS, *SCHEDULER, *EXPERTS)
