"""The states of verdicts in words; programs read the states themselves."""

from __future__ import annotations

from exporter.model.finding import VerdictState
from exporter.model.text import Text

VERDICT_NAMES = {
    VerdictState.SERVE: Text("serve", "服务"),
    VerdictState.DRAIN: Text("drain", "排空"),
    VerdictState.EJECT: Text("eject", "摘除"),
    VerdictState.UNKNOWN: Text("unknown", "未知"),
}
