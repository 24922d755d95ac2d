"""On a healthy day nobody is notified but of the watchdog, and each fault of the field is named; on a virtual clock.

The day's curve of traffic takes three hours here; ``python -m tests.bench.soak_day`` lives twenty-four.
"""

from __future__ import annotations

import pytest

from tests.support.fault_days import FAULT_AT, JOB, fault_days
from tests.support.tools import tool

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def fired(tmp_path_factory):
    for name in ("prometheus", "promtool"):
        tool(name)
    return fault_days(tmp_path_factory)


def only_alert(fired, job, alert, severity):
    """Return labels and time of the only series of an alert."""
    ((labels, at),) = fired.of(job, alert, severity)
    return labels, at


def test_a_healthy_and_a_mixed_day_fire_only_the_watchdog(fired):
    assert fired.names(JOB) == {"Watchdog"}


def test_an_idle_node_is_a_note_about_money_and_nothing_else(fired):
    assert fired.names("idle") == {"GpuMemoryHeldIdle", "Watchdog"}
    assert {labels["gpu"] for labels, _ in fired.of("idle", "GpuMemoryHeldIdle", "info")} == set("01234567")


def test_a_lost_gpu_pages_and_its_frozen_replica_with_it(fired):
    labels, at = only_alert(fired, "hang", "GpuLost", "critical")
    assert labels["gpu"] == "6"
    assert FAULT_AT < at <= FAULT_AT + 240
    labels, at = only_alert(fired, "hang", "EngineFrozen", "critical")
    assert labels["replica"] == "chat-b"
    assert FAULT_AT < at <= FAULT_AT + 300
    assert {labels["xid"] for labels, _ in fired.of("hang", "GpuXidResetNode", "warning")} == {"79"}


def test_a_full_gpu_that_is_not_the_first_is_named_and_so_are_the_requests_that_fail(fired):
    labels, at = only_alert(fired, "oom", "GpuMemoryFull", "warning")
    assert labels["gpu"] == "5"
    assert FAULT_AT < at <= FAULT_AT + 300
    assert only_alert(fired, "oom", "GroupMemoryUneven", "warning")[0]["replica"] == "chat-b"
    assert only_alert(fired, "oom", "HighErrorRatio", "warning")[0]["replica"] == "chat-b"


def test_gpus_that_communicate_over_pcie_are_reported_with_their_replica(fired):
    assert only_alert(fired, "pcie", "ReplicaUsesPcie", "warning")[0]["replica"] == "chat"


def test_a_scheduler_that_prefers_its_first_ranks_is_reported(fired):
    assert only_alert(fired, "skew", "RanksUneven", "warning")[0]["replica"] == "chat"


def test_the_gpu_that_the_others_wait_for_is_named_with_the_cause(fired):
    labels, at = only_alert(fired, "brake", "GpuStraggler", "warning")
    assert (labels["gpu"], labels["cause"]) == ("1", "power_brake")
    assert FAULT_AT < at <= FAULT_AT + 300


def test_nodes_whose_versions_differ_are_reported_once_for_the_service(fired):
    assert only_alert(fired, "drift", "DriverVersionsDiffer", "warning")[1] >= 1800
    assert only_alert(fired, "drift", "EngineVersionsDiffer", "warning")[0]["engine"] == "vllm"
