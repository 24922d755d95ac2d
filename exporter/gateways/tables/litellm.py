"""LiteLLM's proxy: by deployment, which it names by the address of its API; a pool is a model of a deployment.

A failed attempt that is retried on another deployment counts at both.  Its durations begin with the proxy's own work
and are not read.

Only attempts at a deployment count as its failures: a client's request with a bad key never gets there.  So 401, 403
and 404 are the deployment's refusal of the proxy's own key or model, which no client can mend.
"""

from __future__ import annotations

from exporter.gateways.gateway import Gateway, GatewayField, Measure
from exporter.model.outcome import HTTP_STATUS, OutcomeWords, RequestOutcome

_POOL = ("litellm_model_name",)
_BACKEND = ("api_base",)
_FAILURES = ("litellm_deployment_failure_responses_total",)
_STATUS = OutcomeWords(
    otherwise=HTTP_STATUS.otherwise,
    words={**HTTP_STATUS.words, **dict.fromkeys(("401", "403", "404"), RequestOutcome.ERROR)},
    status=True,
)

LITELLM = Gateway(
    kind="litellm",
    title="LiteLLM",
    marks=("litellm_",),
    counts_from_first=True,
    hint="Add `prometheus` to its callbacks; it may need a bearer token, and the path ends with a slash: /metrics/.",
    fields=(
        GatewayField(Measure.REQUESTS, ("litellm_deployment_success_responses_total",), backend=_BACKEND, pool=_POOL),
        GatewayField(Measure.REQUESTS, _FAILURES, backend=_BACKEND, pool=_POOL),
        GatewayField(
            Measure.ERRORS,
            _FAILURES,
            backend=_BACKEND,
            pool=_POOL,
            labels=("exception_status",),
            outcomes=_STATUS,
        ),
        # 0: healthy, 1: some requests fail, 2: in its cool-down, and left out.  One address may have several of them.
        GatewayField(Measure.UP, ("litellm_deployment_state",), backend=_BACKEND, pool=_POOL, up=(0.0, 1.0)),
        GatewayField(
            Measure.REQUESTS, ("litellm_proxy_total_requests_metric_total", "litellm_requests_metric_total")
        ),
    ),
)
