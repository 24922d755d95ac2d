"""Intel's XPU Manager, version 1: the names ``xpum_*``.

Numbers of a whole GPU have no label ``sub_dev``; where it has only those of its tiles, they are added up or averaged.
What XPU Manager calls read and write over PCIe, and errors of its caches, have no counterpart here.
"""

from __future__ import annotations

from collections.abc import Mapping

from exporter.gpu_pages.gpu_exporter import GpuExporter, GpuField, Merge
from exporter.model import Signal

_WHOLE = {"sub_dev": ("",)}
_MEGA = 1e6


def _rows(signal: Signal, name: str, merge: Merge, *, unit: float = 1.0, **labels: str) -> tuple[GpuField, GpuField]:
    """Return the row of the whole GPU, and that of its tiles in case there is none."""
    wanted: Mapping[str, tuple[str, ...]] = {label: (value,) for label, value in labels.items()}
    names = {name: unit}
    return (
        GpuField(signal, names, labels={**wanted, **_WHOLE}, merge=merge),
        GpuField(signal, names, labels=wanted, merge=merge),
    )


INTEL = GpuExporter(
    kind="intel",
    title="Intel XPU Manager 1",
    vendor="Intel",
    marks=("xpum_",),
    uuid=("uuid",),
    name=("dev_name",),
    pci=("pci_bdf",),
    hint="Point url at its exporter's /metrics (port 29999 in its Kubernetes manifests).",
    setup="Version 2 has other names and is not read.",
    fields=(
        *_rows(Signal.UTILIZATION, "xpum_engine_ratio", Merge.MEAN),
        *_rows(Signal.DRAM_ACTIVE, "xpum_memory_bandwidth_ratio", Merge.MEAN),
        *_rows(Signal.MEMORY_USED, "xpum_memory_used_bytes", Merge.SUM),
        *_rows(Signal.TEMPERATURE_GPU, "xpum_temperature_celsius", Merge.MAX, location="gpu"),
        *_rows(Signal.TEMPERATURE_MEMORY, "xpum_temperature_celsius", Merge.MAX, location="mem"),
        *_rows(Signal.POWER, "xpum_power_watts", Merge.SUM),
        *_rows(Signal.ENERGY, "xpum_energy_joules_total", Merge.SUM),
        *_rows(Signal.CLOCK_SM, "xpum_frequency_mhz", Merge.MEAN, unit=_MEGA, location="gpu", type="actual"),
    ),
)
