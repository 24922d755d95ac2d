"""Snapshot × CATALOG → exposition, as text 0.0.4 or OpenMetrics 1.0; no I/O and no arithmetic.

The text in front of each value (name and labels) is cached per series, so that a series costs one look-up and one
number.  The cache is cleared now and then, so that labels which come and go (models, outcomes) cannot fill memory.

Values that are not finite, equal label sets, and series beyond the hard cap are left out and counted.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from msgspec import Struct

from exporter.catalog import CATALOG
from exporter.catalog.spec import HistogramSample, Labels, Metric, MetricKind, Sample, SeriesSet
from exporter.model import Snapshot

MAX_SERIES = 10_000
_CLEAR_EVERY = 600  # expositions


def escape_label(text: str) -> str:
    """Return a label value escaped for both formats; lone surrogates, which UTF-8 cannot encode, are replaced."""
    if not text.isascii():
        text = text.encode("utf-8", "replace").decode("utf-8")
    if "\\" in text or '"' in text or "\n" in text:
        text = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return text


def _escape_help(text: str, *, quotes: bool) -> str:
    text = text.replace("\\", "\\\\").replace("\n", "\\n")
    return text.replace('"', '\\"') if quotes else text


class RenderedPage(Struct, frozen=True):
    """An exposition, its number of series, and the number of series left out."""

    body: bytes
    series: int
    dropped: int


class ExpositionRenderer:
    """Renders snapshots in one format.  Not locked; the owner does that."""

    def __init__(
        self, *, openmetrics: bool, series: SeriesSet = SeriesSet.COMMON, catalog: Sequence[Metric] = CATALOG
    ) -> None:
        self._families = [
            _Family(metric, full=series is SeriesSet.FULL, openmetrics=openmetrics)
            for metric in catalog
            if series is SeriesSet.FULL or metric.series is SeriesSet.COMMON
        ]
        self._openmetrics = openmetrics
        self._rendered = 0

    def render(self, snapshot: Snapshot, extra: str = "") -> RenderedPage:
        """Render a snapshot; ``extra`` are further families, already in this format."""
        self._rendered += 1
        clear = self._rendered % _CLEAR_EVERY == 0
        out: list[str] = []
        count = dropped = 0
        for family in self._families:
            lines, lost = family.lines(snapshot, MAX_SERIES - count)
            count += len(lines)
            dropped += lost
            if lines:
                out.append(family.head)
                out += lines
            if clear:
                family.clear()
        if extra:
            out.append(extra)
        if self._openmetrics:
            out.append("# EOF\n")
        return RenderedPage("".join(out).encode("utf-8"), count, dropped)


class _Family:
    """One metric and the cached texts of its series."""

    def __init__(self, metric: Metric, *, full: bool, openmetrics: bool) -> None:
        self._metric = metric
        self._openmetrics = openmetrics
        self._read = metric.read_full if full and metric.read_full is not None else metric.read
        kind = "gauge" if metric.kind is MetricKind.INFO else metric.kind.value
        title = metric.family if openmetrics else metric.name
        self.head = f"# HELP {title} {_escape_help(metric.help, quotes=openmetrics)}\n# TYPE {title} {kind}\n"
        if openmetrics and metric.unit.value and metric.kind is not MetricKind.INFO:
            self.head += f"# UNIT {title} {metric.unit.value}\n"
        self._texts: dict[Labels, str] = {}
        self._buckets: dict[tuple[Labels, tuple[float, ...]], tuple[list[str], str, str]] = {}

    def clear(self) -> None:
        """Clear the cached texts."""
        self._texts.clear()
        self._buckets.clear()

    def lines(self, snapshot: Snapshot, room: int) -> tuple[list[str], int]:
        """Return the family's lines, at most ``room``, and the number of samples left out."""
        if self._metric.read_histogram is not None:
            return self._histograms(self._metric.read_histogram(snapshot), room)
        assert self._read is not None  # by Metric's own check
        return self._samples(self._read(snapshot), room)

    def _samples(self, rows: Iterable[Sample], room: int) -> tuple[list[str], int]:
        texts = self._texts
        listed = list(rows)
        found = dict(listed)  # of equal label sets the last one counts
        lines = []
        lost = len(listed) - len(found)
        for labels, value in found.items():
            text = texts.get(labels)
            if text is None:
                text = texts[labels] = f"{self._metric.name}{self._braces(labels)} "
            if -math.inf < value < math.inf:
                lines.append(f"{text}{value!r}\n")
            else:
                lost += 1
        if len(lines) > room:
            lost += len(lines) - room
            del lines[room:]
        return lines, lost

    def _histograms(self, rows: Iterable[HistogramSample], room: int) -> tuple[list[str], int]:
        listed = list(rows)
        found = dict(listed)  # as for samples
        lines: list[str] = []
        lost = sum(len(histogram.counts) + 2 for _, histogram in listed) if len(found) < len(listed) else 0
        if lost:
            lost -= sum(len(histogram.counts) + 2 for histogram in found.values())
        for labels, histogram in found.items():
            key = (labels, histogram.bounds)
            kept = self._buckets.get(key)
            if kept is None:
                kept = self._buckets[key] = self._bucket_texts(labels, histogram.bounds)
            buckets, count, total = kept
            if len(lines) + len(buckets) + 2 > room:
                lost += len(buckets) + 2
                continue
            lines += [f"{text}{value!r}\n" for text, value in zip(buckets, histogram.counts, strict=True)]
            # OpenMetrics allows a count only beside a sum, and neither beside a bound below zero.
            strict = self._openmetrics and (histogram.sum is None or min(histogram.bounds, default=0.0) < 0)
            if not strict:
                lines.append(f"{count}{histogram.counts[-1]!r}\n")
            if histogram.sum is not None and not strict:
                lines.append(f"{total}{histogram.sum!r}\n")
        return lines, lost

    def _bucket_texts(self, labels: Labels, bounds: tuple[float, ...]) -> tuple[list[str], str, str]:
        name = self._metric.name
        edges = [repr(float(bound)) for bound in bounds] + ["+Inf"]
        buckets = [f"{name}_bucket{self._braces(labels, edge)} " for edge in edges]
        braces = self._braces(labels)
        return buckets, f"{name}_count{braces} ", f"{name}_sum{braces} "

    def _braces(self, labels: Labels, edge: str = "") -> str:
        pairs = [
            f'{name}="{escape_label(value)}"' for name, value in zip(self._metric.all_labels, labels, strict=True)
        ]
        if edge:
            pairs.append(f'le="{edge}"')
        return "{" + ",".join(pairs) + "}" if pairs else ""
