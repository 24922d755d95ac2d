"""SGLang 0.4 to 0.5.23: scheduler figures by data-parallel rank, the tokenizer's figures for the server as a whole.

The scheduler's series carry tp_rank, pp_rank and moe_ep_rank; with metrics of all schedulers switched on, every
member of a group reports the same requests, so only the lowest counts.  With priority scheduling the series with an
empty priority is the total of the others.  Gauges are as old as the last prefill batch or fortieth decode step, and
``cache_hit_rate`` is the last batch alone: it is never used.

The rank is ``dp_rank``, "" with one rank and for what the tokenizer counts; where a router or Ray shows several
workers on one page, the worker comes before it.
"""

from __future__ import annotations

from collections.abc import Mapping

from exporter.engines.engine import (
    INFERENCE_PATHS,
    Engine,
    EngineField,
    Family,
    LatencyTargets,
    Reduce,
    ServerInfo,
)
from exporter.engines.tables.vllm import RANK_TITLE, RAY_LABELS, TLS_FLAGS
from exporter.model import Detail, Quantity, Stage
from exporter.model.outcome import OutcomeWords, RequestOutcome
from exporter.model.server import EndpointDefaults, RendezvousFlags, ServerProcess

RENDEZVOUS = RendezvousFlags(
    address=("--dist-init-addr", "--nccl-init-addr"), nodes=("--nnodes",), node_rank=("--node-rank",)
)
# Since 0.5.2.
_FIRST_TOKEN = (0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8, 10, 20, 40, 60, 80, 100, 200, 400)
_BUCKETS = {
    Stage.TIME_TO_FIRST_TOKEN: _FIRST_TOKEN,
    Stage.INTER_TOKEN: (
        0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.025, 0.03, 0.035, 0.04, 0.06, 0.08, 0.1, 0.2, 0.4, 0.6, 0.8,
        1, 2, 4, 6, 8,
    ),
    Stage.REQUEST: (*_FIRST_TOKEN, 600, 1200, 1800, 2400),
}  # fmt: skip
_SHED = OutcomeWords(otherwise=RequestOutcome.REJECTED, words={"503": RequestOutcome.REJECTED})
_HITS = frozenset(("device_hit", "host_hit", "storage_hit", "prefill_cache"))
_PREFILL = _HITS | {"input", "prefill_compute"}


def _total(labels: Mapping[str, str]) -> bool:
    return not labels.get("priority")


def _prefill(labels: Mapping[str, str]) -> bool:
    return _total(labels) and labels.get("mode", "input") in _PREFILL


def _hit(labels: Mapping[str, str]) -> bool:
    return _total(labels) and labels.get("mode", "device_hit") in _HITS


def _decode(labels: Mapping[str, str]) -> bool:
    return _total(labels) and labels.get("mode", "decode") == "decode"


def _source(mode: str, word: str) -> EngineField:
    """Count the prompt tokens that one tier of the KV cache had."""
    return EngineField(
        Detail.CACHED_SOURCES,
        ("sglang:prefill_effective_tokens_total",),
        where=lambda labels: _total(labels) and labels.get("mode") == mode,
        word=word,
    )


def _offload(name: str, seconds: str, word: str) -> tuple[EngineField, ...]:
    """Count what moves between the GPUs and host memory: each GPU its part of the KV cache."""
    return (
        EngineField(Detail.OFFLOAD_BYTES, (f"sglang:{name}_bytes_total",), word=word, is_share=True),
        EngineField(Detail.OFFLOAD_SECONDS, (f"sglang:{seconds}_duration_seconds_sum",), word=word, is_share=True),
    )


def _failure(word: str, name: str) -> EngineField:
    return EngineField(Detail.TRANSFER_FAILURES, (f"sglang:num_{name}_failed_reqs_total",), where=_total, word=word)


def _serves(labels: Mapping[str, str]) -> bool:
    return labels.get("endpoint", "").startswith(INFERENCE_PATHS)


def _shed(labels: Mapping[str, str]) -> bool:
    return _serves(labels) and labels.get("status_code", "") in _SHED.words


def _prefill_stage(labels: Mapping[str, str]) -> bool:
    return _total(labels) and labels.get("stage") == "prefill_forward"


def _queue(word: str, *names: str) -> EngineField:
    """Count the requests in one of the scheduler's queues beside the one before the prefill."""
    return EngineField(Detail.SCHEDULER_QUEUES, tuple(f"sglang:{name}" for name in names), where=_total, word=word)


SGLANG = Engine(
    kind="sglang",
    title="SGLang",
    versions="0.4 to 0.5.23",
    distribution="sglang",
    servers=(
        ServerProcess(
            modules=("sglang.launch_server",),
            programs=("sglang", "sglang.cli.main"),
            subcommand=("serve",),
            titles=("sglang::http_server",),
            worker_titles=("sglang::",),
            rank_title=RANK_TITLE,
            rendezvous=(RENDEZVOUS,),
            endpoint=EndpointDefaults(ports=(30000,), tls_flags=TLS_FLAGS),
        ),
    ),
    info=ServerInfo(
        path="/get_server_info", same_model_keys=("served_model_name",), parallel_keys=("tp_size", "pp_size")
    ),
    buckets=_BUCKETS,
    targets=LatencyTargets(
        interactive={Stage.TIME_TO_FIRST_TOKEN: 1.0, Stage.INTER_TOKEN: 0.06, Stage.REQUEST: 40},
        standard={Stage.TIME_TO_FIRST_TOKEN: 2.0, Stage.INTER_TOKEN: 0.1, Stage.REQUEST: 60},
        batch={Stage.REQUEST: 600},
    ),
    prefixes=("sglang:",),
    server_labels=(*RAY_LABELS, "worker_addr"),
    rank_labels=("dp_rank",),
    role_label="engine_type",
    leader_labels=("pp_rank", "tp_rank", "moe_ep_rank"),
    # Counters with labels appear with their first event.  The last of these names is as old as cached_tokens_total.
    hits_from_first=(
        "sglang:prefill_effective_tokens_total",
        "sglang:realtime_tokens_total",
        "sglang:inter_token_latency_seconds_bucket",
    ),
    frozen_after=60.0,  # the gauge of running requests may be half a minute old when work has ended
    live=("sglang:realtime_tokens_total",),
    reasons={"decode": "only_as_inter_token"},
    metrics_flag="--enable-metrics",
    hint="Was the server started with --enable-metrics?",
    fields=(
        EngineField(Quantity.REQUESTS_RUNNING, ("sglang:num_running_reqs",), where=_total),
        EngineField(Quantity.REQUESTS_WAITING, ("sglang:num_queue_reqs",), where=_total),
        # What live requests hold, without what could be evicted; the fullest of the engine's pools.
        EngineField(Quantity.KV_CACHE_USAGE, ("sglang:token_usage",), where=_total, reduce=Reduce.MEAN, ratio=True),
        EngineField(Quantity.KV_CACHE_CAPACITY, ("sglang:max_total_num_tokens",), where=_total),
        # The schedulers' counters move with every batch; the tokenizer's, which old versions have alone, at the end.
        EngineField(
            Quantity.PROMPT_TOKENS, ("sglang:realtime_tokens_total", "sglang:prompt_tokens_total"), where=_prefill
        ),
        # mode="decode" leaves out the first token of each answer, which the prefill yields: add the requests that
        # left the queue.
        EngineField(
            Quantity.GENERATION_TOKENS,
            ("sglang:realtime_tokens_total", "sglang:generation_tokens_total"),
            plus={"sglang:realtime_tokens_total": "sglang:queue_time_seconds_count"},
            where=_decode,
        ),
        EngineField(Quantity.PREEMPTIONS, ("sglang:num_retracted_requests_total",), where=_total),
        EngineField(Quantity.REQUESTS_ABORTED, ("sglang:num_aborted_requests_total",), where=_total),
        # Both sides of the ratio from the same family: the newest that the page has.
        EngineField(
            Quantity.PREFIX_CACHE_QUERIES,
            (
                "sglang:prefill_effective_tokens_total",
                "sglang:realtime_tokens_total",
                "sglang:prompt_tokens_total",
            ),
            where=_prefill,
        ),
        EngineField(
            Quantity.PREFIX_CACHE_HITS,
            (
                "sglang:prefill_effective_tokens_total",
                "sglang:realtime_tokens_total",
                "sglang:cached_tokens_total",
            ),
            where=_hit,
        ),
        EngineField(
            Quantity.SPEC_ACCEPTED_LENGTH_NOW, ("sglang:spec_accept_length",), where=_total, reduce=Reduce.MEAN
        ),
        EngineField(
            Quantity.SPEC_ACCEPTANCE_NOW,
            ("sglang:spec_accept_rate",),
            where=_total,
            reduce=Reduce.MEAN,
            ratio=True,
        ),
        # With --expert-balancedness-report-mode prometheus; before, with SGLANG_ENABLE_EPLB_BALANCEDNESS_METRIC.
        EngineField(Quantity.EXPERT_BALANCE, ("sglang:eplb_balancedness_sum",), where=_total),
        EngineField(Quantity.EXPERT_PASSES, ("sglang:eplb_balancedness_count",), where=_total),
        EngineField(Quantity.HOST_CACHE_USED, ("sglang:hicache_host_used_tokens",), where=_total),
        EngineField(Quantity.HOST_CACHE_CAPACITY, ("sglang:hicache_host_total_tokens",), where=_total),
        _queue("prefill_bootstrap", "num_prefill_bootstrap_queue_reqs", "num_prefill_prealloc_queue_reqs"),
        _queue("prefill_inflight", "num_prefill_inflight_queue_reqs", "num_prefill_infight_queue_reqs"),
        _queue("decode_prealloc", "num_decode_prealloc_queue_reqs"),
        _queue("decode_transfer", "num_decode_transfer_queue_reqs"),
        _queue("grammar", "num_grammar_queue_reqs"),
        _queue("decode_host_receive", "num_decode_host_receive_queue_reqs"),
        _failure("unconnected", "bootstrap"),
        _failure("failed", "transfer"),
        # The side that prefills measures them.
        EngineField(Quantity.KV_TRANSFERS, ("sglang:kv_transfer_latency_ms_count",), where=_total),
        EngineField(Quantity.KV_TRANSFER_SECONDS, ("sglang:kv_transfer_latency_ms_sum",), where=_total, scale=1e-3),
        EngineField(
            Quantity.KV_TRANSFER_BYTES,
            ("sglang:kv_transfer_total_mb_sum",),
            where=_total,
            scale=2.0**20,
            is_share=True,
        ),
        _source("device_hit", "device"),
        _source("host_hit", "host"),
        _source("storage_hit", "storage"),
        *_offload("load_back", "load_back", "CPU_to_GPU"),
        *_offload("hicache_backup", "hicache_backup", "GPU_to_CPU"),
        EngineField(
            Detail.SCHEDULER_STAGES, ("sglang:scheduler_stage_seconds_total",), where=_total, labels=("category",)
        ),
        EngineField(Detail.LORA_SLOTS, ("sglang:lora_pool_slots_used",), where=_total, word="used"),
        EngineField(Detail.LORA_SLOTS, ("sglang:lora_pool_slots_total",), where=_total, word="total"),
        EngineField(Detail.STARTUP_PHASES, ("sglang:startup_time_seconds",), labels=("phase",)),
        # Good, failed and aborted ones alike; a request for n answers counts n + 1 times.
        EngineField(Family.FINISHED, ("sglang:num_requests_total",), where=_total),
        # A full queue, or a request that has waited for too long in it.
        EngineField(
            Family.FINISHED, ("sglang:http_responses_total",), labels=("status_code",), outcomes=_SHED, where=_shed
        ),
        EngineField(Family.RESPONSES, ("sglang:http_responses_total",), labels=("status_code",), where=_serves),
        EngineField(Stage.TIME_TO_FIRST_TOKEN, ("sglang:time_to_first_token_seconds",), where=_total),
        EngineField(Stage.INTER_TOKEN, ("sglang:inter_token_latency_seconds",), where=_total),
        EngineField(
            Stage.TIME_PER_OUTPUT_TOKEN,
            ("sglang:request_time_per_output_token_seconds", "sglang:time_per_output_token_seconds"),
            where=_total,
        ),
        EngineField(Stage.REQUEST, ("sglang:e2e_request_latency_seconds",), where=_total),
        EngineField(Stage.QUEUE, ("sglang:queue_time_seconds", "sglang:queue_time_s"), where=_total),
        EngineField(Stage.PREFILL, ("sglang:per_stage_req_latency_seconds",), where=_prefill_stage),
        EngineField(Stage.PROMPT_LENGTH, ("sglang:prompt_tokens_histogram",), where=_total),
        EngineField(Stage.GENERATION_LENGTH, ("sglang:generation_tokens_histogram",), where=_total),
    ),
)
