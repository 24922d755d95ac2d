"""The simulated node through the real card reader: each fault is blamed on its card, and a well node on nobody."""

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


class Lab:
    """Reads the cards of a scenario once a second of simulated time."""

    def __init__(self, scenario, *, gpm=True, ranks=True):
        self.clock, self.gpm = Clock(0.0), gpm
        replicas = find(scenario).replicas
        pids = {spec.name: tuple(100 * n + i for i in range(len(spec.ranks))) for n, spec in enumerate(replicas, 1)}
        driver = simulated_driver(self.clock, scenario=scenario, pids=pids)
        facts, count = initialise(driver)
        opened = [open_card(driver, index) for index in range(count)]
        self.readers = [(card, GpuReader(driver, calls, card, facts.driver_version)) for calls, card in opened]
        self.assignments = tuple(
            GpuAssignment(
                uuid=opened[index][1].uuid, replica=spec.name, rank=str(rank) if ranks and len(spec.ranks) > 1 else ""
            )
            for spec in replicas
            for rank, group in enumerate(spec.ranks)
            for index in group
        )
        self.watch = StragglerTracker()

    def run(self, seconds):
        """Return, second by second, who is accused of what (by index), and which replicas are judged."""
        for second in range(seconds):
            self.clock.tick(1.0)
            cards = [self._read(card, reader, slow=second % 5 == 0) for card, reader in self.readers]
            found = self.watch.update(cards, self.assignments)
            places = {card.facts.uuid: card.facts.index for card in cards}
            yield {(places[one.uuid], one.cause) for one in found.found}, found

    def _read(self, card, reader, *, slow):
        reading = reader.read(slow=slow, clock=self.clock)
        if not self.gpm:
            left = {which: value for which, value in reading.signals.items() if which not in GPM}
            reading = replace(reading, signals=left)
        return CardState(
            facts=card,
            status=SourceStatus(source=f"gpu:{card.uuid}", up=True),
            reading=reading,
            last_read_at=reading.at,
            labels=GpuLabels(str(card.index), card.uuid),
        )


@pytest.mark.parametrize("gpm", [True, False])
@pytest.mark.parametrize(
    ("scenario", "card", "cause", "seconds"),
    [
        ("heat", 2, Cause.THERMAL, 110),
        ("powercap", 5, Cause.POWER_CAP, 50),
        ("brake", 1, Cause.POWER_BRAKE, 50),
        ("narrow", 3, Cause.PCIE, 50),
        ("oom", 5, Cause.MEMORY_PRESSURE, 90),
    ],
)
def test_a_fault_is_blamed_on_its_card_and_on_nobody_else(scenario, card, cause, seconds, gpm):
    history = [accused for accused, _ in Lab(scenario, gpm=gpm).run(seconds)]
    assert history[-1] == {(card, cause)}
    assert set().union(*history) == {(card, cause)}
    assert set().union(*history[:FAULT_AT]) == set()


def test_a_process_that_serves_nobody_here_is_found_where_work_is_measured():
    *_, (accused, _) = Lab("tenant").run(50)
    assert accused == {(6, Cause.OTHER_TENANT)}


def test_the_slowdown_is_about_what_the_clock_says():
    *_, (_, found) = Lab("brake").run(60)
    # 30 % less clock is a factor of 1.43; the waiters' spinning hides a part of it.
    assert 1.25 < found.found[0].slowdown < 1.45


@pytest.mark.slow
@pytest.mark.parametrize("gpm", [True, False])
@pytest.mark.parametrize("scenario", ["healthy", "mixed", "pcie", "drift", "engines"])
def test_a_node_whose_cards_are_well_accuses_nobody_and_says_that_it_looked(scenario, gpm):
    history = list(Lab(scenario, gpm=gpm).run(400))
    assert set().union(*[accused for accused, _ in history]) == set()
    for replica in find(scenario).replicas:
        assert sum(found.judged[replica.name] for _, found in history) > 350


@pytest.mark.slow
@pytest.mark.parametrize("gpm", [True, False])
@pytest.mark.parametrize("ranks", [True, False])
def test_a_scheduler_that_prefers_some_ranks_is_no_straggler(ranks, gpm):
    history = list(Lab("skew", gpm=gpm, ranks=ranks).run(300))
    assert set().union(*[accused for accused, _ in history]) == set()
    assert (history[-1][1].judged == {}) is ranks  # cards of ranks of their own are not compared at all


def test_a_frozen_group_is_not_judged_once_its_work_has_stopped():
    lab = Lab("hang")
    healthy = list(lab.run(FAULT_AT))
    assert healthy[-1][1].judged == {"chat-a": True, "chat-b": True}
    lab.readers = [pair for pair in lab.readers if pair[0].index != 6]  # the lost card answers nothing any more
    *_, (accused, found) = lab.run(60)
    assert accused == set()
    assert found.judged == {"chat-a": True, "chat-b": False}
