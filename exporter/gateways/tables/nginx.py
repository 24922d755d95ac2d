"""nginx: the VTS module by backend, nginx Plus through its exporter by backend, stub_status for the server alone.

stub_status is four lines of text without any backend; it is translated into the names that the usual exporter gives
it.  Its requests include those for the page itself, and its "writing" always includes the scrape that reads it.
VTS counts every attempt: a request that was retried counts at both backends.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from exporter.gateways.gateway import STATUS_CLASS, Gateway, GatewayField, Measure

_STUB = re.compile(
    rb"Active connections: (\d{1,15}) ?\r?\n"
    rb"server accepts handled requests\r?\n"
    rb" (\d{1,18}) (\d{1,18}) (\d{1,18}) ?\r?\n"
    rb"Reading: (\d{1,15}) Writing: (\d{1,15}) Waiting: (\d{1,15}) ?\r?\n?\s*\Z"
)
_STUB_NAMES = ("connections_active", "connections_accepted", "connections_handled", "http_requests_total",
               "connections_reading", "connections_writing", "connections_waiting")  # fmt: skip

_POOL = ("upstream",)
_BACKEND = ("backend", "server")
_REQUESTS = ("nginx_vts_upstream_requests_total", "nginxplus_upstream_server_requests")
_RESPONSES = ("nginx_vts_upstream_requests_total", "nginxplus_upstream_server_responses")


def translate(body: bytes) -> bytes | None:
    """Turn a stub_status page into exposition text; None when it is none."""
    match = _STUB.match(body)
    if match is None:
        return None
    return b"".join(
        b"nginx_%s %s\n" % (name.encode(), number) for name, number in zip(_STUB_NAMES, match.groups(), strict=True)
    )


def _status(labels: Mapping[str, str]) -> bool:
    """Leave out sums over the codes, which some versions show beside the codes."""
    return "code" not in labels or re.fullmatch(r"[1-5]xx", labels["code"]) is not None


def _requests(labels: Mapping[str, str]) -> bool:
    return labels.get("status", "requests") == "requests"


def _writing(labels: Mapping[str, str]) -> bool:
    return labels.get("status", "writing") == "writing"


NGINX = Gateway(
    kind="nginx",
    title="nginx",
    marks=("nginx_", "nginxplus_"),
    started=("nginx_vts_start_time_seconds",),
    translate=translate,
    hint="Point url at stub_status, at the VTS module's prometheus page, or at nginx-prometheus-exporter.",
    fields=(
        GatewayField(Measure.REQUESTS, _REQUESTS, backend=_BACKEND, pool=_POOL, where=_status),
        GatewayField(
            Measure.ERRORS, _RESPONSES, backend=_BACKEND, pool=_POOL, labels=("code",), outcomes=STATUS_CLASS
        ),
        GatewayField(Measure.ACTIVE, ("nginxplus_upstream_server_active",), backend=_BACKEND, pool=_POOL),
        GatewayField(Measure.UP, ("nginxplus_upstream_server_state",), backend=_BACKEND, pool=_POOL),
        GatewayField(
            Measure.REQUESTS,
            ("nginx_vts_main_connections", "nginx_http_requests_total", "nginxplus_http_requests_total"),
            where=_requests,
        ),
        GatewayField(
            Measure.ACTIVE, ("nginx_vts_main_connections", "nginx_connections_writing"), where=_writing, less=1.0
        ),
    ),
)
