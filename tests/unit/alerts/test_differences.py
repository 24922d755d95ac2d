"""``shardwatch alerts --diff``: what an upgrade changes about the rules that are in use."""

from __future__ import annotations

import copy
import shutil

import pytest
import yaml

from alerts import differences
from alerts.__main__ import BAD_INPUT, FAILED, GENERATED, OK, command

ENGLISH = ["--language", "en"]
HOT = {
    "alert": "GpuHot",
    "expr": "gpu_temperature_margin_celsius < 10",
    "for": "5m",
    "labels": {"severity": "warning", "component": "gpu"},
    "annotations": {"summary": "GPU {{ $labels.gpu }} is hot", "action": "Cool it."},
}
RECORDED = {"record": "job:llm_requests:rate5m", "expr": "rate(llm_requests_total[5m])"}


def rule_file(*rules, interval="30s"):
    return yaml.safe_dump({"groups": [{"name": "gpu", "interval": interval, "rules": list(rules)}]})


def changed(**fields):
    return {**copy.deepcopy(HOT), **fields}


@pytest.mark.parametrize(
    ("old", "changes"),
    [
        (changed(), []),
        (
            changed(expr="gpu_temperature_margin_celsius < 8", **{"for": "1m"}),
            ["~ alert GpuHot (warning)", "    threshold 8 -> 10", "    for 1m -> 5m"],
        ),
        (
            changed(labels={"severity": "info", "component": "gpu"}),
            ["~ alert GpuHot (info)", "    label severity info -> warning"],
        ),
        (
            changed(expr="gpu_hot"),
            [
                "~ alert GpuHot (warning)",
                "    expression:",
                "      old gpu_hot",
                "      new gpu_temperature_margin_celsius < 10",
            ],
        ),
        (
            changed(annotations={**HOT["annotations"], "action": "Wait."}),
            ["~ alert GpuHot (warning)", "    annotations: action"],
        ),
        (changed(keep_firing_for="9m"), ["~ alert GpuHot (warning)", "    keep_firing_for 9m -> none"]),
        (
            changed(alert="CardHot"),
            ["+ alert GpuHot (warning): GPU <gpu> is hot", "- alert CardHot (warning)"],
        ),
        (RECORDED, ["+ alert GpuHot (warning): GPU <gpu> is hot", "- recording rule job:llm_requests:rate5m"]),
    ],
)
def test_a_rule_is_reported_with_what_changed_about_it(old, changes):
    assert differences.rules(rule_file(old), rule_file(HOT), "rules.yaml") == changes


def test_the_interval_of_a_group_is_reported_with_its_rules():
    found = differences.rules(rule_file(HOT, interval="1m"), rule_file(HOT), "rules.yaml")
    assert found == ["~ alert GpuHot (warning)", "    interval 1m -> 30s"]


def test_a_severity_beside_another_is_an_alert_of_its_own():
    critical = changed(labels={"severity": "critical", "component": "gpu"})
    found = differences.rules(rule_file(HOT), rule_file(HOT, critical), "rules.yaml")
    assert found == ["+ alert GpuHot (critical): GPU <gpu> is hot"]


@pytest.mark.parametrize(
    ("old", "new", "changes"),
    [
        ("a > 1", "a > 1", []),
        ("a > 1 and b > 2e3", "a > 1.5 and b > 2e3", ["threshold 1 -> 1.5"]),
        ("rate(a_1[5m]) > 3", "rate(a_1[10m]) > 3", ["window 5m -> 10m"]),
        ('a{b="1"} > 3', 'a{b="2"} > 3', ["query:", '  old a{b="1"} > 3', '  new a{b="2"} > 3']),
        ("a > 1", "a < 1", ["query:", "  old a > 1", "  new a < 1"]),
    ],
)
def test_numbers_alone_are_told_apart_from_other_expressions(old, new, changes):
    assert list(differences.expression_changes(old, new, "query")) == changes


def test_the_sections_of_an_alertmanager_configuration_are_counted():
    new = "route: {receiver: a}\ninhibit_rules: [{equal: [a]}, {equal: [b]}]\n"
    old = "route: {receiver: b}\ninhibit_rules: [{equal: [c]}, {equal: [b]}]\n"
    assert differences.alertmanager(old, new, "a.yaml") == [
        "~ inhibit_rules: 1 added, 1 removed",
        '    + {"equal": ["a"]}',
        '    - {"equal": ["c"]}',
        "~ route",
    ]


def test_the_lines_of_another_file_that_change_are_printed_as_many_as_fit():
    assert differences.text("a\nb\n", "a\nc\n") == ["~ lines: 1 added, 1 removed", "    - b", "    + c"]
    many = differences.text("", "x\n" * 20)
    assert many == ["~ lines: 20 added, 0 removed", *["    + x"] * 8, "    and 12 more"]


@pytest.mark.parametrize(
    "content", ["{", "[]", "groups: 3", "groups: [{rules: [{}]}]", "groups: [{rules: [1]}]", "[" * 100_000]
)
def test_a_file_that_is_not_rules_cannot_be_compared(content):
    with pytest.raises(differences.UnreadableFileError, match=r"^old\.yaml "):
        differences.rules(content, rule_file(HOT), "old.yaml")


def test_a_file_that_is_too_large_cannot_be_compared(monkeypatch):
    monkeypatch.setattr(differences, "MAX_BYTES", 10)
    with pytest.raises(differences.UnreadableFileError, match="is larger than"):
        differences.rules(rule_file(HOT), rule_file(HOT), "old.yaml")


def diff(folder, capsys, *options):
    code = command(["--output", str(folder), "--diff", *(options or ENGLISH)])
    return code, capsys.readouterr().out.replace(f"{folder}/", "")


def test_the_command_compares_the_files_in_use_and_exits_with_what_it_found(tmp_path, capsys):
    for place in ("en", "alertmanager/en"):
        shutil.copytree(GENERATED / place, tmp_path / place)
    assert diff(tmp_path, capsys) == (OK, "")
    path = tmp_path / "en" / "rules.yaml"
    path.write_text(path.read_text().replace("GpuLost", "CardLost"))
    (tmp_path / "en" / "kustomization.yaml").unlink()
    code, printed = diff(tmp_path, capsys, "--thresholds", str(_own(tmp_path)))  # the language in use
    assert code == FAILED
    assert "en/kustomization.yaml: 1 added\n  + new file\n" in printed and "zh/" not in printed
    assert "  + alert GpuLost (critical): GPU <gpu> on <instance> is lost" in printed
    assert "  - alert CardLost (critical)\n" in printed
    assert "  - alert GpuHot (warning): switched off: water cooling\n" in printed
    path.write_text("{")
    assert command(["--output", str(tmp_path), "--diff"]) == BAD_INPUT
    assert f"{path} is not valid YAML" in capsys.readouterr().err


def _own(folder, name="GpuHot"):
    path = folder / "own.yaml"
    path.write_text(f"rules:\n  {name}: {{enabled: false, reason: water cooling}}\n")
    return path


def test_switching_the_watchdog_off_is_a_warning(tmp_path, capsys):
    assert command(["--output", str(tmp_path), "--thresholds", str(_own(tmp_path, "Watchdog"))]) == OK
    assert "Watchdog is switched off: a failure of the notification path goes unnoticed" in capsys.readouterr().err
    assert command(["--output", str(tmp_path)]) == OK
    assert "Watchdog is" not in capsys.readouterr().err


def test_a_comparison_writes_nothing(tmp_path, capsys):
    assert command(["--output", str(tmp_path / "none"), "--diff"]) == FAILED
    assert "rules.yaml: 1 added\n  + new file" in capsys.readouterr().out
    assert not (tmp_path / "none").exists()
