"""The preview of the dashboards: what it asks follows from the generated files; and, with a browser, that it draws."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import struct
import time
from types import SimpleNamespace

import pytest

from dashboards.preview import __main__ as command
from dashboards.preview import ask, drawing, plan, programs, recording
from exporter.model.text import Language
from tests.support.dashboard_queries import LANGUAGES, UIDS, dashboard, panels

WINDOW = plan.TimeRange(start=1_000_000.0, end=1_000_600.0, scrape=2.0)


def made(uid="shardwatch-node", language="en", *, chosen=None, width=1600, unfold=True):
    return plan.plan(plan.load(uid, language), WINDOW, chosen or {}, width=width, unfold=unfold)


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("uid", UIDS)
def test_every_query_of_a_dashboard_runs_once_and_nothing_is_left_to_fill_in(uid, language):
    asked = [(request.panel, request.ref) for request in made(uid, language).requests]
    written = [
        (panel["id"], target["refId"])
        for panel in panels(dashboard(uid, language))
        for target in panel.get("targets", ())
    ]
    assert sorted(asked) == sorted(written)
    assert not [request.expr for request in made(uid, language).requests if re.search(r"\$(?!\d)", request.expr)]


def test_a_collapsed_row_is_not_queried_unless_it_is_unfolded():
    folded, unfolded = made(unfold=False), made(unfold=True)
    assert len(folded.requests) < len(unfolded.requests)
    assert folded.height < unfolded.height


def test_unfolded_rows_push_down_what_is_below_them_and_nothing_overlaps():
    cells = set()
    for item in made("shardwatch-fleet").panels:
        grid = item["gridPos"]
        mine = {
            (x, y) for x in range(grid["x"], grid["x"] + grid["w"]) for y in range(grid["y"], grid["y"] + grid["h"])
        }
        assert not mine & cells, item["title"]
        cells |= mine


def test_a_chosen_value_matches_itself_alone_and_all_is_the_variables_own_pattern():
    asked = made(chosen={"instance": ["node.1:9853", "node-2:9853"], "replica": ["a+b"]})
    series = next(request.expr for request in asked.requests if "gpu_up{" in request.expr)
    assert 'instance=~"(node\\\\.1:9853|node-2:9853)"' in series
    assert 'job=~".+"' in series
    pattern = re.search(r'instance=~"([^"]+)"', series)[1].replace("\\\\", "\\")
    assert re.fullmatch(pattern, "node.1:9853") and not re.fullmatch(pattern, "nodeX1:9853")
    assert ("Instance", "node.1:9853, node-2:9853") in asked.chosen


def test_a_variable_that_the_dashboard_lacks_is_refused_by_name():
    with pytest.raises(programs.PreviewError, match="no variable colour"):
        made(chosen={"colour": ["red"]})


def test_a_dashboard_that_was_never_generated_says_how_to_make_it(tmp_path):
    with pytest.raises(programs.PreviewError, match="make generate"):
        plan.load("shardwatch-node", "en", str(tmp_path))
    with pytest.raises(programs.PreviewError, match="make generate"):
        plan.uids("en", str(tmp_path))


@pytest.mark.parametrize(
    ("seconds", "points", "scrape", "step"),
    [(600, 800, 2, 2), (600, 100, 2, 10), (3600, 720, 5, 5), (86400, 500, 5, 300)],
)
def test_the_step_is_round_and_never_below_a_scrape(seconds, points, scrape, step):
    window = plan.TimeRange(start=0.0, end=float(seconds), scrape=float(scrape))
    assert plan.step_of(window, points) == step


def test_macros_are_filled_in_as_grafana_does():
    filled = plan.filled(
        "rate(x[$__rate_interval]) + y[$__range] + z[${__interval}] > $gpu", {"gpu": "1"}, WINDOW, 2.0
    )
    assert filled == "rate(x[8s]) + y[600s] + z[2s] > 1"
    with pytest.raises(programs.PreviewError, match="unknown"):
        plan.filled("x[$unknown]", {}, WINDOW, 2.0)


def test_the_begin_of_the_range_is_a_number_and_groups_of_a_pattern_stay():
    given = plan.filled('x * 1000 > $__from or label_replace(y, "a", "$1", "b", "(.+)")', {}, WINDOW, 2.0)
    assert given == 'x * 1000 > 1000000000 or label_replace(y, "a", "$1", "b", "(.+)")'


def test_marks_that_wait_to_be_switched_on_are_not_asked_for():
    asked = {uid: [annotation["name"] for annotation, _ in made(uid).annotations] for uid in UIDS}
    assert "Engine restarts" in asked["shardwatch-node"]
    assert "Engine restarts" not in asked["shardwatch-fleet"] and "XID events" in asked["shardwatch-fleet"]


def test_the_page_knows_which_marks_are_times_by_themselves():
    class Silent:
        def ask(self, _request):
            return {"result": []}

    given = ask.answers(Silent(), made())
    timed = {annotation["name"] for annotation in given["annotations"] if annotation["timed"]}
    assert timed == {"XID events", "NVSwitch errors", "Shardwatch starts"}


def test_a_daemon_that_ends_by_itself_ends_the_recording_at_once_and_is_named():
    node = recording.nodes_of("idle")[0]
    ended = SimpleNamespace(poll=lambda: 3, returncode=3)
    with pytest.raises(programs.PreviewError, match=r"idle-0:9853 ended with 3"):
        recording._live({node: ended}, time.time() + 600)


@pytest.mark.parametrize("given", ["replica", "=chat", ""])
def test_a_variable_without_a_value_is_refused_before_anything_is_recorded(monkeypatch, capsys, given):
    monkeypatch.setattr(command, "program", lambda name: name)
    monkeypatch.setattr(command, "_recorded", lambda *_: pytest.fail("it records"))
    assert command.main(["--var", given]) == 1
    assert "write NAME=VALUE" in capsys.readouterr().err


def test_all_nodes_stand_on_the_fleets_dashboard_and_one_on_a_dashboard_of_gpus():
    assert plan.takes_all(dashboard("shardwatch-fleet"), "instance")
    assert not plan.takes_all(dashboard("shardwatch-node"), "instance")


def test_daemons_that_shall_be_dead_end_before_the_recording_does(monkeypatch, tmp_path):
    messages = []

    @contextlib.contextmanager
    def child(_command, name):
        yield SimpleNamespace(send_signal=lambda number: messages.append((name, number)), poll=lambda: None)

    @contextlib.contextmanager
    def prometheus(_folder, _config):
        yield "http://127.0.0.1:1"
        assert messages == [("idle-0:9853", signal.SIGTERM)], "while Prometheus still scrapes"

    monkeypatch.setattr(recording, "_child", child)
    monkeypatch.setattr(recording, "_prometheus", prometheus)
    monkeypatch.setattr(recording, "_address_of", lambda _process, _node: "127.0.0.1:1")
    monkeypatch.setattr(recording, "program", lambda name: name)
    monkeypatch.setattr(recording, "DEAD_SECONDS", 0.0)
    recording.record(
        str(tmp_path), ["healthy", "idle"], seconds=0.0, fault_at=0.0, language=Language.ENGLISH, dead=["idle"]
    )
    assert len(messages) == 1 and recording.load(str(tmp_path)) is not None


def test_a_status_history_requests_no_more_points_than_grafana_draws():
    for uid in UIDS:
        asked = made(uid)
        histories = {item["id"]: item["gridPos"]["w"] for item in asked.panels if item["type"] == "status-history"}
        for request in asked.requests:
            if request.panel in histories:
                assert WINDOW.seconds / request.step <= 1280 / 24 * histories[request.panel] / 2, request.expr


def test_a_query_that_prometheus_refuses_is_reported_with_its_panel():
    asked = made()
    given = {"data": {str(asked.requests[0].panel): {"A": {"error": "parse error"}}}}
    problems_found = ask.problems(asked, given)
    assert len(problems_found) == 1
    assert problems_found[0].startswith("shardwatch-node, ") and problems_found[0].endswith("A: parse error")


@pytest.mark.parametrize(("name", "package"), programs.PACKAGES.items())
def test_a_missing_program_is_named_with_its_debian_package(monkeypatch, name, package):
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(programs.PreviewError, match=f"{name} is not installed: apt-get install {package}"):
        programs.program(name)


def test_the_command_ends_with_the_message_and_not_with_a_trace(monkeypatch, capsys):
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setattr(command.signal, "signal", lambda *_: None)
    assert command.main([]) == 1
    assert capsys.readouterr().err.startswith("preview: prometheus is not installed")


def test_a_scenario_with_two_kinds_of_software_has_two_nodes_and_an_unknown_one_is_refused():
    assert [node.instance for node in recording.nodes_of("drift")] == ["drift-0:9853", "drift-1:9853"]
    with pytest.raises(programs.PreviewError, match="known: healthy"):
        recording.nodes_of("sunny")


def test_a_recording_is_read_back_as_it_was_written(tmp_path):
    assert recording.load(str(tmp_path)) is None
    data = {
        "folder": "elsewhere",
        "nodes": [{"scenario": "heat", "number": 0}],
        "start": 1.0,
        "fault": 2.0,
        "end": 3.0,
    }
    (tmp_path / "recording.json").write_text(json.dumps(data))
    loaded = recording.load(str(tmp_path))
    assert loaded.nodes == (recording.RecordedNode(scenario="heat"),) and loaded.folder == str(tmp_path)


def test_every_picture_says_that_it_is_not_grafana():
    for language in LANGUAGES:
        shown = drawing.describe(made(language=language), {}, language=language, theme="dark", subtitle="x")
        assert "Grafana" in shown["honest"]


def test_the_lock_file_names_no_registry():
    with open(os.path.join(drawing.HERE, "package-lock.json"), encoding="utf-8") as file:
        lock = json.load(file)
    assert not [name for name, item in lock["packages"].items() if "resolved" in item]
    assert all("integrity" in item for name, item in lock["packages"].items() if name)


def ready_to_draw():
    """CI draws a recording (``test_now_on_screen``) and needs no live minutes."""
    programs_there = all(shutil.which(name) for name in ("chromium", "node", "npm", "prometheus", "haproxy"))
    installed = os.path.exists(os.path.join(command.CACHE, "installed.json"))
    return programs_there and installed and os.environ.get("CI") != "true"


if ready_to_draw():

    @pytest.mark.slow
    @pytest.mark.timeout(900)
    def test_the_preview_draws_a_dashboard_of_a_node_that_it_ran(tmp_path):
        folder = tmp_path / "recording"
        arguments = ["--scenario", "healthy", "--minutes", "0.4", "--store", str(folder), "--output", str(tmp_path)]
        assert command.main([*arguments, "--dashboard", "shardwatch-node", "--unfold"]) == 0
        head = (tmp_path / "healthy-node-en.png").read_bytes()[:24]
        width, height = struct.unpack(">II", head[16:24])
        assert head.startswith(b"\x89PNG") and width == 1600 and height > 2000
