"""URLs: an origin that never changes, and a path; what could be a secret is redacted.

Credentials inside a URL are refused, because a URL ends up in logs, labels and process lists.  Query strings are
sent but never shown.
"""

from __future__ import annotations

import functools
import re
from urllib.parse import urljoin, urlsplit

from msgspec import Struct

from exporter.errors import EndpointError

_PORTS = {"http": 80, "https": 443}
_VISIBLE = re.compile(r"[!-~]+")
_HOST = re.compile(r"[a-z0-9._:%-]{1,253}")
_SHOWN = 200  # characters of a path in a message: a hostile redirect must not fill the log


class Origin(Struct, frozen=True, kw_only=True):
    """Scheme, host (lower case, no brackets) and port."""

    scheme: str
    host: str
    port: int

    def __str__(self) -> str:
        """Return the origin as a URL without a path, the port left out where it is the scheme's own."""
        return f"{self.scheme}://{self._with_port(self.host)}"

    @property
    def authority(self) -> str:
        """Return the value of the Host field: without an IPv6 zone, which means nothing to the peer."""
        return self._with_port(self.host.partition("%")[0])

    @property
    def server_name(self) -> str:
        """Return the host as a certificate names it: without an IPv6 zone and without the root's dot."""
        return self.host.partition("%")[0].rstrip(".")

    def _with_port(self, host: str) -> str:
        host = f"[{host}]" if ":" in host else host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"


def parse(url: str) -> tuple[Origin, str]:
    """Return the origin and the request target (path and query) of ``url``; raise EndpointError ``url``."""
    if not _VISIBLE.fullmatch(url):
        raise EndpointError("url", "the URL is empty, or holds a space, a control or a non-ASCII character")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:  # its text quotes the URL, so it goes no further
        raise EndpointError("url", "the URL's host or port cannot be read") from None
    if "@" in parts.netloc:
        raise EndpointError("url", "the URL holds credentials; put them in bearer_token_file or password_file")
    if parts.scheme not in _PORTS:
        raise EndpointError("url", "the URL must begin with http:// or https://")
    host = parts.hostname or ""
    if not _HOST.fullmatch(host) or port == 0:
        raise EndpointError("url", "the URL's host or port cannot be read")
    path = parts.path or "/"
    query = f"?{parts.query}" if parts.query else ""
    return Origin(scheme=parts.scheme, host=host, port=port or _PORTS[parts.scheme]), path + query


# For configured URLs, which are requested again and again; never for what a peer sent.
parse_configured = functools.lru_cache(maxsize=256)(parse)


def parse_path(path: str) -> str:
    """Return ``path`` (with its query) if it can be requested; raise EndpointError ``url``."""
    if not path.startswith("/") or not _VISIBLE.fullmatch(path) or "#" in path:
        raise EndpointError("url", "a path must begin with / and hold neither spaces nor non-ASCII characters")
    return path


def follow(origin: Origin, path: str, location: str | None) -> str:
    """Return the path that a redirect names, if it stays at ``origin``; raise EndpointError ``redirect``."""
    if not location:
        raise EndpointError("redirect", "redirected without a Location")
    try:
        target, path = parse(urljoin(str(origin) + path, location))
    except (EndpointError, ValueError):
        raise EndpointError("redirect", "redirected to something that is not an http URL") from None
    if target != origin:
        message = f"redirected to {target}, another origin; configure that URL if it is right"
        raise EndpointError("redirect", message, detail=str(target))
    return path


def redact(origin: Origin, path: str) -> str:
    """Return origin and path for a message: no query, and no path that may hold a misplaced password."""
    bare = path.partition("?")[0]
    return f"{origin}{bare[:_SHOWN]}" if "@" not in bare else str(origin)


def redact_url(url: str) -> str:
    """Return any configured URL as far as it is safe to show."""
    try:
        return redact(*parse(url))
    except EndpointError:
        return "[unusable URL]"
