"""Detect which gateway a page belongs to."""

from __future__ import annotations

from exporter.gateways.gateway import Gateway
from exporter.gateways.tables import GATEWAYS


def recognise(body: bytes) -> Gateway | None:
    """Return the gateway whose page this is, None when no known kind matches."""
    return next((gateway for gateway in GATEWAYS if gateway.matches(gateway.to_exposition(body))), None)
