"""The time that a figure covers."""

from __future__ import annotations

from typing import NamedTuple


class Window(NamedTuple):
    """A window that ends now: its name in the label ``window`` ("5m"), and its length."""

    label: str
    seconds: float
