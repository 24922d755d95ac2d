# ruff: noqa: N802, N816 - the names are the binding's
"""Simulated GPUs behind pynvml's function names, so that the collector of real GPUs runs on them unchanged.

Call ``configure`` with a ``NodeSpec`` in JSON, then use the module as pynvml.  Units are the driver's: percent,
milliwatts, millijoules, MHz, KiB, nanoseconds.  The GPU has Hopper's habits: no fan to ask about, remapped rows
instead of retired pages, NVLink counters in KiB, and the branch-dependent field ids of the simulated driver.
A GPU that is lost answers every call with 15; its neighbours go on.  Functions not defined here are functions that
the driver lacks.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from exporter.simulate.degradation import LANES
from exporter.simulate.driver import (  # noqa: F401 - the binding has all of them
    NVML_ERROR_GPU_IS_LOST,
    NVML_ERROR_INVALID_ARGUMENT,
    NVML_ERROR_NOT_FOUND,
    NVML_ERROR_NOT_SUPPORTED,
    NVML_ERROR_UNINITIALIZED,
    NVMLError,
    SimulatedDriver,
)
from exporter.simulate.gpu import MEMORY_MAX_CELSIUS, SHUTDOWN_CELSIUS, SLOWDOWN_CELSIUS, SimulatedGpu
from exporter.simulate.node_spec import NodeSpec
from exporter.simulate.nvml_events import event_functions
from exporter.simulate.nvml_fields import UNSIGNED, Value, ecc_errors, fabric_structure, read_field, remapped_rows
from exporter.simulate.nvml_gpm import (  # noqa: F401 - the binding has them too
    GpmSample,
    c_nvmlGpmMetricsGet_t,
    nvmlGpmMetricsGet,
    nvmlGpmSampleAlloc,
    nvmlGpmSampleFree,
)
from exporter.simulate.nvml_mig import mig_functions
from exporter.simulate.nvml_resources import SramErrors, resource_functions
from exporter.simulate.nvml_topology import socket, topology_functions
from exporter.simulate.products import GPU_BUSES

NVML_GPU_FABRIC_STATE_COMPLETED = 3
nvmlMemory_v2 = 0x2000028

_MILLION = 1_000_000
_SAMPLE_COLUMNS = {1: 1, 2: 2, 0: 3}  # sampling type → column of Card.samples
_SAMPLE_SCALES = {1: 100.0, 2: 100.0, 0: 1000.0}


_drivers: list[SimulatedDriver] = []


def configure(options: str) -> None:
    """Simulate the node of a ``NodeSpec`` in JSON, of a healthy one for "".  Raises ValueError, KeyError."""
    use(SimulatedDriver(NodeSpec.loads(options) if options else NodeSpec()))


def use(driver: SimulatedDriver) -> None:
    """Use this driver from now on."""
    _drivers[:] = [driver]


def _driver() -> SimulatedDriver:
    if not _drivers:
        configure("")
    return _drivers[0]


def _gpu(handle: Any) -> SimulatedGpu:
    return _driver().gpu(handle)


def _refuse(handle: Any, *_: Any) -> Any:
    """Raise what a GPU without this feature raises."""
    _gpu(handle)
    raise NVMLError(NVML_ERROR_NOT_SUPPORTED)


def _answer(read: Callable[[SimulatedGpu], Any]) -> Callable[[Any], Any]:
    """Return an NVML function of one handle."""
    return lambda handle: read(_gpu(handle))


def nvmlInit() -> None:
    """Initialise; calls may nest."""
    _driver().init_count += 1


def nvmlShutdown() -> None:
    """Undo one ``nvmlInit``."""
    driver = _driver()
    if not driver.init_count:
        raise NVMLError(NVML_ERROR_UNINITIALIZED)
    driver.init_count -= 1


def nvmlSystemGetDriverVersion() -> str:
    """Return the driver's version."""
    return _driver().current_world().software.driver


def nvmlSystemGetNVMLVersion() -> str:
    """Return the library's version."""
    return _driver().current_world().software.nvml


def nvmlSystemGetCudaDriverVersion() -> int:
    """Return the CUDA version as major × 1000 + minor × 10."""
    return _driver().current_world().software.cuda


def nvmlDeviceGetCount() -> int:
    """Return the number of GPUs, lost ones included."""
    return _driver().current_world().scenario.gpus


def nvmlDeviceGetHandleByIndex(index: int) -> int:
    """Return the handle of a GPU; a lost GPU has none."""
    if _gpu(index).parent is not None:
        raise NVMLError(NVML_ERROR_INVALID_ARGUMENT)
    return index


def nvmlDeviceGetUUID(handle: Any) -> str:
    """Return the GPU's UUID, the same for the same seed and node."""
    gpu = _gpu(handle)
    digits, what = gpu.identity, "GPU" if gpu.parent is None else "MIG"
    return f"{what}-{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


nvmlDeviceGetName = _answer(lambda gpu: gpu.product.name)
nvmlDeviceGetSerial = _answer(lambda gpu: f"165{int(gpu.identity, 16) % 10**10:010d}")  # 13 digits
nvmlDeviceGetPersistenceMode = _answer(lambda _: 1)
nvmlDeviceGetComputeMode = _answer(lambda _: 0)
nvmlDeviceGetGspFirmwareVersion = _answer(lambda _: _driver().current_world().software.driver)
nvmlDeviceGetVbiosVersion = _answer(lambda gpu: "96.00.A5.00.01" if gpu.product.nvlinks else "96.00.68.00.04")


def nvmlDeviceGetPciInfo(handle: Any) -> SimpleNamespace:
    """Return the PCI address; four GPUs behind each socket."""
    gpu = _gpu(handle)
    bus = GPU_BUSES[(gpu.index if gpu.parent is None else gpu.parent) % 8]
    return SimpleNamespace(domain=0, bus=bus, device=0, busId=f"00000000:{bus:02X}:00.0")


def nvmlDeviceGetMemoryAffinity(handle: Any, words: int, scope: int) -> list[int]:
    """Return the bit mask of the memory nodes next to the GPU."""
    del scope
    return [1 << socket(_gpu(handle))] + [0] * (words - 1)


(
    nvmlDeviceGetMigMode,
    nvmlDeviceGetMaxMigDeviceCount,
    nvmlDeviceGetMigDeviceHandleByIndex,
    nvmlDeviceGetGpuInstanceId,
    nvmlDeviceGetComputeInstanceId,
    nvmlGpmMigSampleGet,
) = mig_functions(_driver, _gpu)
(
    nvmlDeviceGetTopologyCommonAncestor,
    nvmlDeviceGetP2PStatus,
    nvmlDeviceGetNvLinkRemoteDeviceType,
    nvmlDeviceGetNvLinkRemotePciInfo,
) = topology_functions(_gpu)
(
    nvmlDeviceGetPowerManagementLimit,
    nvmlDeviceGetPowerManagementDefaultLimit,
    nvmlDeviceGetPowerManagementLimitConstraints,
    nvmlDeviceGetBAR1MemoryInfo,
    nvmlDeviceGetGridLicensableFeatures,
    nvmlDeviceGetEccMode,
    nvmlDeviceGetRowRemapperHistogram,
    nvmlDeviceGetSramEccErrorStatus,
) = resource_functions(_gpu)


def nvmlDeviceGetUtilizationRates(handle: Any) -> SimpleNamespace:
    """Return percent of the last quarter of a second."""
    gpu = _gpu(handle)
    return SimpleNamespace(gpu=round(gpu.utilization * 100), memory=round(gpu.memory_activity * 100))


def nvmlDeviceGetSamples(handle: Any, kind: int, last: int) -> tuple[int, list[SimpleNamespace]]:
    """Return the buffered samples younger than ``last`` (µs of Unix time): 0 mW, 1 and 2 percent, 3 and 4 codecs."""
    gpu, started_unix = _gpu(handle), _driver().node_spec.started_unix
    if kind > 4:
        raise NVMLError(NVML_ERROR_NOT_SUPPORTED)
    column, scale = _SAMPLE_COLUMNS.get(kind), _SAMPLE_SCALES.get(kind, 0.0)
    with _driver().lock:
        rows = [(int((started_unix + row[0]) * _MILLION), row[column] if column else 0.0) for row in gpu.samples]
    fresh = [(stamp, value) for stamp, value in rows if stamp > last]
    if not fresh:
        raise NVMLError(NVML_ERROR_NOT_FOUND)
    return UNSIGNED, [
        SimpleNamespace(timeStamp=stamp, sampleValue=Value(UNSIGNED, round(value * scale))) for stamp, value in fresh
    ]


nvmlDeviceGetEncoderUtilization = _answer(lambda _: [0, 167_000])  # percent, sampling period in µs
c_nvmlEccSramErrorStatus_v1_t = SramErrors
nvmlDeviceGetDecoderUtilization = nvmlDeviceGetEncoderUtilization
nvmlDeviceGetJpgUtilization = nvmlDeviceGetOfaUtilization = nvmlDeviceGetEncoderUtilization
nvmlDeviceGetEncoderStats = _answer(lambda _: (0, 0, 0))  # sessions, frames a second, latency in µs


def nvmlDeviceGetMemoryInfo(handle: Any, version: int | None = None) -> SimpleNamespace:
    """Return bytes; without ``version`` the driver's reserve counts as used."""
    gpu = _gpu(handle)
    total, reserved, used = gpu.product.memory, gpu.product.reserved, int(gpu.memory_used)
    free = max(0, total - reserved - used)
    if version is None:
        return SimpleNamespace(total=total, free=free, used=total - free)
    used = total - reserved - free
    return SimpleNamespace(version=version, total=total, reserved=reserved, free=free, used=used)


def nvmlDeviceGetTemperature(handle: Any, sensor: int) -> int:
    """Return degrees Celsius of the only sensor, 0."""
    if sensor:
        raise NVMLError(NVML_ERROR_INVALID_ARGUMENT)
    return round(_gpu(handle).temperature)


nvmlDeviceGetTemperatureV = nvmlDeviceGetTemperature
nvmlDeviceGetMarginTemperature = _answer(lambda gpu: round(SLOWDOWN_CELSIUS - gpu.temperature))  # °C


def nvmlDeviceGetTemperatureThreshold(handle: Any, kind: int) -> int:
    """Return a limit: 0 shutdown, 1 slowdown, 2 memory, 3 GPU."""
    limits = (SHUTDOWN_CELSIUS, SLOWDOWN_CELSIUS, MEMORY_MAX_CELSIUS, SLOWDOWN_CELSIUS - 2.0)
    _gpu(handle)
    if not 0 <= kind < len(limits):
        raise NVMLError(NVML_ERROR_NOT_SUPPORTED)
    return int(limits[kind])


nvmlDeviceGetPowerUsage = _answer(lambda gpu: round(gpu.power * 1000))  # mW
nvmlDeviceGetEnforcedPowerLimit = _answer(lambda gpu: round(gpu.power_limit * 1000))  # mW
nvmlDeviceGetTotalEnergyConsumption = _answer(lambda gpu: int(gpu.energy * 1000))  # mJ


def nvmlDeviceGetClockInfo(handle: Any, domain: int) -> int:
    """Return MHz of 0 graphics, 1 SM, 2 memory, 3 video."""
    gpu = _gpu(handle)
    return (int(gpu.clock), int(gpu.clock), gpu.product.memory_clock, int(gpu.clock * 0.89))[domain]


def nvmlDeviceGetMaxClockInfo(handle: Any, domain: int) -> int:
    """Return MHz."""
    kind = _gpu(handle).product
    return (kind.sm_clock, kind.sm_clock, kind.memory_clock, int(kind.sm_clock * 0.89))[domain]


nvmlDeviceGetApplicationsClock = nvmlDeviceGetMaxClockInfo
nvmlDeviceGetCurrentClocksEventReasons = _answer(lambda gpu: gpu.reasons)  # bits
nvmlDeviceGetCurrentClocksThrottleReasons = nvmlDeviceGetCurrentClocksEventReasons
nvmlDeviceGetPerformanceState = _answer(lambda _: 0)  # data centre GPUs idle in P0
nvmlDeviceGetCurrPcieLinkGeneration = _answer(lambda gpu: 5 if gpu.utilization > 0.0 else 1)  # saves power
nvmlDeviceGetMaxPcieLinkGeneration = _answer(lambda _: 5)
nvmlDeviceGetCurrPcieLinkWidth = _answer(lambda gpu: gpu.degradation.pcie_lanes)  # lanes
nvmlDeviceGetMaxPcieLinkWidth = _answer(lambda _: LANES)
nvmlDeviceGetPcieReplayCounter = _answer(lambda _: 0)


def nvmlDeviceGetNvLinkState(handle: Any, link: int) -> int:
    """Return whether a link is up; a GPU without NVLink has its links down."""
    gpu = _gpu(handle)
    if not 0 <= link < 18:
        raise NVMLError(NVML_ERROR_INVALID_ARGUMENT)
    return int(link < gpu.product.nvlinks and link != gpu.dead_link)


def nvmlDeviceGetTotalEccErrors(handle: Any, error: int, scope: int) -> int:
    """Return corrected (0) or uncorrected (1) errors, volatile (0) or aggregate (1)."""
    gpu = _gpu(handle)
    return ecc_errors(gpu) if (error, scope) == (0, 1) else 0


nvmlDeviceGetRemappedRows = _answer(
    lambda gpu: (remapped_rows(gpu), 0, 0, 0)
)  # correctable, uncorrectable, pending, failed


def nvmlDeviceGetComputeRunningProcesses(handle: Any) -> list[SimpleNamespace]:
    """Return the processes of the ranks that run on the GPU, when the specification has their pids."""
    gpu, driver = _gpu(handle), _driver()
    workers = [
        SimpleNamespace(pid=driver.node_spec.pids[name][rank], usedGpuMemory=int(gpu.process_memory))
        for name, rank in driver.world.owners(gpu.index)
        if rank < len(driver.node_spec.pids.get(name, ()))
    ]
    # Another tenant's process serves nothing on this node, and neither does this one.
    tenants = [SimpleNamespace(pid=os.getpid(), usedGpuMemory=None)] if gpu.degradation.tenant_share else []
    return workers + tenants


nvmlDeviceGetNumFans = nvmlDeviceGetFanSpeed = nvmlDeviceGetFanSpeed_v2 = _refuse
nvmlDeviceGetRetiredPages = nvmlDeviceGetNumaNodeId = _refuse
c_nvmlGpuFabricInfo_v2_t = fabric_structure


def nvmlDeviceGetGpuFabricInfoV(handle: Any, info: Any) -> int:
    """Fill ``info`` (or what it refers to): registered, where there is a switch."""
    if not _gpu(handle).product.nvlinks:
        raise NVMLError(NVML_ERROR_NOT_SUPPORTED)
    getattr(info, "_obj", info).state = NVML_GPU_FABRIC_STATE_COMPLETED
    return 0


def nvmlDeviceGetFieldValues(handle: Any, fields: Sequence[Any]) -> list[SimpleNamespace]:
    """Return for each id, or (id, scope), its return code, value type and value."""
    gpu, driver = _gpu(handle), _driver()
    stamp = int((driver.node_spec.started_unix + driver.world.now) * _MILLION)
    answers = []
    for asked in fields:
        field, scope = asked if isinstance(asked, tuple) else (asked, 0)
        found = read_field(gpu, field, scope, driver.world.software.driver)
        kind, number = found or (UNSIGNED, 0)
        answers.append(
            SimpleNamespace(
                fieldId=field,
                scopeId=scope,
                timestamp=stamp,
                latencyUsec=20,
                valueType=kind,
                nvmlReturn=0 if found else NVML_ERROR_NOT_SUPPORTED,
                value=Value(kind, number),
            )
        )
    return answers


def nvmlGpmQueryDeviceSupport(handle: Any) -> SimpleNamespace:
    """Return that the GPU supports GPM."""
    _gpu(handle)
    return SimpleNamespace(version=1, isSupportedDevice=1)


def nvmlGpmSampleGet(handle: Any, sample: GpmSample) -> GpmSample:
    """Record the GPU's counters in a sample."""
    gpu, driver = _gpu(handle), _driver()
    with driver.lock:
        sample.record(gpu, driver.world.now)
    return sample


(
    nvmlEventSetCreate,
    nvmlDeviceGetSupportedEventTypes,
    nvmlDeviceRegisterEvents,
    nvmlEventSetWait_v2,
    nvmlEventSetFree,
) = event_functions(_driver)
