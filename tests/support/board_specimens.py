"""A panel and a board, for tests of what is refused and of what is drawn."""

from __future__ import annotations

from alerts import panel_ids as named
from alerts.text import Text
from dashboards.board import Board
from dashboards.panels import lines, series
from dashboards.variables import seen
from exporter.catalog import metrics as m
from exporter.promql import max_by

T = Text
TITLE, SHOWS = T("Power by card", "功率"), T("Watts drawn.", "功率。")


def panel(ask=lambda: max_by(seen(m.GPU_POWER_WATTS), "gpu"), legend="{{gpu}}", **more):
    return lines(TITLE, SHOWS, series(ask, legend), **more)


def small(*rows, uid=named.Board.NODE, title="Test", **more):
    return Board(uid=uid, title=T(title, "测试"), shows=SHOWS, rows=rows, **more)
