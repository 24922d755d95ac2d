"""The numbered fields of a simulated GPU: id and scope to value type and number, with the driver branch's ids."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from exporter.simulate.gpu import SimulatedGpu

ALL_LINKS = 0xFFFFFFFF
UNSIGNED, UNSIGNED_LONG_LONG = 1, 3  # value types
_DWORD = 0xFFFFFFFF


class Value:
    """The union of a field or sample: integers read through any integer member, as on a little-endian machine."""

    __slots__ = ("dVal", "siVal", "sllVal", "uiVal", "ulVal", "ullVal", "usVal")

    def __init__(self, kind: int, number: int) -> None:
        low = number & _DWORD
        self.uiVal = low
        self.siVal = low - (low >> 31 << 32)
        self.usVal = number & 0xFFFF
        self.ullVal = self.ulVal = self.sllVal = number if kind == UNSIGNED_LONG_LONG else low
        self.dVal = 5e-324 * number  # what a double of those bits would be


def fabric_structure() -> Any:
    """Return the structure that the driver fills with the state of the NVLink fabric."""
    import ctypes  # noqa: PLC0415 - needed for the fabric only

    class Info(ctypes.Structure):
        _fields_ = (("version", ctypes.c_uint), ("state", ctypes.c_ubyte), ("status", ctypes.c_uint))

    return Info()


def ecc_errors(gpu: SimulatedGpu) -> int:
    """Return the corrected errors of the GPU's whole life; most GPUs have had a few."""
    return int(gpu.identity[:1], 16)


def remapped_rows(gpu: SimulatedGpu) -> int:
    """Return the rows remapped after correctable errors; few GPUs have one."""
    return int(gpu.identity[1] == "0")


# Scope 0 throughout.
_FIELDS: dict[int, tuple[int, Callable[[SimulatedGpu], float]]] = {
    3: (UNSIGNED_LONG_LONG, lambda _: 0),
    4: (UNSIGNED_LONG_LONG, lambda _: 0),
    5: (UNSIGNED_LONG_LONG, ecc_errors),
    6: (UNSIGNED_LONG_LONG, lambda _: 0),
    74: (UNSIGNED_LONG_LONG, lambda gpu: gpu.power_cap_seconds * 1e9),
    75: (UNSIGNED_LONG_LONG, lambda gpu: gpu.thermal_seconds * 1e9),
    76: (UNSIGNED_LONG_LONG, lambda _: 0),
    77: (UNSIGNED_LONG_LONG, lambda _: 0),
    78: (UNSIGNED_LONG_LONG, lambda _: 0),
    79: (UNSIGNED_LONG_LONG, lambda _: 0),
    80: (UNSIGNED_LONG_LONG, lambda _: 0),
    81: (UNSIGNED_LONG_LONG, lambda _: 0),
    82: (UNSIGNED, lambda gpu: round(gpu.memory_temperature)),
    83: (UNSIGNED_LONG_LONG, lambda gpu: gpu.energy * 1000),
    91: (UNSIGNED, lambda gpu: gpu.product.nvlinks),
    94: (UNSIGNED, lambda _: 0),
    142: (UNSIGNED, remapped_rows),
    143: (UNSIGNED, lambda _: 0),
    144: (UNSIGNED, lambda _: 0),
    145: (UNSIGNED, lambda _: 0),
    185: (UNSIGNED, lambda gpu: gpu.power * 1000),
    186: (UNSIGNED, lambda gpu: gpu.power * 1000),
    197: (UNSIGNED_LONG_LONG, lambda gpu: gpu.pcie_sent),
    198: (UNSIGNED_LONG_LONG, lambda gpu: gpu.pcie_received),
    230: (UNSIGNED, lambda _: 0),
}
_LINK_BYTES: dict[int, Callable[[SimulatedGpu], float]] = {
    138: lambda gpu: gpu.nvlink_sent,
    139: lambda gpu: gpu.nvlink_received,
}
_LINK_ERRORS: dict[int, Callable[[SimulatedGpu], int]] = {
    161: lambda gpu: gpu.nvlink_replays,
    162: lambda gpu: gpu.nvlink_recoveries,
    163: lambda gpu: gpu.nvlink_crc,
}


def read_field(gpu: SimulatedGpu, field: int, scope: int, driver: str) -> tuple[int, int] | None:
    """Return (value type, number) of a field, None where this GPU or driver does not have it."""
    if field in _FIELDS:
        kind, read = _FIELDS[field]
        return kind, int(read(gpu))
    if field in _LINK_BYTES or field in _LINK_ERRORS:
        return _link(gpu, field, scope)
    reasons = _reason_fields(driver)
    if field in reasons:
        seconds = gpu.thermal_seconds if field == reasons[0] else 0.0
        return UNSIGNED_LONG_LONG, int(seconds * 1e9)
    return None


def _reason_fields(driver: str) -> tuple[int, ...]:
    """Return the ids of the time in software thermal, hardware thermal and power brake slowdown."""
    version = tuple(int(part) for part in driver.split(".")[:2])
    if version < (575, 0):
        return ()
    first = 269 if version >= (580, 82) else 251
    return first, first + 1, first + 2


def _link(gpu: SimulatedGpu, field: int, scope: int) -> tuple[int, int] | None:
    """Read a link's bytes (in KiB; scope ``ALL_LINKS`` for the sum) or errors."""
    links = gpu.product.nvlinks
    if field in _LINK_BYTES:
        total = int(_LINK_BYTES[field](gpu)) // 1024
        if links and scope == ALL_LINKS:
            return UNSIGNED_LONG_LONG, total
        return (UNSIGNED_LONG_LONG, total // links) if scope < links else None
    if scope >= links:
        return None
    return UNSIGNED_LONG_LONG, _LINK_ERRORS[field](gpu) if scope == gpu.fault_link else 0
