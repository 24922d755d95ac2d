"""The router of the vLLM production stack: its series have the engine's names, with the label ``server``.

An engine's series carry ``model_name`` and are never a router's, so both may stand on one page.  Requests by server
are counted by newer versions only, through the histogram of their durations; older ones say a rate.
"""

from __future__ import annotations

from collections.abc import Mapping

from exporter.gateways.gateway import Gateway, GatewayField, Measure

_SERVER = ("server",)


def _routed(labels: Mapping[str, str]) -> bool:
    return "server" in labels and "model_name" not in labels


def _field(target: Measure, *names: str) -> GatewayField:
    return GatewayField(target, names, backend=_SERVER, where=_routed)


PRODUCTION_STACK = Gateway(
    kind="production_stack",
    title="vLLM production-stack router",
    marks=("vllm:current_qps", "vllm:healthy_pods_total", "vllm:num_incoming_requests_total"),
    hint="Point url at the router's /metrics; an engine's own page belongs under engines.",
    fields=(
        _field(Measure.REQUESTS, "vllm:request_latency_seconds_count"),
        _field(Measure.ERRORS, "vllm:request_errors_total"),
        _field(Measure.ACTIVE, "vllm:num_requests_running"),
        _field(Measure.RATE, "vllm:current_qps"),
        _field(Measure.UP, "vllm:healthy_pods_total"),
        GatewayField(
            Measure.REQUESTS, ("vllm:num_incoming_requests_total",), where=lambda labels: "model_name" not in labels
        ),
    ),
)
