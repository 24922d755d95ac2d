"""What pictures of the boards taught: nothing out of sight, nothing that Grafana refuses to draw, no card missing."""

from __future__ import annotations

from exporter.model.straggler import Cause
from tests.support.dashboard_queries import UIDS, dashboard, panels


def every(kind):
    return [one for uid in UIDS for one in panels(dashboard(uid)) if one["type"] == kind]


def test_a_status_history_asks_for_few_points_since_grafana_refuses_to_draw_many():
    assert {one["maxDataPoints"] for one in every("status-history")} == {100}


def test_an_axis_reaches_to_its_thresholds_so_that_zeros_are_not_drawn_under_10000_percent():
    for one in every("timeseries"):
        defaults = one["fieldConfig"]["defaults"]
        limits = [step["value"] for step in defaults["thresholds"]["steps"] if step["value"] is not None]
        if limits and "max" not in defaults:
            assert defaults["custom"]["axisSoftMax"] > max(limits), one["title"]


def test_a_narrow_list_of_series_has_no_figures_which_would_push_names_out_of_sight():
    for one in every("timeseries"):
        legend = one["options"]["legend"]
        assert bool(legend["calcs"]) == (legend["displayMode"] == "table"), one["title"]


def test_bars_of_a_table_are_measured_by_their_own_column():
    for one in every("table"):
        for override in one["fieldConfig"]["overrides"]:
            properties = {each["id"]: each["value"] for each in override["properties"]}
            if properties.get("custom.cellOptions", {}).get("type") == "gauge":
                assert properties["fieldMinMax"] is True, one["title"]


def test_every_cause_for_which_others_wait_has_words_on_the_node_board():
    cards = next(one for one in panels(dashboard("shardwatch-node")) if one["title"] == "GPUs side by side")
    said = next(one for one in cards["fieldConfig"]["overrides"] if one["matcher"]["options"] == "Straggler")
    words = next(each["value"] for each in said["properties"] if each["id"] == "mappings")[0]["options"]
    assert set(words) == {str(place) for place, _ in enumerate(Cause, 1)}
    for place, cause in enumerate(Cause, 1):
        assert any(f'cause="{cause.value}"}} * {place}' in target["expr"] for target in cards["targets"])


def test_a_lost_card_keeps_its_row_beside_the_cards_that_wait_for_it():
    (cards,) = (one for one in panels(dashboard("shardwatch-replica")) if one["title"] == "GPUs side by side")
    assert "max_over_time(gpu_replica_info" in cards["targets"][0]["expr"]
