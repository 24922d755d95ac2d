"""Ray Serve 2.40 to 2.60, whatever the app: HTTP figures of one node's page, with the labels of replicas summed away.

A Ray node has one page for all its apps; the model is the application's name while there is only one.  Durations
are in milliseconds.  Sums are estimates (Ray observes the middle of a bucket again), so means are too; the buckets
are right.  2.40 shows every counter a second time as a gauge without ``_total``: such names stand nowhere here.

Where an app runs vLLM or SGLang and lets Ray show their figures, kind auto reads those instead (``ray_vllm_…``):
they say more, and each Ray replica is a rank.
"""

from __future__ import annotations

from collections.abc import Mapping

from exporter.engines.engine import Engine, EngineField, Family, LatencyTargets, status_class
from exporter.model import Quantity, Stage
from exporter.model.outcome import HTTP_STATUS

_MILLISECONDS = 1e-3
_SPAN = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 1, 2, 5, 10, 60, 120, 300, 600)
_APP = "not_exposed_by_engine_but_by_app"


def _app(labels: Mapping[str, str]) -> bool:
    """Leave out requests for routes that nobody serves."""
    return labels.get("application", "") != ""


def _good(labels: Mapping[str, str]) -> bool:
    """Leave out failed requests, as other engines do; before 2.60 they cannot be told apart."""
    return _app(labels) and status_class(labels.get("status_code", "200")) == "2xx"


RAY_SERVE = Engine(
    kind="ray_serve",
    title="Ray Serve",
    versions="2.40 to 2.60",
    buckets={Stage.REQUEST: _SPAN},
    targets=LatencyTargets(interactive={Stage.REQUEST: 60}, standard={Stage.REQUEST: 60}, batch={Stage.REQUEST: 600}),
    prefixes=("ray_serve_",),
    wrapper=True,
    model_labels=("application",),
    several_models=True,
    frozen_after=None,
    process_start="",  # of the node's metrics agent
    version_label="Version",
    reasons={
        "time_to_first_token": _APP,
        "inter_token": _APP,
        "prompt_tokens": _APP,
        "generation_tokens": _APP,
        "kv_cache_hit": _APP,
        "queue": "only_per_hop",
    },
    hint="Is this the metrics port of a Ray node that runs Serve?",
    fields=(
        # Requests inside the app, those that wait for one of its deployments included; not there while it is 0.
        EngineField(
            Quantity.REQUESTS_RUNNING,
            # The queries that replicas process count a request once for every deployment it passes: no stand-in.
            ("ray_serve_num_ongoing_http_requests",),
        ),
        EngineField(Quantity.REQUESTS_WAITING, ("ray_serve_deployment_queued_queries",)),
        # The controller's view of the cluster's proxies, through which requests come in; the page comes from an
        # agent, and goes on without them.
        EngineField(Quantity.PROXIES_HEALTHY, ("ray_serve_proxy_status",), equal=2.0),
        EngineField(Quantity.PROXIES_UNHEALTHY, ("ray_serve_proxy_status",), equal=3.0),
        # 503 is an error: Ray sheds load so, but also answers so while no replica is left, which nothing else tells.
        EngineField(
            Family.FINISHED,
            ("ray_serve_num_http_requests_total",),
            labels=("status_code",),
            outcomes=HTTP_STATUS,
            where=_app,
        ),
        EngineField(Family.RESPONSES, ("ray_serve_num_http_requests_total",), labels=("status_code",), where=_app),
        EngineField(Stage.REQUEST, ("ray_serve_http_request_latency_ms",), scale=_MILLISECONDS, where=_good),
    ),
)
