"""The routers written in Rust: vllm-router, and sglang-router, which became smg.

A worker has no series before its first request, except in smg, which makes them all at zero.  sglang-router 0.3
counts requests by worker only through the outcomes at its circuit breaker, retries included.
"""

from __future__ import annotations

from exporter.gateways.gateway import Gateway, GatewayField, Measure
from exporter.model.outcome import OutcomeWords, RequestOutcome

_WORKER = ("worker",)
_CIRCUIT_BREAKER = OutcomeWords(
    otherwise=RequestOutcome.SUCCESS,
    words={"success": RequestOutcome.SUCCESS, "failure": RequestOutcome.ERROR},
)


def _field(target: Measure, *names: str) -> GatewayField:
    return GatewayField(target, names, backend=_WORKER)


VLLM_ROUTER = Gateway(
    kind="vllm_router",
    title="vllm-router",
    marks=("vllm_router_",),
    counts_from_first=True,
    hint="Point url at the router's own metrics port.",
    fields=(
        _field(Measure.REQUESTS, "vllm_router_processed_requests_total"),
        GatewayField(
            Measure.ERRORS,
            ("vllm_router_cb_outcomes_total",),
            backend=_WORKER,
            labels=("outcome",),
            outcomes=_CIRCUIT_BREAKER,
        ),
        _field(Measure.ACTIVE, "vllm_router_running_requests"),
        _field(Measure.UP, "vllm_router_worker_health"),
        GatewayField(Measure.REQUESTS, ("vllm_router_requests_total",)),
    ),
)

SGLANG_ROUTER = Gateway(
    kind="sglang_router",
    title="sglang-router, smg",
    marks=("smg_", "sgl_router_"),
    counts_from_first=True,
    hint="Point url at the router's own metrics port (29000 unless set), not at /engine_metrics.",
    fields=(
        _field(
            Measure.REQUESTS,
            "smg_worker_requests_total",
            "smg_worker_cb_outcomes_total",
            "sgl_router_processed_requests_total",
        ),
        GatewayField(
            Measure.ERRORS,
            ("smg_worker_cb_outcomes_total", "sgl_router_cb_outcomes_total"),
            backend=_WORKER,
            labels=("outcome",),
            outcomes=_CIRCUIT_BREAKER,
        ),
        _field(Measure.ACTIVE, "smg_worker_requests_active", "sgl_router_running_requests"),
        _field(Measure.UP, "smg_worker_health", "sgl_router_worker_health"),
        GatewayField(
            Measure.REQUESTS, ("smg_router_requests_total", "smg_http_requests_total", "sgl_router_requests_total")
        ),
    ),
)
