"""Metrics about the daemon's own process, from prometheus-client's process, platform and GC collectors.

They are read when the endpoint is rendered: /proc/self never blocks, and what is not scraped costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

_renderers: dict[bool, Callable[[], bytes]] = {}  # by format (True: OpenMetrics), once loaded


def load() -> None:
    """Import prometheus_client and build the registry.

    It takes some 50 ms, so that the first response is not to wait for it; until then the families are absent.
    """
    if _renderers:
        return
    from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector  # noqa: PLC0415
    from prometheus_client.exposition import generate_latest  # noqa: PLC0415
    from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics  # noqa: PLC0415

    registry = CollectorRegistry()
    for collector in (ProcessCollector, PlatformCollector, GCCollector):
        collector(registry=registry)
    _renderers[True] = partial(generate_openmetrics, registry)
    _renderers[False] = partial(generate_latest, registry)


def exposition(openmetrics: bool) -> str:  # noqa: FBT001 - the renderer hands over its format
    """Return the families as text 0.0.4, or as OpenMetrics without its end mark; "" before ``load``."""
    render = _renderers.get(openmetrics)
    return "" if render is None else render().decode().removesuffix("# EOF\n")
