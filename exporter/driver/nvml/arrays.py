"""The driver's arrays of structures, each taken apart in one go.

Item by item, the binding costs half a microsecond for each attribute, and a cycle of eight GPUs reads thousands.
Layouts are those of NVML's binary interface.  What is no array of the binding (a stand-in answers with objects) or
items of another size is read item by item.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from math import isfinite
from struct import Struct
from typing import Any, NamedTuple

from exporter.model import Missing

VALUE_ATTRIBUTES = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
_CODES = ("d", "I4x", "L", "Q", "q", "i4x", "H6x")  # of the same types, each eight bytes long
_VALUES = tuple(Struct("@" + code) for code in _CODES)
_SAMPLES = tuple(Struct("@Q" + code) for code in _CODES)  # time in µs, value
_FIELD = Struct("@24xII8s")  # (id, scope, time, latency), value type, return code, value
_METRIC = Struct("@4xId24x")  # (id), return code, value, (three texts)
_EVENT = Struct("@PQQII")  # handle, type, data, GPU instance, compute instance


def field_answers(items: Any) -> Iterable[tuple[Any, Any, float | Missing]]:
    """Return return code, value type and number of each field value; INVALID for a number that cannot be read."""
    if isinstance(items, ctypes.Array) and ctypes.sizeof(items) == _FIELD.size * len(items):
        return [(code, kind, _number(kind, raw)) for kind, code, raw in _FIELD.iter_unpack(items)]
    return [(getattr(item, "nvmlReturn", None), getattr(item, "valueType", None), decoded(item)) for item in items]


def decoded(item: Any) -> float | Missing:
    """Return the number of a field value or sample by its value type; INVALID for a type that does not exist."""
    try:
        raw = getattr(item.value, VALUE_ATTRIBUTES[item.valueType])
    except (AttributeError, IndexError, TypeError):
        return Missing.INVALID
    return raw if isinstance(raw, int | float) and isfinite(raw) else Missing.INVALID


def _number(kind: int, raw: bytes) -> float | Missing:
    if kind >= len(_VALUES):
        return Missing.INVALID
    number: float = _VALUES[kind].unpack(raw)[0]
    return number if isfinite(number) else Missing.INVALID


def samples_by_time(value_type: Any, samples: list[Any]) -> dict[int, Any]:
    """Return time (µs) → value of buffered samples.

    Raises AttributeError, IndexError, TypeError or ValueError for garbage.
    """
    # The binding gives a list of views into one array.  At its end there may be room for more than came: time zero.
    array = getattr(samples[0], "_b_base_", None) if samples else None
    layout = _SAMPLES[value_type]
    if isinstance(array, ctypes.Array) and ctypes.sizeof(array) == layout.size * len(array):
        return dict(layout.iter_unpack(array))
    name = VALUE_ATTRIBUTES[value_type]
    return {sample.timeStamp: getattr(sample.sampleValue, name) for sample in samples}


class DriverEvent(NamedTuple):
    """An event of the driver; ``handle`` is the address of the GPU's."""

    handle: Any
    kind: int
    data: int
    gpu_instance: Any
    compute_instance: Any


def event_of(raw: bytes) -> DriverEvent:
    """Return an event from its bytes.

    Of an old binding's event, which ends before the instances, these are what stands for none.
    """
    return DriverEvent(*_EVENT.unpack(raw[: _EVENT.size].ljust(_EVENT.size, b"\xff")))


def metric_answers(metrics: Any, count: int) -> list[tuple[Any, Any]]:
    """Return return code and value of the first ``count`` GPM metrics of a query."""
    if isinstance(metrics, ctypes.Array) and ctypes.sizeof(metrics) == _METRIC.size * len(metrics):
        return list(_METRIC.iter_unpack(memoryview(metrics)[:count]))
    return [(part.nvmlReturn, part.value) for part in (metrics[index] for index in range(count))]
