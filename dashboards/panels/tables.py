"""Tables: one row per combination of labels, one column per query, as Grafana's transformations and overrides."""

from __future__ import annotations

from string import ascii_uppercase
from typing import Any

from dashboards.errors import DashboardError
from dashboards.panels import label_words
from dashboards.panels.field_config import label_name, link, mappings, steps
from dashboards.panels.panel import Cell, Colour, DrillDown, Panel, PanelSeries
from exporter.model.text import Language

Json = dict[str, Any]

TREND_POINTS = 100  # about one per pixel of a cell
_LEAST_WIDTHS = {"instance": 130, "replica": 100, "model": 150, "source": 290}
_MIN_WIDTH = 80  # pixels; Grafana's default of 150 hides the last columns
_TREND_WIDTH = 110
_WIDTHS = {
    "gpu": 70, "rank": 70, "xid": 70, "link": 70, "engine": 90, "window": 80, "class": 120, "action": 270, "signal": 190,
    "reason": 140, "meaning": 640, "path": 110, "p2p": 240, "vbios_version": 130, "numa_node": 90,
}  # fmt: skip


def options(panel: Panel, language: Language) -> Json:
    """Return the panel options: the sort order, by the labels unless the panel names columns (largest first)."""
    columns = {series.legend.en: series.legend.in_(language) for series in panel.series}
    for name in panel.sort:
        if name not in columns:
            raise DashboardError(f"{panel.title.en}: sorted by a column {name!r} that it does not have")
    sort = [(columns[name], True) for name in panel.sort]
    sort = sort or [(label_name(label, language), False) for label in panel.rows[:2]]
    return {
        "showHeader": True, "cellHeight": "sm", "frameIndex": 0,
        "sortBy": [{"displayName": name, "desc": largest} for name, largest in sort],
    }  # fmt: skip


def defaults(panel: Panel, language: Language) -> Json:
    """Return the field defaults of every column."""
    return {
        "color": {"mode": "thresholds"}, "noValue": panel.no_data.in_(language), "mappings": [],
        "custom": {
            "align": "auto", "cellOptions": {"type": "auto"}, "inspect": False, "filterable": True,
            "minWidth": _MIN_WIDTH,
        },
        "thresholds": {"mode": "absolute", "steps": steps(None)},
    }  # fmt: skip


def overrides(panel: Panel, language: Language) -> list[Json]:
    """Return the overrides by column: values first, then links, then labels."""
    found = [_column(series, language) for series in panel.series if series.cell is not Cell.FACT]
    found += [_row_link(panel.drill_down, label, language) for label in panel.rows if _leads(panel.drill_down, label)]
    return found + [_label(label, language) for label in panel.rows]


def arrange(panel: Panel, language: Language) -> list[Json]:
    """Return the transformations: trends, a join by the row's labels, and the columns' names and order.

    Each trend is made from its own query alone: a table with one row has one moment and would be taken for a time
    series.
    """
    single = len(panel.series) == 1
    labels = {label: label_name(label, language) for label in panel.rows}
    figures: dict[str, str] = {}
    hidden, trends = {"Time": True}, []
    for ref, series in zip(ascii_uppercase, panel.series, strict=False):
        value = "Value" if single else f"Value #{ref}"
        if series.cell is Cell.FACT:
            hidden[value] = True
            continue
        if series.cell is Cell.TREND:
            value = f"Trend #{ref}"
            trends.append(_trend(ref))
        figures[value] = series.legend.in_(language)
    names = labels | figures
    if len(set(names.values())) != len(names):
        raise DashboardError(f"{panel.title.en}: two columns with one name")
    order = {name: place for place, name in enumerate(names)}
    arranged = {"excludeByName": hidden, "indexByName": order, "renameByName": names, "includeByName": {}}
    return [*trends, {"id": "merge", "options": {}}, {"id": "organize", "options": arranged}]


def _trend(ref: str) -> Json:
    return {"id": "timeSeriesTable", "filter": {"id": "byRefId", "options": ref}, "options": {}}


def _leads(drills: tuple[DrillDown, ...], label: str) -> bool:
    return any(label == drill_down.labels[-1] for drill_down in drills)


def _row_link(drills: tuple[DrillDown, ...], label: str, language: Language) -> Json:
    links = [link(drill_down, language, table=True) for drill_down in drills if drill_down.labels[-1] == label]
    name = label_name(label, language)
    return {"matcher": {"id": "byName", "options": name}, "properties": [{"id": "links", "value": links}]}


def _label(label: str, language: Language) -> Json:
    """Return the override of a label's column: its width, and a dash for an empty label."""
    properties: list[Json] = [{"id": "noValue", "value": "–"}, *label_words.properties(label, language)]
    if label in _WIDTHS:
        properties.append({"id": "custom.width", "value": _WIDTHS[label]})
    if label in _LEAST_WIDTHS:
        properties.append({"id": "custom.minWidth", "value": _LEAST_WIDTHS[label]})
    return {"matcher": {"id": "byName", "options": label_name(label, language)}, "properties": properties}


def _column(series: PanelSeries, language: Language) -> Json:
    if series.cell is Cell.TREND:
        return {"matcher": {"id": "byName", "options": series.legend.in_(language)}, "properties": _curve(series)}
    properties: list[Json] = [
        {"id": "unit", "value": series.unit},
        {"id": "custom.cellOptions", "value": _cell(series.cell)},
        {"id": "thresholds", "value": {"mode": "absolute", "steps": steps(series.threshold)}},
        {
            "id": "mappings",
            "value": mappings(series.value_mappings, language, no_value="–", no_value_colour="transparent"),
        },
    ]
    if series.value_mappings:
        properties.append({"id": "custom.align", "value": "left"})  # words, not numbers
        # Not a minimum: Grafana shares the rest out evenly first, and what is then too narrow moves out of sight.
        properties.append({"id": "custom.width", "value": _width_of_words(series)})
    if series.cell is Cell.BAR:
        properties.append({"id": "min", "value": 0})
        properties.append({"id": "fieldMinMax", "value": True})  # else hertz in the next column flatten watts
    if series.max_value is not None:
        properties.append({"id": "max", "value": series.max_value})
    if series.decimals is not None:
        properties.append({"id": "decimals", "value": series.decimals})
    return {"matcher": {"id": "byName", "options": series.legend.in_(language)}, "properties": properties}


def _width_of_words(series: PanelSeries) -> int:
    """Return the pixels of a column's longest word or its header; a Chinese character is twice as wide as a letter."""
    longest = max(
        sum(2 if character > "\u2e80" else 1 for character in text.in_(language))
        for text in (series.legend, *(mapping.text for mapping in series.value_mappings))
        for language in Language
    )
    return max(_MIN_WIDTH, 24 + int(7.4 * longest))


def _cell(cell: Cell) -> Json:
    if cell is Cell.BAR:
        return {"type": cell.value, "mode": "basic", "valueDisplayMode": "text"}
    return {"type": cell.value, "mode": "basic"} if cell is Cell.COLOUR else {"type": cell.value}


def _curve(series: PanelSeries) -> list[Json]:
    """Return the sparkline without a value: Grafana would print the last one, of a down exporter too."""
    cell = {"type": series.cell.value, "hideValue": True, "drawStyle": "line", "lineWidth": 1, "fillOpacity": 15}
    found: list[Json] = [
        {"id": "unit", "value": series.unit},
        {"id": "custom.cellOptions", "value": cell},
        {"id": "color", "value": {"mode": "fixed", "fixedColor": Colour.PLAIN.value}},
        {"id": "custom.width", "value": _TREND_WIDTH},
        {"id": "noValue", "value": "–"},
        {"id": "min", "value": 0},
    ]
    return found if series.max_value is None else [*found, {"id": "max", "value": series.max_value}]
