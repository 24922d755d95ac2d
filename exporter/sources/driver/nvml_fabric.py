"""What joins a card to more than its PCIe slot: the NVSwitch fabric, and the link to a processor on the same module.

Most cards have neither, so what is not supported is left out without a word.
"""

from __future__ import annotations

import ctypes
from typing import Any

from exporter.model import Missing, Signal
from exporter.sources.driver.nvml_errors import CardCalls
from exporter.sources.driver.nvml_fields import Field, FieldBatch, checked, decoded

C2C_COUNT: Field = (170, 0)
_C2C_STATUS = 171
_MAX_LINKS = 64.0


def fabric(driver: Any, calls: CardCalls) -> dict[Signal, float | Missing]:
    """Give FABRIC_STATE: 1 not started, 2 in progress, 3 completed; a card without a fabric does not have it.

    With it FABRIC_STATUS, the driver's return code of a completed start, and FABRIC_HEALTH, its health bits.
    """
    structure = getattr(driver, "c_nvmlGpuFabricInfo_v2_t", None)
    if structure is None:
        return {Signal.FABRIC_STATE: Missing.UNSUPPORTED}
    info = structure()
    answer = calls.call("nvmlDeviceGetGpuFabricInfoV", ctypes.byref(info), key="nvmlDeviceGetGpuFabricInfoV")
    if isinstance(answer, Missing):
        return {Signal.FABRIC_STATE: answer}
    state = checked(getattr(info, "state", None), high=16.0)
    if state == 0 or isinstance(state, Missing):
        return {Signal.FABRIC_STATE: Missing.UNSUPPORTED if state == 0 else state}
    found: dict[Signal, float | Missing] = {Signal.FABRIC_STATE: state}
    for signal, attribute in ((Signal.FABRIC_STATUS, "status"), (Signal.FABRIC_HEALTH, "healthMask")):
        number = checked(getattr(info, attribute, None), high=2.0**32)
        if not isinstance(number, Missing):
            found[signal] = number
    return found


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
    states = [decoded(item) for item in items if getattr(item, "nvmlReturn", None) == 0]
    return [state == 1 for state in states if state in {0, 1}]
