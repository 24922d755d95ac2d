"""Exposition text to numbers, by a cache that learns a page's series once and afterwards only converts values.

An engine repeats the same few hundred series on every page; only the numbers move.  The reader keeps a map from
the series' text (name and labels, as bytes) to a slot, so that a known line costs one split, one look-up and one
float.  Lines never seen before are parsed properly, once.  The cache needs no order and no exact layout; when the
wanted lines come in the same order as last time (they do), the very same ``Layout`` object is handed out again, and
whoever compiled something for it may keep using it.

When they even stand at the same lines as last time, the page is read by ``places``.  What that could miss, a wanted
series that appears where an unwanted one vanished, is found by the full reading that a page gets now and then.

Nothing is believed: a page is bounded in lines, a line in bytes, the cache in bytes; an unreadable line is skipped
and counted, a repeated series keeps its first value, time stamps and exemplars are ignored.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from exporter.engines.places import Places
from exporter.errors import PageError
from exporter.model import EMPTY

Wanted = Callable[[str], bool]  # decides by the name of a sample whether its value is needed

MAX_LINES = 40_000  # 20,000 samples and their comments; the largest real page seen has 7,000 lines
MAX_LINE_BYTES = 16 * 1024
MAX_CACHE_BYTES = 2 * 1024 * 1024  # of series text per replica; beyond it lines are parsed each time
MAX_UNREADABLE = 1_000  # more than this is not a metrics page

FULL_READING_EVERY = 32  # pages
_GLANCE = 1_000  # lines that tell a metrics page from anything else

_IGNORED = -1
_NAME = re.compile(rb"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(rb'[ \t]*([a-zA-Z_][a-zA-Z0-9_]*)[ \t]*=[ \t]*"((?:[^"\\]|\\.)*)"[ \t]*(,)?', re.DOTALL)
_REST = re.compile(rb"[ \t]+(\S+)(?:[ \t]+-?[0-9.]+)?(?:[ \t]+#.*)?[ \t]*$", re.DOTALL)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Series:
    """One time series of a page: the sample's name as written, and its labels, unescaped."""

    name: str
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """The wanted series of a page in page order.  Identity means equality: see the module's docstring."""

    series: tuple[Series, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Values:
    """One page's numbers: ``numbers[i]`` belongs to ``layout.series[i]``."""

    layout: Layout
    numbers: list[float]
    complete: bool = True  # False: the page ends in the middle of a line
    oddities: Mapping[str, int] = field(default_factory=lambda: EMPTY)


class PageReader:
    """Reads the pages of one replica; owned by the one thread that polls it."""

    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted
        self._forget()

    def _forget(self) -> None:
        self._slots: dict[bytes, int] = {}
        self._series: list[Series] = []
        self._cached_bytes = 0
        self._seen: list[int] = []
        self._layout = Layout(())
        self._places: Places | None = None
        self._since_full = 0

    def read(self, body: bytes) -> Values:
        """Convert one page; raise PageError when it is no metrics page or is too large."""
        if b"\r" in body:
            body = body.replace(b"\r\n", b"\n")
        if self._places is not None and self._since_full < FULL_READING_EVERY:
            numbers = self._places.read(body)
            if numbers is not None:
                self._since_full += 1
                return Values(layout=self._layout, numbers=numbers)
        lines = body.split(b"\n")
        if len(lines) > MAX_LINES:
            raise PageError("too_many_lines", f"the page has {len(lines)} lines, more than {MAX_LINES} are not read")
        return self._read_fully(lines)

    def _read_fully(self, lines: list[bytes]) -> Values:
        if self._cached_bytes > MAX_CACHE_BYTES:
            self._forget()
        self._since_full = 0
        seen: list[int] = []
        texts: list[bytes] = []
        places: list[tuple[int, bytes]] = []
        odd: Counter[str] = Counter()
        stamped = False  # a time stamp or an exemplar follows a value: what stands before the last blank is no key
        get, saw, took, stood = self._slots.get, seen.append, texts.append, places.append
        for index, line in enumerate(lines):
            key, _, value = line.rpartition(b" ")
            slot = get(key)
            if slot is None:
                slot, value = self._unknown(line, key, value, odd)
                stamped = stamped or (slot >= 0 and get(key) != slot)
            if slot >= 0:
                saw(slot)
                took(value)
                stood((index, key))
        complete = not lines[-1] or lines[-1].startswith(b"#") or _series_and_value(lines[-1]) is not None
        values = self._values(seen, texts, complete=complete, odd=odd)
        plain = not lines[-1] and not odd and not stamped
        self._places = Places(lines, places, values.numbers) if plain and places else None
        return values

    def _values(self, seen: list[int], texts: list[bytes], *, complete: bool, odd: Counter[str]) -> Values:
        try:
            numbers = list(map(float, texts))
        except ValueError:
            seen, numbers = _convert_one_by_one(seen, texts, odd)
        if not seen and odd:
            raise PageError("not_metrics", "the answer has no line that is a Prometheus sample")
        if seen != self._seen:
            if len(set(seen)) != len(seen):
                seen, numbers = _first_of_each(seen, numbers, odd)
            if seen != self._seen:
                self._seen = seen
                self._layout = Layout(tuple([self._series[slot] for slot in seen]))
        return Values(layout=self._layout, numbers=numbers, complete=complete, oddities=dict(odd) if odd else EMPTY)

    def _unknown(self, line: bytes, key: bytes, value: bytes, odd: Counter[str]) -> tuple[int, bytes]:
        """Handle a line that the cache does not know; return its slot, or _IGNORED, and the value's text."""
        if not line or line.isspace():
            return _IGNORED, value
        if len(line) > MAX_LINE_BYTES:
            odd["long_line"] += 1
            return _IGNORED, value
        if line.startswith(b"#"):
            self._remember(key, _IGNORED)
            return _IGNORED, value
        parsed = _series_and_value(line)
        if parsed is None:
            odd["unreadable"] += 1
            if odd["unreadable"] > MAX_UNREADABLE:
                raise PageError("not_metrics", f"more than {MAX_UNREADABLE} lines are no Prometheus samples")
            return _IGNORED, value
        text, series, value = parsed
        slot = self._slots.get(text)  # the cache may know the series without this line's time stamp
        if slot is None:
            slot = _IGNORED
            if self._wanted(series.name):
                slot = len(self._series)
                self._series.append(series)
            self._remember(text, slot)
        return slot, value

    def _remember(self, text: bytes, slot: int) -> None:
        self._cached_bytes += len(text) + 100
        if slot >= 0 or self._cached_bytes <= MAX_CACHE_BYTES:
            self._slots[text] = slot


def holds_samples(body: bytes) -> bool:
    """Say whether any of a page's first lines is a sample at all, of whatever name."""
    lines = body.split(b"\n", _GLANCE)[:_GLANCE]
    return any(len(line) <= MAX_LINE_BYTES and _series_and_value(line.rstrip(b"\r")) is not None for line in lines)


def _convert_one_by_one(seen: list[int], texts: list[bytes], odd: Counter[str]) -> tuple[list[int], list[float]]:
    slots, numbers = [], []
    for slot, text in zip(seen, texts, strict=True):
        try:
            numbers.append(float(text))
        except ValueError:  # noqa: PERF203 - only pages with a bad value come here
            odd["bad_value"] += 1
        else:
            slots.append(slot)
    return slots, numbers


def _first_of_each(seen: list[int], numbers: list[float], odd: Counter[str]) -> tuple[list[int], list[float]]:
    first: dict[int, float] = {}
    for slot, number in zip(seen, numbers, strict=True):
        if first.setdefault(slot, number) is not number:
            odd["duplicate"] += 1
    return list(first), list(first.values())


def _series_and_value(line: bytes) -> tuple[bytes, Series, bytes] | None:
    """Parse one sample line whole: (text of the series, the series, text of the value); None: unreadable."""
    name = _NAME.match(line)
    if name is None:
        return None
    end = name.end()
    labels: dict[str, str] | None = {}
    if line[end : end + 1] == b"{":
        labels, end = _labels(line, end + 1)
    rest = _REST.match(line, end)
    if labels is None or rest is None:
        return None
    return line[:end], Series(sys.intern(name[0].decode("ascii")), labels), rest[1]


def _labels(line: bytes, position: int) -> tuple[dict[str, str] | None, int]:
    """Parse labels up to the closing brace; None when malformed, repeated or not UTF-8."""
    labels: dict[str, str] = {}
    comma = True
    while line[position : position + 1] != b"}":
        match = _LABEL.match(line, position)
        if match is None or not comma:
            return None, position
        name = sys.intern(match[1].decode("ascii"))  # thousands of series share few words: 3 MiB at eight replicas
        try:
            text = match[2].decode("utf-8")
        except UnicodeDecodeError:
            return None, position
        if name in labels:
            return None, position
        labels[name] = sys.intern(_ESCAPE.sub(_unescape, text) if "\\" in text else text)
        comma = match[3] is not None
        position = match.end()
    return labels, position + 1


def _unescape(match: re.Match[str]) -> str:
    return "\n" if match[1] == "n" else match[1]
