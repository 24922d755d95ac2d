"""The endpoint picker of the Gateway API inference extension and of llm-d.

It emits older names beside newer ones; the newest that stands on the page is read, and no other.  Its backends are
pods, named and not addressed, and its queue is the one inside the pod's engine.
"""

from __future__ import annotations

from collections.abc import Mapping

from exporter.gateways.gateway import Gateway, GatewayField, Measure
from exporter.model.outcome import OutcomeWords, RequestOutcome

_POD = ("endpoint_name", "model_server_endpoint", "model_server_pod", "pod_name")


def _scheduled(labels: Mapping[str, str]) -> bool:
    return labels.get("status", "success") == "success"


def _decode_only(labels: Mapping[str, str]) -> bool:
    return labels.get("decision_type") == "decode-only"


def _disaggregated(labels: Mapping[str, str]) -> bool:
    return labels.get("decision_type", "decode-only") != "decode-only"


def _names(name: str) -> tuple[str, ...]:
    """Return a name under the prefixes of all versions, newest first."""
    return tuple(
        f"{prefix}_{name}"
        for prefix in ("llm_d_epp", "llm_d_router_epp", "llm_d_inference_scheduler", "inference_extension")
    )


_DECISIONS = (*_names("disagg_decision_total"), *_names("pd_decision_total"))  # the older one with its handler alone
_ERROR_CODES = OutcomeWords(
    otherwise=RequestOutcome.ERROR,
    words={
        **dict.fromkeys(("BadRequest", "Unauthorized", "Forbidden", "NotFound"), RequestOutcome.INVALID),
        **dict.fromkeys(("ResourceExhausted", "InferencePoolResourceExhausted"), RequestOutcome.REJECTED),
        **dict.fromkeys(("Internal", "ModelServerError", "ServiceUnavailable", "Unknown"), RequestOutcome.ERROR),
    },
)

INFERENCE_EXTENSION = Gateway(
    kind="inference_extension",
    title="endpoint picker (Gateway API inference extension, llm-d)",
    marks=("llm_d_epp_", "llm_d_router_epp_", "llm_d_inference_scheduler_", "inference_pool_", "inference_objective_",
           "inference_extension_", "inference_model_"),
    hint="Point url at the endpoint picker's /metrics (port 9090), which may need a bearer token.",
    fields=(
        GatewayField(Measure.REQUESTS, _names("scheduler_attempts_total"), backend=_POD, where=_scheduled),
        GatewayField(Measure.QUEUED, (
                "llm_d_epp_per_endpoint_queue_size",
                "llm_d_router_epp_per_endpoint_queue_size",
                "inference_pool_per_endpoint_queue_size",
                "inference_pool_per_pod_queue_size",
            ), backend=_POD),
        GatewayField(Measure.REQUESTS, (
                "llm_d_epp_request_total",
                "llm_d_router_epp_request_total",
                "inference_objective_request_total",
                "inference_model_request_total",
            )),
        GatewayField(Measure.ERRORS, (
                "llm_d_epp_request_error_total",
                "llm_d_router_epp_request_error_total",
                "inference_objective_request_error_total",
                "inference_model_request_error_total",
            ), labels=("error_code",), outcomes=_ERROR_CODES),
        # Only with flow control, whose utilization detector asks; it takes them for saturated, or leaves them out.
        GatewayField(Measure.STALE_ENDPOINTS, _names("flow_control_stale_endpoints")),
        GatewayField(Measure.POLL_ERRORS, _names("datalayer_poll_errors_total")),
        GatewayField(Measure.POLL_ERRORS, _names("datalayer_extract_errors_total")),
        # Only with the plugin that decides about disaggregation.
        GatewayField(Measure.DECODE_ONLY, _DECISIONS, where=_decode_only),
        GatewayField(Measure.DISAGGREGATED, _DECISIONS, where=_disaggregated),
    ),
)  # fmt: skip
