"""A board: rows of panels, laid out in the grid; what would collide or repeat is refused.

Rows stand in the order symptom to cause.  Panels fill a row from left to right and wrap at 24 columns; those of one
line have one height.  A collapsed row hides what only some nodes have.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from alerts import panel_ids
from alerts.text import Language, Text
from dashboards.errors import DashboardError
from dashboards.panels import Annotation
from dashboards.panels.dashboard_json import Placed, render
from dashboards.panels.panel import Panel

Json = dict[str, Any]

GRID = 24
MAX_UID_LENGTH = 40
MAX_OPEN_PANELS = 25
VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A heading and the panels under it."""

    title: Text
    panels: tuple[Panel, ...]
    collapsed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Dashboard:
    """A board of Grafana; ``uid`` is fixed for ever, since links and bookmarks hold it.

    ``per_gpu``: curves of every card, so that the nodes must be named: all of a thousand would be 8,000 in a panel.
    """

    uid: panel_ids.DashboardUid
    title: Text
    description: Text
    rows: tuple[Row, ...]
    annotations: tuple[Annotation, ...] = ()
    per_gpu: bool = False

    @property
    def panels(self) -> tuple[Panel, ...]:
        """Every panel, hidden ones included."""
        return tuple(panel for row in self.rows for panel in row.panels)

    def render(self, language: Language) -> Json:
        """Return the board's file in one language."""
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
        twice = _twice(annotation.name.en for annotation in self.annotations)
        if twice:
            raise DashboardError(f"{name}: two kinds of marks are called {twice!r}")
        for row in self.rows:
            twice = _twice(panel.title.en for panel in row.panels)
            if twice:
                raise DashboardError(f"{name}, row {row.title.en}: two panels are called {twice!r}")
        visible = sum(len(row.panels) for row in self.rows if not row.collapsed)
        if visible > MAX_OPEN_PANELS:
            raise DashboardError(f"{name}: {visible} panels at once; nobody reads more than {MAX_OPEN_PANELS}")

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
    """Place a row's panels; return them and the height that they take."""
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


def _twice(names: Iterable[str]) -> str:
    return next((name for name, count in Counter(names).items() if count > 1), "")


def reject_overlaps(data: Json) -> None:
    """Refuse panels of a file that share a cell of the grid, leave it, or share an id."""
    title = data["title"]
    everything = [one for top in data["panels"] for one in (top, *top.get("panels", ()))]
    twice = _twice(str(one["id"]) for one in everything)
    if twice:
        raise DashboardError(f"{title}: the id {twice} twice")
    for group in (data["panels"], *(top["panels"] for top in data["panels"] if top.get("panels"))):
        cells: dict[tuple[int, int], str] = {}
        for one in group:
            grid = one["gridPos"]
            if grid["x"] < 0 or grid["x"] + grid["w"] > GRID:
                raise DashboardError(f"{title}, {one['title']}: outside of the {GRID} columns")
            for x in range(grid["x"], grid["x"] + grid["w"]):
                for y in range(grid["y"], grid["y"] + grid["h"]):
                    other = cells.setdefault((x, y), one["title"])
                    if other != one["title"]:
                        raise DashboardError(f"{title}: {one['title']} overlaps {other}")


def reject_duplicates(every: Iterable[Dashboard]) -> None:
    """Refuse two boards with one uid or one title."""
    found = tuple(every)
    for what, names in (("uid", (one.uid.value for one in found)), ("title", (one.title.en for one in found))):
        twice = _twice(names)
        if twice:
            raise DashboardError(f"two boards have the {what} {twice}")
