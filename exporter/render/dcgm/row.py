"""What a row of a dialect is, and what a dialect is."""

from __future__ import annotations

from msgspec import Struct

from exporter.render.dcgm.value import Split, Value


class DcgmRow(Struct, frozen=True, kw_only=True):
    """One family of a dialect; exactly one of ``value`` and ``split``."""

    name: str
    kind: str  # gauge or counter
    help: str
    value: Value | None = None
    split: Split | None = None  # instead: several samples of one card, told apart by labels of their own


class Dialect(Struct, frozen=True, kw_only=True):
    """One set of names, and the spelling of the two labels that changed with it."""

    hostname_label: str
    driver_label: str
    default: tuple[DcgmRow, ...]  # what DCGM's exporter shows unless told otherwise, as far as we have it
    more: tuple[DcgmRow, ...]  # what people commonly switch on


def gauge(name: str, help_: str, value: Value) -> DcgmRow:
    """Make a row that may fall."""
    return DcgmRow(name=name, kind="gauge", help=help_, value=value)


def counter(name: str, help_: str, value: Value) -> DcgmRow:
    """Make a row that only rises."""
    return DcgmRow(name=name, kind="counter", help=help_, value=value)
