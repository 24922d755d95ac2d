"""LMDeploy 0.16: vLLM's shapes under names of its own; one data-parallel rank per server and page.

The scheduler's gauges are written every 10 seconds.  Only requests that end well are counted: the failing words of
``finished_reason`` stand on the page and never rise, so they say nothing of failures.
"""

from __future__ import annotations

from collections.abc import Mapping

from exporter.engines.engine import Engine, EngineField, Family, Reduce
from exporter.engines.tables import vllm
from exporter.model import Quantity, Stage
from exporter.model.outcome import OutcomeWords, RequestOutcome
from exporter.model.server import EndpointDefaults, ServerProcess

_FINISHED = OutcomeWords(
    otherwise=RequestOutcome.SUCCESS,
    words=dict.fromkeys(("ResponseType.FINISH", "stop", "length"), RequestOutcome.SUCCESS),
)


def _finished(labels: Mapping[str, str]) -> bool:
    return labels.get("finished_reason", "") in _FINISHED.words


LMDEPLOY = Engine(
    kind="lmdeploy",
    title="LMDeploy",
    versions="0.16",
    servers=(
        ServerProcess(
            programs=("lmdeploy",),
            subcommand=("serve", "api_server"),
            endpoint=EndpointDefaults(port_flags=("--server-port",), ports=(23333,), tls_flags=("--ssl",)),
        ),
    ),
    hint="Was the server started with --disable-metrics?",
    buckets={
        **{stage: bounds for stage, bounds in vllm.BUCKETS.items() if stage is not Stage.TIME_PER_OUTPUT_TOKEN},
        Stage.INTER_TOKEN: (0.005, *vllm.BUCKETS[Stage.INTER_TOKEN]),
    },
    targets=vllm.TARGETS,
    prefixes=("lmdeploy:",),
    rank_labels=("engine",),
    stalled_after=60.0,
    frozen_after=40.0,  # the gauge of running requests may be ten seconds old when work has ended
    reasons={"time_per_output_token": "only_as_inter_token"},
    fields=(
        EngineField(target=Quantity.REQUESTS_RUNNING, names=("lmdeploy:num_requests_running",)),
        EngineField(target=Quantity.REQUESTS_WAITING, names=("lmdeploy:num_requests_waiting",)),
        EngineField(
            target=Quantity.KV_CACHE_USAGE,
            names=("lmdeploy:gpu_cache_usage_perc",),
            reduce=Reduce.MEAN,
            ratio=True,
        ),
        EngineField(target=Quantity.PROMPT_TOKENS, names=("lmdeploy:prompt_tokens_total",)),
        EngineField(target=Quantity.GENERATION_TOKENS, names=("lmdeploy:generation_tokens_total",)),
        # Both of finished requests.
        EngineField(target=Quantity.PREFIX_CACHE_QUERIES, names=("lmdeploy:request_prompt_tokens_sum",)),
        EngineField(target=Quantity.PREFIX_CACHE_HITS, names=("lmdeploy:cached_tokens_total",)),
        EngineField(
            target=Family.FINISHED,
            names=("lmdeploy:request_success_total",),
            labels=("finished_reason",),
            outcomes=_FINISHED,
            where=_finished,
        ),
        EngineField(target=Stage.TIME_TO_FIRST_TOKEN, names=("lmdeploy:time_to_first_token_seconds",)),
        # One observation per step and request, like vLLM's.
        EngineField(target=Stage.INTER_TOKEN, names=("lmdeploy:iter_token_latency",)),
        EngineField(target=Stage.REQUEST, names=("lmdeploy:e2e_request_latency_seconds",)),
        EngineField(target=Stage.QUEUE, names=("lmdeploy:request_queue_time_seconds",)),
        EngineField(target=Stage.PREFILL, names=("lmdeploy:request_prefill_time_seconds",)),
        EngineField(target=Stage.PROMPT_LENGTH, names=("lmdeploy:request_prompt_tokens",)),
        EngineField(target=Stage.GENERATION_LENGTH, names=("lmdeploy:request_generation_tokens",)),
        EngineField(target=Stage.STEP_TOKENS, names=("lmdeploy:iteration_tokens_total",)),
        EngineField(target=Stage.DECODE, names=("lmdeploy:request_decode_time_seconds",)),
    ),
)
