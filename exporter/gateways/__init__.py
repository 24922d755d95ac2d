"""Gateways: a new kind is one file with a field table, one word in ``GATEWAYS`` and one in the settings."""

from __future__ import annotations

from exporter.gateways.base import Gateway
from exporter.gateways.envoy import ENVOY
from exporter.gateways.haproxy import HAPROXY
from exporter.gateways.inference_extension import INFERENCE_EXTENSION
from exporter.gateways.nginx import NGINX
from exporter.gateways.production_stack import PRODUCTION_STACK
from exporter.gateways.rust_routers import SGLANG_ROUTER, VLLM_ROUTER

GATEWAYS: tuple[Gateway, ...] = (
    HAPROXY,
    NGINX,
    ENVOY,
    PRODUCTION_STACK,
    VLLM_ROUTER,
    SGLANG_ROUTER,
    INFERENCE_EXTENSION,
)


def by_kind(kind: str) -> Gateway | None:
    """Give the gateway of that kind, None when there is none."""
    return next((gateway for gateway in GATEWAYS if gateway.kind == kind), None)


def recognise(body: bytes) -> Gateway | None:
    """Name the gateway whose page this is, None when it is of no kind that is known."""
    return next((gateway for gateway in GATEWAYS if gateway.marked(gateway.text(body))), None)
