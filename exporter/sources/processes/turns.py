"""Takes items in turns, so that whoever has many hides nobody else's."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import zip_longest
from typing import TypeVar

_T = TypeVar("_T")


def in_turns(items: Iterable[_T], group: Callable[[_T], object]) -> list[_T]:
    """Return the items in turns: the first of every group, then the second of every group, and so on."""
    groups: dict[object, list[_T]] = {}
    for item in items:
        groups.setdefault(group(item), []).append(item)
    return [item for turn in zip_longest(*groups.values()) for item in turn if item is not None]
