"""Numbers as people read them, and names that cannot do harm."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping

from exporter.model.finding import Evidence
from exporter.model.text import Language, Text
from exporter.web.texts import Words

ABSENT = "–"
MAX_NAME = 64  # characters that are shown of a name
MAX_EVIDENCE = 160
MAX_SENTENCE = 400
TOO_OLD = 15.0  # seconds; as for the metrics endpoint
_GIB = 2**30


def clean(text: str, length: int = MAX_NAME) -> str:
    """Return at most ``length`` characters that neither move a cursor nor change the direction of the line."""
    short = text if len(text) <= length else f"{text[: length - 1]}…"
    return short if short.isprintable() else "".join(c if c.isprintable() else "\ufffd" for c in short)


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


def gibibytes(value: float | None) -> str:
    """Return bytes in GiB."""
    return ABSENT if value is None else f"{value / _GIB:.1f} GiB"


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


def evidence(item: Evidence, language: Language) -> str:
    """Return the value of a piece of evidence."""
    value = item.value.in_(language) if isinstance(item.value, Text) else item.value
    if isinstance(value, str):
        return clean(value, MAX_EVIDENCE)
    write = _UNITS.get(item.unit)
    return f"{value:g}" if write is None else write(value)


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
