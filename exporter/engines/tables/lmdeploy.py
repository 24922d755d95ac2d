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
    distribution="lmdeploy",
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
        EngineField(Quantity.REQUESTS_RUNNING, ("lmdeploy:num_requests_running",)),
        EngineField(Quantity.REQUESTS_WAITING, ("lmdeploy:num_requests_waiting",)),
        EngineField(Quantity.KV_CACHE_USAGE, ("lmdeploy:gpu_cache_usage_perc",), reduce=Reduce.MEAN, ratio=True),
        EngineField(Quantity.PROMPT_TOKENS, ("lmdeploy:prompt_tokens_total",)),
        EngineField(Quantity.GENERATION_TOKENS, ("lmdeploy:generation_tokens_total",)),
        # Both of finished requests.
        EngineField(Quantity.PREFIX_CACHE_QUERIES, ("lmdeploy:request_prompt_tokens_sum",)),
        EngineField(Quantity.PREFIX_CACHE_HITS, ("lmdeploy:cached_tokens_total",)),
        EngineField(
            Family.FINISHED,
            ("lmdeploy:request_success_total",),
            labels=("finished_reason",),
            outcomes=_FINISHED,
            where=_finished,
        ),
        EngineField(Stage.TIME_TO_FIRST_TOKEN, ("lmdeploy:time_to_first_token_seconds",)),
        # One observation per step and request, like vLLM's.
        EngineField(Stage.INTER_TOKEN, ("lmdeploy:iter_token_latency",)),
        EngineField(Stage.REQUEST, ("lmdeploy:e2e_request_latency_seconds",)),
        EngineField(Stage.QUEUE, ("lmdeploy:request_queue_time_seconds",)),
        EngineField(Stage.PREFILL, ("lmdeploy:request_prefill_time_seconds",)),
        EngineField(Stage.PROMPT_LENGTH, ("lmdeploy:request_prompt_tokens",)),
        EngineField(Stage.GENERATION_LENGTH, ("lmdeploy:request_generation_tokens",)),
        EngineField(Stage.STEP_TOKENS, ("lmdeploy:iteration_tokens_total",)),
        EngineField(Stage.DECODE, ("lmdeploy:request_decode_time_seconds",)),
    ),
)
