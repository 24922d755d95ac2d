"""Gateways: a new one is one file here, and one word in ``GATEWAYS``; everything that lists gateways follows."""

from __future__ import annotations

from exporter.gateways.gateway import Gateway
from exporter.gateways.tables.envoy import ENVOY
from exporter.gateways.tables.haproxy import HAPROXY
from exporter.gateways.tables.inference_extension import INFERENCE_EXTENSION
from exporter.gateways.tables.litellm import LITELLM
from exporter.gateways.tables.nginx import NGINX
from exporter.gateways.tables.production_stack import PRODUCTION_STACK
from exporter.gateways.tables.rust_routers import SGLANG_ROUTER, VLLM_ROUTER

GATEWAYS: tuple[Gateway, ...] = (
    HAPROXY,
    NGINX,
    ENVOY,
    PRODUCTION_STACK,
    VLLM_ROUTER,
    SGLANG_ROUTER,
    INFERENCE_EXTENSION,
    LITELLM,
)


def by_kind(kind: str) -> Gateway | None:
    """Return the gateway of that kind, None when there is none."""
    return next((gateway for gateway in GATEWAYS if gateway.kind == kind), None)
