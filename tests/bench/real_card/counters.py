"""What the driver's disputed fields hold: the time that clocks were held down, under both sets of ids, in either unit.

Raw numbers at two instants, with the reasons active then, beside what nvidia-smi shows in microseconds.  One of these
tables from each driver branch is what settles which ids and unit that branch uses.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from exporter.driver.nvml import library
from exporter.driver.nvml.arrays import decoded
from exporter.driver.nvml.errors import code_of
from exporter.driver.nvml.fields import event_time_fields

# id → reason, if the driver means that by it.
FIELDS: Mapping[int, str] = {
    74: "sw_power_cap",
    76: "sync_boost",
    251: "sw_thermal_slowdown",
    252: "hw_thermal_slowdown",
    253: "hw_power_brake_slowdown",
    269: "sw_thermal_slowdown",
    270: "hw_thermal_slowdown",
    271: "hw_power_brake_slowdown",
}


@dataclass(frozen=True, slots=True)
class Raw:
    """One field at one instant."""

    at: float
    code: int
    value: float | None


def look(driver: Any) -> dict[str, dict[int, Raw]]:
    """Return uuid → id → raw number of all cards that answer.  Raises DriverUnavailable."""
    _, count = library.initialise(driver)
    try:
        by_uuid = {}
        for index in range(count):
            try:
                handle = driver.nvmlDeviceGetHandleByIndex(index)
                uuid = library.printable(driver.nvmlDeviceGetUUID(handle))
                items = driver.nvmlDeviceGetFieldValues(handle, list(FIELDS))
            except Exception as error:
                if code_of(error) is None:
                    raise
                continue
            at = time.monotonic()
            by_uuid[uuid] = {number: _raw(at, item) for number, item in zip(FIELDS, items, strict=True)}
        return by_uuid
    finally:
        library.shut_down(driver)


def _raw(at: float, item: Any) -> Raw:
    number = decoded(item) if item.nvmlReturn == 0 else None
    return Raw(at, item.nvmlReturn, number if isinstance(number, int | float) else None)


def rows(
    before: Mapping[int, Raw], after: Mapping[int, Raw], version: str, theirs: Mapping[str, str | None]
) -> list[tuple[str, ...]]:
    """Return a table's rows for one card: id, reason, whether it is read, number, steps a second, steps in a µs."""
    read = {number for number, _ in event_time_fields(version).values()}
    rows_shown = []
    for number, reason in FIELDS.items():
        first, last = before.get(number), after.get(number)
        if first is None or last is None:
            continue
        chosen = "read" if number in read else "not read"
        if last.value is None:
            rows_shown.append((str(number), reason, chosen, f"code {last.code}", "", "", ""))
            continue
        rate = "" if first.value is None else f"{(last.value - first.value) / (last.at - first.at):.4g}"
        smi = theirs.get(f"clocks_event_reasons_counters.{reason}")
        shown = float(smi) if smi is not None and smi.isdigit() else None
        ratio = f"{last.value / shown:.4g}" if shown else ""
        rows_shown.append((str(number), reason, chosen, f"{last.value:.0f}", rate, smi or "", ratio))
    return rows_shown
