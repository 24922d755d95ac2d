"""The typed layer over grafanalib that dashboards are built from.

A dashboard contains no raw JSON: it calls these factories with texts, queries made of metric objects, and thresholds of
the alerts. Units follow from the queries. grafanalib is imported in this package only; it is dormant and writes an old
schema, which ``normalise`` converts.
"""

from __future__ import annotations

from dashboards.panels.annotations import Annotation
from dashboards.panels.factories import (
    alert_list,
    bar_gauge,
    column,
    gauge,
    heatmap,
    series,
    stat,
    state_timeline,
    status_history,
    table,
    text_panel,
    time_series,
)
from dashboards.panels.panel import Cell, DrillDown, NumberFormat, Panel, ValueMapping

__all__ = [
    "Annotation",
    "Cell",
    "DrillDown",
    "NumberFormat",
    "Panel",
    "ValueMapping",
    "alert_list",
    "bar_gauge",
    "column",
    "gauge",
    "heatmap",
    "series",
    "stat",
    "state_timeline",
    "status_history",
    "table",
    "text_panel",
    "time_series",
]
