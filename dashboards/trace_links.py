"""Links from a replica's panel to the traces of its requests, in Jaeger's search.

A replica and its traces share a name: the engine's ``OTEL_SERVICE_NAME`` is the replica's name in the daemon's
configuration. The address of Jaeger is set by ``shardwatch dashboards --traces URL``.
"""

from __future__ import annotations

from typing import Any

from exporter.model.text import Language, Text

Json = dict[str, Any]

JAEGER_URL = "http://localhost:16686"  # as compose/compose.yaml publishes it
_TITLE = Text("Traces of its requests (Jaeger)", "查看请求链路（Jaeger）")


def trace_link(label: str, language: Language) -> Json:
    """Return the link to the traces of the service named by this label, in the dashboard's time range.

    Grafana gives milliseconds and Jaeger takes microseconds, hence the zeros.
    """
    service = f"service=${{__field.labels.{label}:percentencode}}"
    span = "lookback=custom&start=${__from}000&end=${__to}000"
    url = f"{JAEGER_URL}/search?{service}&{span}&limit=50"
    return {"title": _TITLE.in_(language), "url": url, "targetBlank": True}


def with_jaeger_url(dashboard: Json, traces: str) -> Json:
    """Return the dashboard's JSON with another address of Jaeger; an empty one removes the links to it."""
    return {name: _redirected(value, traces.rstrip("/")) for name, value in dashboard.items()}


def _redirected(value: Any, traces: str) -> Any:
    if isinstance(value, dict):
        return {name: _redirected(inner, traces) for name, inner in value.items()}
    if isinstance(value, list):
        kept = [item for item in value if traces or not _is_link(item)]
        return [
            {**item, "url": traces + item["url"][len(JAEGER_URL) :]} if _is_link(item) else _redirected(item, traces)
            for item in kept
        ]
    return value


def _is_link(value: Any) -> bool:
    return isinstance(value, dict) and str(value.get("url", "")).startswith(f"{JAEGER_URL}/search?")
