"""Sums of a GPU's counters over its NVLinks that only rise.

A link that does not answer any more keeps its part in the sum, and the part of one that counts anew, because it was
trained again, goes on from where it was.  A sum that fell would be read as a counter reset, and everything ever
counted as an increase at that moment.  Nothing here calls a driver.
"""

from __future__ import annotations

from collections.abc import Sequence

from exporter.driver.nvml.fields import Field, checked
from exporter.model import Missing


class NvLinkCounters:
    """The sums of one GPU, by field id; they outlive an initialisation of the driver."""

    def __init__(self) -> None:
        self._last: dict[Field, float] = {}  # (field id, link) → the number that it answered last
        self._parts: dict[Field, float] = {}  # the same → its part in the sum
        self._summed: set[int] = set()  # field ids of which a sum was returned

    def total(self, number: int, values: Sequence[float | Missing]) -> float | Missing:
        """Return the sum over all links of what field ``number`` says of each of them now.

        A link that always refuses is not fitted and does not count.  Where one fails that has never answered, or
        none answers now, there is no sum, but the reason.
        """
        answered, why = False, Missing.UNSUPPORTED
        unknown = False
        for link, value in enumerate(values):
            field = (number, link)
            raw = value if isinstance(value, Missing) else checked(value)
            if not isinstance(raw, Missing):
                answered = True
                self._count(field, raw)
            elif raw is not Missing.UNSUPPORTED:
                why = raw
                unknown = unknown or field not in self._parts
        if not answered or unknown:
            return why
        self._summed.add(number)
        return sum(self._parts.get((number, link), 0.0) for link in range(len(values)))

    def _count(self, field: Field, raw: float) -> None:
        before = self._last.get(field)
        if before is None:
            # A link that appears later has counted before: only what follows is an increase.
            self._parts[field] = 0.0 if field[0] in self._summed else raw
        else:
            self._parts[field] += raw - before if raw >= before else raw
        self._last[field] = raw
