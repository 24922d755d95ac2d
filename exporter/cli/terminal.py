"""Text for a terminal: what names may hold, how wide it is, and how long something took."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from exporter.model.text import Language, Text
from exporter.web.values import width

MAX_LETTERS = 300
_UNITS = (
    (86_400.0, Text(" d", " 天")),
    (3600.0, Text(" h", " 小时")),
    (60.0, Text(" min", " 分钟")),
    (0.0, Text(" s", " 秒")),
)
_MAX_DAYS = 9999.0


def printable(text: str) -> str:
    """Return text that cannot move the cursor or reverse the line, cut; names and labels may be hostile."""
    cut = text if len(text) <= MAX_LETTERS else f"{text[: MAX_LETTERS - 1]}…"
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in cut)


def padded(text: str, columns: int) -> str:
    """Return the text with spaces to its right; a Chinese character takes two columns."""
    return text + " " * (columns - width(text))


def shortened(text: str, columns: int) -> str:
    """Return the text, cut with an ellipsis where it takes more columns."""
    if width(text) <= columns:
        return text
    taken, kept = 1, []
    for letter in text:
        taken += width(letter)
        if taken > columns:
            break
        kept.append(letter)
    return f"{''.join(kept)}…"


def wrapped(text: str, columns: int) -> Iterator[str]:
    """Return the text in lines that fit, broken at spaces if it has any; those after the first are indented more."""
    indent = " " * (len(text) - len(text.lstrip()) + 2)
    while width(text) > columns:
        most = len(shortened(text, columns + 1)) - 1  # characters, without the ellipsis
        cut = text.rfind(" ", len(indent), most + 1)
        cut = cut if cut > 0 else max(most, len(indent) + 1)
        yield text[:cut].rstrip()
        text = indent + text[cut:].lstrip()
    yield text


def duration(seconds: float, language: Language) -> str:
    """Return a duration in its largest unit, such as 5 min."""
    size, unit = next(unit for unit in _UNITS if seconds >= 2 * unit[0])
    number = min(seconds / (size or 1.0), _MAX_DAYS)
    return f"{number:.0f}{unit.in_(language)}"


def painter(*, enabled: bool) -> Callable[[str, str], str]:
    """Return a function of an ANSI colour and a text."""

    def paint(colour: str, text: str) -> str:
        return f"\x1b[{colour}m{text}\x1b[0m" if enabled else text

    return paint
