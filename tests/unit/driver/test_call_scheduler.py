"""Which questions a card is asked in a cycle when it is too slow for all of them."""

from __future__ import annotations

import pytest

from exporter.driver.nvml import library
from exporter.driver.nvml.call_scheduler import BUDGET, CHANGING, ESSENTIAL, LINKS, SLOW_TIER, CallScheduler
from exporter.driver.nvml.gpu import GpuReader
from exporter.model import Missing, Signal
from tests.support.fake_nvml import FakeDriver

TIERS = {"vital": (ESSENTIAL, 8), "quick": (CHANGING, 10), "link": (LINKS, 18), "slow": (SLOW_TIER, 18)}
ESSENTIALS = (Signal.UTILIZATION, Signal.MEMORY_USED, Signal.TEMPERATURE_GPU, Signal.POWER, Signal.CLOCK_SM)


class Card:
    """Questions of all tiers, each of which costs ``cost`` seconds, asked once a second or as soon as it can be."""

    def __init__(self):
        self.now, self.cost, self.dear = 100.0, 0.0, {}
        self.scheduler = CallScheduler(lambda: self.now)
        self.asked, self.durations, self.shown = [], [], {}

    def put(self, key):
        self.now += self.dear.get(key, self.cost)
        self.asked.append(key)
        return len(self.asked)

    def cycle(self, budget=BUDGET, tiers=(LINKS, SLOW_TIER)):
        begun, self.asked = self.now, []
        self.scheduler.begin_cycle(begun, budget, tiers)
        for name, (tier, count) in TIERS.items():
            for number in range(count):
                key = (name, number)
                self.shown[key] = self.scheduler.run(key, tier, lambda k=key: self.put(k))
        self.durations.append(self.now - begun)
        self.now = max(self.now, begun + 1.0)
        if self.durations[-1] > 1.0:
            self.now = begun + 2.0  # a poll was skipped
        return self.asked

    def missing(self):
        return {key for key, answer in self.shown.items() if answer is Missing.SLOW}


def vital():
    return {("vital", number) for number in range(8)}


def test_a_gpu_that_answers_at_once_gets_every_due_call_each_time():
    card = Card()
    assert [len(card.cycle()) for _ in range(3)] == [54, 54, 54]
    assert len(card.cycle(tiers=())) == 18  # links and the slow tier are asked when their time has come
    assert len(card.cycle(tiers=(LINKS,))) == 36
    assert not card.missing()


def test_a_gpu_of_a_tenth_of_a_second_a_call_gets_the_essential_calls_each_time_and_the_rest_in_turn():
    card = Card()
    card.cycle()
    card.cost = 0.1
    for number in range(40):
        asked = card.cycle(tiers=(LINKS, SLOW_TIER) if number % 30 == 0 else ())
        assert vital() <= set(asked) and card.durations[-1] <= BUDGET + card.cost
        assert not card.missing(), number


def test_within_a_budget_that_is_too_small_for_the_essential_every_call_runs_and_nothing_is_stale():
    card = Card()
    card.cycle()
    card.cost = 0.3
    asked, gaps = set(), 0
    for number in range(600):
        asked |= set(card.cycle(tiers=(LINKS, SLOW_TIER) if number % 100 == 0 else ()))
        assert 1 <= len(card.asked) <= 6 and card.durations[-1] <= BUDGET + card.cost
        gaps += len(card.missing())
    assert len(asked) == 54 and gaps > 0


def test_the_cycle_in_which_a_gpu_becomes_slow_ends_soon_after_its_budget_too():
    card = Card()
    card.cycle()
    card.cost = 0.1
    asked = card.cycle()
    assert card.durations[-1] < BUDGET + 2 * card.cost and vital() <= set(asked)


def test_a_gpu_that_has_become_fast_again_gets_every_call_within_a_few_cycles():
    card = Card()
    card.cost = 0.1
    for _ in range(20):
        card.cycle()
    card.cost = 0.001
    assert min(len(card.cycle()) for _ in range(5)) < 54
    assert len(card.cycle()) == 54


def test_one_question_dearer_than_the_budget_is_put_now_and_then_and_costs_the_others_one_turn():
    card = Card()
    card.dear["quick", 3] = 1.6
    scheduler = [("quick", 3) in card.cycle(tiers=()) for _ in range(60)]
    assert 3 <= sum(scheduler[1:]) <= 15
    card.shown.clear()
    for _ in range(30):
        card.cycle(tiers=())
        assert not card.missing() & vital()


def test_an_answer_is_shown_for_as_long_as_its_tier_says_and_then_it_is_absent():
    scheduler = CallScheduler(lambda: 0.0)
    scheduler.begin_cycle(100.0, 1.0, (SLOW_TIER,))
    assert scheduler.run("a", SLOW_TIER, lambda: 7) == 7
    for age, shown in ((1.0, 7), (SLOW_TIER.max_age, 7), (SLOW_TIER.max_age + 1.0, Missing.SLOW)):
        scheduler.begin_cycle(100.0 + age, 1.0)
        assert scheduler.run("a", SLOW_TIER, lambda: 8) == shown and not scheduler.answered_now("a")


def test_a_refusal_does_not_grow_old_and_a_new_question_is_due_at_once():
    scheduler = CallScheduler(lambda: 0.0)
    scheduler.begin_cycle(0.0, 1.0, (SLOW_TIER,))
    scheduler.run("a", SLOW_TIER, lambda: Missing.UNSUPPORTED)
    scheduler.begin_cycle(1e6, 1.0)
    assert scheduler.run("a", SLOW_TIER, lambda: 8) is Missing.UNSUPPORTED
    assert scheduler.run("b", SLOW_TIER, lambda: 9) == 9
    assert SLOW_TIER not in scheduler.tiers_due and ESSENTIAL in scheduler.tiers_due


def test_a_question_that_raises_is_due_again():
    scheduler = CallScheduler(lambda: 0.0)
    scheduler.begin_cycle(0.0, 1.0, (LINKS,))
    with pytest.raises(ZeroDivisionError):
        scheduler.run("a", LINKS, lambda: 1 // 0)
    scheduler.begin_cycle(1.0, 1.0)
    assert LINKS in scheduler.tiers_due and scheduler.run("a", LINKS, lambda: 3) == 3


def slow_reader(seconds):
    driver = FakeDriver({"calls": {"*": {"sleep": 0.0}}})
    calls, facts = library.open_card(driver, 0)
    reader = GpuReader(driver, calls, facts, "590.48.01")
    whole = reader.read(slow=True)
    driver.plan["calls"]["*"]["sleep"] = seconds
    return driver, reader, whole


def test_a_reader_of_a_slow_gpu_keeps_to_its_budget_and_catches_up():
    driver, reader, whole = slow_reader(0.02)
    for number in range(12):
        reading = reader.read(slow=number == 0, budget=0.3)
        assert set(ESSENTIALS) <= reading.signals.keys()
        assert reading.signals.keys() == whole.signals.keys(), "nothing grows too old in so short a time"
        assert reading.missing.keys() == whole.missing.keys()
    driver.plan["calls"]["*"]["sleep"] = 0.0
    for _ in range(6):
        reader.read(slow=True, budget=0.3)
    before = driver.counts.total()
    assert reader.read(slow=True, budget=0.3).signals.keys() == whole.signals.keys()
    assert driver.counts.total() - before > 30


def test_what_was_not_read_in_time_of_a_slow_gpu_is_absent_as_slow():
    driver, reader, whole = slow_reader(0.02)
    reader.read(slow=False, budget=0.0, clock=lambda: 1e9)
    reading = reader.read(slow=True, budget=0.0, clock=lambda: 1e9 + 1000.0)
    lost = {signal for signal, why in reading.missing.items() if why is Missing.SLOW}
    assert {Signal.POWER, Signal.CLOCK_SM, Signal.POWER_LIMIT, Signal.CLOCK_EVENT_TIME} <= lost
    assert not lost & reading.signals.keys() and Signal.POWER in whole.signals


def test_a_gpu_that_is_slow_from_the_start_gets_every_call_in_little_more_time_than_they_take():
    card = Card()
    card.cost = 0.1
    cycles = [set(card.cycle(tiers=(LINKS, SLOW_TIER) if number == 0 else ())) for number in range(22)]
    assert set.union(*cycles[:6]) >= {(name, number) for name in ("vital", "quick") for number in range(8)}
    assert len(set.union(*cycles)) == 54


def test_the_cycle_after_a_gpu_became_slow_asks_the_essential_whatever_comes_before_it():
    card = Card()
    order = dict(reversed(TIERS.items()))
    for cost in (0.0, 0.0, 0.1, 0.1):
        card.cost, card.asked = cost, []
        card.scheduler.begin_cycle(card.now, BUDGET, (LINKS, SLOW_TIER))
        for name, (tier, count) in order.items():
            for number in range(count):
                card.scheduler.run((name, number), tier, lambda k=(name, number): card.put(k))
        card.now += 2.0
    assert vital() <= set(card.asked)
