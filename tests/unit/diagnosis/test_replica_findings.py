"""Findings about replicas, on snapshots made by hand."""

from __future__ import annotations

import pytest

from exporter.diagnosis.diagnose import find
from exporter.diagnosis.history import DiagnosisHistory
from exporter.model import (
    Detail,
    EngineReading,
    GpuAssignment,
    Histogram,
    MultiNodeGpu,
    Quantity,
    Stage,
    WindowFigures,
)
from tests.support.builders import card, replica, snapshot
from tests.support.records import replace


def reading(**quantities):
    ranks = {"": {Quantity(name): value for name, value in quantities.items()}}
    return EngineReading(at=1000.0, engine="vllm", model="m", ranks=ranks)


def findings(**parts):
    return {finding.id: finding for finding in find(snapshot(**parts))}


def test_a_queue_of_which_nothing_is_admitted_is_no_progress():
    stuck = replica("a", reading=reading(requests_running=0, requests_waiting=4), frozen=True)
    finding = findings(replicas=(stuck,))["EngineFrozen"]
    assert finding.summary.en == "a makes no progress: 4 requests wait and none is admitted"
    assert finding.steps[0].en == "Take a out of the load balancer."


def test_no_progress_of_a_replica_with_gpus_on_other_nodes_says_so():
    stuck = replica("a", reading=reading(requests_running=2, requests_waiting=4), frozen=True)
    key = "vllm://10.0.0.1:29501"
    place = MultiNodeGpu(uuid="GPU-0000", replica="a", key=key, engine="vllm", head=True, node_rank=0, nodes=2)
    finding = findings(replicas=(stuck,), multi_node=(place,))["EngineFrozen"]
    assert {(item.name, item.value) for item in finding.evidence} >= {("replica_key", key), ("nodes", 2)}
    assert "on other nodes" in finding.steps[1].en
    other = findings(replicas=(stuck,), multi_node=(replace(place, replica="b"),))["EngineFrozen"]
    assert not any("on other nodes" in step.en for step in other.steps)


def test_a_worker_of_another_nodes_replica_names_the_replica_by_its_key():
    key = "vllm://10.0.0.1:29501"
    lost = card(0, up=False)
    place = MultiNodeGpu(uuid=lost.facts.uuid, replica=key, key=key, engine="vllm", head=False, node_rank=1)
    lost = replace(lost, status=replace(lost.status, reason="lost"))
    owned = (GpuAssignment(uuid=lost.facts.uuid, replica=key),)
    finding = findings(cards=(lost,), assignments=owned, multi_node=(place,))["GpuLost"]
    assert finding.replica == key
    assert finding.steps[0].en == f"Take the replica whose nodes meet at {key} out of the load balancer."


def test_a_full_queue_that_moves_has_no_finding():
    assert (
        findings(replicas=(replica("a", reading=reading(requests_running=8, requests_waiting=90), frozen=False),))
        == {}
    )


def sibling(name, itl=0.02, tokens=3000.0, **quantities):
    """Return two states of a replica that took ``itl`` seconds a token in the minute between them."""
    seen = Histogram(bounds=(0.1, 1.0), counts=(tokens, tokens, tokens), sum=itl * tokens)
    none = Histogram(bounds=(0.1, 1.0), counts=(0.0, 0.0, 0.0), sum=0.0)
    return tuple(
        replica(name, reading=reading(**quantities), histograms={Stage.INTER_TOKEN: histogram})
        for histogram in (none, seen)
    )


def lived(*replicas):
    """Return the findings about replicas, each given by two states a minute apart."""
    history = DiagnosisHistory()
    for at, states in zip((1000.0, 1060.0), zip(*replicas, strict=True), strict=True):
        now = replace(snapshot(replicas=states), at=at)
        found = {finding.id: finding for finding in find(now, history.update(now))}
    return found


def test_a_slower_sibling_is_a_finding_unless_both_have_a_queue():
    fast, slow = sibling("a", requests_waiting=0), sibling("b", itl=0.03, requests_waiting=40)
    found = lived(fast, slow)
    assert set(found) == {"ReplicaSlowerThanSiblings"}
    assert found["ReplicaSlowerThanSiblings"].subject.name == "b"
    assert "mean ITL 30.0 ms, a has 20.0 ms" in found["ReplicaSlowerThanSiblings"].summary.en
    assert lived(sibling("a", requests_waiting=40), slow) == {}
    assert lived(sibling("a"), sibling("b", itl=0.03, tokens=400.0)) == {}
    assert lived(sibling("a"), sibling("b", itl=0.0239)) == {}


def test_a_canary_with_few_requests_is_no_measure_for_the_replica_that_carries_the_load():
    canary, stable = sibling("a", requests_running=2), sibling("b", itl=0.03, requests_running=28)
    assert "ReplicaSlowerThanSiblings" not in lived(canary, stable)
    slow = lived(sibling("a", itl=0.03, requests_running=2), sibling("b", requests_running=28))
    assert slow["ReplicaSlowerThanSiblings"].subject.name == "a"


@pytest.mark.parametrize("stopped", [0, 1], ids=["the fast", "the slow"])
def test_a_replica_that_stopped_is_neither_slow_nor_a_measure_for_others(stopped):
    states = [sibling("a"), sibling("b", itl=0.03)]
    states[stopped] = tuple(replace(state, frozen=True) for state in states[stopped])
    assert "ReplicaSlowerThanSiblings" not in lived(*states)


def test_uneven_replicas_are_a_finding_unless_the_one_with_less_has_a_queue():
    def uneven(busy, spare, waiting=0):
        first = replica("a", reading=reading(requests_running=busy))
        second = replica("b", reading=reading(requests_running=spare, requests_waiting=waiting))
        return set(lived((first, first), (second, second)))

    assert uneven(32, 9) == {"ReplicasUneven"}
    assert uneven(32, 9, waiting=90) == set()
    assert uneven(12, 3) == set()  # 8 each on average, or it is chance
    assert uneven(38, 2) == set()  # a canary


def test_replicas_that_are_uneven_only_for_an_instant_are_not_a_finding():
    history, found = DiagnosisHistory(), set()
    for turn in range(60):
        loads = (28, 8) if turn // 3 % 2 else (8, 28)  # each busier for half a minute, as chance has it
        states = tuple(
            replica(name, reading=reading(requests_running=load)) for name, load in zip("ab", loads, strict=True)
        )
        now = replace(snapshot(replicas=states), at=1000.0 + 10.0 * turn)
        found = {finding.id for finding in find(now, history.update(now))}
        assert turn < 12 or not found


def uneven_ranks(prompts):
    loads = {"0": 24.0, "1": 8.0}
    ranks = {rank: {Quantity.REQUESTS_RUNNING: load} for rank, load in loads.items()}
    windows = {"1m": WindowFigures(seconds=60.0, rank_prompt_token_rates=prompts)}
    page = EngineReading(at=1000.0, engine="vllm", model="m", ranks=ranks)
    state = replica("a", reading=page, windows=windows, rank_imbalance={"requests_running": 1.5})
    return findings(replicas=(state,))["RanksUneven"]


def test_uneven_ranks_are_explained_by_the_prompt_tokens_of_each_rank():
    longer = uneven_ranks({"0": 3_000.0, "1": 1_000.0})
    assert longer.steps[0].en.startswith("Rank 0 gets 1.5 times the mean of prompt tokens: balance by tokens")
    assert ("prompt_tokens_per_second_rank_0", 3_000.0) in {(each.name, each.value) for each in longer.evidence}
    assert uneven_ranks({"0": 1_000.0, "1": 1_000.0}).steps[0].en.startswith("Prompts do not explain it: rank 0")
    for unknown in ({}, {"0": 0.0, "1": 0.0}):
        assert uneven_ranks(unknown).steps[0].en.startswith("Compare prompt lengths by rank")


class Life:
    """One replica's snapshots, minute by minute, and what is diagnosed of each."""

    def __init__(self):
        self.history, self.minute, self.queries, self.tokens = DiagnosisHistory(), 0, 0.0, 0.0

    def live(self, minutes, *, restarts=0, hit_ratio=0.6, lookups=60.0, accepted=None, length=None, rate=100.0):
        for _ in range(minutes):
            self.minute += 1
            self.queries += 60.0 * lookups
            self.tokens += 60.0 * rate
            figures = WindowFigures(seconds=300.0, hit_ratio=hit_ratio, spec_acceptance_ratio=accepted)
            totals = {Quantity.PREFIX_CACHE_QUERIES: self.queries, Quantity.GENERATION_TOKENS: self.tokens}
            page = reading() if length is None else reading(spec_accepted_length_now=length)
            state = replica("a", reading=page, restarts=restarts, windows={"5m": figures}, quantity_totals=totals)
            now = replace(snapshot(replicas=(state,)), at=60.0 * self.minute)
            found = find(now, self.history.update(now))
        self.newest = found[0] if found else None
        return {finding.id for finding in found}


def test_one_restart_is_a_rollout_and_two_in_half_an_hour_are_a_finding():
    life = Life()
    assert life.live(5) == life.live(5, restarts=1) == set()
    assert life.live(5, restarts=2) == {"EngineRestarting"}
    assert life.live(31, restarts=2) == set()


def test_restarts_before_the_first_snapshot_do_not_count():
    assert Life().live(5, restarts=7) == set()


def test_half_the_hit_rate_of_an_hour_ago_is_a_finding_with_traffic_only():
    life = Life()
    assert life.live(50) == set()
    assert life.live(3, hit_ratio=0.31) == set()
    assert life.live(6, hit_ratio=0.29, lookups=40.0) == set()
    assert life.live(6, hit_ratio=0.29) == {"PrefixCacheHitRateDropped"}
    assert life.live(70, hit_ratio=0.29) == set()  # that is its rate now


@pytest.mark.parametrize(
    ("before", "less", "half", "summary"),
    [
        (
            {"accepted": 0.7},
            {"accepted": 0.4},
            {"accepted": 0.3},
            "The speculated tokens that a accepts dropped from 70% to 30%",
        ),
        (
            {"length": 3.0},
            {"length": 2.1},
            {"length": 1.5},
            "The speculated tokens that a accepts dropped from 2.0 a draft to 0.5 a draft",
        ),
    ],
    ids=["counted", "reported"],
)
def test_half_the_acceptance_of_an_hour_ago_is_a_finding_with_traffic_only(before, less, half, summary):
    life = Life()
    assert life.live(50, **before) == life.live(3, **less) == set()
    assert life.live(6, **half, rate=5.0) == set()
    assert life.live(6, **half) == {"SpeculationAcceptanceDropped"}
    assert life.newest.summary.en == summary
    assert life.live(70, **half) == set()  # that is what it accepts now


def test_speculation_that_never_had_tokens_accepted_has_little_to_lose():
    life = Life()
    assert life.live(50, accepted=0.15) == life.live(3, accepted=0.0) == set()


def test_a_cache_that_never_served_has_little_to_lose_and_a_young_daemon_does_not_judge():
    life = Life()
    assert life.live(50, hit_ratio=0.08) == life.live(3, hit_ratio=0.0) == set()
    young = Life()
    assert young.live(20) == young.live(15, hit_ratio=0.1) == set()


def test_a_certificate_is_a_finding_for_two_weeks_before_its_end():
    now = snapshot().unix_time
    for days, expected in ((15, False), (13, True), (-1, True)):
        by_id = findings(replicas=(replica("a", reading=reading(), certificate_expires=now + days * 86_400),))
        assert ("CertificateExpires" in by_id) is expected
    assert by_id["CertificateExpires"].summary.en == "The TLS certificate of a has expired"


def transferring(failed, finished):
    """Return two states of a prefill replica, before and after these failed transfers and finished requests."""
    return tuple(
        replica(
            "a",
            reading=replace(
                reading(requests_running=1),
                details={Detail.TRANSFER_FAILURES: {"0": {"failed": number * failed, "expired": 7.0}}},
            ),
            finished_totals={"success": 1000.0 + number * finished},
        )
        for number in (0.0, 1.0)
    )


def test_failed_transfers_are_a_finding_if_many_and_a_share_of_the_requests():
    found = lived(transferring(failed=30, finished=300))["KvTransfersFail"]
    assert {item.name: item.value for item in found.evidence} == {
        "failed_transfers": 30.0, "requests": 300.0, "failures_to_requests": 0.1,
    }  # fmt: skip
    assert "KvTransfersFail" not in lived(transferring(failed=4, finished=10))
    assert "KvTransfersFail" not in lived(transferring(failed=30, finished=30000))
    assert "KvTransfersFail" not in lived(transferring(failed=30, finished=0))


def adapting(*, used=2.0, waiting=6.0, ttft=2.5, usage=0.4):
    """Return two states of a replica with two slots for adapters, whose first tokens took so long meanwhile."""
    states = []
    for tokens in (0.0, 30.0):
        histogram = Histogram(bounds=(1.0, 10.0), counts=(0.0, tokens, tokens), sum=tokens * ttft)
        now = reading(requests_running=4, requests_waiting=waiting, kv_cache_usage=usage)
        slots = {Detail.LORA_SLOTS: {"": {"used": used, "total": 2.0, "requested": 5.0}}}
        states.append(
            replica(
                "a",
                reading=replace(now, details=slots),
                histograms={Stage.TIME_TO_FIRST_TOKEN: histogram},
            )
        )
    return tuple(states)


def test_requests_that_wait_for_a_slot_of_an_adapter_are_a_finding():
    found = lived(adapting())["LoraSlotsExhausted"]
    assert found.summary.en == (
        "a: 6 requests wait while all 2 LoRA slots are in use, first tokens take 2.5 s on average"
    )
    assert ("adapters_requested", 5.0) in [(item.name, item.value) for item in found.evidence]


@pytest.mark.parametrize(
    "normal",
    [{"used": 1.0}, {"waiting": 0.0}, {"ttft": 0.4}, {"usage": 0.97}],
    ids=["a slot is free", "none waits", "first tokens are on time", "the KV cache is full"],
)
def test_full_slots_alone_are_normal(normal):
    assert "LoraSlotsExhausted" not in lived(adapting(**normal))
