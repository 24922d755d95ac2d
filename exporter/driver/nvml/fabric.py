"""What connects a GPU beside its PCIe slot: the NVSwitch fabric, and the link to a processor on the same module.

Most GPUs have neither, so what is not supported is absent without a reason.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from exporter.driver.nvml.arrays import field_answers
from exporter.driver.nvml.errors import DeviceCalls
from exporter.driver.nvml.fields import Field, FieldBatch, checked
from exporter.model import EMPTY, Missing, Signal

C2C_COUNT: Field = (170, 0)
_C2C_STATUS = 171
_C2C_ERRORS: Mapping[str, int] = {"crc": 231, "replay": 232, "replay_back_to_back": 233}
_MAX_LINKS = 64.0
_STRUCTURES = ("c_nvmlGpuFabricInfo_v3_t", "c_nvmlGpuFabricInfo_v2_t")
_PARTS = {
    Signal.FABRIC_STATUS: "status",
    Signal.FABRIC_HEALTH: "healthMask",
    Signal.FABRIC_SUMMARY: "healthSummary",
}


def fabric(driver: Any, calls: DeviceCalls) -> dict[Signal, float | Missing]:
    """Return FABRIC_STATE: 1 not started, 2 in progress, 3 completed; a GPU without a fabric does not have it.

    With it FABRIC_STATUS, the driver's return code of a completed start, FABRIC_HEALTH, its health bits, and, from
    drivers that sum those up, FABRIC_SUMMARY: 1 healthy, 2 unhealthy, 3 limited capacity, 0 not supported.
    """
    info = _fabric_info(driver, calls)
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


def _fabric_info(driver: Any, calls: DeviceCalls) -> Any:
    """Return the newest structure that the driver fills; a Missing where it fills none."""
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


class C2cRead(Struct, frozen=True):
    """A GPU's chip-to-chip links: numbers by signal, or why not, and errors by type of the link that has most."""

    values: Mapping[Signal, float | Missing] = EMPTY
    errors: Mapping[str, float] = EMPTY


def c2c(calls: DeviceCalls, batch: FieldBatch) -> C2cRead:
    """Read how many chip-to-chip links the GPU has, how many of them are active, and their errors.

    ``batch`` holds C2C_COUNT; only where that is not 0 is another question asked, one for everything.  Errors are of
    the worst link, not summed: whether a driver counts them per link or answers for all links at once is not
    documented, and a sum of the latter would be a multiple.
    """
    counted = batch.get(C2C_COUNT)
    number = counted if isinstance(counted, Missing) else checked(counted, low=1.0, high=_MAX_LINKS)
    if isinstance(number, Missing):
        return C2cRead()
    links = range(int(number))
    wanted = (_C2C_STATUS, *_C2C_ERRORS.values())
    answers = _link_fields(calls, [(number_of, link) for link in links for number_of in wanted])
    values: dict[Signal, float | Missing] = {Signal.C2C_LINKS: number}
    states = [answers[_C2C_STATUS, link] for link in links]
    if all(state in {0.0, 1.0} for state in states):
        values[Signal.C2C_LINKS_ACTIVE] = float(states.count(1.0))
    highest = {
        kind: _highest([answers[number_of, link] for link in links]) for kind, number_of in _C2C_ERRORS.items()
    }
    errors = {kind: value for kind, value in highest.items() if not isinstance(value, Missing)}
    if not errors:
        whys = [
            value for value in highest.values() if isinstance(value, Missing) and value is not Missing.UNSUPPORTED
        ]
        values[Signal.C2C_ERRORS] = whys[0] if whys else Missing.UNSUPPORTED
    return C2cRead(values, errors)


def _highest(answers: list[float | Missing]) -> float | Missing:
    """Return the highest of a counter's numbers; none where one of them failed, as the highest may be that one."""
    answered = [value for value in answers if value is not Missing.UNSUPPORTED]
    failed = [value for value in answered if isinstance(value, Missing)]
    numbers = [value for value in answered if not isinstance(value, Missing)]
    if failed or not numbers:
        return failed[0] if failed else Missing.UNSUPPORTED
    return max(numbers)


def _link_fields(calls: DeviceCalls, fields: list[Field]) -> Mapping[Field, float | Missing]:
    """Return the numbers of fields of single links, read in one call, or why there is none."""
    wanted = [field for field in fields if field not in calls.unsupported]
    found: dict[Field, float | Missing] = dict.fromkeys(fields, Missing.UNSUPPORTED)
    items = calls.call("nvmlDeviceGetFieldValues", wanted, key="fields") if wanted else []
    if isinstance(items, Missing):
        return found | dict.fromkeys(wanted, items)
    for field, (code, _, number) in zip(wanted, field_answers(items), strict=False):
        if code == 0:
            calls.on_accepted(field)
            found[field] = number if isinstance(number, Missing) else checked(number)
        else:
            found[field] = calls.on_refused(field, code) if isinstance(code, int) else Missing.INVALID
    return found
