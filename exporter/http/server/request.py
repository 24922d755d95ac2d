"""HTTP/1.1 requests and responses as bytes; no I/O.

Parsing is strict: lines end in CRLF, a length is digits, given once, and never beside a transfer coding.  h11 is not:
it accepts lines that end in LF alone, folded lines, control characters in values, a repeated length, and a length
beside a transfer coding.  It also takes 50 µs a head where this takes 16.  A request that is refused gets a status, a
sentence for the person at the other end, and the end of the connection.
"""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Mapping

from msgspec import Struct

from exporter.http import wire

_REQUEST_LINE = re.compile(rb"(" + wire.TOKEN + rb") ([!-~]+) HTTP/([0-9])\.([0-9])")
_ONCE_ONLY = frozenset({"content-length", "host", "transfer-encoding"})
_METHODS = frozenset({"GET", "HEAD", "POST"})
_REASONS = {
    200: "OK",
    304: "Not Modified",
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    408: "Request Timeout",
    411: "Length Required",
    413: "Content Too Large",
    414: "URI Too Long",
    417: "Expectation Failed",
    429: "Too Many Requests",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
    504: "Gateway Timeout",
    505: "HTTP Version Not Supported",
}
_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


class Request(Struct, frozen=True, kw_only=True):
    """One request; ``path`` as sent (nothing decoded), header names in lower case, repeated fields joined by ", "."""

    method: str  # GET, HEAD or POST
    path: str
    query: str
    headers: Mapping[str, str]


class Response(Struct, frozen=True, kw_only=True):
    """One response.  ``body`` is sent as it is and never copied, so that all clients share one page.

    Content-Length (but with 304), Date, Connection, ``X-Content-Type-Options: nosniff`` and, unless ``headers`` has
    another, ``Cache-Control: no-store`` are added to every response; ``headers`` are the others, and must not hold
    text that came from a client.
    """

    status: int
    content_type: str
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()


class ParsedRequest(Struct, frozen=True, kw_only=True):
    """A whole request; ``size``: its bytes on the wire, body included."""

    request: Request
    keep: bool  # the client wants the connection for another request
    size: int


class BadRequestError(Exception):
    """A request that gets ``response``, and then the end of its connection."""

    def __init__(self, status: int, message: str, *headers: tuple[str, str]) -> None:
        super().__init__(message)
        self.response = text_response(status, message, *headers)
        self.request: Request | None = None  # well-formed, and of a method that no path supports


def text_response(status: int, message: str, *headers: tuple[str, str]) -> Response:
    """Return a response of one sentence in plain text."""
    body = f"{message}\n".encode()
    return Response(status=status, content_type="text/plain; charset=utf-8", body=body, headers=headers)


def format_head(response: Response, *, keep: bool, headers: tuple[tuple[str, str], ...] = ()) -> bytes:
    """Return what goes before the body; ``keep``: the connection stays open after it; ``headers``: further ones."""
    lines = [
        f"HTTP/1.1 {response.status} {_REASONS.get(response.status, 'Other')}",
        f"Date: {_date(int(time.time()))}",
        f"Content-Type: {response.content_type}",
        # With 304 it would be the length of the entity that the client has (RFC 9110, 8.6).
        *(() if response.status == 304 else (f"Content-Length: {len(response.body)}",)),
        "X-Content-Type-Options: nosniff",
    ]
    if not any(name == "Cache-Control" for name, _ in response.headers):
        lines.append("Cache-Control: no-store")
    lines += [f"{name}: {value}" for name, value in (*response.headers, *headers)]
    if not keep:
        lines.append("Connection: close")
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def parse_request(
    inbox: bytearray, *, header_bytes: int, header_fields: int, body_bytes: int
) -> ParsedRequest | None:
    """Return the request at the start of ``inbox``, None while it is incomplete; ``inbox`` stays as it is.

    Raises BadRequestError as soon as what has arrived cannot become a request within these limits.
    """
    if inbox and not inbox[:1].isalpha():
        raise BadRequestError(400, "not an HTTP/1.1 request")
    end = inbox.find(b"\r\n\r\n", 0, header_bytes)
    if end < 0:
        _check_beginning(inbox, header_bytes)
        return None
    first, *lines = bytes(inbox[:end]).split(b"\r\n")
    try:
        method, target, minor = _request_line(first)
    except BadRequestError as error:
        if error.response.status == 405:
            named = {name: ", ".join(values) for name, values in _parse_fields(lines[:header_fields]).items()}
            error.request = Request(method="", path="", query="", headers=named)
        raise
    if len(lines) > header_fields:
        raise BadRequestError(431, f"more than {header_fields} header fields")
    fields = _parse_fields(lines)
    if minor > 0 and "host" not in fields:
        raise BadRequestError(400, "HTTP/1.1 requires a Host header")
    headers = {name: ", ".join(values) for name, values in fields.items()}
    size = end + 4 + _body_length(headers, body_bytes if method == "POST" else 0)
    if len(inbox) < size:
        return None
    path, _, query = target.partition("?")
    keep = minor > 0 and "close" not in wire.connection_options(fields)
    return ParsedRequest(
        request=Request(method=method, path=path, query=query, headers=headers), keep=keep, size=size
    )


def _check_beginning(inbox: bytearray, header_bytes: int) -> None:
    """Raise for what cannot become a request; an HTTP/0.9 client, for one, sends no more than its first line."""
    end = inbox.find(b"\n", 0, header_bytes)
    if end >= 0:
        line = bytes(inbox[:end])
        if not line.endswith(b"\r"):
            raise BadRequestError(400, "lines of an HTTP request end in CR LF")
        try:
            _request_line(line[:-1])
        except BadRequestError as error:
            if error.response.status != 405:  # which only users are told, and their credentials follow
                raise
    if len(inbox) >= header_bytes:
        if end < 0:
            raise BadRequestError(414, f"the request line is longer than {header_bytes} bytes")
        raise BadRequestError(431, f"the request's head is longer than {header_bytes} bytes")


def _request_line(line: bytes) -> tuple[str, str, int]:
    """Return method, target in origin form, and minor version (0 means HTTP/1.0)."""
    match = _REQUEST_LINE.fullmatch(line)
    if match is None:
        raise BadRequestError(400, "not an HTTP/1.1 request line")
    method, target = match[1].decode("ascii"), match[2].decode("ascii")
    if match[3] != b"1":
        raise BadRequestError(505, "this server speaks HTTP/1.1 and HTTP/1.0")
    if method not in _METHODS:
        raise BadRequestError(405, f"{method[:32]} is not supported", ("Allow", "GET, HEAD, POST"))
    if not target.startswith("/"):
        scheme, mark, rest = target.partition("://")
        if not mark or scheme.lower() not in ("http", "https"):
            raise BadRequestError(400, "the request's target must begin with /")
        target = "/" + rest.partition("/")[2]
    return method, target, int(match[4])


def _parse_fields(lines: list[bytes]) -> wire.Fields:
    try:
        fields = wire.parse_fields(lines)
    except wire.MalformedError as error:
        raise BadRequestError(400, str(error)) from None
    for name in _ONCE_ONLY & fields.keys():
        if len(fields[name]) > 1:
            raise BadRequestError(400, f"the header {name} occurs twice")
    return fields


def _body_length(headers: Mapping[str, str], max_bytes: int) -> int:
    """Return how many bytes of body follow, at most ``max_bytes``."""
    text = headers.get("content-length", "0")
    if "transfer-encoding" in headers:
        if "content-length" in headers:
            raise BadRequestError(400, "Content-Length and Transfer-Encoding exclude each other")
        raise BadRequestError(411, "a body needs a Content-Length")
    if not (text.isascii() and text.isdigit()):
        raise BadRequestError(400, "Content-Length is not a number")
    if len(text) > 18 or int(text) > max_bytes:  # 18 digits: int() of thousands costs time, and raises
        raise BadRequestError(413, f"at most {max_bytes} bytes of body are accepted")
    if "expect" in headers:
        raise BadRequestError(417, "Expect is not supported; send the body right away")
    return int(text)


@functools.lru_cache(maxsize=1)
def _date(unix_time: int) -> str:
    """Return a date as HTTP writes it; strftime would follow the locale."""
    t = time.gmtime(unix_time)
    day, month = _DAYS[t.tm_wday], _MONTHS[t.tm_mon - 1]
    return f"{day}, {t.tm_mday:02} {month} {t.tm_year} {t.tm_hour:02}:{t.tm_min:02}:{t.tm_sec:02} GMT"
