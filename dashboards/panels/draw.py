"""From typed panels to grafanalib's objects, in one language."""

from __future__ import annotations

from string import ascii_uppercase
from typing import Any

from grafanalib import core

from alerts.text import Language
from alerts.thresholds import Threshold
from dashboards.errors import BoardError
from dashboards.panels import kinds
from dashboards.panels.paint import label_name, link, mappings, steps
from dashboards.panels.record import Cell, Colour, Drill, Kind, Panel, Series
from dashboards.traces import traces_link

Json = dict[str, Any]

SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_NOW = {Kind.STAT, Kind.BARS, Kind.DIAL, Kind.TABLE}  # a dead series must not be shown as its last value
_REDUCE: Json = {"calcs": ["lastNotNull"], "fields": "", "values": False}
_TOOLTIP: Json = {"mode": "multi", "sort": "desc", "hideZeros": False}


def draw(panel: Panel, language: Language) -> core.Panel:
    """Give grafanalib's object of a panel; the grid position comes later."""
    given: core.Panel = _DRAWERS[panel.kind](panel, language)
    return given


def _words(panel: Panel, language: Language) -> Json:
    return {
        "title": panel.title.in_(language),
        "description": panel.shows.in_(language),
        "maxDataPoints": None,  # grafanalib's 100 would hide spikes on a long time range
        "id": panel.number,
    }


def _base(panel: Panel, language: Language) -> Json:
    targets = [_target(panel, place, one, language) for place, one in enumerate(panel.series)]
    return _words(panel, language) | {"dataSource": SOURCE, "targets": targets}


def _target(panel: Panel, place: int, series: Series, language: Language) -> core.Target:
    form = {Kind.TABLE: "table", Kind.HEAT: "heatmap"}.get(panel.kind, "time_series")
    return core.Target(
        expr=str(series.expr),
        legendFormat=series.legend.in_(language),
        refId=ascii_uppercase[place],
        instant=panel.kind in _NOW,
        format=form,
        intervalFactor=1,
        datasource=SOURCE,
    )


def _defaults(panel: Panel, language: Language, *, colour: str = "thresholds") -> Json:
    no_value = panel.no_value.in_(language)
    dead = panel.kind in {Kind.STAT, Kind.DIAL}
    return {
        "color": {"mode": colour},
        "unit": panel.series[0].unit,
        "min": panel.least,
        "max": panel.most,
        "decimals": panel.decimals,
        "noValue": panel.no_data.in_(language),
        "mappings": mappings(panel.states, language, no_value=no_value, dead=dead),
        "thresholds": {"mode": "absolute", "steps": steps(panel.limit)},
        "links": [
            *(link(drill, language, table=False) for drill in panel.drill),
            *((traces_link(panel.traces, language),) if panel.traces else ()),
        ],
    }


def _stat(panel: Panel, language: Language) -> core.Panel:
    several = len(panel.series) > 1 or "{{" in panel.series[0].legend.en
    return core.Stat(
        **_base(panel, language),
        graphMode="none",
        colorMode="background_solid" if panel.states or panel.limit else "value",
        textMode="value_and_name" if several else "value",
        reduceCalc="lastNotNull",
        noValue=panel.no_value.in_(language),
        format=panel.series[0].unit,
        extraJson={
            "fieldConfig": {"defaults": _defaults(panel, language)},
            "options": {"wideLayout": True, "showPercentChange": False, "percentChangeColorMode": "standard"},
        },
    )


def _lines(panel: Panel, language: Language) -> core.Panel:
    defaults = _defaults(panel, language, colour="palette-classic")  # by name, some of eight cards share a colour
    style = {"mode": "dashed" if panel.limit is not None else "off"}
    defaults["custom"] = {"thresholdsStyle": style, "stacking": {"mode": "normal" if panel.stacked else "none"}}
    if panel.limit is not None and panel.most is None:
        defaults["custom"]["axisSoftMax"] = _above(panel.limit)
    overrides = [_limit_line(place) for place, one in enumerate(panel.series) if one.dashed]
    return core.TimeSeries(
        **_base(panel, language),
        unit=panel.series[0].unit,
        fillOpacity=30 if panel.stacked else 0,
        stacking={"mode": "normal" if panel.stacked else "none", "group": "A"},
        legendCalcs=["lastNotNull", "max"] if panel.width >= _WIDE else [],  # in a list each series takes a line then
        legendDisplayMode="table" if panel.width >= _WIDE else "list",
        legendPlacement="right" if panel.width >= _WIDE else "bottom",
        overrides=overrides,
        showPoints="never",
        extraJson={
            "fieldConfig": {"defaults": defaults},
            "options": {"tooltip": _TOOLTIP, "legend": {"showLegend": True}},
        },
    )


_WIDE = 12
_MOST_CELLS = 100  # Grafana refuses to draw more cells than half of the panel's pixels
_LEAST_WIDTHS = {"instance": 115, "replica": 100, "model": 150}
_NARROWEST = 80  # pixels of a table's column; Grafana's 150 push the last columns out of sight
_WIDTHS = {
    "gpu": 70, "rank": 70, "xid": 70, "link": 70, "engine": 90, "window": 80, "class": 110, "action": 220, "signal": 190,
    "reason": 140, "meaning": 520,
}  # fmt: skip


def _above(limit: Threshold) -> float:
    """Give an axis' end at which the thresholds are in sight: an axis of zeros alone would end at 100, or 10000 %."""
    return round(max(value for _, value in limit.steps()) * 1.2, 6)


def _limit_line(place: int) -> Json:
    properties = [
        {"id": "custom.lineStyle", "value": {"dash": [8, 8], "fill": "dash"}},
        {"id": "color", "value": {"mode": "fixed", "fixedColor": Colour.OFF.value}},
    ]
    return {"matcher": {"id": "byFrameRefID", "options": ascii_uppercase[place]}, "properties": properties}


def _bars(panel: Panel, language: Language) -> core.Panel:
    options: Json = {
        "displayMode": "basic", "valueMode": "color", "namePlacement": "auto", "showUnfilled": True, "sizing": "auto",
        "minVizWidth": 8, "minVizHeight": 16, "maxVizHeight": 300, "orientation": "horizontal",
        "reduceOptions": _REDUCE, "legend": _no_legend(),
    }  # fmt: skip
    return kinds.BarGauge(
        **_base(panel, language), kind=panel.kind.value, options=options, defaults=_defaults(panel, language)
    )


def _no_legend() -> Json:
    return {"showLegend": False, "displayMode": "list", "placement": "bottom", "calcs": []}


def _dial(panel: Panel, language: Language) -> core.Panel:
    options: Json = {
        "orientation": "auto", "showThresholdLabels": False, "showThresholdMarkers": True, "sizing": "auto",
        "minVizWidth": 75, "minVizHeight": 75, "reduceOptions": _REDUCE,
    }  # fmt: skip
    return kinds.Gauge(
        **_base(panel, language), kind=panel.kind.value, options=options, defaults=_defaults(panel, language)
    )


def _heat(panel: Panel, language: Language) -> core.Panel:
    options: Json = {
        "calculate": False, "cellGap": 1, "cellRadius": 0, "showValue": "never",
        "cellValues": {"unit": "cps"},
        "color": {
            "mode": "scheme", "scheme": "Viridis", "scale": "exponential", "exponent": 0.5, "steps": 64,
            "reverse": False, "fill": Colour.PLAIN.value,
        },
        "exemplars": {"color": Colour.WARNING.value},
        "filterValues": {"le": 1e-9},
        "legend": {"show": True},
        "rowsFrame": {"layout": "auto"},
        "tooltip": {"mode": "single", "yHistogram": True, "showColorScale": False},
        "yAxis": {"axisPlacement": "left", "reverse": False, "unit": "s"},
    }  # fmt: skip
    defaults: Json = {"custom": {"scaleDistribution": {"type": "linear"}}, "noValue": panel.no_data.in_(language)}
    return kinds.Heatmap(
        **_base(panel, language), kind=panel.kind.value, options=options, defaults=defaults | {"unit": "cps"}
    )


def _timeline(panel: Panel, language: Language) -> core.Panel:
    return core.StateTimeline(
        **_base(panel, language),
        showValue="never",
        mergeValues=True,
        extraJson={
            "fieldConfig": {"defaults": _defaults(panel, language)},
            "options": {"legend": {"showLegend": True, "calcs": []}, "tooltip": _TOOLTIP, "alignValue": "left"},
        },
    )


def _history(panel: Panel, language: Language) -> core.Panel:
    options: Json = {
        "rowHeight": 0.9, "colWidth": 0.95, "showValue": "never", "tooltip": _TOOLTIP,
        "legend": {"showLegend": True, "displayMode": "list", "placement": "bottom", "calcs": []},
    }  # fmt: skip
    defaults = _defaults(panel, language) | {"custom": {"fillOpacity": 85, "lineWidth": 0}}
    if panel.limit is None and not panel.states:
        defaults["color"] = {"mode": "continuous-BlYlRd"}
    base = _base(panel, language) | {"maxDataPoints": _MOST_CELLS}
    return kinds.StatusHistory(**base, kind=panel.kind.value, options=options, defaults=defaults)


def _table(panel: Panel, language: Language) -> core.Panel:
    overrides = [_column(one, language) for one in panel.series]
    overrides += [_row_link(panel.drill, label, language) for label in panel.rows if _leads(panel.drill, label)]
    overrides += [_label(label, language) for label in panel.rows]
    sort = [(one.legend.in_(language), True) for one in panel.series if one.legend.en == panel.sort]
    sort = sort or [(label_name(label, language), False) for label in panel.rows[:2]]
    if panel.sort and not sort[0][1]:
        raise BoardError(f"{panel.title.en}: sorted by a column {panel.sort!r} that it does not have")
    return kinds.Table(
        **_base(panel, language) | {"transformations": _arrange(panel, language)},
        kind=panel.kind.value,
        options={
            "showHeader": True, "cellHeight": "sm", "frameIndex": 0,
            "sortBy": [{"displayName": name, "desc": largest} for name, largest in sort],
        },
        defaults={
            "color": {"mode": "thresholds"}, "noValue": panel.no_data.in_(language), "mappings": [],
            "custom": {
                "align": "auto", "cellOptions": {"type": "auto"}, "inspect": False, "filterable": True,
                "minWidth": _NARROWEST,
            },
            "thresholds": {"mode": "absolute", "steps": steps(None)},
        },
        overrides=overrides,
    )  # fmt: skip


def _leads(drills: tuple[Drill, ...], label: str) -> bool:
    return any(label == drill.carry[-1] for drill in drills)


def _row_link(drills: tuple[Drill, ...], label: str, language: Language) -> Json:
    links = [link(drill, language, table=True) for drill in drills if drill.carry[-1] == label]
    name = label_name(label, language)
    return {"matcher": {"id": "byName", "options": name}, "properties": [{"id": "links", "value": links}]}


def _label(label: str, language: Language) -> Json:
    """Give a label's column its width, and a dash where the label is empty: not the words for a table without rows."""
    properties: list[Json] = [{"id": "noValue", "value": "–"}]
    if label in _WIDTHS:
        properties.append({"id": "custom.width", "value": _WIDTHS[label]})
    if label in _LEAST_WIDTHS:
        properties.append({"id": "custom.minWidth", "value": _LEAST_WIDTHS[label]})
    return {"matcher": {"id": "byName", "options": label_name(label, language)}, "properties": properties}


def _column(series: Series, language: Language) -> Json:
    no_value = "–"
    cell: Json = {"type": series.cell.value}
    if series.cell is Cell.BAR:
        cell |= {"mode": "basic", "valueDisplayMode": "text"}
    elif series.cell is Cell.COLOUR:
        cell |= {"mode": "basic"}
    properties: list[Json] = [
        {"id": "unit", "value": series.unit},
        {"id": "custom.cellOptions", "value": cell},
        {"id": "thresholds", "value": {"mode": "absolute", "steps": steps(series.limit)}},
        {"id": "mappings", "value": mappings(series.states, language, no_value=no_value, dead=False)},
    ]
    if series.cell is Cell.BAR:
        properties.append({"id": "min", "value": 0})
        properties.append({"id": "fieldMinMax", "value": True})  # else hertz in the next column make watts a hair
    if series.most is not None:
        properties.append({"id": "max", "value": series.most})
    return {"matcher": {"id": "byName", "options": series.legend.in_(language)}, "properties": properties}


def _arrange(panel: Panel, language: Language) -> list[Json]:
    """Join the columns' frames by their labels, drop the time, name and order what is left."""
    single = len(panel.series) == 1
    values = {
        ("Value" if single else f"Value #{ascii_uppercase[place]}"): one.legend.in_(language)
        for place, one in enumerate(panel.series)
    }
    names = {label: label_name(label, language) for label in panel.rows} | values
    if len(set(names.values())) != len(names):
        raise BoardError(f"{panel.title.en}: two columns with one name")
    order = {name: place for place, name in enumerate(names)}
    options = {"excludeByName": {"Time": True}, "indexByName": order, "renameByName": names, "includeByName": {}}
    return [{"id": "merge", "options": {}}, {"id": "organize", "options": options}]


def _text(panel: Panel, language: Language) -> core.Panel:
    content = panel.content.in_(language) if panel.content is not None else ""
    base = _words(panel, language)
    return core.Text(**base, content=content, mode="markdown")


def _alerts(panel: Panel, language: Language) -> core.Panel:
    options: Json = {
        "viewMode": "list", "groupMode": "default", "groupBy": [], "maxItems": 20, "sortOrder": 3, "alertName": "",
        "dashboardAlerts": False, "alertInstanceLabelFilter": "", "showInactiveAlerts": False,
        "stateFilter": {"firing": True, "pending": True, "error": True, "noData": False, "normal": False},
    }  # fmt: skip
    base = _words(panel, language)
    return kinds.AlertList(**base, kind=panel.kind.value, options=options)


_DRAWERS = {
    Kind.STAT: _stat,
    Kind.LINES: _lines,
    Kind.BARS: _bars,
    Kind.DIAL: _dial,
    Kind.HEAT: _heat,
    Kind.TIMELINE: _timeline,
    Kind.HISTORY: _history,
    Kind.TABLE: _table,
    Kind.TEXT: _text,
    Kind.ALERTS: _alerts,
}
