"""The configuration as frozen records, read whole or refused whole with every problem at once.

Each record is the only list of its keys: names, defaults, bounds and environment variables all follow from the fields
here.  Times are in seconds.  Secrets are never held, only the names of the files they stand in; URLs are left out of
``repr`` because a query may carry what it should not.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace

from exporter.config import fields, parsers
from exporter.config.discovery import DiscoverySettings, HttpSdSettings, KubernetesSettings, finish_discovery
from exporter.config.document import Node, read_document
from exporter.config.endpoint import ENDPOINT_URL, BasicAuth, TlsSettings, finish_credentials, finish_tls
from exporter.config.environment import overrides
from exporter.config.files import read_text
from exporter.config.parsers import Address, Invalid
from exporter.config.schema import INVALID, Item, Listed, Report, Scalar, Section, SectionResult, Table, key
from exporter.errors import Problem, SettingsError
from exporter.model import EMPTY

__all__ = [
    "Address",
    "BasicAuth",
    "CostSettings",
    "DiscoverySettings",
    "EngineSettings",
    "GatewaySettings",
    "GpuSettings",
    "HttpSdSettings",
    "KernelLogSettings",
    "KubernetesSettings",
    "LogSettings",
    "Settings",
    "TlsSettings",
    "Window",
    "default",
    "load",
    "parse",
    "parse_listen",
]

ENGINE_KINDS = ("vllm", "tgi", "sglang", "ray_serve", "tensorrt_llm", "triton", "dynamo")
GATEWAY_KINDS = (
    "haproxy",
    "nginx",
    "envoy",
    "production_stack",
    "vllm_router",
    "sglang_router",
    "inference_extension",
)
LOG_LEVELS = ("debug", "info", "warning", "error")
MAX_ENDPOINTS = 256  # of each kind; one node never has as many, a generated file gone wrong may
MAX_WINDOWS = 4
MAX_QUANTILES = 8

_DEFAULT_INTERVAL = 5.0
_MAX_TIMEOUT = 2.0
_TIMEOUT_SHARE = 0.8  # of the interval: the rest is for reading the page and for a late start

_WINDOW_SECONDS = fields.duration(10, 3600).convert


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A length of time that figures are computed over; ``label`` is the canonical spelling (``60s`` → ``1m``)."""

    label: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSettings:
    """How cards are read; ``deadline`` is what one exchange with the driver's worker may take."""

    enabled: bool = field(default=True, metadata=key(fields.boolean()))
    interval: float = field(default=1.0, metadata=key(fields.duration(0.1, 60)))
    deadline: float = field(default=2.0, metadata=key(fields.duration(0, 60)))


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelLogSettings:
    """Where errors of cards are looked for beside the driver's events; ``path`` None: wherever it can be read."""

    enabled: bool = field(default=True, metadata=key(fields.boolean()))
    path: str | None = field(default=None, metadata=key(fields.path("the name of a file")))


def _finish_endpoint(found: SectionResult) -> None:
    """Default the name and the timeout, which depend on the URL and the interval."""
    url = found.known("url")
    if "name" not in found.values:  # without a URL, or with a wrong name, the mistake is reported already
        found.values["name"] = parsers.host_port(url) if url and not found.refused("name") else INVALID
    interval, timeout = found.known("interval", _DEFAULT_INTERVAL), found.known("timeout")
    if interval is None:
        return
    if timeout is None:
        found.values.setdefault("timeout", min(_MAX_TIMEOUT, _TIMEOUT_SHARE * interval))
    elif timeout > interval:
        message = f"{parsers.format_duration(timeout)} is above the interval of {parsers.format_duration(interval)}"
        found.refuse("timeout", f"{message}; a poll must end before the next begins")


def _finish_exchange(found: SectionResult) -> None:
    _finish_endpoint(found)
    finish_credentials(found)


# Two replicas of one name would be one set of series; two of one page would count everything twice.
_DISTINCT: Mapping[str, Callable[[EngineSettings | GatewaySettings], Hashable]] = {
    "url": lambda endpoint: parsers.identity(endpoint.url),
    "name": lambda endpoint: endpoint.name,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """One replica's metrics page and how to read it; ``gpus`` None means: found from the engine's processes.

    ``image``: of its container, shown as a fact; "" where nobody says it.
    """

    name: str = field(metadata=key(fields.text("a name")))
    kind: str = field(default="auto", metadata=key(fields.choice("auto", *ENGINE_KINDS)))
    url: str = field(repr=False, metadata=key(ENDPOINT_URL))
    interval: float = field(default=_DEFAULT_INTERVAL, metadata=key(fields.duration(0.2, 600)))
    timeout: float = field(default=_MAX_TIMEOUT, metadata=key(fields.duration(0, 600)))
    gpus: tuple[int | str, ...] | None = field(
        default=None,
        metadata=key(
            Listed(
                item=fields.card(),
                what="cards",
                least=1,
                distinct={"": lambda card: card.lower() if isinstance(card, str) else card},
            )
        ),
    )
    image: str = field(default="", metadata=key(fields.written_as("the name of a container image", parsers.image)))
    bearer_token_file: str | None = field(default=None, metadata=key(fields.file(secret=True)))
    basic_auth: BasicAuth | None = field(default=None, metadata=key(Section(BasicAuth)))
    tls: TlsSettings = field(default_factory=TlsSettings, metadata=key(Section(TlsSettings, finish_tls)))

    @property
    def shown_url(self) -> str:
        """The URL without its query: fit for logs and pages."""
        return parsers.without_query(self.url)


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings:
    """One gateway's metrics page and how to read it."""

    name: str = field(metadata=key(fields.text("a name")))
    kind: str = field(default="auto", metadata=key(fields.choice("auto", *GATEWAY_KINDS)))
    url: str = field(repr=False, metadata=key(ENDPOINT_URL))
    interval: float = field(default=_DEFAULT_INTERVAL, metadata=key(fields.duration(0.2, 600)))
    timeout: float = field(default=_MAX_TIMEOUT, metadata=key(fields.duration(0, 600)))
    bearer_token_file: str | None = field(default=None, metadata=key(fields.file(secret=True)))
    basic_auth: BasicAuth | None = field(default=None, metadata=key(Section(BasicAuth)))
    tls: TlsSettings = field(default_factory=TlsSettings, metadata=key(Section(TlsSettings, finish_tls)))

    @property
    def shown_url(self) -> str:
        """The URL without its query: fit for logs and pages."""
        return parsers.without_query(self.url)


# Words as makers form them (NVIDIA H100 80GB HBM3, A100-SXM4-80GB): no token and no hash is spelt so.
_CARD_NAME = re.compile(
    r"(?=.{1,64}$)[A-Za-z]{1,10}[0-9]{0,5}[A-Za-z]{0,4}([ -]([A-Za-z]{1,10}|[A-Za-z]{0,4}[0-9]{1,4}[A-Za-z]{0,4}))*"
)


def _card_name(name: str) -> None:
    if not name or len(name) > fields.MAX_TEXT or not name.isprintable():
        raise Invalid("expected a card's name as the driver gives it, such as NVIDIA H100 80GB HBM3")


def _currency(text: str) -> str:
    if re.fullmatch(r"[A-Z]{3}", text):
        return text
    raise Invalid("expected the three capital letters of a currency, such as USD")


def _finish_costs(found: SectionResult) -> None:
    if found.known("gpu_hour") and not found.given("currency"):
        found.refuse("gpu_hour", "has prices without a currency; give costs.currency, such as USD")


@dataclass(frozen=True, slots=True, kw_only=True)
class CostSettings:
    """What a card costs: name as the driver gives it → price of one hour in ``currency``."""

    currency: str | None = field(
        default=None, metadata=key(fields.written_as("the three capital letters of a currency", _currency))
    )
    gpu_hour: Mapping[str, float] = field(
        default_factory=lambda: EMPTY,
        metadata=key(
            Table(
                name=_card_name,
                value=fields.number(lambda price: 0 <= price <= 1e6, "a price from 0 to 1000000"),
                what="a mapping of card names to prices",
                harmless=_CARD_NAME,
            )
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """What is logged, and how a line looks."""

    level: str = field(default="info", metadata=key(fields.choice(*LOG_LEVELS)))
    format: str = field(default="logfmt", metadata=key(fields.choice("logfmt", "json")))


def _window(item: Item) -> Window:
    seconds = _WINDOW_SECONDS(item)
    return Window(label=parsers.format_duration(seconds), seconds=seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything the daemon is told.  ``windows`` and ``quantiles`` ascend; ``series`` is "common" or "full"."""

    listen: Address = field(
        default=Address(host="0.0.0.0", port=9853),
        metadata=key(fields.written_as("HOST:PORT", parsers.address)),
    )
    gpu: GpuSettings = field(default_factory=GpuSettings, metadata=key(Section(GpuSettings)))
    kernel_log: KernelLogSettings = field(default_factory=KernelLogSettings, metadata=key(Section(KernelLogSettings)))
    engines: tuple[EngineSettings, ...] = field(
        default=(),
        metadata=key(
            Listed(
                item=Section(EngineSettings, _finish_exchange), what="engines", most=MAX_ENDPOINTS, distinct=_DISTINCT
            )
        ),
    )
    discovery: DiscoverySettings = field(
        default_factory=DiscoverySettings, metadata=key(Section(DiscoverySettings, finish_discovery))
    )
    gateways: tuple[GatewaySettings, ...] = field(
        default=(),
        metadata=key(
            Listed(
                item=Section(GatewaySettings, _finish_exchange),
                what="gateways",
                most=MAX_ENDPOINTS,
                distinct=_DISTINCT,
            )
        ),
    )
    windows: tuple[Window, ...] = field(
        default=(Window(label="1m", seconds=60.0), Window(label="5m", seconds=300.0)),
        metadata=key(
            Listed(
                item=Scalar(_window),
                what="durations",
                least=1,
                most=MAX_WINDOWS,
                distinct={"": lambda window: window.seconds},
                rank=lambda window: window.seconds,
            )
        ),
    )
    quantiles: tuple[float, ...] = field(
        default=(0.5, 0.95, 0.99, 0.999),
        metadata=key(
            Listed(
                item=fields.number(lambda q: 0 < q < 1, "a number above 0 and below 1, such as 0.99"),
                what="quantiles",
                least=1,
                most=MAX_QUANTILES,
                distinct={"": float},
                rank=float,
            )
        ),
    )
    costs: CostSettings = field(default_factory=CostSettings, metadata=key(Section(CostSettings, _finish_costs)))
    series: str = field(default="common", metadata=key(fields.choice("common", "full")))
    reload_endpoint: bool = field(default=False, metadata=key(fields.boolean()))
    web_config_file: str | None = field(
        default=None,
        metadata=key(
            fields.unsupported("it serves plain HTTP; take the key out, and put a proxy that speaks TLS in front")
        ),
    )
    log: LogSettings = field(default_factory=LogSettings, metadata=key(Section(LogSettings)))


def _finish_settings(found: SectionResult) -> None:
    if found.given("engines") and not found.given("discovery.processes"):
        found.values["discovery"] = replace(found.values.get("discovery", DiscoverySettings()), processes=False)


def load(path: str, environ: Mapping[str, str]) -> Settings:
    """Read a configuration file, overridden by the environment.

    Relative file names in it start from its folder.  Raises SettingsError with every problem.
    """
    try:
        text = read_text(path)
    except Invalid as refused:
        return _read(Item(path="", node=Node(value={})), [Problem("", str(refused))], path or "''", environ)
    return parse(text, path, environ, base=os.path.dirname(os.path.abspath(path)))


def parse(text: str, origin: str, environ: Mapping[str, str], *, base: str = "") -> Settings:
    """Read a configuration text; ``origin`` names it in messages, ``base`` is where relative file names start."""
    root, problems = read_document(text)
    return _read(Item(path="", node=root, base=base), problems, origin, environ)


def default(environ: Mapping[str, str]) -> Settings:
    """Give the settings of a daemon without a file: defaults, overridden by the environment."""
    return _read(Item(path="", node=Node(value={})), [], "environment", environ)


def parse_listen(text: str, origin: str = "--listen") -> Address:
    """Read a listening address given outside the configuration; raises SettingsError."""
    try:
        return parsers.address(text)
    except Invalid as refused:
        raise SettingsError([Problem("", str(refused))], origin) from None


def _read(item: Item, problems: list[Problem], origin: str, environ: Mapping[str, str]) -> Settings:
    report = Report(problems=list(problems))
    report.environment = overrides(Settings, environ, report)
    settings = Section(Settings, _finish_settings).read(item, report)
    if report.problems or not isinstance(settings, Settings):
        in_order = sorted(report.problems, key=lambda problem: (problem.path.startswith("$"), problem.line or 0))
        raise SettingsError(in_order, origin)
    return settings
