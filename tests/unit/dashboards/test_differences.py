"""``shardwatch dashboards --diff``: what an upgrade changes about the dashboards that are in use."""

from __future__ import annotations

import json
import shutil

import pytest

from dashboards.__main__ import command
from tests.support.dashboard_queries import GENERATED

ENGLISH = ["--language", "en"]


@pytest.fixture
def folder(tmp_path):
    shutil.copytree(GENERATED / "en", tmp_path / "en")
    return tmp_path


def edited(folder, edit, name="shardwatch-node.json"):
    path = folder / "en" / name
    content = json.loads(path.read_text(encoding="utf-8"))
    edit(content)
    path.write_text(json.dumps(content), encoding="utf-8")


def panel(content, title):
    (found,) = (
        panel for top in content["panels"] for panel in (top, *top.get("panels", ())) if panel.get("title") == title
    )
    return found


def diff(folder, capsys):
    code = command(["--output", str(folder), "--diff", *ENGLISH])
    return code, capsys.readouterr().out.replace(f"{folder}/en/", "")


def test_files_that_are_current_have_no_differences(folder, capsys):
    assert diff(folder, capsys) == (0, "")


def test_other_formatting_and_other_places_are_no_difference(folder, capsys):
    def moved(content):
        panel(content, "Utilisation by GPU")["gridPos"]["y"] += 8

    edited(folder, moved)
    assert diff(folder, capsys) == (0, "")


def test_panels_queries_thresholds_and_variables_are_named(folder, capsys):
    def older(content):
        panel(content, "Memory by GPU")["title"] = "Memory"
        temperature = panel(content, "Temperature margin")
        temperature["fieldConfig"]["defaults"]["thresholds"]["steps"][-1]["value"] = 33
        use = panel(content, "Utilisation by GPU")
        use["type"] = "table"
        use["targets"][0]["expr"] = "gpu_utilization_ratio"
        content["templating"]["list"].pop()

    edited(folder, older)
    code, printed = diff(folder, capsys)
    assert code == 1
    assert printed.startswith("shardwatch-node.json: 2 added, 1 removed, 2 changed\n  + variable gpu\n")
    assert "  + panel Memory by GPU\n  - panel Memory\n" in printed
    assert "  ~ panel Temperature margin\n      thresholds " in printed
    assert "  ~ panel Utilisation by GPU\n      type table -> timeseries\n      query A:\n" in printed


def test_new_and_stale_dashboards_are_named(folder, capsys):
    (folder / "en" / "shardwatch-now.json").unlink()
    (folder / "en" / "shardwatch-old.json").write_text("{}")
    code, printed = diff(folder, capsys)
    assert code == 1
    assert "shardwatch-now.json: 1 added\n  + new file\n" in printed
    assert "shardwatch-old.json: 1 removed\n  - belongs to no dashboard\n" in printed


@pytest.mark.parametrize("content", ["{", "[]", "[" * 100_000])
def test_a_file_that_is_no_dashboard_is_an_error_and_not_a_difference(content, folder, capsys):
    (folder / "en" / "shardwatch-node.json").write_text(content)
    assert command(["--output", str(folder), "--diff", *ENGLISH]) == 2
    assert "shardwatch-node.json is not" in capsys.readouterr().err


@pytest.mark.parametrize(
    "content", ['{"panels": 3}', '{"panels": [1, {"title": "x", "targets": 3}]}', '{"templating": []}']
)
def test_a_dashboard_of_another_shape_is_compared_all_the_same(content, folder, capsys):
    (folder / "en" / "shardwatch-node.json").write_text(content)
    code, printed = diff(folder, capsys)
    assert code == 1 and "+ panel Utilisation by GPU" in printed
