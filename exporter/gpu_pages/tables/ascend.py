"""Huawei's npu-exporter (Ascend).

A chip counts as a GPU.  It is identified by its die, by its number where older versions tell no die.  The exporter
writes -1 for a value that it could not read, which is refused.
"""

from __future__ import annotations

from exporter.gpu_pages.gpu_exporter import GpuExporter, GpuField
from exporter.model import Signal

_PERCENT, _MEBI, _MEGA = 0.01, 2.0**20, 1e6


def _chip(signal: Signal, *names: str, unit: float = 1.0) -> GpuField:
    return GpuField(signal, {f"npu_chip_info_{name}": unit for name in names})


ASCEND = GpuExporter(
    kind="ascend",
    title="Ascend npu-exporter",
    vendor="Huawei",
    marks=("npu_chip_info_",),
    index=("id",),
    uuid=("vdie_id",),
    name=("model_name", "name"),
    pci=("pcie_bus_info",),
    info=("npu_chip_info_name",),
    processes=("npu_chip_info_process_info", "process_id"),
    hint="Point url at its /metrics (port 8082 unless set).",
    fields=(
        _chip(Signal.UTILIZATION, "overall_utilization", "utilization", unit=_PERCENT),
        _chip(Signal.TENSOR_ACTIVE, "cube_utilization", unit=_PERCENT),
        _chip(Signal.DRAM_ACTIVE, "hbm_bandwidth_utilization", unit=_PERCENT),
        _chip(Signal.MEMORY_TOTAL, "hbm_total_memory", "total_memory", unit=_MEBI),
        _chip(Signal.MEMORY_USED, "hbm_used_memory", "used_memory", unit=_MEBI),
        _chip(Signal.TEMPERATURE_GPU, "temperature"),
        _chip(Signal.TEMPERATURE_MEMORY, "hbm_temperature"),
        _chip(Signal.POWER, "power"),
        _chip(Signal.CLOCK_SM, "aicore_current_freq", unit=_MEGA),
        _chip(Signal.ECC_CORRECTED_VOLATILE, "hbm_ecc_single_bit_error_cnt"),
        _chip(Signal.ECC_UNCORRECTED_VOLATILE, "hbm_ecc_double_bit_error_cnt"),
        _chip(Signal.ECC_CORRECTED_AGGREGATE, "hbm_ecc_total_single_bit_error_cnt"),
        _chip(Signal.ECC_UNCORRECTED_AGGREGATE, "hbm_ecc_total_double_bit_error_cnt"),
        _chip(Signal.RETIRED_PAGES_SINGLE_BIT, "hbm_ecc_single_bit_isolated_pages_cnt"),
        _chip(Signal.RETIRED_PAGES_DOUBLE_BIT, "hbm_ecc_double_bit_isolated_pages_cnt"),
        _chip(Signal.PROCESSES, "process_info_num"),
    ),
)
