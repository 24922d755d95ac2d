"""The snapshot as a collector in somebody's own registry, against the daemon's own endpoint."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families as parse_text

from exporter.catalog.spec import MetricKind, SeriesSet
from exporter.model import Histogram
from exporter.render.exposition import ExpositionRenderer
from exporter.render.registry import SnapshotCollector
from tests.unit.render.test_exposition import SNAPSHOT, metric


def samples(text):
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in parse_text(text)
        for sample in family.samples
    }


@pytest.mark.parametrize("series", list(SeriesSet))
def test_an_embedding_registry_shows_what_the_endpoint_shows(series):
    registry = CollectorRegistry()
    registry.register(SnapshotCollector(lambda: SNAPSHOT, series=series))
    ours = ExpositionRenderer(openmetrics=False, series=series).render(SNAPSHOT).body.decode()
    assert samples(generate_latest(registry).decode()) == samples(ours) != {}


def test_before_the_first_snapshot_there_is_nothing():
    registry = CollectorRegistry()
    registry.register(SnapshotCollector(lambda: None))
    assert generate_latest(registry) == b""


def test_equal_label_sets_and_values_that_are_not_finite_are_counted_at_each_collection():
    rows = [(("0", "u", n), value) for n, value in (("a", 1.0), ("a", 2.0), ("b", 3.0), ("c", float("nan")))]
    collector = SnapshotCollector(lambda: SNAPSHOT, catalog=(metric(labels=("n",), read=lambda _: rows),))
    for _ in range(2):
        (family,) = collector.collect()
        assert {sample.labels["n"]: sample.value for sample in family.samples} == {"a": 2.0, "b": 3.0}
        assert collector.dropped == 2


def test_equal_label_sets_of_histograms_are_shown_once_and_counted():
    histogram = Histogram(bounds=(1.0,), counts=(1.0, 1.0), sum=1.0)
    row = metric(
        kind=MetricKind.HISTOGRAM,
        read=None,
        read_histogram=lambda _: [(("0", "u"), histogram), (("0", "u"), histogram)],
    )
    collector = SnapshotCollector(lambda: SNAPSHOT, catalog=(row,))
    for _ in range(2):
        (family,) = collector.collect()
        assert len(family.samples) == collector.dropped == 4
