"""Findings and alerts name the same subject and cause in every scenario; neither exists where all is well."""

from __future__ import annotations

import pytest

from exporter.diagnosis.cause_names import CAUSE_NAMES
from exporter.diagnosis.conditions import NO_ALERT, NO_FINDING
from exporter.model import Cause
from exporter.simulate.scenarios import SCENARIOS
from tests.support.fault_days import JOB, NODE_DAYS, SATURATED, fault_days, findings
from tests.support.tools import tool

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

FAULTS = ("hang", "oom", "pcie", "skew", "brake", "heat", "tenant", "powercap", "narrow", "nic")
# The nodes of drift differ from one another: each of them is well.
WELL = (JOB, "idle", "engines", "mig", "drift", SATURATED)
# Compare nodes, which no daemon sees.
BETWEEN_NODES = {"drift": {"EngineVersionsDiffer"}}
# Of one subject the daemon has the graver finding only; Alertmanager inhibits the other alert.
GRAVER = {
    "GroupMemoryUneven": {"GpuMemoryFull"},
    "GpuHot": {"GpuThermalThrottling"},
    "GpuXidResetNode": {"GpuLost"},
    "GpuXidResetGpu": {"GpuLost", "GpuXidResetNode"},
    "GroupUtilizationUneven": {"ReplicaUsesPcie", "RanksUneven", "GpuStraggler"},
    "NicLinkFlaps": {"NicPortDown"},
    "NicErrorsRise": {"NicPortDown"},
    "GatewayErrors": {"HighErrorRatio"},
    "ReplicaSlowerThanSiblings": {"GpuStraggler", "GpuLost", "EngineFrozen", "EngineDown"},
}


@pytest.fixture(scope="module")
def lived(tmp_path_factory):
    for name in ("prometheus", "promtool"):
        tool(name)
    fired = fault_days(tmp_path_factory)

    def of(job):
        alerts = [
            (name, labels)
            for (name, _), rows in fired.by_alert.items()
            for labels, _ in rows
            if labels.get("job") == job and name not in NO_FINDING
        ]
        return alerts, findings(tmp_path_factory, job)

    return of


def says_the_same(finding, name, labels):
    if finding.id not in {name, *GRAVER.get(name, ())}:
        return False
    if "cause" in labels and finding.cause != CAUSE_NAMES[Cause(labels["cause"])].en:
        return False
    if "gpu" in labels:
        return finding.subject == f"GPU {labels['gpu']}"
    if "device" in labels:
        return finding.subject == f"{labels['device']} port {labels['port']}"
    if "pool" in labels:
        return finding.id != name or finding.subject.startswith(labels["gateway"])
    return finding.replica == labels["replica"]


@pytest.mark.parametrize("job", FAULTS)
def test_every_alert_about_a_gpu_or_replica_is_a_finding_about_the_same_with_the_same_cause(lived, job):
    alerts, findings = lived(job)
    assert alerts
    for name, labels in alerts:
        assert [finding for finding in findings if says_the_same(finding, name, labels)], (name, labels, findings)


@pytest.mark.parametrize("job", FAULTS)
def test_every_finding_that_lasts_ten_minutes_is_an_alert_about_the_same(lived, job):
    alerts, findings = lived(job)
    lasting = [finding for finding in findings if finding.seconds >= 600 and finding.id not in NO_ALERT]
    assert lasting
    for finding in lasting:
        assert [name for name, labels in alerts if says_the_same(finding, finding.id, labels)], (finding, alerts)


@pytest.mark.parametrize("job", WELL)
def test_a_node_that_is_well_has_neither_finding_nor_alert_however_busy(lived, job):
    alerts, findings = lived(job)
    assert findings == []
    assert {name for name, _ in alerts} == BETWEEN_NODES.get(job, set())


def test_every_scenario_is_lived_and_is_either_a_fault_or_well():
    assert {node_day.scenario for node_day in NODE_DAYS} == {scenario.name for scenario in SCENARIOS}
    assert {node_day.job for node_day in NODE_DAYS} == {*FAULTS, *WELL}
