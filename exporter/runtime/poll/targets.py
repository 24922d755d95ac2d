"""HTTP targets as the configuration declares them."""

from __future__ import annotations

from contextlib import closing
from urllib.parse import urlsplit

from exporter.config.settings import HttpSdSettings, PushSettings
from exporter.config.targets import TargetSettings
from exporter.engines.tables import METRICS_PATHS
from exporter.http.client.client import FetchResult, HttpClient, Limits, Target

METRICS, JSON = "text/plain;version=0.0.4", "application/json"

_SIDE_LIMITS = Limits(wire_bytes=512 << 10, body_bytes=512 << 10)  # some engines tell their whole configuration


class EngineClient:
    """Fetches the metrics of a target on a kept connection, and any other path on one of its own."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._metrics = HttpClient(target)
        self._prefix = path_prefix(target.url)

    def fetch(self, path: str | None = None) -> FetchResult:
        """Return the answer of the metrics URL, or of ``path`` of the same server.  Raises EndpointError.

        An exchange with another path makes no poll wait.  It goes without requests, whose 5 MiB (of a node's
        50) are much for one answer in ten minutes.
        """
        if path is None:
            return self._metrics.fetch()
        with closing(HttpClient(self._target, _SIDE_LIMITS)) as client:
            return client.fetch(self._prefix + path)

    def close(self) -> None:
        """Close the kept connection, also under an exchange in another thread."""
        self._metrics.close()


def path_prefix(metrics_url: str) -> str:
    """Return what stands before an engine's own paths where a proxy serves several on one host, "" at the root.

    A path that no engine has for its metrics is taken for a renamed one: its directory is the prefix.
    """
    path = urlsplit(metrics_url).path.rstrip("/")
    own = next((own for own in METRICS_PATHS if path.endswith(own)), None)
    return path.removesuffix(own) if own is not None else path.rpartition("/")[0]


def target(
    settings: TargetSettings | HttpSdSettings | PushSettings, timeout: float, *, accept: str = METRICS
) -> Target:
    """Return the target of an engine, gateway, store, list or receiver; ``timeout`` in seconds."""
    basic, tls = settings.basic_auth, settings.tls
    return Target(
        url=settings.url,
        timeout=timeout,
        bearer_token_file=settings.bearer_token_file,
        username=basic.username if basic else None,
        password_file=basic.password_file if basic else None,
        ca_file=tls.ca_file,
        cert_file=tls.cert_file,
        key_file=tls.key_file,
        server_name=tls.server_name,
        insecure_skip_verify=tls.insecure_skip_verify,
        accept=accept,
    )
