"""vLLM 0.4.3 to 0.33: one field table for V0 and V1, renamed and hidden metrics, any number of ranks and servers.

Where a name carries a surprise, the row says so.  The rank is the data-parallel engine (label ``engine``, from
0.8.3); before, the rank is "".  On the page of a Ray node, where several replicas of one app stand, each is a rank
of its own: "ReplicaId/engine".  What a router in front of engines says under the same names (label ``server``, no
model) is no engine's.
"""

from __future__ import annotations

from collections.abc import Mapping

from exporter.engines.engine import INFERENCE_PATHS, Engine, EngineField, Family, LatencyTargets, Reduce, ServerInfo
from exporter.model import Detail, Quantity, Stage
from exporter.model.outcome import OutcomeWords, RequestOutcome
from exporter.model.server import EndpointDefaults, RendezvousFlags, ServerProcess

FINISH_REASONS = OutcomeWords(
    otherwise=RequestOutcome.SUCCESS,
    words={
        **dict.fromkeys(("stop", "length", "repetition"), RequestOutcome.SUCCESS),
        "abort": RequestOutcome.CANCELLED,
        "error": RequestOutcome.ERROR,
    },
)
_REJECTIONS = OutcomeWords(
    otherwise=RequestOutcome.REJECTED,
    words=dict.fromkeys(("max_num_queued_reqs", "max_num_queued_tokens"), RequestOutcome.REJECTED),
)
RAY_LABELS = ("ReplicaId", "WorkerId")  # up to 2.40 or so Ray names the worker alone
# VLLM::Worker_DP1_TP0, VLLM::EngineCore_DP1, sglang::scheduler_DP1_TP0; users may change the prefix.
RANK_TITLE = r"::.*_DP(\d{1,5})(?![0-9A-Za-z])"
# Nodes that share one world (from 0.11.1), or nodes with data-parallel ranks of their own (from 0.8.5).
_HEADLESS = ("--headless",)
RENDEZVOUS = (
    RendezvousFlags(
        address=("--master-addr",),
        port=("--master-port",),
        default_port=29501,
        nodes=("--nnodes", "-n"),
        node_rank=("--node-rank", "-r"),
        headless=_HEADLESS,
    ),
    RendezvousFlags(
        address=("--data-parallel-address", "-dpa"),
        port=("--data-parallel-rpc-port", "-dpp"),
        default_port=29550,
        ranks=("--data-parallel-size", "-dp"),
        local_ranks=("--data-parallel-size-local", "-dpl"),
        first_rank=("--data-parallel-start-rank", "-dpr"),
        headless=_HEADLESS,
    ),
)
TLS_FLAGS = ("--ssl-certfile", "--ssl_certfile")

# Since 0.8.4; several engines have taken these over.
_STEP = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
_SPAN = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
BUCKETS = {
    Stage.TIME_TO_FIRST_TOKEN: (
        0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640,
        2560,
    ),
    **dict.fromkeys((Stage.INTER_TOKEN, Stage.TIME_PER_OUTPUT_TOKEN), _STEP),
    **dict.fromkeys((Stage.REQUEST, Stage.QUEUE, Stage.PREFILL, Stage.DECODE), _SPAN),
}  # fmt: skip
TARGETS = LatencyTargets(
    interactive={Stage.TIME_TO_FIRST_TOKEN: 1.0, Stage.INTER_TOKEN: 0.05, Stage.REQUEST: 30},
    standard={Stage.TIME_TO_FIRST_TOKEN: 2.5, Stage.INTER_TOKEN: 0.1, Stage.REQUEST: 60},
    batch={Stage.REQUEST: 480},
)


def _serves(labels: Mapping[str, str]) -> bool:
    return labels.get("handler", "").startswith(INFERENCE_PATHS)


def _tokens(labels: Mapping[str, str], ranks: int) -> float | None:
    """Read the KV-cache capacity of one rank from the labels of the configuration's info series.

    From 0.24 the label says tokens per rank.  Before, blocks times block size; with several ranks in one server
    every rank carries the sum of all ranks' blocks.  "None" where the engine does not know yet (V1 to 0.8.5).
    """
    size = labels.get("kv_cache_size_tokens", "")
    if size.isdecimal():
        return float(size)
    blocks, block = labels.get("num_gpu_blocks", ""), labels.get("block_size", "")
    if blocks.isdecimal() and block.isdecimal() and len(blocks) + len(block) < 18:
        return float(int(blocks) * int(block)) / ranks
    return None


def _transfer(word: str, name: str) -> EngineField:
    """Count what went wrong with the transfer of a KV cache between prefill and decode."""
    return EngineField(Detail.TRANSFER_FAILURES, (f"vllm:nixl_{name}_total",), word=word)


def _lora(labels: Mapping[str, str]) -> Mapping[str, float]:
    """Read slots and adapters from the labels of the newest combination; nothing where LoRA is off.

    A version may list an adapter as running and as waiting although its requests do only one of both, so that no more
    is known than how many adapters are asked for.
    """
    listed = (labels.get(name, "") for name in ("running_lora_adapters", "waiting_lora_adapters"))
    requested = float(len({name for names in listed for name in names.split(",") if name}))
    slots = labels.get("max_lora", "")
    if not (slots.isdecimal() and len(slots) < 10 and int(slots)):  # versions to 0.8 have the series without LoRA
        return {}
    return {"used": min(requested, float(slots)), "total": float(slots), "requested": requested}


def _offload(name: str, word: str) -> tuple[EngineField, ...]:
    """From 0.24 each direction has names of its own; the words are those of the label before."""
    return (
        EngineField(Detail.OFFLOAD_BYTES, (f"vllm:kv_offload_{name}_bytes_total",), word=word),
        EngineField(Detail.OFFLOAD_SECONDS, (f"vllm:kv_offload_{name}_time_total",), word=word),
    )


VLLM = Engine(
    kind="vllm",
    title="vLLM",
    versions="0.4.3 to 0.33",
    distribution="vllm",
    servers=(
        ServerProcess(
            modules=("vllm.entrypoints.openai.api_server", "vllm.entrypoints.api_server"),
            programs=("vllm", "vllm.entrypoints.cli.main"),
            subcommand=("serve",),
            titles=("VLLM::APIServer",),
            worker_titles=("VLLM::",),
            rank_title=RANK_TITLE,
            rank_flags=("--data-parallel-rank", "-dpn"),
            ray_workers=("RayWorkerWrapper", "RayWorkerProc"),
            size=(
                ("--tensor-parallel-size", "-tp"),
                ("--pipeline-parallel-size", "-pp"),
                ("--data-parallel-size", "-dp"),
            ),
            rendezvous=RENDEZVOUS,
            endpoint=EndpointDefaults(ports=(8000,), tls_flags=TLS_FLAGS),
        ),
    ),
    info=ServerInfo(path="/version"),
    buckets=BUCKETS,
    targets=TARGETS,
    prefixes=("vllm:",),
    server_labels=RAY_LABELS,
    rank_labels=("engine",),
    model_labels=("model_name", "model"),  # the second on the page of Triton's backend
    router_labels=("server",),
    idle_after=10.0,
    stalled_after=30.0,  # longer than a remote KV cache or a grammar keeps a request waiting
    cache_blocks="before 0.9",
    created="vllm:generation_tokens_created",
    hint="Was the server started with --disable-log-stats?",
    fields=(
        EngineField(Quantity.REQUESTS_RUNNING, ("vllm:num_requests_running",)),
        EngineField(Quantity.REQUESTS_WAITING, ("vllm:num_requests_waiting",)),
        EngineField(Quantity.REQUESTS_SWAPPED, ("vllm:num_requests_swapped",)),
        # A ratio in spite of its name; blocks held by live requests only, so a warm idle cache shows 0.
        EngineField(
            Quantity.KV_CACHE_USAGE,
            ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
            reduce=Reduce.MEAN,
            ratio=True,
        ),
        EngineField(Quantity.KV_CACHE_CAPACITY, ("vllm:cache_config_info",), from_labels=_tokens),
        EngineField(Quantity.PROMPT_TOKENS, ("vllm:prompt_tokens_total",)),
        EngineField(Quantity.GENERATION_TOKENS, ("vllm:generation_tokens_total",)),
        EngineField(Quantity.PREEMPTIONS, ("vllm:num_preemptions_total",)),
        # Full blocks before 0.9.0, tokens since: the ratio survives, the volume does not.
        EngineField(
            Quantity.PREFIX_CACHE_QUERIES, ("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total")
        ),
        EngineField(Quantity.PREFIX_CACHE_HITS, ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total")),
        # V0 only: an average since start; -1 with prefix caching off, which the range check drops.
        EngineField(Quantity.LIFETIME_HIT_RATIO, ("vllm:gpu_prefix_cache_hit_rate",), reduce=Reduce.MEAN, ratio=True),
        EngineField(
            Family.FINISHED, ("vllm:request_success_total",), labels=("finished_reason",), outcomes=FINISH_REASONS
        ),
        EngineField(Family.FINISHED, ("vllm:admission_rejections_total",), labels=("reason",), outcomes=_REJECTIONS),
        # Accepted tokens of a draft, the token that follows it left out.
        EngineField(Quantity.SPEC_DRAFTS, ("vllm:spec_decode_num_drafts_total",)),
        EngineField(Quantity.SPEC_DRAFT_TOKENS, ("vllm:spec_decode_num_draft_tokens_total",)),
        EngineField(Quantity.SPEC_ACCEPTED_TOKENS, ("vllm:spec_decode_num_accepted_tokens_total",)),
        EngineField(
            Detail.SPEC_POSITIONS, ("vllm:spec_decode_num_accepted_tokens_per_pos_total",), labels=("position",)
        ),
        # Of a KV connector; 0 without one.
        EngineField(Quantity.EXTERNAL_CACHE_QUERIES, ("vllm:external_prefix_cache_queries_total",)),
        EngineField(Quantity.EXTERNAL_CACHE_HITS, ("vllm:external_prefix_cache_hits_total",)),
        EngineField(Detail.PROMPT_SOURCES, ("vllm:prompt_tokens_by_source_total",), labels=("source",)),
        EngineField(Detail.CACHED_SOURCES, ("vllm:prompt_tokens_cached_by_source_total",), labels=("source",)),
        EngineField(Detail.WAITING_REASONS, ("vllm:num_requests_waiting_by_reason",), labels=("reason",)),
        EngineField(Detail.SLEEP_STATES, ("vllm:engine_sleep_state",), labels=("sleep_state",)),
        _transfer("failed", "num_failed_transfers"),
        _transfer("unconfirmed", "num_failed_notifications"),
        _transfer("expired", "num_kv_expired_reqs"),
        EngineField(Quantity.KV_TRANSFERS, ("vllm:nixl_xfer_time_seconds_count",)),
        EngineField(Quantity.KV_TRANSFER_SECONDS, ("vllm:nixl_xfer_time_seconds_sum",)),
        EngineField(Quantity.KV_TRANSFER_BYTES, ("vllm:nixl_bytes_transferred_sum",)),
        # Of an engine that loads KV caches: waiting_to_start, in_progress, completed_waiting.
        EngineField(Detail.SCHEDULER_QUEUES, ("vllm:num_requests_kv_fetch_by_stage",), labels=("stage",)),
        # A series for each combination of adapters that there ever was.
        EngineField(Detail.LORA_SLOTS, ("vllm:lora_requests_info",), newest=_lora),
        # kv_offload_cpu_cache_usage_perc is what transfers hold at the moment, and no usage of the tier.
        EngineField(Detail.OFFLOAD_BYTES, ("vllm:kv_offload_total_bytes_total",), labels=("transfer_type",)),
        EngineField(Detail.OFFLOAD_SECONDS, ("vllm:kv_offload_total_time_total",), labels=("transfer_type",)),
        *_offload("load", "CPU_to_GPU"),
        *_offload("store", "GPU_to_CPU"),
        EngineField(Family.RESPONSES, ("http_requests_total",), labels=("status",), where=_serves),
        EngineField(Stage.TIME_TO_FIRST_TOKEN, ("vllm:time_to_first_token_seconds",)),
        # One observation per engine step and request: with speculation it is a step's time, not a token's.
        EngineField(Stage.INTER_TOKEN, ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds")),
        EngineField(Stage.TIME_PER_OUTPUT_TOKEN, ("vllm:request_time_per_output_token_seconds",)),
        EngineField(Stage.REQUEST, ("vllm:e2e_request_latency_seconds",)),
        EngineField(Stage.QUEUE, ("vllm:request_queue_time_seconds", "vllm:time_in_queue_requests")),
        EngineField(Stage.PREFILL, ("vllm:request_prefill_time_seconds",)),
        EngineField(Stage.DECODE, ("vllm:request_decode_time_seconds",)),
        EngineField(Stage.PROMPT_LENGTH, ("vllm:request_prompt_tokens",)),
        EngineField(Stage.GENERATION_LENGTH, ("vllm:request_generation_tokens",)),
        EngineField(Stage.STEP_TOKENS, ("vllm:iteration_tokens_total",)),
    ),
)
