"""Durations, addresses and URLs: each function returns the value of a text, or raises Invalid with the correction.

No message repeats the text: a token that was pasted into the wrong place must not reach a log.  The reader of the
message has the path and the line.
"""

from __future__ import annotations

import re
from ipaddress import AddressValueError, IPv4Address, IPv6Address
from urllib.parse import SplitResult, unquote, urlsplit

from msgspec import Struct

MAX_IMAGE = 512  # characters
MAX_URL = 2048  # characters; longer ones are refused by many servers anyway
DURATION_EXAMPLES = "a number with a unit, such as 500ms, 5s, 1m30s or 1h"

_UNITS = (("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1))  # in milliseconds: sums stay exact
_DURATION = re.compile(r"(?:(\d{1,9})h)?(?:(\d{1,9})m)?(?:(\d{1,9})s)?(?:(\d{1,9})ms)?", re.ASCII)
DURATION_PATTERN = "^(?=.)([0-9]{1,9}h)?([0-9]{1,9}m)?([0-9]{1,9}s)?([0-9]{1,9}ms)?$"  # the same as JSON Schema
_SHORT_NUMBER = re.compile(r"\d{1,6}(\.\d{1,3})?", re.ASCII)
_LABEL = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")
_BRACKETED = re.compile(r"\[([^\[\]]*)\]:([0-9]{1,5})", re.ASCII)
_ZONE = re.compile(r"[A-Za-z0-9_.-]{1,15}")  # an interface name, after the % of a link-local address
_SECRET_PARAMETERS = frozenset(
    {"token", "access_token", "auth_token", "auth", "authorization", "bearer", "bearer_token", "api_key", "apikey"}
    | {"key", "password", "passwd", "pwd", "secret", "client_secret", "credential", "credentials", "signature"}
)


class Invalid(ValueError):  # noqa: N818 - a verdict on one value; SettingsError is what leaves the package
    """The message says why a value cannot be used and what to write; it never contains the value."""


class Address(Struct, frozen=True, kw_only=True):
    """Where to listen.  ``host`` has no brackets; port 0 means any free port."""

    host: str
    port: int

    def __str__(self) -> str:
        """Return the address as it is written: IPv6 in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def duration(text: str) -> float:
    """Return ``1m30s`` as 90.0 seconds; more than zero, in whole units from the largest to the smallest."""
    bare = text.strip()
    if re.fullmatch(r"[-+]?[0-9.]+", bare):
        whole = _SHORT_NUMBER.fullmatch(bare) and bare.isdecimal() and int(bare)
        example = f"{bare}s" if whole else "5s"
        raise Invalid(f"a duration needs a unit: write {example}, for example")
    if bare.startswith("-"):
        raise Invalid("a duration must be more than zero")
    match = _DURATION.fullmatch(text)
    if match is None or not text:
        raise Invalid(f"expected {DURATION_EXAMPLES}; whole numbers, no spaces, the largest unit first")
    milliseconds = sum(int(part) * size for part, (_, size) in zip(match.groups(), _UNITS, strict=True) if part)
    if milliseconds == 0:
        raise Invalid("a duration must be more than zero")
    return milliseconds / 1000


def format_duration(seconds: float) -> str:
    """Return seconds in canonical form (60 → ``1m``, 90.5 → ``1m30s500ms``), for labels and messages."""
    rest = round(seconds * 1000)
    parts = []
    for unit, size in _UNITS:
        count, rest = divmod(rest, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"


def address(text: str) -> Address:
    """Return the address written as ``HOST:PORT`` or ``[IPV6]:PORT``."""
    example = "such as 0.0.0.0:9853 or [::]:9853"
    if re.fullmatch(r":?[0-9]{1,5}", text, re.ASCII):
        if int(text.lstrip(":")) > 65535:
            raise Invalid(f"a port is a number from 0 to 65535; expected HOST:PORT, {example}")
        raise Invalid(f"expected HOST:PORT; write 0.0.0.0:{text.lstrip(':')} to listen on all IPv4 addresses")
    bracketed = _BRACKETED.fullmatch(text)
    if bracketed:
        host, port = bracketed.groups()
        if not _is_ipv6(host, zone=True):
            raise Invalid(f"the brackets do not hold an IPv6 address; expected HOST:PORT, {example}")
    elif text.count(":") > 1:
        raise Invalid(f"an IPv6 address is written in brackets, followed by a port, {example}")
    else:
        host, colon, port = text.partition(":")
        if not colon or not re.fullmatch(r"[0-9]{1,5}", port, re.ASCII):
            raise Invalid(f"expected HOST:PORT, {example}")
        if not _is_name(host):
            raise Invalid(f"the host is neither a host name nor an IPv4 address; expected HOST:PORT, {example}")
    if int(port) > 65535:
        raise Invalid("the port is above 65535")
    return Address(host=host, port=int(port))


def url(text: str) -> str:
    """Return an http or https URL with its host in lower case; an empty path becomes ``/metrics``."""
    if len(text) > MAX_URL:
        raise Invalid(f"is longer than {MAX_URL} characters")
    if not text.isascii() or not text.isprintable() or " " in text or "\\" in text:
        raise Invalid("contains a character that a URL cannot contain; percent-encode it (host names: punycode)")
    try:
        parts = urlsplit(text)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        raise Invalid("the host or port is malformed; expected http://HOST:PORT/PATH") from None
    if parts.scheme not in {"http", "https"} or "//" not in text:
        raise Invalid("expected a URL that begins with http:// or https://")
    if "@" in parts.netloc:
        raise Invalid("contains a user name or password; remove it, and use basic_auth or a token file")
    if "#" in text:
        raise Invalid("contains a fragment (#…), which is never sent; remove it")
    if not host or not (_is_name(host) or _is_ipv6(host, zone=False)):
        raise Invalid("the host is missing or malformed; expected http://HOST:PORT/PATH")
    if port == 0:
        raise Invalid("port 0 cannot be connected to")
    _refuse_secret_parameters(parts.query)
    shown_host = f"[{host}]" if ":" in host else host
    netloc = shown_host if port is None else f"{shown_host}:{port}"
    query = f"?{parts.query}" if parts.query else ""
    return f"{parts.scheme}://{netloc}{parts.path or '/metrics'}{query}"


def pod_list(text: str) -> str:
    """Return the API server's address without a path, or the URL of a kubelet's list of pods."""
    whole = url(text)
    parts = urlsplit(whole)
    bare = urlsplit(text).path in ("", "/")
    if parts.query or not (bare or parts.path == "/pods"):
        raise Invalid("expected the API server's https://HOST:PORT, or a kubelet's https://HOST:10250/pods")
    if parts.scheme == "http" and parts.hostname not in ("127.0.0.1", "::1", "localhost"):
        raise Invalid("would send the token unencrypted to another machine; write https://")
    return f"{parts.scheme}://{parts.netloc}" if bare else whole


def ray_list(text: str) -> str:
    """Return the URL of the list of metrics endpoints, given that URL or the address of Ray's dashboard."""
    whole = url(text)
    parts = urlsplit(whole)
    bare = urlsplit(text).path in ("", "/")
    return f"{parts.scheme}://{parts.netloc}/api/prometheus/sd" if bare else whole


def target_files(pattern: str) -> None:
    """Refuse a pattern that names no list of targets, or would search whole directory trees."""
    folder, _, name = pattern.rpartition("/")
    if not name.lower().endswith((".json", ".yml", ".yaml")):
        raise Invalid("expected the name of a .json, .yml or .yaml file; its last part may contain wildcards (*)")
    if set("*?[") & set(folder):
        raise Invalid("contains a wildcard in a directory's name; only the last part may")


def port_of(parts: SplitResult) -> int:
    """Return the port of a URL's parts; the scheme's if none is written."""
    return parts.port or (443 if parts.scheme == "https" else 80)


def host_port(location: str) -> str:
    """Return ``HOST:PORT`` of a URL that ``url`` accepted; the scheme's port if none is written."""
    parts = urlsplit(location)
    host, port = parts.hostname or "", port_of(parts)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def identity(location: str) -> tuple[str, str, str, str]:
    """Return what two spellings of the same URL have in common."""
    parts = urlsplit(location)
    return parts.scheme, host_port(location), parts.path, parts.query


def without_query(location: str) -> str:
    """Return a URL that may be logged and exposed: queries carry tokens."""
    head, mark, _ = location.partition("?")
    return f"{head}?…" if mark else head


def _refuse_secret_parameters(query: str) -> None:
    for part in query.split("&"):
        name = unquote(part.partition("=")[0]).lower().replace("-", "_")
        if name in _SECRET_PARAMETERS:
            raise Invalid(
                f"the query contains a secret ({name}); put it into a file and name the file in bearer_token_file"
            )


def _is_ipv6(host: str, *, zone: bool) -> bool:
    address_part, percent, interface = host.partition("%")
    if percent and not (zone and _ZONE.fullmatch(interface)):
        return False
    try:
        IPv6Address(address_part)
    except AddressValueError:
        return False
    return True


def _is_name(host: str) -> bool:
    """Return whether it is a DNS name or a dotted IPv4 address; ``10.0.0.300`` is neither."""
    labels = host.removesuffix(".").split(".")
    if len(host) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        return False
    if not labels[-1].isdigit():
        return True
    try:
        IPv4Address(host)
    except AddressValueError:
        return False
    return True


def image(text: str) -> str:
    """Return the name of a container image, ``NAME[:TAG][@sha256:…]``; refuse what could not be a label value."""
    if not text or len(text) > MAX_IMAGE or not text.isprintable() or " " in text:
        raise Invalid(f"expected the name of a container image: printable, no spaces, at most {MAX_IMAGE} characters")
    return text


def is_loopback(host: str) -> bool:
    """Return whether what is sent to a host stays on this one."""
    return host in {"localhost", "::1"} or host.startswith("127.")
