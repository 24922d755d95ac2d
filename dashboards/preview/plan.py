"""The queries and the layout of a generated dashboard's picture, without I/O.

Grafana's rules apply where a picture depends on them: the step is the range divided by the points that fit into the
panel, never below the scrape interval; ``$__rate_interval`` is the larger of four scrapes and a step plus one scrape; a
variable on All is its own pattern, and selected values are a pattern of the values.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dashboards.preview.programs import PreviewError

Json = dict[str, Any]

GENERATED = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "generated")
GRID = 24
CELL, GAP = 30, 8  # pixels: the height of one grid line, and what is between panels
_NICE_SECONDS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600)
_ALERTS = 'ALERTS{severity!="none",instance=~"$instance|"}'  # for the list of alerts; Grafana has an API of its own
_VARIABLE = re.compile(r"\$(?:\{(\w+)(?::\w+)?\}|([a-z_]\w*))")  # $1 is a group of label_replace


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeRange:
    """The time range of a picture, in seconds since 1970, and how often Prometheus scraped."""

    start: float
    end: float
    scrape: float

    @property
    def seconds(self) -> float:
        """Return the length of the range in seconds."""
        return self.end - self.start


@dataclass(frozen=True, slots=True, kw_only=True)
class PanelQuery:
    """A query of a panel; ``step`` is None for an instant query."""

    panel: int
    ref: str
    expr: str
    start: float
    end: float
    step: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A picture: the panels in place, the queries, the annotations' queries, and the size in pixels."""

    dashboard: Json
    panels: tuple[Json, ...]
    requests: tuple[PanelQuery, ...]
    annotations: tuple[tuple[Json, PanelQuery], ...]
    alerts: PanelQuery
    chosen: tuple[tuple[str, str], ...]
    width: int
    height: int


def load(uid: str, language: str, folder: str = GENERATED) -> Json:
    """Return the JSON of a generated dashboard; raise PreviewError if there is none."""
    path = os.path.join(folder, language, f"{uid}.json")
    try:
        with open(path, encoding="utf-8") as file:
            data: Json = json.load(file)
    except FileNotFoundError as error:
        raise PreviewError(f"there is no dashboard {path}: run make generate, or see --help for the names") from error
    return data


def takes_all(dashboard: Json, variable: str) -> bool:
    """Return whether a variable of the dashboard has the All option."""
    return any(item["includeAll"] for item in _variables(dashboard) if item["name"] == variable)


def uids(language: str, folder: str = GENERATED) -> list[str]:
    """Return the uids of all generated dashboards."""
    try:
        names = os.listdir(os.path.join(folder, language))
    except FileNotFoundError as error:
        raise PreviewError(f"no dashboards in {folder}: run make generate") from error
    return sorted(name.removesuffix(".json") for name in names if name.endswith(".json"))


def plan(
    dashboard: Json, window: TimeRange, chosen: Mapping[str, Iterable[str]], *, width: int, unfold: bool
) -> Picture:
    """Return the plan of a dashboard; ``chosen`` holds values of variables, all others are on All."""
    panels = _in_place(dashboard, unfold=unfold)
    values = {
        variable["name"]: _value(variable, tuple(chosen.get(variable["name"], ())))
        for variable in _variables(dashboard)
    }
    unknown = set(chosen) - set(values)
    if unknown:
        raise PreviewError(f"the dashboard {dashboard['uid']} has no variable {', '.join(sorted(unknown))}")
    asked = tuple(
        _request(panel, target, window, values, width)
        for panel in panels for target in panel.get("targets", ())
    )  # fmt: skip
    marks = [annotation for annotation in dashboard["annotations"]["list"] if annotation["enable"]]
    noted = tuple((annotation, _note(annotation, place, window, values)) for place, annotation in enumerate(marks))
    lines = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in panels)
    return Picture(
        dashboard=dashboard, panels=panels, requests=asked, annotations=noted, width=width,
        alerts=PanelQuery(panel=-1, ref="alerts", expr=filled(_ALERTS, values, window, window.scrape), start=window.start,
                       end=window.end, step=None),
        chosen=tuple((variable["label"], ", ".join(chosen.get(variable["name"], ())) or "All") for variable in _variables(dashboard)),
        height=lines * (CELL + GAP),
    )  # fmt: skip


def step_of(window: TimeRange, points: float) -> float:
    """Return the seconds between two points: a round number, not below the scrape interval."""
    min_step = max(window.seconds / max(points, 1), window.scrape)
    return float(next((nice for nice in _NICE_SECONDS if nice >= min_step), _NICE_SECONDS[-1]))


def filled(expr: str, values: Mapping[str, str], window: TimeRange, step: float) -> str:
    """Return a query with variables and Grafana's macros replaced."""
    macros = {
        "__interval": f"{step:g}s",
        "__rate_interval": f"{max(step + window.scrape, 4 * window.scrape):g}s",
        "__rate_interval_ms": f"{1000 * max(step + window.scrape, 4 * window.scrape):.0f}",
        "__range": f"{math.ceil(window.seconds)}s",
        "__range_s": f"{math.ceil(window.seconds)}",
        "__from": f"{window.start * 1000:.0f}",
    }

    def put(found: re.Match[str]) -> str:
        name = found[1] or found[2]
        if name not in macros and name not in values:
            raise PreviewError(f"nothing is known to put in for ${name} of {expr}")
        return macros.get(name) or values[name]

    return _VARIABLE.sub(put, expr)


def _variables(dashboard: Json) -> list[Json]:
    return [variable for variable in dashboard["templating"]["list"] if variable["type"] == "query"]


def _value(variable: Json, chosen: tuple[str, ...]) -> str:
    if not chosen:
        return str(variable.get("allValue", ".+"))
    escaped = [re.sub(r"([\\^$.|?*+()\[\]{}])", r"\\\\\1", item) for item in chosen]
    return escaped[0] if len(escaped) == 1 else f"({'|'.join(escaped)})"


def _request(panel: Json, target: Json, window: TimeRange, values: Mapping[str, str], width: int) -> PanelQuery:
    pixels = width / GRID * panel["gridPos"]["w"]
    step = step_of(window, panel.get("maxDataPoints") or pixels)
    return PanelQuery(
        panel=panel["id"], ref=target["refId"], expr=filled(target["expr"], values, window, step),
        start=window.start, end=window.end, step=None if target["instant"] else step,
    )  # fmt: skip


def _note(annotation: Json, place: int, window: TimeRange, values: Mapping[str, str]) -> PanelQuery:
    min_step = float(annotation["target"]["interval"].removesuffix("s"))
    step = max(window.scrape, step_of(window, 300), min_step)
    expr = filled(annotation["target"]["expr"], values, window, step)
    return PanelQuery(panel=-1, ref=f"{place}", expr=expr, start=window.start, end=window.end, step=step)


def _in_place(dashboard: Json, *, unfold: bool) -> tuple[Json, ...]:
    """Return rows and panels in one list; panels below an unfolded row move down."""
    found: list[Json] = []
    pushed = 0
    for top in dashboard["panels"]:
        found.append(_lower(top, pushed))
        inside = top.get("panels") or []
        if inside and unfold:
            found[-1] |= {"collapsed": False, "panels": []}
            found += [_lower(item, pushed) for item in inside]
            bottom = max(item["gridPos"]["y"] + item["gridPos"]["h"] for item in inside)
            pushed += bottom - top["gridPos"]["y"] - top["gridPos"]["h"]
    return tuple(found)


def _lower(panel: Json, by: int) -> Json:
    return panel | {"gridPos": panel["gridPos"] | {"y": panel["gridPos"]["y"] + by}}
