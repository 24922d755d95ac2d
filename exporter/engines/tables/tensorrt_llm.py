"""TensorRT-LLM's own server, or Dynamo in front of it: ``trtllm_`` and ``trtllm:`` names in vLLM's shapes."""

from __future__ import annotations

from exporter.engines.engine import Engine, EngineField, Factor, Family, Reduce, ServerInfo, sample_names
from exporter.engines.tables.vllm import BUCKETS, TARGETS
from exporter.model import Quantity, Stage
from exporter.model.outcome import ALWAYS_ERROR, OutcomeWords, RequestOutcome
from exporter.model.server import EndpointDefaults, ServerProcess

_FINISH_REASONS = OutcomeWords(
    otherwise=RequestOutcome.SUCCESS,
    words={
        **dict.fromkeys(("stop", "end_id", "stop_words", "length"), RequestOutcome.SUCCESS),
        "cancelled": RequestOutcome.CANCELLED,
        "timeout": RequestOutcome.ERROR,
        "timed_out": RequestOutcome.ERROR,
    },
)

_FIELDS = (
    EngineField(Quantity.REQUESTS_RUNNING, ("trtllm:num_requests_running",)),
    EngineField(Quantity.REQUESTS_WAITING, ("trtllm:num_requests_waiting",)),
    EngineField(Quantity.KV_CACHE_USAGE, ("trtllm:kv_cache_utilization",), reduce=Reduce.MEAN, ratio=True),
    EngineField(
        Quantity.KV_CACHE_CAPACITY,
        ("trtllm:kv_cache_max_blocks",),
        factor=Factor(name="trtllm:kv_cache_tokens_per_block"),
    ),
    EngineField(Quantity.PROMPT_TOKENS, ("trtllm:prompt_tokens_total",)),
    EngineField(Quantity.GENERATION_TOKENS, ("trtllm:generation_tokens_total",)),
    # Blocks; looked up is what was found and what was not.
    EngineField(
        Quantity.PREFIX_CACHE_QUERIES,
        ("trtllm:kv_cache_missed_blocks_total",),
        plus={"trtllm:kv_cache_missed_blocks_total": "trtllm:kv_cache_reused_blocks_total"},
    ),
    EngineField(Quantity.PREFIX_CACHE_HITS, ("trtllm:kv_cache_reused_blocks_total",)),
    EngineField(Quantity.LIFETIME_HIT_RATIO, ("trtllm:kv_cache_hit_rate",), reduce=Reduce.MEAN, ratio=True),
    EngineField(
        Family.FINISHED, ("trtllm:request_success_total",), labels=("finished_reason",), outcomes=_FINISH_REASONS
    ),
    EngineField(Family.FINISHED, ("trtllm:request_error_total",), outcomes=ALWAYS_ERROR),
    EngineField(Stage.TIME_TO_FIRST_TOKEN, ("trtllm:time_to_first_token_seconds",)),
    EngineField(Stage.INTER_TOKEN, ("trtllm:inter_token_latency_seconds",)),
    EngineField(Stage.TIME_PER_OUTPUT_TOKEN, ("trtllm:time_per_output_token_seconds",)),
    EngineField(Stage.REQUEST, ("trtllm:e2e_request_latency_seconds",)),
    EngineField(Stage.QUEUE, ("trtllm:request_queue_time_seconds",)),
    EngineField(Stage.PREFILL, ("trtllm:request_prefill_time_seconds",)),
    EngineField(Stage.DECODE, ("trtllm:request_decode_time_seconds",)),
)

TENSORRT_LLM = Engine(
    kind="tensorrt_llm",
    title="TensorRT-LLM",
    versions="0.20 and newer",
    distribution="tensorrt_llm",
    servers=(
        ServerProcess(
            modules=("tensorrt_llm.commands.serve",),
            programs=("trtllm-serve",),
            other_subcommands=("disaggregated",),  # a router
            # Under /metrics it answers with JSON, and here only where its own configuration asks for it.
            endpoint=EndpointDefaults(ports=(8000,), path="/prometheus/metrics", probe=True),
        ),
    ),
    info=ServerInfo(path="/version"),
    buckets=BUCKETS,
    targets=TARGETS,
    prefixes=("trtllm:",),
    bare_names=sample_names(_FIELDS),  # before 1.0
    bare_marks=frozenset(
        (
            "request_success_total",
            "request_queue_time_seconds_count",
            "time_to_first_token_seconds_count",
            "e2e_request_latency_seconds_count",
        )
    ),
    cache_blocks="all",
    hits_from_first=("trtllm:kv_cache_missed_blocks_total",),  # the series of reused ones comes with the first
    # Everything about requests, tokens included, is counted when a request ends.
    live=(
        "trtllm:iteration_latency_seconds",
        "trtllm:kv_cache_gen_alloc_blocks_total",
        "trtllm:kv_cache_used_blocks",
        "trtllm:total_context_tokens",
    ),
    fields=_FIELDS,
)
