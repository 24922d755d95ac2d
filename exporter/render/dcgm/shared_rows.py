"""Rows that are equal in both dialects: name, unit and rounding."""

from __future__ import annotations

from exporter.model import Signal
from exporter.render.dcgm.row import DcgmRow, counter, gauge
from exporter.render.dcgm.value import (
    clock_event_window,
    event_mask,
    event_time,
    fabric_manager,
    integer,
    last_xid,
    traffic,
    xid_totals,
    xid_window,
)

_NANO = 1e9

# Word in the newer name, in the help text, key in readings; older names mark the tensor pipes.
PIPES = (
    ("FP64", "double-precision", "fp64"),
    ("FP32", "single-precision", "fp32"),
    ("FP16", "half-precision", "fp16"),
    ("INT", "integer", "integer"),
    ("IMMA", "integer tensor", "tensor_imma"),
    ("HMMA", "half-precision tensor", "tensor_hmma"),
    ("DFMA", "double-precision tensor", "tensor_dfma"),
)

PCIE_RATES = (
    gauge(
        "DCGM_FI_PROF_PCIE_TX_BYTES",
        "Bytes per second sent over PCIe.",
        traffic("pcie", "transmit", Signal.PCIE_TRANSMIT),
    ),
    gauge(
        "DCGM_FI_PROF_PCIE_RX_BYTES",
        "Bytes per second received over PCIe.",
        traffic("pcie", "receive", Signal.PCIE_RECEIVE),
    ),
)

NVLINK_RATES = (
    gauge(
        "DCGM_FI_PROF_NVLINK_TX_BYTES",
        "Bytes per second sent over NVLink.",
        traffic("nvlink", "transmit", Signal.NVLINK_TRANSMIT),
    ),
    gauge(
        "DCGM_FI_PROF_NVLINK_RX_BYTES",
        "Bytes per second received over NVLink.",
        traffic("nvlink", "receive", Signal.NVLINK_RECEIVE),
    ),
)

PCIE_LINK = (
    gauge("DCGM_FI_DEV_PCIE_LINK_GEN", "Current PCIe generation.", integer(Signal.PCIE_LINK_GENERATION)),
    gauge("DCGM_FI_DEV_PCIE_LINK_WIDTH", "Current PCIe lanes.", integer(Signal.PCIE_LINK_WIDTH)),
    gauge("DCGM_FI_DEV_PCIE_MAX_LINK_GEN", "Maximum PCIe generation.", integer(Signal.PCIE_LINK_GENERATION_MAX)),
    gauge("DCGM_FI_DEV_PCIE_MAX_LINK_WIDTH", "Maximum PCIe lanes.", integer(Signal.PCIE_LINK_WIDTH_MAX)),
)

EVENT_REASONS = gauge(
    "DCGM_FI_DEV_CLOCKS_EVENT_REASONS", "Mask of the reasons that reduce the clocks now.", event_mask
)

EVENT_TIMES: tuple[DcgmRow, ...] = tuple(
    counter(
        f"DCGM_FI_DEV_CLOCKS_EVENT_REASON_{word}_NS", f"Nanoseconds with clocks {what}.", event_time(reason, _NANO)
    )
    for word, what, reason in (
        ("SW_POWER_CAP", "reduced by the power limit", "sw_power_cap"),
        ("SYNC_BOOST", "reduced for a sync boost group", "sync_boost"),
        ("SW_THERM_SLOWDOWN", "reduced by the driver because of temperature", "sw_thermal_slowdown"),
        ("HW_THERM_SLOWDOWN", "at least halved by the hardware because of temperature", "hw_thermal_slowdown"),
        ("HW_POWER_BRAKE_SLOWDOWN", "at least halved by the power brake", "hw_power_brake_slowdown"),
    )
)

ECC_ERRORS = (
    counter(
        "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL",
        "Corrected memory errors since the driver was loaded.",
        integer(Signal.ECC_CORRECTED_VOLATILE),
    ),
    counter(
        "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL",
        "Uncorrected memory errors since the driver was loaded.",
        integer(Signal.ECC_UNCORRECTED_VOLATILE),
    ),
    counter(
        "DCGM_FI_DEV_ECC_SBE_AGG_TOTAL",
        "Corrected memory errors over the GPU's lifetime.",
        integer(Signal.ECC_CORRECTED_AGGREGATE),
    ),
    counter(
        "DCGM_FI_DEV_ECC_DBE_AGG_TOTAL",
        "Uncorrected memory errors over the GPU's lifetime.",
        integer(Signal.ECC_UNCORRECTED_AGGREGATE),
    ),
)

ROW_REMAP_PENDING = gauge(
    "DCGM_FI_DEV_ROW_REMAP_PENDING",
    "1 when a memory row waits for a reset to be replaced.",
    integer(Signal.ROW_REMAP_PENDING),
)

FABRIC_MANAGER = gauge(
    "DCGM_FI_DEV_FABRIC_MANAGER_STATUS",
    "How far the NVSwitch fabric has come up: 1 not started, 2 in progress, 3 success, 4 failure.",
    fabric_manager,
)

# DCGM exposes 0 for a GPU that needs no licence, too.
VGPU_LICENSE = gauge(
    "DCGM_FI_DEV_VGPU_LICENSE_STATUS",
    "1 when the vGPU of a virtual machine is licensed.",
    integer(Signal.VGPU_LICENSED),
)

FABRIC_HEALTH = (
    gauge(
        "DCGM_FI_DEV_FABRIC_HEALTH_MASK",
        "Problems of the NVSwitch fabric, as the driver's mask of two-bit fields.",
        integer(Signal.FABRIC_HEALTH),
    ),
    gauge(
        "DCGM_FI_DEV_FABRIC_HEALTH_SUMMARY",
        "Health of the NVSwitch fabric: 1 healthy, 2 unhealthy, 3 limited capacity.",
        integer(Signal.FABRIC_SUMMARY),
    ),
)

# Word in the older name, in the newer one, reason in the help text, key in readings.
POLICIES = (
    ("THERMAL_VIOLATION", "THERMAL_THROTTLE", "because of temperature", "thermal"),
    ("BOARD_LIMIT_VIOLATION", "BOARD_LIMIT_THROTTLE", "by a limit of the board", "board_limit"),
    ("LOW_UTIL_VIOLATION", "LOW_UTIL_THROTTLE", "because of low utilisation", "low_utilization"),
    ("RELIABILITY_VIOLATION", "RELIABILITY_THROTTLE", "to keep the voltage reliable", "reliability"),
)

XID_TOTALS = DcgmRow(
    name="DCGM_EXP_XID_ERRORS_TOTAL",
    kind="counter",
    help="Errors that the driver reported, by XID, since the daemon started.",
    split=xid_totals,
)

XID_WINDOW = DcgmRow(
    name="DCGM_EXP_XID_ERRORS_COUNT",
    kind="gauge",
    help="Errors that the driver reported in the last five minutes, by XID.",
    split=xid_window,
)


CLOCK_EVENT_WINDOW = DcgmRow(
    name="DCGM_EXP_CLOCK_EVENTS_COUNT",
    kind="gauge",
    help="Readings of the last five minutes in which the clocks were reduced, by reason.",
    split=clock_event_window,
)


def last_error(name: str) -> DcgmRow:
    """Return the row of the newest XID."""
    return DcgmRow(
        name=name, kind="gauge", help="Newest XID since the daemon started, 0 before the first.", split=last_xid
    )
