"""The catalogue as a contract: names that users' queries rest on, and the reference made from it."""

from __future__ import annotations

import pathlib

from exporter.catalog import CATALOG
from exporter.catalog.reference import names, reference
from exporter.catalog.spec import SeriesSet
from exporter.model.push import PushState
from tests.support import builders

EXPORTER = pathlib.Path(__file__).parents[3] / "exporter"

# Names and labels as they were published. A change here breaks somebody's dashboard: it needs a major version.
PUBLISHED = (pathlib.Path(__file__).parents[2] / "golden" / "published_names.txt").read_text().splitlines()


def signature(metric):
    return f"{metric.name} {metric.kind.value} {','.join(metric.all_labels)}".strip()


def test_published_names_kinds_and_labels_never_change():
    assert set(PUBLISHED) - {signature(metric) for metric in CATALOG} == set()


def test_every_name_is_published():
    assert {signature(metric) for metric in CATALOG} - set(PUBLISHED) == set(), (
        "add the new row to published_names.txt"
    )


def test_the_reference_is_what_the_catalogue_generates():
    assert (EXPORTER / "METRICS.md").read_text() == reference(), "run make generate"


def test_the_names_for_queries_are_what_the_rows_say():
    assert (EXPORTER / "catalog" / "metrics.py").read_text() == names(), "run make generate"


def test_the_reference_names_every_metric_once():
    text = reference()
    for metric in CATALOG:
        assert text.count(f"| `{metric.name}` |") == 1


def test_health_is_always_in_the_common_set():
    health = {
        "gpu_up",
        "gpu_data_age_seconds",
        "llm_up",
        "llm_data_age_seconds",
        "shardwatch_source_up",
        "gpu_replica_info",
    }
    assert health <= {metric.name for metric in CATALOG if metric.series is SeriesSet.COMMON}


def test_samples_dropped_are_exported_for_every_reason_from_zero_on():
    snapshot = builders.snapshot(pushes=(PushState(target="central", dropped={"refused": 25}),))
    (metric,) = (metric for metric in CATALOG if metric.name == "shardwatch_push_samples_dropped_total")
    assert dict(metric.read(snapshot)) == {
        ("central", "internal"): 0.0, ("central", "queue_full"): 0.0, ("central", "refused"): 25.0,
        ("central", "too_old"): 0.0,
    }  # fmt: skip
