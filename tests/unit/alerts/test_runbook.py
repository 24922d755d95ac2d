"""The runbook has a heading for every alert and for nothing else, and what it names exists, in both languages."""

from __future__ import annotations

import re
from pathlib import Path

import promql_parser
import pytest
import yaml

from alerts.registry import full_series_metrics, groups
from alerts.render import runbook_url
from alerts.thresholds import DEFAULTS
from alerts.tuning import PROJECT_URL, Tuning, read
from exporter.catalog import CATALOG
from exporter.catalog.spec import MetricKind
from exporter.model import Stage
from exporter.model.text import Language

ROOT = Path(__file__).parents[3]
PUBLISHED = f"{PROJECT_URL}/blob/main"
FOUND = groups(Tuning())
ALERTS = {alert.name: alert for group in FOUND for alert in group.alerts()}
RECORDED = {recording.name for group in FOUND for recording in group.recordings()}
HISTOGRAMS = {
    f"{metric.name}_{part}"
    for metric in CATALOG
    if metric.kind is MetricKind.HISTOGRAM
    for part in ("bucket", "count")
}
NAMES = {metric.name for metric in CATALOG} | HISTOGRAMS | {"prometheus_rule_group_last_duration_seconds"}
LINES = {
    Language.ENGLISH: ("Meaning:", "Impact:", "Check", "False alarm:"),
    Language.CHINESE: ("含义：", "影响：", "检查", "误报："),
}
both = pytest.mark.parametrize("language", list(Language))


def text(language):
    name = "runbook.md" if language is Language.ENGLISH else "runbook.zh.md"
    return (ROOT / "alerts" / name).read_text(encoding="utf-8")


def sections(language):
    """Return the text under every heading of the third level, by heading."""
    parts = re.split(r"^###? (.+)$", text(language), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2]))


def anchor(heading):
    """Return a heading's anchor as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@both
def test_every_alert_has_a_heading_and_every_heading_an_alert(language):
    headings = re.findall(r"^### ([A-Z]\w+)$", text(language), flags=re.MULTILINE)
    assert sorted(headings) == sorted(ALERTS)


@both
def test_every_heading_has_meaning_impact_diagnosis_mitigation_and_false_positives(language):
    for name in ALERTS:
        body = sections(language)[name]
        for line in LINES[language]:
            assert f"- {line}" in body, f"{name}: {line}"
        assert re.search(r"^- (Do:|Check and do:|处理：|检查与处理：)", body, re.MULTILINE), name


def test_links_to_the_runbook_lead_to_the_project_without_configuration():
    urls = re.search(r'^Repository = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert urls[1] == PROJECT_URL
    assert Tuning().runbook == f"{PUBLISHED}/alerts/runbook.md"


@both
def test_the_links_of_alerts_and_inside_the_runbook_lead_somewhere(language):
    anchors = {anchor(heading) for heading in re.findall(r"^#+ (.+)$", text(language), flags=re.MULTILINE)}
    for target in re.findall(r"\]\(#([^)]+)\)", text(language)):
        assert target in anchors, target
    for alert in ALERTS.values():
        path, _, target = runbook_url(alert, Tuning(), language).removeprefix(f"{PUBLISHED}/").partition("#")
        assert (ROOT / path).is_file()
        assert target in anchors


@both
def test_metrics_alerts_and_thresholds_that_the_runbook_names_exist(language):
    quoted = [piece for piece in re.findall(r"`([^`\n]+)`", text(language)) if not piece.startswith("nvidia-smi")]
    for piece in quoted:
        for name in re.findall(
            r"\b(?:gpu|llm|gateway|shardwatch)_[a-z0-9_]+", re.sub(r"\b[a-z_]+:[a-z0-9_:]+", "", piece)
        ):
            assert name in NAMES or name in DEFAULTS.by_name(), piece
        for name in re.findall(r"\b[a-z_]+:[a-z0-9_]+:[a-z0-9_]+", piece):
            assert name in RECORDED, piece
        if re.fullmatch(r"[A-Z][a-z]+(?:[A-Z][a-z]+)+", piece):
            assert piece in ALERTS, piece
    queries = [
        piece for piece in quoted if re.search(r"rate\(|increase\(|group_right|ignoring|==|\{[a-z_]+[=~]", piece)
    ]
    assert len(queries) > 8
    for query in queries:
        promql_parser.parse(query.replace("…", "m").replace("$R", "r"))


def steps(language):
    """Return every step, each with the lines that go on with it."""
    return re.split(r"\n(?=- |\d\. |#|\n)", text(language))


@both
def test_what_needs_the_full_set_of_series_says_so_where_it_is_named(language):
    named = [
        (name, step)
        for step in steps(language)
        for name in full_series_metrics()
        if re.search(rf"\b{name}(?:_bucket)?\b", step)
    ]
    assert {"gpu_pcie_link_width", "gpu_remapped_rows_total"} <= {name for name, _ in named}
    assert not [(name, step) for name, step in named if "series: full" not in step]


@both
def test_no_recorded_figure_is_asked_for_a_label_that_it_lacks(language):
    labels = {recording.name: recording.known.labels for group in FOUND for recording in group.recordings()}
    asked = re.findall(r"\b([a-z_]+:[a-z0-9_]+:[a-z0-9_]+)\{([^}]*)\}", text(language))
    assert asked
    for name, matchers in asked:
        assert set(re.findall(r"([a-z_]+)[=!]", matchers)) <= labels[name], name


@both
def test_no_step_requests_what_does_not_exist(language):
    """Neither NCCL nor PyTorch knows NCCL_TIMEOUT, and an instance need not be an address."""
    stages = set(re.findall(r'stage="([^"]+)"', text(language)))
    assert stages
    assert stages <= {stage.value for stage in Stage}
    assert "NCCL_TIMEOUT" not in text(language)
    assert "http://$I" not in text(language)


@both
def test_every_corrected_threshold_is_explained(language):
    table = text(language)
    for name, threshold in DEFAULTS.by_name().items():
        if threshold.published:
            assert f"`{name}`" in table, name


@both
def test_the_example_is_accepted(language):
    example, rules = re.findall(r"```yaml\n(.*?)```", text(language), flags=re.DOTALL)
    assert yaml.safe_load(example)["job"] == read(example).job
    tuning = read(rules)
    assert groups(tuning) and tuning.rules["GpuPcieReplays"].enabled is False


def test_both_languages_have_the_same_headings_in_the_same_order():
    levels = [re.findall(r"^(#+) (\w*)", text(language), flags=re.MULTILINE) for language in Language]
    english, chinese = ([level for level, _ in item] for item in levels)
    assert english == chinese
    names = [[name for _, name in item if name in ALERTS] for item in levels]
    assert names[0] == names[1]
