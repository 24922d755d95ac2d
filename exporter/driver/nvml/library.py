"""NVML: one driver and its GPUs, found, named and counted; ``gpu`` reads their numbers.

Sole importer of pynvml, and runs only inside the worker process, because any call here can block for ever.  The
driver is a module (or any object) with pynvml's names; a missing name counts as a function that the driver lacks.
Enumerations are written as the numbers of NVML's binary interface, so few constants are needed: one binding has
constants that are tuples, and field ids in bindings follow the binding's age, not the driver's.

Names used (a stand-in for pynvml offers these; whatever it leaves out is reported as unsupported):

lifecycle   nvmlInit() nvmlShutdown() nvmlDeviceGetCount() nvmlDeviceGetHandleByIndex(i)
            NVMLError (attribute ``value``: the code)  configure(options: str), optional, called before nvmlInit
versions    nvmlSystemGetDriverVersion() nvmlSystemGetNVMLVersion() nvmlSystemGetCudaDriverVersion()
facts       nvmlDeviceGetUUID(h) nvmlDeviceGetName(h) nvmlDeviceGetPciInfo(h).busId nvmlDeviceGetSerial(h)
            nvmlDeviceGetVbiosVersion(h) nvmlDeviceGetMemoryAffinity(h, words, 0) nvmlDeviceGetNumaNodeId(h)
            nvmlDeviceGetMigMode(h) nvmlDeviceGetPersistenceMode(h) nvmlDeviceGetComputeMode(h)
            nvmlDeviceGetGspFirmwareVersion(h)
each cycle  nvmlDeviceGetSamples(h, type 1 2, last_us) -> (value type, [.timeStamp .sampleValue.uiVal])
            nvmlDeviceGetUtilizationRates(h).gpu .memory
            nvmlDeviceGetMemoryInfo(h, version=nvmlMemory_v2).total .used .free .reserved, else (h)
            nvmlDeviceGetTemperatureV(h, 0) else nvmlDeviceGetTemperature(h, 0)  nvmlDeviceGetMarginTemperature(h)
            nvmlDeviceGetPowerUsage(h) nvmlDeviceGetTotalEnergyConsumption(h) (where the fields are unsupported)
            nvmlDeviceGetClockInfo(h, 0 graphics 1 sm 2 memory 3 video) nvmlDeviceGetPerformanceState(h)
            nvmlDeviceGetCurrentClocksEventReasons(h) else nvmlDeviceGetCurrentClocksThrottleReasons(h)
            nvmlDeviceGetCurrPcieLinkGeneration(h) nvmlDeviceGetCurrPcieLinkWidth(h)
            nvmlDeviceGetPcieReplayCounter(h) nvmlDeviceGetNvLinkState(h, link) (every 5 s)
            nvmlDeviceGetTotalEccErrors(h, 0 corrected 1 uncorrected, 0 volatile 1 aggregate)
            nvmlDeviceGetRemappedRows(h) -> (correctable, uncorrectable, pending, failed)
            nvmlDeviceGetFieldValues(h, [id or (id, scope)]) -> items .nvmlReturn .valueType .value.<uiVal ...>
slow        nvmlDeviceGetEncoderUtilization(h)[0] nvmlDeviceGetDecoderUtilization(h)[0]
            nvmlDeviceGetTemperatureThreshold(h, 0 shutdown 1 slowdown 2 memory_max 3 gpu_max)
            nvmlDeviceGetEnforcedPowerLimit(h) nvmlDeviceGetMaxClockInfo(h, domain)
            nvmlDeviceGetMaxPcieLinkGeneration(h) nvmlDeviceGetMaxPcieLinkWidth(h)
            nvmlDeviceGetNumFans(h) nvmlDeviceGetFanSpeed_v2(h, fan) else nvmlDeviceGetFanSpeed(h)
            nvmlDeviceGetRetiredPages(h, 0 1) nvmlDeviceGetComputeRunningProcesses(h) -> [.pid .usedGpuMemory]
            nvmlDeviceGetGpuFabricInfoV(h, ctypes.byref(info)) with info = c_nvmlGpuFabricInfo_v3_t() else _v2_t():
            .state .status .healthMask .healthSummary
fields      fast: 3 4 5 6 ECC, 74 76 and 251-253 or 269-271 clock event time, 82 memory temperature, 83 energy mJ,
            91 link count, 94 replays, 142-145 row remap, 185 average power mW, 197 198 PCIe bytes sent and received,
            230 recovery action, NVLink bytes 202 204 (bytes) or 138 139 (KiB) with scope 0xFFFFFFFF
            slow: 29 30 retired pages, NVLink errors per link (scope link) 161-163 or 206-222 and 293,
            170 C2C links, and where there are some (scope link) 171 their state, 231-233 their errors
work        nvmlGpmQueryDeviceSupport(h).isSupportedDevice nvmlGpmSampleAlloc() nvmlGpmSampleFree(sample)
            nvmlGpmSampleGet(h, sample) nvmlGpmMetricsGet(question) with c_nvmlGpmMetricsGet_t(): .version .numMetrics
            .sample1 .sample2 .metrics[place].metricId .nvmlReturn .value; ids in gpm
instances   nvmlDeviceGetMaxMigDeviceCount(h) nvmlDeviceGetMigDeviceHandleByIndex(h, place) and, of what that gives,
            nvmlDeviceGetUUID nvmlDeviceGetName nvmlDeviceGetGpuInstanceId nvmlDeviceGetComputeInstanceId
            nvmlDeviceGetMemoryInfo nvmlDeviceGetComputeRunningProcesses; nvmlGpmMigSampleGet(h, instance, sample)
topology    see topology
"""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from exporter.driver.calls import is_disabled, slot_key
from exporter.driver.nvml.errors import (
    FUNCTION_NOT_FOUND,
    DeviceCalls,
    DeviceUnavailable,
    DriverUnavailable,
    code_of,
    reason_of,
)
from exporter.model import EMPTY, CardFacts, DriverFacts, GpuModes, Missing

LIBRARY = "libnvidia-ml.so.1"
_MAX_CARDS = 64
_MAX_TEXT = 96
_NODE_SCOPE = 0
_PERSISTENCE = {0: "disabled", 1: "enabled"}
_COMPUTE = {0: "default", 1: "exclusive_thread", 2: "prohibited", 3: "exclusive_process"}


class InitialisedDriver(NamedTuple):
    """Versions, and the number of GPUs."""

    facts: DriverFacts
    cards: int


class OpenedCard(NamedTuple):
    """A GPU with a handle: the calls about it, and who it is."""

    calls: DeviceCalls
    facts: CardFacts


def load_driver(module: str, options: str = "") -> Any:
    """Import the binding (or its stand-in) by name and hand it its options.  Raises DriverUnavailable("library")."""
    try:
        driver = importlib.import_module(module)
        if options:
            driver.configure(options)
    except Exception as error:
        raise DriverUnavailable("library", f"{module} cannot be loaded: {error}") from error
    return driver


def initialise(driver: Any) -> InitialisedDriver:
    """Initialise NVML; return versions and number of GPUs.  May block for ever.

    Raises DriverUnavailable with the reason.
    """
    try:
        driver.nvmlInit()
        count = int(driver.nvmlDeviceGetCount())
    except Exception as error:
        reason, detail = reason_of(error), str(error)
        if reason == "library" and (broken := _broken_library(error)):
            reason, detail = "library_invalid", broken
        raise DriverUnavailable(reason, f"NVML does not start: {detail}") from error
    if not 0 <= count <= _MAX_CARDS:
        raise DriverUnavailable("error", f"NVML counts {count} GPUs; at most {_MAX_CARDS} are accepted")
    cuda = _version_call(driver, "nvmlSystemGetCudaDriverVersion")
    facts = DriverFacts(
        driver_version=printable(_version_call(driver, "nvmlSystemGetDriverVersion")),
        nvml_version=printable(_version_call(driver, "nvmlSystemGetNVMLVersion")),
        cuda_version=f"{cuda // 1000}.{cuda % 1000 // 10}" if isinstance(cuda, int) and cuda > 0 else "",
    )
    return InitialisedDriver(facts, count)


def _broken_library(error: Exception) -> str:
    """Return what is wrong with the driver's library, "" where there is none: the binding calls both not found."""
    if code_of(error) == FUNCTION_NOT_FOUND:
        return f"{LIBRARY} is not the driver's: {error}"
    try:
        ctypes.CDLL(LIBRARY)
    except OSError as cause:
        text = printable(str(cause))
        return "" if "No such file" in text else f"{LIBRARY} cannot be loaded: {text}"
    return ""


def card_count(driver: Any) -> int | None:
    """Count the GPUs again; None when the driver does not answer this time.

    Raises DriverUnavailable where the initialisation is over.
    """
    try:
        count = int(driver.nvmlDeviceGetCount())
    except Exception as error:
        reason = reason_of(error)
        if reason in {"uninitialized", "mismatch", "driver"}:
            raise DriverUnavailable(reason, f"NVML cannot count the GPUs: {error}") from error
        return None
    # A number that cannot be is no reason to initialise anew, which would take down GPUs that answer.
    return count if 0 <= count <= _MAX_CARDS else None


def shut_down(driver: Any) -> None:
    """Release the driver; a failure does not matter any more."""
    try:
        driver.nvmlShutdown()
    except Exception:
        return


def open_card(driver: Any, index: int, skipped_calls: Mapping[str, Mapping[str, float]] = EMPTY) -> OpenedCard:
    """Get the handle and facts of one GPU.  May block for ever.  Raises DeviceUnavailable and DriverUnavailable.

    ``skipped_calls``: UUID or ``slot_key`` → calls that are not made about that GPU, see ``is_disabled``.
    """
    skipped_here = skipped_calls.get(slot_key(index), EMPTY)
    if is_disabled("nvmlDeviceGetHandleByIndex", skipped_here):
        raise DeviceUnavailable("crashed", f"GPU {index} is not read: the driver crashed when it was opened")
    try:
        handle = driver.nvmlDeviceGetHandleByIndex(index)
    except Exception as error:
        reason = reason_of(error)
        if reason in {"uninitialized", "mismatch", "driver"}:
            raise DriverUnavailable(reason, f"GPU {index} has no handle: {error}") from error
        raise DeviceUnavailable(reason, f"GPU {index} has no handle: {error}") from error
    calls = DeviceCalls(driver, handle, skipped_here)
    facts = read_facts(calls, index)
    calls.skipped_calls = {**skipped_here, **skipped_calls.get(facts.uuid, EMPTY)}
    if is_disabled("", calls.skipped_calls):
        raise DeviceUnavailable("crashed", f"GPU {index} is not read: the driver crashed in several calls about it")
    return OpenedCard(calls, facts)


def read_facts(calls: DeviceCalls, index: int, known: CardFacts | None = None) -> CardFacts:
    """Read what stays true of a GPU; what the driver fails to answer this time stays as it is ``known``.

    Raises DeviceUnavailable where nothing says which GPU it is, as it could not be distinguished from others.
    """
    answer = calls.call("nvmlDeviceGetUUID")
    if answer is Missing.ERROR and known is not None:
        return known
    uuid = printable(answer)
    if not uuid:
        raise DeviceUnavailable(calls.last_error or "error", f"GPU {index} has no UUID")
    before = known if known is not None and known.uuid == uuid else CardFacts(index=index, uuid=uuid)
    pci, mig = calls.call("nvmlDeviceGetPciInfo"), mig_enabled(calls)
    return CardFacts(
        index=index,
        uuid=uuid,
        name=_text(calls.call("nvmlDeviceGetName"), before.name),
        pci_bus_id=_text(pci if isinstance(pci, Missing) else getattr(pci, "busId", ""), before.pci_bus_id),
        serial=_text(calls.call("nvmlDeviceGetSerial"), before.serial),
        vbios_version=_text(calls.call("nvmlDeviceGetVbiosVersion"), before.vbios_version),
        numa_node=_numa_node(calls, before.numa_node),
        modes=_modes(calls, before.modes),
        mig=before.mig if mig is None else mig,
    )


def _modes(calls: DeviceCalls, before: GpuModes) -> GpuModes:
    return GpuModes(
        persistence=_word(calls.call("nvmlDeviceGetPersistenceMode"), _PERSISTENCE, before.persistence),
        compute=_word(calls.call("nvmlDeviceGetComputeMode"), _COMPUTE, before.compute),
        gsp_firmware=_text(calls.call("nvmlDeviceGetGspFirmwareVersion"), before.gsp_firmware),
    )


def _word(answer: Any, words: Mapping[int, str], before: str) -> str:
    """Return the word for a mode; "" where the GPU has none, or one without a word."""
    if answer is Missing.ERROR:
        return before
    return words.get(answer, "") if isinstance(answer, int) else ""


def _text(answer: Any, before: str) -> str:
    return before if answer is Missing.ERROR else printable(answer)


def mig_enabled(calls: DeviceCalls) -> bool | None:
    """Return whether MIG is enabled; None where the driver does not answer this time."""
    mode = calls.call("nvmlDeviceGetMigMode")
    if isinstance(mode, Missing):
        return False if mode is Missing.UNSUPPORTED else None
    return bool(mode) and mode[0] == 1


def _numa_node(calls: DeviceCalls, before: int | None) -> int | None:
    """Return the node of host memory nearest to the GPU; the GPU's own node only where it names no other."""
    words = calls.call("nvmlDeviceGetMemoryAffinity", 4, _NODE_SCOPE)
    if words is Missing.ERROR:
        return before
    if not isinstance(words, Missing):
        mask = sum(int(word) << (64 * number) for number, word in enumerate(words))
        if mask and not mask & (mask - 1):  # several nodes: which is near is not known
            return mask.bit_length() - 1
    node = calls.call("nvmlDeviceGetNumaNodeId")
    if node is Missing.ERROR:
        return before
    return node if isinstance(node, int) and 0 <= node < 4096 else None


def _version_call(driver: Any, name: str) -> Any:
    function = getattr(driver, name, None)
    try:
        return function() if function is not None else ""
    except Exception:
        return ""


def printable(raw: Any) -> str:
    """Return a driver's string without what a label or log cannot carry; empty for anything else."""
    if isinstance(raw, bytes):
        raw = raw.decode("utf-8", "replace")
    if not isinstance(raw, str) or isinstance(raw, Missing):
        return ""
    return "".join(letter for letter in raw[:_MAX_TEXT] if letter.isprintable()).strip()
