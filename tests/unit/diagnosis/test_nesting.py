"""A finding that another one explains stands under it, and nowhere else."""

from __future__ import annotations

from exporter.diagnosis.diagnose import arrange
from exporter.model.finding import Finding, Severity, Subject, SubjectKind
from exporter.model.text import Text

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


def test_a_straggler_that_is_not_lost_takes_its_own_cause_along():
    found = [finding("GpuHot"), finding("GpuStraggler"), finding("ReplicaSlowerThanSiblings", REPLICA)]
    assert tree(arrange(found)) == {"ReplicaSlowerThanSiblings": {"GpuStraggler": {"GpuHot": {}}}}
