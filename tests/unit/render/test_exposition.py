"""Rendering: prometheus_client's parsers and promtool are the judges."""

from __future__ import annotations

import math
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from exporter.catalog import CATALOG
from exporter.catalog.spec import DAEMON, GPU, REPLICA, Metric, MetricKind, SeriesSet, Unit
from exporter.errors import CatalogError
from exporter.model import Histogram, LatencySummary, Stage, WindowFigures
from exporter.render.exposition import MAX_SERIES, ExpositionRenderer
from exporter.sources import process_metrics
from tests.support.builders import busy_replica, card, replica, snapshot
from tests.support.examples import examples
from tests.support.records import replace


def metric(**changes):
    values = {
        "subject": GPU, "noun": "thing", "kind": MetricKind.GAUGE, "help": "A thing.",
        "read": lambda s: [(gpu.labels, 1.5) for gpu in s.cards],
    }  # fmt: skip
    return Metric(**{**values, **changes})


def samples(text, parse):
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in parse(text)
        for sample in family.samples
    }


SNAPSHOT = snapshot(cards=(card(0, utilization=0.5, power=300.0), card(1, up=False)), replicas=(busy_replica(),))


def render(snap=SNAPSHOT, *, openmetrics=False, series=SeriesSet.FULL, catalog=CATALOG):
    return ExpositionRenderer(openmetrics=openmetrics, series=series, catalog=catalog).render(snap).body.decode()


def test_both_formats_say_the_same_and_parse_strictly():
    text, openmetrics = samples(render(), parse_text), samples(render(openmetrics=True), parse_openmetrics)
    assert text == openmetrics
    assert len(text) == 32


def test_types_and_help_are_what_the_catalogue_says():
    families = {family.name: family for family in parse_openmetrics(render(openmetrics=True))}
    kinds = {MetricKind.INFO: "gauge"}
    assert len(families) > 15
    assert families.keys() <= {row.family for row in CATALOG}
    for row in CATALOG:
        if row.family in families:
            assert families[row.family].type == kinds.get(row.kind, row.kind.value)
            assert families[row.family].documentation == row.help


def test_a_gpu_that_is_lost_says_so_and_nothing_else():
    values = {key: value for key, value in samples(render(), parse_text).items() if ("uuid", "GPU-0001") in key[1]}
    assert {name for name, _ in values} == {"gpu_info", "gpu_up", "gpu_data_age_seconds"}
    assert [value for (name, _), value in values.items() if name == "gpu_up"] == [0.0]


def test_histograms_keep_the_engines_buckets():
    values = samples(render(), parse_text)
    own = (("engine", "vllm"), ("model", "m"), ("replica", "a"))
    for le, count in (("0.1", 1.0), ("1.0", 2.0), ("+Inf", 7.0)):
        key = tuple(sorted((*own, ("le", le))))
        assert values["llm_time_to_first_token_seconds_bucket", key] == count
    assert values["llm_time_to_first_token_seconds_count", own] == 7.0
    assert values["llm_time_to_first_token_seconds_sum", own] == 12.5


def test_a_latency_without_buckets_has_its_sum_and_count_in_both_formats():
    mean = Histogram(bounds=(), counts=(40.0,), sum=8.0)
    snap = snapshot(replicas=(replace(busy_replica(), histograms={Stage.INTER_TOKEN: mean}),))
    for openmetrics, parse in ((False, parse_text), (True, parse_openmetrics)):
        text = render(snap, openmetrics=openmetrics)
        found = {
            sample.name: sample.value
            for family in parse(text)
            for sample in family.samples
            if sample.name.startswith("llm_inter_token_latency_seconds")
        }
        assert found == {
            f"llm_inter_token_latency_seconds_{end}": value
            for end, value in (("bucket", 40.0), ("count", 40.0), ("sum", 8.0))
        }


def test_counters_by_rank_are_summed_in_the_common_set_so_that_sums_agree():
    common, full = (samples(render(series=which), parse_text) for which in (SeriesSet.COMMON, SeriesSet.FULL))
    by_rank = {
        which: {
            dict(labels)["rank"]: value
            for (name, labels), value in values.items()
            if name == "llm_prompt_tokens_total"
        }
        for which, values in (("common", common), ("full", full))
    }
    assert by_rank == {"common": {"": 15.0}, "full": {"0": 10.0, "1": 5.0}}


def test_values_that_are_not_finite_are_left_out_and_counted():
    rows = [math.nan, math.inf, -math.inf, 2.0]
    row_metric = metric(labels=("n",), read=lambda s: [(("0", "u", str(i)), value) for i, value in enumerate(rows)])
    page = ExpositionRenderer(openmetrics=False, catalog=(row_metric,)).render(SNAPSHOT)
    assert (page.series, page.dropped) == (1, 3)
    assert b"NaN" not in page.body


def test_equal_label_sets_are_one_series_and_the_others_are_counted():
    rows = [(("0", "u", n), value) for n, value in (("a", 1.0), ("a", 2.0), ("b", 3.0), ("a", 4.0))]
    row_metric = metric(labels=("n",), read=lambda s: rows)
    page = ExpositionRenderer(openmetrics=False, catalog=(row_metric,)).render(SNAPSHOT)
    assert (page.series, page.dropped) == (2, 2)
    assert b'n="a"} 4.0' in page.body

    histogram = Histogram(bounds=(1.0,), counts=(1.0, 1.0), sum=1.0)
    twice = metric(
        kind=MetricKind.HISTOGRAM,
        read=None,
        read_histogram=lambda s: [(("0", "u"), histogram), (("0", "u"), histogram)],
        unit=Unit.SECONDS,
    )
    page = ExpositionRenderer(openmetrics=False, catalog=(twice,)).render(SNAPSHOT)
    assert (page.series, page.dropped) == (4, 4)


def test_the_hard_cap_holds_for_samples_and_for_histograms():
    many = metric(labels=("n",), read=lambda s: [(("0", "u", str(i)), 1.0) for i in range(MAX_SERIES + 5)])
    histogram = Histogram(bounds=(1.0,), counts=(1.0, 1.0), sum=1.0)
    after = metric(
        noun="after",
        kind=MetricKind.HISTOGRAM,
        read=None,
        read_histogram=lambda s: [(("0", "u"), histogram)],
        unit=Unit.SECONDS,
    )
    page = ExpositionRenderer(openmetrics=False, catalog=(many, after)).render(SNAPSHOT)
    assert page.series == MAX_SERIES
    assert page.dropped == 5 + 4


def test_the_same_snapshot_renders_to_the_same_bytes():
    renderer = ExpositionRenderer(openmetrics=True, series=SeriesSet.FULL)
    assert renderer.render(SNAPSHOT).body == renderer.render(SNAPSHOT).body == render(openmetrics=True).encode()


def test_kept_texts_of_labels_that_come_and_go_are_removed():
    renderer = ExpositionRenderer(openmetrics=False)
    for number in range(1_300):
        renderer.render(snapshot(replicas=(busy_replica(model=f"m{number}"),)))
    kept = sum(len(family._texts) + len(family._buckets) for family in renderer._families)
    assert kept < 700 * 40


@examples(60)
@given(st.text(max_size=40), st.text(st.characters(), max_size=40))
def test_any_label_value_survives_both_formats(name, model):
    snap = snapshot(replicas=(busy_replica(name=name, model=model),))
    for openmetrics, parse in ((False, parse_text), (True, parse_openmetrics)):
        text = ExpositionRenderer(openmetrics=openmetrics).render(snap).body.decode("utf-8")
        labels = [dict(key[1]) for key in samples(text, parse) if key[0] == "llm_up"]
        assert len(labels) == 1
        if "\r" not in name + model and name.isprintable() and model.isprintable():
            assert (labels[0]["replica"], labels[0]["model"]) == (name, model)


def test_promtool_finds_nothing_to_complain_about(promtool):
    page = render() + process_metrics.exposition(False)
    result = subprocess.run([promtool, "check", "metrics"], input=page, capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stdout + result.stderr) == (0, "")


@pytest.mark.parametrize(
    "changes",
    [
        {"noun": "Bad Name"},
        {"help": "No full stop"},
        {"labels": ("gpu",)},
        {"labels": ("le",)},
        {"read": None},
        {"kind": MetricKind.HISTOGRAM},
        {"read_histogram": lambda s: []},
    ],
)
def test_a_malformed_row_cannot_be_made(changes):
    with pytest.raises(CatalogError):
        metric(**changes)


def test_names_are_computed_from_subject_noun_unit_and_kind():
    def name(subject, noun, kind, unit=Unit.NONE):
        read = {"read": lambda s: []}
        return Metric(subject=subject, noun=noun, kind=kind, unit=unit, help="X.", **read).name

    assert name(GPU, "energy", MetricKind.COUNTER, Unit.JOULES) == "gpu_energy_joules_total"
    assert name(GPU, "", MetricKind.INFO) == "gpu_info"
    assert name(DAEMON, "build", MetricKind.INFO) == "shardwatch_build_info"
    assert name(REPLICA, "up", MetricKind.GAUGE) == "llm_up"


def test_quantiles_that_differ_in_the_last_digit_are_series_of_their_own():
    near = (0.99, 0.9900001, 0.9999999)
    latency = LatencySummary(quantiles=dict.fromkeys(near, 1.0), observations=7.0, overflow_ratio=0.0)
    replica_state = replica(windows={"1m": WindowFigures(seconds=60.0, latency={Stage.TIME_TO_FIRST_TOKEN: latency})})
    values = samples(render(snapshot(replicas=(replica_state,))), parse_text)
    shown = {dict(labels)["quantile"] for name, labels in values if name == "llm_latency_quantile_seconds"}
    assert shown == {"0.99", "0.9900001", "0.9999999"}
