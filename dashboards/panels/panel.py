"""Panels as typed records, with the checks of their fields."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from alerts import panel_ids
from alerts.thresholds import Threshold
from dashboards.errors import DashboardError
from dashboards.no_data_text import NO_DATA, NO_VALUE, OR_EXPORTER_DOWN, Requires
from dashboards.variables import exporter_down
from exporter.catalog.spec import Unit
from exporter.model.text import Text
from exporter.promql import Expr

_PLACEHOLDER = re.compile(r"\{\{\s*(\w+)\s*\}\}")
MAX_TITLE_LENGTH = 60  # characters; longer ones are cut off in a narrow panel


class PanelKind(Enum):
    """The panel types; the value is Grafana's name."""

    STAT = "stat"
    TIME_SERIES = "timeseries"
    TABLE = "table"
    BAR_GAUGE = "bargauge"
    GAUGE = "gauge"
    HEATMAP = "heatmap"
    STATE_TIMELINE = "state-timeline"
    STATUS_HISTORY = "status-history"
    TEXT = "text"
    ALERTS = "alertlist"


class Colour(Enum):
    """One meaning per colour on all dashboards; green and amber are Okabe and Ito's, and red differs in lightness."""

    GOOD = "#009E73"
    WARNING = "#E69F00"
    CRITICAL = "#C4162A"
    PLAIN = "#56B4E9"
    OFF = "#8e8e8e"
    UNKNOWN = "#CC79A7"
    ABSENT = "transparent"


class Cell(Enum):
    """How a table's column shows its value; an info metric's is always 1 and hidden: its labels hold the data."""

    PLAIN = "auto"
    BAR = "gauge"
    COLOUR = "color-background"
    WORD = "color-text"
    TREND = "sparkline"
    FACT = "hidden"


class NumberFormat(Enum):
    """The format of a number that has no unit; the value is Grafana's unit."""

    COUNT = "short"
    FACTOR = "none"
    REQUESTS = "reqps"
    EVENTS = "eps"
    AGE = "dtdurations"
    TINY = "sci"


@dataclass(frozen=True, slots=True)
class ValueMapping:
    """A text for a value: 0 is ``down``, for example."""

    value: float
    text: Text
    colour: Colour


@dataclass(frozen=True, slots=True)
class DrillDown:
    """A link to another dashboard that sets variables from these labels of the series."""

    to: panel_ids.DashboardUid
    labels: tuple[str, ...]


_UNITS: dict[tuple[Unit, bool], str] = {
    (Unit.NONE, False): "short",
    (Unit.NONE, True): "cps",
    (Unit.RATIO, False): "percentunit",
    (Unit.BYTES, False): "bytes",
    (Unit.BYTES, True): "binBps",
    (Unit.CELSIUS, False): "celsius",
    (Unit.WATTS, False): "watt",
    (Unit.JOULES, False): "joule",
    (Unit.HERTZ, False): "hertz",
    (Unit.SECONDS, False): "s",
    (Unit.TOKENS, False): "short",
    (Unit.TOKENS, True): "si:tok/s",
}


def unit_of(expr: Expr, number_format: NumberFormat | None) -> str:
    """Return Grafana's unit of an expression; ``number_format`` only refines what has no unit of its own.

    A ratio may be shown as a factor (1.5 times the mean is not read as 150 %) or as a power of ten.
    """
    if expr.unit is None:
        raise DashboardError(f"the unit of {expr} is not known: state it with as_unit")
    if number_format is not None:
        refines = {
            NumberFormat.FACTOR: {Unit.RATIO, Unit.NONE}, NumberFormat.AGE: {Unit.SECONDS}, NumberFormat.TINY: {Unit.RATIO},
        }.get(number_format, {Unit.NONE, Unit.TOKENS})  # fmt: skip
        if expr.unit not in refines:
            raise DashboardError(
                f"{expr} is in {expr.unit.value}: it cannot be shown as {number_format.name.lower()}"
            )
        return number_format.value
    unit = _UNITS.get((expr.unit, expr.per_second))
    if unit is None:
        raise DashboardError(f"{expr}: {expr.unit.value} per second has no unit in Grafana")
    return unit


@dataclass(frozen=True, slots=True, kw_only=True)
class PanelSeries:
    """A query of a panel and the name of its series; in a table, a column."""

    expr: Expr
    legend: Text
    threshold: Threshold | None = None
    number_format: NumberFormat | None = None
    value_mappings: tuple[ValueMapping, ...] = ()
    cell: Cell = Cell.PLAIN
    max_value: float | None = None
    dashed: bool = False
    requires: tuple[Requires, ...] = ()
    decimals: int | None = None

    @property
    def unit(self) -> str:
        """Return Grafana's unit."""
        return unit_of(self.expr, self.number_format)


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """A panel in both languages.  ``number`` is its id if alerts link to it."""

    kind: PanelKind
    title: Text
    description: Text
    series: tuple[PanelSeries, ...] = ()
    requires: tuple[Requires, ...] = ()
    width: int = 8
    height: int = 7
    number: int | None = None
    threshold: Threshold | None = None
    value_mappings: tuple[ValueMapping, ...] = ()
    min_value: float | None = None
    max_value: float | None = None
    decimals: int | None = None
    stacked: bool = False
    drill_down: tuple[DrillDown, ...] = ()
    traces: str = ""  # label that names the service in the traces
    rows: tuple[str, ...] = ()  # labels that identify a table's row
    sort: tuple[str, ...] = ()  # English titles of the columns to sort by, largest first
    content: Text | None = None

    def __post_init__(self) -> None:
        """Raise DashboardError for what Grafana would show wrongly or not at all."""
        name = self.title.en
        for what, said in (("title", self.title), ("description", self.description)):
            if not said.en.strip() or not said.zh.strip():
                raise DashboardError(f"{name or 'a panel'}: the {what} is missing in a language")
        if len(name) > MAX_TITLE_LENGTH:
            raise DashboardError(f"{name}: the title has more than {MAX_TITLE_LENGTH} characters")
        if not self.series and self.kind not in {PanelKind.TEXT, PanelKind.ALERTS}:
            raise DashboardError(f"{name}: without a query")
        for series in self.series:
            self._check(series)
        units = {series.unit for series in self.series}
        if self.kind is not PanelKind.TABLE and len(units) > 1:
            raise DashboardError(f"{name}: one axis for {', '.join(sorted(units))}")

    def _check(self, series: PanelSeries) -> None:
        for problem in self._problems(series):
            raise DashboardError(f"{self.title.en}: {problem}")

    def _problems(self, series: PanelSeries) -> Iterator[str]:
        expr = series.expr
        for said in (series.legend.en, series.legend.zh):
            if not said.strip():
                yield "a series without a legend"
            missing = [label for label in _PLACEHOLDER.findall(said) if label not in expr.labels]
            yield from (f"the legend names {label!r}, which {expr} does not carry" for label in missing)
        try:
            unit = series.unit
        except DashboardError as error:
            yield str(error)
            return
        if expr.counter:
            yield f"{expr} is a raw counter"
        for threshold in (series.threshold, None if self.kind is PanelKind.TABLE else self.threshold):
            if threshold is not None and (threshold.unit, threshold.per_second) != (expr.unit, expr.per_second):
                yield f"a threshold in {threshold.unit.name} against a figure in {unit}"
        carried = [] if series.dashed else [label for drill_down in self.drill_down for label in drill_down.labels]
        if series.cell is Cell.TREND and (self.kind is not PanelKind.TABLE or self.series[0].cell is Cell.TREND):
            yield "a trend is a column beside others of a table"
        missing = [label for label in carried if label not in expr.labels]
        yield from (f"the link carries {label!r}, which {expr} does not have" for label in missing)

    @property
    def exporter_down(self) -> Expr | None:
        """Return the query that has data only while the exporters are down; None if the panel has none."""
        if self.kind not in {PanelKind.STAT, PanelKind.GAUGE}:
            return None
        return exporter_down(*(series.expr for series in self.series))

    @property
    def no_value(self) -> Text:
        """Return the text for a missing value: everything that the panel requires."""
        texts = [NO_VALUE[requirement] for requirement in self.requires]
        return (
            Text(" / ".join(text.en for text in texts), " / ".join(text.zh for text in texts)) if texts else NO_DATA
        )

    @property
    def no_data(self) -> Text:
        """Return the text for a panel without data; only single-value panels detect a down exporter themselves."""
        said = self.no_value
        if not self.requires or self.kind in {PanelKind.STAT, PanelKind.GAUGE}:
            return said
        return Text(said.en + OR_EXPORTER_DOWN.en, said.zh + OR_EXPORTER_DOWN.zh)
