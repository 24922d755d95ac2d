"""What is marked over the curves: that restarts are found, each once, and nothing that is none."""

from __future__ import annotations

import re
import subprocess

import pytest
import yaml

from dashboards.dashboard import Row
from dashboards.definitions import DASHBOARDS
from dashboards.definitions.annotations import PAGING
from dashboards.errors import DashboardError
from dashboards.panels import Annotation
from dashboards.panels.panel import Colour
from dashboards.variables import selected
from exporter.catalog import metrics as m
from exporter.model.text import Language
from exporter.promql import max_by, since
from tests.support.dashboard_queries import LANGUAGES, UIDS, dashboard, marks
from tests.support.dashboard_samples import T, panel, small

STEP = 60  # seconds between two points of an annotation's query, at its finest
EVERY = 5  # seconds between two scrapes
TARGET = 'job="shardwatch",instance="node1:9853"'
TOKENS = f'llm_generation_tokens_total{{{TARGET},replica="chat",engine="vllm",model="llama",rank=""}}'
EVENTS = {"XID events", "NVSwitch errors", "Shardwatch starts"}
ALERTS = {"Firing alerts", "Firing critical alerts"}
DECLARED = {dashboard.uid.value: dashboard.annotations for dashboard in DASHBOARDS}
MANY_NODES = {dashboard.uid.value for dashboard in DASHBOARDS if PAGING in dashboard.annotations}


@pytest.mark.parametrize("uid", UIDS)
def test_a_dashboard_marks_what_explains_its_jumps(uid):
    shown = set(marks(uid))
    assert shown == {annotation.name.en for annotation in DECLARED[uid]}
    hint = f"{uid}: declare annotations, such as OF_NODE of dashboards/definitions/annotations.py; it lacks "
    assert shown >= EVENTS | {"Engine restarts"}, hint + ", ".join(EVENTS | {"Engine restarts"} - shown)
    assert len(shown & ALERTS) == 1, hint + "one of " + ", ".join(sorted(ALERTS))


def test_restarts_are_marked_on_what_shows_few_nodes_and_wait_to_be_switched_on_elsewhere():
    restarts = {name: item for name, given in DECLARED.items() for item in given if item.name.en == "Engine restarts"}
    assert {name for name, item in restarts.items() if not item.on} == MANY_NODES
    assert "shardwatch-fleet" in MANY_NODES and "shardwatch-node" not in MANY_NODES


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_mark_is_grafanas_own_annotation_of_the_chosen_data_source(language):
    for uid in UIDS:
        for annotation in dashboard(uid, language)["annotations"]["list"]:
            assert annotation["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
            assert annotation["iconColor"].startswith("#") and annotation["titleFormat"] and annotation["textFormat"]
            (declared,) = (item for item in DECLARED[uid] if getattr(item.name, language) == annotation["name"])
            assert annotation["enable"] is declared.on
            assert ("$__from" in annotation["target"]["expr"]) is annotation["useValueForTime"], (
                "old moments would stand outside"
            )


def test_the_variables_choose_what_is_marked():
    for uid in UIDS:
        for name, expr in marks(uid).items():
            assert 'instance=~"$instance' in expr and 'job=~"$job' in expr, name


# ---------------------------------------------------------------------- by a real Prometheus


def filled(name, uid, start=0, step=STEP):
    values = {"$__interval": f"{step}s", "$__rate_interval": f"{step + EVERY}s", "$__from": str(start * 1000)}
    expr = marks(uid)[name]
    for macro, value in values.items():
        expr = expr.replace(macro, value)
    return re.sub(r'=~"\$\w+\|?"', '=~".*"', expr)


def marked(promtool, tmp_path, expr, series, minutes):
    """Evaluate at these minutes; return {minute: [(labels, value)]}, as promtool's complaints tell it."""
    asked = [
        {"expr": expr, "eval_time": f"{minute}m", "exp_samples": [{"labels": "{impossible='x'}", "value": minute}]}
        for minute in minutes
    ]
    given = [{"series": name, "values": values} for name, values in series.items()]
    test = {"interval": f"{EVERY}s", "input_series": given, "promql_expr_test": asked}
    path = tmp_path / "marks.yaml"
    path.write_text(yaml.safe_dump({"rule_files": [], "evaluation_interval": "1m", "tests": [test]}))
    done = subprocess.run([promtool, "test", "rules", str(path)], capture_output=True, text=True, timeout=60)
    output = done.stdout + done.stderr
    value_by_minute = {}
    for minute, got in re.findall(r"time: (\S+),\s+exp:.*?got:\s*(.*?)(?=\n\s*expr:|\n\n|\Z)", output, re.DOTALL):
        if got.strip() != "nil":
            value_by_minute[minute] = got.split("\n")[0].strip()
    assert len(re.findall(r"time: ", output)) == len(minutes), output
    return value_by_minute


def rising(start, samples):
    return f"{start}+10x{samples - 1}"


def test_an_engine_that_was_away_for_minutes_is_marked_once_when_it_counts_again(promtool, tmp_path):
    away = {TOKENS: f"{rising(1000, 36)} _x60 {rising(5, 120)}"}  # 3 min, 5 min away, 10 min
    value_by_minute = marked(promtool, tmp_path, filled("Engine restarts", "shardwatch-replica"), away, range(1, 19))
    assert list(value_by_minute) == ["8m"] or list(value_by_minute) == ["9m"], value_by_minute
    assert 'replica="chat"' in next(iter(value_by_minute.values()))


def test_an_engine_that_came_back_between_two_scrapes_is_marked_too_and_each_time(promtool, tmp_path):
    twice = {TOKENS: f"{rising(1000, 30)} {rising(5, 60)} {rising(3, 60)}"}  # after 2.5 and 7.5 min
    value_by_minute = marked(promtool, tmp_path, filled("Engine restarts", "shardwatch-node"), twice, range(1, 13))
    assert list(value_by_minute) == ["3m", "8m"], value_by_minute


def test_a_restart_is_found_also_where_a_month_is_shown_in_steps_of_hours(promtool, tmp_path):
    once = {TOKENS: f"{rising(1000, 360)} {rising(5, 1440)}"}  # after half an hour
    expr = filled("Engine restarts", "shardwatch-replica", step=7200)
    assert list(marked(promtool, tmp_path, expr, once, [120])) == ["2h"]


def test_a_daemons_restart_is_no_engines_restart_and_stands_where_it_began(promtool, tmp_path):
    series = {
        TOKENS: f"{rising(1000, 36)} _x12 {rising(1480, 60)}",
        f"process_start_time_seconds{{{TARGET}}}": "-86400x35 _x12 190x60",
        f'shardwatch_build_info{{{TARGET},version="1.2.3",python_version="3.11"}}': "1x35 _x12 1x60",
        'process_start_time_seconds{job="vllm",instance="node1:8000"}': "100x120",
    }
    assert marked(promtool, tmp_path, filled("Engine restarts", "shardwatch-self"), series, range(1, 9)) == {}
    value_by_minute = marked(
        promtool, tmp_path, filled("Shardwatch starts", "shardwatch-self", 1), series, range(1, 9)
    )
    assert list(value_by_minute) == ["4m", "5m", "6m", "7m", "8m"], "one moment, at whatever step it is asked for"
    assert all(
        'version="1.2.3"' in item and "190000" in item.replace("1.9E+05", "190000")
        for item in value_by_minute.values()
    )
    assert marked(promtool, tmp_path, filled("Shardwatch starts", "shardwatch-self", 200), series, range(1, 9)) == {}


def test_the_newest_xid_is_marked_also_where_it_was_the_first_of_its_code(promtool, tmp_path):
    name = f'gpu_xid_last_timestamp_seconds{{{TARGET},gpu="3",uuid="GPU-3",xid="94",source="kernel_log"}}'
    value_by_minute = marked(
        promtool, tmp_path, filled("XID events", "shardwatch-node", 1), {name: "_x30 150x60"}, range(1, 7)
    )
    assert list(value_by_minute) == ["3m", "4m", "5m", "6m"]
    assert all('xid="94"' in item for item in value_by_minute.values())


# ---------------------------------------------------------------------- what is refused


def note(expr, **more):
    given = {"title": T("{{gpu}}", "{{gpu}}"), "text": "{{instance}}"} | more
    return Annotation(name=T("Lost", "掉卡"), expr=expr, colour=Colour.WARNING, **given)


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (lambda: note(max_by(selected(m.GPU_UP), "gpu")), "names 'instance'"),
        (lambda: note(selected(m.GPU_ENERGY_JOULES_TOTAL)), "is no moment"),
        (lambda: note(selected(m.GPU_UP), timed=True), "is no moment"),
        (
            lambda: note(since(selected(m.GPU_XID_LAST_TIMESTAMP_SECONDS)), title=T("{{gpu}}", "{{rank}}")),
            "names 'rank'",
        ),
    ],
)
def test_a_mark_that_would_say_nothing_is_refused(made, why):
    with pytest.raises(DashboardError, match=why):
        made()


def test_two_kinds_of_marks_with_one_name_are_refused():
    annotation = note(selected(m.GPU_UP))
    row = Row(title=T("One", "一"), panels=(panel(),))
    with pytest.raises(DashboardError, match="two annotations are called 'Lost'"):
        small(row, annotations=(annotation, annotation)).render(Language.ENGLISH)
