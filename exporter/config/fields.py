"""The kinds of scalars a configuration has: text, numbers, durations, choices, files, GPUs, each with its bounds.

Messages say what was expected and what kind of value was found, never the text that was found.
"""

from __future__ import annotations

import logging
import math
import os
import re
import stat
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from exporter.config import parsers
from exporter.config.files import open_regular
from exporter.config.parsers import Invalid
from exporter.config.reader import Item, Scalar, expected
from exporter.config.suggest import did_you_mean
from exporter.logs import log_event

MAX_TEXT = 128  # characters of a name: it becomes a label value on every series of its replica
MAX_PATH = 4096
MAX_GPU_INDEX = 1023

_log = logging.getLogger(__name__)
_T = TypeVar("_T")
_UUID = r"(GPU|MIG)-[0-9A-Za-z][0-9A-Za-z/-]{3,90}"
_RELATIVE = "; relative names start from the directory of the configuration"
_PATH = {"type": "string", "minLength": 1, "maxLength": MAX_PATH}


def raw(item: Item, what: str) -> str:
    """Return the text of a value that is text; in the environment every value is."""
    if item.loose or isinstance(item.node.value, str):
        return item.node.text
    raise expected(what, item.node)


def text(what: str = "text", *, forbidden: str = "") -> Scalar:
    """Read a name: printable, without spaces at its ends, at most MAX_TEXT characters."""

    def convert(item: Item) -> str:
        if isinstance(item.node.value, (int, float)) and not item.loose:
            raise Invalid(f"{expected(what, item.node)}; put it between quotes")
        value = raw(item, what)
        if not value or value != value.strip() or not value.isprintable():
            raise Invalid(f"expected {what}: printable characters, at least one, and no space at either end")
        if len(value) > MAX_TEXT:
            raise Invalid(f"is longer than {MAX_TEXT} characters")
        for character in forbidden:
            if character in value:
                raise Invalid(f"must not contain '{character}'")
        return value

    return Scalar(convert, "text", {"type": "string", "minLength": 1, "maxLength": MAX_TEXT})


def boolean() -> Scalar:
    """Read true or false, and no other spelling."""

    def convert(item: Item) -> bool:
        if isinstance(item.node.value, bool):
            return item.node.value
        raise expected("true or false", item.node)

    return Scalar(convert, "boolean", {"type": "boolean"}, lambda value: str(value).lower())


def number(what: str, low: float = -math.inf, high: float = math.inf, *, inclusive: bool = True) -> Scalar:
    """Read a finite number between two bounds; ``what`` states them in words."""
    names = ("minimum", "maximum") if inclusive else ("exclusiveMinimum", "exclusiveMaximum")
    bounds = {name: bound for name, bound in zip(names, (low, high), strict=True) if math.isfinite(bound)}

    def convert(item: Item) -> float:
        value = item.node.value
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise expected(what, item.node)
        accepted = low <= value <= high if inclusive else low < value < high
        if not math.isfinite(value) or not accepted:
            raise Invalid(f"expected {what}")
        return float(value)

    return Scalar(convert, what.removeprefix("a "), {"type": "number", **bounds}, "{:g}".format)


def duration(low: float, high: float) -> Scalar:
    """Read a duration in seconds, low ≤ value ≤ high; low 0 means anything above zero."""
    parsed = written_as(parsers.DURATION_EXAMPLES, parsers.duration)
    shown_low, shown_high = parsers.format_duration(low), parsers.format_duration(high)

    def convert(item: Item) -> float:
        seconds: float = parsed.convert(item)
        if not low <= seconds <= high:
            bounds = f"between {shown_low} and" if low else "at most"
            raise Invalid(f"must be {bounds} {shown_high}, is {parsers.format_duration(seconds)}")
        return seconds

    bounds = f"{shown_low} to {shown_high}" if low else f"at most {shown_high}"
    schema = {"type": "string", "pattern": parsers.DURATION_PATTERN}
    return Scalar(convert, f"duration, {bounds}", schema, parsers.format_duration)


def choice(*words: str) -> Scalar:
    """Read one of a closed set of words."""

    def convert(item: Item) -> str:
        value = raw(item, f"one of {', '.join(words)}")
        if value in words:
            return value
        raise Invalid(did_you_mean(value, words, "unknown value"))

    return Scalar(convert, " | ".join(words), {"enum": list(words)})


def written_as(
    what: str, parse: Callable[[str], _T], type_: str = "text", schema: Mapping[str, Any] | None = None
) -> Scalar:
    """Read text that has a syntax of its own: an address, a URL.

    A number goes there too: a duration without a unit, or a port without a host, gets a message with the correction.
    """

    def convert(item: Item) -> _T:
        value = item.node.value
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return parse(item.node.text)
        return parse(raw(item, what))

    return Scalar(convert, type_, schema or {"type": "string"})


def url(what: str, parse: Callable[[str], str] = parsers.url) -> Scalar:
    """Read an http or https URL."""
    schema = {"type": "string", "pattern": "^https?://", "maxLength": parsers.MAX_URL}
    return written_as(what, parse, "URL", schema)


def gpu() -> Scalar:
    """Read a GPU: an index as a number, or a UUID as text."""

    def convert(item: Item) -> int | str:
        value = item.node.value
        if isinstance(value, str) and re.fullmatch(_UUID, value):
            return value
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_GPU_INDEX:
            return value
        if isinstance(value, str) and re.fullmatch(r"[0-9]{1,4}", value):
            raise Invalid("the index of a GPU is written without quotes")
        raise Invalid(f"expected a GPU: an index from 0 to {MAX_GPU_INDEX}, or a UUID such as GPU-… or MIG-…")

    index = {"type": "integer", "minimum": 0, "maximum": MAX_GPU_INDEX}
    return Scalar(convert, "index or UUID", {"anyOf": [index, {"type": "string", "pattern": f"^{_UUID}$"}]})


def file(*, secret: bool = False) -> Scalar:
    """Read the name of a file that can be opened now; relative names start from the configuration's directory.

    A secret's file must not be empty and must not be world-writable.  Only its name is kept: whoever needs the
    content reads the file again, and so follows a rotation.
    """

    def convert(item: Item) -> str:
        value = raw(item, "a file name")
        if not value or len(value) > MAX_PATH:
            raise Invalid(f"expected a file name of at most {MAX_PATH} characters")
        path = os.path.join(item.base, value)
        with open_regular(path, _RELATIVE) as opened:
            status = os.fstat(opened.fileno())
        if secret and status.st_size == 0:
            raise Invalid("the file is empty")
        if secret and status.st_mode & stat.S_IWOTH:
            raise Invalid("the file is world-writable; remove that permission (chmod o-w)")
        if secret and status.st_mode & stat.S_IROTH:
            _warn_world_readable(item.path, path, status.st_ctime_ns)
        return path

    return Scalar(convert, "file name", _PATH)


_warned: set[tuple[str, int]] = set()  # world-readable files, with the time of their last change of status
_MAX_WARNED = 256


def _warn_world_readable(key: str, path: str, changed: int) -> None:
    """Log that anybody may read a secret, once until the file changes: a refused file is read again and again."""
    if (path, changed) not in _warned:
        if len(_warned) >= _MAX_WARNED:
            _warned.clear()
        _warned.add((path, changed))
        log_event(_log, logging.WARNING, "secret_file_world_readable", key=key, file=path, hint="chmod o-r")


def unsupported(why: str) -> Scalar:
    """Refuse a key that is not read here but might be expected to: if it were ignored, it would seem to work."""

    def convert(_: Item) -> str:
        raise Invalid(why)

    return Scalar(convert)


def path(what: str, check: Callable[[str], None] = lambda _: None) -> Scalar:
    """Read the name of a file that need not exist yet; relative names start from the configuration's directory."""

    def convert(item: Item) -> str:
        value = raw(item, what)
        if not value or len(value) > MAX_PATH or not value.isprintable():
            raise Invalid(f"expected {what}, at most {MAX_PATH} printable characters")
        check(value)
        return os.path.join(item.base, value)

    return Scalar(convert, "file name", _PATH)
