"""Numbers with units as people write them: ``85%``, ``8 celsius``, ``500ms``, ``10 per second``."""

from __future__ import annotations

import re
from collections.abc import Mapping

from exporter.catalog.spec import Unit
from exporter.config.parsers import Invalid

_QUANTITY = re.compile(r"([-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)\s*([A-Za-z%°/ ]*)\Z")
_SPAN = re.compile(r"[1-9]\d*[smhd]\Z")
_UNITS: Mapping[str, tuple[Unit, float]] = {
    "%": (Unit.RATIO, 0.01), "percent": (Unit.RATIO, 0.01), "ratio": (Unit.RATIO, 1),
    "ms": (Unit.SECONDS, 0.001), "s": (Unit.SECONDS, 1), "seconds": (Unit.SECONDS, 1),
    "m": (Unit.SECONDS, 60), "minutes": (Unit.SECONDS, 60), "h": (Unit.SECONDS, 3600), "hours": (Unit.SECONDS, 3600),
    "d": (Unit.SECONDS, 86_400), "days": (Unit.SECONDS, 86_400),
    "celsius": (Unit.CELSIUS, 1), "C": (Unit.CELSIUS, 1), "°C": (Unit.CELSIUS, 1),
    "watts": (Unit.WATTS, 1), "W": (Unit.WATTS, 1),
    "bytes": (Unit.BYTES, 1), "KiB": (Unit.BYTES, 2**10), "MiB": (Unit.BYTES, 2**20), "GiB": (Unit.BYTES, 2**30),
    "tokens": (Unit.TOKENS, 1), "": (Unit.NONE, 1),
}  # fmt: skip
_PER_SECOND = re.compile(r"\s*(?:/s|per second)\Z")


def quantity(text: str, unit: Unit, *, per_second: bool = False) -> float:
    """Return a number in ``unit``; a bare number is taken to be in it.  Raises Invalid for any other unit."""
    match = _QUANTITY.match(text.strip())
    if match is None:
        raise Invalid(f"is not a number; write one in {named(unit, per_second=per_second)}")
    value, written = float(match[1]), match[2].strip()
    rate = _PER_SECOND.search(written) is not None
    bare = _PER_SECOND.sub("", written).strip()
    if not written:
        return value
    if bare not in _UNITS:
        raise Invalid(f"unknown unit; write {named(unit, per_second=per_second)}")
    meant, factor = _UNITS[bare]
    if meant is not unit or rate is not per_second:
        wanted, got = named(unit, per_second=per_second), named(meant, per_second=rate)
        raise Invalid(f"wrong unit: this is measured in {wanted}, not in {got}")
    return value * factor


def span(text: str) -> str:
    """Return a duration as Prometheus writes it, one number and one unit, from a minute to a week."""
    bare = text.strip()
    if not _SPAN.match(bare):
        raise Invalid("is not a duration; write 5m, 90s, 1h or 2d")
    seconds = int(bare[:-1]) * {"s": 1, "m": 60, "h": 3600, "d": 86_400}[bare[-1]]
    if not 60 <= seconds <= 604_800:
        raise Invalid("must be between 1m (less, and one failed scrape fires the alert) and 7d")
    return bare


def named(unit: Unit, *, per_second: bool = False) -> str:
    """Return the unit's name for messages."""
    word = {Unit.RATIO: "a ratio (0.85 or 85%)", Unit.NONE: "a plain number"}.get(unit, unit.value)
    return f"{word} per second" if per_second else word
