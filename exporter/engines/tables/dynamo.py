"""NVIDIA Dynamo's frontend.  Its workers show their engine's own series, which are read as that engine's instead."""

from __future__ import annotations

from exporter.engines.engine import Engine, EngineField, Family
from exporter.engines.tables.sglang import RENDEZVOUS as SGLANG_RENDEZVOUS
from exporter.engines.tables.vllm import RENDEZVOUS as VLLM_RENDEZVOUS
from exporter.model import Quantity, Stage
from exporter.model.outcome import OutcomeWords, RequestOutcome
from exporter.model.server import EndpointDefaults, ServerProcess, ServerRole

_WORKERS = "on_the_workers_pages"

# Of a request that went well the type is empty, and the status counts; old versions have the status alone.
_ERROR_TYPES = OutcomeWords(
    otherwise=RequestOutcome.ERROR,
    words={
        "success": RequestOutcome.SUCCESS,
        **dict.fromkeys(("validation", "not_found", "not_implemented"), RequestOutcome.INVALID),
        "overload": RequestOutcome.REJECTED,
        "cancelled": RequestOutcome.CANCELLED,
        **dict.fromkeys(("internal", "response_timeout", "error"), RequestOutcome.ERROR),
    },
)

DYNAMO = Engine(
    kind="dynamo",
    title="Dynamo",
    versions="frontend; its workers show their engine's metrics",
    servers=(
        ServerProcess(
            modules=("dynamo.frontend",),
            role=ServerRole.FRONTEND,
            endpoint=EndpointDefaults(
                port_flags=("--http-port",),
                port_variable="DYN_HTTP_PORT",
                ports=(8000, 8080),
                tls_flags=("--tls-cert-path",),
                probe=True,
            ),
        ),
        ServerProcess(
            modules=("dynamo.vllm", "dynamo.sglang", "dynamo.trtllm"),
            role=ServerRole.WORKER,
            rendezvous=(*VLLM_RENDEZVOUS, SGLANG_RENDEZVOUS),
            endpoint=EndpointDefaults(port_flags=(), port_variable="DYN_SYSTEM_PORT", probe=True),
        ),
    ),
    not_judged="its workers' engines are judged",
    prefixes=("dynamo_frontend_",),
    wrapper=True,
    model_labels=("model",),
    several_models=True,
    live=("dynamo_frontend_inter_token_latency_seconds_count",),
    reasons={
        "kv_cache_usage": _WORKERS,
        "kv_cache_capacity": _WORKERS,
        "preemptions": _WORKERS,
        "queue": _WORKERS,
        "prefill": _WORKERS,
        "decode": _WORKERS,
    },
    hint="Its environment can change the frontend's prefix; the engines' figures are on the workers' system ports.",
    fields=(
        EngineField(Quantity.REQUESTS_RUNNING, ("dynamo_frontend_inflight_requests",)),
        EngineField(Quantity.REQUESTS_WAITING, ("dynamo_frontend_queued_requests",)),
        EngineField(Quantity.PROMPT_TOKENS, ("dynamo_frontend_input_sequence_tokens_sum",)),
        EngineField(
            Quantity.GENERATION_TOKENS,
            ("dynamo_frontend_output_tokens_total", "dynamo_frontend_output_sequence_tokens_sum"),
        ),
        # What the workers say of each finished request; where they say nothing there are no hits, and no ratio.
        EngineField(Quantity.PREFIX_CACHE_QUERIES, ("dynamo_frontend_input_sequence_tokens_sum",)),
        EngineField(Quantity.PREFIX_CACHE_HITS, ("dynamo_frontend_cached_tokens_sum",)),
        EngineField(
            Family.FINISHED,
            ("dynamo_frontend_requests_total",),
            labels=("error_type", "status"),
            outcomes=_ERROR_TYPES,
        ),
        EngineField(Stage.TIME_TO_FIRST_TOKEN, ("dynamo_frontend_time_to_first_token_seconds",)),
        EngineField(Stage.INTER_TOKEN, ("dynamo_frontend_inter_token_latency_seconds",)),
        EngineField(Stage.REQUEST, ("dynamo_frontend_request_duration_seconds",)),
        EngineField(Stage.PROMPT_LENGTH, ("dynamo_frontend_input_sequence_tokens",)),
        EngineField(Stage.GENERATION_LENGTH, ("dynamo_frontend_output_sequence_tokens",)),
    ),
)
