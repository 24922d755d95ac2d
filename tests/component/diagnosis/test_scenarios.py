"""What the diagnosis of every simulated scenario says, on a virtual clock, and that a healthy node has no finding."""

from __future__ import annotations

import collections

import pytest

from exporter.model.finding import VerdictState
from tests.support.virtual_node import VirtualNode

SECONDS = 180


def every(findings):
    """Return (id, label) of the findings and of those below them."""
    for finding in findings:
        yield finding.id, finding.subject.label
        yield from every(finding.causes)


class Lived:
    """The findings of one scenario, second by second."""

    def __init__(self, scenario):
        node = VirtualNode(scenario, interval=5.0)
        self.seen = {}  # (id, label) → second at which it was first listed at the top
        self.states = {}  # (replica, state) → second
        self.steps = set()  # that were ever recommended
        self.changes = collections.Counter()  # (id, label) → how often it began or ended, also below another
        before = set()
        for second in node.live(SECONDS):
            self.snapshot = node.publisher.snapshot
            for finding in self.snapshot.findings:
                self.seen.setdefault((finding.id, finding.subject.label), second)
            now = set(every(self.snapshot.findings))
            self.changes.update(before ^ now)
            before = now
            for replica, verdict in self.snapshot.verdicts.replicas.items():
                self.states.setdefault((replica, verdict.state), second)
            self.steps.update(step.en for finding in self.snapshot.findings for step in finding.steps)
        self.findings = self.snapshot.findings


@pytest.fixture(scope="module")
def lived():
    known = {}
    return lambda scenario: known.setdefault(scenario, Lived(scenario))


@pytest.mark.parametrize("scenario", ["healthy", "idle", "mixed"])
def test_a_node_that_is_well_has_no_finding_and_serves(lived, scenario):
    node = lived(scenario)
    assert node.seen == {}
    assert {verdict.state for verdict in node.snapshot.verdicts.replicas.values()} == {VerdictState.SERVE}
    assert {verdict.state for verdict in node.snapshot.verdicts.gpus.values()} == {VerdictState.SERVE}
    assert node.snapshot.verdicts.node.state is VerdictState.SERVE


# Scenario → the finding at the top at the end, about whom, and the causes under it.
EXPECTED = {
    "hang": ("EngineFrozen", "chat-b", ["GpuLost"]),
    "heat": ("GpuStraggler", "GPU 2", ["GpuThermalThrottling"]),
    "skew": ("RanksUneven", "chat", []),
    "pcie": ("ReplicaUsesPcie", "chat", []),
    "tenant": ("GpuStraggler", "GPU 6", []),
    "narrow": ("GpuStraggler", "GPU 3", ["GpuPcieDowngraded"]),
    "powercap": ("GpuStraggler", "GPU 5", []),
    "oom": ("HighErrorRatio", "chat-b", ["GpuMemoryFull"]),
}


@pytest.mark.parametrize("scenario", EXPECTED)
def test_the_first_finding_names_the_affected_replica_and_its_cause_is_nested(lived, scenario):
    first = lived(scenario).findings[0]
    assert (first.id, first.subject.label, [cause.id for cause in first.causes][:1]) == (
        EXPECTED[scenario][0],
        EXPECTED[scenario][1],
        EXPECTED[scenario][2],
    )


def test_a_finding_says_since_when_with_what_evidence_and_what_to_do(lived):
    node = lived("heat")
    (straggler,) = [finding for finding in node.findings if finding.id == "GpuStraggler"]
    evidence = {evidence_value.name: evidence_value for evidence_value in straggler.evidence}
    assert evidence["sm_clock"].value < 0.95 * evidence["sm_clock_of_peers"].value
    assert evidence["temperature"].unit == "celsius"
    assert node.snapshot.unix_time - straggler.since < SECONDS
    assert [step.en for step in straggler.steps] == [
        "Move load off chat-a.",
        "Check fan, filter and airflow of GPU 2.",
    ]
    assert straggler.summary.zh != straggler.summary.en


def test_a_finding_does_not_come_and_go_while_the_fault_lasts(lived):
    for scenario in EXPECTED:
        node = lived(scenario)
        assert {node.changes[key] for key in every(node.findings)} == {1}, (scenario, node.changes)


@pytest.mark.parametrize("scenario", ["heat", "tenant", "narrow", "powercap", "hang"])
def test_a_slow_replica_with_a_known_cause_is_never_a_finding_of_its_own(lived, scenario):
    node = lived(scenario)
    assert "ReplicaSlowerThanSiblings" not in {name for name, _ in (*node.seen, *node.changes)}


def test_the_step_that_resets_a_gpu_names_its_index(lived):
    steps = lived("hang").steps
    assert "Run nvidia-smi --gpu-reset -i 6." in steps
    assert not [step for step in steps if "{gpu}" in step or "-i GPU" in step]


def test_a_replica_over_a_lost_gpu_is_ejected_within_seconds_and_its_sibling_serves_on(lived):
    node = lived("hang")
    lost_at = node.seen["GpuLost", "GPU 6"]
    assert node.states["chat-b", VerdictState.EJECT] - lost_at <= 15
    assert ("chat-a", VerdictState.EJECT) not in node.states
    assert node.snapshot.verdicts.replicas["chat-b"].reason == "gpu_lost"


def test_a_replica_whose_collective_does_not_end_is_ejected_eleven_seconds_after_its_last_step():
    """At the default interval of engines; its counters alone would need 20 s and a poll."""
    node = VirtualNode("nic", interval=5.0)
    stopped_at = None
    for second in node.live(SECONDS):
        verdicts = node.publisher.snapshot.verdicts.replicas
        if stopped_at is None and node.world.replica("chat-b").frozen:
            stopped_at = second
        if verdicts["chat-b"].state is VerdictState.EJECT:
            break
    assert stopped_at is not None
    assert second - stopped_at <= 11
    assert verdicts["chat-b"].reason == "no_progress"
    assert verdicts["chat-a"].state is VerdictState.SERVE
