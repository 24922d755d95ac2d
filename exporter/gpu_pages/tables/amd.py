"""AMD's device-metrics-exporter (Instinct MI200 and MI300).

Its names may have the prefix ``amd_``.  A partition of a GPU (CPX, DPX, QPX) is a GPU of its own; only the first one
of a GPU has the sensors of the board.  Links between GPUs (XGMI) are not read: our names for links are NVLink's.
"""

from __future__ import annotations

from collections.abc import Mapping

from exporter.gpu_pages.gpu_exporter import GpuExporter, GpuField, Merge, Part
from exporter.model import Signal

_PERCENT, _MEBI, _MEGA, _MICRO = 0.01, 2.0**20, 1e6, 1e-6
_GENERATION = {2.5: 1.0, 5.0: 2.0, 8.0: 3.0, 16.0: 4.0, 32.0: 5.0, 64.0: 6.0}  # by GT/s of a lane
_PREFIXES = ("", "amd_")
# Share of time, in percent, in which the clocks were held down.
_VIOLATIONS = {"sw_power_cap": "ppt", "hw_thermal_slowdown": "socket_thermal", "hw_slowdown": "processor_hot"}


def _names(unit: float, *names: str) -> Mapping[str, float]:
    return {f"{prefix}{name}": unit for name in names for prefix in _PREFIXES}


def _clock(signal: Signal, name: str, kind: str) -> GpuField:
    # One series for each die of a GPU.
    kinds = (kind, f"GPU_CLOCK_TYPE_{kind.upper()}")
    return GpuField(signal, _names(_MEGA, name), labels={"clock_type": kinds}, merge=Merge.MEAN)


AMD = GpuExporter(
    kind="amd",
    title="AMD device-metrics-exporter",
    vendor="AMD",
    marks=tuple(_names(1.0, "gpu_gfx_activity", "gpu_package_power", "gpu_power_usage", "gpu_total_vram")),
    index=("gpu_id",),
    uuid=("gpu_uuid", "serial_number"),
    serial=("serial_number",),
    name=("card_series", "card_model"),
    pci=("pcie_bus_id",),
    driver=("driver_version",),
    partition=("gpu_partition_id",),
    hint="Point url at its /metrics (port 5000 unless set).",
    setup="`GPUConfig.Fields` chooses its fields, all unless set; those of `ProfilerMetrics` are off unless set.",
    fields=(
        GpuField(Signal.UTILIZATION, _names(_PERCENT, "gpu_gfx_activity")),
        GpuField(Signal.MEMORY_ACTIVITY, _names(_PERCENT, "gpu_umc_activity")),
        GpuField(Signal.MEMORY_TOTAL, _names(_MEBI, "gpu_total_vram")),
        GpuField(Signal.MEMORY_USED, _names(_MEBI, "gpu_used_vram")),
        GpuField(Signal.MEMORY_FREE, _names(_MEBI, "gpu_free_vram")),
        GpuField(Signal.TEMPERATURE_GPU, _names(1.0, "gpu_junction_temperature", "gpu_edge_temperature")),
        GpuField(Signal.TEMPERATURE_MEMORY, _names(1.0, "gpu_memory_temperature", "gpu_hbm_temperature")),
        GpuField(Signal.POWER, _names(1.0, "gpu_package_power", "gpu_average_package_power", "gpu_power_usage")),
        GpuField(Signal.ENERGY, _names(_MICRO, "gpu_energy_consumed")),
        _clock(Signal.CLOCK_SM, "gpu_clock", "system"),
        _clock(Signal.CLOCK_MEMORY, "gpu_clock", "memory"),
        _clock(Signal.CLOCK_VIDEO, "gpu_clock", "video"),
        _clock(Signal.CLOCK_MAX_SM, "gpu_max_clock", "system"),
        _clock(Signal.CLOCK_MAX_MEMORY, "gpu_max_clock", "memory"),
        _clock(Signal.CLOCK_MAX_VIDEO, "gpu_max_clock", "video"),
        GpuField(Signal.PCIE_LINK_GENERATION, _names(1.0, "pcie_speed"), values=_GENERATION),
        GpuField(Signal.PCIE_LINK_GENERATION_MAX, _names(1.0, "pcie_max_speed"), values=_GENERATION),
        GpuField(Signal.PCIE_REPLAYS, _names(1.0, "pcie_replay_count")),
        GpuField(Signal.ECC_CORRECTED_VOLATILE, _names(1.0, "gpu_ecc_correct_total")),
        GpuField(Signal.ECC_UNCORRECTED_VOLATILE, _names(1.0, "gpu_ecc_uncorrect_total")),
        *[
            GpuField(Part.CLOCK_EVENTS, _names(1.0, f"gpu_violation_{word}_residency_percentage"), word=reason)
            for reason, word in _VIOLATIONS.items()
        ],
        GpuField(Signal.SM_ACTIVE, _names(_PERCENT, "gpu_prof_sm_active")),
        GpuField(Signal.SM_OCCUPANCY, _names(_PERCENT, "gpu_prof_occupancy_percent")),
        GpuField(Signal.TENSOR_ACTIVE, _names(_PERCENT, "gpu_prof_tensor_active_percent")),
        GpuField(Signal.GRAPHICS_ACTIVE, _names(_PERCENT, "gpu_prof_gui_util_percent")),
    ),
)
