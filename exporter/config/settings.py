"""The configuration as frozen records, read whole or refused whole with every problem at once.

Each record is the only list of its keys: names, defaults, bounds, environment variables, JSON Schema and reference
are derived from its fields.  Times are in seconds.  Secrets are never stored, only the names of the files that hold
them; URLs are left out of ``repr`` because a query may carry a secret that it should not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec.structs import replace

from exporter.config import fields, loader, parsers
from exporter.config.discovery import DiscoverySettings, HttpSdSettings, KubernetesSettings, finish_discovery
from exporter.config.endpoint import BasicAuth, TlsSettings
from exporter.config.parsers import Address, Invalid
from exporter.config.push import PUSH, PushSettings
from exporter.config.reader import Item, ListOf, Scalar, Table
from exporter.config.section import Record, SectionResult, key, section
from exporter.config.targets import (
    ENGINE_KINDS,
    GATEWAY_KINDS,
    STORE_KINDS,
    EngineSettings,
    GatewaySettings,
    GpuPageSettings,
    StoreSettings,
    targets,
)
from exporter.errors import Problem, SettingsError
from exporter.model import EMPTY, Window

__all__ = [
    "ENGINE_KINDS",
    "GATEWAY_KINDS",
    "SECTION",
    "Address",
    "BasicAuth",
    "CostSettings",
    "DiscoverySettings",
    "EngineSettings",
    "GatewaySettings",
    "GpuPageSettings",
    "GpuSettings",
    "HttpSdSettings",
    "KernelLogSettings",
    "KubernetesSettings",
    "LogSettings",
    "NicSettings",
    "OwnerSettings",
    "PushSettings",
    "Settings",
    "StoreSettings",
    "TlsSettings",
    "Window",
    "default",
    "load",
    "parse",
    "parse_listen",
]

LOG_LEVELS = ("debug", "info", "warning", "error")
MAX_WINDOWS = 4
MAX_QUANTILES = 8

_WINDOW_SECONDS = fields.duration(10, 3600)


class GpuSettings(Record):
    """How GPUs are read; ``deadline`` bounds one exchange with the driver's worker process."""

    enabled: bool = key(
        fields.boolean(),
        "Read GPUs through NVML. With false the driver is never loaded: GPUs come from pages, or only engines are "
        "monitored.",
        default=True,
        default_text="true; false with pages",
        aliases=("enable",),
    )
    interval: float = key(fields.duration(0.1, 60), "How often each GPU is read.", default=1.0)
    deadline: float = key(
        fields.duration(0, 60), "How long one exchange with the driver may take.", default=2.0, aliases=("timeout",)
    )
    pages: tuple[GpuPageSettings, ...] = key(
        targets(GpuPageSettings, "GPU exporters"),
        "Other exporters on this node that GPUs are read from, in place of NVML or beside it; see "
        "docs/gpu-exporters.md. A GPU that NVML reads as well is taken from NVML.",
        default=(),
        aliases=("exporters", "exporter", "dcgm", "targets"),
    )


def _finish_gpu(found: SectionResult) -> None:
    if found.known("pages") and not found.given("enabled"):
        found.values["enabled"] = False


class KernelLogSettings(Record):
    """Where GPU errors are looked for beside the driver's events; ``path`` None: wherever one can be read."""

    enabled: bool = key(
        fields.boolean(),
        "Read the GPU errors (XID) that the driver writes to the kernel log, beside those that it reports as events.",
        default=True,
        aliases=("enable",),
    )
    path: str | None = key(
        fields.path("a file name"),
        "Kernel log: a device, a text log or a pipe.",
        default=None,
        default_text="/dev/kmsg, else /var/log/kern.log",
        example="/dev/kmsg",
    )


class NicSettings(Record):
    """Where network adapters that carry RDMA are looked for; ``sysfs`` is where the kernel's sysfs is mounted."""

    enabled: bool = key(
        fields.boolean(),
        "Read the ports of InfiniBand and RoCE adapters. A node without any is looked at once a minute.",
        default=True,
        aliases=("enable",),
    )
    sysfs: str = key(
        fields.path("a folder"),
        "Where sysfs is mounted; in a container that shows its own, the path of the host's.",
        default="/sys",
        aliases=("path", "root"),
    )


# Words as makers form them (NVIDIA H100 80GB HBM3, A100-SXM4-80GB): no token and no hash is spelt so.
# A text: compiled it would take 2 ms of every start.
_GPU_NAME = (
    r"(?=.{1,64}$)[A-Za-z]{1,10}[0-9]{0,5}[A-Za-z]{0,4}([ -]([A-Za-z]{1,10}|[A-Za-z]{0,4}[0-9]{1,4}[A-Za-z]{0,4}))*"
)

# Of words and versions, maybe behind an organisation: Qwen/Qwen3-8B, llama-3.3-70b-instruct.
_MODEL_NAME = (
    r"(?=.{1,64}$)([A-Za-z]{2,12}/)?[A-Za-z]{2,10}([0-9](\.[0-9])?)?"
    r"([-_]([A-Za-z]{1,10}|v?[0-9]{1,3}(\.[0-9]{1,2})?[bBkKmM]?))*"
)


def _check_gpu_name(name: str) -> None:
    if not name or len(name) > fields.MAX_TEXT or not name.isprintable():
        raise Invalid("expected the name of a GPU as the driver reports it, such as NVIDIA H100 80GB HBM3")


def _currency(text: str) -> str:
    if re.fullmatch(r"[A-Z]{3}", text):
        return text
    raise Invalid("expected the three capital letters of a currency, such as USD")


def _check_model_name(name: str) -> None:
    if not name or len(name) > fields.MAX_TEXT or not name.isprintable():
        raise Invalid("expected the name of a model as its engine reports it, such as llama-3.3-70b-instruct")


def _finish_model_price(found: SectionResult) -> None:
    if not found.given("input") and not found.given("output"):
        found.refuse("", "has neither input nor output; expected a price of a million tokens for at least one")


class ModelPrice(Record):
    """What a million tokens of a model are sold for."""

    input: float = key(
        fields.number("a price from 0 to 1000000", 0, 1e6),
        "Price of a million prompt tokens.",
        default=0.0,
        aliases=("prompt",),
    )
    output: float = key(
        fields.number("a price from 0 to 1000000", 0, 1e6),
        "Price of a million generated tokens.",
        default=0.0,
        aliases=("generated", "completion"),
    )


def _finish_costs(found: SectionResult) -> None:
    for name in ("gpu_hour", "models"):
        if found.known(name) and not found.given("currency"):
            found.refuse(name, "has prices without a currency; set costs.currency, such as USD")


class CostSettings(Record):
    """What a GPU costs and what tokens are sold for, in ``currency``."""

    currency: str | None = key(
        fields.written_as(
            "the three capital letters of a currency",
            _currency,
            "three capital letters",
            {"type": "string", "pattern": "^[A-Z]{3}$"},
        ),
        "Currency of the prices; required beside gpu_hour and models.",
        default=None,
        example="USD",
    )
    gpu_hour: Mapping[str, float] = key(
        Table(
            name=_check_gpu_name,
            value=fields.number("a price from 0 to 1000000", 0, 1e6),
            what="a mapping of GPU names to prices",
            harmless=_GPU_NAME,
        ),
        "Price of one hour by the GPU's name as the driver reports it.",
        default=EMPTY,
        example="{NVIDIA H100 80GB HBM3: 2.50, NVIDIA L40S: 0.80}",
    )
    models: Mapping[str, ModelPrice] = key(
        Table(
            name=_check_model_name,
            value=section(ModelPrice, _finish_model_price),
            what="a mapping of model names to prices",
            harmless=_MODEL_NAME,
        ),
        "What a million tokens are sold for, by the name of the model in the label model.",
        default=EMPTY,
        aliases=("model",),
        example="{llama-3.3-70b-instruct: {input: 0.10, output: 0.40}}",
    )


class OwnerSettings(Record):
    """Whether the owners of GPUs are exposed, and where."""

    enabled: bool = key(
        fields.boolean(),
        "Expose whose processes are on each GPU: pod, Slurm job, container, systemd unit, user.",
        default=True,
        aliases=("enable",),
    )
    dcgm_labels: bool = key(
        fields.boolean(),
        "Add the labels pod, namespace and container to the metrics of /metrics/dcgm.",
        default=False,
        aliases=("kubernetes",),
    )


class LogSettings(Record):
    """What is logged, and how a line is formatted."""

    level: str = key(fields.choice(*LOG_LEVELS), "Least severity of the lines that are logged.", default="info")
    format: str = key(fields.choice("logfmt", "json"), "Format of a line on standard error.", default="logfmt")


def _window(item: Item) -> Window:
    seconds = _WINDOW_SECONDS.convert(item)
    return Window(label=parsers.format_duration(seconds), seconds=seconds)


_ADDRESS = fields.written_as(
    "HOST:PORT",
    parsers.address,
    "HOST:PORT",
    {"type": "string", "pattern": r"^(\[[^\[\]]*\]|[^:\[\]]+):[0-9]{1,5}$"},
)


class Settings(Record):
    """The whole configuration.  ``windows`` and ``quantiles`` ascend; ``series`` is "common" or "full"."""

    listen: Address = key(
        _ADDRESS,
        'Address to serve on. "[::]:9853" (quoted) for IPv6; port 0 for any free port.',
        default=Address(host="0.0.0.0", port=9853),
        aliases=("address", "host", "port", "bind", "web"),
    )
    agent_check: Address | None = key(
        _ADDRESS,
        "Address for HAProxy's agent-check, which drains and ejects replicas by verdict; see docs/diagnosis.md.",
        default=None,
        default_text="off",
        example="127.0.0.1:9854",
    )
    gpu: GpuSettings = key(
        section(GpuSettings, _finish_gpu),
        "GPU telemetry.",
        default=GpuSettings(),
        aliases=("cards", "nvml", "driver", "devices"),
    )
    kernel_log: KernelLogSettings = key(
        section(KernelLogSettings),
        "GPU errors in the kernel log.",
        default=KernelLogSettings(),
        aliases=("kmsg", "dmesg"),
    )
    owners: OwnerSettings = key(
        section(OwnerSettings), "Owners of GPUs; see docs/metrics.md.", default=OwnerSettings(), aliases=("owner",)
    )
    engines: tuple[EngineSettings, ...] = key(
        targets(EngineSettings, "engines"),
        "Engine replicas of this node.",
        default=(),
        default_text="none; found by discovery",
        aliases=("replicas", "targets", "scrape_configs", "servers", *ENGINE_KINDS),
    )
    discovery: DiscoverySettings = key(
        section(DiscoverySettings, finish_discovery),
        "Where engines are found that are not listed under engines.",
        default=DiscoverySettings(),
    )
    gateways: tuple[GatewaySettings, ...] = key(
        targets(GatewaySettings, "gateways"),
        "Gateways (load balancers, routers) before the engines.",
        default=(),
        aliases=("routers", "load_balancers", "proxies", *GATEWAY_KINDS),
    )
    stores: tuple[StoreSettings, ...] = key(
        targets(StoreSettings, "stores"),
        "KV-cache stores beside the engines.",
        default=(),
        aliases=("kv_stores", "caches", *STORE_KINDS),
    )
    nics: NicSettings = key(
        section(NicSettings),
        "Network adapters that carry RDMA.",
        default=NicSettings(),
        aliases=("adapters", "infiniband", "roce", "rdma", "network"),
    )
    windows: tuple[Window, ...] = key(
        ListOf(
            item=Scalar(
                _window,
                "durations, 10s to 1h",
                {"type": "string", "pattern": parsers.DURATION_PATTERN},
                lambda window: window.label,
            ),
            what="durations",
            min_items=1,
            max_items=MAX_WINDOWS,
            distinct={"": lambda window: window.seconds},
            order=lambda window: window.seconds,
        ),
        "Sliding windows that rates, latencies and hit rates are computed over, each 10s to 1h. The shipped "
        "alerts and dashboards read 1m and 5m.",
        default=(Window(label="1m", seconds=60.0), Window(label="5m", seconds=300.0)),
    )
    quantiles: tuple[float, ...] = key(
        ListOf(
            item=fields.number("a number above 0 and below 1, such as 0.99", 0, 1, inclusive=False),
            what="quantiles",
            min_items=1,
            max_items=MAX_QUANTILES,
            distinct={"": float},
            order=float,
        ),
        "Quantiles of latencies, each above 0 and below 1.",
        default=(0.5, 0.95, 0.99, 0.999),
        aliases=("percentiles",),
    )
    costs: CostSettings = key(
        section(CostSettings, _finish_costs),
        "Prices of GPUs, from which the cost of tokens and of idle time is computed, and what tokens are sold for.",
        default=CostSettings(),
        default_text="none, and no cost is exposed",
        aliases=("prices", "pricing", "price", "cost", "gpu_hour"),
    )
    series: str = key(
        fields.choice("common", "full"),
        "How many series are exposed; the metrics reference says which belong to full only.",
        default="common",
        aliases=("metrics",),
    )
    push: tuple[PushSettings, ...] = key(
        PUSH,
        "Receivers that the series of the endpoint are pushed to, for nodes that nobody can scrape; see "
        "docs/deployment.md.",
        default=(),
        default_text="none; nothing is pushed",
        aliases=("remote_write", "otlp", "remote", "pushgateway", "receivers"),
    )
    reload_endpoint: bool = key(
        fields.boolean(), "Serve POST /-/reload, which reads this file again as SIGHUP does.", default=False
    )
    web_config_file: str | None = key(
        fields.file(),
        "TLS, client certificates, users and headers of the endpoint, in the format of Prometheus' exporter-toolkit; "
        "see docs/security.md.",
        default=None,
        default_text="none: plain HTTP, without authentication",
        example="/etc/shardwatch/web.yml",
        aliases=("web_config",),
    )
    web_page: bool = key(
        fields.boolean(),
        "Serve the node web page at / and keep ten minutes of curves for it; see docs/web-page.md.",
        default=True,
    )
    unauthenticated_health: bool = key(
        fields.boolean(),
        "Answer /-/healthy and /-/ready without a user, for probes that cannot send one.",
        default=False,
    )
    log: LogSettings = key(
        section(LogSettings), "Log on standard error.", default=LogSettings(), aliases=("logging", "logs")
    )


def _finish_settings(found: SectionResult) -> None:
    if found.given("engines") and not found.given("discovery.processes"):
        found.values["discovery"] = replace(found.values.get("discovery", DiscoverySettings()), processes=False)


SECTION = section(Settings, _finish_settings)


def load(path: str, environ: Mapping[str, str]) -> Settings:
    """Read a configuration file, overridden by the environment.

    Relative file names in it start from its directory.  Raises SettingsError with every problem.
    """
    found: Settings = loader.load(SECTION, path, environ)
    return found


def parse(text: str, origin: str, environ: Mapping[str, str], *, base: str = "") -> Settings:
    """Read a configuration text; ``origin`` names it in messages, ``base`` is where relative file names start."""
    found: Settings = loader.parse(SECTION, text, origin, environ, base=base)
    return found


def default(environ: Mapping[str, str]) -> Settings:
    """Return the settings of a daemon without a file: defaults, overridden by the environment."""
    found: Settings = loader.from_environment(SECTION, environ)
    return found


def parse_listen(text: str, origin: str = "--listen") -> Address:
    """Read a listening address given outside the configuration; raises SettingsError."""
    try:
        return parsers.address(text)
    except Invalid as invalid:
        raise SettingsError([Problem("", str(invalid))], origin) from None
