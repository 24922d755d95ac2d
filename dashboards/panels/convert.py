"""Convert typed panels into grafanalib's objects, in one language."""

from __future__ import annotations

from string import ascii_uppercase
from typing import Any

from grafanalib import core

from alerts.thresholds import Threshold
from dashboards.no_data_text import EXPORTER_DOWN_TEXT
from dashboards.panels import grafanalib_types, tables
from dashboards.panels.field_config import exporter_down_field, link, mappings, steps
from dashboards.panels.panel import Cell, Colour, Panel, PanelKind, PanelSeries
from dashboards.trace_links import trace_link
from dashboards.variables import DATA_SOURCE
from exporter.model.text import Language

Json = dict[str, Any]

# Instant queries: a series that has ended must not be shown with its last value.
_INSTANT = {PanelKind.STAT, PanelKind.BAR_GAUGE, PanelKind.GAUGE, PanelKind.TABLE}
_REDUCE: Json = {"calcs": ["lastNotNull"], "fields": "", "values": False}
_TOOLTIP: Json = {"mode": "multi", "sort": "desc", "hideZeros": False}


def convert(panel: Panel, language: Language) -> core.Panel:
    """Return the grafanalib object of a panel, without its grid position."""
    converted: core.Panel = _CONVERTERS[panel.kind](panel, language)
    return converted


def _texts(panel: Panel, language: Language) -> Json:
    return {
        "title": panel.title.in_(language),
        "description": panel.description.in_(language),
        "maxDataPoints": None,  # grafanalib's 100 hides spikes in long time ranges
        "id": panel.number,
    }


def _base(panel: Panel, language: Language) -> Json:
    targets = [_target(panel, place, series, language) for place, series in enumerate(panel.series)]
    if panel.exporter_down is not None:
        down = PanelSeries(expr=panel.exporter_down, legend=EXPORTER_DOWN_TEXT)
        targets.append(_target(panel, len(targets), down, language))
    return _texts(panel, language) | {"dataSource": DATA_SOURCE, "targets": targets}


def _target(panel: Panel, place: int, series: PanelSeries, language: Language) -> core.Target:
    trend = series.cell is Cell.TREND
    formats = {PanelKind.TABLE: "table", PanelKind.HEATMAP: "heatmap"}
    return core.Target(
        expr=str(series.expr),
        legendFormat=series.legend.in_(language),
        refId=ascii_uppercase[place],
        instant=panel.kind in _INSTANT and not trend,
        format="time_series" if trend else formats.get(panel.kind, "time_series"),
        intervalFactor=1,
        datasource=DATA_SOURCE,
    )


def _defaults(panel: Panel, language: Language, *, colour: str = "thresholds") -> Json:
    no_value = panel.no_value.in_(language)
    return {
        "color": {"mode": colour},
        "unit": panel.series[0].unit,
        "min": panel.min_value,
        "max": panel.max_value,
        "decimals": panel.decimals,
        "noValue": panel.no_data.in_(language),
        "mappings": mappings(panel.value_mappings, language, no_value=no_value),
        "thresholds": {"mode": "absolute", "steps": steps(panel.threshold)},
        "links": [
            *(link(drill_down, language, table=False) for drill_down in panel.drill_down),
            *((trace_link(panel.traces, language),) if panel.traces else ()),
        ],
    }


def _down_override(panel: Panel, language: Language) -> list[Json]:
    return [exporter_down_field(ascii_uppercase[len(panel.series)], language)]


def _stat(panel: Panel, language: Language) -> core.Panel:
    several = len(panel.series) > 1 or "{{" in panel.series[0].legend.en
    return core.Stat(
        **_base(panel, language),
        graphMode="none",
        colorMode="background_solid" if panel.value_mappings or panel.threshold else "value",
        textMode="value_and_name" if several else "value",
        reduceCalc="lastNotNull",
        noValue=panel.no_value.in_(language),
        format=panel.series[0].unit,
        extraJson={
            "fieldConfig": {
                "defaults": _defaults(panel, language),
                "overrides": [*_own_thresholds(panel), *_down_override(panel, language)],
            },
            "options": {
                "wideLayout": True,
                "showPercentChange": False,
                "percentChangeColorMode": "standard",
                "text": {"titleSize": _TITLE_SIZE, "valueSize": _VALUE_SIZE},
            },
        },
    )


def _time_series(panel: Panel, language: Language) -> core.Panel:
    defaults = _defaults(
        panel, language, colour="palette-classic"
    )  # by index: by name, several of eight GPUs share a colour
    style = {"mode": "dashed" if panel.threshold is not None else "off"}
    defaults["custom"] = {"thresholdsStyle": style, "stacking": {"mode": "normal" if panel.stacked else "none"}}
    if panel.threshold is not None and panel.max_value is None:
        defaults["custom"]["axisSoftMax"] = _soft_max(panel.threshold)
    overrides = [_limit_line(place) for place, series in enumerate(panel.series) if series.dashed]
    overrides += _currencies(panel)
    return core.TimeSeries(
        **_base(panel, language),
        unit=panel.series[0].unit,
        fillOpacity=30 if panel.stacked else 0,
        stacking={"mode": "normal" if panel.stacked else "none", "group": "A"},
        legendCalcs=["lastNotNull", "max"] if panel.width >= _WIDE else [],  # in a list each series then takes a line
        legendDisplayMode="table" if panel.width >= _WIDE else "list",
        legendPlacement="right" if panel.width >= _WIDE else "bottom",
        overrides=overrides,
        showPoints="never",
        extraJson={
            "fieldConfig": {"defaults": defaults},
            "options": {"tooltip": _TOOLTIP, "legend": {"showLegend": True}},
        },
    )


_TITLE_SIZE, _VALUE_SIZE = 14, 26  # pixels; by itself Grafana fills the panel, and all figures shout
_CURRENCIES = ("USD", "EUR", "GBP", "CNY", "JPY", "INR")  # of those that Grafana has as units
_WIDE = 12
_MAX_BAR_HEIGHT = 56  # pixels; a single bar would fill the panel
_MAX_CELLS = 100  # Grafana draws no more cells than half of the panel's pixels


def _soft_max(threshold: Threshold) -> float:
    """Return the axis' soft maximum that keeps thresholds visible: an axis of zeros alone ends at 100, or 10000 %."""
    return round(max(value for _, value in threshold.tiers()) * 1.2, 6)


def _limit_line(place: int) -> Json:
    properties = [
        {"id": "custom.lineStyle", "value": {"dash": [8, 8], "fill": "dash"}},
        {"id": "color", "value": {"mode": "fixed", "fixedColor": Colour.OFF.value}},
    ]
    return {"matcher": {"id": "byFrameRefID", "options": ascii_uppercase[place]}, "properties": properties}


def _bar_gauge(panel: Panel, language: Language) -> core.Panel:
    options: Json = {
        "displayMode": "basic", "valueMode": "color", "namePlacement": "auto", "showUnfilled": True, "sizing": "manual",
        "minVizWidth": 8, "minVizHeight": 16, "maxVizHeight": _MAX_BAR_HEIGHT, "orientation": "horizontal",
        "reduceOptions": _REDUCE, "legend": _no_legend(),
    }  # fmt: skip
    return grafanalib_types.BarGauge(
        **_base(panel, language), kind=panel.kind.value, options=options, defaults=_defaults(panel, language),
        overrides=_currencies(panel),
    )  # fmt: skip


def _currencies(panel: Panel) -> list[Json]:
    """Return the units of money by the currency at the end of a series' name; other currencies stay plain numbers."""
    if not any(series.legend.en.endswith("{{currency}}") for series in panel.series):
        return []
    return [
        {
            "matcher": {"id": "byRegexp", "options": f"/ {currency}$/"},
            "properties": [{"id": "unit", "value": f"currency{currency}"}],
        }
        for currency in _CURRENCIES
    ]


def _no_legend() -> Json:
    return {"showLegend": False, "displayMode": "list", "placement": "bottom", "calcs": []}


def _gauge(panel: Panel, language: Language) -> core.Panel:
    options: Json = {
        "orientation": "auto", "showThresholdLabels": False, "showThresholdMarkers": True, "sizing": "auto",
        "minVizWidth": 75, "minVizHeight": 75, "reduceOptions": _REDUCE,
    }  # fmt: skip
    return grafanalib_types.Gauge(
        **_base(panel, language),
        kind=panel.kind.value,
        options=options,
        defaults=_defaults(panel, language),
        overrides=_down_override(panel, language),
    )


def _heatmap(panel: Panel, language: Language) -> core.Panel:
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
    return grafanalib_types.Heatmap(
        **_base(panel, language), kind=panel.kind.value, options=options, defaults=defaults | {"unit": "cps"}
    )


def _state_timeline(panel: Panel, language: Language) -> core.Panel:
    return core.StateTimeline(
        **_base(panel, language),
        showValue="never",
        mergeValues=True,
        extraJson={
            "fieldConfig": {"defaults": _defaults(panel, language)},
            "options": {"legend": {"showLegend": True, "calcs": []}, "tooltip": _TOOLTIP, "alignValue": "left"},
        },
    )


def _status_history(panel: Panel, language: Language) -> core.Panel:
    options: Json = {
        "rowHeight": 0.9, "colWidth": 0.95, "showValue": "never", "tooltip": _TOOLTIP,
        "legend": {"showLegend": True, "displayMode": "list", "placement": "bottom", "calcs": []},
    }  # fmt: skip
    defaults = _defaults(panel, language) | {"custom": {"fillOpacity": 85, "lineWidth": 0}}
    if panel.threshold is None and not panel.value_mappings:
        defaults["color"] = {"mode": "continuous-BlYlRd"}
    base = _base(panel, language) | {"maxDataPoints": _MAX_CELLS}
    return grafanalib_types.StatusHistory(
        **base, kind=panel.kind.value, options=options, defaults=defaults, overrides=_own_thresholds(panel)
    )


def _own_thresholds(panel: Panel) -> list[Json]:
    return [
        _own_threshold(place, series.threshold)
        for place, series in enumerate(panel.series)
        if series.threshold is not None
    ]


def _own_threshold(place: int, threshold: Threshold) -> Json:
    properties = [{"id": "thresholds", "value": {"mode": "absolute", "steps": steps(threshold)}}]
    return {"matcher": {"id": "byFrameRefID", "options": ascii_uppercase[place]}, "properties": properties}


def _table(panel: Panel, language: Language) -> core.Panel:
    base = _base(panel, language) | {"transformations": tables.arrange(panel, language)}
    if any(series.cell is Cell.TREND for series in panel.series):
        base["maxDataPoints"] = tables.TREND_POINTS
    return grafanalib_types.TablePanel(
        **base,
        kind=panel.kind.value,
        options=tables.options(panel, language),
        defaults=tables.defaults(panel, language),
        overrides=tables.overrides(panel, language),
    )


def _text(panel: Panel, language: Language) -> core.Panel:
    content = panel.content.in_(language) if panel.content is not None else ""
    base = _texts(panel, language)
    return core.Text(**base, content=content, mode="markdown")


def _alert_list(panel: Panel, language: Language) -> core.Panel:
    options: Json = {
        "viewMode": "list", "groupMode": "default", "groupBy": [], "maxItems": 20, "sortOrder": 3, "alertName": "",
        "dashboardAlerts": False, "alertInstanceLabelFilter": "", "showInactiveAlerts": False,
        "stateFilter": {"firing": True, "pending": True, "error": True, "noData": False, "normal": False},
    }  # fmt: skip
    base = _texts(panel, language)
    return grafanalib_types.AlertList(**base, kind=panel.kind.value, options=options)


_CONVERTERS = {
    PanelKind.STAT: _stat,
    PanelKind.TIME_SERIES: _time_series,
    PanelKind.BAR_GAUGE: _bar_gauge,
    PanelKind.GAUGE: _gauge,
    PanelKind.HEATMAP: _heatmap,
    PanelKind.STATE_TIMELINE: _state_timeline,
    PanelKind.STATUS_HISTORY: _status_history,
    PanelKind.TABLE: _table,
    PanelKind.TEXT: _text,
    PanelKind.ALERTS: _alert_list,
}
