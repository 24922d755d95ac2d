"""Where an alert's link leads: to a panel that asks for the figure which the alert judges, of what the alert names."""

from __future__ import annotations

import re

import pytest

from alerts.panel_ids import DashboardUid
from alerts.registry import groups
from alerts.render import files
from alerts.tuning import Tuning
from dashboards.definitions import DASHBOARDS
from exporter.model.text import Language
from tests.support.dashboard_queries import LANGUAGES, UIDS, dashboard, panels, queries
from tests.unit.dashboards.test_lint import selectors

GROUPS = groups(Tuning())
ALERTS = {" ".join(rule.identity): rule for group in GROUPS for rule in group.alerts()}
RECORDED: dict[str, set[str]] = {}
for _group in GROUPS:
    for _one in _group.recordings():
        RECORDED.setdefault(_one.name, set()).update(_one.expr.sources)
# Alerts whose panel asks for something else, and why it shows the fault nevertheless.
SHOWN_OTHERWISE = {
    "ShardwatchBlind": "each source's strip ends or turns; the alert has no source of its own to name",
    "GpuNvlinkDown": "the number of active links steps down by those that went",
    "PrefixCacheHitRateDropped": "the same share as the daemon counts it, over the window of the dashboards",
    "SpeculationAcceptanceDropped": "the same share as the daemon counts it, over the window of the dashboards",
    "GroupMemoryUneven": "the same ratio as the daemon computes it by group; the alert also names the GPU",
    "AvailabilitySloBurn": "the failures themselves, by replica; the burn stands on Fleet",
    "SloNotEvaluable": "quantiles of the same requests, which buckets without that bound still give",
    "DurationSloBurn": "the durations themselves, by replica; the burn stands on Fleet",
}


def families(names):
    """Return the families of the catalogue behind these, recordings resolved."""
    reached, pending = set(), list(names)
    while pending:
        name = pending.pop()
        if name not in reached:
            reached.add(name)
            pending += RECORDED.get(name, ())
    return {name for name in reached if ":" not in name}


def metrics_of(panel):
    """Return what the panel that is linked to asks for."""
    for query in queries(panel.dashboard.value):
        if query.number == panel.number:
            for selector, _ in selectors(query.expr):
                yield re.sub(r"_(bucket|sum|count)$", "", selector.name)


@pytest.mark.parametrize("name", ALERTS)
def test_the_figure_of_an_alert_stands_in_the_panel_that_it_links_to(name):
    alert = ALERTS[name]
    if alert.panel is None or alert.name in SHOWN_OTHERWISE:
        return
    shown = families(metrics_of(alert.panel))
    assert shown & families(alert.expr.sources), f"{alert.panel}: {sorted(shown)}"


def test_no_exception_is_left_over():
    needed = {
        alert.name for alert in ALERTS.values()
        if alert.panel is not None and not families(metrics_of(alert.panel)) & families(alert.expr.sources)
    }  # fmt: skip
    assert needed == set(SHOWN_OTHERWISE)
    assert all(len(why) > 20 for why in SHOWN_OTHERWISE.values())


def test_only_alerts_about_prometheus_and_alertmanager_lead_to_no_dashboard():
    without = {alert.name for alert in ALERTS.values() if alert.panel is None}
    of_others = {
        alert.name for alert in ALERTS.values()
        if all(name.startswith(("prometheus_", "alertmanager_")) for name in alert.expr.sources)
    }  # fmt: skip
    assert without == of_others and "Watchdog" in without and len(without) >= 8


@pytest.mark.parametrize("language", list(Language))
def test_an_alert_without_a_dashboard_has_no_link_to_one_and_every_other_has(language):
    text = files(GROUPS, Tuning(), language)["rules.yaml"]
    linked = [alert for alert in ALERTS.values() if alert.panel is not None]
    assert text.count("dashboard_url: ") == sum(1 for group in GROUPS for alert in group.alerts() if alert.panel)
    assert linked and "var-job={{ $labels.job | urlquery }}&var-instance" in text


def test_a_link_to_a_dashboard_of_gpus_names_the_node_since_that_dashboard_shows_no_node_by_itself():
    per_gpu = {shown_dashboard.uid for shown_dashboard in DASHBOARDS if shown_dashboard.per_gpu}
    assert DashboardUid.NODE in per_gpu
    for alert in ALERTS.values():
        if alert.panel is not None and alert.panel.dashboard in per_gpu:
            assert "instance" in alert.expr.labels, alert.name


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_dashboards_of_gpus_begin_with_one_node_and_take_several_and_all_others_begin_with_all(language):
    per_gpu = {shown_dashboard.uid.value for shown_dashboard in DASHBOARDS if shown_dashboard.per_gpu}
    for uid in UIDS:
        (nodes,) = (
            variable for variable in dashboard(uid, language)["templating"]["list"] if variable["name"] == "instance"
        )
        assert nodes["multi"] and nodes["includeAll"] is (uid not in per_gpu)
        assert ("current" in nodes) is nodes["includeAll"], "without a current value Grafana takes the first"


def test_the_panel_of_every_link_is_drawn_once():
    numbers = [(uid, panel["id"]) for uid in UIDS for panel in panels(dashboard(uid))]
    for alert in ALERTS.values():
        if alert.panel is not None:
            assert numbers.count((alert.panel.dashboard.value, alert.panel.number)) == 1, alert.name
