"""Thresholds files change what they name; one with a mistake is refused whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from alerts.__main__ import generated
from alerts.registry import groups
from alerts.render import RULES, files
from alerts.slo import CLASSES
from alerts.thresholds import DEFAULTS
from alerts.tuning import load, misfits, read
from exporter.catalog import CATALOG
from exporter.errors import SettingsError
from exporter.model.text import Language
from exporter.promql import vector


def test_the_whole_published_table_is_answered():
    answered = {threshold.published for threshold in DEFAULTS.by_name().values() if threshold.published}
    for row in ("utilisation below 40", "standard deviation", "memory above 85", "P99 above 1", "hit rate below 40",
                "errors above 1", "highest minus lowest", "temperature above 85"):  # fmt: skip
        assert [text for text in answered if row in text], row
    for name, threshold in DEFAULTS.by_name().items():
        assert bool(threshold.published) == bool(threshold.corrected), name
        assert threshold.reason.endswith("."), name
        assert not list(misfits(threshold)), name


GOOD = """
job: gpu-nodes
links: {dashboards: "https://grafana.example.org/", runbook: "https://wiki.example.org/runbook.md"}
thresholds:
  temperature_margin: {warning: 12 celsius, critical: 5 °C, for: 10m}
  error_ratio: {warning: 2%}
  replica_data_age: {warning: 2m, critical: 5m, metric: llm_data_age_seconds}
  preemption_rate: {warning: 0.5 per second}
classes:
  interactive:
    models: ["chat-.*"]
    availability: 99.9%
    first_token: {objective: 99%, metric: llm_time_to_first_token_seconds, target: {vllm: 500ms, sglang: 0.4}}
"""


TUNED = """
rules:
  GpuPcieReplays: {enabled: false, reason: the riser of rack 7 is known}
  HighErrorRatio: {max_severity: warning, reason: batch only}
  EngineFrozen: {max_severity: info, for: 10m, reason: a test cluster}
"""


def test_single_rules_are_switched_off_and_tuned_by_name_and_the_reason_is_kept():
    tuning = read(TUNED)
    alerts = {alert.name: [] for group in groups(tuning) for alert in group.alerts()}
    for group in groups(tuning):
        for alert in group.alerts():
            alerts[alert.name].append((alert.severity.value, alert.for_))
    assert "GpuPcieReplays" not in alerts
    assert [severity for severity, _ in alerts["HighErrorRatio"]] == ["warning"]
    assert alerts["EngineFrozen"] == [("info", "10m")]
    written = generated(tuning, [Language.ENGLISH])
    header = written[Path("en", RULES)].partition("groups:")[0]
    assert "# GpuPcieReplays: switched off; the riser of rack 7 is known\n" in header
    assert "# EngineFrozen: at most info, for 10m; a test cluster\n" in header
    assert "GpuPcieReplays" not in written[Path("alertmanager", "en", "alertmanager.yaml")]


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        ("{GpuHott: {enabled: false, reason: x}}", "did you mean GpuHot"),
        ("{GpuHot: {enabled: false}}", "reason"),
        ("{GpuHot: {max_severity: none, reason: x}}", "max_severity"),
        ("{GpuHot: {for: 1s, reason: x}}", "must be between"),
    ],
)
def test_a_change_without_a_reason_or_of_an_alert_that_does_not_exist_is_refused(rule, why):
    with pytest.raises(SettingsError, match=why):
        groups(read(f"rules: {rule}"))


def test_a_thresholds_file_changes_what_it_names_and_nothing_else():
    tuning = read(GOOD)
    limits = tuning.thresholds
    assert (limits.temperature_margin.warning, limits.temperature_margin.for_) == (12, "10m")
    assert (limits.error_ratio.warning, limits.error_ratio.critical) == (0.02, 0.05)
    assert limits.replica_data_age.warning == 120
    assert limits.gpu_memory_used == DEFAULTS.gpu_memory_used
    assert [model_class.name for model_class in tuning.classes] == ["interactive", "batch", "standard"]
    text = files(groups(tuning), tuning, Language.ENGLISH)[RULES]
    assert "gpu_temperature_margin_celsius[2m]) < 12" in text
    assert 'le="0.5",engine=~"vllm",model=~"chat-.*"' in text
    assert 'model=~".*",model!~"chat-.*"' in text  # standard keeps away from what interactive has
    assert 'up{job="gpu-nodes"}' in text
    assert "https://grafana.example.org/d/shardwatch-node?" in text
    assert "https://wiki.example.org/runbook.md#gpulost" in text
    assert "https://wiki.example.org/runbook.zh.md#gpulost" in files(groups(tuning), tuning, Language.CHINESE)[RULES]


CLASS = (
    "classes: {interactive: {models: [a], availability: 99%, first_token: {objective: 99%, metric: M, target: T}}}"
)


TTFT = "llm_time_to_first_token_seconds"


@pytest.mark.parametrize(
    ("text", "path", "why"),
    [
        ("thresholds: {temperature_margin: {warning: 85%}}", "thresholds.temperature_margin.warning", "wrong unit"),
        ("thresholds: {error_ratio: {warning: 2 celsius}}", "thresholds.error_ratio.warning", "wrong unit"),
        ("thresholds: {preemption_rate: {warning: 3 s}}", "thresholds.preemption_rate.warning", "wrong unit"),
        ("thresholds: {gpu_data_age: {warning: 3 parsecs}}", "thresholds.gpu_data_age.warning", "unknown unit"),
        ("thresholds: {gpu_data_age: {warning: many}}", "thresholds.gpu_data_age.warning", "is not a number"),
        ("thresholds: {utilization_stddev: {critical: 50%}}", "thresholds.utilization_stddev.critical", "cannot exceed 0.5"),
        ("thresholds: {utilization_stddev: {critical: 0.7}}", "thresholds.utilization_stddev.critical", "cannot exceed 0.5"),
        ("thresholds: {replica_imbalance: {warning: 0.5}}", "thresholds.replica_imbalance.warning", "never be crossed"),
        ("thresholds: {idle_with_queue: {critical: 0}}", "thresholds.idle_with_queue.critical", "cannot fall below 0"),
        ("thresholds: {error_ratio: {warning: 9%}}", "thresholds.error_ratio.warning", "beyond the critical"),
        ("thresholds: {temperature_margin: {critical: 20}}", "thresholds.temperature_margin.warning", "beyond the critical"),
        ("thresholds: {temperture: {warning: 80}}", "thresholds.temperture", "did you mean temperature?"),
        ("thresholds: {temperature: {warn: 80}}", "thresholds.temperature.warn", "did you mean warning?"),
        ("thresholds: {busy_utilization: {critical: 0.8}}", "thresholds.busy_utilization.critical", "has one value"),
        ("thresholds: {temperature: {for: 10s}}", "thresholds.temperature.for", "must be between 1m"),
        ("thresholds: {temperature: {for: soon}}", "thresholds.temperature.for", "not a duration"),
        ("thresholds: {gpu_data_age: {metric: gpu_data_age}}", "thresholds.gpu_data_age.metric", "no such metric"),
        ("thresholds: {gpu_data_age: {metric: gpu_up}}", "thresholds.gpu_data_age.metric", "judges gpu_data_age_seconds"),
        ("thresholds: [1]", "thresholds", "expected a mapping"),
        ("limits: {}", "?", "expected one of: job, links"),
        ('job: "a b"', "job", "must not contain spaces"),
        ("links: {dashboards: grafana}", "links.dashboards", "must be a URL"),
        ("classes: {interactive: {availability: 99%}}", "classes.interactive.models", "is missing"),
        ('classes: {interactive: {models: ["("], availability: 99%}}', "classes.interactive.models[0]", "no regular expression"),
        ("classes: {interactive: {models: [a], availability: 90%}}", "classes.interactive.availability", "could never fire"),
        ("classes: {interactive: {models: [a], availability: 100%}}", "classes.interactive.availability", "infinite budget"),
        (CLASS.replace("M", TTFT).replace("T}", "2s}"), "classes.interactive.first_token.target.vllm", "write 1s or 2.5s"),
        (CLASS.replace("M", TTFT).replace("T}", "{sglang: 500ms}}"), "classes.interactive.first_token.target.sglang", "0.4s or 0.6s"),
        (CLASS.replace("M", TTFT).replace("T}", "{tgi: 1s}}"), "classes.interactive.first_token.target.tgi", "tgi has no"),
        (CLASS.replace("M", TTFT).replace("T}", "{llama_cpp: 1s}}"), "classes.interactive.first_token.target.llama_cpp", "unknown engine"),
        (CLASS.replace("M", "llm_ttft").replace("T}", "1s}"), "classes.interactive.first_token.metric", "no such metric"),
        (CLASS.replace("M", "llm_up").replace("T}", "1s}"), "classes.interactive.first_token.metric", "not a histogram"),
        ("classes: {interactive: {models: [a], token: {objective: 99%}}}", "classes.interactive.token.target", "is missing"),
    ],
    ids=lambda value: "",
)  # fmt: skip
def test_a_bad_thresholds_file_is_refused_with_the_place_and_the_reason(text, path, why):
    with pytest.raises(SettingsError) as refused:
        read(text)
    assert [problem for problem in refused.value.problems if problem.path == path and why in problem.message], str(
        refused.value
    )


def test_every_problem_of_a_file_is_reported_at_once():
    with pytest.raises(SettingsError) as refused:
        read("thresholds: {temperature: {warning: 1 s}, nope: {}, gpu_data_age: {for: 1s}}\njob: 'a b'\nx: 1")
    assert len(refused.value.problems) == 5


def test_hostile_yaml_is_refused():
    with pytest.raises(SettingsError):
        read("thresholds: !!python/object/apply:os.system [id]")
    with pytest.raises(SettingsError):
        read("- " * 60 + "a")


def test_default_classes_have_slos_only_for_what_can_be_counted():
    assert [model_class.name for model_class in CLASSES if model_class.models] == ["standard"]
    assert vector(1).labels == frozenset()
    names = {metric.name for metric in CATALOG}
    assert all(latency.metric.name in names for model_class in CLASSES for latency in model_class.latencies.values())


def test_load_says_which_file(tmp_path):
    place = tmp_path / "mine.yaml"
    place.write_text(GOOD)
    assert load(str(place)).job == "gpu-nodes"
    place.write_text("x: 1")
    with pytest.raises(SettingsError, match="mine.yaml"):
        load(str(place))
