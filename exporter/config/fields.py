"""The kinds of scalars a configuration has: text, numbers, durations, choices, files, cards, each with its bounds.

Messages say what was expected and what kind of thing was found, never the text that was found.
"""

from __future__ import annotations

import logging
import math
import os
import re
import stat
from collections.abc import Callable
from typing import BinaryIO, TypeVar

from exporter.config import parsers
from exporter.config.parsers import Invalid
from exporter.config.schema import Item, Scalar, did_you_mean, expected
from exporter.logs import log_event

MAX_TEXT = 128  # characters of a name: it becomes a label value on every series of its replica
MAX_PATH = 4096
MAX_CARD_INDEX = 1023

_log = logging.getLogger(__name__)
_T = TypeVar("_T")
_UUID = re.compile(r"(GPU|MIG)-[0-9A-Za-z][0-9A-Za-z/-]{3,90}")


def raw(item: Item, what: str) -> str:
    """Give the text of a value that is text; in the environment everything is."""
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

    return Scalar(convert)


def boolean() -> Scalar:
    """Read true or false, and no other spelling."""

    def convert(item: Item) -> bool:
        if isinstance(item.node.value, bool):
            return item.node.value
        raise expected("true or false", item.node)

    return Scalar(convert)


def number(accepts: Callable[[float], bool], what: str) -> Scalar:
    """Read a finite number for which ``accepts`` holds; ``what`` states the bounds in words."""

    def convert(item: Item) -> float:
        value = item.node.value
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise expected(what, item.node)
        if not math.isfinite(value) or not accepts(value):
            raise Invalid(f"expected {what}")
        return float(value)

    return Scalar(convert)


def duration(low: float, high: float) -> Scalar:
    """Read a duration in seconds, low ≤ value ≤ high; low 0 means anything above zero."""
    parsed = written_as(parsers.DURATION_EXAMPLES, parsers.duration)

    def convert(item: Item) -> float:
        seconds: float = parsed.convert(item)
        if not low <= seconds <= high:
            bounds = f"between {parsers.format_duration(low)} and" if low else "at most"
            raise Invalid(f"must be {bounds} {parsers.format_duration(high)}, is {parsers.format_duration(seconds)}")
        return seconds

    return Scalar(convert)


def choice(*words: str) -> Scalar:
    """Read one of a closed set of words."""

    def convert(item: Item) -> str:
        value = raw(item, f"one of {', '.join(words)}")
        if value in words:
            return value
        raise Invalid(did_you_mean(value, list(words), "no such choice"))

    return Scalar(convert)


def written_as(what: str, parse: Callable[[str], _T]) -> Scalar:
    """Read text that has a notation of its own: an address, a URL.

    A number goes there too: what is refused as a duration without a unit, or as a port without a host, has a cure.
    """

    def convert(item: Item) -> _T:
        value = item.node.value
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return parse(item.node.text)
        return parse(raw(item, what))

    return Scalar(convert)


def card() -> Scalar:
    """Read a card: an index as a number, or a UUID as text."""

    def convert(item: Item) -> int | str:
        value = item.node.value
        if isinstance(value, str) and _UUID.fullmatch(value):
            return value
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_CARD_INDEX:
            return value
        if isinstance(value, str) and re.fullmatch(r"[0-9]{1,4}", value):
            raise Invalid("a card's index is written without quotes")
        raise Invalid(f"expected a card: an index from 0 to {MAX_CARD_INDEX}, or a UUID such as GPU-… or MIG-…")

    return Scalar(convert)


def file(*, secret: bool = False) -> Scalar:
    """Read the name of a file that can be opened now; relative names start from the configuration's folder.

    A secret's file must hold something and must not be writable by everybody.  Only its name is kept: who needs the
    content reads the file again, and so follows a rotation.
    """

    def convert(item: Item) -> str:
        value = raw(item, "the name of a file")
        if not value or len(value) > MAX_PATH:
            raise Invalid(f"expected the name of a file, at most {MAX_PATH} characters")
        path = os.path.join(item.base, value)
        with open_regular(path, _RELATIVE) as opened:
            status = os.fstat(opened.fileno())
        if secret and status.st_size == 0:
            raise Invalid("the file is empty")
        if secret and status.st_mode & stat.S_IWOTH:
            raise Invalid("everybody may write to this file; take that right away (chmod o-w)")
        if secret and status.st_mode & stat.S_IROTH:
            log_event(_log, logging.WARNING, "secret_file_world_readable", key=item.path, hint="chmod o-r")
        return path

    return Scalar(convert)


def unsupported(why: str) -> Scalar:
    """Refuse a key that a later version will read: ignored, it would be believed to work."""

    def convert(_: Item) -> str:
        raise Invalid(f"is not in this version: {why}")

    return Scalar(convert)


def path(what: str, check: Callable[[str], None] = lambda _: None) -> Scalar:
    """Read the name of something that need not be there yet; relative names start from the configuration's folder."""

    def convert(item: Item) -> str:
        value = raw(item, what)
        if not value or len(value) > MAX_PATH or not value.isprintable():
            raise Invalid(f"expected {what}, at most {MAX_PATH} printable characters")
        check(value)
        return os.path.join(item.base, value)

    return Scalar(convert)


_CURES: dict[type[Exception], str] = {
    PermissionError: "; the user that runs shardwatch must be able to read it, and to enter its folders",
    FileNotFoundError: "; in a container only what is mounted exists",
}
_RELATIVE = "; relative names start from the folder of the configuration"


def open_regular(path: str, when_missing: str = "") -> BinaryIO:
    """Open a regular file, or raise Invalid; a pipe without a writer or a device would hold us up for ever.

    ``when_missing``: what else to say where there is no such file.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else "the name is malformed"
        relative = when_missing if isinstance(error, FileNotFoundError) else ""
        raise Invalid(f"cannot be opened: {why}{relative}{_CURES.get(type(error), '')}") from None
    # Judged by the descriptor and before a file object exists: that would not close the descriptor of a folder.
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        folder = "; Docker makes a folder where the file to be mounted does not exist" if stat.S_ISDIR(mode) else ""
        raise Invalid(f"is not a regular file{folder}")
    return open(descriptor, "rb")
