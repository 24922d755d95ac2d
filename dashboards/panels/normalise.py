"""Convert grafanalib's output, its schema 12, into classic schema 42, as Grafana 13 reads it.

Keys that Grafana knows are kept; nulls, keys of old versions and meaningless empty lists are removed. A comment beside
each conversion states what it prevents.
"""

from __future__ import annotations

import json
from typing import Any

from grafanalib._gen import DashboardEncoder

Json = dict[str, Any]

SCHEMA = 42  # with an older number Grafana runs thirty needless migrations
_BOARD = (
    "annotations", "description", "editable", "graphTooltip", "id", "links", "panels", "refresh", "schemaVersion",
    "tags", "templating", "time", "timepicker", "timezone", "title", "uid", "version",
)  # fmt: skip
_PANEL = (
    "datasource", "description", "fieldConfig", "gridPos", "id", "maxDataPoints", "options", "targets", "title", "transformations",
    "type",
)  # fmt: skip
_ROW = ("collapsed", "gridPos", "id", "panels", "title", "type")
_TARGET = ("datasource", "expr", "format", "instant", "legendFormat", "refId")


def plain(thing: object) -> Json:
    """Return grafanalib's output as plain data."""
    data: Json = json.loads(json.dumps(thing, cls=DashboardEncoder))
    return data


def dashboard(data: Json) -> Json:
    """Return the converted JSON of a dashboard."""
    kept = {key: data[key] for key in _BOARD if key in data}
    kept["schemaVersion"] = SCHEMA
    kept["id"] = None  # an id would overwrite another dashboard; the uid identifies
    kept["timepicker"] = {}
    kept["panels"] = [_row(panel) if panel["type"] == "row" else _panel(panel) for panel in kept["panels"]]
    kept["links"] = [_without_nulls(item) for item in kept["links"]]
    return kept


def _row(data: Json) -> Json:
    kept = {key: data[key] for key in _ROW}
    kept["panels"] = [_panel(panel) for panel in kept["panels"]]
    return kept


def _panel(data: Json) -> Json:
    kept = {key: data[key] for key in _PANEL if data.get(key) is not None}
    kept["targets"] = [_target(target) for target in kept.get("targets", [])]
    if kept["type"] in {"text", "alertlist"}:  # they have no queries
        for key in ("targets", "datasource", "fieldConfig"):
            kept.pop(key, None)
    if not kept.get("transformations"):
        kept.pop("transformations", None)
    config = kept.get("fieldConfig")
    if config is not None:
        config["defaults"] = _defaults(config["defaults"])
        config.setdefault("overrides", [])
    given: Json = _without_nulls(kept)
    if config is not None:
        _restore_base(given["fieldConfig"])
    return given


def _defaults(defaults: Json) -> Json:
    custom = defaults.get("custom")
    if custom is not None:
        if custom.get("scaleDistribution", {}).get("type") == "linear":
            custom["scaleDistribution"] = {"type": "linear"}  # Grafana reads "log": 2 as a logarithmic axis
        if "stacking" in custom:
            custom["stacking"].setdefault("group", "A")
    if not defaults.get("thresholds", {}).get("steps"):
        defaults.pop("thresholds", None)  # without a base step Grafana draws a red line at 80
    if not defaults.get("links"):
        defaults.pop("links", None)
    if not defaults.get("custom"):
        defaults.pop("custom", None)
    return defaults


def _restore_base(config: Json) -> None:
    """Set the lowest step's value to null, which stands for minus infinity."""
    for thresholds in _thresholds(config):
        thresholds["steps"][0].setdefault("value", None)


def _thresholds(config: Json) -> list[Json]:
    found = [config["defaults"]["thresholds"]] if "thresholds" in config["defaults"] else []
    for override in config["overrides"]:
        found += [item["value"] for item in override["properties"] if item["id"] == "thresholds"]
    return found


def _target(data: Json) -> Json:
    kept = {key: data[key] for key in _TARGET}
    kept["range"] = not kept["instant"]  # else Grafana runs a table's query over the range as well
    kept["editorMode"] = "code"
    return kept


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value
