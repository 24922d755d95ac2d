"""Findings and alerts of one name share severity, subject, holding time, thresholds and gates: one table, both sides."""

from __future__ import annotations

import ast
import dataclasses
import pathlib

import pytest

from alerts.registry import alerts
from alerts.rule import seconds
from alerts.tuning import Tuning
from exporter.diagnosis import thresholds as limit
from exporter.diagnosis.conditions import CONDITIONS, NO_ALERT, NO_FINDING, hold
from exporter.model.finding import Severity, SubjectKind

PACKAGE = pathlib.Path(limit.__file__).parent
ALERTS = {name: [alert for alert in alerts(Tuning()) if alert.name == name] for name in CONDITIONS}
# The labels that say what an alert is about.
SUBJECT_LABELS = {
    SubjectKind.GPU: {"gpu", "uuid"},
    SubjectKind.REPLICA: {"replica"},
    SubjectKind.GATEWAY: {"gateway"},
    SubjectKind.SOURCE: {"source"},
    SubjectKind.ADAPTER: {"device", "port"},
    SubjectKind.STORE: {"store"},
    SubjectKind.NODE: set(),
}
UP = {"engine_down", "engine_loading"}  # up or not: no number that could differ
# Numbers that both sides share and that are no threshold of ``alerts.thresholds``.
CONSTANTS = {
    "CERTIFICATE_DRAIN_SECONDS", "COMPUTING_MEMORY", "COMPUTING_TENSOR", "COUNTERS_STILL_SECONDS", "GATEWAY_SHARE", "LOADING_SECONDS", "QUEUE_STEP_SECONDS", "RESTART_SECONDS", "SERVED_SECONDS",
    "UNANSWERED_SECONDS", "WINDOW", "WINDOW_SECONDS", "XID_RECENT_SECONDS",
}  # fmt: skip


def names_in_code():
    """Return the names of findings that the diagnosis can make, and the thresholds that it reads."""
    ids, limits = set(), set()
    for path in PACKAGE.glob("*.py"):
        if path.stem in {"conditions", "thresholds"}:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "limit":
                limits.add(node.attr)
            named = isinstance(node, ast.keyword) and node.arg == "id"
            named = named or (isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "name")
            if named:
                ids |= {
                    part.value
                    for part in ast.walk(node.value)
                    if isinstance(part, ast.Constant) and isinstance(part.value, str) and part.value[:1].isupper()
                }
    return ids, limits


def test_every_finding_is_in_the_table_and_every_alert_has_a_finding_or_a_reason():
    assert names_in_code()[0] == {*CONDITIONS, *NO_ALERT}
    assert {alert.name for alert in alerts(Tuning())} == {*CONDITIONS, *NO_FINDING}
    assert not set(CONDITIONS) & set(NO_FINDING)
    assert all({**NO_FINDING, **NO_ALERT}.values())


@pytest.mark.parametrize("name", CONDITIONS)
def test_a_finding_and_its_alert_have_one_severity_subject_and_holding_time(name):
    condition = CONDITIONS[name]
    assert {alert.severity for alert in ALERTS[name]} == set(condition.severities)
    assert {alert.for_ for alert in ALERTS[name]} == {condition.for_}
    assert hold(name) <= seconds(condition.for_)  # whoever looks learns it no later than whoever is interrupted
    for alert in ALERTS[name]:
        labels = alert.expr.labels
        assert SUBJECT_LABELS[condition.subject] <= labels
        if condition.subject in {SubjectKind.NODE, SubjectKind.GATEWAY, SubjectKind.ADAPTER, SubjectKind.STORE}:
            assert not {"uuid", "replica"} & labels
        if condition.subject is SubjectKind.REPLICA:
            assert "uuid" not in labels


def read_thresholds():
    """Return for each finding the thresholds that change its alerts' expressions."""
    thresholds = Tuning().thresholds
    reads = {name: set() for name in CONDITIONS}
    before = expressions(Tuning())
    for field in dataclasses.fields(thresholds):
        threshold = getattr(thresholds, field.name)
        changed = dataclasses.replace(
            threshold,
            warning=threshold.warning * 1.01 or 0.01,
            critical=threshold.critical and threshold.critical * 1.01,
        )
        after = expressions(Tuning(thresholds=dataclasses.replace(thresholds, **{field.name: changed})))
        for name, found in reads.items():
            if after[name] != before[name]:
                found.add(field.name)
    return reads


def expressions(tuning):
    found = {}
    for alert in alerts(tuning):
        found.setdefault(alert.name, []).append(str(alert.expr))
    return found


def test_the_alerts_read_the_thresholds_and_gates_of_the_table_and_no_others():
    assert {name: read - UP for name, read in read_thresholds().items()} == {
        name: set(condition.limits) for name, condition in CONDITIONS.items()
    }
    thresholds = Tuning().thresholds
    for name, condition in CONDITIONS.items():
        for key, value in condition.limits.items():
            threshold = getattr(thresholds, key)
            tiers = (threshold.warning, threshold.critical) if isinstance(value, tuple) else threshold.warning
            assert tiers == value, (name, key)


def test_the_findings_read_the_numbers_of_the_table_and_no_number_is_left_over():
    declared = {name for name in vars(limit) if name.isupper()}
    assert names_in_code()[1] == declared
    shared = {number for condition in CONDITIONS.values() for value in condition.limits.values()
              for number in (value if isinstance(value, tuple) else (value,))}  # fmt: skip
    assert {name for name in declared - CONSTANTS if getattr(limit, name) not in shared} == set()


def test_only_symptoms_that_page_are_critical_findings():
    for name, condition in CONDITIONS.items():
        if Severity.CRITICAL in condition.severities:
            assert all(alert.symptom for alert in ALERTS[name] if alert.severity is Severity.CRITICAL), name
