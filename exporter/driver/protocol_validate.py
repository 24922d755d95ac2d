"""What may come out of the pipe: each check gives the value, or raises ValueError, TypeError or AttributeError."""

from __future__ import annotations

from math import isfinite
from typing import Any

_MAX_TEXT = 512
_NUMBERS = frozenset({int, float})  # not bool, which is an int


def number(raw: Any) -> float:
    """Accept a finite number."""
    if type(raw) not in _NUMBERS or not isfinite(raw):
        raise ValueError
    return float(raw)


def numbers(raw: dict[str, Any]) -> dict[str, float]:
    """Accept an object of finite numbers; there are hundreds in a second, hence no call for each."""
    values = raw.values()
    if not (_NUMBERS.issuperset(map(type, values)) and all(map(isfinite, values))):
        raise ValueError
    return dict(zip(raw, map(float, values), strict=True))


def count(raw: Any) -> int:
    """Accept an integer that can be counted to."""
    if isinstance(raw, bool) or not isinstance(raw, int) or not 0 <= raw < 2**53:
        raise ValueError
    return raw


def text(raw: Any) -> str:
    """Accept a text, cut to what a log line or label can carry."""
    if not isinstance(raw, str):
        raise TypeError
    return raw[:_MAX_TEXT]


def word(raw: Any) -> str:
    """Accept a reason: it becomes a label value, so it must be one short word."""
    if not isinstance(raw, str) or not raw.isidentifier() or not raw.isascii() or len(raw) > 32:
        raise ValueError
    return raw


def flag(raw: Any) -> bool:
    """Accept true or false."""
    if not isinstance(raw, bool):
        raise TypeError
    return raw
