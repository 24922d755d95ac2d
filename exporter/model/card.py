"""GPUs and the driver: facts, readings, state.  GPU means a whole GPU or a MIG instance."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import Enum
from typing import NamedTuple

from msgspec import Struct

from exporter.model.bounds import Count, Finite, OptionalWord, Text, Uuid
from exporter.model.source import EMPTY, SourceStatus
from exporter.model.topology import CardTopology


class Signal(str, Enum):
    """One measured quantity of a GPU.  The value is the label ``signal`` of ``gpu_signal_missing_info``.

    str comes first among the bases so that look-ups hash in C: this enum keys the hottest mappings.
    """

    UTILIZATION = "utilization"
    MEMORY_ACTIVITY = "memory_activity"
    ENCODER_UTILIZATION = "encoder_utilization"
    DECODER_UTILIZATION = "decoder_utilization"
    JPEG_UTILIZATION = "jpeg_utilization"
    OFA_UTILIZATION = "ofa_utilization"
    ENCODER_SESSIONS = "encoder_sessions"
    MEMORY_TOTAL = "memory_total"
    MEMORY_USED = "memory_used"
    MEMORY_FREE = "memory_free"
    MEMORY_RESERVED = "memory_reserved"
    BAR1_TOTAL = "bar1_total"
    BAR1_USED = "bar1_used"
    BAR1_FREE = "bar1_free"
    TEMPERATURE_GPU = "temperature_gpu"
    TEMPERATURE_MEMORY = "temperature_memory"
    TEMPERATURE_LIMIT_SLOWDOWN = "temperature_limit_slowdown"
    TEMPERATURE_LIMIT_SHUTDOWN = "temperature_limit_shutdown"
    TEMPERATURE_LIMIT_GPU_MAX = "temperature_limit_gpu_max"
    TEMPERATURE_LIMIT_MEMORY_MAX = "temperature_limit_memory_max"
    TEMPERATURE_MARGIN = "temperature_margin"
    POWER = "power"
    POWER_INSTANT = "power_instant"
    POWER_LIMIT = "power_limit"
    POWER_LIMIT_REQUESTED = "power_limit_requested"
    POWER_LIMIT_DEFAULT = "power_limit_default"
    POWER_LIMIT_MIN = "power_limit_min"
    POWER_LIMIT_MAX = "power_limit_max"
    ENERGY = "energy"
    CLOCK_SM = "clock_sm"
    CLOCK_MEMORY = "clock_memory"
    CLOCK_GRAPHICS = "clock_graphics"
    CLOCK_VIDEO = "clock_video"
    CLOCK_MAX_SM = "clock_max_sm"
    CLOCK_MAX_MEMORY = "clock_max_memory"
    CLOCK_MAX_GRAPHICS = "clock_max_graphics"
    CLOCK_MAX_VIDEO = "clock_max_video"
    CLOCK_APPLICATION_SM = "clock_application_sm"
    CLOCK_APPLICATION_MEMORY = "clock_application_memory"
    CLOCK_EVENTS = "clock_events"
    CLOCK_EVENT_TIME = "clock_event_time"
    PCIE_LINK_GENERATION = "pcie_link_generation"
    PCIE_LINK_GENERATION_MAX = "pcie_link_generation_max"
    PCIE_LINK_WIDTH = "pcie_link_width"
    PCIE_LINK_WIDTH_MAX = "pcie_link_width_max"
    PCIE_TRANSMIT = "pcie_transmit"
    PCIE_RECEIVE = "pcie_receive"
    PCIE_REPLAYS = "pcie_replays"
    NVLINK_STATE = "nvlink_state"
    NVLINK_TRANSMIT = "nvlink_transmit"
    NVLINK_RECEIVE = "nvlink_receive"
    NVLINK_ERRORS = "nvlink_errors"
    NVLINK_CRC_FLIT = "nvlink_crc_flit"
    NVLINK_CRC_DATA = "nvlink_crc_data"
    ECC_MODE = "ecc_mode"
    ECC_MODE_PENDING = "ecc_mode_pending"
    ECC_CORRECTED_VOLATILE = "ecc_corrected_volatile"
    ECC_UNCORRECTED_VOLATILE = "ecc_uncorrected_volatile"
    ECC_CORRECTED_AGGREGATE = "ecc_corrected_aggregate"
    ECC_UNCORRECTED_AGGREGATE = "ecc_uncorrected_aggregate"
    SRAM_CORRECTED_VOLATILE = "sram_corrected_volatile"
    SRAM_UNCORRECTED_VOLATILE = "sram_uncorrected_volatile"
    SRAM_CORRECTED_AGGREGATE = "sram_corrected_aggregate"
    SRAM_UNCORRECTED_AGGREGATE = "sram_uncorrected_aggregate"
    SRAM_THRESHOLD_EXCEEDED = "sram_threshold_exceeded"
    REMAPPED_ROWS_CORRECTABLE = "remapped_rows_correctable"
    REMAPPED_ROWS_UNCORRECTABLE = "remapped_rows_uncorrectable"
    ROW_REMAP_PENDING = "row_remap_pending"
    ROW_REMAP_FAILED = "row_remap_failed"
    ROW_REMAP_BANKS_MAX = "row_remap_banks_max"
    ROW_REMAP_BANKS_HIGH = "row_remap_banks_high"
    ROW_REMAP_BANKS_PARTIAL = "row_remap_banks_partial"
    ROW_REMAP_BANKS_LOW = "row_remap_banks_low"
    ROW_REMAP_BANKS_NONE = "row_remap_banks_none"
    RETIRED_PAGES_SINGLE_BIT = "retired_pages_single_bit"
    RETIRED_PAGES_DOUBLE_BIT = "retired_pages_double_bit"
    RETIRED_PAGES_PENDING = "retired_pages_pending"
    RECOVERY_ACTION = "recovery_action"
    PERFORMANCE_STATE = "performance_state"
    VGPU_LICENSED = "vgpu_licensed"
    FAN_SPEED = "fan_speed"
    FABRIC_STATE = "fabric_state"
    FABRIC_STATUS = "fabric_status"
    FABRIC_HEALTH = "fabric_health"
    FABRIC_SUMMARY = "fabric_summary"
    C2C_MODE = "c2c_mode"
    C2C_LINKS = "c2c_links"
    C2C_LINKS_ACTIVE = "c2c_links_active"
    C2C_ERRORS = "c2c_errors"
    PROCESSES = "processes"
    # Work, not residency: ratio of time or of the peak, from the hardware's counters (GPM, Hopper and newer).
    SM_ACTIVE = "sm_active"
    SM_OCCUPANCY = "sm_occupancy"
    TENSOR_ACTIVE = "tensor_active"
    DRAM_ACTIVE = "dram_active"
    GRAPHICS_ACTIVE = "graphics_active"
    PIPE_ACTIVE = "pipe_active"
    TRAFFIC = "traffic"
    INSTANCES = "instances"  # of a MIG-enabled GPU; never a number, only missing


class Missing(str, Enum):
    """Why a signal of a GPU that answers is absent."""

    UNSUPPORTED = "unsupported"  # by GPU, driver or binding; retried after the next initialisation
    NO_PERMISSION = "no_permission"
    MIG = "mig"  # meaningless while MIG is on
    DISABLED = "disabled"  # switched off on the GPU, such as ECC
    ERROR = "error"  # the call failed this time
    INVALID = "invalid"  # the driver returned an impossible number
    STARTING = "starting"  # needs two reads, and there was only one yet
    BUSY = "busy"  # not read: another call into the driver does not return
    SLOW = "slow"  # not read lately: the GPU answers so slowly that there was no time
    CRASHED = "crashed"  # not read for a while: the driver crashed in the call
    NOT_EXPORTED = "not_exported"  # the exporter that reads the GPU could tell it, and its page does not have it
    UNVERIFIED = "unverified"  # unit, meaning or number of wraps is not known (yet) with this driver


class MigInstance(Struct, frozen=True, kw_only=True):
    """What identifies a MIG instance: its position in the parent's list, its profile, its ids."""

    number: Count
    parent: Text  # UUID
    profile: Text = ""  # "1g.10gb"; empty where the driver does not report it
    gpu_instance: Count
    compute_instance: Count


# What the driver asks for, by its number.
RECOVERY_ACTIONS = (
    "none",
    "gpu_reset",
    "node_reboot",
    "drain_p2p",
    "drain_and_reset",
    "recover_imex_domain",
    "bus_reset",
    "system_reboot",
)


class GpuModes(Struct, frozen=True, kw_only=True):
    """How the driver runs a GPU; empty where it does not say."""

    persistence: OptionalWord = ""  # enabled, disabled
    compute: OptionalWord = ""  # default, exclusive_process, prohibited
    gsp_firmware: Text = ""  # version; empty too where the GPU's system processor is off


class CardFacts(Struct, frozen=True, kw_only=True):
    """What is constant between two driver initialisations.  ``uuid`` is the key; the index may change."""

    index: Count
    uuid: Uuid
    name: Text = ""
    pci_bus_id: Text = ""
    serial: Text = ""
    vbios_version: Text = ""
    numa_node: Count | None = None
    modes: GpuModes = GpuModes()
    mig: bool = False  # MIG-enabled: its instances are GPUs of their own
    instance: MigInstance | None = None  # set on those instances


class CardProcess(Struct, frozen=True, kw_only=True):
    """A process with a compute context on a GPU; pid in the daemon's pid namespace."""

    pid: Count
    memory: Finite | None = None  # bytes


class CardReading(Struct, frozen=True, kw_only=True):
    """One GPU at one instant: ``signals`` that were read, and why the others are ``missing``."""

    at: Finite
    signals: Mapping[Signal, Finite]
    missing: Mapping[Signal, Missing] = EMPTY
    clock_events: Mapping[Text, bool] = EMPTY  # reason → active now
    clock_event_seconds: Mapping[Text, Finite] = EMPTY  # reason → counter
    policy_seconds: Mapping[Text, Finite] = EMPTY  # older policy → counter
    nvlink_up: Mapping[Count, bool] = EMPTY  # link → state
    nvlink_errors: Mapping[Text, Finite] = EMPTY  # type → counter, all links
    nvlink_errors_at: Finite | None = None  # when those were read, if not together with the rest
    nvlink_bit_errors: Mapping[Text, Finite] = EMPTY  # type → ratio of bits, worst link
    nvlink_bytes: Mapping[Count, tuple[Finite, Finite]] = EMPTY  # link → counters: sent, received
    nvlink_bytes_at: Finite | None = None  # when those were read
    c2c_errors: Mapping[Text, Finite] = EMPTY  # type → counter, worst link
    pipe_active: Mapping[Text, Finite] = EMPTY  # kind of arithmetic → ratio of time
    traffic: Mapping[tuple[Text, Text], Finite] = EMPTY  # (link, direction) → bytes/s
    processes: tuple[CardProcess, ...] | None = None  # None: not known


class DriverFacts(Struct, frozen=True, kw_only=True):
    """Versions of the node's driver stack; empty where the driver does not report one."""

    driver_version: Text = ""
    nvml_version: Text = ""
    cuda_version: Text = ""


class GpuLabels(NamedTuple):
    """The labels of every series about a GPU.  ``gpu``: the index, or PARENT:POSITION of a MIG instance."""

    gpu: str
    uuid: str


class CardState(Struct, frozen=True, kw_only=True):
    """A GPU in a snapshot: facts, health, and a reading only while it is fresh."""

    facts: CardFacts
    status: SourceStatus
    reading: CardReading | None
    last_read_at: float | None  # kept when the reading is withdrawn, because the age counts from here
    labels: GpuLabels  # built once: every series of the GPU carries them
    topology: CardTopology | None = None  # None: not known yet
    pipes: Collection[str] = ()  # kinds of arithmetic seen since the daemon started
