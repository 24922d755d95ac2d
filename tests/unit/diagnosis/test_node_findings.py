"""Findings about the daemon itself."""

from __future__ import annotations

from exporter.diagnosis.diagnose import find
from exporter.model import Snapshot
from exporter.model.node import DaemonState


def test_limits_that_discovery_reached_are_one_finding_that_names_them():
    daemon = DaemonState(discovery_limits=frozenset({"targets", "processes"}))
    found = find(Snapshot(at=0.0, unix_time=0.0, daemon=daemon))
    assert [(finding.id, finding.evidence[0].value) for finding in found] == [
        ("DiscoveryLimitReached", "processes, targets")
    ]
    assert find(Snapshot(at=0.0, unix_time=0.0)) == ()
