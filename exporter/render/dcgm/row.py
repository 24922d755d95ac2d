"""Rows and dialects."""

from __future__ import annotations

from msgspec import Struct

from exporter.render.dcgm.value import Split, Value


class DcgmRow(Struct, frozen=True, kw_only=True):
    """One metric family of a dialect; exactly one of ``value`` and ``split``."""

    name: str
    kind: str  # gauge or counter
    help: str
    value: Value | None = None
    split: Split | None = None  # several samples of one GPU, with labels of their own


class Dialect(Struct, frozen=True, kw_only=True):
    """One set of names, and the spelling of the two labels that differ."""

    hostname_label: str
    driver_label: str
    default: tuple[DcgmRow, ...]  # what DCGM's exporter has by default, as far as it is known here
    more: tuple[DcgmRow, ...]  # commonly enabled fields


def gauge(name: str, help_: str, value: Value) -> DcgmRow:
    """Return the row of a gauge."""
    return DcgmRow(name=name, kind="gauge", help=help_, value=value)


def counter(name: str, help_: str, value: Value) -> DcgmRow:
    """Return the row of a counter."""
    return DcgmRow(name=name, kind="counter", help=help_, value=value)
