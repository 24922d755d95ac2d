"""The typed layer over grafanalib: what a board may be made of.

A board never touches raw JSON: it calls these factories with texts, queries made of metric objects, and thresholds of
the alerts.  Units follow from the queries.  grafanalib is imported in this package only; it is dormant and writes an
old schema, which ``normalise`` repairs.
"""

from __future__ import annotations

from dashboards.panels.factories import (
    alert_list,
    bars,
    column,
    dial,
    heat,
    history,
    lines,
    series,
    stat,
    table,
    text,
    timeline,
)
from dashboards.panels.notes import Note
from dashboards.panels.record import Cell, Drill, Panel, Shown, State

__all__ = [
    "Cell",
    "Drill",
    "Note",
    "Panel",
    "Shown",
    "State",
    "alert_list",
    "bars",
    "column",
    "dial",
    "heat",
    "history",
    "lines",
    "series",
    "stat",
    "table",
    "text",
    "timeline",
]
