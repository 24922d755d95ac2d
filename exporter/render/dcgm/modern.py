"""The names of DCGM's exporter from 4.9.0: base units, ratios 0 to 1, the unit in the name."""

from __future__ import annotations

from exporter.model import Signal
from exporter.render.dcgm.row import Dialect, counter, gauge
from exporter.render.dcgm.shared_rows import (
    CLOCK_EVENT_WINDOW,
    ECC_ERRORS,
    EVENT_REASONS,
    EVENT_TIMES,
    FABRIC_HEALTH,
    FABRIC_MANAGER,
    NVLINK_RATES,
    PCIE_LINK,
    PCIE_RATES,
    PIPES,
    POLICIES,
    ROW_REMAP_PENDING,
    VGPU_LICENSE,
    XID_TOTALS,
    XID_WINDOW,
    last_error,
)
from exporter.render.dcgm.value import (
    CardView,
    event_time,
    integer,
    nvlink_errors,
    nvlink_kibibytes,
    pipe,
    policy_time,
    real,
    used_share,
)


def _nvlink_bytes(card: CardView) -> int | None:
    kibibytes = nvlink_kibibytes(card)
    return None if kibibytes is None else kibibytes * 1024


_DEFAULT = (
    gauge("DCGM_FI_DEV_SM_CLOCK_HERTZ", "Clock of the SMs.", integer(Signal.CLOCK_SM)),
    gauge("DCGM_FI_DEV_MEMORY_CLOCK_HERTZ", "Clock of the memory.", integer(Signal.CLOCK_MEMORY)),
    gauge("DCGM_FI_DEV_MEMORY_TEMP_CELSIUS", "Temperature of the memory.", integer(Signal.TEMPERATURE_MEMORY)),
    gauge("DCGM_FI_DEV_GPU_TEMP_CELSIUS", "Temperature of the GPU.", integer(Signal.TEMPERATURE_GPU)),
    gauge("DCGM_FI_DEV_BOARD_POWER_WATTS", "Power drawn by the board.", real(Signal.POWER)),
    counter("DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL", "Energy used since the driver was loaded.", real(Signal.ENERGY)),
    counter("DCGM_FI_DEV_PCIE_REPLAY_TOTAL", "PCIe packets that were replayed.", integer(Signal.PCIE_REPLAYS)),
    gauge("DCGM_FI_DEV_GPU_UTIL_RATIO", "Share of time in which a kernel was resident.", real(Signal.UTILIZATION)),
    gauge(
        "DCGM_FI_DEV_MEMORY_UTIL_RATIO",
        "Share of time in which the memory was read or written.",
        real(Signal.MEMORY_ACTIVITY),
    ),
    gauge("DCGM_FI_DEV_ENC_UTIL_RATIO", "Use of the video encoder.", real(Signal.ENCODER_UTILIZATION)),
    gauge("DCGM_FI_DEV_DEC_UTIL_RATIO", "Use of the video decoder.", real(Signal.DECODER_UTILIZATION)),
    last_error("DCGM_FI_DEV_XID_ERROR"),
    gauge("DCGM_FI_DEV_FB_FREE_BYTES", "Free memory.", integer(Signal.MEMORY_FREE)),
    gauge("DCGM_FI_DEV_FB_USED_BYTES", "Memory in use.", integer(Signal.MEMORY_USED)),
    gauge("DCGM_FI_DEV_FB_RESERVED_BYTES", "Memory reserved by the driver.", integer(Signal.MEMORY_RESERVED)),
    gauge("DCGM_FI_DEV_FB_CAPACITY_BYTES", "Total memory.", integer(Signal.MEMORY_TOTAL)),
    gauge(
        "DCGM_FI_DEV_NVLINK_THROUGHPUT_BYTES_PER_SECOND",
        "Data over all NVLinks, both directions.",
        _nvlink_bytes,
    ),
    VGPU_LICENSE,
    counter(
        "DCGM_FI_DEV_ROW_REMAP_UNCORRECTABLE_TOTAL",
        "Memory rows replaced after an uncorrectable error.",
        integer(Signal.REMAPPED_ROWS_UNCORRECTABLE),
    ),
    counter(
        "DCGM_FI_DEV_ROW_REMAP_CORRECTABLE_TOTAL",
        "Memory rows replaced after correctable errors.",
        integer(Signal.REMAPPED_ROWS_CORRECTABLE),
    ),
    gauge(
        "DCGM_FI_DEV_ROW_REMAP_FAILED", "1 when a memory row could not be replaced.", integer(Signal.ROW_REMAP_FAILED)
    ),
    gauge(
        "DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO",
        "Share of time in which the graphics or compute engine was busy.",
        real(Signal.GRAPHICS_ACTIVE),
    ),
    gauge(
        "DCGM_FI_PROF_TENSOR_UTIL_RATIO",
        "Share of cycles in which a tensor pipe was active.",
        real(Signal.TENSOR_ACTIVE),
    ),
    gauge(
        "DCGM_FI_PROF_DRAM_UTIL_RATIO", "Share of cycles in which the memory moved data.", real(Signal.DRAM_ACTIVE)
    ),
    *PCIE_RATES,
)

_MORE = (
    gauge("DCGM_FI_DEV_FB_USED_RATIO", "Share of the usable memory in use.", used_share),
    gauge("DCGM_FI_DEV_BAR1_CAPACITY_BYTES", "BAR1 address space.", integer(Signal.BAR1_TOTAL)),
    gauge("DCGM_FI_DEV_BAR1_USED_BYTES", "Mapped BAR1 address space.", integer(Signal.BAR1_USED)),
    gauge("DCGM_FI_DEV_BAR1_FREE_BYTES", "Free BAR1 address space.", integer(Signal.BAR1_FREE)),
    gauge("DCGM_FI_DEV_VIDEO_CLOCK_HERTZ", "Clock of the video engines.", integer(Signal.CLOCK_VIDEO)),
    gauge("DCGM_FI_DEV_SM_MAX_CLOCK_HERTZ", "Maximum clock of the SMs.", integer(Signal.CLOCK_MAX_SM)),
    gauge("DCGM_FI_DEV_MEMORY_MAX_CLOCK_HERTZ", "Maximum clock of the memory.", integer(Signal.CLOCK_MAX_MEMORY)),
    gauge(
        "DCGM_FI_DEV_VIDEO_MAX_CLOCK_HERTZ", "Maximum clock of the video engines.", integer(Signal.CLOCK_MAX_VIDEO)
    ),
    gauge("DCGM_FI_DEV_GPU_PSTATE", "Performance state; 0 is the highest.", integer(Signal.PERFORMANCE_STATE)),
    gauge("DCGM_FI_DEV_BOARD_POWER_RAW_WATTS", "Power drawn at one instant.", real(Signal.POWER_INSTANT)),
    gauge(
        "DCGM_FI_DEV_BOARD_POWER_LIMIT_REQUESTED_WATTS", "Requested power limit.", real(Signal.POWER_LIMIT_REQUESTED)
    ),
    gauge("DCGM_FI_DEV_BOARD_POWER_LIMIT_MIN_WATTS", "Minimum power limit.", real(Signal.POWER_LIMIT_MIN)),
    gauge("DCGM_FI_DEV_BOARD_POWER_LIMIT_MAX_WATTS", "Maximum power limit.", real(Signal.POWER_LIMIT_MAX)),
    gauge("DCGM_FI_DEV_BOARD_POWER_LIMIT_DEFAULT_WATTS", "Default power limit.", real(Signal.POWER_LIMIT_DEFAULT)),
    gauge("DCGM_FI_DEV_BOARD_POWER_LIMIT_ENFORCED_WATTS", "Enforced power limit.", real(Signal.POWER_LIMIT)),
    gauge(
        "DCGM_FI_DEV_GPU_TEMP_MARGIN_CELSIUS",
        "Degrees until the clocks are reduced.",
        integer(Signal.TEMPERATURE_MARGIN),
    ),
    gauge(
        "DCGM_FI_DEV_GPU_TEMP_SLOWDOWN_CELSIUS",
        "Temperature at which the clocks are reduced.",
        integer(Signal.TEMPERATURE_LIMIT_SLOWDOWN),
    ),
    gauge(
        "DCGM_FI_DEV_GPU_TEMP_SHUTDOWN_CELSIUS",
        "Temperature at which the GPU shuts down.",
        integer(Signal.TEMPERATURE_LIMIT_SHUTDOWN),
    ),
    gauge(
        "DCGM_FI_DEV_GPU_MAX_OP_TEMP_CELSIUS",
        "Maximum operating temperature of the GPU.",
        integer(Signal.TEMPERATURE_LIMIT_GPU_MAX),
    ),
    gauge(
        "DCGM_FI_DEV_MEMORY_MAX_OP_TEMP_CELSIUS",
        "Maximum operating temperature of the memory.",
        integer(Signal.TEMPERATURE_LIMIT_MEMORY_MAX),
    ),
    gauge("DCGM_FI_DEV_FAN_SPEED_RATIO", "Speed of the fans.", real(Signal.FAN_SPEED)),
    EVENT_REASONS,
    counter(
        "DCGM_FI_DEV_POWER_THROTTLE_SECONDS_TOTAL",
        "Time with clocks reduced by the power limit.",
        event_time("sw_power_cap", 1.0),
    ),
    counter(
        "DCGM_FI_DEV_SYNC_BOOST_THROTTLE_SECONDS_TOTAL",
        "Time with clocks reduced for a sync boost group.",
        event_time("sync_boost", 1.0),
    ),
    *[
        counter(f"DCGM_FI_DEV_{word}_SECONDS_TOTAL", f"Time with clocks reduced {why}.", policy_time(policy, 1.0))
        for _, word, why, policy in POLICIES
    ],
    *EVENT_TIMES,
    *PCIE_LINK,
    counter(
        "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_TOTAL",
        "NVLink flow-control units with a wrong checksum.",
        integer(Signal.NVLINK_CRC_FLIT),
    ),
    counter(
        "DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_TOTAL",
        "NVLink data with a wrong checksum.",
        integer(Signal.NVLINK_CRC_DATA),
    ),
    counter("DCGM_FI_DEV_NVLINK_REPLAY_ERROR_TOTAL", "NVLink packets that were replayed.", nvlink_errors("replay")),
    counter("DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_TOTAL", "Recoveries of NVLinks.", nvlink_errors("recovery")),
    counter("DCGM_FI_DEV_NVLINK_CRC_ERROR_TOTAL", "NVLink packets with a wrong checksum.", nvlink_errors("crc")),
    counter("DCGM_FI_DEV_NVLINK_REPLAY_TOTAL", "NVLink packets that were replayed.", nvlink_errors("replay")),
    counter("DCGM_FI_DEV_NVLINK_RECOVERY_TOTAL", "Recoveries of NVLinks.", nvlink_errors("recovery")),
    counter("DCGM_FI_DEV_NVLINK_TX_BYTES_TOTAL", "Bytes sent over all NVLinks.", integer(Signal.NVLINK_TRANSMIT)),
    counter("DCGM_FI_DEV_NVLINK_RX_BYTES_TOTAL", "Bytes received over all NVLinks.", integer(Signal.NVLINK_RECEIVE)),
    counter("DCGM_FI_PROF_PCIE_TX_BYTES_TOTAL", "Bytes sent over PCIe.", integer(Signal.PCIE_TRANSMIT)),
    counter("DCGM_FI_PROF_PCIE_RX_BYTES_TOTAL", "Bytes received over PCIe.", integer(Signal.PCIE_RECEIVE)),
    *ECC_ERRORS,
    counter(
        "DCGM_FI_DEV_PAGE_RETIRED_SBE_TOTAL",
        "Memory pages retired after single-bit errors.",
        integer(Signal.RETIRED_PAGES_SINGLE_BIT),
    ),
    counter(
        "DCGM_FI_DEV_PAGE_RETIRED_DBE_TOTAL",
        "Memory pages retired after double-bit errors.",
        integer(Signal.RETIRED_PAGES_DOUBLE_BIT),
    ),
    gauge(
        "DCGM_FI_DEV_PAGE_RETIRED_PENDING",
        "1 when a memory page waits for a reset to be retired.",
        integer(Signal.RETIRED_PAGES_PENDING),
    ),
    ROW_REMAP_PENDING,
    gauge(
        "DCGM_FI_DEV_GPU_RECOVERY_ACTION",
        "Recovery action that the driver requests: 0 nothing, 1 a reset of the GPU, 2 a reboot, 3 and 4 a drain.",
        integer(Signal.RECOVERY_ACTION),
    ),
    gauge("DCGM_FI_PROF_SM_UTIL_RATIO", "Share of cycles in which an SM had work.", real(Signal.SM_ACTIVE)),
    gauge("DCGM_FI_PROF_SM_OCCUPANCY_RATIO", "Share of the warps that SMs could hold.", real(Signal.SM_OCCUPANCY)),
    *[
        gauge(f"DCGM_FI_PROF_{word}_UTIL_RATIO", f"Share of cycles in which the {what} pipe was active.", pipe(kind))
        for word, what, kind in PIPES
    ],
    *NVLINK_RATES,
    FABRIC_MANAGER,
    *FABRIC_HEALTH,
    XID_TOTALS,
    XID_WINDOW,
    CLOCK_EVENT_WINDOW,
)

MODERN = Dialect(
    hostname_label="hostname", driver_label="DCGM_FI_SYSTEM_DRIVER_VERSION", default=_DEFAULT, more=_MORE
)
