"""What joins a card to more than its PCIe slot: the NVSwitch fabric, and the link to a processor on the same module.

Most cards have neither, so what is not supported is left out without a word.
"""

from __future__ import annotations

import ctypes
from typing import Any

from exporter.model import Missing, Signal
from exporter.sources.driver.nvml_arrays import field_answers
from exporter.sources.driver.nvml_errors import CardCalls
from exporter.sources.driver.nvml_fields import Field, FieldBatch, checked

C2C_COUNT: Field = (170, 0)
_C2C_STATUS = 171
_MAX_LINKS = 64.0
_STRUCTURES = ("c_nvmlGpuFabricInfo_v3_t", "c_nvmlGpuFabricInfo_v2_t")
_PARTS = {
    Signal.FABRIC_STATUS: "status",
    Signal.FABRIC_HEALTH: "healthMask",
    Signal.FABRIC_SUMMARY: "healthSummary",
}


def fabric(driver: Any, calls: CardCalls) -> dict[Signal, float | Missing]:
    """Give FABRIC_STATE: 1 not started, 2 in progress, 3 completed; a card without a fabric does not have it.

    With it FABRIC_STATUS, the driver's return code of a completed start, FABRIC_HEALTH, its health bits, and, from
    drivers that sum those up, FABRIC_SUMMARY: 1 healthy, 2 unhealthy, 3 limited capacity, 0 not supported.
    """
    info = _asked(driver, calls)
    if isinstance(info, Missing):
        return {Signal.FABRIC_STATE: info}
    state = checked(getattr(info, "state", None), high=16.0)
    if state == 0 or isinstance(state, Missing):
        return {Signal.FABRIC_STATE: Missing.UNSUPPORTED if state == 0 else state}
    found: dict[Signal, float | Missing] = {Signal.FABRIC_STATE: state}
    for signal, attribute in _PARTS.items():
        number = checked(getattr(info, attribute, None), high=2.0**32)
        if not isinstance(number, Missing):
            found[signal] = number
    return found


def _asked(driver: Any, calls: CardCalls) -> Any:
    """Let the driver fill the newest structure that it knows; a Missing where it fills none."""
    answer: Any = Missing.UNSUPPORTED
    for name in _STRUCTURES:
        structure = getattr(driver, name, None)
        if structure is None:
            continue
        info = structure()
        answer = calls.call("nvmlDeviceGetGpuFabricInfoV", ctypes.byref(info), key=name)
        if not isinstance(answer, Missing):
            return info
        if answer is not Missing.UNSUPPORTED:
            return answer
    return answer


def c2c(calls: CardCalls, batch: FieldBatch) -> dict[Signal, float | Missing]:
    """Give how many chip-to-chip links the card has and how many of them are active; empty where it has none.

    ``batch`` holds C2C_COUNT; only where that is not 0 is another question asked.
    """
    counted = batch.get(C2C_COUNT)
    number = counted if isinstance(counted, Missing) else checked(counted, low=1.0, high=_MAX_LINKS)
    if isinstance(number, Missing):
        return {}
    found: dict[Signal, float | Missing] = {Signal.C2C_LINKS: number}
    states = _states(calls, int(number))
    if len(states) == number:
        found[Signal.C2C_LINKS_ACTIVE] = float(sum(states))
    return found


def _states(calls: CardCalls, links: int) -> list[bool]:
    """Give which links are active; fewer than asked for when some did not say."""
    fields = [(_C2C_STATUS, link) for link in range(links)]
    items = calls.call("nvmlDeviceGetFieldValues", fields, key="fields")
    if isinstance(items, Missing):
        return []
    states = [number for code, _, number in field_answers(items) if code == 0]
    return [state == 1 for state in states if state in {0, 1}]
