"""Thresholds of alerts about balance and engines; ``alerts.thresholds`` has them all."""

from __future__ import annotations

from dataclasses import dataclass, replace

from alerts.threshold import ANY, RATIO, UNEVEN, Threshold
from exporter.catalog import metrics as m
from exporter.catalog.spec import Unit
from exporter.diagnosis import thresholds as shared


@dataclass(frozen=True, kw_only=True)
class ReplicaThresholds:
    """What is judged of groups, gateways and engines."""

    # Balance
    utilization_spread: Threshold = Threshold(
        metric=m.GPU_UTILIZATION_SPREAD_RATIO,
        unit=Unit.RATIO,
        warning=shared.UTILIZATION_SPREAD,
        critical=0.60,
        value_range=RATIO,
        for_="5m",
        reason="The GPUs of a group work in lockstep: a difference of 40 percentage points means that some wait.",
        published="highest minus lowest utilisation above 40 points for 5 min",
        corrected="Evaluated inside each group and only under load: over a node, one busy model beside an idle one "
        "would fire.",
    )
    utilization_stddev: Threshold = Threshold(
        metric=m.GPU_UTILIZATION_STDDEV_RATIO,
        unit=Unit.RATIO,
        warning=0.25,
        critical=0.35,
        value_range=(0.0, 0.5),
        for_="5m",
        reason="In a group of eight, 0.25 is about four GPUs at 90 % and four at 40 %.",
        published="standard deviation of utilisation above 30 / 50 points",
        corrected="The standard deviation of values from 0 to 100 cannot exceed 50, so the published critical value "
        "can never fire; and over a node one busy GPU of eight already makes 33. Evaluated inside a group "
        "under load, at 25 and 35 percentage points.",
    )
    replica_imbalance: Threshold = Threshold(
        metric=m.LLM_REPLICA_IMBALANCE_MAX_TO_MEAN_RATIO,
        unit=Unit.RATIO,
        warning=shared.REPLICA_IMBALANCE,
        critical=1.8,
        value_range=UNEVEN,
        for_="15m",
        reason="With two replicas, 1.5 is three quarters of the requests on one; two replicas cannot exceed 2.",
    )
    rank_imbalance: Threshold = Threshold(
        metric=m.LLM_RANK_IMBALANCE_MAX_TO_MEAN_RATIO,
        unit=Unit.RATIO,
        warning=shared.RANK_IMBALANCE,
        critical=1.8,
        value_range=UNEVEN,
        for_="3m",
        reason="Ranks of one engine receive equal work; a third above the mean over 5 min is not chance.",
    )
    canary_share: Threshold = Threshold(
        metric=m.LLM_REQUESTS_RUNNING,
        unit=Unit.RATIO,
        warning=shared.CANARY_SHARE,
        value_range=RATIO,
        reason="Gate: a replica that runs less than a quarter of the mean is a canary.",
    )
    sibling_slowdown: Threshold = Threshold(
        metric=m.LLM_INTER_TOKEN_LATENCY_SECONDS,
        unit=Unit.RATIO,
        warning=shared.SIBLING_SLOWDOWN,
        critical=1.5,
        value_range=UNEVEN,
        for_="10m",
        reason="Replicas of one model on one node have the same hardware; a fifth is beyond what load explains.",
    )
    sibling_tokens: Threshold = Threshold(
        metric=m.LLM_INTER_TOKEN_LATENCY_SECONDS,
        warning=shared.SIBLING_TOKENS,
        reason="Gate: with fewer tokens in 5 min a mean is chance.",
    )
    gateway_imbalance: Threshold = replace(
        replica_imbalance,
        warning=shared.GATEWAY_IMBALANCE,
        metric=m.GATEWAY_BACKEND_IMBALANCE_MAX_TO_MEAN_RATIO,
        for_="10m",
        reason="As between replicas; intended weights need a higher value.",
    )
    balance_requests: Threshold = Threshold(
        metric=m.LLM_REQUESTS_RUNNING,
        warning=shared.BALANCE_REQUESTS,
        for_="10m",
        reason="Gate: with fewer requests, one more on a side is chance.",
    )
    gateway_requests: Threshold = Threshold(
        metric=m.GATEWAY_POOL_REQUESTS_TOTAL,
        warning=shared.GATEWAY_REQUESTS,
        per_second=True,
        for_="10m",
        reason="Gate: below one request in 5 s, shares over 5 min are chance.",
    )

    stale_endpoints: Threshold = Threshold(
        metric=m.GATEWAY_POOL_STALE_ENDPOINTS,
        warning=shared.STALE_ENDPOINTS,
        reason="One endpoint whose metrics stay missing for 5 min is chosen by old loads, or not at all.",
    )
    picker_poll_errors: Threshold = Threshold(
        metric=m.GATEWAY_POOL_POLL_ERRORS_TOTAL,
        warning=shared.PICKER_POLL_ERRORS,
        per_second=True,
        for_="5m",
        reason="Pickers poll many times a second: one failure in 10 s for minutes is no chance and no restart.",
    )
    store_errors: Threshold = Threshold(
        metric=m.KV_STORE_ERRORS_TOTAL,
        warning=shared.STORE_ERRORS,
        for_="2m",
        reason="Of one operation in 5 min: a client that leaves or a full tier costs a few.",
    )
    decode_only: Threshold = Threshold(
        metric=m.GATEWAY_POOL_DISAGGREGATION_DECISIONS_TOTAL,
        unit=Unit.RATIO,
        warning=0.99,
        value_range=RATIO,
        for_="1h",
        reason="With one prompt in a hundred, the GPUs of the prefill replicas are idle.",
    )

    # Engines
    engine_down: Threshold = Threshold(
        metric=m.LLM_UP,
        warning=1,
        above=False,
        value_range=RATIO,
        for_="2m",
        reason="Engines are read every 5 s; 2 min are two dozen failed reads and longer than a quick restart.",
    )
    engine_loading: Threshold = replace(
        engine_down, for_="10m", reason="Weights and graphs of a large model take 5 to 10 min to load."
    )
    idle_with_queue: Threshold = Threshold(
        metric=m.GPU_UTILIZATION_RATIO,
        unit=Unit.RATIO,
        warning=shared.IDLE_WITH_QUEUE_WARNING,
        critical=shared.IDLE_WITH_QUEUE_CRITICAL,
        above=False,
        value_range=RATIO,
        for_="5m",
        reason="Requests wait while the GPUs are idle: the bottleneck is the engine, not the GPUs.",
        published="utilisation below 40 % / 20 % for 5 min",
        corrected="An idle node would fire all night. Low utilisation matters when requests wait (warning and "
        "critical), and costs money when some run (info).",
    )
    queue_growth: Threshold = Threshold(
        metric=m.LLM_REQUESTS_WAITING,
        unit=Unit.RATIO,
        warning=shared.QUEUE_GROWTH,
        value_range=ANY,
        for_="15m",
        reason="A queue that grows by a tenth of the running requests every 10 min, twice in a row, is no burst; one "
        "that is long and steady is full throughput.",
    )
    kv_cache_use: Threshold = Threshold(
        metric=m.LLM_KV_CACHE_USAGE_RATIO,
        unit=Unit.RATIO,
        warning=shared.KV_CACHE_USE,
        critical=0.97,
        value_range=RATIO,
        for_="10m",
        reason="A full cache is well used; with requests waiting it is the bottleneck.",
        published="memory above 85 % / 95 % for 1 min",
        corrected="See gpu_memory_used: users are affected by the pressure on the KV cache while requests wait.",
    )
    preemption_rate: Threshold = Threshold(
        metric=m.LLM_PREEMPTIONS_TOTAL,
        per_second=True,
        warning=shared.PREEMPTIONS,
        critical=1.0,
        for_="5m",
        reason="Each preemption computes a request's tokens again; one in 5 s affects tail latency.",
    )
    engine_restarts: Threshold = Threshold(
        metric=m.LLM_GENERATION_TOKENS_TOTAL,
        warning=shared.ENGINE_RESTARTS,
        for_="1m",
        reason="One restart in 30 min is a rollout, two are a crash loop: loading the model alone takes minutes.",
    )
    hit_rate_of_past: Threshold = Threshold(
        metric=m.LLM_PREFIX_CACHE_HITS_TOTAL,
        unit=Unit.RATIO,
        warning=shared.HIT_RATIO_OF_PAST,
        critical=0.25,
        above=False,
        value_range=RATIO,
        for_="10m",
        reason="Half of its own value one day ago, with as many lookups: routing, prompts or the cache have changed.",
        published="hit rate below 40 % / 20 % for 10 min",
        corrected="The hit rate depends on the workload: 10 % is right for one service and 90 % for another. "
        "Compared with the replica's own value one day ago, and only with lookups.",
    )
    hit_rate: Threshold = Threshold(
        metric=m.LLM_KV_CACHE_HIT_RATIO,
        unit=Unit.RATIO,
        warning=0.40,
        critical=0.20,
        above=False,
        value_range=RATIO,
        for_="10m",
        reason="The published values; dashboards use them as colours, no alert uses them (see hit_rate_of_past).",
    )
    past_hit_rate: Threshold = Threshold(
        metric=m.LLM_PREFIX_CACHE_HITS_TOTAL,
        unit=Unit.RATIO,
        warning=shared.HIT_RATIO_PAST,
        value_range=RATIO,
        reason="Gate: a cache that never served a tenth of the tokens has little to lose.",
    )
    hit_rate_lookups: Threshold = Threshold(
        metric=m.LLM_PREFIX_CACHE_QUERIES_TOTAL,
        per_second=True,
        warning=shared.HIT_LOOKUPS,
        reason="Gate: 50 looked-up tokens per second are a few prompts per minute; fewer are not significant.",
    )
    acceptance_of_past: Threshold = Threshold(
        metric=m.LLM_SPEC_DECODE_ACCEPTANCE_RATIO,
        unit=Unit.RATIO,
        warning=shared.ACCEPTANCE_OF_PAST,
        above=False,
        value_range=RATIO,
        for_="10m",
        reason="Half of its own value one day ago: the drafts do not fit the model or the prompts any more.",
    )
    past_acceptance: Threshold = Threshold(
        metric=m.LLM_SPEC_DECODE_ACCEPTANCE_RATIO,
        unit=Unit.RATIO,
        warning=shared.ACCEPTANCE_PAST,
        value_range=RATIO,
        reason="Gate: speculation that never had a fifth of its tokens accepted has little to lose.",
    )
    past_accepted_length: Threshold = Threshold(
        metric=m.LLM_SPEC_DECODE_REPORTED_ACCEPTED_LENGTH_TOKENS,
        unit=Unit.TOKENS,
        warning=shared.ACCEPTED_LENGTH_PAST,
        reason="Gate: as past_acceptance, of engines that report the tokens of a step alone.",
    )
    acceptance_tokens: Threshold = Threshold(
        metric=m.LLM_GENERATION_TOKENS_TOTAL,
        per_second=True,
        warning=shared.ACCEPTANCE_TOKENS,
        reason="Gate: a few answers of one kind are not the replica's traffic.",
    )
    host_cache_stored: Threshold = Threshold(
        metric=m.LLM_KV_OFFLOAD_BYTES_TOTAL,
        unit=Unit.BYTES,
        per_second=True,
        warning=20_000_000,
        reason="Gate: 20 MB/s are some hundred tokens per second of a small model; less costs nothing.",
    )
    host_cache_loaded: Threshold = Threshold(
        metric=m.LLM_KV_OFFLOAD_BYTES_TOTAL,
        unit=Unit.RATIO,
        warning=0.05,
        above=False,
        value_range=RATIO,
        for_="1h",
        reason="Less than a twentieth of what is stored is ever used; after an hour the tier is not new any more.",
    )
    transfer_failures: Threshold = Threshold(
        metric=m.LLM_KV_TRANSFER_FAILURES_TOTAL,
        unit=Unit.RATIO,
        warning=shared.TRANSFER_FAILURES,
        value_range=ANY,
        for_="5m",
        reason="As error_ratio: one prompt in a hundred is computed twice, or its request fails.",
    )
    failed_transfers: Threshold = Threshold(
        metric=m.LLM_KV_TRANSFER_FAILURES_TOTAL,
        warning=shared.TRANSFERS_FAILED,
        reason="Gate: a few expire whenever clients leave or a replica restarts.",
    )
    lora_slots: Threshold = Threshold(
        metric=m.LLM_LORA_SLOTS,
        unit=Unit.RATIO,
        warning=shared.LORA_SLOTS,
        value_range=ANY,
        for_="10m",
        reason="Full slots alone are normal, since unused adapters stay loaded; with requests waiting and first "
        "tokens late although the KV cache has room, requests wait for a slot.",
    )
    startup: Threshold = Threshold(
        metric=m.LLM_STARTUP_DURATION_SECONDS,
        unit=Unit.SECONDS,
        warning=shared.LOADING_SECONDS,
        for_="1m",
        reason="The time that EngineDown allows a replica for loading its model.",
    )
    saturated_share: Threshold = Threshold(
        metric=m.LLM_LATENCY_ABOVE_TOP_BUCKET_RATIO,
        unit=Unit.RATIO,
        warning=0.01,
        critical=0.05,
        value_range=RATIO,
        for_="10m",
        reason="Quantiles are capped at the last bucket bound; with 1 % above it, p99 is too low.",
    )
