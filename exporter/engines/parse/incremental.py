"""Reads a page by where the wanted lines stood on the page before, and converts only the stretches that changed.

A page is kept as stretches: some lines that stand together and are all wanted, or all the lines between two such.
Of a wanted stretch the text is kept, so that one that is the same again costs one comparison; any other is cut into
lines, and those that changed are checked for their series' text and converted.  Of an unwanted stretch only the size
is looked at, and when that changed, the number of its lines.  Whatever does not fit is left to the full reading.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_MOST_LINES = 24  # of a wanted stretch; about one histogram
_SLACK = 8  # bytes by which each line of a stretch may have become shorter before its end is not found


def number(text: bytes) -> float:
    """Convert a sample's value; raises ValueError also for 1_0, which is a number for Python only."""
    if b"_" in text:
        raise ValueError
    return float(text)


@dataclass(slots=True)
class _Stretch:
    """``lines`` of a page; ``first``: the place of the first of their numbers.

    ``after``: how the line behind it begins, from the line end before it on; empty at the end of the page.  ``size``
    (bytes), and of a wanted stretch ``text``, are those of the last page.
    ``starts``: where in a line the number begins; none where the lines are not wanted.
    """

    lines: int
    first: int
    after: bytes
    size: int
    text: bytes
    starts: list[int]

    def end(self, body: bytes, start: int) -> int:
        """Find where the stretch that starts there ends; 0 when it does not end near the place where it did."""
        if not self.after:
            return len(body)
        return body.find(self.after, max(start, start + self.size - 1 - _SLACK * self.lines)) + 1

    def convert(self, text: bytes, numbers: list[float]) -> bool:
        """Put what changed among ``numbers``; False when anything is not as it was."""
        lines, known = text.split(b"\n"), self.text.split(b"\n")  # kept in lines it would take 0.8 MiB more
        if len(lines) != len(known):
            return False
        place = self.first
        for line, old, start in zip(lines, known, self.starts, strict=False):
            if line != old:
                if line[:start] != old[:start]:
                    return False
                numbers[place] = number(line[start:])
            place += 1
        self.text = text
        return True


class Places:
    """One page's stretches and numbers; owned by the reader of the page."""

    def __init__(self, lines: Sequence[bytes], wanted: Sequence[tuple[int, bytes]], numbers: list[float]) -> None:
        """``lines``: of a whole page, the last one empty.  ``wanted``: indices, and the series' texts."""
        self._numbers = numbers
        self._stretches: list[_Stretch] = []
        starts = _starts(wanted)
        at = 0
        for first, end in zip(starts, [*starts[1:], len(wanted)], strict=True):
            line = wanted[first][0]
            self._add(lines, at, line, first, [])
            at = line + end - first
            self._add(lines, line, at, first, [len(key) + 1 for _, key in wanted[first:end]])
        self._add(lines, at, len(lines) - 1, len(wanted), [])

    def _add(self, lines: Sequence[bytes], begin: int, end: int, first: int, starts: list[int]) -> None:
        if begin == end:
            return
        here = [*lines[begin:end], b""]
        text = b"\n".join(here)
        stretch = _Stretch(
            lines=end - begin,
            first=first,
            after=b"" if end == len(lines) - 1 else b"\n" + lines[end].rpartition(b" ")[0] + b" ",
            size=len(text),
            text=text if starts else b"",
            starts=starts,
        )
        self._stretches.append(stretch)

    def read(self, body: bytes) -> list[float] | None:
        """Give the numbers of the next page, or None, once and for all, when anything stands elsewhere or is odd."""
        numbers = self._numbers.copy()
        try:
            fits = self._fill(numbers, body)
        except ValueError:  # a number that is none
            return None
        if not fits:
            return None
        self._numbers = numbers
        return numbers

    def _fill(self, numbers: list[float], body: bytes) -> bool:
        at = 0
        for stretch in self._stretches:
            if stretch.text and body.startswith(stretch.text, at):
                at += stretch.size
                continue
            end = stretch.end(body, at)
            if stretch.starts:
                if not stretch.convert(body[at:end], numbers):
                    return False
            elif end <= at or (end - at != stretch.size and body.count(b"\n", at, end) != stretch.lines):
                return False
            stretch.size = end - at
            at = end
        return at == len(body) and body.endswith(b"\n")


def _starts(wanted: Sequence[tuple[int, bytes]]) -> list[int]:
    """Give where, among the wanted lines, a new stretch begins."""
    starts: list[int] = []
    for place, (line, _) in enumerate(wanted):
        if not starts or line != wanted[place - 1][0] + 1 or place - starts[-1] == _MOST_LINES:
            starts.append(place)
    return starts
