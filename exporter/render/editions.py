"""Snapshot × CATALOG → editions: every point that the endpoint shows at one time, for whoever is pushed to.

A series that was in the edition before and is in this one no more is named in ``gone``, so that the receiver can
end it at once, as Prometheus does after a scrape.  Values that are not finite, equal label sets and points beyond the
hard cap are left out, as the endpoint leaves them out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from msgspec import Struct
from msgspec.structs import replace

from exporter.catalog import CATALOG
from exporter.catalog.spec import Labels, Metric, MetricKind, SeriesSet, Unit
from exporter.model import EMPTY, Histogram, Snapshot
from exporter.render.exposition import MAX_SERIES


class PushedFamily(Struct, frozen=True, kw_only=True, eq=False):
    """What a receiver is told of a metric; ``name`` is that of its samples."""

    name: str
    kind: MetricKind
    help: str
    unit: str
    labels: Labels


class Point(NamedTuple):
    """What tells one point from all others; ``bounds`` are those of a histogram, else None."""

    family: PushedFamily
    labels: Labels
    bounds: tuple[float, ...] | None = None

    @property
    def samples(self) -> int:
        """How many series of Prometheus it becomes, a histogram's sum included."""
        return 1 if self.bounds is None else len(self.bounds) + 3


class Edition(Struct, frozen=True, kw_only=True):
    """Every point at one time, in Unix milliseconds."""

    at: int
    points: Mapping[Point, float | Histogram]
    gone: tuple[Point, ...] = ()

    @property
    def samples(self) -> int:
        """How many samples it becomes, the marks of ended series included."""
        return sum(point.samples for points in (self.points, self.gone) for point in points)


class OtherFamily(Protocol):
    """A family that is not the catalogue's; of a counter, ``name`` is without ``_total``."""

    @property
    def name(self) -> str: ...  # noqa: D102

    @property
    def kind(self) -> str: ...  # noqa: D102

    @property
    def help(self) -> str: ...  # noqa: D102

    @property
    def samples(self) -> Iterable[tuple[tuple[tuple[str, str], ...], float]]: ...  # noqa: D102


Extra = Callable[[], Iterable[OtherFamily]]
_UP = PushedFamily(
    name="up",
    kind=MetricKind.GAUGE,
    help="1 while the daemon pushes; Prometheus makes this series itself where it scrapes.",
    unit="",
    labels=(),
)
_FINITE = (-math.inf, math.inf)


class EditionReader:
    """Makes editions of snapshots, one after the other.  Owned by one thread."""

    def __init__(
        self,
        *,
        series: SeriesSet = SeriesSet.COMMON,
        extra: Extra = tuple,
        catalog: Sequence[Metric] = CATALOG,
    ) -> None:
        """``extra`` returns families about the daemon's own process."""
        self._extra = extra
        self._known: dict[str, PushedFamily] = {}  # of ``extra``, by name
        self._before: Mapping[Point, float | Histogram] = EMPTY
        self._families = [
            (_family(metric), metric, series is SeriesSet.FULL)
            for metric in catalog
            if series is SeriesSet.FULL or metric.series is SeriesSet.COMMON
        ]

    def read(self, snapshot: Snapshot | None, at: int) -> Edition:
        """Return the edition of a snapshot; of None, that everything has ended."""
        points: dict[Point, float | Histogram] = {}
        if snapshot is not None:
            room = MAX_SERIES
            for point, value in self._points(replace(snapshot, is_pushed=True)):
                room -= 0 if point in points else point.samples
                if room >= 0:
                    points[point] = value
            points.update(self._others())
            points[Point(_UP, ())] = 1.0
        gone = tuple(self._before.keys() - points.keys())
        self._before = points
        return Edition(at=at, points=points, gone=gone)

    def _points(self, snapshot: Snapshot) -> Iterator[tuple[Point, float | Histogram]]:
        low, high = _FINITE
        for family, metric, full in self._families:
            if metric.read_histogram is not None:
                for labels, histogram in metric.read_histogram(snapshot):
                    yield Point(family, labels, histogram.bounds), histogram
                continue
            read = metric.read_full if full and metric.read_full is not None else metric.read
            assert read is not None  # by Metric's own check
            for labels, value in dict(read(snapshot)).items():
                if low < value < high:
                    yield Point(family, labels), value

    def _others(self) -> Iterator[tuple[Point, float]]:
        for other in self._extra():
            for pairs, value in other.samples:
                family = self._known.get(other.name)
                if family is None:
                    family = self._known[other.name] = _other_family(other, tuple(name for name, _ in pairs))
                yield Point(family, tuple(text for _, text in pairs)), value


def _other_family(other: OtherFamily, labels: Labels) -> PushedFamily:
    kind = MetricKind(other.kind)
    name = other.name + ("_total" if kind is MetricKind.COUNTER else "")
    return PushedFamily(name=name, kind=kind, help=other.help, unit="", labels=labels)


def _family(metric: Metric) -> PushedFamily:
    unit = "" if metric.unit is Unit.NONE else metric.unit.value
    return PushedFamily(name=metric.name, kind=metric.kind, help=metric.help, unit=unit, labels=metric.all_labels)
