"""The committed files are what the code generates, for any process and language."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from alerts.__main__ import BAD_INPUT, FAILED, GENERATED, OK, command, main
from alerts.render import RESOURCES, RULES
from exporter.model.text import Language

ROOT = Path(__file__).parents[3]


def test_what_is_committed_is_what_the_code_makes():
    assert main(["--check"]) == OK


def test_a_file_that_differs_or_is_missing_or_is_left_over_is_named(tmp_path, capsys):
    assert main(["--output", str(tmp_path), "--language", "en"]) == OK
    assert main(["--output", str(tmp_path), "--language", "en", "--check"]) == OK
    assert not (tmp_path / "zh").exists()
    (tmp_path / "en" / RULES).write_text("groups: []\n")
    (tmp_path / "en" / "prometheusrule.yaml").unlink()
    (tmp_path / "en" / "old.yaml").write_text("")
    assert main(["--output", str(tmp_path), "--language", "en", "--check"]) == FAILED
    stderr = capsys.readouterr().err
    assert "rules.yaml differs" in stderr
    assert "prometheusrule.yaml is missing" in stderr
    assert "old.yaml is no longer generated" in stderr


def test_a_refused_thresholds_file_writes_nothing(tmp_path, capsys):
    bad = tmp_path / "mine.yaml"
    bad.write_text("thresholds: {nope: {warning: 1}}\n")
    assert main(["--output", str(tmp_path / "out"), "--thresholds", str(bad)]) == BAD_INPUT
    assert "thresholds.?" in capsys.readouterr().err
    assert main(["--output", str(tmp_path / "out"), "--thresholds", str(tmp_path / "none.yaml")]) == BAD_INPUT
    assert not (tmp_path / "out").exists()


def test_the_runbooks_address_can_be_given_where_rules_are_made(tmp_path, capsys):
    mine = tmp_path / "mine.yaml"
    mine.write_text('links: {runbook: "https://old.example/runbook.md"}')
    address = "https://wiki.example.org/gpu/runbook.md"
    assert main(["--output", str(tmp_path), "--thresholds", str(mine), "--runbook-url", address]) == OK
    english, chinese = ((tmp_path / language.value / RULES).read_text() for language in Language)
    assert f"runbook_url: {address}#gpulost" in english
    assert "runbook_url: https://wiki.example.org/gpu/runbook.zh.md#gpulost" in chinese
    for bad in ("alerts/runbook.md", "https://a b/", "ftp://a/b"):
        with pytest.raises(SystemExit):
            main(["--output", str(tmp_path), "--runbook-url", bad])
    assert "must be a URL" in capsys.readouterr().err


def test_the_address_of_grafana_can_be_given_where_rules_are_made(tmp_path):
    assert main(["--output", str(tmp_path), "--lang", "en", "--base-url", "https://grafana.example.org/"]) == OK
    rules = (tmp_path / "en" / RULES).read_text()
    assert "dashboard_url: https://grafana.example.org/d/shardwatch-" in rules
    assert "//localhost" not in rules


def test_the_installed_command_says_which_links_do_not_work_elsewhere(tmp_path, capsys):
    assert command(["--output", str(tmp_path), "--language", "en"]) == OK
    hints = capsys.readouterr().err.splitlines()
    assert [option for hint in hints for option in hint.split() if option.startswith("--")] == ["--base-url"]
    links = ["--base-url", "https://grafana.example.org", "--runbook-url", "https://wiki.example.org/runbook.md"]
    assert command(["--output", str(tmp_path), "--language", "en", *links]) == OK
    assert capsys.readouterr().err == ""


def test_a_directory_that_cannot_be_written_is_one_line(tmp_path, capsys):
    place = tmp_path / "file"
    place.write_text("")
    assert command(["--output", str(place)]) == FAILED
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("shardwatch alerts: cannot write ") and line.endswith(": Not a directory")


def test_generating_does_not_depend_on_the_process():
    script = "from alerts.__main__ import generated; from alerts.tuning import Tuning; from exporter.model.text import Language\n"
    script += "import hashlib; print(hashlib.sha256(repr(sorted(generated(Tuning(), list(Language)).items())).encode()).hexdigest())"
    outputs = {
        subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, cwd=ROOT, check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert len(outputs) == 1


def test_the_kubernetes_resources_hold_the_same_rules():
    for language in Language:
        folder = GENERATED / language.value
        rules, *resources = (yaml.safe_load((folder / name).read_text()) for name in (RULES, *RESOURCES))
        held = [group for resource in resources for group in resource["spec"]["groups"]]
        assert sorted(held, key=str) == sorted(rules["groups"], key=str)
        for resource in resources:
            assert (resource["apiVersion"], resource["kind"]) == ("monitoring.coreos.com/v1", "PrometheusRule")
