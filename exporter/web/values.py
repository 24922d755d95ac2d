"""Numbers as people read them, and names that cannot do harm."""

from __future__ import annotations

import time
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from exporter.diagnosis import thresholds as limit
from exporter.model.text import Language, Text
from exporter.web.texts import Words

ABSENT = "–"
MAX_NAME = 64  # characters that are shown of a name
MAX_EVIDENCE = 160
MAX_SENTENCE = 400
TOO_OLD = 15.0  # seconds; as for the metrics endpoint
MAX_MARKS = 3  # combining ones, on one letter
_COMBINING = frozenset({"Mn", "Me"})
_GIB = 2**30
_Figures = TypeVar("_Figures")
_Default = TypeVar("_Default")


def clean(text: str, length: int = MAX_NAME) -> str:
    """Return at most ``length`` characters that neither move a cursor nor change the direction of the line.

    Nor do they pile up on one another: languages need a few combining marks on a letter, and harm needs many.
    """
    short = text if len(text) <= length else f"{text[: length - 1]}…"
    if short.isascii() and short.isprintable():
        return short
    kept, marks = [], MAX_MARKS  # none at the start, where they would join what stands before
    for character in short:
        marks = marks + 1 if unicodedata.category(character) in _COMBINING else 0
        kept.append(character if character.isprintable() and marks <= MAX_MARKS else "\ufffd")
    return "".join(kept)


def width(text: str) -> int:
    """Return how many columns of a terminal a text takes; a Chinese character takes two, a combining mark none."""
    return len(text) if text.isascii() else sum(_columns(character) for character in text)


def _columns(character: str) -> int:
    if unicodedata.category(character) in _COMBINING:
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def first(items: Sequence[str], number: int, words: Words) -> list[str]:
    """Return the first items, and as a last one how many more there are."""
    left = len(items) - number
    return [*items[:number], *([words("more_items").format(count=left)] if left > 0 else [])]


def window(label: str, words: Words) -> str:
    """Return the length of a window by its label, such as 5m."""
    name = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}.get(label[-1:])
    return clean(label) if name is None else words(name).format(count=clean(label[:-1]))


def judged(windows: Mapping[str, _Figures], default: _Default) -> _Figures | _Default:
    """Return the figures of the window that findings judge by, else of the longest that there is."""
    known = [label for label in windows if label != "lifetime"]
    return windows[_judged(known)] if known else default


def _judged(labels: Sequence[str]) -> str:
    return limit.WINDOW if limit.WINDOW in labels else labels[-1]


def windows_note(windows: Mapping[str, object], key: str, words: Words) -> str:
    """Return over which time a table's values are; errors as the findings about them judge."""
    known = [label for label in windows if label != "lifetime"]
    if not known:
        return ""
    return words(key).format(window=window(known[0], words), errors=window(_judged(known), words))


def percent(value: float | None) -> str:
    """Return a ratio as a percentage, with a digit more where it is small."""
    if value is None:
        return ABSENT
    return f"{value:.1%}" if 0 < value < 0.0995 else f"{value:.0%}"


def count(value: float | None) -> str:
    """Return a number without unit."""
    return ABSENT if value is None else f"{value:,.0f}"


def seconds(value: float | None) -> str:
    """Return a latency."""
    if value is None:
        return ABSENT
    return f"{value * 1e3:.1f} ms" if value < 0.1 else f"{value * 1e3:.0f} ms" if value < 1 else f"{value:.2f} s"


def named(name: str, value: float | None) -> str:
    """Return a latency behind its name, "" where it is not known."""
    return "" if value is None else f"{name} {seconds(value)}"


def gibibytes(value: float | None) -> str:
    """Return bytes in GiB."""
    return ABSENT if value is None else f"{value / _GIB:.1f} GiB"


def gigabits(value: float | None) -> str:
    """Return bytes per second in Gb/s, as rates of links are known."""
    return ABSENT if value is None else f"{value * 8 / 1e9:g} Gb/s"


def unit(value: float | None, name: str, scale: float = 1.0) -> str:
    """Return a whole number with its unit."""
    return ABSENT if value is None else f"{value * scale:.0f} {name}"


def age(value: float | None, words: Words) -> str:
    """Return how long something takes or lasts, in its greatest unit."""
    if value is None:
        return ABSENT
    for name, size in (("days", 86_400), ("hours", 3_600), ("minutes", 60)):
        if value >= 2 * size:
            return words(name).format(count=int(value // size))
    return words("seconds").format(count=int(value))


def clock(unix_time: float, now: float) -> str:
    """Return a time of day in UTC, with the date where it is not of the last day."""
    return time.strftime("%H:%M:%S" if now - unix_time < 86_400 else "%Y-%m-%d %H:%M", time.gmtime(unix_time))


def evidence(value: float | str | Text, unit_name: str, language: Language) -> str:
    """Return the value of a piece of evidence with its unit, which may be ""."""
    text = value.in_(language) if isinstance(value, Text) else value
    if isinstance(text, str):
        return clean(text, MAX_EVIDENCE)
    write = _UNITS.get(unit_name)
    if write is None:
        return f"{text:g}" if abs(text) < 1000 else count(text)
    return write(text)


_UNITS: Mapping[str, Callable[[float], str]] = {
    "ratio": lambda value: f"{value:.2f}" if value > 1 else percent(value),
    "bytes": gibibytes,
    "hertz": lambda value: unit(value, "MHz", 1e-6),
    "celsius": lambda value: unit(value, "°C"),
    "watts": lambda value: unit(value, "W"),
    "seconds": seconds,
}


def ranges(labels: Iterable[str]) -> str:
    """Return GPU numbers, four or more in a row as a range: 0–7; anything else one by one."""
    out: list[str] = []
    run: list[str] = []
    for label in [*sorted(labels, key=lambda label: (len(label), label)), ""]:
        if run and _is_number(label) and _is_number(run[-1]) and int(label) == int(run[-1]) + 1:
            run.append(label)
            continue
        out += [f"{run[0]}–{run[-1]}"] if len(run) >= 4 else run
        run = [label] if label else []
    return clean(" ".join(out))


def _is_number(label: str) -> bool:
    return label.isdecimal() and len(label) <= 6
