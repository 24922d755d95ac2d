"""What holds for every rule: selectors, windows, severities, languages, order."""

from __future__ import annotations

import re
from pathlib import Path

import promql_parser
import pytest

from alerts import panel_ids
from alerts.recordings import WINDOW
from alerts.registry import full_series_metrics, groups
from alerts.rule import Recording
from alerts.slo import BOUNDS
from alerts.tuning import Tuning
from exporter.catalog import metrics as m
from exporter.config.settings import Settings
from exporter.model.finding import Severity
from exporter.promql import increase, select
from tests.support import alert_cases

ROOT = Path(__file__).parents[3]
FOUND = groups(Tuning())
ALERTS = [alert for group in FOUND for alert in group.alerts()]
RECORDINGS = [recording for group in FOUND for recording in group.recordings()]
EVERY = [*ALERTS, *RECORDINGS]


@pytest.mark.parametrize("rule", EVERY, ids=lambda rule: "-".join(getattr(rule, "identity", (rule.name,))))
def test_every_selector_of_every_rule_names_an_exposed_metric(rule):
    recorded = {recording.name: recording.known.labels for recording in RECORDINGS}
    for node in selectors(promql_parser.parse(str(rule.expr))):
        labels = recorded.get(node.name) or alert_cases.declared(node.name)
        assert {matcher.name for matcher in node.matchers.matchers} <= set(labels)
        for matcher in node.matchers.matchers:
            if matcher.name == "le":
                bounds = {bound for by_metric in BOUNDS.values() for values in by_metric.values() for bound in values}
                assert float(matcher.value) in bounds


def selectors(tree):
    selected = []
    promql_parser.walk(
        tree, lambda node: selected.append(node) if isinstance(node, promql_parser.VectorSelector) else None
    )
    assert selected or "vector(" in str(tree), tree
    return selected


def exposed(metric, label):
    """Return the values that a label has on the recorded pages."""
    pattern = re.compile(rf"^{metric}(?:_bucket|_count|_sum)?\{{(?:[^}}]*,)?{label}=\"([^\"]*)\"", re.MULTILINE)
    return {
        value for page in (ROOT / "tests" / "golden").rglob("*.prom") for value in pattern.findall(page.read_text())
    }


# Values that no recorded page happens to hold, each with where it comes from.
NOT_RECORDED = {
    ("shardwatch_source_up", "source", "driver"): "the daemon's name of the driver, in every live page",
    ("shardwatch_source_down_info", "source", "driver"): "the same",
    ("shardwatch_source_down_info", "reason", "released"): "exporter.driver.daemon.supervisor, after SIGUSR1",
    ("gateway_pool_requests_total", "pool", ""): "a gateway that counts only as a whole: nginx's stub_status",
}


def test_label_values_that_rules_ask_for_are_values_that_the_page_has():
    asked = set()
    for rule in EVERY:
        for node in selectors(promql_parser.parse(str(rule.expr))):
            if ":" not in node.name and node.name not in alert_cases.FOREIGN:
                for matcher in node.matchers.matchers:
                    if str(matcher.op) == "MatchOp.Equal" and matcher.name != "le":
                        asked.add((re.sub(r"_(bucket|count)\Z", "", node.name), matcher.name, matcher.value))
    assert len(asked) > 8
    missing = {request for request in asked - set(NOT_RECORDED) if request[2] not in exposed(request[0], request[1])}
    assert not missing


def test_what_alerts_read_by_window_is_what_window_missing_watches():
    watched = next(alert for alert in ALERTS if alert.name == "WindowMissing")
    read = {
        (node.name, matcher.value)
        for alert in ALERTS
        for node in selectors(promql_parser.parse(str(alert.expr)))
        for matcher in node.matchers.matchers
        if matcher.name == "window"
    }
    judged = {name for name, _ in read} - {m.GATEWAY_REQUEST_SHARE_RATIO.name}  # only leaves out canaries
    assert len(judged) == 2
    assert {window for _, window in read} == {WINDOW}
    assert judged <= watched.expr.sources
    assert WINDOW in {window.label for window in Settings().windows}, "what ships must not fire it"


def test_alerts_that_users_need_by_default_read_the_common_set_of_series():
    full = full_series_metrics()
    lacking = {
        alert.name
        for alert in ALERTS
        if alert.expr.sources & full and alert.labels.get("objective") != "duration"  # as DurationSloBurn
    }
    features = {
        "SpeculationAcceptanceDropped",
        "HostKvCacheThrashing",
        "KvTransfersFail",
        "LoraSlotsExhausted",
        "ModelLoadSlow",
        "PrefillDecodeUneven",
    }
    assert lacking <= {"GpuNvlinkErrors", "GpuPcieReplays"} | features
    assert all(alert.full_series for alert in ALERTS if alert.name in lacking | {"DurationSloBurn"})


def test_recordings_stand_before_the_alerts_that_read_them():
    for group in FOUND:
        own = {recording.name for recording in group.recordings()}
        recorded = set()
        for rule in group.rules:
            if isinstance(rule, Recording):
                recorded.add(rule.name)
            else:
                assert rule.expr.sources & own <= recorded, rule.name


def test_what_pages_is_a_symptom_and_every_cause_is_a_ticket():
    critical = {alert.name for alert in ALERTS if alert.severity is Severity.CRITICAL}
    assert {"GpuLost", "EngineDown", "EngineFrozen", "EngineNoTokens", "AvailabilitySloBurn"} <= critical
    assert not [name for name in critical if name.startswith(("GpuXid", "GpuEcc", "GpuHot", "GpuMemory", "Group"))]
    assert {alert.name for alert in ALERTS if alert.severity is Severity.NONE} == {"Watchdog"}


def test_every_text_is_written_in_chinese_too():
    for alert in ALERTS:
        for text in (alert.summary, alert.description):
            assert re.search(r"[\u4e00-\u9fff]", text.zh), alert.name
            assert not re.search(r"[\u4e00-\u9fff]", text.en), alert.name


def test_the_panels_that_alerts_link_to_have_distinct_ids_and_uids():
    panels = [value for value in vars(panel_ids).values() if isinstance(value, panel_ids.PanelId)]
    assert len({(panel.dashboard, panel.number) for panel in panels}) == len(panels)
    assert all(len(dashboard.value) <= 40 for dashboard in panel_ids.DashboardUid)


def test_nothing_newer_than_the_oldest_prometheus_is_used():
    for rule in EVERY:
        for function in (
            "info(",
            "limit_ratio",
            "limitk",
            "histogram_fraction",
            "double_exponential",
            "fill_",
            "sort_by_label",
        ):
            assert not re.search(rf"\b{re.escape(function)}", str(rule.expr)), rule.name


def test_increase_is_not_used_for_first_samples():
    """Events whose series begin with their first event are judged by level or time: increase() never sees a first sample."""
    for alert in ALERTS:
        if alert.name.startswith(("GpuXid", "GpuNvswitch")) or alert.name == "GpuEccUncorrectable":
            assert "increase(" not in str(alert.expr)
    assert "increase(" in str(increase(select(m.LLM_PREEMPTIONS_TOTAL), "5m"))
