"""A panel and a dashboard, for tests of what is refused and of what is drawn."""

from __future__ import annotations

from alerts import panel_ids as ids
from dashboards.dashboard import Dashboard
from dashboards.panels import series, time_series
from dashboards.variables import selected
from exporter.catalog import metrics as m
from exporter.model.text import Text
from exporter.promql import max_by

T = Text
TITLE, SHOWS = T("Power by GPU", "功率"), T("Watts drawn.", "功率。")


def panel(ask=lambda: max_by(selected(m.GPU_POWER_WATTS), "gpu"), legend="{{gpu}}", **more):
    return time_series(TITLE, SHOWS, series(ask, legend), **more)


def small(*rows, uid=ids.DashboardUid.NODE, title="Test", **more):
    return Dashboard(uid=uid, title=T(title, "测试"), description=SHOWS, rows=rows, **more)
