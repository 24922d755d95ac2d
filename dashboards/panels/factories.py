"""The factories of panels; queries are passed as functions, so that every error names its panel.

A metric that is no longer in the catalogue, a missing label, or two units that differ raise ``DashboardError``, whose
message begins with the panel's title.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from alerts import panel_ids
from alerts.thresholds import Threshold
from dashboards.errors import DashboardError
from dashboards.no_data_text import Requires
from dashboards.panels.panel import Cell, DrillDown, NumberFormat, Panel, PanelKind, PanelSeries, ValueMapping
from exporter.errors import ShardwatchError
from exporter.model.text import Text
from exporter.promql import Expr, max_by, sum_by

MakeExpr = Callable[[], Expr]


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A series whose query is not built yet."""

    make_expr: MakeExpr
    legend: Text
    threshold: Threshold | None = None
    number_format: NumberFormat | None = None
    value_mappings: tuple[ValueMapping, ...] = ()
    cell: Cell = Cell.PLAIN
    max_value: float | None = None
    dashed: bool = False
    requires: tuple[Requires, ...] = ()
    summed: bool = False
    decimals: int | None = None


def series(
    make_expr: MakeExpr,
    legend: Text | str,
    *,
    number_format: NumberFormat | None = None,
    dashed: bool = False,
    requires: tuple[Requires, ...] = (),
    threshold: Threshold | None = None,
) -> Query:
    """Return a query and the name of its series, which may contain ``{{label}}`` templates.

    ``dashed`` marks a limit rather than a measured value. ``requires`` are added to the panel's. ``threshold`` replaces
    the panel's in a status history and in a stat.
    """
    name = legend if isinstance(legend, Text) else Text(legend, legend)
    return Query(
        make_expr=make_expr, legend=name, number_format=number_format, dashed=dashed, requires=requires,
        threshold=threshold,
    )  # fmt: skip


def column(
    make_expr: MakeExpr,
    title: Text,
    *,
    cell: Cell = Cell.PLAIN,
    threshold: Threshold | None = None,
    number_format: NumberFormat | None = None,
    value_mappings: tuple[ValueMapping, ...] = (),
    max_value: float | None = None,
    requires: tuple[Requires, ...] = (),
    summed: bool = False,
    decimals: int | None = None,
) -> Query:
    """Return a column of a table; the query is aggregated to the table's rows by maximum, or by sum.

    A trend (``Cell.TREND``) is a sparkline over the time range; all other cells show the current value.
    """
    return Query(
        make_expr=make_expr,
        legend=title,
        cell=cell,
        threshold=threshold,
        number_format=number_format,
        value_mappings=value_mappings,
        max_value=max_value,
        requires=requires,
        summed=summed,
        decimals=decimals,
    )


def _make(kind: PanelKind, title: Text, description: Text, queries: tuple[Query, ...], aggregate: Callable[[Query, Expr], Expr],
          *, panel_id: panel_ids.PanelId | None = None, rows: tuple[str, ...] = (), **more: object) -> Panel:  # fmt: skip
    built = []
    for query in queries:
        try:
            expr = aggregate(query, query.make_expr())
        except (ShardwatchError, AttributeError, KeyError) as error:
            raise DashboardError(f"{title.en}: {error}") from error
        built.append(
            PanelSeries(
                expr=expr, legend=query.legend, threshold=query.threshold, number_format=query.number_format, value_mappings=query.value_mappings, cell=query.cell,
                max_value=query.max_value, dashed=query.dashed, requires=query.requires, decimals=query.decimals,
            )
        )  # fmt: skip
    number = panel_id.number if panel_id is not None else None
    fields = {
        "kind": kind,
        "title": title,
        "description": description,
        "series": tuple(built),
        "number": number,
        "rows": rows,
    }
    return Panel(**fields, **more)  # type: ignore[arg-type]


def _unchanged(_query: Query, expr: Expr) -> Expr:
    return expr


def stat(
    title: Text,
    description: Text,
    *queries: Query,
    requires: tuple[Requires, ...] = (),
    threshold: Threshold | None = None,
    value_mappings: tuple[ValueMapping, ...] = (),
    width: int = 4,
    height: int = 4,
    decimals: int | None = None,
    panel_id: panel_ids.PanelId | None = None,
    drill_down: tuple[DrillDown, ...] = (),
) -> Panel:
    """Return a panel with one current value; it shows when the exporters are down."""
    return _make(
        PanelKind.STAT, title, description, queries, _unchanged,
        requires=requires, threshold=threshold, value_mappings=value_mappings, width=width, height=height, decimals=decimals, panel_id=panel_id, drill_down=drill_down,
    )  # fmt: skip


def time_series(
    title: Text,
    description: Text,
    *queries: Query,
    requires: tuple[Requires, ...] = (),
    threshold: Threshold | None = None,
    min_value: float | None = 0,
    max_value: float | None = None,
    stacked: bool = False,
    width: int = 8,
    height: int = 8,
    panel_id: panel_ids.PanelId | None = None,
    drill_down: tuple[DrillDown, ...] = (),
    traces: str = "",
) -> Panel:
    """Return graphs over time, with thresholds as lines.  ``traces`` is the label that names the traced service."""
    return _make(
        PanelKind.TIME_SERIES, title, description, queries, _unchanged,
        requires=requires, threshold=threshold, min_value=min_value, max_value=max_value, stacked=stacked, width=width, height=height, panel_id=panel_id,
        drill_down=drill_down, traces=traces,
    )  # fmt: skip


def bar_gauge(
    title: Text,
    description: Text,
    *queries: Query,
    requires: tuple[Requires, ...] = (),
    threshold: Threshold | None = None,
    min_value: float | None = 0,
    max_value: float | None = None,
    width: int = 8,
    height: int = 7,
    panel_id: panel_ids.PanelId | None = None,
    drill_down: tuple[DrillDown, ...] = (),
) -> Panel:
    """Return a panel with one bar per series."""
    return _make(
        PanelKind.BAR_GAUGE, title, description, queries, _unchanged,
        requires=requires, threshold=threshold, min_value=min_value, max_value=max_value, width=width, height=height, panel_id=panel_id, drill_down=drill_down,
    )  # fmt: skip


def gauge(
    title: Text,
    description: Text,
    *queries: Query,
    min_value: float,
    max_value: float,
    requires: tuple[Requires, ...] = (),
    threshold: Threshold | None = None,
    width: int = 4,
    height: int = 4,
    panel_id: panel_ids.PanelId | None = None,
) -> Panel:
    """Return a gauge: one value between two bounds; it shows when the exporters are down."""
    return _make(
        PanelKind.GAUGE, title, description, queries, _unchanged,
        min_value=min_value, max_value=max_value, requires=requires, threshold=threshold, width=width, height=height, panel_id=panel_id,
    )  # fmt: skip


def heatmap(
    title: Text,
    description: Text,
    make_expr: MakeExpr,
    *,
    requires: tuple[Requires, ...] = (),
    width: int = 8,
    height: int = 8,
    panel_id: panel_ids.PanelId | None = None,
) -> Panel:
    """Return a heatmap of a histogram: rates of its buckets, whose only label must be ``le``."""
    buckets = (series(make_expr, "{{le}}"),)
    return _make(
        PanelKind.HEATMAP,
        title,
        description,
        buckets,
        _buckets,
        requires=requires,
        width=width,
        height=height,
        panel_id=panel_id,
    )


def _buckets(_query: Query, expr: Expr) -> Expr:
    if expr.labels != frozenset({"le"}):
        raise DashboardError("a heat map takes buckets summed by le")
    return expr


def state_timeline(
    title: Text,
    description: Text,
    *queries: Query,
    value_mappings: tuple[ValueMapping, ...],
    requires: tuple[Requires, ...] = (),
    width: int = 12,
    height: int = 8,
    panel_id: panel_ids.PanelId | None = None,
    drill_down: tuple[DrillDown, ...] = (),
) -> Panel:
    """Return named states over time, one strip per series."""
    return _make(
        PanelKind.STATE_TIMELINE, title, description, queries, _unchanged,
        value_mappings=value_mappings, requires=requires, width=width, height=height, panel_id=panel_id, drill_down=drill_down,
    )  # fmt: skip


def status_history(
    title: Text,
    description: Text,
    *queries: Query,
    threshold: Threshold | None = None,
    min_value: float | None = None,
    max_value: float | None = None,
    value_mappings: tuple[ValueMapping, ...] = (),
    requires: tuple[Requires, ...] = (),
    width: int = 12,
    height: int = 8,
    panel_id: panel_ids.PanelId | None = None,
    drill_down: tuple[DrillDown, ...] = (),
) -> Panel:
    """Return coloured cells over time, one row per series."""
    return _make(
        PanelKind.STATUS_HISTORY, title, description, queries, _unchanged,
        threshold=threshold, min_value=min_value, max_value=max_value, value_mappings=value_mappings, requires=requires, width=width, height=height, panel_id=panel_id, drill_down=drill_down,
    )  # fmt: skip


def table(
    title: Text,
    description: Text,
    *columns: Query,
    rows: tuple[str, ...],
    sort: tuple[str, ...] = (),
    requires: tuple[Requires, ...] = (),
    width: int = 24,
    height: int = 9,
    panel_id: panel_ids.PanelId | None = None,
    drill_down: tuple[DrillDown, ...] = (),
) -> Panel:
    """Return a table: a row for each combination of labels, a column for each query.

    Only the first column must have data: a GPU that lacks a signal keeps its row, with an empty cell.
    """

    def aggregate(query: Query, expr: Expr) -> Expr:
        return (sum_by if query.summed else max_by)(expr, *rows)

    return _make(
        PanelKind.TABLE, title, description, columns, aggregate,
        rows=rows, sort=sort, requires=requires, width=width, height=height, panel_id=panel_id, drill_down=drill_down,
    )  # fmt: skip


def text_panel(title: Text, description: Text, content: Text, *, width: int = 24, height: int = 3) -> Panel:
    """Return a panel of Markdown text."""
    return Panel(
        kind=PanelKind.TEXT, title=title, description=description, content=content, width=width, height=height
    )


def alert_list(title: Text, description: Text, *, width: int = 8, height: int = 8) -> Panel:
    """Return Grafana's list of firing and pending alerts."""
    return Panel(kind=PanelKind.ALERTS, title=title, description=description, width=width, height=height)
