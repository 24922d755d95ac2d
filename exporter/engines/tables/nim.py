"""NVIDIA NIM 1.x for language models: vLLM's shapes without a prefix, so a page is known by several names together.

NIM 2 shows vLLM's own names and is read as vLLM.
"""

from __future__ import annotations

from exporter.engines.engine import Engine, EngineField, Family, Reduce, sample_names
from exporter.engines.tables.vllm import BUCKETS, FINISH_REASONS, TARGETS
from exporter.model import Quantity, Stage
from exporter.model.server import EndpointDefaults, ServerProcess

_FIELDS = (
    EngineField(Quantity.REQUESTS_RUNNING, ("nim:num_requests_running",)),
    EngineField(Quantity.REQUESTS_WAITING, ("nim:num_requests_waiting",)),
    EngineField(Quantity.KV_CACHE_USAGE, ("nim:gpu_cache_usage_perc",), reduce=Reduce.MEAN, ratio=True),
    EngineField(Quantity.PROMPT_TOKENS, ("nim:prompt_tokens_total",)),
    EngineField(Quantity.GENERATION_TOKENS, ("nim:generation_tokens_total",)),
    EngineField(
        Family.FINISHED,
        ("nim:request_finish_total", "nim:request_success_total"),
        labels=("finished_reason",),
        outcomes=FINISH_REASONS,
    ),
    EngineField(Stage.TIME_TO_FIRST_TOKEN, ("nim:time_to_first_token_seconds",)),
    EngineField(Stage.INTER_TOKEN, ("nim:time_per_output_token_seconds",)),
    EngineField(Stage.REQUEST, ("nim:e2e_request_latency_seconds",)),
)

NIM = Engine(
    kind="nim",
    title="NIM",
    versions="1.x; newer ones are read as their engine",
    servers=(
        ServerProcess(
            modules=("vllm_nvext.entrypoints.launch", "vllm_nvext.entrypoints.openai.api_server"),
            endpoint=EndpointDefaults(
                port_variable="NIM_HTTP_API_PORT", ports=(8000,), path="/v1/metrics", probe=True
            ),
        ),
    ),
    buckets={stage: BUCKETS[stage] for stage in (Stage.TIME_TO_FIRST_TOKEN, Stage.INTER_TOKEN, Stage.REQUEST)},
    targets=TARGETS,
    prefixes=("nim:",),
    bare_names=sample_names(_FIELDS),
    bare_marks=frozenset(
        (
            "num_requests_running",
            "gpu_cache_usage_perc",
            "generation_tokens_total",
            "e2e_request_latency_seconds_count",
        )
    ),
    reasons={"time_per_output_token": "only_as_inter_token"},
    hint="Are its metrics at /v1/metrics?",
    fields=_FIELDS,
)
