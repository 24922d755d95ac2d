"""Convert pages of Prometheus text to numbers, with a cache that learns the series once.

An engine repeats the same few hundred series on every page; only the numbers change.  The reader keeps a map from
the series' text (name and labels, as bytes) to a slot, so that a known line costs one split, one look-up and one
float.  Lines never seen before are parsed properly, once.  The cache needs no order and no exact layout; when the
wanted lines come in the same order as last time (they do), the very same ``Layout`` object is returned again, and
whoever compiled something for it may keep using it.

A large page whose series are mostly new is remembered only when they come a second time; until then 8 bytes a series
are kept, so that label values which change on every page take no memory.

When they even stand at the same lines as last time, the page is read by ``incremental``.  What that could miss, a
wanted series that appears where an unwanted one vanished, is found by the full reading every ``FULL_READING_EVERY``
pages.

No input is trusted: lines of a page, bytes of a line and bytes of the cache are bounded; an unreadable line is
skipped and counted, a repeated series keeps its first value, timestamps and exemplars are ignored.  Where a server
ends its pages with a line end, a last line without one is unreadable, though Prometheus accepts it: its number may be
truncated, and read as a restart.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable

from exporter.engines.parse.churn import SeriesChurn
from exporter.engines.parse.incremental import DeltaReader, number
from exporter.engines.parse.layout import Layout, Values
from exporter.engines.parse.line import NAME, text_and_value
from exporter.errors import PageError
from exporter.model import EMPTY

Wanted = Callable[[str], bool]  # decides by the name of a sample whether its value is needed

MAX_LINES = 40_000  # 20,000 samples and their comments; the largest real page seen has 7,000 lines
MAX_LINE_BYTES = 16 * 1024
MAX_CACHE_BYTES = 2 * 1024 * 1024  # of series text per replica; a page that has more is refused
MAX_UNREADABLE = 1_000  # more than this is not a metrics page

REMEMBERED_AT_ONCE = 128 * 1024  # bytes of new series text, as counted for MAX_CACHE_BYTES

FULL_READING_EVERY = 32  # pages
_MAX_STALE = 500  # series that the newest page lacks and the cache keeps
_SNIFFED_LINES = 1_000  # lines that tell a metrics page from anything else

_IGNORED = -1
_SLOT_BYTES = 100  # of a cached series beside its text


class PageReader:
    """Reads the pages of one replica; owned by the one thread that polls it."""

    def __init__(self, wanted: Wanted, churn: SeriesChurn | None = None) -> None:
        """``churn``: what was counted of this replica so far; None: nothing."""
        self._wanted = wanted
        self._churn = churn or SeriesChurn()
        self._hashes = array("q")  # of the series of the newest page that was not remembered
        self._reset()

    def _reset(self) -> None:
        self._slots: dict[bytes, int] = {}
        self._texts: list[bytes] = []  # by slot; the very objects that are keys of _slots
        self._unwanted: set[bytes] = set()  # names
        self._cached_bytes = self._learned = self._learned_bytes = 0
        self._seen: list[int] = []
        self._layout = Layout(())
        self._delta_reader: DeltaReader | None = None
        self._since_full = 0
        self._ends_lines = False  # whether a page ended with a line end

    def read(self, body: bytes) -> Values:
        """Convert one page; raise PageError when it is no metrics page or is too large."""
        return self.read_known(body) or self.read_fully(body)

    def read_known(self, body: bytes) -> Values | None:
        """Convert a page whose lines are those of the last one; None for any other, to ``read_fully``."""
        if b"\r" in body:
            body = body.replace(b"\r\n", b"\n")
        # Taken away first: after a page that does not fit they are good for nothing, also if that page is refused.
        delta_reader, self._delta_reader = self._delta_reader, None
        if delta_reader is not None and self._since_full < FULL_READING_EVERY:
            numbers = delta_reader.read(body)
            if numbers is not None:
                self._delta_reader = delta_reader
                self._since_full += 1
                return Values(layout=self._layout, numbers=numbers)
        return None

    def read_fully(self, body: bytes) -> Values:
        """Convert any page, which may take megabytes for a moment; raise PageError as ``read``."""
        if b"\r" in body:
            body = body.replace(b"\r\n", b"\n")
        lines = body.split(b"\n")
        if len(lines) > MAX_LINES:
            raise PageError("too_many_lines", f"the page has {len(lines)} lines, more than {MAX_LINES} are not read")
        self._churn.admit(lines)
        return self._read_fully(lines)

    def _read_fully(self, lines: list[bytes]) -> Values:
        self._since_full = self._learned = self._learned_bytes = 0
        seen: list[int] = []
        texts: list[bytes] = []
        wanted: list[tuple[int, bytes]] = []
        warnings: Counter[str] = Counter()
        timestamped = False  # a timestamp or an exemplar follows a value: what stands before the last blank is no key
        get, add_slot, add_text, add_line = self._slots.get, seen.append, texts.append, wanted.append
        for index, line in enumerate(lines):
            key, _, value = line.rpartition(b" ")
            slot = get(key)
            if slot is None:
                slot, value = self._unknown(line, value, warnings)
                timestamped = timestamped or (slot >= 0 and get(key) != slot)
            if slot >= 0:
                add_slot(slot)
                add_text(value)
                add_line((index, key))
        new = self._new([key for _, key in wanted])
        try:
            self._churn.check(new, lines, len(seen))
        except PageError:
            self._reset()
            raise
        self._ends_lines = self._ends_lines or not lines[-1]
        complete = not lines[-1] or lines[-1].startswith(b"#")
        if not (complete or self._ends_lines):
            complete = text_and_value(lines[-1]) is not None
        if not complete and wanted and wanted[-1][0] == len(lines) - 1:  # its number may be truncated
            del seen[-1], texts[-1], wanted[-1]
            warnings["unreadable"] += 1
        values = self._values(seen, texts, complete=complete, warnings=warnings)
        plain = not lines[-1] and not warnings and not timestamped
        if self._learned_bytes > REMEMBERED_AT_ONCE and 2 * new > len(seen):
            self._reset()
            return values
        self._delta_reader = DeltaReader(lines, wanted, values.numbers) if plain and wanted else None
        if self._cached_bytes > MAX_CACHE_BYTES or len(self._texts) > len(self._seen) + _MAX_STALE:
            self._forget_stale()
        return values

    def _new(self, keys: list[bytes]) -> int:
        """Return how many series of the page that was read are new, also where the page before was not remembered."""
        if self._learned_bytes <= REMEMBERED_AT_ONCE:
            self._hashes = array("q")
            return self._learned
        known, self._hashes = self._hashes, array("q", map(hash, keys))
        return min(self._learned, len(set(self._hashes).difference(known)))

    def _forget_stale(self) -> None:
        """Drop series but those of the newest page; raise PageError ``series_too_large`` if they are too large."""
        texts = [self._texts[slot] for slot in self._seen]
        kept_bytes = sum([len(text) + _SLOT_BYTES for text in texts])
        if kept_bytes > MAX_CACHE_BYTES:
            raise self._series_too_large()
        if self._cached_bytes > MAX_CACHE_BYTES:
            self._unwanted.clear()
        self._texts = texts
        self._slots = {text: slot for slot, text in enumerate(texts)}
        self._seen = list(range(len(texts)))
        self._cached_bytes = kept_bytes + sum([len(name) + _SLOT_BYTES for name in self._unwanted])

    def _values(self, seen: list[int], texts: list[bytes], *, complete: bool, warnings: Counter[str]) -> Values:
        try:
            numbers = list(map(number, texts))
        except ValueError:
            seen, numbers = _convert_one_by_one(seen, texts, warnings)
        if not seen and warnings:
            raise PageError("not_metrics", "the answer has no line that is a Prometheus sample")
        if seen != self._seen:
            if len(set(seen)) != len(seen):
                seen, numbers = _first_of_each(seen, numbers, warnings)
            if seen != self._seen:
                self._seen = seen
                self._layout = Layout(tuple([self._texts[slot] for slot in seen]))
        return Values(
            layout=self._layout,
            numbers=numbers,
            complete=complete,
            parse_warnings=dict(warnings) if warnings else EMPTY,
        )

    def _unknown(self, line: bytes, value: bytes, warnings: Counter[str]) -> tuple[int, bytes]:
        """Return the slot of a line that the cache does not know, or _IGNORED, and the value's text."""
        if not line or line.isspace():
            return _IGNORED, value
        if len(line) > MAX_LINE_BYTES:
            warnings["long_line"] += 1
            return _IGNORED, value
        name = NAME.match(line)
        if line.startswith(b"#") or (name is not None and name[0] in self._unwanted):
            return _IGNORED, value
        parsed = text_and_value(line)
        if parsed is None:
            warnings["unreadable"] += 1
            if warnings["unreadable"] > MAX_UNREADABLE:
                raise PageError("not_metrics", f"more than {MAX_UNREADABLE} lines are no Prometheus samples")
            return _IGNORED, value
        text, value = parsed
        slot = self._slots.get(text)  # the cache may know the series without this line's timestamp
        return (self._learn(text) if slot is None else slot), value

    def _learn(self, text: bytes) -> int:
        """Assign a series that was never seen a slot, or _IGNORED, of which only the name is remembered."""
        name = text.partition(b"{")[0]
        wanted = self._wanted(name.decode("ascii"))
        self._cached_bytes += len(text if wanted else name) + _SLOT_BYTES
        self._learned += 1
        if wanted:
            self._learned_bytes += len(text) + _SLOT_BYTES
            if self._learned_bytes > MAX_CACHE_BYTES:
                raise self._series_too_large()
            self._slots[text] = len(self._texts)
            self._texts.append(text)
            return self._slots[text]
        if self._cached_bytes <= MAX_CACHE_BYTES:
            self._unwanted.add(name)
        return _IGNORED

    def _series_too_large(self) -> PageError:
        """Drop every series, and return the refusal; the count of new series stays, or size would reset it."""
        self._reset()
        limit = f"{MAX_CACHE_BYTES >> 20} MiB"
        return PageError("series_too_large", f"the names and labels of the page's series take more than {limit}")


def holds_samples(body: bytes) -> bool:
    """Return whether any of a page's first lines is a sample at all, of whatever name."""
    lines = body.split(b"\n", _SNIFFED_LINES)[:_SNIFFED_LINES]
    return any(len(line) <= MAX_LINE_BYTES and text_and_value(line.rstrip(b"\r")) is not None for line in lines)


def _convert_one_by_one(seen: list[int], texts: list[bytes], warnings: Counter[str]) -> tuple[list[int], list[float]]:
    slots, numbers = [], []
    for slot, text in zip(seen, texts, strict=True):
        try:
            numbers.append(number(text))
        except ValueError:  # noqa: PERF203 - only pages with a bad value come here
            warnings["bad_value"] += 1
        else:
            slots.append(slot)
    return slots, numbers


def _first_of_each(seen: list[int], numbers: list[float], warnings: Counter[str]) -> tuple[list[int], list[float]]:
    first: dict[int, float] = {}
    for slot, value in zip(seen, numbers, strict=True):
        if first.setdefault(slot, value) is not value:
            warnings["duplicate"] += 1
    return list(first), list(first.values())
