"""The dashboards' files: the same bytes for the same code, in both languages, and provisioning that agrees with them."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest
import yaml

from dashboards.__main__ import command, files, main, shipped
from exporter.model.text import Language
from tests.support.dashboard_queries import GENERATED, LANGUAGES, UIDS, dashboard, panels, queries

CHINESE = re.compile(r"[\u4e00-\u9fff]")


def test_the_generated_files_are_what_the_code_makes():
    assert main(["--check"]) == 0


def test_a_changed_missing_or_strange_file_is_found(tmp_path, capsys):
    assert main(["--output", str(tmp_path), "--language", "en"]) == 0
    assert main(["--output", str(tmp_path), "--language", "en", "--check"]) == 0
    (tmp_path / "en" / "shardwatch-old.json").write_text("{}")
    (tmp_path / "en" / "shardwatch-node.json").write_text("{}")
    (tmp_path / "en" / "shardwatch-fleet.json").unlink()
    assert main(["--output", str(tmp_path), "--language", "en", "--check"]) == 1
    stderr = capsys.readouterr().err
    assert "shardwatch-node.json differs" in stderr and "shardwatch-fleet.json differs" in stderr
    assert "shardwatch-old.json belongs to no dashboard" in stderr
    assert main(["--output", str(tmp_path), "--language", "en"]) == 0
    assert not (tmp_path / "en" / "shardwatch-old.json").exists()
    assert not (tmp_path / "zh").exists()


def test_a_fresh_interpreter_makes_the_same_bytes(tmp_path):
    typed = [sys.executable, "-m", "dashboards", "--output", str(tmp_path)]
    environment = {"PYTHONHASHSEED": "7", "PATH": "/usr/bin"}
    done = subprocess.run(
        typed, cwd=GENERATED.parents[1], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    made = {path.relative_to(tmp_path): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    kept = {path.relative_to(GENERATED): path.read_bytes() for path in GENERATED.rglob("*") if path.is_file()}
    assert made == kept


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_files_of_the_package_are_those_that_the_code_makes(language):
    assert shipped(Language(language)) == files(Language(language))


def test_the_installed_program_writes_them_without_grafanalib(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "dashboards.definitions", None)
    assert command(["--output", str(tmp_path), "--language", "en"]) == 0
    assert command(["--output", str(tmp_path), "--language", "en", "--check"]) == 0
    uid = "shardwatch-fleet.json"
    assert (tmp_path / "en" / uid).read_bytes() == (GENERATED / "en" / uid).read_bytes()
    capsys.readouterr()
    assert command(["--output", str(tmp_path), "--thresholds", "missing.yaml"]) == 2
    assert capsys.readouterr().err.startswith("shardwatch dashboards: missing.yaml: 1 problem\n")


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_provisioning_files_agree_with_the_dashboards(language):
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
    assert len({document["metadata"]["name"] for document in documents}) == len(UIDS)
    assert all(
        len(json.dumps(document)) < 262_144 for document in documents
    )  # what kubectl apply can keep in its annotation
    held = {name: text for document in documents for name, text in document["data"].items()}
    assert {name: json.loads(text) for name, text in held.items()} == {
        f"{uid}.json": dashboard(uid, language) for uid in UIDS
    }


@pytest.mark.parametrize(
    ("prometheus", "grafana"),
    [
        ("prometheus/prometheus.yaml", "../dashboards/generated/en/provisioning/datasources/shardwatch.yaml"),
        ("prometheus/fleet.yaml", "grafana/fleet.yaml"),
    ],
)
def test_the_data_source_knows_how_often_the_stacks_prometheus_scrapes(prometheus, grafana):
    folder = GENERATED.parents[1] / "compose"
    scraped = yaml.safe_load((folder / prometheus).read_text(encoding="utf-8"))
    source, *_ = yaml.safe_load((folder / grafana).read_text(encoding="utf-8"))["datasources"]
    (daemons,) = (config for config in scraped["scrape_configs"] if config["job_name"] == "shardwatch")
    every = daemons.get("scrape_interval", scraped["global"]["scrape_interval"])
    assert source["jsonData"]["timeInterval"] == every, "with less, $__rate_interval makes rates with holes"


def test_the_languages_differ_in_words_only():
    def bare(value):
        if isinstance(value, dict):
            return {key: bare(item) for key, item in value.items() if key not in ("renameByName", "indexByName")}
        if isinstance(value, list):
            return [bare(item) for item in value]
        return (
            ""
            if isinstance(value, str) and not value.startswith(("#", "shardwatch-")) and " by (" not in value
            else value
        )

    for uid in UIDS:
        assert bare(dashboard(uid, "en")) == bare(dashboard(uid, "zh"))
        assert [query.expr for query in queries(uid, "en")] == [query.expr for query in queries(uid, "zh")]


def test_the_english_files_hold_no_chinese_and_the_chinese_say_all_in_chinese():
    for uid in UIDS:
        assert not CHINESE.search((GENERATED / "en" / f"{uid}.json").read_text(encoding="utf-8"))
        silent = [
            panel["title"] for panel in panels(dashboard(uid, "zh")) if not CHINESE.search(panel["description"])
        ]
        assert silent == []
