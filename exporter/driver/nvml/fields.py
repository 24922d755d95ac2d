"""Batched field reads: one driver call for all the field ids of a GPU and tier, each item checked by itself.

A field is ``(id, scope)``.  Ids are the driver's numbers, not the binding's: some have moved between driver
branches (``event_time_fields``), and a binding knows only the branch it was generated from.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from exporter.driver.nvml.arrays import field_answers
from exporter.driver.nvml.errors import DeviceCalls
from exporter.model import Missing

Field = tuple[int, int]

ALL_LINKS = 0xFFFFFFFF
_ALL_ONES = frozenset({0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF})
_LIMIT = 2.0**64
_NARROW_TYPES = frozenset({1, 5})  # numbers of 32 bits
SETTLED_REASONS: Mapping[str, Field] = {"sw_power_cap": (74, 0), "sync_boost": (76, 0)}
# Counters of the driver's older scheme, neighbours of those two: what they count overlaps with the reasons of today.
POLICIES: Mapping[str, Field] = {
    "thermal": (75, 0),
    "board_limit": (77, 0),
    "low_utilization": (78, 0),
    "reliability": (79, 0),
    "application_clocks": (80, 0),
    "base_clocks": (81, 0),
}


def checked(raw: Any, scale: float = 1.0, low: float = 0.0, high: float = 2.0**63) -> float | Missing:
    """Scale a raw driver number into base units; Missing.INVALID unless it can be true.

    ``low`` and ``high`` are in base units.  All-ones is what the driver (or a dead PCIe link) says instead of a
    number, at either width.
    """
    if not isinstance(raw, int | float) or raw in _ALL_ONES or not -_LIMIT < raw < _LIMIT:
        return Missing.INVALID
    value = raw * scale
    return value if low <= value <= high else Missing.INVALID


def event_time_fields(driver_version: str) -> dict[str, Field | Missing]:
    """Return reason → field of the accumulated clock-event time for a driver branch and build, or why there is none.

    Two of the five never moved.  The other three are absent before R575, 251-253 from R575 to 580.81, and 269-271
    from 580.82 on, where 251-253 mean power smoothing.  Of a driver without a readable version it is not known which.
    """
    fields: dict[str, Field | Missing] = dict(SETTLED_REASONS)
    numbers = [int(part) if part.isascii() and part.isdigit() else 0 for part in driver_version.split(".")]
    version = (numbers[0], numbers[1] if len(numbers) > 1 else 0)
    first_id = 269 if version >= (580, 82) else 251
    none = Missing.UNSUPPORTED if version[0] else Missing.UNVERIFIED
    for offset, reason in enumerate(("sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown")):
        fields[reason] = (first_id + offset, 0) if version >= (575, 0) else none
    return fields


class FieldBatch:
    """The field ids of one GPU and tier, read in one call.

    The first read asks for everything that could be of use; ``settle`` then keeps what was used, so that a
    fallback that is not needed costs one read for each initialisation.
    """

    def __init__(self, calls: DeviceCalls, fields: Iterable[Field]) -> None:
        self._calls = calls
        self._wanted = [field for field in dict.fromkeys(fields) if field not in calls.unsupported]
        self._values: dict[Field, float | Missing] = {}
        self._used: set[Field] = set()
        self.narrow: set[Field] = set()  # fields that the driver gives as 32 bits

    def read(self) -> None:
        """Read all wanted fields.  Any failure that concerns one field is its Missing.

        Raises DeviceUnavailable and DriverUnavailable.
        """
        self._values = {}
        self._used = set()
        if not self._wanted:
            return
        # The binding takes a plain id for scope 0; old bindings know only that form.
        wanted = [field if field[1] else field[0] for field in self._wanted]
        items = self._calls.call("nvmlDeviceGetFieldValues", wanted, key="fields")
        if isinstance(items, Missing):
            self._values = dict.fromkeys(self._wanted, items)
            return
        refused = False
        for field, (code, kind, number) in zip(self._wanted, field_answers(items), strict=False):
            if code == 0:
                self._values[field] = number
                self._calls.on_accepted(field)
                if kind in _NARROW_TYPES:
                    self.narrow.add(field)
            else:
                refused = True
                self._values[field] = (
                    self._calls.on_refused(field, code) if isinstance(code, int) else Missing.INVALID
                )
        if refused:
            self._wanted = [field for field in self._wanted if field not in self._calls.unsupported]

    def drop(self, why: Missing) -> None:
        """Discard the numbers of the last read: they are too old."""
        self._values = dict.fromkeys(self._wanted, why)

    def get(self, field: Field) -> float | Missing:
        """Return the number of the last read, or why there is none."""
        self._used.add(field)
        value = self._values.get(field)
        if value is not None:
            return value
        if field in self._calls.unsupported:
            return Missing.UNSUPPORTED
        if field not in self._wanted:
            self._wanted.append(field)
        return Missing.ERROR

    def settle(self) -> None:
        """Stop reading fields that were not used since the last read."""
        self._wanted = [field for field in self._wanted if field in self._used]
