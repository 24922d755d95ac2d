"""What is wrong with a GPU in two or three words, for the state of its row."""

from __future__ import annotations

import re
from collections.abc import Mapping

from exporter.model.text import Language, Text
from exporter.web.values import clean

GPU_PROBLEMS: Mapping[str, Text] = {
    "GpuLost": Text("lost", "掉卡"),
    "GpuRecoveryNeeded": Text("needs recovery", "需要恢复"),
    "GpuXidResetNode": Text("XID: reboot needed", "XID：需要重启节点"),
    "GpuXidResetGpu": Text("XID: reset needed", "XID：需要复位"),
    "GpuXidInspect": Text("XID: inspect", "XID：需要检查"),
    "GpuXidApplication": Text("XID of a program", "程序引起的 XID"),
    "GpuEccUncorrectable": Text("ECC errors", "ECC 错误"),
    "GpuSramEccThreshold": Text("SRAM ECC errors", "SRAM ECC 错误"),
    "GpuRowRemapPending": Text("row remap pending", "行重映射待复位"),
    "GpuRowRemapFailed": Text("row remap failed", "行重映射失败"),
    "GpuNvlinkDown": Text("NVLink down", "NVLink 断开"),
    "GpuFabricProblem": Text("fabric problem", "Fabric 异常"),
    "GpuPcieDowngraded": Text("PCIe downgraded", "PCIe 降级"),
    "GpuStraggler": Text("straggler", "慢卡"),
    "GpuHot": Text("hot", "温度过高"),
    "GpuHotWithoutLimit": Text("hot", "温度过高"),
    "GpuThermalThrottling": Text("thermal throttling", "过热降频"),
    "GpuPowerBrake": Text("power brake", "功率制动"),
    "GpuMemoryFull": Text("memory full", "显存将满"),
    "GroupMemoryUneven": Text("more memory used than its group", "显存占用高于同组"),
    "GpuOrphanProcesses": Text("leftover processes", "残留进程"),
    "SourceHung": Text("does not answer", "无响应"),
}
_WORD = re.compile(r"(?<=[a-z])(?=[A-Z])")


def gpu_problem(finding: str, language: Language) -> str:
    """Return what a finding says about a GPU; of one that a newer daemon knows, the words of its name."""
    known = GPU_PROBLEMS.get(finding)
    return clean(_WORD.sub(" ", finding).lower()) if known is None else known.in_(language)
