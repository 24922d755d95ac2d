"""The causes of stragglers in words, for findings, alerts and dashboards."""

from __future__ import annotations

from exporter.model import Cause
from exporter.model.text import Text

CAUSE_NAMES = {
    Cause.THERMAL: Text("thermal throttling", "过热降频"),
    Cause.POWER_BRAKE: Text("power brake", "功率制动"),
    Cause.POWER_CAP: Text("lower power limit", "功率上限偏低"),
    Cause.CLOCK_LOCK: Text("locked clocks", "时钟被锁定"),
    Cause.OTHER_TENANT: Text("shared with another tenant", "被其他租户占用"),
    Cause.PCIE: Text("degraded PCIe link", "PCIe 链路降级"),
    Cause.NVLINK: Text("NVLinks down", "NVLink 断开"),
    Cause.MEMORY_PRESSURE: Text("memory nearly full", "显存将满"),
    Cause.UNKNOWN: Text("unknown cause", "原因未知"),
}
