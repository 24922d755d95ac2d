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
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from exporter.engines.parse.incremental import Places, number
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
_BLANKS = re.compile(rb"[ \t]*")
_REST = re.compile(rb"(?:(?<=\})|[ \t])[ \t]*(\S+)(?:[ \t]+-?[0-9.]+)?(?:[ \t]+#.*)?[ \t]*$", re.DOTALL)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Series:
    """One time series of a page: the sample's name as written, and its labels, unescaped."""

    name: str
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """The wanted series of a page in page order.  Identity means equality: see the module's docstring."""

    texts: tuple[bytes, ...]  # name and labels as on the page, every one of them readable

    def series(self) -> list[Series]:
        """Parse the series, anew each time: they are asked for once, and kept they take 1.3 MiB at eight replicas."""
        return [found[0] for text in self.texts if (found := _series_and_end(text)) is not None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Values:
    """One page's numbers: ``numbers[i]`` belongs to ``layout.texts[i]``."""

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
        self._texts: list[bytes] = []  # by slot; the very objects that are keys of _slots
        self._unwanted: set[bytes] = set()  # names
        self._cached_bytes = 0
        self._seen: list[int] = []
        self._layout = Layout(())
        self._places: Places | None = None
        self._since_full = 0

    def read(self, body: bytes) -> Values:
        """Convert one page; raise PageError when it is no metrics page or is too large."""
        if b"\r" in body:
            body = body.replace(b"\r\n", b"\n")
        # Taken away first: after a page that does not fit they are good for nothing, also if that page is refused.
        places, self._places = self._places, None
        if places is not None and self._since_full < FULL_READING_EVERY:
            numbers = places.read(body)
            if numbers is not None:
                self._places = places
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
                slot, value = self._unknown(line, value, odd)
                stamped = stamped or (slot >= 0 and get(key) != slot)
            if slot >= 0:
                saw(slot)
                took(value)
                stood((index, key))
        complete = not lines[-1] or lines[-1].startswith(b"#") or _text_and_value(lines[-1]) is not None
        values = self._values(seen, texts, complete=complete, odd=odd)
        plain = not lines[-1] and not odd and not stamped
        self._places = Places(lines, places, values.numbers) if plain and places else None
        return values

    def _values(self, seen: list[int], texts: list[bytes], *, complete: bool, odd: Counter[str]) -> Values:
        try:
            numbers = list(map(number, texts))
        except ValueError:
            seen, numbers = _convert_one_by_one(seen, texts, odd)
        if not seen and odd:
            raise PageError("not_metrics", "the answer has no line that is a Prometheus sample")
        if seen != self._seen:
            if len(set(seen)) != len(seen):
                seen, numbers = _first_of_each(seen, numbers, odd)
            if seen != self._seen:
                self._seen = seen
                self._layout = Layout(tuple([self._texts[slot] for slot in seen]))
        return Values(layout=self._layout, numbers=numbers, complete=complete, oddities=dict(odd) if odd else EMPTY)

    def _unknown(self, line: bytes, value: bytes, odd: Counter[str]) -> tuple[int, bytes]:
        """Handle a line that the cache does not know; return its slot, or _IGNORED, and the value's text."""
        if not line or line.isspace():
            return _IGNORED, value
        if len(line) > MAX_LINE_BYTES:
            odd["long_line"] += 1
            return _IGNORED, value
        name = _NAME.match(line)
        if line.startswith(b"#") or (name is not None and name[0] in self._unwanted):
            return _IGNORED, value
        parsed = _text_and_value(line)
        if parsed is None:
            odd["unreadable"] += 1
            if odd["unreadable"] > MAX_UNREADABLE:
                raise PageError("not_metrics", f"more than {MAX_UNREADABLE} lines are no Prometheus samples")
            return _IGNORED, value
        text, value = parsed
        slot = self._slots.get(text)  # the cache may know the series without this line's time stamp
        return (self._learn(text) if slot is None else slot), value

    def _learn(self, text: bytes) -> int:
        """Give a series that was never seen its slot, or _IGNORED, of which only the name is remembered."""
        name = text.partition(b"{")[0]
        wanted = self._wanted(name.decode("ascii"))
        self._cached_bytes += len(text if wanted else name) + 100
        if wanted:
            self._slots[text] = len(self._texts)
            self._texts.append(text)
            return self._slots[text]
        if self._cached_bytes <= MAX_CACHE_BYTES:
            self._unwanted.add(name)
        return _IGNORED


def holds_samples(body: bytes) -> bool:
    """Say whether any of a page's first lines is a sample at all, of whatever name."""
    lines = body.split(b"\n", _GLANCE)[:_GLANCE]
    return any(len(line) <= MAX_LINE_BYTES and _text_and_value(line.rstrip(b"\r")) is not None for line in lines)


def _convert_one_by_one(seen: list[int], texts: list[bytes], odd: Counter[str]) -> tuple[list[int], list[float]]:
    slots, numbers = [], []
    for slot, text in zip(seen, texts, strict=True):
        try:
            numbers.append(number(text))
        except ValueError:  # noqa: PERF203 - only pages with a bad value come here
            odd["bad_value"] += 1
        else:
            slots.append(slot)
    return slots, numbers


def _first_of_each(seen: list[int], numbers: list[float], odd: Counter[str]) -> tuple[list[int], list[float]]:
    first: dict[int, float] = {}
    for slot, value in zip(seen, numbers, strict=True):
        if first.setdefault(slot, value) is not value:
            odd["duplicate"] += 1
    return list(first), list(first.values())


def _text_and_value(line: bytes) -> tuple[bytes, bytes] | None:
    """Check one sample line whole; give the text of its series and of its value, None when unreadable."""
    found = _series_and_end(line)
    rest = None if found is None else _REST.match(line, found[1])
    return None if found is None or rest is None else (line[: found[1]], rest[1])


def _series_and_end(line: bytes) -> tuple[Series, int] | None:
    """Parse what a line begins with: a name, and labels where there are any; None when unreadable."""
    name = _NAME.match(line)
    if name is None:
        return None
    labels: dict[str, str] = {}
    end = name.end()
    brace = _end_of_blanks(line, end)
    if line[brace : brace + 1] == b"{":
        end = _read_labels(line, _end_of_blanks(line, brace + 1), labels)
    return (Series(name[0].decode("ascii"), labels), end) if end else None


def _read_labels(line: bytes, position: int, labels: dict[str, str]) -> int:
    """Parse labels up to the closing brace and give its end; 0 when malformed, repeated or not UTF-8."""
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
