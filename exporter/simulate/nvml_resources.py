"""Power limits, BAR1 memory and licences of a simulated GPU."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from exporter.simulate.gpu import SimulatedGpu

_BAR1_USED = 24 << 20  # bytes; hardly anything of it is mapped


def resource_functions(gpu_of: Callable[[Any], SimulatedGpu]) -> tuple[Callable[[Any], Any], ...]:
    """Return the functions for power limit, its default and (min, max), in mW; BAR1 memory; licences."""

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

    return limit, default, min_and_max, bar1, licences
