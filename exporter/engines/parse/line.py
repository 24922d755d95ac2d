"""The grammar of one sample line in the Prometheus text format."""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec import Struct

NAME = re.compile(rb"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(rb'[ \t]*([a-zA-Z_][a-zA-Z0-9_]*)[ \t]*=[ \t]*"((?:[^"\\]|\\.)*)"[ \t]*(,)?', re.DOTALL)
_BLANKS = re.compile(rb"[ \t]*")
_REST = re.compile(rb"(?:(?<=\})|[ \t])[ \t]*(\S+)(?:[ \t]+-?[0-9.]+)?(?:[ \t]+#.*)?[ \t]*$", re.DOTALL)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)


class Series(Struct, frozen=True):
    """One time series of a page: the sample's name as written, and its labels, unescaped."""

    name: str
    labels: Mapping[str, str]


def text_and_value(line: bytes) -> tuple[bytes, bytes] | None:
    """Parse a whole sample line; return the text of its series and of its value, None if unreadable."""
    head = series_and_end(line)
    rest = None if head is None else _REST.match(line, head[1])
    return None if head is None or rest is None else (line[: head[1]], rest[1])


def series_and_end(line: bytes) -> tuple[Series, int] | None:
    """Parse the beginning of a line, a name and its labels; return them and where they end, None if unreadable."""
    name = NAME.match(line)
    if name is None:
        return None
    labels: dict[str, str] = {}
    end = name.end()
    brace = _end_of_blanks(line, end)
    if line[brace : brace + 1] == b"{":
        end = _read_labels(line, _end_of_blanks(line, brace + 1), labels)
    return (Series(name[0].decode("ascii"), labels), end) if end else None


def _read_labels(line: bytes, position: int, labels: dict[str, str]) -> int:
    """Parse labels up to the closing brace and return its end; 0 if malformed, repeated or not UTF-8."""
    comma = True
    while line[position : position + 1] != b"}":
        match = _LABEL.match(line, position)
        if match is None or not comma:
            return 0
        name = match[1].decode("ascii")
        try:
            text = match[2].decode("utf-8")
        except UnicodeDecodeError:
            return 0
        if name in labels:
            return 0
        labels[name] = _ESCAPE.sub(_unescape, text) if "\\" in text else text
        comma = match[3] is not None
        position = _end_of_blanks(line, match.end())
    return position + 1


def _end_of_blanks(line: bytes, position: int) -> int:
    blanks = _BLANKS.match(line, position)
    return blanks.end() if blanks is not None else position


def _unescape(match: re.Match[str]) -> str:
    return "\n" if match[1] == "n" else match[1]
