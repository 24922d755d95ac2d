"""The head of one HTTP answer: status and fields, within one budget of bytes and fields, every line well formed.

Read here and not by ``http.client``, which hands each head to the parser of electronic mail: that took longer than
the rest of an exchange.  What two readers could understand in two ways is refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import BinaryIO

from exporter.errors import EndpointError
from exporter.http.client.errors import DisconnectedError

BLANK = (b"\r\n", b"\n")

_STATUS = re.compile(rb"HTTP/1\.([0-9]) +([1-9][0-9]{2})(?:[ \t].*)?\r?\n", re.DOTALL)
_FIELD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):([\t -~\x80-\xff]*?)\r?\n")
_SWITCHING = 101
_FIRST_FINAL = 200
_MAX_INTERIM = 8  # a server has use for one or two: 100 and 103


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one answer may take: bytes and fields of head and trailers, bytes of body as sent and as inflated."""

    head_bytes: int = 16 * 1024
    head_fields: int = 64
    wire_bytes: int = 8 * 1024 * 1024
    body_bytes: int = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """Status and fields; ``fields`` maps lower-case names to every value, as they came, without blanks around them.

    ``keep``: the peer leaves the connection open for another request, as far as the head tells.
    """

    status: int
    fields: Mapping[str, list[str]]
    keep: bool

    def first(self, name: str) -> str:
        """Give the first value of a field, "" where there is none."""
        values = self.fields.get(name)
        return values[0] if values else ""


class Lines:
    """The lines of a head or of trailers, from ``stream``, with what is left of the budget."""

    __slots__ = ("_fields_left", "_left", "_stream")

    def __init__(self, stream: BinaryIO, limits: Limits) -> None:
        self._stream = stream
        self._left = limits.head_bytes
        self._fields_left = limits.head_fields

    def next(self) -> bytes:
        """Return the next line, empty at the end of the stream; raise EndpointError ``head_too_large``."""
        line = self._stream.readline(self._left + 1)
        self._left -= len(line)
        if self._left < 0:
            raise EndpointError("head_too_large", "the response head is too long")
        return line

    def fields(self) -> dict[str, list[str]]:
        """Return the fields up to the blank line; raise EndpointError where others would guess or go on."""
        found: dict[str, list[str]] = {}
        while (line := self.next()) not in BLANK:
            if not line.endswith(b"\n"):
                raise EndpointError("closed", "the peer closed the connection inside the head of its answer")
            self._fields_left -= 1
            if self._fields_left < 0:
                raise EndpointError("head_too_large", "the response head has too many fields")
            match = _FIELD.fullmatch(line)
            if match is None:
                raise EndpointError("protocol", "a field of the response head is malformed")
            found.setdefault(match[1].decode("ascii").lower(), []).append(match[2].decode("latin-1").strip(" \t"))
        return found


def read_head(stream: BinaryIO, limits: Limits) -> Head:
    """Read the next answer's head, past interim ones (1xx), which share its limits.

    Raise EndpointError, OSError, or DisconnectedError when the peer has closed instead of beginning an answer.
    """
    lines = Lines(stream, limits)
    for _ in range(_MAX_INTERIM + 1):
        line = lines.next()
        if not line:
            raise DisconnectedError
        match = _STATUS.fullmatch(line)
        if match is None:
            raise EndpointError("protocol", "the answer is not HTTP")
        status, fields = int(match[2]), lines.fields()
        # Nobody asked for another protocol: what follows a 101 is no HTTP, and it is refused like any other status.
        if status >= _FIRST_FINAL or status == _SWITCHING:
            return Head(status=status, fields=fields, keep=_keeps(fields, old=match[1] == b"0"))
    raise EndpointError("head_too_large", f"more than {_MAX_INTERIM} interim answers came before the real one")


def _keeps(fields: Mapping[str, list[str]], *, old: bool) -> bool:
    """Say whether another request may follow; only a body with an end of its own leaves room for one."""
    if "content-length" not in fields and "transfer-encoding" not in fields:
        return False
    words = ",".join(fields.get("connection", ())).lower()
    if "close" in words:
        return False
    # HTTP/1.0 knows no chunks: where such a peer thinks that its answer ends is anybody's guess.
    return not old or ("keep-alive" in words and "transfer-encoding" not in fields)
