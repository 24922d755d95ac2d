"""Read a page by where the wanted lines stood on the previous page, converting only the segments that changed.

A page is kept as segments: adjacent lines that are all wanted, or all the lines between two such.  Of a wanted
segment the text is kept, so that an unchanged one costs one comparison; any other is split into lines, and those that
changed are checked for their series' text and converted.  Of an unwanted segment only the size is compared, and if
that changed, the number of its lines.  Whatever does not fit is left to the full reading.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

_MAX_LINES = 24  # of a wanted segment; about one histogram
_SLACK = 8  # bytes by which each line of a segment may have become shorter before its end is not found


def number(text: bytes) -> float:
    """Convert a sample's value; raises ValueError also for 1_0, which is a number for Python only."""
    if b"_" in text:
        raise ValueError
    return float(text)


class _Segment(Struct):
    """``lines`` of a page; ``first``: the index of the first of their numbers.

    ``after``: how the line behind it begins, from the line end before it on; empty at the end of the page.  ``size``
    (bytes), and of a wanted segment ``text``, are those of the last page.
    ``starts``: where in a line the number begins; none where the lines are not wanted.
    """

    lines: int
    first: int
    after: bytes
    size: int
    text: bytes
    starts: list[int]

    def end(self, body: bytes, start: int) -> int:
        """Return where the segment that starts there ends; 0 if not near where it did."""
        if not self.after:
            return len(body)
        return body.find(self.after, max(start, start + self.size - 1 - _SLACK * self.lines)) + 1

    def update(self, text: bytes, numbers: list[float]) -> bool:
        """Write what changed into ``numbers``; return False if the lines no longer fit."""
        lines, known = text.split(b"\n"), self.text.split(b"\n")  # kept in lines it would take 0.8 MiB more
        if len(lines) != len(known):
            return False
        index = self.first
        for line, old, start in zip(lines, known, self.starts, strict=False):
            if line != old:
                if line[:start] != old[:start]:
                    return False
                numbers[index] = number(line[start:])
            index += 1
        self.text = text
        return True


class DeltaReader:
    """Reads a page from the differences to the previous one; owned by the reader of the page."""

    def __init__(self, lines: Sequence[bytes], wanted: Sequence[tuple[int, bytes]], numbers: list[float]) -> None:
        """``lines``: of a whole page, the last one empty.  ``wanted``: indices, and the series' texts."""
        self._numbers = numbers
        self._segments: list[_Segment] = []
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
        own = [*lines[begin:end], b""]
        text = b"\n".join(own)
        segment = _Segment(
            lines=end - begin,
            first=first,
            after=b"" if end == len(lines) - 1 else b"\n" + lines[end].rpartition(b" ")[0] + b" ",
            size=len(text),
            text=text if starts else b"",
            starts=starts,
        )
        self._segments.append(segment)

    def read(self, body: bytes) -> list[float] | None:
        """Return the numbers of the next page; None if any line moved or is malformed, and then always."""
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
        for segment in self._segments:
            if segment.text and body.startswith(segment.text, at):
                at += segment.size
                continue
            end = segment.end(body, at)
            if segment.starts:
                if not segment.update(body[at:end], numbers):
                    return False
            elif end <= at or (end - at != segment.size and body.count(b"\n", at, end) != segment.lines):
                return False
            segment.size = end - at
            at = end
        return at == len(body) and body.endswith(b"\n")


def _starts(wanted: Sequence[tuple[int, bytes]]) -> list[int]:
    """Return where, among the wanted lines, a new segment begins."""
    starts: list[int] = []
    for index, (line, _) in enumerate(wanted):
        if not starts or line != wanted[index - 1][0] + 1 or index - starts[-1] == _MAX_LINES:
            starts.append(index)
    return starts
