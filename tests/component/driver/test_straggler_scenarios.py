"""The simulated node through the real reader: each fault is blamed on its GPU, and none on a healthy node."""

from __future__ import annotations

import pytest

from exporter.driver.nvml.gpu import GpuReader
from exporter.driver.nvml.library import initialise, open_card
from exporter.model import CardState, Cause, GpuAssignment, GpuLabels, Signal, SourceStatus
from exporter.runtime.stragglers import StragglerTracker
from exporter.simulate.scenarios import find
from tests.support.builders import Clock
from tests.support.records import replace
from tests.support.simulated_driver import simulated_driver

GPM = {Signal.SM_ACTIVE, Signal.DRAM_ACTIVE, Signal.TENSOR_ACTIVE, Signal.SM_OCCUPANCY}
FAULT_AT = 20


class Judge:
    """A StragglerTracker that sees what there is; ``gpm``: with work signals, ``ranks``: with the rank of each GPU."""

    def __init__(self, *, gpm, ranks):
        self.gpm, self.ranks = gpm, ranks
        self.tracker = StragglerTracker()
        self.history = []  # second by second: who is accused of what (by index), and what was found

    def look(self, cards, assignments):
        if not self.gpm:
            cards = [replace(card, reading=without_work(card.reading)) for card in cards]
        if not self.ranks:
            assignments = [replace(assignment, rank="") for assignment in assignments]
        verdict = self.tracker.update(cards, assignments)
        indices = {card.facts.uuid: card.facts.index for card in cards}
        self.history.append(({(indices[straggler.uuid], straggler.cause) for straggler in verdict.found}, verdict))

    def accused(self):
        return [accused for accused, _ in self.history]


def without_work(reading):
    return replace(reading, signals={signal: value for signal, value in reading.signals.items() if signal not in GPM})


class Harness:
    """Reads the GPUs of a scenario once a second of simulated time, for several judges: reading is what costs."""

    def __init__(self, scenario, *, gpm=(True, False), ranks=(True,)):
        self.clock = Clock(0.0)
        replicas = find(scenario).replicas
        pids = {spec.name: tuple(100 * n + i for i in range(len(spec.ranks))) for n, spec in enumerate(replicas, 1)}
        driver = simulated_driver(self.clock, scenario=scenario, pids=pids)
        facts, count = initialise(driver)
        opened = [open_card(driver, index) for index in range(count)]
        self.readers = [(card, GpuReader(driver, calls, card, facts.driver_version)) for calls, card in opened]
        self.assignments = tuple(
            GpuAssignment(
                uuid=opened[index][1].uuid, replica=spec.name, rank=str(rank) if len(spec.ranks) > 1 else ""
            )
            for spec in replicas
            for rank, group in enumerate(spec.ranks)
            for index in group
        )
        self.judges = [Judge(gpm=has_gpm, ranks=has_ranks) for has_gpm in gpm for has_ranks in ranks]

    def run(self, seconds):
        """Let so much time pass and return the judges."""
        for second in range(seconds):
            self.clock.tick(1.0)
            cards = [self._read(card, reader, slow=second % 5 == 0) for card, reader in self.readers]
            for judge in self.judges:
                judge.look(cards, self.assignments)
        return self.judges

    def _read(self, card, reader, *, slow):
        reading = reader.read(slow=slow, clock=self.clock)
        return CardState(
            facts=card,
            status=SourceStatus(source=f"gpu:{card.uuid}", up=True),
            reading=reading,
            last_read_at=reading.at,
            labels=GpuLabels(str(card.index), card.uuid),
        )


@pytest.mark.parametrize(
    ("scenario", "card", "cause", "seconds"),
    [
        ("heat", 2, Cause.THERMAL, 110),
        ("powercap", 5, Cause.POWER_CAP, 50),
        ("brake", 1, Cause.POWER_BRAKE, 50),
        ("narrow", 3, Cause.PCIE, 50),
    ],
)
def test_a_fault_is_blamed_on_its_gpu_and_on_no_other_with_and_without_work_signals(scenario, card, cause, seconds):
    for judge in Harness(scenario).run(seconds):
        accused = judge.accused()
        assert accused[-1] == {(card, cause)}, judge.gpm
        assert set().union(*accused) == {(card, cause)}, judge.gpm
        assert set().union(*accused[:FAULT_AT]) == set(), judge.gpm


def test_a_gpu_whose_memory_is_full_and_that_keeps_up_is_no_straggler():
    for judge in Harness("oom").run(90):
        assert set().union(*judge.accused()) == set(), judge.gpm
        assert judge.history[-1][1].judged["chat-b"], judge.gpm


def test_a_process_that_serves_no_replica_here_is_found_where_work_is_measured():
    (judge,) = Harness("tenant", gpm=[True]).run(50)
    assert judge.accused()[-1] == {(6, Cause.OTHER_TENANT)}


def test_the_slowdown_is_about_what_the_clock_says():
    (judge,) = Harness("brake", gpm=[True]).run(60)
    # 30 % less clock is a factor of 1.43; the waiters' spinning hides a part of it.
    assert 1.25 < judge.history[-1][1].found[0].slowdown < 1.45


@pytest.mark.slow
@pytest.mark.parametrize("scenario", ["healthy", "mixed", "pcie", "drift", "engines"])
def test_healthy_gpus_have_no_straggler_and_are_evaluated(scenario):
    for judge in Harness(scenario).run(100):
        assert set().union(*judge.accused()) == set(), judge.gpm
        for replica in find(scenario).replicas:
            assert sum(verdict.judged[replica.name] for _, verdict in judge.history) > 70, judge.gpm


@pytest.mark.slow
def test_a_scheduler_that_prefers_some_ranks_is_no_straggler():
    for judge in Harness("skew", ranks=[True, False]).run(100):
        assert set().union(*judge.accused()) == set(), (judge.gpm, judge.ranks)
        # GPUs of ranks of their own are not compared at all.
        assert (judge.history[-1][1].judged == {}) is judge.ranks


def test_a_frozen_group_is_not_judged_once_its_work_has_stopped():
    harness = Harness("hang", gpm=[True])
    (judge,) = harness.run(FAULT_AT)
    assert judge.history[-1][1].judged == {"chat-a": True, "chat-b": True}
    harness.readers = [
        pair for pair in harness.readers if pair[0].index != 6
    ]  # the lost GPU answers nothing any more
    harness.run(60)
    accused, verdict = judge.history[-1]
    assert accused == set()
    assert verdict.judged == {"chat-a": True, "chat-b": False}
