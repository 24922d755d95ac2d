"""The dashboard around its panels: variables, annotations and links, as grafanalib's objects."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from grafanalib import core

from dashboards.panels import grafanalib_types, normalise
from dashboards.panels.annotations import Annotation, annotation_json
from dashboards.panels.convert import convert
from dashboards.panels.panel import Panel
from dashboards.variables import DATA_SOURCE
from exporter.catalog import metrics as m
from exporter.model.text import Language, Text

Json = dict[str, Any]

TAG = "shardwatch"
_DATA_SOURCE = Text("Data source", "数据源")
_JOB, _INSTANCE = 'job=~"$job"', 'job=~"$job",instance=~"$instance"'
_NAMES: dict[str, Text] = {
    "job": Text("Job", "作业"),
    "instance": Text("Instance", "节点"),
    "model": Text("Model", "模型"),
    "replica": Text("Replica", "副本"),
    "gpu": Text("GPU", "GPU"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A panel or a row's title with its position in the grid of 24 columns."""

    panel: Panel | None
    title: Text
    number: int
    left: int
    top: int
    width: int
    height: int
    collapsed: bool = False
    inside: tuple[Placed, ...] = ()


def render(
    *,
    uid: str,
    title: Text,
    description: Text,
    version: int,
    placed: tuple[Placed, ...],
    annotations: tuple[Annotation, ...],
    language: Language,
    every_node: bool = True,
) -> Json:
    """Return the dashboard as Grafana's classic JSON, schema 42.

    Without ``every_node`` the node variable has no All option: Grafana selects the first node, and more can be added.
    """
    made = core.Dashboard(
        title=title.in_(language),
        description=description.in_(language),
        uid=uid,
        version=version,
        tags=[TAG],
        editable=False,
        refresh="30s",
        timezone="browser",
        time=core.Time("now-1h", "now"),
        graphTooltip=core.GRAPH_TOOLTIP_MODE_SHARED_CROSSHAIR,
        panels=[_place(item, language) for item in placed],
        templating=core.Templating(list=_variables(language, every_node=every_node)),
        annotations=core.Annotations(list=[annotation_json(annotation, language) for annotation in annotations]),
        links=[_siblings(language)],
    )
    return normalise.dashboard(normalise.plain(made))


def _place(placed: Placed, language: Language) -> core.Panel:
    grid = core.GridPos(h=placed.height, w=placed.width, x=placed.left, y=placed.top)
    if placed.panel is None:
        inside = [_place(item, language) for item in placed.inside]
        row = core.RowPanel(title=placed.title.in_(language), collapsed=placed.collapsed, panels=inside)
        row.gridPos, row.id = grid, placed.number
        return row
    made = convert(placed.panel, language)
    made.gridPos, made.id = grid, placed.number
    return made


def _siblings(language: Language) -> core.DashboardLink:
    title = Text("Shardwatch dashboards", "Shardwatch 仪表盘").in_(language)
    return core.DashboardLink(
        title=title, tags=[TAG], type="dashboards", asDropdown=True, includeVars=True, keepTime=True,
    )  # fmt: skip


def _variables(language: Language, *, every_node: bool) -> list[core.Template]:
    source = grafanalib_types.Variable(
        name="datasource", label=_DATA_SOURCE.in_(language), type="datasource", query="prometheus", refresh=1
    )
    build, llm_up, gpu_up = m.SHARDWATCH_BUILD_INFO.name, m.LLM_UP.name, m.GPU_UP.name
    queries = {
        "job": f"label_values({build}, job)",
        "instance": f"label_values({build}{{{_JOB}}}, instance)",
        "model": f"label_values({llm_up}{{{_INSTANCE}}}, model)",
        "replica": f'label_values({llm_up}{{{_INSTANCE},model=~"$model"}}, replica)',
        "gpu": f"label_values({gpu_up}{{{_INSTANCE}}}, gpu)",
    }
    with_all = {name: every_node or name != "instance" for name in queries}
    return [source, *(_variable(name, query, language, with_all=with_all[name]) for name, query in queries.items())]


def _variable(name: str, query: str, language: Language, *, with_all: bool) -> core.Template:
    return grafanalib_types.Variable(
        name=name,
        label=_NAMES[name].in_(language),
        type="query",
        query=query,
        dataSource=DATA_SOURCE,
        refresh=2,  # on every change of the time range, so that new nodes are listed
        sort=3 if name == "gpu" else 1,
        includeAll=with_all,
        multi=True,
        allValue=".*"
        if name in {"model", "replica", "gpu"}
        else ".+",  # info metrics of free GPUs have an empty replica
    )
