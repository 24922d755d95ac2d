"""Where engines are looked for that the configuration does not name: the records of ``discovery``."""

from __future__ import annotations

from dataclasses import dataclass, field

from exporter.config import fields, parsers
from exporter.config.endpoint import ENDPOINT_URL, BasicAuth, TlsSettings, finish_credentials, finish_tls
from exporter.config.schema import Listed, Section, SectionResult, key

MAX_PATTERNS = 16
MAX_LISTS = 8  # that are asked for over HTTP, one after the other
RAY_FILE = "/tmp/ray/prom_metrics_service_discovery.json"  # noqa: S108 - it is Ray that chose the place


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesSettings:
    """How this node's pods are asked for; what is None is taken from the pod's environment and service account."""

    enabled: bool = field(default=False, metadata=key(fields.boolean()))
    url: str | None = field(
        default=None, repr=False, metadata=key(fields.written_as("an https:// URL", parsers.pod_list))
    )
    node_name: str | None = field(default=None, metadata=key(fields.text("a node's name")))
    interval: float = field(default=15.0, metadata=key(fields.duration(1, 600)))
    bearer_token_file: str | None = field(default=None, metadata=key(fields.file(secret=True)))
    tls: TlsSettings = field(default_factory=TlsSettings, metadata=key(Section(TlsSettings, finish_tls)))


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpSdSettings:
    """A list of engines that a server gives in Prometheus' http_sd format, and as whom it is asked for."""

    url: str = field(repr=False, metadata=key(ENDPOINT_URL))
    bearer_token_file: str | None = field(default=None, metadata=key(fields.file(secret=True)))
    basic_auth: BasicAuth | None = field(default=None, metadata=key(Section(BasicAuth)))
    tls: TlsSettings = field(default_factory=TlsSettings, metadata=key(Section(TlsSettings, finish_tls)))


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscoverySettings:
    """Where engines are looked for; processes are not when engines are configured, unless it is said by name.

    ``ray_url``: the dashboard that is asked instead of ``ray_file``.
    """

    processes: bool = field(default=True, metadata=key(fields.boolean()))
    ray: bool = field(default=False, metadata=key(fields.boolean()))
    ray_file: str = field(default=RAY_FILE, metadata=key(fields.path("the name of a file")))
    ray_url: str | None = field(
        default=None,
        repr=False,
        metadata=key(fields.written_as("the URL of Ray's dashboard, such as http://head:8265", parsers.ray_list)),
    )
    ray_bearer_token_file: str | None = field(default=None, metadata=key(fields.file(secret=True)))
    file_sd: tuple[str, ...] = field(
        default=(),
        metadata=key(
            Listed(
                item=fields.path("the name of a file", parsers.target_files),
                what="file names",
                most=MAX_PATTERNS,
                distinct={"": str},
            )
        ),
    )
    http_sd: tuple[HttpSdSettings, ...] = field(
        default=(),
        metadata=key(
            Listed(
                item=Section(HttpSdSettings, finish_credentials),
                what="lists",
                most=MAX_LISTS,
                distinct={"url": lambda one: parsers.identity(one.url)},
            )
        ),
    )
    kubernetes: KubernetesSettings = field(
        default_factory=KubernetesSettings, metadata=key(Section(KubernetesSettings))
    )


def finish_discovery(found: SectionResult) -> None:
    """Look for Ray where it is said where; refuse a token that nobody is asked with."""
    if (found.given("ray_file") or found.given("ray_url")) and not found.given("ray"):
        found.values["ray"] = True
    if found.given("ray_bearer_token_file") and not found.given("ray_url"):
        found.refuse("ray_bearer_token_file", "is for ray_url, which is not given; take it out, or give the URL")
