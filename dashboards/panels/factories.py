"""The factories that boards call; queries are given as functions, so that whatever is wrong names the panel.

A metric that vanished from the catalogue, a label that was dropped, two units that do not agree: each stops the build
with ``DashboardError``, whose message begins with the panel's title.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from alerts import panel_ids
from alerts.text import Text
from alerts.thresholds import Threshold
from dashboards.errors import DashboardError
from dashboards.no_data_text import Requires
from dashboards.panels.panel import Cell, DrillDown, NumberFormat, Panel, PanelKind, Series, ValueMapping
from exporter.errors import ShardwatchError
from exporter.promql import Expr, max_by, sum_by

MakeExpr = Callable[[], Expr]


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A series whose query has not been made yet."""

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
) -> Query:
    """Return one query and the name of its series, ``{{label}}`` templates included.

    ``dashed`` draws a limit rather than a figure.  ``requires`` are beyond the panel's.
    """
    panel_id = legend if isinstance(legend, Text) else Text(legend, legend)
    return Query(make_expr=make_expr, legend=panel_id, number_format=number_format, dashed=dashed, requires=requires)


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
    """Return one column of a table; the query is brought to the table's rows by the largest value, or the sum.

    A trend (``Cell.TREND``) is a small curve over the chosen time; all other cells are of now.
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


def _make(kind: PanelKind, title: Text, description: Text, queries: tuple[Query, ...], bring: Callable[[Query, Expr], Expr],
          *, panel_id: panel_ids.PanelId | None = None, rows: tuple[str, ...] = (), **more: object) -> Panel:  # fmt: skip
    made = []
    for one in queries:
        try:
            expr = bring(one, one.make_expr())
        except (ShardwatchError, AttributeError, KeyError) as error:
            raise DashboardError(f"{title.en}: {error}") from error
        made.append(
            Series(
                expr=expr, legend=one.legend, threshold=one.threshold, number_format=one.number_format, value_mappings=one.value_mappings, cell=one.cell,
                max_value=one.max_value, dashed=one.dashed, requires=one.requires, decimals=one.decimals,
            )
        )  # fmt: skip
    number = panel_id.number if panel_id is not None else None
    given = {
        "kind": kind,
        "title": title,
        "description": description,
        "series": tuple(made),
        "number": number,
        "rows": rows,
    }
    return Panel(**given, **more)  # type: ignore[arg-type]


def _as_is(_one: Query, expr: Expr) -> Expr:
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
    """Return a panel with one current figure; it says when the exporters are down."""
    return _make(
        PanelKind.STAT, title, description, queries, _as_is,
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
    """Curves over time; thresholds are lines.  ``traces`` is the label that names the service to look for."""
    return _make(
        PanelKind.TIME_SERIES, title, description, queries, _as_is,
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
    """Draw one bar a series, side by side: the one that differs stands out."""
    return _make(
        PanelKind.BAR_GAUGE, title, description, queries, _as_is,
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
    """Return a panel with one figure between two bounds; it says when the exporters are down."""
    return _make(
        PanelKind.GAUGE, title, description, queries, _as_is,
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
    """Where observations lie over time: rates of a histogram's buckets, which must carry ``le`` and nothing else."""
    one = (series(make_expr, "{{le}}"),)
    return _make(
        PanelKind.HEATMAP,
        title,
        description,
        one,
        _buckets,
        requires=requires,
        width=width,
        height=height,
        panel_id=panel_id,
    )


def _buckets(_one: Query, expr: Expr) -> Expr:
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
    """Named states over time, one strip a series."""
    return _make(
        PanelKind.STATE_TIMELINE, title, description, queries, _as_is,
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
    """Draw a coloured cell for each series and moment: a heat map whose rows have names."""
    return _make(
        PanelKind.STATUS_HISTORY, title, description, queries, _as_is,
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
    """Return a row for each combination of labels and a column for each query.

    Only the first column must have data: a card that lacks a signal keeps its row, with an empty cell.
    """

    def bring(one: Query, expr: Expr) -> Expr:
        return (sum_by if one.summed else max_by)(expr, *rows)

    return _make(
        PanelKind.TABLE, title, description, columns, bring,
        rows=rows, sort=sort, requires=requires, width=width, height=height, panel_id=panel_id, drill_down=drill_down,
    )  # fmt: skip


def text_panel(title: Text, description: Text, content: Text, *, width: int = 24, height: int = 3) -> Panel:
    """Words that help to read the board; Markdown."""
    return Panel(
        kind=PanelKind.TEXT, title=title, description=description, content=content, width=width, height=height
    )


def alert_list(title: Text, description: Text, *, width: int = 8, height: int = 8) -> Panel:
    """List the alerts that fire or are pending, as Grafana knows them."""
    return Panel(kind=PanelKind.ALERTS, title=title, description=description, width=width, height=height)
