"""From readings to verdicts: what a reading shows, what lasts, and what is kept from cycle to cycle."""

from __future__ import annotations

import itertools
import math
import random
import re
from collections import Counter

import pytest

from exporter.derive.straggler_evidence import collect_evidence, sample_counters
from exporter.model import CardProcess, CardReading, Cause, GpuAssignment, Missing, Signal
from exporter.runtime.stragglers import AGE, CYCLES, ENTER, GAP, JUDGED, StragglerTracker
from tests.support.builders import card
from tests.support.records import replace
from tests.support.virtual_node import VirtualNode

CALM = dict.fromkeys(("gpu_idle", "sw_power_cap", "hw_slowdown", "sw_thermal_slowdown"), False)


# ── From readings to evidence ───────────────────────────────────────────────────────────────────────────────────


def reading(at=1000.0, signals=None, **more):
    return CardReading(at=at, signals=signals or {}, **more)


def test_evidence_takes_shares_and_rates_from_a_reading_and_the_one_before():
    first = reading(
        1000.0, {Signal.PCIE_TRANSMIT: 1e9, Signal.PCIE_RECEIVE: 0.0}, nvlink_errors={"recovery": 5.0, "crc": 1.0}
    )
    second = reading(
        1002.0,
        {
            Signal.PCIE_TRANSMIT: 5e9,
            Signal.PCIE_RECEIVE: 1e9,
            Signal.SM_ACTIVE: 0.7,
            Signal.PCIE_LINK_GENERATION: 4.0,
            Signal.PCIE_LINK_WIDTH: 16.0,
            Signal.MEMORY_TOTAL: 100.0,
            Signal.MEMORY_USED: 80.0,
            Signal.MEMORY_RESERVED: 5.0,
            Signal.POWER: 350.0,
            Signal.POWER_LIMIT: 700.0,
        },
        nvlink_errors={"recovery": 8.0, "crc": 90.0},
        nvlink_up={0: True, 1: False, 2: True},
        processes=(CardProcess(pid=7),),
    )
    evidence = collect_evidence(
        "GPU-1", second, sample_counters(second, sample_counters(first)), sample_counters(first), 2
    )
    assert (evidence.busy, evidence.power_ratio, evidence.nvlinks, evidence.replicas) == (0.7, 0.5, 2, 2)
    assert (evidence.pcie_rate, evidence.nvlink_recovery_rate) == (2e9, 1.5)
    assert evidence.memory_free == pytest.approx(0.15)
    assert evidence.pcie_capacity == pytest.approx(31.5e9, rel=1e-3)
    assert evidence.processes == frozenset({7})
    own = replace(second, traffic={("pcie", "transmit"): 3e9, ("pcie", "receive"): 1e9})
    assert collect_evidence("GPU-1", own, sample_counters(own), sample_counters(first)).pcie_rate == 3e9


def test_counters_that_began_anew_or_were_read_long_ago_give_no_rate():
    now = reading(1002.0, {Signal.PCIE_TRANSMIT: 5e9}, nvlink_errors={"recovery": 1.0})
    for before in (
        reading(1000.0, {Signal.PCIE_TRANSMIT: 9e9}, nvlink_errors={"recovery": 5.0}),
        reading(0.0, {Signal.PCIE_TRANSMIT: 1e9}, nvlink_errors={"recovery": 0.0}),
        reading(1002.0, {Signal.PCIE_TRANSMIT: 1e9}, nvlink_errors={"recovery": 0.0}),
    ):
        evidence = collect_evidence(
            "GPU-1", now, sample_counters(now, sample_counters(before)), sample_counters(before)
        )
        assert (evidence.pcie_rate, evidence.nvlink_recovery_rate) == (None, None)
    assert collect_evidence("GPU-1", now, sample_counters(now), None).pcie_rate is None


def test_errors_that_a_link_corrects_by_itself_are_no_recoveries_and_those_of_nvlink_5_are():
    first, second = (reading(at, nvlink_errors={"replay": at, "crc": at}) for at in (1000.0, 1001.0))
    before = sample_counters(first)
    assert collect_evidence("GPU-1", second, sample_counters(second, before), before).nvlink_recovery_rate is None
    newer = [
        reading(at, nvlink_errors={"recovery_event": 3.0 * at, "recovery_failed": at}) for at in (1000.0, 1001.0)
    ]
    before = sample_counters(newer[0])
    assert collect_evidence("GPU-1", newer[1], sample_counters(newer[1], before), before).nvlink_recovery_rate == 3.0


def test_recoveries_that_are_read_seldom_have_the_rate_between_two_reads_until_the_next():
    before, rates = None, []
    for second in range(45):
        errors = {0: 7.0, 1: 7.0, 2: 407.0, 3: 1407.0, 4: 1407.0}[second // 10]
        read = reading(
            1000.0 + second, nvlink_errors={"recovery": errors}, nvlink_errors_at=1000.0 + second // 10 * 10
        )
        now = sample_counters(read, before)
        rates.append(collect_evidence("GPU-1", read, now, before).nvlink_recovery_rate)
        before = now
    assert rates == [None] * 10 + [0.0] * 10 + [40.0] * 10 + [100.0] * 10 + [0.0] * 5
    unread = reading(1045.0)
    assert collect_evidence("GPU-1", unread, sample_counters(unread, before), before).nvlink_recovery_rate is None


def test_links_that_were_not_read_are_neither_active_nor_down():
    partly = reading(1.0, nvlink_up={0: True, 2: False}, missing={Signal.NVLINK_STATE: Missing.ERROR})
    evidence = collect_evidence("GPU-1", partly, sample_counters(partly), None)
    assert (evidence.nvlinks, evidence.nvlinks_down) == (None, 1)
    whole = reading(1.0, nvlink_up={0: True, 2: False})
    evidence = collect_evidence("GPU-1", whole, sample_counters(whole), None)
    assert (evidence.nvlinks, evidence.nvlinks_down) == (1, 1)


def test_an_event_that_held_the_gpu_for_a_part_of_the_cycle_counts_though_the_look_has_missed_it():
    bits = {"sw_power_cap": False, "sw_thermal_slowdown": True, "hw_slowdown": False}
    first = reading(1000.0, clock_events=bits, clock_event_seconds={"sw_power_cap": 5.0, "sw_thermal_slowdown": 9.0})
    for rise, active in ((0.3, True), (0.05, False)):
        later = {"sw_power_cap": 5.0 + rise, "sw_thermal_slowdown": 9.0}
        second = reading(1002.0, clock_events=bits, clock_event_seconds=later)
        evidence = collect_evidence("GPU-1", second, sample_counters(second), sample_counters(first)).events
        assert evidence == bits | {"sw_power_cap": active}
    unknown = reading(1002.0, clock_event_seconds={"sw_power_cap": 7.0})
    assert collect_evidence("GPU-1", unknown, sample_counters(unknown), sample_counters(first)).events == {}
    assert collect_evidence("GPU-1", second, sample_counters(second), None).events == bits


@pytest.mark.parametrize(
    ("generation", "gigabytes"),
    [(1, 4.0), (2, 8.0), (3, 15.75), (4, 31.5), (5, 63.0), (6, 121.0), (0, None), (7, None)],
)
def test_a_pcie_link_of_sixteen_lanes_carries_what_its_generation_allows(generation, gigabytes):
    read = reading(1.0, {Signal.PCIE_LINK_GENERATION: float(generation), Signal.PCIE_LINK_WIDTH: 16.0})
    evidence = collect_evidence("GPU-1", read, sample_counters(read), None).pcie_capacity
    assert evidence == (None if gigabytes is None else pytest.approx(gigabytes * 1e9, rel=0.01))


def test_the_link_of_an_idle_gpu_which_saves_power_has_no_capacity_to_compare():
    link = {Signal.PCIE_LINK_GENERATION: 1.0, Signal.PCIE_LINK_WIDTH: 16.0}
    for idle in (True, False):
        read = reading(1.0, link, clock_events=CALM | {"gpu_idle": idle})
        assert (collect_evidence("GPU-1", read, sample_counters(read), None).pcie_capacity is None) is idle


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -0.5, 1e9])
def test_values_that_cannot_be_are_not_evidence(value):
    odd = reading(1.0, dict.fromkeys(Signal, value))
    evidence = collect_evidence("GPU-1", odd, sample_counters(odd), None)
    shares = (evidence.busy, evidence.dram, evidence.tensor, evidence.resident, evidence.memory_activity)
    assert shares == (None,) * 5
    numbers = [evidence.clock, evidence.power_ratio, evidence.margin, evidence.memory_free, evidence.pcie_capacity]
    assert all(number is None or math.isfinite(number) for number in numbers)


# ── What lasts ──────────────────────────────────────────────────────────────────────────────────────────────────

HOT = {"sm_active": 0.84, "clock_sm": 1.6e9}
WELL = {"sm_active": 0.70, "clock_sm": 1.98e9}
IDLE = {"sm_active": 0.0, "dram_active": 0.0, "utilization": 0.0}


class Node:
    """Four cards of one replica, read once a second by a watch."""

    def __init__(self, *, rank=None, replica="chat", size=4):
        self.watch, self.at, self.size = StragglerTracker(), 1000.0, size
        self.assignments = tuple(
            GpuAssignment(uuid=f"GPU-{i:04d}", replica=replica, rank="" if rank is None else rank(i))
            for i in range(size)
        )

    def cards(self, odd, down=()):
        gpus = []
        for index in range(self.size):
            signals = {"dram_active": 0.5, "utilization": 1.0, "clock_max_sm": 1.98e9} | WELL
            signals |= odd if odd is IDLE or index == 2 else {}
            gpu = card(index, at=self.at, up=index not in down, **signals)
            if gpu.reading is not None:
                held = CALM | {"sw_thermal_slowdown": True} if odd is HOT and index == 2 else CALM
                gpu = replace(gpu, reading=replace(gpu.reading, clock_events=held))
            gpus.append(gpu)
        return gpus

    def turn(self, odd=WELL, times=1, step=1.0, down=()):
        for _ in range(times):
            self.at += step
            verdict = self.watch.update(self.cards(odd, down), self.assignments)
        return verdict

    def accused(self, *arguments, **more):
        return [(straggler.uuid, straggler.cause) for straggler in self.turn(*arguments, **more).found]


VERDICT = [("GPU-0002", Cause.THERMAL)]


def test_a_verdict_takes_several_cycles_and_several_to_go_away():
    node = Node()
    assert node.accused(HOT, ENTER - 1) == []
    assert node.accused(HOT) == VERDICT
    assert node.turn(HOT, CYCLES).found[0].slowdown == pytest.approx(1.2)
    assert node.accused(WELL, CYCLES - 3) == VERDICT
    assert node.accused(WELL) == []
    assert node.turn().judged == {"chat": True}


def test_a_flicker_neither_makes_a_verdict_nor_ends_one():
    node = Node()
    for _ in range(30):
        assert node.accused(HOT) == []
        assert node.accused(WELL) == []
    assert node.accused(HOT, CYCLES) == VERDICT
    for _ in range(30):
        assert node.accused(WELL) == VERDICT
        assert node.accused(HOT) == VERDICT


def test_pages_without_new_readings_are_no_cycles():
    node = Node()
    node.turn(HOT, 2)
    cards = node.cards(HOT)
    for _ in range(50):
        assert node.watch.update(cards, node.assignments).found == ()


def test_a_group_that_falls_idle_loses_judgement_and_verdict():
    node = Node()
    assert node.turn(HOT, 20).judged == {"chat": True}
    verdict = node.turn(IDLE, CYCLES - JUDGED + 1)
    assert (verdict.found, verdict.judged) == ((), {"chat": False})
    assert node.accused(HOT, ENTER) == VERDICT


def test_a_short_rest_does_not_end_a_verdict():
    node = Node()
    node.turn(HOT, 20)
    for _ in range(5):
        assert node.accused(IDLE, 2) == VERDICT
        assert node.accused(HOT, 4) == VERDICT


def test_a_group_that_rests_between_requests_is_judged_by_as_many_cycles_of_work():
    node = Node()
    for _ in range(6):
        node.turn(HOT, 2)
        node.turn(WELL)
        accused = node.accused(IDLE, 2)
    assert accused == VERDICT, "4 of 10 cycles, and 6 or 7 of 10 that could be judged"
    for _ in range(3):
        node.turn(WELL, 3)
        accused = node.accused(IDLE, 2)
    assert accused == []


def test_cycles_of_work_long_ago_are_no_evidence():
    node = Node()
    node.turn(HOT, ENTER - 1)
    node.turn(IDLE, AGE)
    assert node.accused(HOT, JUDGED) == []
    assert node.accused(HOT) == VERDICT


def linked(node, second, **third):
    """Return four cards whose links carry traffic; ``third``: what the third one shows otherwise."""
    cards = []
    for index, gpu in enumerate(node.cards(WELL)):
        shown = {
            "nvlink_up": dict.fromkeys(range(18), True),
            "nvlink_errors": {"recovery": 0.0},
            "nvlink_errors_at": node.at - second % 10,
            "traffic": {("nvlink", "transmit"): 5e9, ("nvlink", "receive"): 5e9},
        }
        cards.append(replace(gpu, reading=replace(gpu.reading, **(shown | (third if index == 2 else {})))))
    return cards


def test_links_that_recover_again_and_again_make_a_verdict_although_they_are_read_every_tenth_time_only():
    node, accused = Node(), []
    for second in range(60):
        node.at += 1.0
        cards = linked(node, second, nvlink_errors={"recovery": 4000.0 * (second // 10)})
        accused.append(
            [(straggler.uuid, straggler.cause) for straggler in node.watch.update(cards, node.assignments).found]
        )
    assert accused[14] == [] and all(accused == [("GPU-0002", Cause.NVLINK)] for accused in accused[16:])


@pytest.mark.parametrize(
    "shown",
    [
        {"nvlink_up": {}, "missing": {Signal.NVLINK_STATE: Missing.NO_PERMISSION}},
        {"nvlink_up": dict.fromkeys(range(17), True), "missing": {Signal.NVLINK_STATE: Missing.INVALID}},
    ],
)
def test_links_whose_state_was_not_read_make_no_straggler(shown):
    node = Node()
    for second in range(30):
        node.at += 1.0
        assert node.watch.update(linked(node, second, **shown), node.assignments).found == ()
    assert node.watch.update(linked(node, 30), node.assignments).judged == {"chat": True}


class Unmeasured:
    """Cards of one replica without work signals, whose clocks wander: capped alike, each a little its own way."""

    def __init__(self, size, *, lower=(), spread=0.015, wander=0.05, seed=1):
        self.chance, self.watch, self.lower = random.Random(seed), StragglerTracker(), lower
        self.own = [self.chance.gauss(1.7e9, spread * 1.7e9) for _ in range(size)]
        self.wander = wander
        self.assignments = tuple(GpuAssignment(uuid=f"GPU-{i:04d}", replica="chat", rank="") for i in range(size))

    def accused(self, cycles):
        accused = Counter()
        for cycle in range(cycles):
            cards = [self._card(1000.0 + cycle, index, own) for index, own in enumerate(self.own)]
            verdict = self.watch.update(cards, self.assignments)
            accused.update([straggler.uuid for straggler in verdict.found])
        assert verdict.judged == {"chat": True}
        return accused

    def _card(self, at, index, own):
        clock = (0.8 if index in self.lower else 1.0) * own * (1.0 + self.chance.gauss(0.0, self.wander))
        gpu = card(index, at=at, clock_sm=clock, clock_max_sm=1.98e9, utilization=1.0, memory_activity=0.5)
        return replace(gpu, reading=replace(gpu.reading, clock_events=CALM | {"sw_power_cap": True}))


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("size", [2, 4, 8])
def test_without_work_measured_gpus_that_are_capped_alike_and_wander_have_no_straggler(size, seed):
    assert Unmeasured(size, seed=seed).accused(200) == {}


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("size", [2, 4, 8])
def test_without_work_measured_a_gpu_that_stays_a_fifth_below_the_others_is_found_all_the_same(size, seed):
    accused = Unmeasured(size, lower=(1,), seed=seed).accused(200)
    assert set(accused) == {"GPU-0001"} and accused["GPU-0001"] > 150


def test_a_long_gap_in_the_readings_starts_anew():
    node = Node()
    node.turn(HOT, 20)
    verdict = node.turn(HOT, step=GAP + 1)
    assert (verdict.found, verdict.judged) == ((), {"chat": False})
    assert node.accused(HOT, ENTER - 1) == VERDICT


def test_gpus_that_are_read_rarely_by_choice_are_judged_all_the_same():
    assert Node().accused(HOT, ENTER + 1, step=60.0) == VERDICT


def test_a_straggler_that_is_lost_is_named_no_more_and_comes_back_with_evidence():
    node = Node()
    node.turn(HOT, 20)
    assert node.accused(HOT, down=(2,)) == []
    assert node.accused(HOT, ENTER) == VERDICT


def test_another_lost_gpu_changes_nothing_and_all_lost_give_no_value():
    node = Node()
    node.turn(HOT, 20)
    assert node.accused(HOT, 3, down=(0,)) == VERDICT
    verdict = node.turn(HOT, down=(0, 1, 2, 3))
    assert (verdict.found, verdict.judged) == ((), {"chat": False})


def test_other_members_are_another_group():
    node = Node()
    node.turn(HOT, 20)
    node.assignments = node.assignments[:3]
    assert node.turn(HOT).found == ()
    assert node.accused(HOT, ENTER) == VERDICT


def test_gpus_of_ranks_of_their_own_are_not_compared():
    verdict = Node(rank=str).turn(HOT, 20)
    assert (verdict.found, verdict.judged) == ((), {})


def test_ranks_are_judged_each_for_itself_and_shown_as_one_replica():
    node = Node(rank=lambda index: str(index // 2))
    assert node.accused(HOT, 20) == VERDICT
    assert node.turn(HOT).judged == {"chat": True}


def test_what_is_kept_is_bounded_by_what_there_is_now():
    node = Node()
    for number in range(100):
        node.assignments = tuple(replace(assignment, replica=f"r{number}") for assignment in node.assignments)
        node.turn(HOT, 2)
    assert (len(node.watch._histories), len(node.watch._read), len(node.watch._evidence)) == (1, 4, 4)
    node.watch.update([], node.assignments)
    assert (len(node.watch._histories), len(node.watch._read), len(node.watch._evidence)) == (0, 0, 0)


def test_a_verdict_is_logged_when_it_comes_and_when_it_goes(caplog):
    caplog.set_level("INFO")
    node = Node()
    for odd, times in [(HOT, 30), (WELL, 30)]:
        node.turn(odd, times)
    assert [re.sub(r"^event=(\S+).*", r"\1", record.getMessage()) for record in caplog.records] == [
        "straggler",
        "straggler_over",
    ]
    assert "replica=chat uuid=GPU-0002 cause=thermal slowdown=1.2" in caplog.records[0].getMessage()


def test_the_slowdown_of_a_link_that_is_used_in_bursts_hardly_moves():
    node = VirtualNode("narrow", seed=1, fault_at=5.0)
    shown = [found.slowdown for at in node.live(75) if at > 45 for found in node.publisher.snapshot.stragglers.found]
    assert len(shown) == 30
    steps = [abs(after / before - 1.0) for before, after in itertools.pairwise(shown)]
    assert max(steps) < 0.1 and max(shown) / min(shown) < 1.3
