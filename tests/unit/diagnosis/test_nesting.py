"""A finding that another one explains stands under it, and nowhere else."""

from __future__ import annotations

import pytest

from exporter.diagnosis.diagnose import arrange
from exporter.model.finding import Evidence, Finding, Severity, Subject, SubjectKind
from exporter.model.text import Text
from tests.support.records import replace

GPU = Subject(SubjectKind.GPU, "GPU-6", "GPU 6")
REPLICA = Subject(SubjectKind.REPLICA, "chat-b", "chat-b")


def finding(name, subject=GPU):
    return Finding(
        id=name, severity=Severity.WARNING, subject=subject, summary=Text(name, name), actions=(), replica="chat-b"
    )


def tree(found):
    return {finding.id: tree(finding.causes) for finding in found}


def test_the_straggler_that_a_gpu_was_stands_under_its_loss_and_that_under_the_frozen_replica():
    found = [finding("GpuStraggler"), finding("GpuLost"), finding("EngineFrozen", REPLICA), finding("GpuNvlinkDown")]
    assert tree(arrange(found)) == {"EngineFrozen": {"GpuLost": {"GpuNvlinkDown": {}, "GpuStraggler": {}}}}


def test_a_straggler_names_the_gpu_at_the_top_with_its_cause_and_how_slow_its_replica_is():
    slow = replace(finding("ReplicaSlowerThanSiblings", REPLICA), evidence=(Evidence("itl_mean", 0.031, "seconds"),))
    before = arrange([finding("GpuHot"), finding("GpuStraggler")])
    after = arrange([finding("GpuHot"), finding("GpuStraggler"), slow])
    assert tree(before) == tree(after) == {"GpuStraggler": {"GpuHot": {}}}
    assert [item.name for item in after[0].evidence] == ["itl_mean"]


@pytest.mark.parametrize("stopped", ["EngineFrozen", "EngineDown", "GpuLost"])
def test_a_replica_that_stopped_is_not_slow(stopped):
    found = [finding("ReplicaSlowerThanSiblings", REPLICA), finding(stopped, REPLICA)]
    assert tree(arrange(found)) == {stopped: {}}
    other = replace(finding("ReplicaSlowerThanSiblings", REPLICA), replica="chat-a")
    assert len(arrange([other, finding(stopped, REPLICA)])) == 2


@pytest.mark.parametrize("worse", ["GpuXidResetNode", "GpuLost"])
def test_no_reset_of_a_gpu_is_advised_whose_node_needs_a_reboot(worse):
    reset = replace(finding("GpuXidResetGpu"), actions=(Text("reset", "reset"),))
    reboot = replace(finding(worse), actions=(Text("reboot", "reboot"),), solves_causes=True)
    (only,) = arrange([reset, finding("GpuNvlinkDown"), reboot])
    assert only.id == worse
    assert [step.en for step in only.steps] == ["reboot"]
    (frozen,) = arrange([reset, reboot, finding("EngineFrozen", REPLICA)])
    assert [step.en for step in frozen.steps] == ["reboot"]
