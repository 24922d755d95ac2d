"""What pictures of the dashboards taught: nothing out of sight, nothing that Grafana refuses to draw, no GPU missing."""

from __future__ import annotations

import pytest

from exporter.model.straggler import Cause
from tests.support.dashboard_queries import UIDS, dashboard, panels


def every(kind):
    return [panel for uid in UIDS for panel in panels(dashboard(uid)) if panel["type"] == kind]


@pytest.mark.parametrize("uid", UIDS)
def test_no_two_panels_of_a_dashboard_have_one_title(uid):
    titles = [panel["title"] for panel in panels(dashboard(uid))]
    assert len(set(titles)) == len(titles)


def test_a_status_history_requests_few_points_since_grafana_refuses_to_draw_many():
    assert {item["maxDataPoints"] for item in every("status-history")} == {100}


def test_an_axis_reaches_to_its_thresholds_so_that_zeros_are_not_drawn_under_10000_percent():
    for item in every("timeseries"):
        defaults = item["fieldConfig"]["defaults"]
        limits = [step["value"] for step in defaults["thresholds"]["steps"] if step["value"] is not None]
        if limits and "max" not in defaults:
            assert defaults["custom"]["axisSoftMax"] > max(limits), item["title"]


def test_a_narrow_list_of_series_has_no_figures_which_would_push_names_out_of_sight():
    for item in every("timeseries"):
        legend = item["options"]["legend"]
        assert bool(legend["calcs"]) == (legend["displayMode"] == "table"), item["title"]


def test_bars_of_a_table_are_measured_by_their_own_column():
    for item in every("table"):
        for override in item["fieldConfig"]["overrides"]:
            properties = {each["id"]: each["value"] for each in override["properties"]}
            if properties.get("custom.cellOptions", {}).get("type") == "gauge":
                assert properties["fieldMinMax"] is True, item["title"]


def test_every_cause_for_which_others_wait_has_words_on_the_node_dashboard():
    gpus = next(panel for panel in panels(dashboard("shardwatch-node")) if panel["title"] == "GPUs side by side")
    override = next(item for item in gpus["fieldConfig"]["overrides"] if item["matcher"]["options"] == "Straggler")
    words = next(each["value"] for each in override["properties"] if each["id"] == "mappings")[0]["options"]
    assert set(words) == {str(place) for place, _ in enumerate(Cause, 1)}
    for place, cause in enumerate(Cause, 1):
        assert any(f'cause="{cause.value}"}} * {place}' in target["expr"] for target in gpus["targets"])


def test_a_lost_gpu_keeps_its_row_beside_the_gpus_that_wait_for_it():
    (gpus,) = (panel for panel in panels(dashboard("shardwatch-replica")) if panel["title"] == "GPUs side by side")
    assert "max_over_time(gpu_replica_info" in gpus["targets"][0]["expr"]
