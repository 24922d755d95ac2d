"""What is polled over HTTP: the records of ``engines``, ``gateways``, ``stores`` and ``gpu.pages``."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping

from exporter.config import fields, parsers
from exporter.config.endpoint import BASIC_AUTH, ENDPOINT_URL, TLS, BasicAuth, TlsSettings, finish_credentials
from exporter.config.reader import INVALID, ListOf
from exporter.config.section import Record, SectionResult, key, section
from exporter.engines.tables import ENGINES
from exporter.gateways.tables import GATEWAYS
from exporter.gpu_pages.tables import GPU_EXPORTERS
from exporter.stores.tables import STORES

ENGINE_KINDS = tuple(engine.kind for engine in ENGINES)
GATEWAY_KINDS = tuple(gateway.kind for gateway in GATEWAYS)
STORE_KINDS = tuple(store.kind for store in STORES)
GPU_EXPORTER_KINDS = tuple(exporter.kind for exporter in GPU_EXPORTERS)
MAX_TARGETS = 256  # of each kind; one node never has as many, a generated file gone wrong may

_DEFAULT_INTERVAL = 5.0
_DEFAULT_TIMEOUT = 2.0
_MAX_OVERRUN = 5.0  # seconds of the timeout beyond the interval, after which a poll counts as hung
_DEFAULT_NAME = "HOST:PORT of url"


class TargetSettings(Record):
    """A metrics endpoint and how it is polled."""

    url: str = key(
        ENDPOINT_URL,
        "Metrics endpoint. The path is /metrics unless another is written.",
        shown=False,
        example="http://127.0.0.1:8000/metrics",
        aliases=("target", "address", "endpoint"),
    )
    name: str = ""
    kind: str = "auto"
    interval: float = key(
        fields.duration(0.2, 600), "How often it is polled.", default=_DEFAULT_INTERVAL, aliases=("scrape_interval",)
    )
    timeout: float = key(
        fields.duration(0, 600),
        "How long one whole poll may take; at most 5s longer than interval. A poll that takes longer than interval "
        "delays the next one: there is never more than one at a time.",
        default=_DEFAULT_TIMEOUT,
        example="2s",
        aliases=("scrape_timeout", "deadline"),
    )
    bearer_token_file: str | None = key(
        fields.file(secret=True),
        "File that holds a bearer token; read again when it changes.",
        default=None,
        example="/etc/shardwatch/token",
    )
    basic_auth: BasicAuth | None = key(
        BASIC_AUTH, "Basic authentication. Not beside bearer_token_file.", default=None
    )
    tls: TlsSettings = key(TLS, "TLS, for https:// URLs.", default=TlsSettings())

    @property
    def shown_url(self) -> str:
        """The URL without its query, which may be logged and exposed."""
        return parsers.without_query(self.url)


class EngineSettings(TargetSettings):
    """One replica; ``gpus`` None: found from the engine's processes.

    ``image``: of its container, exposed as a fact; "" if it is not known.
    """

    name: str = key(
        fields.text("a name"), "The label replica of its series.", default_text=_DEFAULT_NAME, example="chat-a"
    )
    kind: str = key(
        fields.choice("auto", *ENGINE_KINDS),
        "Engine. With auto it is recognised from its metrics.",
        default="auto",
        aliases=("type", "engine"),
    )
    gpus: tuple[int | str, ...] | None = key(
        ListOf(
            item=fields.gpu(),
            what="GPUs",
            min_items=1,
            distinct={"": lambda gpu: gpu.lower() if isinstance(gpu, str) else gpu},
        ),
        "GPUs that the replica runs on, by index or UUID.",
        default=None,
        default_text="found from the engine's processes",
        example="[0, 1, 2, 3]",
        aliases=("cards", "devices"),
    )
    image: str = key(
        fields.written_as("the name of a container image", parsers.image),
        "Container image, exposed as llm_image_info.",
        default="",
        default_text="what discovery knows",
        example="vllm/vllm-openai:v0.11.0",
    )


class GatewaySettings(TargetSettings):
    """One gateway."""

    name: str = key(
        fields.text("a name"), "The label gateway of its series.", default_text=_DEFAULT_NAME, example="edge"
    )
    kind: str = key(
        fields.choice("auto", *GATEWAY_KINDS),
        "Gateway. With auto it is recognised from its metrics.",
        default="auto",
        aliases=("type", "gateway"),
    )


class StoreSettings(TargetSettings):
    """One KV-cache store."""

    name: str = key(
        fields.text("a name"), "The label store of its series.", default_text=_DEFAULT_NAME, example="pool"
    )
    kind: str = key(
        fields.choice("auto", *STORE_KINDS),
        "Store. With auto it is recognised from its metrics.",
        default="auto",
        aliases=("type", "store"),
    )


class GpuPageSettings(TargetSettings):
    """Another exporter that reads GPUs."""

    name: str = key(
        fields.text("a name"),
        "Its name in logs and in the label source, as gpu_page:NAME.",
        default_text=_DEFAULT_NAME,
        example="dcgm",
    )
    kind: str = key(
        fields.choice("auto", *GPU_EXPORTER_KINDS),
        "Exporter. With auto it is recognised from its metrics.",
        default="auto",
        aliases=("type", "exporter", "vendor"),
    )


def _finish(found: SectionResult) -> None:
    """Set the default of the name, which depends on the URL, and hold the timeout against the interval."""
    url = found.known("url")
    if "name" not in found.values:  # without a URL, or with an invalid name, the mistake is reported already
        found.values["name"] = parsers.host_port(url) if url and not found.is_invalid("name") else INVALID
    interval, timeout = found.known("interval", _DEFAULT_INTERVAL), found.known("timeout")
    if interval is not None and timeout is not None and timeout > interval + _MAX_OVERRUN:
        longest = parsers.format_duration(interval + _MAX_OVERRUN)
        message = (
            f"{parsers.format_duration(timeout)} is too long for an interval of {parsers.format_duration(interval)}"
        )
        found.refuse("timeout", f"{message}; at most {longest}")
    finish_credentials(found)


# Two replicas of one name would share their series; two of one URL would be counted twice.
_DISTINCT: Mapping[str, Callable[[TargetSettings], Hashable]] = {
    "url": lambda target: parsers.identity(target.url),
    "name": lambda target: target.name,
}


def targets(cls: type[TargetSettings], what: str) -> ListOf:
    """Return the reader of a list of targets of which no two have the same URL or name."""
    return ListOf(item=section(cls, _finish), what=what, max_items=MAX_TARGETS, distinct=_DISTINCT)
