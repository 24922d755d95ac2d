"""Snapshot × CATALOG → the page, as text 0.0.4 or OpenMetrics 1.0; no I/O and no arithmetic.

The text in front of each value (name and labels) is made once per series and kept, so that a page costs one look-up
and one number per series.  All texts are forgotten now and then, so that labels which come and go (models, outcomes)
cannot fill memory; the page after that is made as slowly as the first one.

What may not stand on the page is left out and counted: a value that is not finite, a label value that is not text,
anything beyond the hard cap.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from msgspec import Struct

from exporter.catalog import CATALOG
from exporter.catalog.spec import HistogramSample, Labels, Metric, MetricKind, Sample, SeriesSet
from exporter.model import Snapshot

MAX_SERIES = 10_000
_FORGET_EVERY = 600  # pages


def escape_label(text: str) -> str:
    """Escape a label value as both formats want it; lone surrogates would not survive UTF-8 and are replaced."""
    if not text.isascii():
        text = text.encode("utf-8", "replace").decode("utf-8")
    if "\\" in text or '"' in text or "\n" in text:
        text = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return text


def _escape_help(text: str, *, quotes: bool) -> str:
    text = text.replace("\\", "\\\\").replace("\n", "\\n")
    return text.replace('"', '\\"') if quotes else text


class RenderedPage(Struct, frozen=True):
    """A page's body and what did not make it onto the page."""

    body: bytes
    series: int
    dropped: int


class ExpositionRenderer:
    """Renders pages of one format; owned by one thread (or guarded by its owner)."""

    def __init__(
        self, *, openmetrics: bool, series: SeriesSet = SeriesSet.COMMON, catalog: Sequence[Metric] = CATALOG
    ) -> None:
        self._families = [
            _Family(metric, full=series is SeriesSet.FULL, openmetrics=openmetrics)
            for metric in catalog
            if series is SeriesSet.FULL or metric.series is SeriesSet.COMMON
        ]
        self._openmetrics = openmetrics
        self._pages = 0

    def render(self, snapshot: Snapshot, extra: str = "") -> RenderedPage:
        """Render a page; ``extra`` is text of families from elsewhere, already in this collector's format."""
        self._pages += 1
        forget = self._pages % _FORGET_EVERY == 0
        out: list[str] = []
        count = dropped = 0
        for family in self._families:
            lines, lost = family.lines(snapshot, MAX_SERIES - count)
            count += len(lines)
            dropped += lost
            if lines:
                out.append(family.head)
                out += lines
            if forget:
                family.forget()
        if extra:
            out.append(extra)
        if self._openmetrics:
            out.append("# EOF\n")
        return RenderedPage("".join(out).encode("utf-8"), count, dropped)


class _Family:
    """One metric and the kept texts of its series."""

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

    def forget(self) -> None:
        """Drop every kept text; those still in use are made again on the next page."""
        self._texts.clear()
        self._buckets.clear()

    def lines(self, snapshot: Snapshot, room: int) -> tuple[list[str], int]:
        """Render the family's samples, at most ``room`` of them; also say how many were left out."""
        if self._metric.read_histogram is not None:
            return self._histograms(self._metric.read_histogram(snapshot), room)
        assert self._read is not None  # by Metric's own check
        return self._samples(self._read(snapshot), room)

    def _samples(self, rows: Iterable[Sample], room: int) -> tuple[list[str], int]:
        texts = self._texts
        listed = list(rows)
        found = dict(listed)  # equal labels would be one series twice: the last one stands
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
            strict = self._openmetrics and (histogram.sum is None or histogram.bounds[0] < 0)
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
