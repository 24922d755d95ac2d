"""Findings about the daemon itself."""

from __future__ import annotations

from exporter.diagnosis.diagnose import find
from exporter.model import CardFacts, Snapshot
from exporter.model.node import DaemonState


def test_limits_that_discovery_reached_are_one_finding_that_names_them():
    daemon = DaemonState(discovery_limits=frozenset({"targets", "processes"}))
    found = find(Snapshot(at=0.0, unix_time=0.0, daemon=daemon))
    assert [(finding.id, finding.evidence[0].value) for finding in found] == [
        ("DiscoveryLimitReached", "processes, targets")
    ]
    assert find(Snapshot(at=0.0, unix_time=0.0)) == ()


def test_gpus_that_were_removed_on_purpose_are_named():
    gone = tuple(
        CardFacts(index=index, uuid=f"GPU-{index}", pci_bus_id=f"00000000:{index:02X}:00.0") for index in (4, 5)
    )
    (finding,) = find(Snapshot(at=0.0, unix_time=0.0, removed=gone))
    assert (finding.id, finding.severity.value) == ("GpusRemoved", "info")
    assert finding.evidence[0].value == "GPU 4 GPU-4 at 00000000:04:00.0; GPU 5 GPU-5 at 00000000:05:00.0"
