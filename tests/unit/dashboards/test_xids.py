"""GPU errors on Node and GPU health: the first XID of a code, lost GPUs, and tables that list only problems."""

from __future__ import annotations

import re

import pytest

from dashboards.panels.panel import Colour
from exporter.model.xid_catalog import CATALOGUE, FATAL, Class
from tests.support.dashboard_promtool import answered
from tests.support.dashboard_queries import LANGUAGES, dashboard, filled, panels

CARD = 'job="shardwatch",instance="n1:9853",gpu="3",uuid="GPU-3"'
NODE_TITLES = {"en": "XIDs in the selected time range", "zh": "所选时间内的 XID"}
CARD_TITLES = {"en": "XIDs by GPU", "zh": "XID（按卡）"}


def events(xid):
    return f'gpu_xid_events_total{{{CARD},xid="{xid}",source="nvml+kernel_log"}}'


def last(xid):
    return f'gpu_xid_last_timestamp_seconds{{{CARD},xid="{xid}",source="nvml+kernel_log"}}'


def panel(uid, title, language):
    return next(item for item in panels(dashboard(uid, language)) if item["title"] == title)


def counted(promtool, tmp_path, series, language="en", minute=4):
    """Return {xid: events} of the node's table, in the two minutes before."""
    (target,) = panel("shardwatch-node", NODE_TITLES[language], language)["targets"]
    samples = answered(promtool, tmp_path, filled(target["expr"]), series, minute=minute)
    return {labels["xid"]: value for labels, value in samples}


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_first_event_of_a_code_stands_in_the_nodes_table(promtool, tmp_path, language):
    first = {events(94): "_x36 1x20", last(94): "_x36 180x20"}
    assert counted(promtool, tmp_path, first, language) == {"94": 1}


def test_several_first_events_and_those_of_a_code_that_stood_at_zero_are_counted(promtool, tmp_path):
    series = {
        events(31): "_x36 3x20", last(31): "_x36 180x20",
        events(79): "0x30 1x30", last(79): "_x30 150x30",
        events(48): "0x60",
    }  # fmt: skip
    counts = counted(promtool, tmp_path, series)
    assert counts == {"31": 3, "79": pytest.approx(1, rel=0.2)}


def test_an_event_before_the_daemons_start_that_the_kernel_log_still_holds_is_there(promtool, tmp_path):
    assert counted(promtool, tmp_path, {last(63): "_x40 130x20"}) == {"63": 1}


def test_what_happened_before_the_chosen_time_is_not_there(promtool, tmp_path):
    old = {events(94): "1x120", last(94): "10x120", events(13): "_x90 1x30", last(13): "_x90 20x30"}
    assert counted(promtool, tmp_path, old, minute=8) == {}


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_first_event_of_a_code_is_a_cell_of_gpu_health_at_its_moment_alone(promtool, tmp_path, language):
    target, _ = panel("shardwatch-gpu-health", CARD_TITLES[language], language)["targets"]
    series = {events(94): "_x36 1x60", last(94): "_x36 180x60"}
    cells = {
        minute: answered(promtool, tmp_path, filled(target["expr"]), series, minute=minute) for minute in (2, 3, 4, 6)
    }
    shown = {minute: [(labels["xid"], value) for labels, value in samples] for minute, samples in cells.items()}
    assert shown == {2: [], 3: [("94", 1)], 4: [("94", 0)], 6: []}


@pytest.mark.parametrize("language", LANGUAGES)
def test_both_dashboards_name_the_same_codes_as_those_that_take_a_gpu_out_of_use(language):
    description = panel("shardwatch-node", NODE_TITLES[language], language)["description"]
    assert {int(code) for code in re.findall(r"\d+", description)} == FATAL
    description = panel("shardwatch-gpu-health", CARD_TITLES[language], language)["description"]
    codes = [int(item) for item in re.findall(r"\d+", description)]
    of_programs = {code for code in codes if CATALOGUE[code].kind is Class.APPLICATION}
    assert set(codes) - of_programs == FATAL and of_programs == {13, 31, 94}
    assert codes.index(min(of_programs)) > max(codes.index(code) for code in FATAL), "programs' errors come last"


@pytest.mark.parametrize("language", LANGUAGES)
def test_uncorrected_errors_stand_beside_the_gpu_for_as_long_as_their_alert_fires(promtool, tmp_path, language):
    titles = {"en": "GPU problems", "zh": "各卡的问题"}
    expr = panel("shardwatch-gpu-health", titles[language], language)["targets"][1]["expr"]
    errors = f'gpu_ecc_errors_total{{{CARD},error="uncorrected",scope="volatile",memory="all"}}'
    samples = answered(promtool, tmp_path, filled(expr), {errors: "3x200"}, minute=12)
    assert [(labels["gpu"], value) for labels, value in samples] == [("3", 3)], "long before the chosen time"


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_gpu_that_does_not_answer_stays_red_after_its_xid(promtool, tmp_path, language):
    xids = panel("shardwatch-gpu-health", CARD_TITLES[language], language)
    _, lost = xids["targets"]
    up = {f"gpu_up{{{CARD}}}": "1x36 0x60", f"gpu_up{{{CARD.replace('3', '4')}}}": "1x96"}
    shown = {
        minute: [
            (labels["gpu"], value)
            for labels, value in answered(promtool, tmp_path, filled(lost["expr"]), up, minute=minute)
        ]
        for minute in (2, 4, 7)
    }
    assert shown == {2: [], 4: [("3", 1)], 7: [("3", 1)]}
    (override,) = xids["fieldConfig"]["overrides"]
    assert override["matcher"] == {"id": "byFrameRefID", "options": lost["refId"]}
    assert override["properties"][0]["value"]["steps"][-1] == {"color": Colour.CRITICAL.value, "value": 1}


@pytest.mark.parametrize(
    ("uid", "titles"),
    [
        ("shardwatch-gpu-health", {"en": "GPU problems", "zh": "各卡的问题"}),
        ("shardwatch-node", {"en": "Degraded links", "zh": "降级的链路"}),
    ],
)
@pytest.mark.parametrize("language", LANGUAGES)
def test_a_table_of_problems_has_no_row_for_a_healthy_gpu(promtool, tmp_path, uid, titles, language):
    healthy = {
        f"gpu_up{{{CARD}}}": "1x96", f"gpu_nvlink_links_down{{{CARD}}}": "0x96", f"gpu_data_age_seconds{{{CARD}}}": "1x96",
        **{f"gpu_{flag}{{{CARD}}}": "0x96" for flag in (
            "row_remap_pending", "row_remap_failed", "pcie_link_degraded", "sram_ecc_threshold_exceeded"
        )},
        **{
            f'gpu_ecc_errors_total{{{CARD},error="{error}",scope="volatile",memory="all"}}': "0x96"
            for error in ("corrected", "uncorrected")
        },
    }  # fmt: skip
    sick = {key: "9x96" if "_total" in key or "age" in key else "1x96" for key in healthy} | {
        f"gpu_up{{{CARD}}}": "0x96"
    }
    sick = {
        key: "0+9x96" if 'error="corrected"' in key else "99x96" if "age" in key else values
        for key, values in sick.items()
    }
    for target in panel(uid, titles[language], language)["targets"]:
        assert answered(promtool, tmp_path, filled(target["expr"]), healthy, minute=5) == []
        assert answered(promtool, tmp_path, filled(target["expr"]), sick, minute=5) != [], target["expr"]
