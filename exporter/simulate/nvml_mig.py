# ruff: noqa: N802 - the names are the binding's
"""The part of the driver that knows MIG-enabled GPUs: which are, and which instances they have.

An instance is a GPU of the world that stands after the whole ones and has a parent; its handle is its index.  Its
index in the parent's list counts from 0, its GPU instance from 1, and each holds one compute instance, 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from exporter.simulate.driver import NVML_ERROR_NOT_FOUND, NVML_ERROR_NOT_SUPPORTED, NVMLError, SimulatedDriver
from exporter.simulate.gpu import SimulatedGpu
from exporter.simulate.nvml_gpm import GpmSample

MAX_INSTANCES = 7  # instances of one GPU


def _of(parent: SimulatedGpu, gpus: Sequence[SimulatedGpu]) -> list[SimulatedGpu]:
    return [gpu for gpu in gpus if gpu.parent == parent.index]


def _at(instances: list[SimulatedGpu], index: int) -> SimulatedGpu:
    if not 0 <= index < len(instances):
        raise NVMLError(NVML_ERROR_NOT_FOUND)
    return instances[index]


def mig_functions(
    driver: Callable[[], SimulatedDriver], gpu: Callable[[Any], SimulatedGpu]
) -> tuple[Callable[..., Any], ...]:
    """Return the functions about MIG: mode, instance limit, handle by index, GPU and compute instance, sample."""

    def instances(handle: Any) -> list[SimulatedGpu]:
        return _of(gpu(handle), driver().world.gpus)

    def nvmlDeviceGetMigMode(handle: Any) -> list[int]:
        return [int(bool(instances(handle)))] * 2  # now, and after the next reset

    def nvmlDeviceGetMaxMigDeviceCount(handle: Any) -> int:
        gpu(handle)
        return MAX_INSTANCES

    def nvmlDeviceGetMigDeviceHandleByIndex(handle: Any, index: int) -> int:
        return _at(instances(handle), index).index

    def nvmlDeviceGetGpuInstanceId(handle: Any) -> int:
        if (parent := gpu(handle).parent) is None:
            raise NVMLError(NVML_ERROR_NOT_SUPPORTED)
        return [instance.index for instance in instances(parent)].index(handle) + 1

    def nvmlDeviceGetComputeInstanceId(handle: Any) -> int:
        nvmlDeviceGetGpuInstanceId(handle)
        return 0

    def nvmlGpmMigSampleGet(handle: Any, instance: int, sample: GpmSample) -> GpmSample:
        found, node = _at(instances(handle), instance - 1), driver()
        with node.lock:
            sample.record(found, node.world.now)
        return sample

    return (
        nvmlDeviceGetMigMode,
        nvmlDeviceGetMaxMigDeviceCount,
        nvmlDeviceGetMigDeviceHandleByIndex,
        nvmlDeviceGetGpuInstanceId,
        nvmlDeviceGetComputeInstanceId,
        nvmlGpmMigSampleGet,
    )
