# ruff: noqa: N802, N816 - the names are the binding's
"""Simulated cards behind pynvml's function names, so that the collector of real cards runs on them unchanged.

Call ``configure`` with the JSON that the node made, then use the module as pynvml.  Units are the driver's: percent,
milliwatts, millijoules, MHz, KiB, nanoseconds.  The card has Hopper's habits: no fan to ask about, remapped rows
instead of retired pages, NVLink counters in KiB, and the branch-dependent field ids of the simulated driver.
A card that is lost answers every call with 15; its neighbours go on.  Functions not defined here are functions that
the driver lacks.
"""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from exporter.simulate.board import about_the_board
from exporter.simulate.card import MEMORY_MAX_CELSIUS, SHUTDOWN_CELSIUS, SLOWDOWN_CELSIUS
from exporter.simulate.fields import UNSIGNED, Value, ecc_errors, fabric_structure, read_field, remapped_rows
from exporter.simulate.gpm import (  # noqa: F401 - the binding has them too
    c_nvmlGpmMetricsGet_t,
    nvmlGpmMetricsGet,
    nvmlGpmSampleAlloc,
    nvmlGpmSampleFree,
)
from exporter.simulate.mig import functions as mig_functions
from exporter.simulate.plan import Plan
from exporter.simulate.playing import (  # noqa: F401 - the binding has all of them
    NVML_ERROR_GPU_IS_LOST,
    NVML_ERROR_INVALID_ARGUMENT,
    NVML_ERROR_NOT_FOUND,
    NVML_ERROR_NOT_SUPPORTED,
    NVML_ERROR_UNINITIALIZED,
    Node,
    NVMLError,
)
from exporter.simulate.restraints import LANES
from exporter.simulate.topology import questions, socket
from exporter.simulate.xids import functions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from exporter.simulate.card import Card
    from exporter.simulate.work import Sample

NVML_GPU_FABRIC_STATE_COMPLETED = 3
nvmlMemory_v2 = 0x2000028

_MILLION = 1_000_000
_SAMPLE_COLUMNS = {1: 1, 2: 2, 0: 3}  # sampling type → column of Card.samples
_SAMPLE_SCALES = {1: 100.0, 2: 100.0, 0: 1000.0}


_node: list[Node] = []


def configure(options: str) -> None:
    """Choose the node to play: ``options`` is a plan's JSON, "" an ordinary healthy node.  ValueError, KeyError."""
    _node[:] = [Node(Plan.loads(options) if options else Plan())]


def _driver() -> Node:
    if not _node:
        configure("")
    return _node[0]


def _card(handle: Any) -> Card:
    return _driver().card(handle)


def _refuse(handle: Any, *_: Any) -> Any:
    """Answer as a card does that has no such thing."""
    _card(handle)
    raise NVMLError(NVML_ERROR_NOT_SUPPORTED)


def nvmlInit() -> None:
    """Begin; calls may nest."""
    _driver().users += 1


def nvmlShutdown() -> None:
    """End one ``nvmlInit``."""
    driver = _driver()
    if not driver.users:
        raise NVMLError(NVML_ERROR_UNINITIALIZED)
    driver.users -= 1


def nvmlSystemGetDriverVersion() -> str:
    """Give the driver's version."""
    return _driver().live().software.driver


def nvmlSystemGetNVMLVersion() -> str:
    """Give the library's version."""
    return _driver().live().software.nvml


def nvmlSystemGetCudaDriverVersion() -> int:
    """Give the CUDA version as major × 1000 + minor × 10."""
    return _driver().live().software.cuda


def nvmlDeviceGetCount() -> int:
    """Give the number of cards, lost ones included."""
    return _driver().live().scenario.cards


def nvmlDeviceGetHandleByIndex(index: int) -> int:
    """Give the handle of a card; a lost card has none."""
    if _card(index).parent is not None:
        raise NVMLError(NVML_ERROR_INVALID_ARGUMENT)
    return index


def nvmlDeviceGetUUID(handle: Any) -> str:
    """Give the card's UUID, the same for the same seed and node."""
    card = _card(handle)
    digits, what = card.identity, "GPU" if card.parent is None else "MIG"
    return f"{what}-{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def nvmlDeviceGetName(handle: Any) -> str:
    """Give the make."""
    return _card(handle).kind.name


def nvmlDeviceGetSerial(handle: Any) -> str:
    """Give a serial number of 13 digits."""
    return f"165{int(_card(handle).identity, 16) % 10**10:010d}"


def nvmlDeviceGetVbiosVersion(handle: Any) -> str:
    """Give the firmware's version."""
    return "96.00.A5.00.01" if _card(handle).kind.nvlinks else "96.00.68.00.04"


def nvmlDeviceGetPciInfo(handle: Any) -> SimpleNamespace:
    """Give the place on the bus; four cards behind each socket."""
    card = _card(handle)
    bus = (0x19, 0x3B, 0x4C, 0x5D, 0x9B, 0xBB, 0xCB, 0xDB)[(card.index if card.parent is None else card.parent) % 8]
    return SimpleNamespace(domain=0, bus=bus, device=0, busId=f"00000000:{bus:02X}:00.0")


def nvmlDeviceGetMemoryAffinity(handle: Any, words: int, scope: int) -> list[int]:
    """Give the bit mask of the memory nodes next to the card."""
    del scope
    return [1 << socket(_card(handle))] + [0] * (words - 1)


(
    nvmlDeviceGetMigMode,
    nvmlDeviceGetMaxMigDeviceCount,
    nvmlDeviceGetMigDeviceHandleByIndex,
    nvmlDeviceGetGpuInstanceId,
    nvmlDeviceGetComputeInstanceId,
    nvmlGpmMigSampleGet,
) = mig_functions(_driver, _card)
(
    nvmlDeviceGetTopologyCommonAncestor,
    nvmlDeviceGetP2PStatus,
    nvmlDeviceGetNvLinkRemoteDeviceType,
    nvmlDeviceGetNvLinkRemotePciInfo,
) = questions(_card)
(
    nvmlDeviceGetPowerManagementLimit,
    nvmlDeviceGetPowerManagementDefaultLimit,
    nvmlDeviceGetPowerManagementLimitConstraints,
    nvmlDeviceGetBAR1MemoryInfo,
    nvmlDeviceGetGridLicensableFeatures,
) = about_the_board(_card)


def nvmlDeviceGetUtilizationRates(handle: Any) -> SimpleNamespace:
    """Give percent of the last quarter of a second."""
    card = _card(handle)
    return SimpleNamespace(gpu=round(card.utilization * 100), memory=round(card.memory_activity * 100))


def nvmlDeviceGetSamples(handle: Any, kind: int, last: int) -> tuple[int, list[SimpleNamespace]]:
    """Give the buffered samples younger than ``last`` (µs of Unix time): 0 mW, 1 and 2 percent, 3 and 4 codecs."""
    card, wall = _card(handle), _driver().plan.wall
    if kind > 4:
        raise NVMLError(NVML_ERROR_NOT_SUPPORTED)
    column, scale = _SAMPLE_COLUMNS.get(kind), _SAMPLE_SCALES.get(kind, 0.0)
    with _driver().lock:
        rows = [(int((wall + row[0]) * _MILLION), row[column] if column else 0.0) for row in card.samples]
    fresh = [(stamp, value) for stamp, value in rows if stamp > last]
    if not fresh:
        raise NVMLError(NVML_ERROR_NOT_FOUND)
    return UNSIGNED, [
        SimpleNamespace(timeStamp=stamp, sampleValue=Value(UNSIGNED, round(value * scale))) for stamp, value in fresh
    ]


def nvmlDeviceGetEncoderUtilization(handle: Any) -> list[int]:
    """Give (percent, sampling period in µs)."""
    _card(handle)
    return [0, 167_000]


nvmlDeviceGetDecoderUtilization = nvmlDeviceGetEncoderUtilization


def nvmlDeviceGetMemoryInfo(handle: Any, version: int | None = None) -> SimpleNamespace:
    """Give bytes; without ``version`` the driver's reserve counts as used."""
    card = _card(handle)
    total, reserved, used = card.kind.memory, card.kind.reserved, int(card.memory_used)
    free = max(0, total - reserved - used)
    if version is None:
        return SimpleNamespace(total=total, free=free, used=total - free)
    used = total - reserved - free
    return SimpleNamespace(version=version, total=total, reserved=reserved, free=free, used=used)


def nvmlDeviceGetTemperature(handle: Any, sensor: int) -> int:
    """Give degrees Celsius of the only sensor, 0."""
    if sensor:
        raise NVMLError(NVML_ERROR_INVALID_ARGUMENT)
    return round(_card(handle).temperature)


nvmlDeviceGetTemperatureV = nvmlDeviceGetTemperature


def nvmlDeviceGetMarginTemperature(handle: Any) -> int:
    """Give the degrees left to the slowdown limit."""
    return round(SLOWDOWN_CELSIUS - _card(handle).temperature)


def nvmlDeviceGetTemperatureThreshold(handle: Any, kind: int) -> int:
    """Give a limit: 0 shutdown, 1 slowdown, 2 memory, 3 GPU."""
    limits = (SHUTDOWN_CELSIUS, SLOWDOWN_CELSIUS, MEMORY_MAX_CELSIUS, SLOWDOWN_CELSIUS - 2.0)
    _card(handle)
    if not 0 <= kind < len(limits):
        raise NVMLError(NVML_ERROR_NOT_SUPPORTED)
    return int(limits[kind])


def nvmlDeviceGetPowerUsage(handle: Any) -> int:
    """Give mW."""
    return round(_card(handle).power * 1000)


def nvmlDeviceGetEnforcedPowerLimit(handle: Any) -> int:
    """Give mW."""
    return round(_card(handle).power_limit * 1000)


def nvmlDeviceGetTotalEnergyConsumption(handle: Any) -> int:
    """Give mJ since the driver was loaded or the card was reset."""
    return int(_card(handle).energy * 1000)


def nvmlDeviceGetClockInfo(handle: Any, domain: int) -> int:
    """Give MHz of 0 graphics, 1 SM, 2 memory, 3 video."""
    card = _card(handle)
    return (int(card.clock), int(card.clock), card.kind.memory_clock, int(card.clock * 0.89))[domain]


def nvmlDeviceGetMaxClockInfo(handle: Any, domain: int) -> int:
    """Give MHz."""
    kind = _card(handle).kind
    return (kind.sm_clock, kind.sm_clock, kind.memory_clock, int(kind.sm_clock * 0.89))[domain]


def nvmlDeviceGetCurrentClocksEventReasons(handle: Any) -> int:
    """Give the bits of what holds the clocks back now."""
    return _card(handle).reasons


nvmlDeviceGetCurrentClocksThrottleReasons = nvmlDeviceGetCurrentClocksEventReasons


def nvmlDeviceGetPerformanceState(handle: Any) -> int:
    """Give 0: data centre cards idle in P0."""
    _card(handle)
    return 0


def nvmlDeviceGetCurrPcieLinkGeneration(handle: Any) -> int:
    """Give the generation now; an idle card trains down to save power."""
    return 5 if _card(handle).utilization > 0.0 else 1


def nvmlDeviceGetMaxPcieLinkGeneration(handle: Any) -> int:
    """Give the highest generation."""
    _card(handle)
    return 5


def nvmlDeviceGetCurrPcieLinkWidth(handle: Any) -> int:
    """Give the lanes now."""
    return _card(handle).restraint.lanes


def nvmlDeviceGetMaxPcieLinkWidth(handle: Any) -> int:
    """Give the lanes of card and slot."""
    _card(handle)
    return LANES


def nvmlDeviceGetPcieReplayCounter(handle: Any) -> int:
    """Give 0: the slots are sound."""
    _card(handle)
    return 0


def nvmlDeviceGetNvLinkState(handle: Any, link: int) -> int:
    """Say whether a link is up; a card without NVLink has its links down."""
    card = _card(handle)
    if not 0 <= link < 18:
        raise NVMLError(NVML_ERROR_INVALID_ARGUMENT)
    return int(link < card.kind.nvlinks and link != card.dead_link)


def nvmlDeviceGetTotalEccErrors(handle: Any, error: int, scope: int) -> int:
    """Give corrected (0) or uncorrected (1) errors, volatile (0) or aggregate (1)."""
    card = _card(handle)
    return ecc_errors(card) if (error, scope) == (0, 1) else 0


def nvmlDeviceGetRemappedRows(handle: Any) -> tuple[int, int, int, int]:
    """Give (correctable, uncorrectable, pending, failed)."""
    return remapped_rows(_card(handle)), 0, 0, 0


def nvmlDeviceGetComputeRunningProcesses(handle: Any) -> list[SimpleNamespace]:
    """Give the processes of the ranks that run on the card, when the plan knows them."""
    card, driver = _card(handle), _driver()
    workers = [
        SimpleNamespace(pid=driver.plan.pids[name][rank], usedGpuMemory=int(card.own_memory))
        for name, rank in driver.world.owners(card.index)
        if rank < len(driver.plan.pids.get(name, ()))
    ]
    # A visitor serves nothing on this node; this very process is one of those that do not.
    visitors = [SimpleNamespace(pid=os.getpid(), usedGpuMemory=None)] if card.restraint.visitor else []
    return workers + visitors


nvmlDeviceGetNumFans = nvmlDeviceGetFanSpeed = nvmlDeviceGetFanSpeed_v2 = _refuse
nvmlDeviceGetRetiredPages = nvmlDeviceGetNumaNodeId = _refuse
c_nvmlGpuFabricInfo_v2_t = fabric_structure


def nvmlDeviceGetGpuFabricInfoV(handle: Any, info: Any) -> int:
    """Fill ``info`` (or what it refers to): registered, where there is a switch."""
    if not _card(handle).kind.nvlinks:
        raise NVMLError(NVML_ERROR_NOT_SUPPORTED)
    getattr(info, "_obj", info).state = NVML_GPU_FABRIC_STATE_COMPLETED
    return 0


def nvmlDeviceGetFieldValues(handle: Any, fields: Sequence[Any]) -> list[SimpleNamespace]:
    """Answer each id, or (id, scope), with its own return code, value type and value."""
    card, driver = _card(handle), _driver()
    stamp = int((driver.plan.wall + driver.world.now) * _MILLION)
    answers = []
    for asked in fields:
        field, scope = asked if isinstance(asked, tuple) else (asked, 0)
        found = read_field(card, field, scope, driver.world.software.driver)
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
    """Say that the card has counters of its work."""
    _card(handle)
    return SimpleNamespace(version=1, isSupportedDevice=1)


def nvmlGpmSampleGet(handle: Any, sample: Sample) -> Sample:
    """Fill a buffer with the card's counters."""
    card, driver = _card(handle), _driver()
    with driver.lock:
        sample.take(card, driver.world.now)
    return sample


(
    nvmlEventSetCreate,
    nvmlDeviceGetSupportedEventTypes,
    nvmlDeviceRegisterEvents,
    nvmlEventSetWait_v2,
    nvmlEventSetFree,
) = functions(_driver)
