"""What the configuration says of a place that is asked over HTTP, as the endpoint takes it."""

from __future__ import annotations

from exporter.config.settings import EngineSettings, GatewaySettings, HttpSdSettings
from exporter.http.client.client import Target

METRICS, JSON = "text/plain;version=0.0.4", "application/json"


def target(
    place: EngineSettings | GatewaySettings | HttpSdSettings, timeout: float, *, accept: str = METRICS
) -> Target:
    """Give where to ask and as whom; ``timeout`` in seconds."""
    basic, tls = place.basic_auth, place.tls
    return Target(
        url=place.url,
        timeout=timeout,
        bearer_token_file=place.bearer_token_file,
        username=basic.username if basic else None,
        password_file=basic.password_file if basic else None,
        ca_file=tls.ca_file,
        cert_file=tls.cert_file,
        key_file=tls.key_file,
        server_name=tls.server_name,
        insecure_skip_verify=tls.insecure_skip_verify,
        accept=accept,
    )
