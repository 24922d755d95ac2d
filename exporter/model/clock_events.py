"""Why the driver holds clocks down: our words for the bits of NVML's and DCGM's mask (nvmlClocksEventReason…)."""

from __future__ import annotations

from collections.abc import Mapping

CLOCK_EVENT_BITS: Mapping[str, int] = {
    "gpu_idle": 0x1,
    "applications_clocks_setting": 0x2,
    "sw_power_cap": 0x4,
    "hw_slowdown": 0x8,
    "sync_boost": 0x10,
    "sw_thermal_slowdown": 0x20,
    "hw_thermal_slowdown": 0x40,
    "hw_power_brake_slowdown": 0x80,
    "display_clock_setting": 0x100,
}
