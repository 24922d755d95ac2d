"""Envoy's admin page: by endpoint where per-endpoint statistics are on, else by cluster only; or its /clusters text.

/clusters always knows the endpoints, and is translated into the names of the per-endpoint statistics.  Envoy names
its counters without ``_total`` as it pleases, so types come from this table.  Its latency histograms lag behind its
counters by the flush of every 5 seconds and are not read.

Higress is Envoy with plugins: its ai-statistics counts the answers of each model by the cluster that gave them.
"""

from __future__ import annotations

from exporter.gateways.gateway import STATUS_CLASS, Gateway, GatewayField, Measure

_POOL = ("envoy_cluster_name", "cluster_name")  # the second is Istio's
_BACKEND = ("envoy_endpoint_address", "endpoint_address")
_STATISTICS = frozenset((b"rq_total", b"rq_error", b"rq_active", b"rq_pending_active"))
_MAX_LINES = 40_000


def translate(body: bytes) -> bytes | None:
    """Turn a /clusters text into exposition text; None when it is none."""
    if b"::observability_name::" not in body[:4096] and b"::default_priority::" not in body[:4096]:
        return None
    lines = body.split(b"\n", _MAX_LINES)[:_MAX_LINES]
    return b"".join(map(_translated, lines)) or None


def _translated(line: bytes) -> bytes:
    # pool::address::statistic::value, where an IPv6 address has :: of its own: split from both ends.
    head, _, value = line.rstrip(b"\r").rpartition(b"::")
    place, _, statistic = head.rpartition(b"::")
    pool, _, address = place.partition(b"::")
    if not pool or not address:
        return b""
    if statistic == b"health_flags":
        statistic, value = b"healthy", b"1" if value == b"healthy" else b"0"
    elif statistic not in _STATISTICS or not value.isdigit():
        return b""
    labels = tuple(text.replace(b"\\", b"\\\\").replace(b'"', b'\\"') for text in (pool, address))
    return b'envoy_cluster_endpoint_%s{envoy_cluster_name="%s",envoy_endpoint_address="%s"} %s\n' % (
        statistic,
        *labels,
        value,
    )


def _endpoint(target: Measure, statistic: str) -> GatewayField:
    return GatewayField(target, (f"envoy_cluster_endpoint_{statistic}",), backend=_BACKEND, pool=_POOL)


ENVOY = Gateway(
    kind="envoy",
    title="Envoy (also Istio, Higress)",
    marks=("envoy_",),
    started=(),
    uptime="envoy_server_uptime",
    translate=translate,
    hint="Point url at the admin listener's /stats/prometheus, or at its /clusters. With Higress (port 15020) and "
    "its plugin ai-statistics, models are pools, too, whose backends are clusters.",
    fields=(
        _endpoint(Measure.REQUESTS, "rq_total"),
        _endpoint(Measure.ERRORS, "rq_error"),
        _endpoint(Measure.ACTIVE, "rq_active"),
        _endpoint(Measure.QUEUED, "rq_pending_active"),
        _endpoint(Measure.UP, "healthy"),
        GatewayField(
            Measure.REQUESTS,
            (
                "route_upstream_model_consumer_metric_llm_duration_count",
                "route_upstream_model_metric_llm_duration_count",
            ),
            backend=("ai_cluster",),
            pool=("ai_model",),
        ),
        GatewayField(Measure.REQUESTS, ("envoy_cluster_upstream_rq_total",), pool=_POOL),
        GatewayField(
            Measure.ERRORS,
            ("envoy_cluster_upstream_rq_xx",),
            pool=_POOL,
            labels=("envoy_response_code_class", "response_code_class"),
            outcomes=STATUS_CLASS,
        ),
        GatewayField(Measure.ACTIVE, ("envoy_cluster_upstream_rq_active",), pool=_POOL),
        GatewayField(Measure.QUEUED, ("envoy_cluster_upstream_rq_pending_active",), pool=_POOL),
    ),
)
