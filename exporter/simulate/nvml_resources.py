"""Power limits, BAR1 memory and licences of a simulated GPU."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from exporter.simulate.gpu import SimulatedGpu
from exporter.simulate.nvml_fields import remapped_rows

_BANKS = 640  # of memory
_BAR1_USED = 24 << 20  # bytes; hardly anything of it is mapped


class SramErrors(ctypes.Structure):
    """ECC errors in SRAM, as NVML lays them out."""

    _fields_ = (
        ("version", ctypes.c_uint),
        ("aggregateUncParity", ctypes.c_ulonglong),
        ("aggregateUncSecDed", ctypes.c_ulonglong),
        ("aggregateCor", ctypes.c_ulonglong),
        ("volatileUncParity", ctypes.c_ulonglong),
        ("volatileUncSecDed", ctypes.c_ulonglong),
        ("volatileCor", ctypes.c_ulonglong),
        ("bThresholdExceeded", ctypes.c_uint),
    )


def resource_functions(gpu_of: Callable[[Any], SimulatedGpu]) -> tuple[Callable[..., Any], ...]:
    """Return the functions for power limit, its default and (min, max), in mW; BAR1; licences; ECC."""

    def limit(handle: Any) -> int:
        return round(gpu_of(handle).power_limit * 1000)

    def default(handle: Any) -> int:
        return round(gpu_of(handle).product.power_limit * 1000)

    def min_and_max(handle: Any) -> list[int]:
        return [default(handle) * 2 // 7, default(handle)]

    def bar1(handle: Any) -> SimpleNamespace:
        total = 1 << (gpu_of(handle).product.memory - 1).bit_length()  # the next power of two
        return SimpleNamespace(bar1Total=total, bar1Free=total - _BAR1_USED, bar1Used=_BAR1_USED)

    def licences(handle: Any) -> SimpleNamespace:
        gpu_of(handle)
        return SimpleNamespace(isGridLicenseSupported=0, licensableFeaturesCount=0, gridLicensableFeatures=[])

    def ecc_mode(handle: Any) -> list[int]:
        gpu_of(handle)
        return [1, 1]

    def spare_rows(handle: Any) -> SimpleNamespace:
        used = remapped_rows(gpu_of(handle))  # each in another bank
        return SimpleNamespace(max=_BANKS - used, high=used, partial=0, low=0, none=0)

    def sram_errors(handle: Any, reference: Any) -> int:
        gpu_of(handle)  # the structure was made with zeros: no errors
        return int(reference._obj.bThresholdExceeded)

    return limit, default, min_and_max, bar1, licences, ecc_mode, spare_rows, sram_errors
