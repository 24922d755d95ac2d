"""NVIDIA's dcgm-exporter, before 4.9 (MHz, MiB, percent) and from 4.9 on (base units, the unit in the name).

Of names that mean the same the newer one is read.  A GPU that is divided by MIG is shown by its instances only, with
its own UUID and the instance's id.  Values that DCGM has not got lie beyond every limit, and so are absent.
"""

from __future__ import annotations

from collections.abc import Mapping

from exporter.gpu_pages.gpu_exporter import GpuExporter, GpuField, Merge, Part
from exporter.model import Signal

_MEGA, _MEBI, _PERCENT, _MILLI, _NANO = 1e6, 2.0**20, 0.01, 1e-3, 1e-9

# Signal, name from 4.9 on, older name, the older one's unit.
_RENAMED: tuple[tuple[Signal, str, str, float], ...] = (
    (Signal.UTILIZATION, "GPU_UTIL_RATIO", "GPU_UTIL", _PERCENT),
    (Signal.MEMORY_ACTIVITY, "MEMORY_UTIL_RATIO", "MEM_COPY_UTIL", _PERCENT),
    (Signal.ENCODER_UTILIZATION, "ENC_UTIL_RATIO", "ENC_UTIL", _PERCENT),
    (Signal.DECODER_UTILIZATION, "DEC_UTIL_RATIO", "DEC_UTIL", _PERCENT),
    (Signal.MEMORY_TOTAL, "FB_CAPACITY_BYTES", "FB_TOTAL", _MEBI),
    (Signal.MEMORY_USED, "FB_USED_BYTES", "FB_USED", _MEBI),
    (Signal.MEMORY_FREE, "FB_FREE_BYTES", "FB_FREE", _MEBI),
    (Signal.MEMORY_RESERVED, "FB_RESERVED_BYTES", "FB_RESERVED", _MEBI),
    (Signal.BAR1_TOTAL, "BAR1_CAPACITY_BYTES", "BAR1_TOTAL", _MEBI),
    (Signal.BAR1_USED, "BAR1_USED_BYTES", "BAR1_USED", _MEBI),
    (Signal.BAR1_FREE, "BAR1_FREE_BYTES", "BAR1_FREE", _MEBI),
    (Signal.TEMPERATURE_GPU, "GPU_TEMP_CELSIUS", "GPU_TEMP", 1.0),
    (Signal.TEMPERATURE_MEMORY, "MEMORY_TEMP_CELSIUS", "MEMORY_TEMP", 1.0),
    (Signal.TEMPERATURE_MARGIN, "GPU_TEMP_MARGIN_CELSIUS", "GPU_TEMP_LIMIT", 1.0),
    (Signal.TEMPERATURE_LIMIT_SLOWDOWN, "GPU_TEMP_SLOWDOWN_CELSIUS", "SLOWDOWN_TEMP", 1.0),
    (Signal.TEMPERATURE_LIMIT_SHUTDOWN, "GPU_TEMP_SHUTDOWN_CELSIUS", "SHUTDOWN_TEMP", 1.0),
    (Signal.TEMPERATURE_LIMIT_GPU_MAX, "GPU_MAX_OP_TEMP_CELSIUS", "GPU_MAX_OP_TEMP", 1.0),
    (Signal.TEMPERATURE_LIMIT_MEMORY_MAX, "MEMORY_MAX_OP_TEMP_CELSIUS", "MEM_MAX_OP_TEMP", 1.0),
    (Signal.POWER, "BOARD_POWER_WATTS", "POWER_USAGE", 1.0),
    (Signal.POWER_INSTANT, "BOARD_POWER_RAW_WATTS", "POWER_USAGE_INSTANT", 1.0),
    (Signal.POWER_LIMIT, "BOARD_POWER_LIMIT_ENFORCED_WATTS", "ENFORCED_POWER_LIMIT", 1.0),
    (Signal.POWER_LIMIT_REQUESTED, "BOARD_POWER_LIMIT_REQUESTED_WATTS", "POWER_MGMT_LIMIT", 1.0),
    (Signal.POWER_LIMIT_DEFAULT, "BOARD_POWER_LIMIT_DEFAULT_WATTS", "POWER_MGMT_LIMIT_DEF", 1.0),
    (Signal.POWER_LIMIT_MIN, "BOARD_POWER_LIMIT_MIN_WATTS", "POWER_MGMT_LIMIT_MIN", 1.0),
    (Signal.POWER_LIMIT_MAX, "BOARD_POWER_LIMIT_MAX_WATTS", "POWER_MGMT_LIMIT_MAX", 1.0),
    (Signal.ENERGY, "GPU_ENERGY_JOULES_TOTAL", "TOTAL_ENERGY_CONSUMPTION", _MILLI),
    (Signal.CLOCK_SM, "SM_CLOCK_HERTZ", "SM_CLOCK", _MEGA),
    (Signal.CLOCK_MEMORY, "MEMORY_CLOCK_HERTZ", "MEM_CLOCK", _MEGA),
    (Signal.CLOCK_VIDEO, "VIDEO_CLOCK_HERTZ", "VIDEO_CLOCK", _MEGA),
    (Signal.CLOCK_MAX_SM, "SM_MAX_CLOCK_HERTZ", "MAX_SM_CLOCK", _MEGA),
    (Signal.CLOCK_MAX_MEMORY, "MEMORY_MAX_CLOCK_HERTZ", "MAX_MEM_CLOCK", _MEGA),
    (Signal.CLOCK_MAX_VIDEO, "VIDEO_MAX_CLOCK_HERTZ", "MAX_VIDEO_CLOCK", _MEGA),
    (Signal.PERFORMANCE_STATE, "GPU_PSTATE", "PSTATE", 1.0),
    (Signal.FAN_SPEED, "FAN_SPEED_RATIO", "FAN_SPEED", _PERCENT),
    (Signal.PCIE_REPLAYS, "PCIE_REPLAY_TOTAL", "PCIE_REPLAY_COUNTER", 1.0),
    (Signal.NVLINK_TRANSMIT, "NVLINK_TX_BYTES_TOTAL", "NVLINK_COUNT_TX_BYTES", 1.0),
    (Signal.NVLINK_RECEIVE, "NVLINK_RX_BYTES_TOTAL", "NVLINK_COUNT_RX_BYTES", 1.0),
    (Signal.NVLINK_CRC_FLIT, "NVLINK_CRC_FLIT_ERROR_TOTAL", "NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", 1.0),
    (Signal.NVLINK_CRC_DATA, "NVLINK_CRC_DATA_ERROR_TOTAL", "NVLINK_CRC_DATA_ERROR_COUNT_TOTAL", 1.0),
    (Signal.REMAPPED_ROWS_CORRECTABLE, "ROW_REMAP_CORRECTABLE_TOTAL", "CORRECTABLE_REMAPPED_ROWS", 1.0),
    (Signal.REMAPPED_ROWS_UNCORRECTABLE, "ROW_REMAP_UNCORRECTABLE_TOTAL", "UNCORRECTABLE_REMAPPED_ROWS", 1.0),
    (Signal.ROW_REMAP_FAILED, "ROW_REMAP_FAILED", "ROW_REMAP_FAILURE", 1.0),
    (Signal.RETIRED_PAGES_SINGLE_BIT, "PAGE_RETIRED_SBE_TOTAL", "RETIRED_SBE", 1.0),
    (Signal.RETIRED_PAGES_DOUBLE_BIT, "PAGE_RETIRED_DBE_TOTAL", "RETIRED_DBE", 1.0),
    (Signal.RETIRED_PAGES_PENDING, "PAGE_RETIRED_PENDING", "RETIRED_PENDING", 1.0),
    (Signal.RECOVERY_ACTION, "GPU_RECOVERY_ACTION", "GET_GPU_RECOVERY_ACTION", 1.0),
)
_SAME_NAME: Mapping[Signal, str] = {
    Signal.PCIE_LINK_GENERATION: "DEV_PCIE_LINK_GEN",
    Signal.PCIE_LINK_GENERATION_MAX: "DEV_PCIE_MAX_LINK_GEN",
    Signal.PCIE_LINK_WIDTH: "DEV_PCIE_LINK_WIDTH",
    Signal.PCIE_LINK_WIDTH_MAX: "DEV_PCIE_MAX_LINK_WIDTH",
    Signal.PCIE_TRANSMIT: "PROF_PCIE_TX_BYTES_TOTAL",
    Signal.PCIE_RECEIVE: "PROF_PCIE_RX_BYTES_TOTAL",
    Signal.ECC_CORRECTED_VOLATILE: "DEV_ECC_SBE_VOL_TOTAL",
    Signal.ECC_UNCORRECTED_VOLATILE: "DEV_ECC_DBE_VOL_TOTAL",
    Signal.ECC_CORRECTED_AGGREGATE: "DEV_ECC_SBE_AGG_TOTAL",
    Signal.ECC_UNCORRECTED_AGGREGATE: "DEV_ECC_DBE_AGG_TOTAL",
    Signal.ROW_REMAP_PENDING: "DEV_ROW_REMAP_PENDING",
    Signal.VGPU_LICENSED: "DEV_VGPU_LICENSE_STATUS",
    Signal.FABRIC_HEALTH: "DEV_FABRIC_HEALTH_MASK",
    Signal.FABRIC_SUMMARY: "DEV_FABRIC_HEALTH_SUMMARY",
}
_WORK: Mapping[Signal, tuple[str, str]] = {
    Signal.GRAPHICS_ACTIVE: ("GR_ENGINE_UTIL_RATIO", "GR_ENGINE_ACTIVE"),
    Signal.SM_ACTIVE: ("SM_UTIL_RATIO", "SM_ACTIVE"),
    Signal.SM_OCCUPANCY: ("SM_OCCUPANCY_RATIO", "SM_OCCUPANCY"),
    Signal.TENSOR_ACTIVE: ("TENSOR_UTIL_RATIO", "PIPE_TENSOR_ACTIVE"),
    Signal.DRAM_ACTIVE: ("DRAM_UTIL_RATIO", "DRAM_ACTIVE"),
}
_PIPES = {
    "fp64": ("FP64_UTIL_RATIO", "PIPE_FP64_ACTIVE"),
    "fp32": ("FP32_UTIL_RATIO", "PIPE_FP32_ACTIVE"),
    "fp16": ("FP16_UTIL_RATIO", "PIPE_FP16_ACTIVE"),
    "integer": ("INT_UTIL_RATIO", "PIPE_INT_ACTIVE"),
    "tensor_imma": ("IMMA_UTIL_RATIO", "PIPE_TENSOR_IMMA_ACTIVE"),
    "tensor_hmma": ("HMMA_UTIL_RATIO", "PIPE_TENSOR_HMMA_ACTIVE"),
    "tensor_dfma": ("DFMA_UTIL_RATIO", "PIPE_TENSOR_DFMA_ACTIVE"),
}
_TRAFFIC = {
    ("pcie", "transmit"): "PCIE_TX_BYTES",
    ("pcie", "receive"): "PCIE_RX_BYTES",
    ("nvlink", "transmit"): "NVLINK_TX_BYTES",
    ("nvlink", "receive"): "NVLINK_RX_BYTES",
}
# Reason, its field in nanoseconds, names of the older policy from 4.9 on and before; "" where there is none.
_EVENT_TIMES = (
    ("sw_power_cap", "SW_POWER_CAP", "POWER_THROTTLE_SECONDS_TOTAL", "POWER_VIOLATION"),
    ("sync_boost", "SYNC_BOOST", "SYNC_BOOST_THROTTLE_SECONDS_TOTAL", "SYNC_BOOST_VIOLATION"),
    ("sw_thermal_slowdown", "SW_THERM_SLOWDOWN", "", ""),
    ("hw_thermal_slowdown", "HW_THERM_SLOWDOWN", "", ""),
    ("hw_power_brake_slowdown", "HW_POWER_BRAKE_SLOWDOWN", "", ""),
)
_POLICIES = {
    "thermal": ("THERMAL_THROTTLE", "THERMAL_VIOLATION"),
    "board_limit": ("BOARD_LIMIT_THROTTLE", "BOARD_LIMIT_VIOLATION"),
    "low_utilization": ("LOW_UTIL_THROTTLE", "LOW_UTIL_VIOLATION"),
    "reliability": ("RELIABILITY_THROTTLE", "RELIABILITY_VIOLATION"),
}
_LINK_ERRORS = {
    "replay": ("REPLAY_ERROR_TOTAL", "REPLAY_TOTAL", "REPLAY_ERROR_COUNT_TOTAL", "ERROR_DL_REPLAY"),
    "recovery": ("RECOVERY_ERROR_TOTAL", "RECOVERY_TOTAL", "RECOVERY_ERROR_COUNT_TOTAL", "ERROR_DL_RECOVERY"),
    "crc": ("CRC_ERROR_TOTAL", "ERROR_DL_CRC"),
}


def _dev(name: str) -> str:
    return f"DCGM_FI_DEV_{name}"


def _prof(name: str) -> str:
    return f"DCGM_FI_PROF_{name}"


def _event_time(field: str, newer: str, older: str) -> Mapping[str, float]:
    policy = {_dev(newer): 1.0, _dev(older): _NANO} if newer else {}
    return {_dev(f"CLOCKS_EVENT_REASON_{field}_NS"): _NANO, **policy}


DCGM = GpuExporter(
    kind="dcgm",
    title="dcgm-exporter",
    vendor="NVIDIA",
    marks=("DCGM_FI_DEV_", "DCGM_FI_PROF_"),
    index=("gpu",),
    uuid=("UUID",),
    name=("modelName",),
    pci=("pci_bus_id",),
    driver=("DCGM_FI_SYSTEM_DRIVER_VERSION", "DCGM_FI_DRIVER_VERSION"),
    instance=("GPU_I_ID",),
    profile=("GPU_I_PROFILE",),
    xids=True,
    hint="Point url at its /metrics (port 9400 unless set).",
    setup="Its values are as old as its collect interval, 30 s unless set; start it with `--collect-interval=1000`.",
    fields=(
        *[GpuField(signal, {_dev(new): 1.0, _dev(old): unit}) for signal, new, old, unit in _RENAMED],
        *[GpuField(signal, {f"DCGM_FI_{name}": 1.0}) for signal, name in _SAME_NAME.items()],
        *[GpuField(signal, {_prof(new): 1.0, _prof(old): 1.0}) for signal, (new, old) in _WORK.items()],
        *[
            GpuField(Part.PIPE_ACTIVE, {_prof(new): 1.0, _prof(old): 1.0}, word=kind)
            for kind, (new, old) in _PIPES.items()
        ],
        *[GpuField(Part.TRAFFIC, {_prof(name): 1.0}, word=way) for way, name in _TRAFFIC.items()],
        GpuField(Part.CLOCK_EVENTS, {_dev("CLOCKS_EVENT_REASONS"): 1.0, _dev("CLOCK_THROTTLE_REASONS"): 1.0}),
        *[
            GpuField(Part.CLOCK_EVENT_SECONDS, _event_time(field, new, old), word=reason)
            for reason, field, new, old in _EVENT_TIMES
        ],
        *[
            GpuField(Part.POLICY_SECONDS, {_dev(f"{new}_SECONDS_TOTAL"): 1.0, _dev(old): _NANO}, word=policy)
            for policy, (new, old) in _POLICIES.items()
        ],
        *[
            GpuField(Part.NVLINK_ERRORS, {_dev(f"NVLINK_{n}"): 1.0 for n in names}, word=kind, merge=Merge.MAX)
            for kind, names in _LINK_ERRORS.items()
        ],
        # 1 not started, 2 in progress, 3 success, 4 failure; NVML's state 3 is "ended", with a result beside it.
        GpuField(
            Signal.FABRIC_STATE, {_dev("FABRIC_MANAGER_STATUS"): 1.0}, values={1.0: 1.0, 2.0: 2.0, 3.0: 3.0, 4.0: 3.0}
        ),
        GpuField(Signal.FABRIC_STATUS, {_dev("FABRIC_MANAGER_STATUS"): 1.0}, values={3.0: 0.0, 4.0: 999.0}),
    ),
)
