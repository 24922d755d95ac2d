"""The boards and their files: what is refused, what is generated, what every panel must say."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace

import promql_parser
import pytest
import yaml
from board_queries import GENERATED, LANGUAGES, UIDS, board, filled, panels, queries
from test_boards_lint import selectors

from alerts import boards as named
from alerts.text import Language, Text
from alerts.thresholds import DEFAULTS
from dashboards.__main__ import files, main
from dashboards.board import Board, Row, refuse_overlaps, refuse_twins
from dashboards.boards import BOARDS
from dashboards.errors import BoardError
from dashboards.panels import Cell, Shown, column, lines, series, stat, table
from dashboards.panels.paint import LABELS
from dashboards.panels.record import Kind, unit_of
from dashboards.scope import seen
from dashboards.traces import TRACES
from dashboards.words import NO_VALUE, Needs
from exporter.catalog import CATALOG
from exporter.catalog import metrics as m
from exporter.catalog.spec import Kind as MetricKind
from exporter.promql import max_by, rate, select, sum_by

T = Text
RULES = GENERATED.parents[1] / "alerts" / "generated" / "en" / "rules.yaml"
TITLE, SHOWS = T("Power by card", "功率"), T("Watts drawn.", "功率。")
CHINESE = re.compile(r"[\u4e00-\u9fff]")


def panel(ask=lambda: max_by(seen(m.GPU_POWER_WATTS), "gpu"), legend="{{gpu}}", **more):
    return lines(TITLE, SHOWS, series(ask, legend), **more)


# ---------------------------------------------------------------------- generated files


def test_the_generated_files_are_what_the_code_makes():
    assert main(["--check"]) == 0


def test_a_changed_missing_or_strange_file_is_found(tmp_path, capsys):
    assert main(["--output", str(tmp_path), "--language", "en"]) == 0
    assert main(["--output", str(tmp_path), "--language", "en", "--check"]) == 0
    (tmp_path / "en" / "shardwatch-old.json").write_text("{}")
    (tmp_path / "en" / "shardwatch-node.json").write_text("{}")
    (tmp_path / "en" / "shardwatch-fleet.json").unlink()
    assert main(["--output", str(tmp_path), "--language", "en", "--check"]) == 1
    said = capsys.readouterr().err
    assert "shardwatch-node.json differs" in said and "shardwatch-fleet.json differs" in said
    assert "shardwatch-old.json belongs to no board" in said
    assert main(["--output", str(tmp_path), "--language", "en"]) == 0
    assert not (tmp_path / "en" / "shardwatch-old.json").exists()
    assert not (tmp_path / "zh").exists()


def test_a_fresh_interpreter_makes_the_same_bytes(tmp_path):
    command = [sys.executable, "-m", "dashboards", "--output", str(tmp_path)]
    environment = {"PYTHONHASHSEED": "7", "PATH": "/usr/bin"}
    done = subprocess.run(
        command, cwd=GENERATED.parents[1], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    made = {path.relative_to(tmp_path): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    kept = {path.relative_to(GENERATED): path.read_bytes() for path in GENERATED.rglob("*") if path.is_file()}
    assert made == kept


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_provisioning_files_agree_with_the_boards(language):
    made = files(Language(language))
    maps = "kubernetes/shardwatch-dashboards.yaml"
    read = {name: yaml.safe_load(text) for name, text in made.items() if name.endswith(".yaml") and name != maps}
    (source,) = read["provisioning/datasources/shardwatch.yaml"]["datasources"]
    assert source["uid"] and source["jsonData"]["timeInterval"] == "5s" and source["editable"] is False
    (provider,) = read["provisioning/dashboards/shardwatch.yaml"]["providers"]
    assert provider["allowUiUpdates"] is False and provider["folderUid"]
    home = made["provisioning/grafana.env"].splitlines()[-1].partition("=")[2]
    assert home == f"{provider['options']['path']}/shardwatch-fleet.json"
    documents = list(yaml.safe_load_all(made[maps]))
    assert len({one["metadata"]["name"] for one in documents}) == len(UIDS)
    assert all(len(json.dumps(one)) < 262_144 for one in documents)  # what kubectl apply can keep in its annotation
    held = {name: text for one in documents for name, text in one["data"].items()}
    assert {name: json.loads(text) for name, text in held.items()} == {
        f"{uid}.json": board(uid, language) for uid in UIDS
    }


def test_the_languages_differ_in_words_only():
    def bare(value):
        if isinstance(value, dict):
            return {key: bare(one) for key, one in value.items() if key not in ("renameByName", "indexByName")}
        if isinstance(value, list):
            return [bare(one) for one in value]
        return (
            ""
            if isinstance(value, str) and not value.startswith(("#", "shardwatch-")) and " by (" not in value
            else value
        )

    for uid in UIDS:
        assert bare(board(uid, "en")) == bare(board(uid, "zh"))
        assert [one.expr for one in queries(uid, "en")] == [one.expr for one in queries(uid, "zh")]


def test_the_english_files_hold_no_chinese_and_the_chinese_say_all_in_chinese():
    for uid in UIDS:
        assert not CHINESE.search((GENERATED / "en" / f"{uid}.json").read_text(encoding="utf-8"))
        silent = [one["title"] for one in panels(board(uid, "zh")) if not CHINESE.search(one["description"])]
        assert silent == []


# ---------------------------------------------------------------------- what every board has


@pytest.mark.parametrize("uid", UIDS)
def test_a_board_has_the_fixed_frame(uid):
    data = board(uid)
    assert data["schemaVersion"] == 42 and data["id"] is None and data["uid"] == uid and len(uid) <= 40
    assert data["editable"] is False and data["refresh"] == "30s" and data["graphTooltip"] == 1
    assert [one["name"] for one in data["templating"]["list"]] == [
        "datasource", "job", "instance", "model", "replica", "gpu",
    ]  # fmt: skip
    (link,) = data["links"]
    assert link["keepTime"] and link["includeVars"] and link["tags"] == data["tags"]
    assert any("ALERTS" in one["target"]["expr"] for one in data["annotations"]["list"])
    assert any("gpu_xid_events_total" in one["target"]["expr"] for one in data["annotations"]["list"])
    visible = [one for one in data["panels"] if one["type"] != "row"]
    assert 10 <= len(visible) <= 25


def test_every_panel_that_an_alert_links_to_is_there():
    wanted = {(one.board.value, one.number) for one in vars(named).values() if isinstance(one, named.Panel)}
    there = {(uid, one["id"]) for uid in UIDS for one in panels(board(uid))}
    assert len(wanted) > 25
    assert wanted <= there


@pytest.mark.parametrize("uid", UIDS)
@pytest.mark.parametrize("language", LANGUAGES)
def test_every_panel_says_what_it_shows_and_what_no_data_means(uid, language):
    for one in panels(board(uid, language)):
        assert one["title"].strip() and one["description"].strip(), one["title"]
        if one.get("targets"):
            assert one["fieldConfig"]["defaults"]["noValue"], one["title"]
        for target in one.get("targets", ()):
            assert target["legendFormat"] and target["instant"] is not target["range"], one["title"]


def test_no_panel_draws_grafanas_own_red_line_at_80():
    for uid in UIDS:
        for one in panels(board(uid)):
            steps = one.get("fieldConfig", {}).get("defaults", {}).get("thresholds", {}).get("steps", [])
            assert steps == [] or steps[0]["value"] is None, one["title"]
            assert 80 not in [step["value"] for step in steps], one["title"]


def test_a_figure_that_needs_the_full_set_says_so_and_is_hidden():
    common = {metric.name for metric in CATALOG if metric.series.value == "common"}
    for one in BOARDS:
        for row in one.rows:
            for shown in row.panels:
                for given in shown.series:
                    ours = {name for name in given.expr.sources if name in {metric.name for metric in CATALOG}}
                    if ours - common:
                        assert Needs.FULL in shown.needs and row.collapsed, shown.title.en
                if Needs.FULL in shown.needs:
                    assert shown.needs[0] is Needs.FULL and row.collapsed, shown.title.en


def test_the_three_kinds_of_nothing_look_different():
    fleet = {one["title"]: one for one in panels(board("shardwatch-fleet"))}
    defaults = fleet["TTFT within target"]["fieldConfig"]["defaults"]
    dead, nothing = defaults["mappings"]
    assert dead["options"]["-9999"]["text"] == "exporter dead"
    assert nothing["options"]["result"]["text"] == defaults["noValue"] == "no traffic"
    first_token = next(one for one in panels(board("shardwatch-replica")) if one["title"] == "Time to first token")
    said = first_token["fieldConfig"]["defaults"]["noValue"]
    assert said.startswith("no traffic") and "exporter is dead" in said
    assert len({text.en for text in NO_VALUE.values()}) == len({text.zh for text in NO_VALUE.values()}) == len(Needs)


def test_the_colours_change_where_the_alerts_do():
    node = {one["id"]: one for one in panels(board("shardwatch-node"))}
    steps = node[named.NODE_MEMORY.number]["fieldConfig"]["defaults"]["thresholds"]["steps"]
    assert [step["value"] for step in steps] == [None, DEFAULTS.card_memory.warning, DEFAULTS.card_memory.critical]
    below = node[named.NODE_TEMPERATURE.number]["fieldConfig"]["defaults"]["thresholds"]["steps"]
    margin = DEFAULTS.temperature_margin
    assert [step["value"] for step in below] == [None, margin.critical, margin.warning]
    assert steps[0]["color"] == below[-1]["color"] != steps[-1]["color"] == below[0]["color"]


# ---------------------------------------------------------------------- queries against the catalogue


def exposed():
    """Give every sample name of the catalogue with its labels, and what Prometheus itself adds."""
    found = {name: {"job", "instance"} for name in ("up", "scrape_duration_seconds", "scrape_samples_scraped")}
    found["ALERTS"] = {"alertname", "alertstate", "severity", "component", "job", "instance"}
    for name in re.findall(r"record: (\S+)", RULES.read_text(encoding="utf-8")):
        found[name] = (
            {"job", "model", "class", "objective"} if name.startswith("job_model_class_objective:") else set()
        )
    for metric in CATALOG:
        labels = {"job", "instance", *metric.all_labels}
        if metric.kind is MetricKind.HISTOGRAM:
            found |= {
                f"{metric.name}_bucket": labels | {"le"},
                f"{metric.name}_sum": labels,
                f"{metric.name}_count": labels,
            }
        else:
            found[metric.name] = labels
    return found


@pytest.mark.parametrize("uid", UIDS)
def test_every_query_asks_for_what_is_exposed(uid):
    known = exposed()
    for one in queries(uid):
        promql_parser.parse(filled(one.expr))
        for selector, _ in selectors(one.expr):
            assert selector.name in known, f"{one}: {selector.name}"
            asked = {matcher.name for matcher in selector.matchers.matchers}
            assert asked <= known[selector.name], f"{one}: {asked - known[selector.name]}"


@pytest.mark.parametrize("uid", UIDS)
def test_the_links_lead_to_boards_and_carry_every_variable(uid):
    found = 0
    for one in panels(board(uid)):
        config = one.get("fieldConfig", {"defaults": {}, "overrides": []})
        given = list(config["defaults"].get("links", ()))
        for override in config["overrides"]:
            given += [link for prop in override["properties"] if prop["id"] == "links" for link in prop["value"]]
        for link in given:
            found += 1
            path, _, query = link["url"].partition("?")
            if path == f"{TRACES}/search":
                continue  # of another program: see test_boards_traces.py
            assert path.removeprefix("/d/") in UIDS
            assert query.startswith("${__url_time_range}&${datasource:queryparam}")
            for name in ("job", "instance", "model", "replica", "gpu"):
                assert f"${{{name}:queryparam}}" in query or f"var-{name}=${{__" in query, link["url"]
    assert found >= 2


def test_the_way_leads_from_the_fleet_over_the_node_to_the_card():
    nodes = next(one for one in panels(board("shardwatch-fleet")) if one["title"] == "Nodes, the worst first")
    cards = next(one for one in panels(board("shardwatch-node")) if one["title"] == "Cards side by side")
    owners = next(one for one in panels(board("shardwatch-node")) if one["title"] == "Who uses which card")
    assert "/d/shardwatch-node?" in json.dumps(nodes)
    assert 'var-gpu=${__data.fields[\\"Card\\"]:percentencode}' in json.dumps(cards).replace('\\\\\\"', '\\"')
    assert "/d/shardwatch-replica?" in json.dumps(owners)


# ---------------------------------------------------------------------- what is refused


def test_a_vanished_metric_names_the_panel():
    with pytest.raises(BoardError, match=r"^Power by card: .*GPU_GONE"):
        panel(lambda: seen(m.GPU_GONE))


def test_a_dropped_label_names_the_panel():
    with pytest.raises(BoardError, match=r"^Power by card: .*has no label 'sensor'"):
        panel(lambda: seen(m.GPU_POWER_WATTS, sensor="gpu"))
    with pytest.raises(BoardError, match=r"^Power by card: the legend names 'gpu'"):
        panel(lambda: sum_by(seen(m.GPU_POWER_WATTS), "instance"))
    with pytest.raises(BoardError, match=r"^Cards: .*has no label 'rank'"):
        table(T("Cards", "卡"), SHOWS, column(lambda: seen(m.GPU_UP), T("Up", "在线")), rows=("gpu", "rank"))


@pytest.mark.parametrize(
    "made, why",
    [
        (lambda: panel(limit=DEFAULTS.card_memory), "a threshold in RATIO against a figure in watt"),
        (lambda: panel(lambda: seen(m.GPU_ENERGY_JOULES_TOTAL)), "is a raw counter"),
        (lambda: panel(legend=" "), "without a legend"),
        (lambda: lines(TITLE, SHOWS), "without a query"),
        (lambda: lines(T("", ""), SHOWS, series(lambda: seen(m.GPU_UP), "{{gpu}}")), "title is missing"),
        (lambda: lines(TITLE, T("Watts.", ""), series(lambda: seen(m.GPU_UP), "x")), "description is missing"),
        (
            lambda: panel(lambda: seen(m.GPU_POWER_WATTS) * seen(m.GPU_UTILIZATION_RATIO) * seen(m.GPU_POWER_WATTS)),
            "unit",
        ),
        (
            lambda: lines(
                TITLE, SHOWS, series(lambda: seen(m.GPU_POWER_WATTS), "a"), series(lambda: seen(m.GPU_UP), "b")
            ),
            "one axis for short, watt",
        ),
        (
            lambda: stat(TITLE, SHOWS, series(lambda: seen(m.GPU_POWER_WATTS), "w", shown=Shown.REQUESTS)),
            "cannot be shown",
        ),
    ],
)
def test_a_panel_that_would_mislead_is_refused(made, why):
    with pytest.raises(BoardError, match=why):
        made()


def small(*rows, uid=named.Board.NODE, title="Test"):
    return Board(uid=uid, title=T(title, "测试"), shows=SHOWS, rows=rows)


def test_two_panels_of_one_title_in_a_row_are_refused():
    with pytest.raises(BoardError, match="Test, row One: two panels are called 'Power by card'"):
        small(Row(title=T("One", "一"), panels=(panel(), panel()))).render(Language.ENGLISH)


def test_panels_of_different_height_in_a_line_and_too_wide_ones_are_refused():
    one, other = panel(), replace(panel(), title=T("Other", "另"), height=5)
    with pytest.raises(BoardError, match="5 high in a line of 8"):
        small(Row(title=T("One", "一"), panels=(one, other))).render(Language.ENGLISH)
    with pytest.raises(BoardError, match="25 columns"):
        small(Row(title=T("One", "一"), panels=(replace(one, width=25),))).render(Language.ENGLISH)


def test_more_panels_than_anybody_reads_are_refused():
    many = tuple(replace(panel(), title=T(f"Panel {number}", "面板")) for number in range(26))
    with pytest.raises(BoardError, match="26 panels at once"):
        small(Row(title=T("One", "一"), panels=many)).render(Language.ENGLISH)
    small(Row(title=T("One", "一"), panels=many, collapsed=True)).render(Language.ENGLISH)


def test_overlapping_panels_and_one_id_twice_are_refused():
    data = board("shardwatch-node")
    first, second = [one for one in data["panels"] if one["type"] != "row"][:2]
    kept = dict(second["gridPos"])
    second["gridPos"] = dict(first["gridPos"])
    with pytest.raises(BoardError, match="Cards lost overlaps Exporters dead"):
        refuse_overlaps(data)
    second["gridPos"] = dict(kept, x=22)
    with pytest.raises(BoardError, match="outside of the 24 columns"):
        refuse_overlaps(data)
    second["gridPos"], second["id"] = kept, first["id"]
    with pytest.raises(BoardError, match="the id .* twice"):
        refuse_overlaps(data)


def test_two_boards_of_one_uid_or_title_are_refused():
    row = Row(title=T("One", "一"), panels=(panel(),))
    with pytest.raises(BoardError, match="uid shardwatch-node"):
        refuse_twins([small(row), small(row, title="Other")])
    with pytest.raises(BoardError, match="title Test"):
        refuse_twins([small(row), small(row, uid=named.Board.FLEET)])


def test_a_wrong_board_ends_the_command_with_its_message(monkeypatch, capsys):
    def broken(_language, _traces):
        raise BoardError("Power by card: gone")

    monkeypatch.setattr("dashboards.__main__.files", broken)
    assert main(["--check"]) == 1
    assert capsys.readouterr().err == "dashboards: Power by card: gone\n"


# ---------------------------------------------------------------------- units and tables


@pytest.mark.parametrize(
    "expr, shown, unit",
    [
        (select(m.GPU_POWER_WATTS), None, "watt"),
        (rate(select(m.GPU_ENERGY_JOULES_TOTAL), "5m"), None, "watt"),
        (rate(select(m.GPU_PCIE_TRANSMIT_BYTES_TOTAL), "5m"), None, "binBps"),
        (select(m.GPU_UTILIZATION_RATIO), None, "percentunit"),
        (select(m.LLM_REPLICA_IMBALANCE_MAX_TO_MEAN_RATIO), Shown.FACTOR, "none"),
        (rate(select(m.LLM_REQUESTS_TOTAL), "5m"), Shown.REQUESTS, "reqps"),
        (rate(select(m.GPU_IDLE_SECONDS_TOTAL), "5m"), None, "percentunit"),
    ],
)
def test_the_unit_follows_from_the_query(expr, shown, unit):
    assert unit_of(expr, shown) == unit


def test_a_table_names_and_orders_its_columns_and_keeps_cards_that_lack_a_signal():
    made = table(
        T("Cards", "卡"), SHOWS,
        column(lambda: seen(m.GPU_UP), T("State", "状态")),
        column(lambda: seen(m.GPU_POWER_WATTS), T("Power", "功率"), cell=Cell.BAR),
        rows=("instance", "gpu"),
    )  # fmt: skip
    data = small(Row(title=T("One", "一"), panels=(made,))).render(Language.ENGLISH)
    shown = data["panels"][1]
    merge, organise = shown["transformations"]
    assert merge["id"] == "merge"
    assert organise["options"]["renameByName"] == {
        "instance": "Node", "gpu": "Card", "Value #A": "State", "Value #B": "Power",
    }  # fmt: skip
    assert list(organise["options"]["indexByName"].values()) == [0, 1, 2, 3]
    first = {one["matcher"]["options"]: one["properties"][0] for one in shown["fieldConfig"]["overrides"]}
    units = {name: one["value"] for name, one in first.items() if one["id"] == "unit"}
    assert units == {"State": "short", "Power": "watt"}
    assert first["Card"] == {"id": "noValue", "value": "–"}
    assert {target["format"] for target in shown["targets"]} == {"table"}


def test_every_label_of_a_tables_row_has_a_heading_and_none_is_left_over():
    assert {label for one in BOARDS for panel in one.panels for label in panel.rows} == set(LABELS)


def test_every_kind_of_panel_is_in_use():
    assert {panel.kind for one in BOARDS for panel in one.panels} == set(Kind)
