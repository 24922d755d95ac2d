"""The factories that boards call; queries are given as functions, so that whatever is wrong names the panel.

A metric that vanished from the catalogue, a label that was dropped, two units that do not agree: each stops the build
with ``BoardError``, whose message begins with the panel's title.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from alerts import panel_ids
from alerts.text import Text
from alerts.thresholds import Threshold
from dashboards.errors import BoardError
from dashboards.no_data_text import Needs
from dashboards.panels.record import Cell, Drill, Kind, Panel, Series, Shown, State
from dashboards.variables import or_dead
from exporter.errors import ShardwatchError
from exporter.promql import Expr, max_by, sum_by

Ask = Callable[[], Expr]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A series whose query has not been made yet."""

    ask: Ask
    legend: Text
    limit: Threshold | None = None
    shown: Shown | None = None
    states: tuple[State, ...] = ()
    cell: Cell = Cell.PLAIN
    most: float | None = None
    dashed: bool = False
    needs: tuple[Needs, ...] = ()
    summed: bool = False
    decimals: int | None = None


def series(
    ask: Ask, legend: Text | str, *, shown: Shown | None = None, dashed: bool = False, needs: tuple[Needs, ...] = ()
) -> Asked:
    """Give one query and the name of its series, ``{{label}}`` templates included.

    ``dashed`` draws a limit rather than a figure.  ``needs`` are beyond the panel's.
    """
    named = legend if isinstance(legend, Text) else Text(legend, legend)
    return Asked(ask=ask, legend=named, shown=shown, dashed=dashed, needs=needs)


def column(
    ask: Ask,
    title: Text,
    *,
    cell: Cell = Cell.PLAIN,
    limit: Threshold | None = None,
    shown: Shown | None = None,
    states: tuple[State, ...] = (),
    most: float | None = None,
    needs: tuple[Needs, ...] = (),
    summed: bool = False,
    decimals: int | None = None,
) -> Asked:
    """Give one column of a table; the query is brought to the table's rows by the largest value, or the sum.

    A trend (``Cell.TREND``) is a small curve over the chosen time; all other cells are of now.
    """
    return Asked(
        ask=ask,
        legend=title,
        cell=cell,
        limit=limit,
        shown=shown,
        states=states,
        most=most,
        needs=needs,
        summed=summed,
        decimals=decimals,
    )


def _make(kind: Kind, title: Text, shows: Text, asked: tuple[Asked, ...], bring: Callable[[Asked, Expr], Expr],
          *, named: panel_ids.Panel | None = None, rows: tuple[str, ...] = (), **more: object) -> Panel:  # fmt: skip
    made = []
    for one in asked:
        try:
            expr = bring(one, one.ask())
        except (ShardwatchError, AttributeError, KeyError) as error:
            raise BoardError(f"{title.en}: {error}") from error
        made.append(
            Series(
                expr=expr, legend=one.legend, limit=one.limit, shown=one.shown, states=one.states, cell=one.cell,
                most=one.most, dashed=one.dashed, needs=one.needs, decimals=one.decimals,
            )
        )  # fmt: skip
    number = named.number if named is not None else None
    return Panel(kind=kind, title=title, shows=shows, series=tuple(made), number=number, rows=rows, **more)  # type: ignore[arg-type]


def _as_is(_one: Asked, expr: Expr) -> Expr:
    return expr


def stat(
    title: Text,
    shows: Text,
    *asked: Asked,
    needs: tuple[Needs, ...] = (),
    limit: Threshold | None = None,
    states: tuple[State, ...] = (),
    width: int = 4,
    height: int = 4,
    decimals: int | None = None,
    named: panel_ids.Panel | None = None,
    drill: tuple[Drill, ...] = (),
) -> Panel:
    """One figure now, large; says so when the exporters are dead."""
    return _make(
        Kind.STAT, title, shows, asked, lambda _one, expr: or_dead(expr),
        needs=needs, limit=limit, states=states, width=width, height=height, decimals=decimals, named=named, drill=drill,
    )  # fmt: skip


def lines(
    title: Text,
    shows: Text,
    *asked: Asked,
    needs: tuple[Needs, ...] = (),
    limit: Threshold | None = None,
    least: float | None = 0,
    most: float | None = None,
    stacked: bool = False,
    width: int = 8,
    height: int = 8,
    named: panel_ids.Panel | None = None,
    drill: tuple[Drill, ...] = (),
    traces: str = "",
) -> Panel:
    """Curves over time; thresholds are lines.  ``traces`` is the label that names the service to look for."""
    return _make(
        Kind.LINES, title, shows, asked, _as_is,
        needs=needs, limit=limit, least=least, most=most, stacked=stacked, width=width, height=height, named=named,
        drill=drill, traces=traces,
    )  # fmt: skip


def bars(
    title: Text,
    shows: Text,
    *asked: Asked,
    needs: tuple[Needs, ...] = (),
    limit: Threshold | None = None,
    least: float | None = 0,
    most: float | None = None,
    width: int = 8,
    height: int = 7,
    named: panel_ids.Panel | None = None,
    drill: tuple[Drill, ...] = (),
) -> Panel:
    """Draw one bar a series, side by side: the one that differs stands out."""
    return _make(
        Kind.BARS, title, shows, asked, _as_is,
        needs=needs, limit=limit, least=least, most=most, width=width, height=height, named=named, drill=drill,
    )  # fmt: skip


def dial(
    title: Text,
    shows: Text,
    *asked: Asked,
    least: float,
    most: float,
    needs: tuple[Needs, ...] = (),
    limit: Threshold | None = None,
    width: int = 4,
    height: int = 4,
    named: panel_ids.Panel | None = None,
) -> Panel:
    """One figure between two bounds; says so when the exporters are dead."""
    return _make(
        Kind.DIAL, title, shows, asked, lambda _one, expr: or_dead(expr),
        least=least, most=most, needs=needs, limit=limit, width=width, height=height, named=named,
    )  # fmt: skip


def heat(
    title: Text,
    shows: Text,
    ask: Ask,
    *,
    needs: tuple[Needs, ...] = (),
    width: int = 8,
    height: int = 8,
    named: panel_ids.Panel | None = None,
) -> Panel:
    """Where observations lie over time: rates of a histogram's buckets, which must carry ``le`` and nothing else."""
    one = (series(ask, "{{le}}"),)
    return _make(Kind.HEAT, title, shows, one, _buckets, needs=needs, width=width, height=height, named=named)


def _buckets(_one: Asked, expr: Expr) -> Expr:
    if expr.labels != frozenset({"le"}):
        raise BoardError("a heat map takes buckets summed by le")
    return expr


def timeline(
    title: Text,
    shows: Text,
    *asked: Asked,
    states: tuple[State, ...],
    needs: tuple[Needs, ...] = (),
    width: int = 12,
    height: int = 8,
    named: panel_ids.Panel | None = None,
    drill: tuple[Drill, ...] = (),
) -> Panel:
    """Named states over time, one strip a series."""
    return _make(
        Kind.TIMELINE, title, shows, asked, _as_is,
        states=states, needs=needs, width=width, height=height, named=named, drill=drill,
    )  # fmt: skip


def history(
    title: Text,
    shows: Text,
    *asked: Asked,
    limit: Threshold | None = None,
    least: float | None = None,
    most: float | None = None,
    states: tuple[State, ...] = (),
    needs: tuple[Needs, ...] = (),
    width: int = 12,
    height: int = 8,
    named: panel_ids.Panel | None = None,
    drill: tuple[Drill, ...] = (),
) -> Panel:
    """Draw a coloured cell for each series and moment: a heat map whose rows have names."""
    return _make(
        Kind.HISTORY, title, shows, asked, _as_is,
        limit=limit, least=least, most=most, states=states, needs=needs, width=width, height=height, named=named, drill=drill,
    )  # fmt: skip


def table(
    title: Text,
    shows: Text,
    *columns: Asked,
    rows: tuple[str, ...],
    sort: tuple[str, ...] = (),
    needs: tuple[Needs, ...] = (),
    width: int = 24,
    height: int = 9,
    named: panel_ids.Panel | None = None,
    drill: tuple[Drill, ...] = (),
) -> Panel:
    """Give a row for each combination of labels and a column for each query.

    Only the first column must have data: a card that lacks a signal keeps its row, with an empty cell.
    """

    def bring(one: Asked, expr: Expr) -> Expr:
        return (sum_by if one.summed else max_by)(expr, *rows)

    return _make(
        Kind.TABLE, title, shows, columns, bring,
        rows=rows, sort=sort, needs=needs, width=width, height=height, named=named, drill=drill,
    )  # fmt: skip


def text(title: Text, shows: Text, content: Text, *, width: int = 24, height: int = 3) -> Panel:
    """Words that help to read the board; Markdown."""
    return Panel(kind=Kind.TEXT, title=title, shows=shows, content=content, width=width, height=height)


def alert_list(title: Text, shows: Text, *, width: int = 8, height: int = 8) -> Panel:
    """List the alerts that fire or are pending, as Grafana knows them."""
    return Panel(kind=Kind.ALERTS, title=title, shows=shows, width=width, height=height)
