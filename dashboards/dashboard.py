"""A dashboard: rows of panels, laid out in Grafana's grid, and the checks that it must pass.

Rows are ordered from symptom to cause. Panels fill a row from left to right and wrap at 24 columns; those of one line
share a height. Details that only some nodes have stand in collapsed rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from alerts import panel_ids
from dashboards.errors import DashboardError
from dashboards.panels import Annotation
from dashboards.panels.dashboard_json import Placed, render
from dashboards.panels.panel import Panel
from exporter.model.text import Language, Text

Json = dict[str, Any]

GRID = 24
MAX_UID_LENGTH = 40
MAX_OPEN_PANELS = 12
VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row of a dashboard: its title and its panels."""

    title: Text
    panels: tuple[Panel, ...]
    collapsed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Dashboard:
    """A Grafana dashboard; its ``uid`` never changes, because links and bookmarks contain it.

    ``per_gpu``: the dashboard shows one series per GPU, so nodes must be selected: a thousand nodes would put 8,000
    series into one panel.
    """

    uid: panel_ids.DashboardUid
    title: Text
    description: Text
    rows: tuple[Row, ...]
    annotations: tuple[Annotation, ...] = ()
    per_gpu: bool = False

    @property
    def panels(self) -> tuple[Panel, ...]:
        """Return all panels, those of collapsed rows included."""
        return tuple(panel for row in self.rows for panel in row.panels)

    def render(self, language: Language) -> Json:
        """Return the dashboard's JSON in one language; raise DashboardError if it is invalid."""
        self._check()
        data = render(
            uid=self.uid.value, title=self.title, description=self.description, version=VERSION, placed=self._placed(),
            annotations=self.annotations, language=language, every_node=not self.per_gpu,
        )  # fmt: skip
        reject_overlaps(data)
        return data

    def _check(self) -> None:
        name = self.title.en
        if len(self.uid.value) > MAX_UID_LENGTH:
            raise DashboardError(f"{name}: the uid has more than {MAX_UID_LENGTH} characters")
        duplicate = _first_duplicate(annotation.name.en for annotation in self.annotations)
        if duplicate:
            raise DashboardError(f"{name}: two annotations are called {duplicate!r}")
        for row in self.rows:
            duplicate = _first_duplicate(panel.title.en for panel in row.panels)
            if duplicate:
                raise DashboardError(f"{name}, row {row.title.en}: two panels are called {duplicate!r}")
        visible = sum(len(row.panels) for row in self.rows if not row.collapsed)
        if visible > MAX_OPEN_PANELS:
            raise DashboardError(
                f"{name}: {visible} open panels; the limit is {MAX_OPEN_PANELS}: move details into a collapsed row"
            )

    def _placed(self) -> tuple[Placed, ...]:
        taken = {panel.number for panel in self.panels if panel.number is not None}
        free = (number for number in range(1, 10_000) if number not in taken)
        found: list[Placed] = []
        top = 0
        for row in self.rows:
            heading = next(free)
            inside, height = _lay_out(row, self.title.en, top + 1, free)
            hidden = tuple(inside) if row.collapsed else ()
            found.append(
                Placed(panel=None, title=row.title, number=heading, left=0, top=top, width=GRID, height=1,
                       collapsed=row.collapsed, inside=hidden)
            )  # fmt: skip
            found += [] if row.collapsed else inside
            top += 1 + (0 if row.collapsed else height)
        return tuple(found)


def _lay_out(row: Row, dashboard: str, top: int, free: Iterable[int]) -> tuple[list[Placed], int]:
    """Return a row's panels with their grid positions, and the height of the row."""
    numbers = iter(free)
    found: list[Placed] = []
    left, line_height, used = 0, 0, 0
    for panel in row.panels:
        if panel.width > GRID or panel.width < 1 or panel.height < 1:
            raise DashboardError(f"{dashboard}, {panel.title.en}: {panel.width} columns by {panel.height} lines")
        if left + panel.width > GRID:
            left, used, line_height = 0, used + line_height, 0
        if line_height and panel.height != line_height:
            raise DashboardError(f"{dashboard}, {panel.title.en}: {panel.height} high in a line of {line_height}")
        line_height = panel.height
        number = panel.number if panel.number is not None else next(numbers)
        found.append(
            Placed(panel=panel, title=panel.title, number=number, left=left, top=top + used, width=panel.width,
                   height=panel.height)
        )  # fmt: skip
        left += panel.width
    return found, used + line_height


def _first_duplicate(names: Iterable[str]) -> str:
    return next((name for name, count in Counter(names).items() if count > 1), "")


def reject_overlaps(data: Json) -> None:
    """Raise DashboardError for panels that overlap, leave the grid, or share an id."""
    title = data["title"]
    everything = [panel for top in data["panels"] for panel in (top, *top.get("panels", ()))]
    duplicate = _first_duplicate(str(panel["id"]) for panel in everything)
    if duplicate:
        raise DashboardError(f"{title}: the id {duplicate} occurs twice")
    for group in (data["panels"], *(top["panels"] for top in data["panels"] if top.get("panels"))):
        cells: dict[tuple[int, int], str] = {}
        for panel in group:
            grid = panel["gridPos"]
            if grid["x"] < 0 or grid["x"] + grid["w"] > GRID:
                raise DashboardError(f"{title}, {panel['title']}: outside of the {GRID} columns")
            for x in range(grid["x"], grid["x"] + grid["w"]):
                for y in range(grid["y"], grid["y"] + grid["h"]):
                    other = cells.setdefault((x, y), panel["title"])
                    if other != panel["title"]:
                        raise DashboardError(f"{title}: {panel['title']} overlaps {other}")


def reject_duplicates(every: Iterable[Dashboard]) -> None:
    """Raise DashboardError for two dashboards with the same uid or title."""
    found = tuple(every)
    for what, names in (
        ("uid", (dashboard.uid.value for dashboard in found)),
        ("title", (dashboard.title.en for dashboard in found)),
    ):
        duplicate = _first_duplicate(names)
        if duplicate:
            raise DashboardError(f"two dashboards have the {what} {duplicate}")
