"""The result of compiling an engine's table for one page's layout: positions in the page's numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import NamedTuple
from weakref import ReferenceType

from msgspec import Struct, field

from exporter.engines.engine import RELAY_PREFIX, Reduce
from exporter.engines.parse.layout import Layout
from exporter.engines.select import Candidates
from exporter.model import EMPTY, Detail, Quantity, Stage

Extract = Callable[[list[float]], tuple[float, ...]]  # out of a page's numbers


class RankWord(NamedTuple):
    """A rank, and an outcome, a status, or the engine's word for the end of a request."""

    rank: str
    word: str


class CompiledNumber(Struct):
    """One quantity of one rank: the positions to reduce, or a number that labels gave."""

    quantity: Quantity
    rank: str
    positions: tuple[int, ...]
    scale: float
    reduce: Reduce
    ratio: bool
    fixed: float | None = None
    equal: float | None = None  # count the series of this value instead
    factors: tuple[int, ...] = ()  # as many as positions: where to find what each is multiplied by


class CompiledHistogram(Struct):
    """One histogram of one rank; ``extract`` returns its cumulative counts, summed where series share the rank."""

    stage: Stage
    rank: str
    bounds: tuple[float, ...]
    extract: Extract
    total: int | None  # position of the sum
    more_totals: tuple[int, ...]
    scale: float


class CompiledNewest(NamedTuple):
    """One detail of one rank: where the times of its series are, and what the labels of each say."""

    detail: Detail
    rank: str
    positions: tuple[int, ...]
    words: tuple[Mapping[str, float], ...]


class CompiledEngine(Struct):
    """Positions in a page's numbers, compiled once per layout."""

    layout: ReferenceType[Layout]  # its texts are the reader's to keep
    model: str = ""
    several_models: bool = False
    version: str = ""
    role: str = ""
    name_style: str = ""
    missing: Mapping[str, str] = EMPTY  # of this page, beside what the engine never gives
    numbers: list[CompiledNumber] = []
    finished: dict[RankWord, tuple[int, ...]] = {}  # by outcome
    reasons: dict[RankWord, tuple[int, ...]] = {}  # by the engine's own word
    responses: dict[str, tuple[int, ...]] = {}  # status class → …
    details: dict[Detail, dict[RankWord, tuple[int, ...]]] = {}
    newest: list[CompiledNewest] = []
    buckets: list[CompiledHistogram] = []
    activity: dict[str, tuple[int, ...]] = {}  # rank → …
    frozen_after: float | None = None
    process_start: int | None = None
    created: dict[str, tuple[int, ...]] = {}  # rank → …
    hits_from_first: bool = False  # as in a reading
    candidates: Candidates = EMPTY  # to watch, because not all can be shown
    parse_warnings: Counter[str] = field(default_factory=Counter)

    @property
    def relayed(self) -> bool:
        """Whether the page is another program's, which gathers the series of several servers."""
        return self.name_style.startswith(RELAY_PREFIX)
