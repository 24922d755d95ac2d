"""The snapshot as a prometheus-client ``Collector``, for programs that embed the daemon in a registry of their own.

The daemon's own endpoint is rendered by ``exposition``, which costs a fortieth of this; a test holds both equal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector

from exporter.catalog import CATALOG
from exporter.catalog.spec import Metric, MetricKind, SeriesSet
from exporter.model import Snapshot


class SnapshotCollector(Collector):
    """Collects the metrics of the newest snapshot: ``REGISTRY.register(SnapshotCollector(lambda: app.snapshot))``."""

    def __init__(
        self,
        newest: Callable[[], Snapshot | None],
        *,
        series: SeriesSet = SeriesSet.COMMON,
        catalog: Sequence[Metric] = CATALOG,
    ) -> None:
        """``newest`` returns the snapshot to show; None shows nothing."""
        self._newest = newest
        self._full = series is SeriesSet.FULL
        self.dropped = 0  # samples of the newest collection: equal label sets, and values that are not finite
        self._catalog = [metric for metric in catalog if self._full or metric.series is SeriesSet.COMMON]

    def collect(self) -> Iterator[Family]:
        """Yield one family per metric that has samples."""
        snapshot = self._newest()
        if snapshot is None:
            return
        self.dropped = 0
        for metric in self._catalog:
            kind = "gauge" if metric.kind is MetricKind.INFO else metric.kind.value
            family = Family(metric.family, metric.help, kind)
            self._fill(family, metric, snapshot)
            if family.samples:
                yield family

    def _fill(self, family: Family, metric: Metric, snapshot: Snapshot) -> None:
        names = metric.all_labels
        if metric.read_histogram is not None:
            rows = list(metric.read_histogram(snapshot))
            histograms = dict(rows)
            self.dropped += sum(len(histogram.counts) + 2 for _, histogram in rows)
            for values, histogram in histograms.items():
                self.dropped -= len(histogram.counts) + 2
                labels = dict(zip(names, values, strict=True))
                edges = [*map(float, histogram.bounds), float("inf")]
                for edge, count in zip(edges, histogram.counts, strict=True):
                    bound = "+Inf" if edge == float("inf") else repr(edge)
                    family.add_sample(f"{metric.name}_bucket", {**labels, "le": bound}, count)
                family.add_sample(f"{metric.name}_count", labels, histogram.counts[-1])
                if histogram.sum is not None:
                    family.add_sample(f"{metric.name}_sum", labels, histogram.sum)
            return
        read = metric.read_full if self._full and metric.read_full is not None else metric.read
        assert read is not None  # by Metric's own check
        samples = list(read(snapshot))
        unique = dict(samples)
        self.dropped += len(samples) - len(unique)
        for values, value in unique.items():
            if value - value == 0.0:  # finite
                family.add_sample(metric.name, dict(zip(names, values, strict=True)), value)
            else:
                self.dropped += 1
