"""What ``shardwatch top`` shows, before it is drawn: cells, rows and tables; their order and widths."""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from exporter.cli.check_nodes import Answer
from exporter.cli.terminal import shortened
from exporter.render import api
from exporter.web.html import SIGNS
from exporter.web.model import Level
from exporter.web.values import width

MAX_CELL = 24  # columns; only the last column of a table may be wider
MAX_PROSE = 160
GAP = 2  # columns between two cells
_DIGITS = re.compile(r"([0-9]{1,18})")
_SIGNED = (Level.UNKNOWN, Level.WARNING, Level.CRITICAL)


class NodeState(Struct, frozen=True, kw_only=True):
    """One node: its last document, and why there is none, or none of now."""

    name: str  # its address
    document: api.NodeDocument | None = None
    problem: str = ""
    is_asked: bool = False  # at least once


def updated(state: NodeState, answer: Answer) -> NodeState:
    """Return the state after an answer; without a document the last one stays, and the problem says so."""
    document = state.document if answer.document is None else answer.document
    return replace(state, document=document, problem=answer.problem, is_asked=True)


class TopCell(Struct, frozen=True):
    """One value: its text, what a numeric column is sorted by, and its mark."""

    text: str
    number: float | None = None
    level: Level = Level.NONE

    def signed(self) -> str:
        """Return the text with the sign of its mark: colour is never the only carrier."""
        return f"{SIGNS[self.level]} {self.text}" if self.level in _SIGNED else self.text


class TopColumn(Struct, frozen=True, kw_only=True):
    """One column.  Where the terminal is narrow, those with the highest ``drop`` go first; 0 stays."""

    heading: str
    numeric: bool = False
    drop: int = 0


class TopRow(Struct, frozen=True, kw_only=True):
    """One row about one subject of one node; ``key`` stays the same from one document to the next."""

    key: str
    node: int
    cells: tuple[TopCell, ...]
    is_old: bool  # the node does not answer, or its data are not of now
    subject: api.FindingDocument | api.GpuDocument | api.ReplicaDocument | None = None  # None: the node


class TopTable(Struct, frozen=True, kw_only=True):
    """One table; the last column takes what width is left."""

    id: str
    heading: str
    columns: tuple[TopColumn, ...]
    rows: tuple[TopRow, ...]


def select(table: TopTable, *, sort: int | None, reverse: bool, needle: str) -> list[TopRow]:
    """Return the rows that contain ``needle``, sorted by a column, absent values last; None: in their own order."""
    needle = needle.casefold()
    rows = [row for row in table.rows if any(needle in cell.text.casefold() for cell in row.cells)]
    if sort is None:
        return rows[::-1] if reverse else rows
    if not table.columns[sort].numeric:
        return sorted(rows, key=lambda row: _natural(row.cells[sort].text), reverse=reverse)
    known = [row for row in rows if row.cells[sort].number is not None]
    absent = [row for row in rows if row.cells[sort].number is None]
    return sorted(known, key=lambda row: row.cells[sort].number or 0.0, reverse=reverse) + absent


def _natural(text: str) -> list[tuple[int, str]]:
    """Return what sorts GPU 10 behind GPU 2."""
    parts = _DIGITS.split(text.casefold())
    return [(int(part) if number % 2 else 0, part) for number, part in enumerate(parts)]


def fit(table: TopTable, rows: Sequence[TopRow], columns: int | None) -> list[tuple[int, int]]:
    """Return which columns are shown and how wide each is; None: as wide as they are."""
    last = len(table.columns) - 1
    widths = [
        min(
            MAX_PROSE if number == last else MAX_CELL,
            max([width(column.heading), *(width(row.cells[number].signed()) for row in rows)]),
        )
        for number, column in enumerate(table.columns)
    ]
    shown = list(range(len(widths)))
    if columns is None:
        return [(number, widths[number]) for number in shown]

    def total() -> int:
        return sum(widths[number] + GAP for number in shown)

    while total() > columns and any(table.columns[number].drop for number in shown):
        shown.remove(max(shown, key=lambda number: (table.columns[number].drop, number)))
    widest = max(shown, key=lambda number: widths[number])
    widths[widest] = max(8, widths[widest] - max(0, total() - columns))
    return [(number, widths[number]) for number in shown]


def cut(cell: TopCell, columns: int) -> str:
    """Return the text of a cell with its sign, no wider than its column."""
    return shortened(cell.signed(), columns)
