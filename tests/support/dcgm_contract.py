"""What DCGM's exporter is known to show, as data: the contract of ``/metrics/dcgm``.

Names, types and units of its default rows in both dialects, its labels in their order, and the queries of dashboards
that people run.  From its sources up to 4.8.4, from a page that a real one served, and from the renaming in 4.9.0.
"""

from __future__ import annotations

# Legacy name, type, what one unit is in base units; the same for 4.9.0.  "" where a dialect does not have the row.
# The unit of a ratio is 0.01 where percent are shown.  Integers are marked by i, numbers with six decimals by f.
DEFAULT_ROWS = [
    ("SM_CLOCK", "gauge", 1e6, "i", "SM_CLOCK_HERTZ", 1.0, "i"),
    ("MEM_CLOCK", "gauge", 1e6, "i", "MEMORY_CLOCK_HERTZ", 1.0, "i"),
    ("MEMORY_TEMP", "gauge", 1.0, "i", "MEMORY_TEMP_CELSIUS", 1.0, "i"),
    ("GPU_TEMP", "gauge", 1.0, "i", "GPU_TEMP_CELSIUS", 1.0, "i"),
    ("POWER_USAGE", "gauge", 1.0, "f", "BOARD_POWER_WATTS", 1.0, "f"),
    ("TOTAL_ENERGY_CONSUMPTION", "counter", 1e-3, "i", "GPU_ENERGY_JOULES_TOTAL", 1.0, "f"),
    ("PCIE_REPLAY_COUNTER", "counter", 1.0, "i", "PCIE_REPLAY_TOTAL", 1.0, "i"),
    ("GPU_UTIL", "gauge", 0.01, "i", "GPU_UTIL_RATIO", 1.0, "f"),
    ("MEM_COPY_UTIL", "gauge", 0.01, "i", "MEMORY_UTIL_RATIO", 1.0, "f"),
    ("ENC_UTIL", "gauge", 0.01, "i", "ENC_UTIL_RATIO", 1.0, "f"),
    ("DEC_UTIL", "gauge", 0.01, "i", "DEC_UTIL_RATIO", 1.0, "f"),
    ("XID_ERRORS", "gauge", 1.0, "i", "XID_ERROR", 1.0, "i"),
    ("FB_FREE", "gauge", 2.0**20, "i", "FB_FREE_BYTES", 1.0, "i"),
    ("FB_USED", "gauge", 2.0**20, "i", "FB_USED_BYTES", 1.0, "i"),
    ("FB_RESERVED", "gauge", 2.0**20, "i", "FB_RESERVED_BYTES", 1.0, "i"),
    ("", "gauge", 0.0, "", "FB_CAPACITY_BYTES", 1.0, "i"),
    ("NVLINK_BANDWIDTH_TOTAL", "gauge", 1024e3, "i", "NVLINK_THROUGHPUT_BYTES_PER_SECOND", 1.0, "i"),
    ("VGPU_LICENSE_STATUS", "gauge", 1.0, "i", "VGPU_LICENSE_STATUS", 1.0, "i"),
    ("UNCORRECTABLE_REMAPPED_ROWS", "counter", 1.0, "i", "ROW_REMAP_UNCORRECTABLE_TOTAL", 1.0, "i"),
    ("CORRECTABLE_REMAPPED_ROWS", "counter", 1.0, "i", "ROW_REMAP_CORRECTABLE_TOTAL", 1.0, "i"),
    ("ROW_REMAP_FAILURE", "gauge", 1.0, "i", "ROW_REMAP_FAILED", 1.0, "i"),
    ("PROF_GR_ENGINE_ACTIVE", "gauge", 1.0, "f", "PROF_GR_ENGINE_UTIL_RATIO", 1.0, "f"),
    ("PROF_PIPE_TENSOR_ACTIVE", "gauge", 1.0, "f", "PROF_TENSOR_UTIL_RATIO", 1.0, "f"),
    ("PROF_DRAM_ACTIVE", "gauge", 1.0, "f", "PROF_DRAM_UTIL_RATIO", 1.0, "f"),
    ("PROF_PCIE_TX_BYTES", "gauge", 1.0, "i", "PROF_PCIE_TX_BYTES", 1.0, "i"),
    ("PROF_PCIE_RX_BYTES", "gauge", 1.0, "i", "PROF_PCIE_RX_BYTES", 1.0, "i"),
]

# Rows that people commonly switch on, by their two names.
OPTIONAL_ROWS = [
    ("PROF_SM_ACTIVE", "PROF_SM_UTIL_RATIO"),
    ("PROF_SM_OCCUPANCY", "PROF_SM_OCCUPANCY_RATIO"),
    ("PROF_PIPE_FP64_ACTIVE", "PROF_FP64_UTIL_RATIO"),
    ("PROF_PIPE_FP32_ACTIVE", "PROF_FP32_UTIL_RATIO"),
    ("PROF_PIPE_FP16_ACTIVE", "PROF_FP16_UTIL_RATIO"),
    ("PROF_PIPE_TENSOR_IMMA_ACTIVE", "PROF_IMMA_UTIL_RATIO"),
    ("PROF_PIPE_TENSOR_HMMA_ACTIVE", "PROF_HMMA_UTIL_RATIO"),
    ("PROF_PIPE_TENSOR_DFMA_ACTIVE", "PROF_DFMA_UTIL_RATIO"),
    ("POWER_VIOLATION", "POWER_THROTTLE_SECONDS_TOTAL"),
    ("THERMAL_VIOLATION", "THERMAL_THROTTLE_SECONDS_TOTAL"),
    ("SYNC_BOOST_VIOLATION", "SYNC_BOOST_THROTTLE_SECONDS_TOTAL"),
    ("BOARD_LIMIT_VIOLATION", "BOARD_LIMIT_THROTTLE_SECONDS_TOTAL"),
    ("LOW_UTIL_VIOLATION", "LOW_UTIL_THROTTLE_SECONDS_TOTAL"),
    ("RELIABILITY_VIOLATION", "RELIABILITY_THROTTLE_SECONDS_TOTAL"),
    ("CLOCKS_EVENT_REASON_SW_POWER_CAP_NS", "CLOCKS_EVENT_REASON_SW_POWER_CAP_NS"),
    ("CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN_NS", "CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN_NS"),
    ("ECC_SBE_VOL_TOTAL", "ECC_SBE_VOL_TOTAL"),
    ("ECC_DBE_VOL_TOTAL", "ECC_DBE_VOL_TOTAL"),
    ("ECC_SBE_AGG_TOTAL", "ECC_SBE_AGG_TOTAL"),
    ("ECC_DBE_AGG_TOTAL", "ECC_DBE_AGG_TOTAL"),
    ("RETIRED_SBE", "PAGE_RETIRED_SBE_TOTAL"),
    ("RETIRED_DBE", "PAGE_RETIRED_DBE_TOTAL"),
    ("RETIRED_PENDING", "PAGE_RETIRED_PENDING"),
    ("ROW_REMAP_PENDING", "ROW_REMAP_PENDING"),
    ("NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", "NVLINK_CRC_FLIT_ERROR_TOTAL"),
    ("NVLINK_CRC_DATA_ERROR_COUNT_TOTAL", "NVLINK_CRC_DATA_ERROR_TOTAL"),
    ("NVLINK_REPLAY_ERROR_COUNT_TOTAL", "NVLINK_REPLAY_ERROR_TOTAL"),
    ("NVLINK_RECOVERY_ERROR_COUNT_TOTAL", "NVLINK_RECOVERY_ERROR_TOTAL"),
    ("POWER_USAGE_INSTANT", "BOARD_POWER_RAW_WATTS"),
    ("POWER_MGMT_LIMIT", "BOARD_POWER_LIMIT_REQUESTED_WATTS"),
    ("POWER_MGMT_LIMIT_MIN", "BOARD_POWER_LIMIT_MIN_WATTS"),
    ("POWER_MGMT_LIMIT_MAX", "BOARD_POWER_LIMIT_MAX_WATTS"),
    ("POWER_MGMT_LIMIT_DEF", "BOARD_POWER_LIMIT_DEFAULT_WATTS"),
    ("ENFORCED_POWER_LIMIT", "BOARD_POWER_LIMIT_ENFORCED_WATTS"),
    ("GPU_MAX_OP_TEMP", "GPU_MAX_OP_TEMP_CELSIUS"),
    ("MEM_MAX_OP_TEMP", "MEMORY_MAX_OP_TEMP_CELSIUS"),
    ("BAR1_TOTAL", "BAR1_CAPACITY_BYTES"),
    ("BAR1_USED", "BAR1_USED_BYTES"),
    ("BAR1_FREE", "BAR1_FREE_BYTES"),
    ("GPU_TEMP_LIMIT", "GPU_TEMP_MARGIN_CELSIUS"),
    ("FB_USED_PERCENT", "FB_USED_RATIO"),
    ("FAN_SPEED", "FAN_SPEED_RATIO"),
    ("GET_GPU_RECOVERY_ACTION", "GPU_RECOVERY_ACTION"),
    ("FABRIC_MANAGER_STATUS", "FABRIC_MANAGER_STATUS"),
    ("FABRIC_HEALTH_MASK", "FABRIC_HEALTH_MASK"),
    ("FABRIC_HEALTH_SUMMARY", "FABRIC_HEALTH_SUMMARY"),
]

LABELS = {
    "legacy": ("gpu", "UUID", "pci_bus_id", "device", "modelName", "Hostname", "DCGM_FI_DRIVER_VERSION"),
    "4.9": ("gpu", "UUID", "pci_bus_id", "device", "modelName", "hostname", "DCGM_FI_SYSTEM_DRIVER_VERSION"),
}

MORE_LABELS = {  # behind those of every row
    "DCGM_FI_DEV_XID_ERRORS": ("err_code", "err_msg"),
    "DCGM_FI_DEV_XID_ERROR": ("err_code", "err_msg"),
    "DCGM_EXP_XID_ERRORS_TOTAL": ("xid",),
    "DCGM_EXP_XID_ERRORS_COUNT": ("window_size_in_ms", "xid"),
    "DCGM_EXP_CLOCK_EVENTS_COUNT": ("window_size_in_ms", "clock_event"),
}
INSTANCE_LABELS = ("GPU_I_PROFILE", "GPU_I_ID")  # behind modelName

# Dashboard → the selectors that it queries in the legacy dialect (``instance`` and ``job`` come from the scrape).
DASHBOARDS = {
    "grafana.com 12239": [
        'DCGM_FI_DEV_GPU_TEMP{gpu=~".+"}',
        'DCGM_FI_DEV_POWER_USAGE{gpu=~".+"}',
        'DCGM_FI_DEV_SM_CLOCK{gpu=~".+"}',
        'DCGM_FI_DEV_GPU_UTIL{gpu=~".+"}',
        'DCGM_FI_DEV_FB_USED{gpu=~".+"}',
        'DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{gpu=~".+"}',
    ],
    "filtered by Hostname": [
        'DCGM_FI_DEV_GPU_UTIL{Hostname=~".+",gpu=~".+"}',
        'DCGM_FI_DEV_GPU_TEMP{Hostname=~".+",gpu=~".+"}',
        'DCGM_FI_DEV_POWER_USAGE{Hostname=~".+",gpu=~".+"}',
        'DCGM_FI_DEV_SM_CLOCK{Hostname=~".+",gpu=~".+"}',
        'DCGM_FI_DEV_FB_USED{Hostname=~".+",gpu=~".+"}',
    ],
}
# What people's alert rules ask of the legacy dialect, each form once.
ALERTS = [
    'DCGM_FI_DEV_GPU_TEMP{Hostname=~".+"} > 85',
    "max by (gpu, UUID) (DCGM_FI_DEV_MEMORY_TEMP) > 95",
    "DCGM_FI_DEV_SLOWDOWN_TEMP - DCGM_FI_DEV_GPU_TEMP < 5",
    "DCGM_FI_DEV_GPU_TEMP > DCGM_FI_DEV_GPU_MAX_OP_TEMP",
    "DCGM_FI_DEV_XID_ERRORS > 0",
    'DCGM_FI_DEV_XID_ERRORS{err_code=~"48|79|95"} > 0',
    "increase(DCGM_EXP_XID_ERRORS_TOTAL[10m]) > 0",
    'DCGM_EXP_XID_ERRORS_COUNT{window_size_in_ms="300000"} > 0',
    "increase(DCGM_FI_DEV_ECC_DBE_VOL_TOTAL[10m]) > 0",
    "rate(DCGM_FI_DEV_ECC_SBE_VOL_TOTAL[1h]) > 0.01",
    "DCGM_FI_DEV_ROW_REMAP_FAILURE > 0",
    "DCGM_FI_DEV_ROW_REMAP_PENDING > 0",
    "increase(DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS[1d]) > 0",
    "DCGM_FI_DEV_RETIRED_PENDING > 0",
    "increase(DCGM_FI_DEV_RETIRED_DBE[1d]) > 0",
    "rate(DCGM_FI_DEV_THERMAL_VIOLATION[5m]) > 0",
    "rate(DCGM_FI_DEV_POWER_VIOLATION[5m]) / 1e9 > 0.5",
    "rate(DCGM_FI_DEV_RELIABILITY_VIOLATION[5m]) > 0",
    "increase(DCGM_FI_DEV_PCIE_REPLAY_COUNTER[5m]) > 10",
    "increase(DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL[5m]) > 0",
    "increase(DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL[5m]) > 0",
    "DCGM_FI_DEV_POWER_USAGE / DCGM_FI_DEV_POWER_MGMT_LIMIT > 0.98",
    "DCGM_FI_DEV_FB_USED / (DCGM_FI_DEV_FB_USED + DCGM_FI_DEV_FB_FREE) > 0.95",
    "DCGM_FI_DEV_FB_USED_PERCENT > 0.95",
    "DCGM_FI_DEV_PCIE_LINK_WIDTH < DCGM_FI_DEV_PCIE_MAX_LINK_WIDTH",
    "DCGM_FI_DEV_FABRIC_HEALTH_SUMMARY > 1",
    "DCGM_FI_DEV_BAR1_FREE / DCGM_FI_DEV_BAR1_TOTAL < 0.1",
    "DCGM_FI_DEV_VGPU_LICENSE_STATUS == 0",
]
# Recording rules of the OpenShift GPU operator, which switches FB_TOTAL on.
RECORDED = ["GPU_UTIL", "MEM_COPY_UTIL", "FB_TOTAL", "POWER_USAGE", "GPU_TEMP", "SM_CLOCK", "MEM_CLOCK"]


def full(name: str) -> str:
    """Return the name as it stands on the page."""
    return f"DCGM_FI_{name}" if name.startswith("PROF_") else f"DCGM_FI_DEV_{name}"
