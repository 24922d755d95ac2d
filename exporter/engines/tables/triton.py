"""Triton inference server: its ``nv_inference_`` counters, and what its TensorRT-LLM backend says of batch and cache.

An ensemble counts one request once for itself and once for each of its members, so the helpers around the language
model are left out.  Durations are sums in microseconds without buckets and give no quantiles; the one histogram,
of first responses, must be switched on.
"""

from __future__ import annotations

from collections.abc import Mapping

from exporter.engines.engine import ONLY_AS_SUM, Engine, EngineField, Factor, Family, Reduce
from exporter.model import Quantity, Stage
from exporter.model.outcome import OutcomeWords, RequestOutcome
from exporter.model.server import EndpointDefaults, ServerProcess

_HELPERS = frozenset(("ensemble", "preprocessing", "postprocessing", "tensorrt_llm_bls"))
_MILLISECONDS = 1e-3


_FAILURES = OutcomeWords(
    otherwise=RequestOutcome.ERROR,
    words={
        "REJECTED": RequestOutcome.REJECTED,
        "CANCELED": RequestOutcome.CANCELLED,
        "BACKEND": RequestOutcome.ERROR,
        "OTHER": RequestOutcome.ERROR,
    },
)


def _model(labels: Mapping[str, str]) -> bool:
    return labels.get("model") not in _HELPERS


def _scheduled(labels: Mapping[str, str]) -> bool:
    return _model(labels) and labels.get("request_type") == "scheduled"


def _waiting(labels: Mapping[str, str]) -> bool:
    return _model(labels) and labels.get("request_type", "waiting") == "waiting"


def _fraction(labels: Mapping[str, str]) -> bool:
    return _model(labels) and labels.get("kv_cache_block_type") == "fraction"


def _blocks(labels: Mapping[str, str]) -> bool:
    return _model(labels) and labels.get("kv_cache_block_type") == "max"


TRITON = Engine(
    kind="triton",
    title="Triton",
    versions="backends `vllm` and `tensorrtllm`",
    servers=(
        ServerProcess(
            programs=("tritonserver",),
            endpoint=EndpointDefaults(port_flags=("--metrics-port",), ports=(8002,), probe=True),
        ),
    ),
    not_judged="its one histogram must be switched on, with bounds of one's own",
    prefixes=("nv_inference_", "nv_trt_llm_"),
    wrapper=True,
    model_labels=("model",),
    several_models=True,
    frozen_after=None,
    reasons={"request": ONLY_AS_SUM, "queue": ONLY_AS_SUM, "prefill": ONLY_AS_SUM},
    hint="Is this Triton's metrics port (8002)?",
    fields=(
        EngineField(Quantity.REQUESTS_RUNNING, ("nv_trt_llm_request_metrics",), where=_scheduled),
        EngineField(
            Quantity.REQUESTS_WAITING,
            ("nv_trt_llm_request_metrics", "nv_inference_pending_request_count"),
            where=_waiting,
        ),
        EngineField(
            Quantity.KV_CACHE_USAGE,
            ("nv_trt_llm_kv_cache_block_metrics",),
            where=_fraction,
            reduce=Reduce.MEAN,
            ratio=True,
        ),
        # Counted in blocks; a page says beside them how many tokens each holds.
        EngineField(
            Quantity.KV_CACHE_CAPACITY,
            ("nv_trt_llm_kv_cache_block_metrics",),
            where=_blocks,
            factor=Factor(label="kv_cache_block_type", value="tokens_per"),
        ),
        EngineField(Family.FINISHED, ("nv_inference_request_success",), where=_model),
        EngineField(
            Family.FINISHED, ("nv_inference_request_failure",), labels=("reason",), outcomes=_FAILURES, where=_model
        ),
        EngineField(
            Stage.TIME_TO_FIRST_TOKEN,
            ("nv_inference_first_response_histogram_ms",),
            scale=_MILLISECONDS,
            where=_model,
        ),
    ),
)
