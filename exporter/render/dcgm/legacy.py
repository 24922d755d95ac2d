"""The names of DCGM's exporter up to 4.8.4: MHz, MiB, percent, millijoules, nanoseconds."""

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
    Value,
    event_mask,
    event_time,
    integer,
    kibibytes,
    nvlink_errors,
    nvlink_kibibytes,
    pipe,
    policy_time,
    real,
    throughput,
    to_mib,
    used_share,
)

_MEGA = 1e-6
_MILLI = 1000.0
_NANO = 1e9
_PERCENT = 100.0
_LINKS = 18  # that have a name of their own


def _nvlink_thousands(card: CardView) -> int | None:
    # Named MB/s, but thousands of KiB: panels are scaled accordingly.
    total = nvlink_kibibytes(card)
    return None if total is None else total // 1000


def _link_thousands(link: int) -> Value:
    def read(card: CardView) -> int | None:
        rate = card.link_rates.get(link)
        return None if rate is None else kibibytes(rate) // 1000

    return read


_DEFAULT = (
    gauge("DCGM_FI_DEV_SM_CLOCK", "Clock of the SMs in MHz.", integer(Signal.CLOCK_SM, _MEGA)),
    gauge("DCGM_FI_DEV_MEM_CLOCK", "Clock of the memory in MHz.", integer(Signal.CLOCK_MEMORY, _MEGA)),
    gauge(
        "DCGM_FI_DEV_MEMORY_TEMP", "Temperature of the memory in degrees Celsius.", integer(Signal.TEMPERATURE_MEMORY)
    ),
    gauge("DCGM_FI_DEV_GPU_TEMP", "Temperature of the GPU in degrees Celsius.", integer(Signal.TEMPERATURE_GPU)),
    gauge("DCGM_FI_DEV_POWER_USAGE", "Power drawn by the board in watts.", real(Signal.POWER)),
    counter(
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
        "Energy used since the driver was loaded, in millijoules.",
        integer(Signal.ENERGY, _MILLI),
    ),
    counter("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "PCIe packets that were replayed.", integer(Signal.PCIE_REPLAYS)),
    gauge(
        "DCGM_FI_DEV_GPU_UTIL",
        "Time in which a kernel was resident, in percent.",
        integer(Signal.UTILIZATION, _PERCENT),
    ),
    gauge(
        "DCGM_FI_DEV_MEM_COPY_UTIL",
        "Time in which the memory was read or written, in percent.",
        integer(Signal.MEMORY_ACTIVITY, _PERCENT),
    ),
    gauge(
        "DCGM_FI_DEV_ENC_UTIL", "Use of the video encoder in percent.", integer(Signal.ENCODER_UTILIZATION, _PERCENT)
    ),
    gauge(
        "DCGM_FI_DEV_DEC_UTIL", "Use of the video decoder in percent.", integer(Signal.DECODER_UTILIZATION, _PERCENT)
    ),
    last_error("DCGM_FI_DEV_XID_ERRORS"),
    gauge("DCGM_FI_DEV_FB_FREE", "Free memory, in MiB.", to_mib(Signal.MEMORY_FREE)),
    gauge("DCGM_FI_DEV_FB_USED", "Memory in use, in MiB.", to_mib(Signal.MEMORY_USED)),
    gauge(
        "DCGM_FI_DEV_FB_RESERVED",
        "Memory reserved by the driver, in MiB.",
        to_mib(Signal.MEMORY_RESERVED),
    ),
    gauge(
        "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL",
        "Data over all NVLinks, both directions, in thousands of KiB per second.",
        _nvlink_thousands,
    ),
    VGPU_LICENSE,
    counter(
        "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS",
        "Memory rows replaced after an uncorrectable error.",
        integer(Signal.REMAPPED_ROWS_UNCORRECTABLE),
    ),
    counter(
        "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS",
        "Memory rows replaced after correctable errors.",
        integer(Signal.REMAPPED_ROWS_CORRECTABLE),
    ),
    gauge(
        "DCGM_FI_DEV_ROW_REMAP_FAILURE",
        "1 when a memory row could not be replaced.",
        integer(Signal.ROW_REMAP_FAILED),
    ),
    gauge(
        "DCGM_FI_PROF_GR_ENGINE_ACTIVE",
        "Share of time in which the graphics or compute engine was busy.",
        real(Signal.GRAPHICS_ACTIVE),
    ),
    gauge(
        "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
        "Share of cycles in which a tensor pipe was active.",
        real(Signal.TENSOR_ACTIVE),
    ),
    gauge("DCGM_FI_PROF_DRAM_ACTIVE", "Share of cycles in which the memory moved data.", real(Signal.DRAM_ACTIVE)),
    *PCIE_RATES,
)

_MORE = (
    gauge("DCGM_FI_DEV_FB_TOTAL", "Total memory, in MiB.", to_mib(Signal.MEMORY_TOTAL)),
    gauge("DCGM_FI_DEV_FB_USED_PERCENT", "Share of the usable memory in use, 0 to 1.", used_share),
    gauge("DCGM_FI_DEV_BAR1_TOTAL", "BAR1 address space, in MiB.", to_mib(Signal.BAR1_TOTAL)),
    gauge("DCGM_FI_DEV_BAR1_USED", "Mapped BAR1 address space, in MiB.", to_mib(Signal.BAR1_USED)),
    gauge("DCGM_FI_DEV_BAR1_FREE", "Free BAR1 address space, in MiB.", to_mib(Signal.BAR1_FREE)),
    gauge("DCGM_FI_DEV_VIDEO_CLOCK", "Clock of the video engines in MHz.", integer(Signal.CLOCK_VIDEO, _MEGA)),
    gauge("DCGM_FI_DEV_MAX_SM_CLOCK", "Maximum clock of the SMs in MHz.", integer(Signal.CLOCK_MAX_SM, _MEGA)),
    gauge(
        "DCGM_FI_DEV_MAX_MEM_CLOCK", "Maximum clock of the memory in MHz.", integer(Signal.CLOCK_MAX_MEMORY, _MEGA)
    ),
    gauge(
        "DCGM_FI_DEV_MAX_VIDEO_CLOCK",
        "Maximum clock of the video engines in MHz.",
        integer(Signal.CLOCK_MAX_VIDEO, _MEGA),
    ),
    gauge(
        "DCGM_FI_DEV_APP_SM_CLOCK",
        "Clock of the SMs that applications run at, in MHz.",
        integer(Signal.CLOCK_APPLICATION_SM, _MEGA),
    ),
    gauge(
        "DCGM_FI_DEV_APP_MEM_CLOCK",
        "Clock of the memory that applications run at, in MHz.",
        integer(Signal.CLOCK_APPLICATION_MEMORY, _MEGA),
    ),
    gauge("DCGM_FI_DEV_PSTATE", "Performance state; 0 is the highest.", integer(Signal.PERFORMANCE_STATE)),
    gauge("DCGM_FI_DEV_POWER_USAGE_INSTANT", "Power drawn at one instant, in watts.", real(Signal.POWER_INSTANT)),
    gauge("DCGM_FI_DEV_POWER_MGMT_LIMIT", "Requested power limit, in watts.", real(Signal.POWER_LIMIT_REQUESTED)),
    gauge("DCGM_FI_DEV_POWER_MGMT_LIMIT_MIN", "Minimum power limit, in watts.", real(Signal.POWER_LIMIT_MIN)),
    gauge("DCGM_FI_DEV_POWER_MGMT_LIMIT_MAX", "Maximum power limit, in watts.", real(Signal.POWER_LIMIT_MAX)),
    gauge("DCGM_FI_DEV_POWER_MGMT_LIMIT_DEF", "Default power limit, in watts.", real(Signal.POWER_LIMIT_DEFAULT)),
    gauge("DCGM_FI_DEV_ENFORCED_POWER_LIMIT", "Enforced power limit, in watts.", real(Signal.POWER_LIMIT)),
    gauge(
        "DCGM_FI_DEV_GPU_TEMP_LIMIT",
        "Degrees Celsius until the clocks are reduced.",
        integer(Signal.TEMPERATURE_MARGIN),
    ),
    gauge(
        "DCGM_FI_DEV_SLOWDOWN_TEMP",
        "Temperature at which the clocks are reduced, in degrees Celsius.",
        integer(Signal.TEMPERATURE_LIMIT_SLOWDOWN),
    ),
    gauge(
        "DCGM_FI_DEV_SHUTDOWN_TEMP",
        "Temperature at which the GPU shuts down, in degrees Celsius.",
        integer(Signal.TEMPERATURE_LIMIT_SHUTDOWN),
    ),
    gauge(
        "DCGM_FI_DEV_GPU_MAX_OP_TEMP",
        "Maximum operating temperature of the GPU, in degrees Celsius.",
        integer(Signal.TEMPERATURE_LIMIT_GPU_MAX),
    ),
    gauge(
        "DCGM_FI_DEV_MEM_MAX_OP_TEMP",
        "Maximum operating temperature of the memory, in degrees Celsius.",
        integer(Signal.TEMPERATURE_LIMIT_MEMORY_MAX),
    ),
    gauge("DCGM_FI_DEV_FAN_SPEED", "Speed of the fans in percent.", integer(Signal.FAN_SPEED, _PERCENT)),
    EVENT_REASONS,
    gauge(
        "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS",
        "Mask of the reasons that reduce the clocks now, by its older name.",
        event_mask,
    ),
    counter(
        "DCGM_FI_DEV_POWER_VIOLATION",
        "Nanoseconds with clocks reduced by the power limit.",
        event_time("sw_power_cap", _NANO),
    ),
    counter(
        "DCGM_FI_DEV_SYNC_BOOST_VIOLATION",
        "Nanoseconds with clocks reduced for a sync boost group.",
        event_time("sync_boost", _NANO),
    ),
    *[
        counter(f"DCGM_FI_DEV_{word}", f"Nanoseconds with clocks reduced {why}.", policy_time(policy, _NANO))
        for word, _, why, policy in POLICIES
    ],
    counter(
        "DCGM_FI_DEV_TOTAL_APP_CLOCKS_VIOLATION",
        "Nanoseconds with clocks below those of the applications.",
        policy_time("application_clocks", _NANO),
    ),
    counter(
        "DCGM_FI_DEV_TOTAL_BASE_CLOCKS_VIOLATION",
        "Nanoseconds with clocks below the base clocks.",
        policy_time("base_clocks", _NANO),
    ),
    *EVENT_TIMES,
    *PCIE_LINK,
    gauge("DCGM_FI_DEV_PCIE_TX_THROUGHPUT", "KB per second sent over PCIe.", throughput("transmit")),
    gauge("DCGM_FI_DEV_PCIE_RX_THROUGHPUT", "KB per second received over PCIe.", throughput("receive")),
    *[
        gauge(
            f"DCGM_FI_DEV_NVLINK_BANDWIDTH_L{link}",
            f"Data over NVLink {link}, both directions, in thousands of KiB per second.",
            _link_thousands(link),
        )
        for link in range(_LINKS)
    ],
    counter(
        "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL",
        "NVLink flow-control units with a wrong checksum.",
        integer(Signal.NVLINK_CRC_FLIT),
    ),
    counter(
        "DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL",
        "NVLink data with a wrong checksum.",
        integer(Signal.NVLINK_CRC_DATA),
    ),
    counter(
        "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL",
        "NVLink packets that were replayed.",
        nvlink_errors("replay"),
    ),
    counter(
        "DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL",
        "Recoveries of NVLinks.",
        nvlink_errors("recovery"),
    ),
    counter("DCGM_FI_DEV_NVLINK_ERROR_DL_CRC", "NVLink packets with a wrong checksum.", nvlink_errors("crc")),
    counter("DCGM_FI_DEV_NVLINK_ERROR_DL_REPLAY", "NVLink packets that were replayed.", nvlink_errors("replay")),
    counter("DCGM_FI_DEV_NVLINK_ERROR_DL_RECOVERY", "Recoveries of NVLinks.", nvlink_errors("recovery")),
    counter("DCGM_FI_DEV_NVLINK_COUNT_TX_BYTES", "Bytes sent over all NVLinks.", integer(Signal.NVLINK_TRANSMIT)),
    counter("DCGM_FI_DEV_NVLINK_COUNT_RX_BYTES", "Bytes received over all NVLinks.", integer(Signal.NVLINK_RECEIVE)),
    gauge("DCGM_FI_DEV_ECC_CURRENT", "1 while ECC is on.", integer(Signal.ECC_MODE)),
    gauge("DCGM_FI_DEV_ECC_PENDING", "1 when ECC is on after the next reset.", integer(Signal.ECC_MODE_PENDING)),
    *ECC_ERRORS,
    counter(
        "DCGM_FI_DEV_RETIRED_SBE",
        "Memory pages retired after single-bit errors.",
        integer(Signal.RETIRED_PAGES_SINGLE_BIT),
    ),
    counter(
        "DCGM_FI_DEV_RETIRED_DBE",
        "Memory pages retired after double-bit errors.",
        integer(Signal.RETIRED_PAGES_DOUBLE_BIT),
    ),
    gauge(
        "DCGM_FI_DEV_RETIRED_PENDING",
        "1 when a memory page waits for a reset to be retired.",
        integer(Signal.RETIRED_PAGES_PENDING),
    ),
    ROW_REMAP_PENDING,
    gauge(
        "DCGM_FI_DEV_GET_GPU_RECOVERY_ACTION",
        "Recovery action that the driver requests: 0 nothing, 1 a reset of the GPU, 2 a reboot, 3 and 4 a drain.",
        integer(Signal.RECOVERY_ACTION),
    ),
    gauge("DCGM_FI_PROF_SM_ACTIVE", "Share of cycles in which an SM had work.", real(Signal.SM_ACTIVE)),
    gauge("DCGM_FI_PROF_SM_OCCUPANCY", "Share of the warps that SMs could hold.", real(Signal.SM_OCCUPANCY)),
    *[
        gauge(
            f"DCGM_FI_PROF_PIPE_{'TENSOR_' if kind.startswith('tensor') else ''}{word}_ACTIVE",
            f"Share of cycles in which the {what} pipe was active.",
            pipe(kind),
        )
        for word, what, kind in PIPES
    ],
    *NVLINK_RATES,
    FABRIC_MANAGER,
    *FABRIC_HEALTH,
    XID_TOTALS,
    XID_WINDOW,
    CLOCK_EVENT_WINDOW,
)

LEGACY = Dialect(hostname_label="Hostname", driver_label="DCGM_FI_DRIVER_VERSION", default=_DEFAULT, more=_MORE)
