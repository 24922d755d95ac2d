"""Findings about replicas, on snapshots made by hand."""

from __future__ import annotations

from exporter.diagnosis.diagnose import find
from exporter.model import EngineReading, Quantity
from tests.support.builders import replica, snapshot


def reading(**quantities):
    ranks = {"": {Quantity(name): value for name, value in quantities.items()}}
    return EngineReading(at=1000.0, engine="vllm", model="m", ranks=ranks)


def findings(**parts):
    return {finding.id: finding for finding in find(snapshot(**parts))}


def test_a_queue_of_which_nothing_is_admitted_is_no_progress():
    stuck = replica("a", reading=reading(requests_running=0, requests_waiting=4), frozen=True)
    found = findings(replicas=(stuck,))["EngineFrozen"]
    assert found.summary.en == "a makes no progress: 4 requests wait and none is admitted"
    assert found.steps[0].en == "Take a out of the load balancer."


def test_a_full_queue_that_moves_has_no_finding():
    assert (
        findings(replicas=(replica("a", reading=reading(requests_running=8, requests_waiting=90), frozen=False),))
        == {}
    )
