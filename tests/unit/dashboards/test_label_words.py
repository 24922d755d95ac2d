"""What a table shows for label values: words in the reader's language, criticals in red, money with its currency."""

from __future__ import annotations

import pytest

from dashboards.panels.panel import Colour
from exporter.model.xid_catalog import CATALOGUE
from tests.support.dashboard_queries import LANGUAGES, UIDS, dashboard, panels


def panel(uid, title, language="en"):
    titles = [item["title"] for item in panels(dashboard(uid, "en"))]
    return list(panels(dashboard(uid, language)))[titles.index(title)]


def words(shown, column):
    (override,) = [item for item in shown["fieldConfig"]["overrides"] if item["matcher"]["options"] == column]
    properties = {item["id"]: item["value"] for item in override["properties"]}
    return properties["mappings"][0]["options"]


@pytest.mark.parametrize("language, column", [("en", "Action"), ("zh", "建议操作")])
def test_every_action_of_an_xid_is_shown_as_words(language, column):
    shown = words(panel("shardwatch-gpu-health", "XIDs and recommended actions", language), column)
    assert {xid.action for xid in CATALOGUE.values()} <= set(shown)
    assert not [said["text"] for said in shown.values() if "_" in said["text"].replace("gpu_recovery_action", "")]


def test_the_meaning_of_an_xid_is_chinese_on_a_chinese_dashboard():
    shown = words(panel("shardwatch-gpu-health", "XIDs and recommended actions", "zh"), "含义")
    assert "总线掉落" in shown[CATALOGUE[79].meaning]["text"]
    lacking = {xid.meaning for xid in CATALOGUE.values()} - set(shown)
    assert lacking == set()


def test_an_xid_that_takes_the_gpu_and_an_ejected_gpu_are_red():
    classes = words(panel("shardwatch-gpu-health", "XIDs and recommended actions"), "Class")
    assert classes["reset_node"]["color"] == classes["reset_card"]["color"] == Colour.CRITICAL.value
    verdicts = words(panel("shardwatch-gpu-health", "Verdicts on GPUs"), "State")
    assert verdicts["eject"]["color"] == Colour.CRITICAL.value


def test_no_new_xid_is_pale_and_not_green():
    shown = panel("shardwatch-gpu-health", "XIDs by GPU")["fieldConfig"]["defaults"]["mappings"]
    assert shown[0]["options"]["0"]["color"] == "transparent"


@pytest.mark.parametrize("uid", sorted(set(UIDS) - {"shardwatch-now"}))
def test_critical_alerts_are_counted_in_red_beside_the_warnings(uid):
    shown = panel(uid, "Alerts firing")
    (own,) = [item for item in shown["fieldConfig"]["overrides"] if item["properties"][0]["id"] == "thresholds"]
    critical = next(target for target in shown["targets"] if 'severity="critical"' in target["expr"])
    assert own["matcher"]["options"] == critical["refId"]
    assert own["properties"][0]["value"]["steps"][-1] == {"color": Colour.CRITICAL.value, "value": 1}


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("uid", UIDS)
def test_money_is_shown_with_its_currency(uid, language):
    for item in panels(dashboard(uid, language)):
        if any(target.get("legendFormat", "").endswith("{{currency}}") for target in item.get("targets", ())):
            units = {
                override["matcher"]["options"]: override["properties"][0]["value"]
                for override in item["fieldConfig"]["overrides"]
            }
            assert units["/ CNY$/"] == "currencyCNY", item["title"]
