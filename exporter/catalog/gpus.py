"""Metrics of GPUs: identity, load, memory, temperature, power, clocks, health."""

from __future__ import annotations

from collections.abc import Iterator

from exporter.catalog.gpu_reads import Which, readings, signal, signals, words
from exporter.catalog.spec import GPU, NODE, ReadSamples, Sample, SeriesSet, Unit
from exporter.model import CardReading, GpuModes, Missing, Signal, Snapshot
from exporter.model.card import RECOVERY_ACTIONS
from exporter.model.engine import ReplicaLabels


def _info(snapshot: Snapshot) -> Iterator[Sample]:
    for card in snapshot.cards:
        facts = card.facts
        numa = "" if facts.numa_node is None else str(facts.numa_node)
        yield (*card.labels, facts.name, facts.pci_bus_id, facts.serial, facts.vbios_version, numa), 1.0


def _modes(snapshot: Snapshot) -> Iterator[Sample]:
    for card in snapshot.cards:
        modes = card.facts.modes
        if card.reading is not None and modes != GpuModes():  # else the driver may have been replaced since
            yield (*card.labels, modes.persistence, modes.compute, modes.gsp_firmware), 1.0


def _driver(snapshot: Snapshot) -> Iterator[Sample]:
    if snapshot.driver is not None:
        yield (snapshot.driver.driver_version, snapshot.driver.nvml_version, snapshot.driver.cuda_version), 1.0


def _up(snapshot: Snapshot) -> Iterator[Sample]:
    for card in snapshot.cards:
        yield card.labels, 1.0 if card.reading is not None else 0.0


def _age(snapshot: Snapshot) -> Iterator[Sample]:
    for card in snapshot.cards:
        if card.last_read_at is not None:
            yield card.labels, max(0.0, snapshot.at - card.last_read_at)


# What no wait and no permission brings.
_LASTING = frozenset({Missing.UNSUPPORTED, Missing.NOT_EXPORTED})


def _missing(*, unsupported: bool) -> ReadSamples:
    def read(snapshot: Snapshot) -> Iterator[Sample]:
        for labels, reading in readings(snapshot):
            for absent, reason in reading.missing.items():
                if reason not in _LASTING or (unsupported and not _replaced(absent, reading)):
                    yield (*labels, absent.value, reason.value), 1.0

    return read


def _replaced(absent: Signal, reading: CardReading) -> bool:
    """Return whether another signal replaces it, such as row remapping, which replaces retired pages."""
    if absent in {Signal.NVLINK_CRC_FLIT, Signal.NVLINK_CRC_DATA, Signal.C2C_MODE}:  # C2C: absent links say it
        return True
    return absent in _OF_RETIRING and Signal.ROW_REMAP_PENDING in reading.signals


def _replica(snapshot: Snapshot) -> Iterator[Sample]:
    # A replica whose metrics endpoint is on another node has its key for a name, and its model is not known here.
    known = {gpu.key: ReplicaLabels(gpu.key, gpu.engine, "") for gpu in snapshot.multi_node if gpu.is_remote}
    known |= {replica.name: replica.labels for replica in snapshot.replicas}
    cards = {card.facts.uuid: card.labels for card in snapshot.cards}
    for assignment in snapshot.assignments:
        if assignment.uuid in cards and assignment.replica in known:
            yield (*cards[assignment.uuid], *known[assignment.replica], assignment.rank), 1.0


# Reasons that reduce performance; idleness, and clocks that an administrator set, do not.
_HARMFUL = frozenset(
    {"sw_power_cap", "hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown"}
)


def _events(snapshot: Snapshot) -> Iterator[Sample]:
    for labels, reading in readings(snapshot):
        for reason, active in reading.clock_events.items():
            if reason in _HARMFUL:
                yield (*labels, reason), float(active)


def _event_seconds(*, harmful_only: bool) -> ReadSamples:
    def read(snapshot: Snapshot) -> Iterator[Sample]:
        for labels, reading in readings(snapshot):
            for reason, seconds in reading.clock_event_seconds.items():
                if not harmful_only or reason in _HARMFUL:
                    yield (*labels, reason), seconds

    return read


def _recovery(snapshot: Snapshot) -> Iterator[Sample]:
    for labels, reading in readings(snapshot):
        number = reading.signals.get(Signal.RECOVERY_ACTION)
        if number is not None:
            known = number.is_integer() and 0 <= number < len(RECOVERY_ACTIONS)
            yield (*labels, RECOVERY_ACTIONS[int(number)] if known else f"{number:g}"), 1.0


def _ecc_pending(snapshot: Snapshot) -> Iterator[Sample]:
    for labels, reading in readings(snapshot):
        pending = reading.signals.get(Signal.ECC_MODE_PENDING)
        if pending is not None and pending != reading.signals.get(Signal.ECC_MODE):
            yield labels, pending


def _banks(snapshot: Snapshot) -> Iterator[Sample]:
    for labels, banks in signals(_SPARE_ROWS)(snapshot):
        if banks:
            yield labels, banks


_CLOCKS: Which = {
    ("sm",): Signal.CLOCK_SM,
    ("memory",): Signal.CLOCK_MEMORY,
    ("graphics",): Signal.CLOCK_GRAPHICS,
    ("video",): Signal.CLOCK_VIDEO,
}
_CLOCK_LIMITS: Which = {
    ("sm",): Signal.CLOCK_MAX_SM,
    ("memory",): Signal.CLOCK_MAX_MEMORY,
    ("graphics",): Signal.CLOCK_MAX_GRAPHICS,
    ("video",): Signal.CLOCK_MAX_VIDEO,
}
_POWER_LIMITS: Which = {
    ("default",): Signal.POWER_LIMIT_DEFAULT,
    ("max",): Signal.POWER_LIMIT_MAX,
}
_TEMPERATURES: Which = {("gpu",): Signal.TEMPERATURE_GPU, ("memory",): Signal.TEMPERATURE_MEMORY}
_TEMPERATURE_LIMITS: Which = {
    ("slowdown",): Signal.TEMPERATURE_LIMIT_SLOWDOWN,
    ("shutdown",): Signal.TEMPERATURE_LIMIT_SHUTDOWN,
    ("gpu_max",): Signal.TEMPERATURE_LIMIT_GPU_MAX,
    ("memory_max",): Signal.TEMPERATURE_LIMIT_MEMORY_MAX,
}
_ECC_VOLATILE: Which = {
    ("corrected", "volatile"): Signal.ECC_CORRECTED_VOLATILE,
    ("uncorrected", "volatile"): Signal.ECC_UNCORRECTED_VOLATILE,
}
_ECC_AGGREGATE: Which = {
    ("corrected", "aggregate"): Signal.ECC_CORRECTED_AGGREGATE,
    ("uncorrected", "aggregate"): Signal.ECC_UNCORRECTED_AGGREGATE,
}
_SRAM: Which = {
    ("corrected",): Signal.SRAM_CORRECTED_AGGREGATE,
    ("uncorrected",): Signal.SRAM_UNCORRECTED_AGGREGATE,
}
_SPARE_ROWS: Which = {
    ("high",): Signal.ROW_REMAP_BANKS_HIGH,
    ("partial",): Signal.ROW_REMAP_BANKS_PARTIAL,
    ("low",): Signal.ROW_REMAP_BANKS_LOW,
    ("none",): Signal.ROW_REMAP_BANKS_NONE,
}
_REMAPPED: Which = {
    ("correctable",): Signal.REMAPPED_ROWS_CORRECTABLE,
    ("uncorrectable",): Signal.REMAPPED_ROWS_UNCORRECTABLE,
}
_RETIRED: Which = {("single_bit",): Signal.RETIRED_PAGES_SINGLE_BIT, ("double_bit",): Signal.RETIRED_PAGES_DOUBLE_BIT}
_OF_RETIRING = frozenset({*_RETIRED.values(), Signal.RETIRED_PAGES_PENDING})

IDENTITY = (
    GPU.info(
        "",
        _info,
        "Facts about a GPU; join on uuid, because the index may change between boots.",
        "name",
        "pci_bus_id",
        "serial",
        "vbios_version",
        "numa_node",
    ),
    GPU.info(
        "mode",
        _modes,
        "How the driver runs the GPU: persistence_mode (enabled, disabled), compute_mode (default, "
        "exclusive_process, prohibited), and the version of the firmware on its system processor (GSP). Labels are "
        "empty where the driver does not say. Read every 10 min. The ECC mode is gpu_ecc_enabled.",
        "persistence_mode",
        "compute_mode",
        "gsp_firmware_version",
        series=SeriesSet.FULL,
    ),
    NODE.info(
        "driver",
        _driver,
        "Versions of this node's GPU driver stack.",
        "driver_version",
        "nvml_version",
        "cuda_version",
    ),
    GPU.gauge("up", _up, "1 while the GPU answers, 0 while it is lost, hung or in error."),
    GPU.gauge("data_age", _age, "Age of the GPU's newest reading.", unit=Unit.SECONDS),
    GPU.info(
        "signal_missing",
        _missing(unsupported=False),
        "Why a signal of a GPU that answers is absent: no_permission, mig, disabled, error, invalid, "
        "starting, "
        "unverified, busy (another call into the driver does not return), slow (skipped, because the GPU answers too "
        "slowly), crashed (skipped, because the driver crashed in the call), and in the full set also unsupported "
        "and not_exported (the exporter that reads the GPU can tell it, and its configuration leaves it out).",
        "signal",
        "reason",
        read_full=_missing(unsupported=True),
    ),
    GPU.info(
        "replica",
        _replica,
        "The replica that uses the GPU; rank is empty if it is not known.",
        "replica",
        "engine",
        "model",
        "rank",
    ),
)

WORK = (
    GPU.gauge(
        "utilization",
        signal(Signal.UTILIZATION),
        "Ratio of time in which at least one kernel was resident, mean over the driver's samples since the previous "
        "cycle. It does not measure work: a rank that waits for the others shows 1.",
        unit=Unit.RATIO,
    ),
    GPU.gauge(
        "memory_activity",
        signal(Signal.MEMORY_ACTIVITY),
        "Ratio of time in which device memory was read or written; not bandwidth. See gpu_dram_active_ratio.",
        unit=Unit.RATIO,
        series=SeriesSet.FULL,
    ),
    GPU.gauge(
        "encoder_utilization",
        signal(Signal.ENCODER_UTILIZATION),
        "Ratio of time in which the video encoder was busy.",
        unit=Unit.RATIO,
        series=SeriesSet.FULL,
    ),
    GPU.gauge(
        "decoder_utilization",
        signal(Signal.DECODER_UTILIZATION),
        "Ratio of time in which the video decoder was busy.",
        unit=Unit.RATIO,
        series=SeriesSet.FULL,
    ),
    GPU.gauge(
        "jpeg_utilization",
        signal(Signal.JPEG_UTILIZATION),
        "Ratio of time in which the JPEG engine was busy.",
        unit=Unit.RATIO,
        series=SeriesSet.FULL,
    ),
    GPU.gauge(
        "ofa_utilization",
        signal(Signal.OFA_UTILIZATION),
        "Ratio of time in which the optical flow accelerator was busy.",
        unit=Unit.RATIO,
        series=SeriesSet.FULL,
    ),
    GPU.gauge(
        "encoder_sessions", signal(Signal.ENCODER_SESSIONS), "Sessions of the video encoder.", series=SeriesSet.FULL
    ),
    GPU.gauge(
        "processes", signal(Signal.PROCESSES), "Processes with a compute context on the GPU.", series=SeriesSet.FULL
    ),
)

MEMORY = (
    GPU.gauge("memory_total", signal(Signal.MEMORY_TOTAL), "Device memory of the GPU.", unit=Unit.BYTES),
    GPU.gauge(
        "memory_used",
        signal(Signal.MEMORY_USED),
        "Device memory allocated, without reserved memory.",
        unit=Unit.BYTES,
    ),
    GPU.gauge(
        "memory_free",
        signal(Signal.MEMORY_FREE),
        "Device memory that can still be allocated.",
        unit=Unit.BYTES,
        series=SeriesSet.FULL,
    ),
    GPU.gauge(
        "memory_reserved",
        signal(Signal.MEMORY_RESERVED),
        "Device memory reserved by driver and firmware.",
        unit=Unit.BYTES,
        series=SeriesSet.FULL,
    ),
    GPU.gauge(
        "bar1_memory_total",
        signal(Signal.BAR1_TOTAL),
        "BAR1 address space, through which CPU and other devices access device memory over PCIe; smaller than the "
        "memory where the machine's firmware grants no more.",
        unit=Unit.BYTES,
        series=SeriesSet.FULL,
    ),
    GPU.gauge(
        "bar1_memory_used",
        signal(Signal.BAR1_USED),
        "BAR1 address space that is mapped.",
        unit=Unit.BYTES,
        series=SeriesSet.FULL,
    ),
    GPU.gauge(
        "bar1_memory_free",
        signal(Signal.BAR1_FREE),
        "BAR1 address space that is not mapped.",
        unit=Unit.BYTES,
        series=SeriesSet.FULL,
    ),
)

HEAT_AND_POWER = (
    GPU.gauge(
        "temperature",
        signals(_TEMPERATURES),
        f"Temperature by sensor: {words(_TEMPERATURES)}.",
        "sensor",
        unit=Unit.CELSIUS,
    ),
    GPU.gauge(
        "temperature_limit",
        signals(_TEMPERATURE_LIMITS),
        "Temperature at which the GPU slows down, shuts down, or leaves its rated range: "
        f"{words(_TEMPERATURE_LIMITS)}.",
        "limit",
        unit=Unit.CELSIUS,
        series=SeriesSet.FULL,
    ),
    GPU.gauge(
        "temperature_margin",
        signal(Signal.TEMPERATURE_MARGIN),
        "Degrees until the GPU slows down; alert on this rather than on a fixed temperature.",
        unit=Unit.CELSIUS,
    ),
    GPU.gauge("power", signal(Signal.POWER), "Power draw, averaged by the driver.", unit=Unit.WATTS),
    GPU.gauge("power_limit", signal(Signal.POWER_LIMIT), "Enforced power limit.", unit=Unit.WATTS),
    GPU.gauge(
        "power_limit_setting",
        signals({("default",): Signal.POWER_LIMIT_DEFAULT}),
        f"Power limit that the GPU was made with, and (full set) the highest allowed: {words(_POWER_LIMITS)}.",
        "limit",
        unit=Unit.WATTS,
        read_full=signals(_POWER_LIMITS),
    ),
    GPU.counter(
        "energy",
        signal(Signal.ENERGY),
        "Energy drawn since the driver was loaded or the GPU was reset.",
        unit=Unit.JOULES,
    ),
    GPU.gauge(
        "fan_speed",
        signal(Signal.FAN_SPEED),
        "Requested fan speed over its maximum, mean over the fans; absent on passively cooled GPUs.",
        unit=Unit.RATIO,
        series=SeriesSet.FULL,
    ),
)

CLOCKS = (
    GPU.gauge(
        "clock",
        signals({("sm",): Signal.CLOCK_SM}),
        f"Current clock by domain: {words(_CLOCKS)}; domains other than sm are in the full set of series.",
        "domain",
        unit=Unit.HERTZ,
        read_full=signals(_CLOCKS),
    ),
    GPU.gauge(
        "clock_max",
        signals(_CLOCK_LIMITS),
        "Maximum clock by domain.",
        "domain",
        unit=Unit.HERTZ,
        series=SeriesSet.FULL,
    ),
    GPU.gauge(
        "clock_application",
        signals({("sm",): Signal.CLOCK_APPLICATION_SM}),
        "Clock that applications run at, as far as power and temperature allow; absent where the driver has no such "
        "setting.",
        "domain",
        unit=Unit.HERTZ,
        series=SeriesSet.FULL,
    ),
    GPU.gauge(
        "clock_event_active",
        _events,
        f"1 while the driver reduces the clocks for this reason: {', '.join(sorted(_HARMFUL))}. Idle "
        "GPUs and clocks set on purpose are left out.",
        "reason",
    ),
    GPU.counter(
        "clock_event",
        _event_seconds(harmful_only=True),
        "Time for which the driver reduced the clocks for this reason; harmless reasons are in the full set.",
        "reason",
        unit=Unit.SECONDS,
        read_full=_event_seconds(harmful_only=False),
    ),
    GPU.gauge(
        "performance_state",
        signal(Signal.PERFORMANCE_STATE),
        "P-state: 0 is full performance, 15 the lowest.",
        series=SeriesSet.FULL,
    ),
)

HEALTH = (
    GPU.counter(
        "ecc_errors",
        signals(_ECC_VOLATILE),
        "ECC memory errors; volatile since the driver was loaded, aggregate over the GPU's lifetime (full set). "
        "Absent while ECC is off, see gpu_ecc_enabled.",
        "error",
        "scope",
        read_full=signals({**_ECC_VOLATILE, **_ECC_AGGREGATE}),
    ),
    GPU.gauge(
        "ecc_enabled",
        signal(Signal.ECC_MODE),
        "1 while ECC is on. While it is off, errors are neither corrected nor counted, and "
        "gpu_signal_missing_info has the reason disabled.",
        series=SeriesSet.FULL,
    ),
    GPU.gauge(
        "ecc_enabled_pending",
        _ecc_pending,
        "1 when the next reset of the GPU turns ECC on, 0 when it turns it off; absent where it changes nothing.",
        series=SeriesSet.FULL,
    ),
    GPU.counter(
        "sram_ecc_errors",
        signals(_SRAM),
        "ECC errors in SRAM (caches, register files) over the GPU's lifetime.",
        "error",
        series=SeriesSet.FULL,
    ),
    GPU.gauge(
        "sram_ecc_threshold_exceeded",
        signal(Signal.SRAM_THRESHOLD_EXCEEDED),
        "1 when the GPU has had more uncorrectable SRAM errors than its manufacturer accepts: it needs service.",
    ),
    GPU.counter(
        "remapped_rows",
        signals(_REMAPPED),
        "Memory rows replaced by spare rows, by cause.",
        "cause",
        series=SeriesSet.FULL,
    ),
    GPU.gauge(
        "row_remap_pending",
        signal(Signal.ROW_REMAP_PENDING),
        "1 while a row waits for the next reset of the GPU to be replaced.",
    ),
    GPU.gauge(
        "row_remap_failed",
        signal(Signal.ROW_REMAP_FAILED),
        "1 when a row could not be replaced: the GPU needs service.",
    ),
    GPU.gauge(
        "row_remap_banks",
        _banks,
        f"Banks of memory that have used spare rows, by those that they have left: {words(_SPARE_ROWS)}. In a bank "
        "with none, the next uncorrectable error cannot be remapped. Absent where there is no such bank.",
        "spare_rows",
        series=SeriesSet.FULL,
    ),
    GPU.counter(
        "retired_pages",
        signals(_RETIRED),
        "Memory pages retired (GPUs before Ampere), by cause.",
        "cause",
        series=SeriesSet.FULL,
    ),
    GPU.gauge(
        "recovery_action",
        _recovery,
        "1 for the action that the driver requests: none, gpu_reset, node_reboot, drain_p2p, drain_and_reset, "
        "recover_imex_domain, bus_reset, system_reboot.",
        "action",
    ),
)

GPUS = (*IDENTITY, *WORK, *MEMORY, *HEAT_AND_POWER, *CLOCKS)
