"""What a page consists of, before it is written as HTML or as text.  Texts are plain and not escaped yet."""

from __future__ import annotations

from enum import Enum

from msgspec import Struct


class Level(str, Enum):
    """How a value or a row is marked; each is shown by colour, and by a sign or a word as well."""

    NONE = ""
    GOOD = "good"
    INFO = "info"
    UNKNOWN = "unknown"
    WARNING = "warning"
    CRITICAL = "critical"


class Curve(Struct, frozen=True, kw_only=True):
    """Series of one subject that share one axis from 0 to ``top``; None: to their own maximum."""

    kind: str  # "gpu" or "replica"
    name: str
    series: tuple[str, ...]  # the first is the main one
    top: float | None = None


class PageCell(Struct, frozen=True):
    """One value: what is read first, what stands beside it in small, and what a pointer shows."""

    text: str = ""
    detail: str = ""
    level: Level = Level.NONE
    curve: Curve | None = None
    bar: float | None = None  # ratio
    title: str = ""

    def with_detail(self, template: str) -> str:
        """Return the text, with its detail as the reason where it has one."""
        return template.format(text=self.text, reason=self.detail) if self.detail else self.text


class PageColumn(Struct, frozen=True, kw_only=True):
    """One column; ``title`` explains a heading that is an abbreviation."""

    heading: str
    title: str = ""
    numeric: bool = False


class PageRow(Struct, frozen=True, kw_only=True):
    """One row.  ``key`` stays the same from one snapshot to the next."""

    key: str
    cells: tuple[PageCell, ...]
    level: Level = Level.NONE


class PageTable(Struct, frozen=True, kw_only=True):
    """One section.  The first cell of each row names it; ``note`` stands beside the heading."""

    id: str
    heading: str
    columns: tuple[PageColumn, ...]
    rows: tuple[PageRow, ...]
    note: str = ""
    matrix: bool = False  # of short words: columns are as narrow as they can be


class ShownFinding(Struct, frozen=True, kw_only=True):
    """One finding as it is shown."""

    key: str
    level: Level
    word: str
    summary: str
    since: str
    evidence: tuple[tuple[str, str], ...]
    causes: tuple[ShownFinding, ...]
    steps: tuple[str, ...]
    runbook: str
    impact: str = ""  # what users feel; of causes ""
    more_evidence: int = 0  # what there is of each besides
    more_causes: int = 0


class ShownEvent(Struct, frozen=True, kw_only=True):
    """One event as it is shown."""

    key: str
    time: str
    level: Level
    text: str


class NodePage(Struct, frozen=True, kw_only=True):
    """Everything that is shown of one snapshot in one language."""

    node: str
    version: str
    language: str
    facts: tuple[str, ...]  # of the node, in one line
    verdict: PageCell
    unix_time: float | None  # of the snapshot; None: there is none yet
    time: str
    age: float  # seconds
    problems: tuple[ShownFinding, ...]
    more_problems: int = 0  # besides those
    counts: tuple[PageCell, ...]  # how many findings have each severity, the gravest first; ``detail``: the number
    summary: PageCell  # what stands in the place of findings where there are none
    past_summary: str  # the same, once the data are old
    tables: tuple[PageTable, ...]
    events: tuple[ShownEvent, ...]
