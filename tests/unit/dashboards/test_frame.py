"""What every dashboard and every panel must have: variables, words, ids that alerts link to, colours where alerts change."""

from __future__ import annotations

import json

import pytest

from alerts import panel_ids as ids
from alerts.thresholds import DEFAULTS
from dashboards.definitions import DASHBOARDS
from dashboards.no_data_text import NO_VALUE, Requires
from exporter.catalog import CATALOG
from tests.support.dashboard_promtool import answered
from tests.support.dashboard_queries import LANGUAGES, UIDS, dashboard, filled, panels


@pytest.mark.parametrize("uid", UIDS)
def test_a_dashboard_has_the_fixed_frame(uid):
    data = dashboard(uid)
    assert data["schemaVersion"] == 42 and data["id"] is None and data["uid"] == uid and len(uid) <= 40
    assert data["editable"] is False and data["refresh"] == "30s" and data["graphTooltip"] == 1
    assert [variable["name"] for variable in data["templating"]["list"]] == [
        "datasource", "job", "instance", "model", "replica", "gpu",
    ]  # fmt: skip
    (link,) = data["links"]
    assert link["keepTime"] and link["includeVars"] and link["tags"] == data["tags"]
    visible = [panel for panel in data["panels"] if panel["type"] != "row"]
    too_many = f"{uid} opens {len(visible)} panels, of 25 at most: move details into a Row with collapsed=True"
    assert 1 <= len(visible) <= 25, too_many


def test_every_panel_that_an_alert_links_to_is_there():
    wanted = {(item.dashboard.value, item.number) for item in vars(ids).values() if isinstance(item, ids.PanelId)}
    there = {(uid, panel["id"]) for uid in UIDS for panel in panels(dashboard(uid))}
    assert len(wanted) > 25
    assert wanted <= there


@pytest.mark.parametrize("uid", UIDS)
@pytest.mark.parametrize("language", LANGUAGES)
def test_every_panel_says_what_it_shows_and_what_no_data_means(uid, language):
    for panel in panels(dashboard(uid, language)):
        assert panel["title"].strip() and panel["description"].strip(), panel["title"]
        if panel.get("targets"):
            assert panel["fieldConfig"]["defaults"]["noValue"], panel["title"]
        for target in panel.get("targets", ()):
            assert target["legendFormat"] and target["instant"] is not target["range"], panel["title"]


def test_no_panel_draws_grafanas_own_red_line_at_80():
    for uid in UIDS:
        for panel in panels(dashboard(uid)):
            steps = panel.get("fieldConfig", {}).get("defaults", {}).get("thresholds", {}).get("steps", [])
            assert steps == [] or steps[0]["value"] is None, panel["title"]
            assert 80 not in [step["value"] for step in steps], panel["title"]


def test_a_figure_that_needs_the_full_set_says_so_and_is_hidden():
    common = {metric.name for metric in CATALOG if metric.series.value == "common"}
    for shown_dashboard in DASHBOARDS:
        for row in shown_dashboard.rows:
            for shown in row.panels:
                for given in shown.series:
                    ours = {name for name in given.expr.sources if name in {metric.name for metric in CATALOG}}
                    if ours - common:
                        assert Requires.FULL in shown.requires and row.collapsed, shown.title.en
                if Requires.FULL in shown.requires:
                    assert shown.requires[0] is Requires.FULL and row.collapsed, shown.title.en


def test_the_three_kinds_of_nothing_look_different():
    fleet = {panel["title"]: panel for panel in panels(dashboard("shardwatch-fleet"))}
    defaults = fleet["TTFT SLO attainment"]["fieldConfig"]["defaults"]
    (nothing,) = defaults["mappings"]
    assert nothing["options"]["result"]["text"] == defaults["noValue"] == "no traffic"
    first_token = next(
        panel for panel in panels(dashboard("shardwatch-replica")) if panel["title"] == "Time to first token (TTFT)"
    )
    no_value = first_token["fieldConfig"]["defaults"]["noValue"]
    assert no_value.startswith("no traffic") and "exporter is down" in no_value
    assert (
        len({text.en for text in NO_VALUE.values()}) == len({text.zh for text in NO_VALUE.values()}) == len(Requires)
    )


SINGLE = [
    pytest.param(uid, panel, id=f"{uid} {panel['title']}")
    for uid in UIDS for panel in panels(dashboard(uid)) if panel["type"] in {"stat", "gauge"}
]  # fmt: skip


@pytest.mark.parametrize(("uid", "panel"), SINGLE)
def test_a_down_exporter_is_a_field_of_its_own_and_no_value_of_the_figure(uid, panel):
    *figures, down = panel["targets"]
    override = panel["fieldConfig"]["overrides"][-1]
    assert override["matcher"] == {"id": "byFrameRefID", "options": down["refId"]}
    text = next(item["value"] for item in override["properties"] if item["id"] == "mappings")[0]["options"]["0"][
        "text"
    ]
    assert text == down["legendFormat"] == "exporter down"
    assert figures and all(target["expr"] in down["expr"] for target in figures)
    assert "9999" not in json.dumps(panel), "a sentinel would stand in exports and curves"


def test_the_exporter_is_down_only_while_all_are_and_the_figure_has_no_data(promtool, tmp_path):
    panel = next(item for item in panels(dashboard("shardwatch-efficiency")) if item["title"] == "Tokens per second")
    tokens, down = (filled(target["expr"]) for target in panel["targets"])
    node = 'job="shardwatch",instance="n1:9853"'
    other = 'job="shardwatch",instance="n2:9853"'
    build = {f'shardwatch_build_info{{{item},version="1",python_version="3"}}': "1x30 _x90" for item in (node, other)}
    counter = f'llm_generation_tokens_total{{{node},replica="a",engine="vllm",model="m",rank=""}}'

    def given(first, second, tokens_):
        series = {f"up{{{node}}}": first, f"up{{{other}}}": second, counter: tokens_, **build}
        return [
            [value for _, value in answered(promtool, tmp_path, expr, series, minute=8)] for expr in (tokens, down)
        ]

    assert given("0x120", "0x120", "0+50x30") == [[], [0]]
    assert given("0x120", "1x120", "0+50x30") == [[], []], "one exporter is up: no traffic"
    assert given("1x120", "1x120", "0+50x120") == [[10], []]


def test_the_colours_change_where_the_alerts_do():
    node = {panel["id"]: panel for panel in panels(dashboard("shardwatch-node"))}
    steps = node[ids.NODE_MEMORY.number]["fieldConfig"]["defaults"]["thresholds"]["steps"]
    assert [step["value"] for step in steps] == [
        None,
        DEFAULTS.gpu_memory_used.warning,
        DEFAULTS.gpu_memory_used.critical,
    ]
    below = node[ids.NODE_TEMPERATURE.number]["fieldConfig"]["defaults"]["thresholds"]["steps"]
    margin = DEFAULTS.temperature_margin
    assert [step["value"] for step in below] == [None, margin.critical, margin.warning]
    assert steps[0]["color"] == below[-1]["color"] != steps[-1]["color"] == below[0]["color"]
