"""What a valid configuration still lacks: figures that never appear, alerts that never fire.

Alerts and dashboards are generated from the daemon's names and not the other way round, so what they read is written
here as text; a test compares it with them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from urllib.parse import urlsplit

from msgspec import Struct

from exporter.config import parsers
from exporter.config.discovery import HttpSdSettings
from exporter.config.parsers import format_duration
from exporter.config.push import PushSettings
from exporter.config.settings import Settings, Window
from exporter.config.targets import TargetSettings


class WindowUsers(Struct, frozen=True, kw_only=True):
    """The alerts and dashboards that read a window, by name."""

    alerts: tuple[str, ...] = ()
    dashboards: tuple[str, ...] = ()


WINDOW_USERS = {
    "1m": WindowUsers(dashboards=("Imbalance", "Now")),
    "5m": WindowUsers(
        alerts=("GatewayErrors", "GatewayUneven", "HighErrorRatio"),
        dashboards=("Efficiency", "Fleet", "Imbalance", "Now", "Replica"),
    ),
}
# Some figures are exposed over the longest window only, to keep series few; their users read this one.
LONGEST = "5m"
LONGEST_ONLY = {
    "common": ("energy and cost of a token and the share beyond the last bucket", ("Efficiency", "Fleet", "Replica")),
    "full": ("tokens per joule and quantiles of queue, prefill, decode and TPOT", ("Efficiency", "Replica")),
}


def config_lint(settings: Settings, *, listens: bool = True) -> list[str]:
    """Return a hint for each questionable setting, beginning with the key that it is about."""
    labels = [window.label for window in settings.windows]
    hints = [_missing(label, users) for label, users in WINDOW_USERS.items() if label not in labels]
    if LONGEST in labels and labels[-1] != LONGEST:
        what, dashboards = LONGEST_ONLY[settings.series]
        hints.append(
            f"windows: with {labels[-1]} the {settings.series} set of series has {what} over {labels[-1]} only, "
            f"and panels of the shipped {_dashboards(dashboards)} that read {LONGEST} stay empty; remove what is "
            f"longer than {LONGEST} if you use them"
        )
    if listens and settings.web_config_file is None:
        hints += access_hints(settings, ())
    hints += _plain_tokens(settings)
    return hints + [_sparse(window, slow) for window in settings.windows if (slow := _slow(settings, window))]


def access_hints(settings: Settings, protections: Collection[str]) -> list[str]:
    """Return a hint at who can read the endpoint and what passes; ``protections``: keys that the web file sets."""
    host = settings.listen.host
    tls, users = "tls_server_config" in protections, "basic_auth_users" in protections
    if not tls and not users:
        if host not in ("", "0.0.0.0", "::"):
            return []
        if settings.web_config_file is None:
            remedy = "set web_config_file for TLS and users, or listen on one address"
        else:
            remedy = "web_config_file has neither users nor TLS; add them, or listen on one address"
        return [f"listen: everybody who reaches this host can read the endpoint; {remedy}"]
    if parsers.is_loopback(host):
        return []
    if not tls:
        return [
            "web_config_file: passwords pass in clear text, where the network can read them; add tls_server_config"
        ]
    if not users and "client_auth_type" not in protections:
        return ["web_config_file: TLS alone keeps nobody out; add basic_auth_users, or verify client certificates"]
    return []


def _plain_tokens(settings: Settings) -> list[str]:
    """Return a hint for each server on another host that gets its secret unencrypted."""
    discovery = settings.discovery
    kubernetes = discovery.kubernetes
    asked = [
        *[("engines", engine.name, engine.url, _has_secret(engine)) for engine in settings.engines],
        *[("gateways", gateway.name, gateway.url, _has_secret(gateway)) for gateway in settings.gateways],
        *[("stores", store.name, store.url, _has_secret(store)) for store in settings.stores],
        *[("gpu.pages", page.name, page.url, _has_secret(page)) for page in settings.gpu.pages],
        *[("discovery.http_sd", parsers.host_port(sd.url), sd.url, _has_secret(sd)) for sd in discovery.http_sd],
        *[("push", push.name, push.url, _has_secret(push)) for push in settings.push],
        ("discovery.ray_url", "the dashboard", discovery.ray_url, bool(discovery.ray_bearer_token_file)),
        ("discovery.kubernetes.url", "the API server", kubernetes.url, bool(kubernetes.bearer_token_file)),
    ]
    return [
        f"{key}: {name} gets its credentials over http, where the network can read them; use https"
        for key, name, url, has_secret in asked
        if has_secret and url and url.startswith("http://") and not parsers.is_loopback(urlsplit(url).hostname or "")
    ]


def _has_secret(target: TargetSettings | HttpSdSettings | PushSettings) -> bool:
    header_files = target.header_files if isinstance(target, PushSettings) else ()
    return bool(target.bearer_token_file or target.basic_auth or header_files)


def _slow(settings: Settings, window: Window) -> list[str]:
    """Return the targets that the window may not cover two polls of, which any figure needs."""
    engines = [("engine", engine.name, engine.interval) for engine in settings.engines]
    gateways = [("gateway", gateway.name, gateway.interval) for gateway in settings.gateways]
    stores = [("store", store.name, store.interval) for store in settings.stores]
    return [
        f"{kind} {name} is polled every {format_duration(interval)}"
        for kind, name, interval in engines + gateways + stores
        if window.seconds < 2 * interval
    ]


def _sparse(window: Window, slow: Sequence[str]) -> str:
    first, more = slow[0], f", as are {len(slow) - 1} more" if len(slow) > 1 else ""
    return (
        f"windows: {window.label} is shorter than two intervals: {first}{more}, and figures over it are missing or "
        f"come and go; lengthen the window, or poll more often"
    )


def _missing(label: str, users: WindowUsers) -> str:
    lost = []
    if users.alerts:
        lost.append(f"the shipped alerts {_listed(users.alerts)} cannot fire")
    if users.dashboards:
        lost.append(f"panels of the shipped {_dashboards(users.dashboards)} stay empty")
    return f"windows: without {label} {' and '.join(lost)}; add {label} if you use them"


def _dashboards(names: Sequence[str]) -> str:
    return f"dashboard{'s' if len(names) > 1 else ''} {_listed(names)}"


def _listed(names: Iterable[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last
