"""Ascend MindIE: vLLM's names without a prefix, on a port of its own; a page is known by several names together."""

from __future__ import annotations

from exporter.engines.engine import Engine, EngineField, Family, Reduce, sample_names
from exporter.model import Quantity, Stage
from exporter.model.outcome import ALWAYS_ERROR
from exporter.model.server import EndpointDefaults, ServerProcess

_FIELDS = (
    EngineField(Quantity.REQUESTS_RUNNING, ("mindie:num_requests_running",)),
    EngineField(Quantity.REQUESTS_WAITING, ("mindie:num_requests_waiting",)),
    EngineField(Quantity.REQUESTS_SWAPPED, ("mindie:num_requests_swapped",)),
    EngineField(
        Quantity.KV_CACHE_USAGE,
        ("mindie:npu_cache_usage_perc", "mindie:gpu_cache_usage_perc"),
        reduce=Reduce.MEAN,
        ratio=True,
    ),
    EngineField(Quantity.PROMPT_TOKENS, ("mindie:prompt_tokens_total",)),
    EngineField(Quantity.GENERATION_TOKENS, ("mindie:generation_tokens_total",)),
    EngineField(Quantity.PREEMPTIONS, ("mindie:num_preemptions_total",)),
    EngineField(Family.FINISHED, ("mindie:request_success_total",)),
    EngineField(Family.FINISHED, ("mindie:request_failed_total",), outcomes=ALWAYS_ERROR),
    EngineField(Stage.TIME_TO_FIRST_TOKEN, ("mindie:time_to_first_token_seconds",)),
    EngineField(Stage.INTER_TOKEN, ("mindie:time_per_output_token_seconds",)),
    EngineField(Stage.REQUEST, ("mindie:e2e_request_latency_seconds",)),
)

MINDIE = Engine(
    kind="mindie",
    title="MindIE",
    versions="1.0 to 2.1",
    servers=(
        ServerProcess(
            programs=("mindieservice_daemon",),
            endpoint=EndpointDefaults(port_flags=(), ports=(1027,), probe=True),
        ),
    ),
    metrics_flag="MIES_SERVICE_MONITOR_MODE=1",
    not_judged="its bounds are not published",
    prefixes=("mindie:",),
    bare_names=sample_names(_FIELDS),
    bare_marks=frozenset(
        ("request_received_total", "request_failed_total", "num_requests_running", "generation_tokens_total")
    ),
    process_start="",
    reasons={"time_per_output_token": "only_as_inter_token"},
    hint="Was the server started with MIES_SERVICE_MONITOR_MODE=1? Its metrics are at metricsPort, over https unless "
    "its configuration says otherwise.",
    fields=_FIELDS,
)
