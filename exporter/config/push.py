"""Receivers that the daemon pushes to, for nodes that nobody can scrape: the records of ``push``."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping
from urllib.parse import urlsplit

from exporter.config import fields, parsers
from exporter.config.endpoint import BASIC_AUTH, TLS, BasicAuth, TlsSettings, finish_credentials
from exporter.config.parsers import Invalid
from exporter.config.reader import INVALID, Item, ListOf, Scalar, Table
from exporter.config.section import Record, SectionResult, key, section
from exporter.model import EMPTY

MAX_RECEIVERS = 4
MAX_LABELS = MAX_HEADERS = 16
_INTERVAL, _TIMEOUT = 15.0, 10.0
_LABEL = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,64}")
_HARMLESS = r"(?!(.*[0-9]){3})[A-Za-z0-9_.-]{1,32}"  # no secret that stands in the wrong place
_SECRET_HEADER = re.compile(r"auth|cookie|key|pass|secret|signature|token", re.IGNORECASE)
_OURS = {"host", "connection", "transfer-encoding", "user-agent", "accept", "accept-encoding", "expect"}
_PACKAGES = {"remote_write": ("push", ("cramjam", "google.protobuf")), "otlp": ("otlp", ("opentelemetry.proto",))}
EXAMPLE_URL = "https://prometheus.example:9090/api/v1/write"


def _receiver(text: str) -> str:
    whole = parsers.url(text)
    if urlsplit(text).path in ("", "/"):
        raise Invalid(
            "has no path; write the receiver's whole URL, such as …/api/v1/write (Prometheus, VictoriaMetrics), "
            "…/api/v1/push (Mimir), …/api/v1/receive (Thanos) or …/v1/metrics (OTLP)"
        )
    return whole


def _check_label(name: str) -> None:
    if not _LABEL.fullmatch(name) or name.startswith("__"):
        raise Invalid("expected the name of a label: letters, digits and _, not beginning with a digit or __")
    from exporter.catalog import CATALOG  # noqa: PLC0415 - most nodes are scraped

    if name == "le" or any(name in metric.all_labels for metric in CATALOG):
        raise Invalid("is a label of the series themselves, which dashboards and alerts need; choose another name")


def _check_header(name: str) -> None:
    if not _HEADER.fullmatch(name):
        raise Invalid("expected the name of an HTTP header")
    if name.lower() in _OURS or name.lower().startswith(("content-", "x-prometheus-remote-write-")):
        raise Invalid("is a header that the daemon sets itself")
    if name.lower() == "authorization":
        raise Invalid("is not set here; use bearer_token_file or basic_auth")


def _check_plain_header(name: str) -> None:
    _check_header(name)
    if _SECRET_HEADER.search(name):
        raise Invalid("looks like a secret, which is never written here; name its file under header_files")


def _header_value() -> Scalar:
    def convert(item: Item) -> str:
        value = fields.raw(item, "the value of a header")
        if not value.isascii() or not value.isprintable() or value != value.strip() or not 0 < len(value) <= 1024:
            raise Invalid("expected the value of a header: printable ASCII without spaces at its ends")
        return value

    return Scalar(convert, "text", {"type": "string", "minLength": 1, "maxLength": 1024})


class PushQueueSettings(Record):
    """What waits in memory while the receiver does not answer; whole editions, the oldest dropped first."""

    max_age: float = key(
        fields.duration(60, 86400),
        "Age beyond which what waits is dropped. Prometheus refuses samples older than an hour or so.",
        default=3600.0,
    )
    max_bytes: float = key(
        fields.number("a number of bytes from 65536 to 268435456", 65536, 268435456),
        "Size beyond which the oldest is dropped. An edition of 1,000 series has about 20 kB.",
        default=8388608.0,
    )


class PushSettings(Record):
    """One receiver.  ``labels`` has at least job and instance, or they are added when the daemon starts."""

    url: str = key(
        fields.url("the receiver's URL", _receiver),
        "Receiver's whole URL: …/api/v1/write of Prometheus and VictoriaMetrics, …/api/v1/push of Mimir, "
        "…/api/v1/receive of Thanos; for OTLP …/v1/metrics of a collector.",
        shown=False,
        example=EXAMPLE_URL,
        aliases=("endpoint", "target", "address"),
    )
    name: str = key(
        fields.text("a name"),
        "Its name in logs and in the label target; in the label source as push:NAME.",
        default_text="HOST:PORT of url",
        example="central",
    )
    protocol: str = key(
        fields.choice("remote_write", "otlp"),
        "Protocol: Prometheus' remote write (2.0, or 1.0 with receivers that do not know it; needs the extra push), "
        "or OTLP over HTTP (needs the extra otlp).",
        default="remote_write",
        aliases=("type", "format"),
    )
    interval: float = key(
        fields.duration(1, 300), "How often the series are pushed.", default=_INTERVAL, aliases=("scrape_interval",)
    )
    timeout: float = key(
        fields.duration(0, 300),
        "How long one exchange may take; at most interval.",
        default=_TIMEOUT,
        default_text="10s, or interval where that is shorter",
        aliases=("remote_timeout", "deadline"),
    )
    labels: Mapping[str, str] = key(
        Table(
            name=_check_label,
            value=fields.text("the value of a label"),
            what="a mapping of labels to values",
            harmless=_HARMLESS,
            max_items=MAX_LABELS,
        ),
        "Labels of every series, none that series have themselves. job is shardwatch and instance HOSTNAME:PORT of "
        "listen unless they are set here; OTLP calls the two service.name and service.instance.id.",
        default=EMPTY,
        aliases=("external_labels",),
        example="{job: shardwatch, instance: gpu-node-7, cluster: east}",
    )
    headers: Mapping[str, str] = key(
        Table(
            name=_check_plain_header,
            value=_header_value(),
            what="a mapping of headers to values",
            harmless=_HARMLESS,
            max_items=MAX_HEADERS,
        ),
        "Headers of every request, such as a tenant. Never secrets.",
        default=EMPTY,
        shown=False,
        example="{X-Scope-OrgID: gpu}",
    )
    header_files: Mapping[str, str] = key(
        Table(
            name=_check_header,
            value=fields.file(secret=True),
            what="a mapping of headers to file names",
            harmless=_HARMLESS,
            max_items=MAX_HEADERS,
        ),
        "Headers whose values are secrets, with the files that hold them; read for every request.",
        default=EMPTY,
        example="{X-Api-Key: /etc/shardwatch/token}",
    )
    bearer_token_file: str | None = key(
        fields.file(secret=True),
        "File that holds a bearer token; read for every request.",
        default=None,
        example="/etc/shardwatch/token",
    )
    basic_auth: BasicAuth | None = key(
        BASIC_AUTH, "Basic authentication. Not beside bearer_token_file.", default=None
    )
    tls: TlsSettings = key(TLS, "TLS, for https:// URLs.", default=TlsSettings())
    queue: PushQueueSettings = key(
        section(PushQueueSettings),
        "What waits while the receiver does not answer.",
        default=PushQueueSettings(),
        aliases=("queue_config", "buffer"),
    )


def _finish(found: SectionResult) -> None:
    url = found.known("url")
    if "name" not in found.values:
        found.values["name"] = parsers.host_port(url) if url and not found.is_invalid("name") else INVALID
    interval, timeout = found.known("interval", _INTERVAL), found.known("timeout")
    if timeout is None and not found.is_invalid("timeout") and interval is not None:
        found.values["timeout"] = min(_TIMEOUT, interval)
    elif timeout is not None and interval is not None and timeout > interval:
        found.refuse("timeout", f"is longer than interval; at most {parsers.format_duration(interval)}")
    finish_credentials(found)
    protocol = found.known("protocol", "remote_write")
    if protocol is not None:
        extra, packages = _PACKAGES[protocol]
        if not all(map(_is_installed, packages)):
            found.refuse("", f"{protocol} needs more packages: pip install 'shardwatch[{extra}]'")


def _is_installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:
        return False


PUSH = ListOf(
    item=section(PushSettings, _finish),
    what="receivers",
    max_items=MAX_RECEIVERS,
    distinct={"url": lambda receiver: parsers.identity(receiver.url)[:3], "name": lambda receiver: receiver.name},
)
