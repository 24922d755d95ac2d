"""The states of verdicts and their reasons in words; programs read the states and reasons themselves."""

from __future__ import annotations

from exporter.model.finding import VerdictState
from exporter.model.text import Text

VERDICT_NAMES = {
    VerdictState.SERVE: Text("serve", "服务"),
    VerdictState.DRAIN: Text("drain", "排空"),
    VerdictState.EJECT: Text("eject", "摘除"),
    VerdictState.UNKNOWN: Text("unknown", "未知"),
}
VERDICT_REASONS = {
    "gpu_lost": Text("GPU lost", "掉卡"),
    "gpu_reset_required": Text("the GPU needs a reset", "该卡需要复位"),
    "row_remap_failed": Text("row remapping failed", "行重映射失败"),
    "row_remap_pending": Text("row remapping pending", "行重映射待复位"),
    "no_progress": Text("no progress", "没有进展"),
    "asleep": Text("asleep", "休眠"),
    "certificate": Text("certificate about to expire", "证书即将到期"),
    "down": Text("down", "已停止"),
    "released": Text("released (SIGUSR1)", "已释放（SIGUSR1）"),
    "no_data": Text("no data", "没有数据"),
}
