"""The collectors' configurations: whole, and true to the catalogue and to the conventions that they translate to.

No collector runs here: what is checked is structure and names.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import pytest
import yaml

from exporter.catalog import CATALOG
from exporter.catalog.spec import MetricKind
from tests.support import stack_files

OTEL = stack_files.COMPOSE / "otel"
METRICS = yaml.safe_load((OTEL / "metrics.yaml").read_text())
FILES = {
    "traces": yaml.safe_load((OTEL / "traces.yaml").read_text()),
    "metrics": METRICS,
    "jaeger": yaml.safe_load((stack_files.COMPOSE / "jaeger" / "jaeger.yaml").read_text()),
}
SERVICES = stack_files.compose()["services"]


@dataclass(frozen=True)
class Convention:
    """A metric of the semantic conventions: instrument, unit, and the attributes that it has or must have."""

    instrument: str
    unit: str
    attributes: frozenset
    required: frozenset


def _hardware(instrument, unit, *more, required=()):
    known = {"hw.id", "hw.name", "hw.vendor", "hw.type", "hw.parent", "hw.model", "hw.serial_number", *more}
    return Convention(instrument, unit, frozenset(known), frozenset({"hw.id", *required}))


def _server():
    known = {"gen_ai.operation.name", "gen_ai.provider.name", "gen_ai.request.model", "gen_ai.response.model"}
    required = {"gen_ai.operation.name", "gen_ai.provider.name"}
    return Convention("histogram", "s", frozenset(known | {"shardwatch.replica"}), frozenset(required))


CONVENTIONS = {
    "hw.gpu.utilization": _hardware("gauge", "1", "hw.gpu.task"),
    "hw.gpu.memory.usage": _hardware("updowncounter", "By"),
    "hw.gpu.memory.limit": _hardware("updowncounter", "By"),
    "hw.gpu.io": _hardware("counter", "By", "network.io.direction", required=["network.io.direction"]),
    "hw.errors": _hardware("counter", "{error}", "error.type", required=["hw.type"]),
    "hw.status": _hardware("updowncounter", "1", "hw.state", required=["hw.state", "hw.type"]),
    "hw.energy": _hardware("counter", "J", required=["hw.type"]),
    "hw.power": _hardware("gauge", "W", required=["hw.type"]),
    "hw.temperature": _hardware("gauge", "Cel", "hw.sensor_location"),
    "hw.temperature.limit": _hardware("gauge", "Cel", "hw.limit_type"),
    "gen_ai.server.request.duration": _server(),
    "gen_ai.server.time_to_first_token": _server(),
    "gen_ai.server.time_per_output_token": _server(),
}
CATALOGUE = {metric.name: metric for metric in CATALOG}
TRANSFORMS = METRICS["processors"]["metricstransform"]["transforms"]
RENAMES = [transform for transform in TRANSFORMS if transform.get("match_type", "strict") == "strict"]
FOR_ALL = [transform for transform in TRANSFORMS if transform.get("match_type") == "regexp"]
STATEMENTS = [
    (group["context"], statement)
    for group in METRICS["processors"]["transform"]["metric_statements"]
    for statement in group["statements"]
]


# ---------------------------------------------------------------------- structure


@pytest.mark.parametrize("name", sorted(FILES))
def test_what_is_used_is_defined_and_what_is_defined_is_used(name):
    config = FILES[name]
    assert set(config) <= {"receivers", "processors", "exporters", "extensions", "service"}
    pipelines = config["service"]["pipelines"].values()
    for kind in ("receivers", "processors", "exporters"):
        assert {component for pipeline in pipelines for component in pipeline[kind]} == set(config[kind])
    assert set(config["service"].get("extensions", ())) == set(config.get("extensions", ()))


@pytest.mark.parametrize("name", ["traces", "metrics"])
def test_memory_is_limited_before_anything_else_and_batches_are_made_last(name):
    for pipeline in FILES[name]["service"]["pipelines"].values():
        assert pipeline["processors"][0] == "memory_limiter"
        assert pipeline["processors"][-1] == "batch"


def test_jaeger_keeps_a_bounded_number_of_traces_in_the_storage_that_is_asked():
    extensions = FILES["jaeger"]["extensions"]
    ((name, storage),) = extensions["jaeger_storage"]["backends"].items()
    assert storage["memory"]["max_traces"] == 50_000
    assert extensions["jaeger_query"]["storage"]["traces"] == name
    assert FILES["jaeger"]["exporters"]["jaeger_storage_exporter"]["trace_storage"] == name


def test_every_part_listens_where_the_next_one_connects():
    assert FILES["traces"]["exporters"]["otlp/jaeger"]["endpoint"] == "jaeger:4317"
    assert FILES["jaeger"]["receivers"]["otlp"]["protocols"]["grpc"]["endpoint"].endswith(":4317")
    assert FILES["traces"]["receivers"]["otlp"]["protocols"]["grpc"]["endpoint"].endswith(":4317")
    health = FILES["jaeger"]["extensions"]["healthcheckv2"]["http"]["endpoint"]
    assert health.rpartition(":")[2] in SERVICES["jaeger"]["healthcheck"]["test"][-1]
    ui = FILES["jaeger"]["extensions"]["jaeger_query"]["http"]["endpoint"]
    assert SERVICES["jaeger"]["ports"][0].endswith(":" + ui.rpartition(":")[2])


def test_the_service_gives_every_variable_that_the_configuration_requests():
    asked = set(re.findall(r"\$\{env:(\w+)\}", (OTEL / "metrics.yaml").read_text()))
    assert asked == set(SERVICES["otel-metrics"]["environment"])
    assert "--web.enable-otlp-receiver" in SERVICES["prometheus"]["command"]


# ---------------------------------------------------------------------- names


@pytest.mark.parametrize("rename", RENAMES, ids=lambda transform: f"{transform['include']}-{transform['new_name']}")
def test_what_is_renamed_exists_and_its_new_name_is_a_convention(rename):
    metric, convention = CATALOGUE[rename["include"]], CONVENTIONS[rename["new_name"]]
    kinds = {"counter": MetricKind.COUNTER, "histogram": MetricKind.HISTOGRAM}
    assert metric.kind is kinds.get(convention.instrument, MetricKind.GAUGE)
    for operation in rename.get("operations", ()):
        if operation["action"] == "update_label":
            assert operation["label"] in metric.all_labels
        assert operation["new_label"] in convention.attributes


def attributes(rename):
    """Return the attributes that a metric has in the end."""
    labels = set(CATALOGUE[rename["include"]].all_labels)
    general = [transform for transform in FOR_ALL if re.match(transform["include"], rename["new_name"])]
    for operation in (operation for step in (rename, *general) for operation in step.get("operations", ())):
        if operation["action"] == "update_label":
            labels.remove(operation["label"])
        labels.add(operation["new_label"])
    for context, statement in STATEMENTS:
        if context == "datapoint" and _meets(statement, rename["new_name"]):
            labels |= set(re.findall(r'set\(attributes\["([\w.]+)"\]', statement))
            labels -= set(re.findall(r'delete_key\(attributes, "([\w.]+)"\)', statement))
    return labels


def _meets(statement, name):
    exact = re.search(r'where (?:metric\.)?name == "([^"]+)"', statement)
    pattern = re.search(r'where IsMatch\((?:metric\.)?name, "([^"]+)"\)', statement)
    assert exact or pattern, statement
    return exact[1] == name if exact else bool(re.search(pattern[1].replace("\\\\", "\\"), name))


@pytest.mark.parametrize("rename", RENAMES, ids=lambda transform: f"{transform['include']}-{transform['new_name']}")
def test_a_metric_ends_with_the_attributes_of_its_convention(rename):
    convention = CONVENTIONS[rename["new_name"]]
    assert attributes(rename) <= convention.attributes
    assert convention.required <= attributes(rename)


@pytest.mark.parametrize("name", sorted(CONVENTIONS))
def test_a_metric_ends_with_the_unit_and_instrument_of_its_convention(name):
    assert name in {transform["new_name"] for transform in RENAMES}
    mine = [statement for context, statement in STATEMENTS if context == "metric" and _meets(statement, name)]
    units = [match[1] for statement in mine if (match := re.match(r'set\(unit, "([^"]+)"\)', statement))]
    assert units == [CONVENTIONS[name].unit]
    turned = [statement for statement in mine if statement.startswith('convert_gauge_to_sum("cumulative", false)')]
    assert bool(turned) == (CONVENTIONS[name].instrument == "updowncounter")


def test_every_statement_meets_something():
    for _, statement in STATEMENTS:
        assert any(_meets(statement, name) for name in CONVENTIONS), statement


def test_what_is_kept_of_a_scrape_is_what_is_renamed():
    keep, drop = METRICS["receivers"]["prometheus"]["config"]["scrape_configs"][0]["metric_relabel_configs"]
    suffixes = {MetricKind.HISTOGRAM: ("_bucket", "_sum", "_count")}
    renamed = {transform["include"] for transform in RENAMES}
    for metric in CATALOG:
        for series in (metric.name + suffix for suffix in suffixes.get(metric.kind, ("",))):
            assert bool(re.fullmatch(keep["regex"], series)) == (metric.name in renamed), series
    assert (keep["action"], drop["action"]) == ("keep", "drop")
    assert drop["regex"] == "gpu_ecc_errors_total;aggregate"


def test_the_gpu_that_does_not_answer_is_counted_as_failed_and_not_as_well():
    states = [
        transform["operations"][0]["new_value"] for transform in RENAMES if transform["new_name"] == "hw.status"
    ]
    assert states == ["failed", "ok"]  # the first is a copy, made before the original gets its new name
    assert [transform["action"] for transform in RENAMES if transform["new_name"] == "hw.status"] == [
        "insert",
        "update",
    ]
    (turned,) = (statement for _, statement in STATEMENTS if "1.0 - value_double" in statement)
    assert 'attributes["hw.state"] == "failed"' in turned and 'metric.name == "hw.status"' in turned


def test_no_series_of_two_metrics_become_one():
    constants_by_name = set()
    for rename in RENAMES:
        constant = tuple(sorted(
            (operation["new_label"], operation["new_value"]) for operation in rename.get("operations", ()) if operation["action"] == "add_label"
        ))  # fmt: skip
        assert (rename["new_name"], constant) not in constants_by_name
        constants_by_name.add((rename["new_name"], constant))


def test_only_what_has_a_conventions_name_is_sent_on():
    (condition,) = METRICS["processors"]["filter"]["metrics"]["metric"]
    pattern = re.search(r'not IsMatch\(name, "([^"]+)"\)', condition)[1].replace("\\\\", "\\")
    assert all(re.search(pattern, name) for name in CONVENTIONS)
    assert not re.search(pattern, "scrape_duration_seconds") and not re.search(pattern, "gpu_up")
