"""Units and tables: how figures are written, columns named and ordered, trends made."""

from __future__ import annotations

import pytest

from dashboards.dashboard import Row
from dashboards.definitions import DASHBOARDS
from dashboards.errors import DashboardError
from dashboards.panels import Cell, NumberFormat, column, series, table, time_series
from dashboards.panels.field_config import LABELS
from dashboards.panels.panel import PanelKind, unit_of
from dashboards.variables import selected
from exporter.catalog import metrics as m
from exporter.model.text import Language
from exporter.promql import rate, select, sum_by
from tests.support.dashboard_queries import UIDS, panels
from tests.support.dashboard_queries import dashboard as board_file
from tests.support.dashboard_samples import SHOWS, T, small
from tests.support.records import replace


@pytest.mark.parametrize(
    "expr, shown, unit",
    [
        (select(m.GPU_POWER_WATTS), None, "watt"),
        (rate(select(m.GPU_ENERGY_JOULES_TOTAL), "5m"), None, "watt"),
        (rate(select(m.GPU_PCIE_TRANSMIT_BYTES_TOTAL), "5m"), None, "binBps"),
        (select(m.GPU_UTILIZATION_RATIO), None, "percentunit"),
        (select(m.LLM_REPLICA_IMBALANCE_MAX_TO_MEAN_RATIO), NumberFormat.FACTOR, "none"),
        (rate(select(m.LLM_REQUESTS_TOTAL), "5m"), NumberFormat.REQUESTS, "reqps"),
        (rate(select(m.GPU_IDLE_SECONDS_TOTAL), "5m"), None, "percentunit"),
        (select(m.GPU_NVLINK_BIT_ERROR_RATIO), NumberFormat.TINY, "sci"),
    ],
)
def test_the_unit_follows_from_the_query(expr, shown, unit):
    assert unit_of(expr, shown) == unit


def test_a_table_names_and_orders_its_columns_and_keeps_gpus_that_lack_a_signal():
    made = table(
        T("GPUs", "GPU"), SHOWS,
        column(lambda: selected(m.GPU_UP), T("State", "状态")),
        column(lambda: selected(m.GPU_POWER_WATTS), T("Power", "功率"), cell=Cell.BAR),
        rows=("instance", "gpu"),
    )  # fmt: skip
    data = small(Row(title=T("One", "一"), panels=(made,))).render(Language.ENGLISH)
    shown = data["panels"][1]
    merge, organise = shown["transformations"]
    assert merge["id"] == "merge"
    assert organise["options"]["renameByName"] == {
        "instance": "Node", "gpu": "GPU", "Value #A": "State", "Value #B": "Power",
    }  # fmt: skip
    assert list(organise["options"]["indexByName"].values()) == [0, 1, 2, 3]
    first = {item["matcher"]["options"]: item["properties"][0] for item in shown["fieldConfig"]["overrides"]}
    units = {name: item["value"] for name, item in first.items() if item["id"] == "unit"}
    assert units == {"State": "short", "Power": "watt"}
    assert first["GPU"] == {"id": "noValue", "value": "–"}
    assert {target["format"] for target in shown["targets"]} == {"table"}


def trending(*others):
    made = table(
        T("Nodes", "节点"), SHOWS, *others,
        column(lambda: sum_by(selected(m.GPU_POWER_WATTS), "instance"), T("Power", "功率"), cell=Cell.TREND),
        rows=("instance",),
    )  # fmt: skip
    return small(Row(title=T("One", "一"), panels=(made,))).render(Language.ENGLISH)["panels"][1]


def test_a_trend_requests_the_chosen_time_and_is_joined_to_the_figures_of_now():
    shown = trending(column(lambda: selected(m.GPU_UP), T("State", "状态")))
    now, over_time = shown["targets"]
    assert (now["instant"], now["format"]) == (True, "table")
    assert (over_time["instant"], over_time["range"], over_time["format"]) == (False, True, "time_series")
    assert shown["maxDataPoints"] == 100
    trend, merge, organise = shown["transformations"]
    assert trend == {"id": "timeSeriesTable", "filter": {"id": "byRefId", "options": "B"}, "options": {}}
    assert merge["id"] == "merge"
    assert organise["options"]["renameByName"] == {
        "instance": "Node", "Value #A": "State", "Trend #B": "Power",
    }  # fmt: skip
    (cell,) = (
        item["properties"] for item in shown["fieldConfig"]["overrides"] if item["matcher"]["options"] == "Power"
    )
    look = {item["id"]: item["value"] for item in cell}["custom.cellOptions"]
    assert look["type"] == "sparkline"
    assert look["hideValue"] is True, "the last value of a dead exporter would stand as if it were of now"


def test_a_fact_is_its_labels_and_the_one_beside_them_is_left_out():
    made = table(
        T("Versions", "版本"), SHOWS, column(lambda: selected(m.GPU_DRIVER_INFO), T("Seen", "已见"), cell=Cell.FACT),
        rows=("instance", "driver_version"),
    )  # fmt: skip
    shown = small(Row(title=T("One", "一"), panels=(made,))).render(Language.ENGLISH)["panels"][1]
    organise = shown["transformations"][-1]["options"]
    assert organise["excludeByName"] == {"Time": True, "Value": True}
    assert list(organise["renameByName"]) == ["instance", "driver_version"]
    assert "Seen" not in [item["matcher"]["options"] for item in shown["fieldConfig"]["overrides"]]


def test_a_trend_alone_or_outside_of_a_table_is_refused():
    with pytest.raises(DashboardError, match="a trend is a column beside others of a table"):
        trending()
    asked = replace(series(lambda: selected(m.GPU_POWER_WATTS), "{{gpu}}"), cell=Cell.TREND)
    with pytest.raises(DashboardError, match="a trend is a column beside others of a table"):
        time_series(T("Power", "功率"), SHOWS, asked)


def test_tables_without_trends_ask_for_one_moment_only():
    assert any(
        query.cell is Cell.TREND for dashboard in DASHBOARDS for panel in dashboard.panels for query in panel.series
    )
    for uid in UIDS:
        for item in panels(board_file(uid)):
            if item["type"] == "table":
                trends = [target for target in item["targets"] if target["range"]]
                made = [step for step in item["transformations"] if step["id"] == "timeSeriesTable"]
                assert [step["filter"]["options"] for step in made] == [target["refId"] for target in trends]


def test_every_label_of_a_tables_row_has_a_heading_and_none_is_left_over():
    assert {label for dashboard in DASHBOARDS for panel in dashboard.panels for label in panel.rows} == set(LABELS)


def test_every_kind_of_panel_is_in_use():
    assert {panel.kind for dashboard in DASHBOARDS for panel in dashboard.panels} == set(PanelKind)
