"""HAProxy's own Prometheus page (2.0 and newer), and the older stand-alone exporter's.

Requests of a server are ``sessions_total``: ``loadbalanced_total`` counts only fresh decisions and misses everything
that follows on a connection kept alive.  Time averages are means of the last 1024 requests, whenever those were, and
are therefore not read.  Server states are one series each, of which one is 1.
"""

from __future__ import annotations

from collections.abc import Mapping

from exporter.gateways.gateway import STATUS_CLASS, Gateway, GatewayField, Measure

_POOL = ("proxy", "backend")  # the stand-alone exporter says backend
_SERVER = ("server",)


def _up(labels: Mapping[str, str]) -> bool:
    """Select the series of the one state that takes new requests; up to 2.3 there was no state, but a number."""
    return labels.get("state", "UP") == "UP"


HAPROXY = Gateway(
    kind="haproxy",
    title="HAProxy",
    marks=("haproxy_",),
    started=("haproxy_process_start_time_seconds",),  # of the worker; a bare process_… would be the exporter's own
    uptime="haproxy_process_uptime_seconds",
    hint="Add `http-request use-service prometheus-exporter if { path /metrics }` to a frontend, and poll that.",
    fields=(
        GatewayField(Measure.REQUESTS, ("haproxy_server_sessions_total",), backend=_SERVER, pool=_POOL),
        # What the server answered, what it answered badly, and when it could not be reached: never the same request.
        GatewayField(
            Measure.ERRORS,
            ("haproxy_server_http_responses_total",),
            backend=_SERVER,
            pool=_POOL,
            labels=("code",),
            outcomes=STATUS_CLASS,
        ),
        GatewayField(Measure.ERRORS, ("haproxy_server_connection_errors_total",), backend=_SERVER, pool=_POOL),
        GatewayField(Measure.ERRORS, ("haproxy_server_response_errors_total",), backend=_SERVER, pool=_POOL),
        GatewayField(Measure.ACTIVE, ("haproxy_server_current_sessions",), backend=_SERVER, pool=_POOL),
        GatewayField(Measure.QUEUED, ("haproxy_server_current_queue",), backend=_SERVER, pool=_POOL),
        GatewayField(
            Measure.UP, ("haproxy_server_status", "haproxy_server_up"), backend=_SERVER, pool=_POOL, where=_up
        ),
        GatewayField(
            Measure.REQUESTS, ("haproxy_backend_http_requests_total", "haproxy_backend_sessions_total"), pool=_POOL
        ),
        # Includes the 503 of the gateway itself when no server could take the request.
        GatewayField(
            Measure.ERRORS,
            ("haproxy_backend_http_responses_total",),
            pool=_POOL,
            labels=("code",),
            outcomes=STATUS_CLASS,
        ),
        GatewayField(Measure.ACTIVE, ("haproxy_backend_current_sessions",), pool=_POOL),
        GatewayField(Measure.QUEUED, ("haproxy_backend_current_queue",), pool=_POOL),
    ),
)
