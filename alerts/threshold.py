"""One threshold: values, unit, reason, and the range of the evaluated figure."""

from __future__ import annotations

from dataclasses import dataclass

from exporter.catalog.spec import Metric, Unit

RATIO = (0.0, 1.0)
ANY = (0.0, float("inf"))
UNEVEN = (1.0, float("inf"))  # highest over mean: 1 is even


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """One number, or a warning and a critical one, in ``unit`` (``per_second``: the unit per second).

    ``above``: values above it are bad, else values below.  ``for_`` is how long it must hold before the alert fires.
    ``value_range`` is the range of the evaluated figure: a threshold at or beyond its ends can never be crossed.
    """

    reason: str
    warning: float
    critical: float | None = None
    unit: Unit = Unit.NONE
    per_second: bool = False
    above: bool = True
    for_: str = "5m"
    value_range: tuple[float, float] = ANY
    metric: Metric | None = None
    published: str = ""
    corrected: str = ""

    def tiers(self) -> tuple[tuple[str, float], ...]:
        """Return (tier, value) in rising order of severity: ``warning`` and, where there is one, ``critical``."""
        tiers = (("warning", self.warning), ("critical", self.critical))
        return tuple((name, value) for name, value in tiers if value is not None)
