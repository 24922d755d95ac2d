"""Every alert fires when it must and is silent when it must be, evaluated by promtool."""

from __future__ import annotations

import json
import os
import pathlib
import re
import shutil
import subprocess

import pytest

from alerts.__main__ import GENERATED
from alerts.registry import groups
from alerts.render import RULES, files
from alerts.tuning import Tuning
from exporter.model.text import Language
from tests.support import alert_cases

GOLDEN = pathlib.Path(__file__).parents[2] / "golden"
PAGES = ("cards-healthy.prom", "vllm-0.32.0-real-cpu.prom")
PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(
    PROMTOOL is None and os.environ.get("CI") != "true", reason="promtool is not installed"
)


def promtool(*arguments: str) -> str:
    done = subprocess.run([PROMTOOL or "promtool", *arguments], capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@needs_promtool
@pytest.mark.slow
@pytest.mark.parametrize("table", alert_cases.tables(), ids=lambda table: table.stem)
def test_alerts_fire_and_stay_silent_as_the_table_says(table, tmp_path):
    tests = []
    for name, text in alert_cases.promtool_files(table, Tuning()):
        (tmp_path / name).write_text(text)
        tests += [str(tmp_path / name)] if name.endswith(".test.yaml") else []
    assert tests
    promtool("test", "rules", *tests)


def test_every_alert_has_a_case_in_which_it_fires_and_one_in_which_it_does_not():
    rows = [case for table in alert_cases.tables() for case in alert_cases.cases(table)]
    several = {}
    for alert in alert_cases.every_alert():
        several.setdefault(alert.name, set()).add(alert.severity.value)
    for name, severities in several.items():
        for severity in severities:
            about = [case for case in rows if case.alert == name and case.severity in ("", severity)]
            if len(severities) > 1:
                assert [case for case in about if case.severity == severity and case.fires], (
                    f"{name} {severity} never fires"
                )
            if name != "Watchdog":
                assert [case for case in about if not case.fires], f"{name} {severity} is never silent"
            assert [case for case in about if case.fires], f"{name} never fires"
    assert {case.alert for case in rows} == set(several), "cases about alerts that do not exist"


def test_no_case_says_what_another_says():
    names = [(case.alert, case.sentence) for table in alert_cases.tables() for case in alert_cases.cases(table)]
    assert len(names) == len(set(names))


def firing(series: dict[str, str], at: str, tmp_path) -> set[str]:
    """Return the alerts that fire then, of all rules."""
    (tmp_path / RULES).write_text(files(groups(Tuning()), Tuning(), Language.ENGLISH)[RULES])
    ask = {"expr": 'count by (alertname) (ALERTS{alertstate="firing"})', "eval_time": at, "exp_samples": []}
    rows = [{"series": name, "values": values} for name, values in series.items()]
    test = {"rule_files": [RULES], "tests": [{"interval": "1m", "input_series": rows, "promql_expr_test": [ask]}]}
    (tmp_path / "case.yaml").write_text(json.dumps(test))
    done = subprocess.run(
        [PROMTOOL or "promtool", "test", "rules", tmp_path / "case.yaml"], capture_output=True, text=True, timeout=170
    )
    return set(re.findall(r'alertname=\\?"(\w+)', done.stdout + done.stderr))


ABOUT_ABSENCE = {"NoAlertmanager", "ShardwatchAbsent", "ShardwatchDown", "Watchdog"}


@needs_promtool
@pytest.mark.slow
def test_where_nothing_was_ever_scraped_only_alerts_about_absence_fire(tmp_path):
    assert firing({}, "2h", tmp_path) == {"ShardwatchAbsent", "Watchdog"}


@needs_promtool
@pytest.mark.slow
def test_series_that_end_fire_only_alerts_about_absence(tmp_path):
    """A node with GPUs and a replica is scraped for half an hour, then its target fails and all its series end."""
    lines = [line for name in PAGES for line in (GOLDEN / name).read_text().splitlines() if not line.startswith("#")]
    labels = 'job="shardwatch",instance="n1:9853"'
    series = {}
    for line in lines:
        name, value = line.rsplit(" ", 1)
        name = name[:-1] + f",{labels}}}" if name.endswith("}") else f"{name}{{{labels}}}"
        series[name] = f"{value}x30 stale"
    series[f"up{{{labels}}}"] = "1x30 0x150"
    fired = firing(series, "2h", tmp_path)
    assert "ShardwatchDown" in fired
    assert fired <= ABOUT_ABSENCE


@needs_promtool
@pytest.mark.parametrize("language", list(Language))
def test_promtool_accepts_the_generated_rules(language):
    text = promtool("check", "rules", str(GENERATED / language.value / RULES))
    assert f"SUCCESS: {sum(len(group.rules) for group in groups(Tuning()))} rules found" in text
