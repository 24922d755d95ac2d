"""Work of cards in-process: the window between two samples, scheduler between cards, and what simulated cards answer."""

from __future__ import annotations

import threading
import time

import pytest

from exporter.driver.nvml.gpm import MAX_WINDOW, SIGNALS, GpmCounters, GpmLock
from exporter.driver.nvml.library import initialise, open_card
from exporter.model import Missing, Signal
from exporter.simulate.driver import NVMLError
from exporter.simulate.nvml_gpm import GpmSample, metric_between
from exporter.simulate.unit_counters import DRAM, NVLINK_SENT, OCCUPANCY, SM, TENSOR
from exporter.simulate.world import World
from tests.support.builders import Clock
from tests.support.simulated_driver import simulated_driver


@pytest.fixture
def node():
    """A simulated driver on a clock that tests move, and the lock of its cards."""
    clock = Clock(60.0)
    driver = simulated_driver(clock, scenario="healthy")
    initialise(driver)
    return driver, clock, GpmLock()


def counters(node, index=0):
    driver, _, lock = node
    calls, _ = open_card(driver, index)
    return GpmCounters(driver, calls, lock)


def test_the_first_read_has_nothing_to_compare_with(node):
    one = counters(node)
    first = one.read(node[1])
    assert set(first.values) == set(SIGNALS) and set(first.values.values()) == {Missing.STARTING}
    node[1].tick(5.0)
    second = one.read(node[1])
    assert 0.3 < second.values[Signal.SM_ACTIVE] < 0.9 and second.traffic["nvlink", "transmit"] > 1e6
    assert second.pipes["tensor_hmma"] == pytest.approx(second.values[Signal.TENSOR_ACTIVE])


def test_two_reads_within_a_tenth_of_a_second_are_one(node):
    one = counters(node)
    one.read(node[1])
    node[1].tick(2.0)
    second = one.read(node[1])
    node[1].tick(0.05)
    assert one.read(node[1]) is second
    node[1].tick(0.3)
    assert one.read(node[1]) is not second


def test_after_a_long_gap_the_window_starts_anew(node):
    one = counters(node)
    one.read(node[1])
    node[1].tick(MAX_WINDOW + 1.0)
    assert set(one.read(node[1]).values.values()) == {Missing.STARTING}
    node[1].tick(1.0)
    assert isinstance(one.read(node[1]).values[Signal.SM_ACTIVE], float)


def test_while_another_gpu_is_inside_for_ever_a_gpu_waits_once_and_not_long(node):
    one, (_, clock, lock) = counters(node), node
    one.read(clock)
    clock.tick(2.0)
    entered, leave = threading.Event(), threading.Event()

    def stay():
        assert lock.acquire()
        entered.set()
        leave.wait(10)
        lock.release()

    other = threading.Thread(target=stay)
    other.start()
    assert entered.wait(10)
    assert set(one.read(clock).values.values()) == {Missing.BUSY}
    assert lock._stuck  # from here on nobody waits
    leave.set()
    other.join(10)
    assert isinstance(one.read(clock).values[Signal.SM_ACTIVE], float)


def test_it_is_known_who_is_inside_and_for_how_long():
    lock = GpmLock()
    assert lock.acquire("GPU-a")
    assert lock.holder(time.monotonic() + 5.0) == {"GPU-a": pytest.approx(5.0, abs=1.0)}
    lock.release()
    assert lock.holder(time.monotonic()) == {}


def test_a_gpu_in_cooldown_is_not_read_until_the_cooldown_is_over(node):
    driver, clock, lock = node
    calls, _ = open_card(driver, 0)
    one, other = GpmCounters(driver, calls, lock, uuid="GPU-a"), counters(node, 1)
    lock.backed_off["GPU-a"] = clock.now + 10.0
    assert set(one.read(clock).values.values()) == {Missing.BUSY}
    assert set(other.read(clock).values.values()) == {Missing.STARTING}
    clock.tick(10.0)
    assert set(one.read(clock).values.values()) == {Missing.STARTING}


def test_buffers_go_from_one_reader_to_the_next_and_back_to_the_driver(node, monkeypatch):
    driver, clock, lock = node
    freed = []
    monkeypatch.setattr(driver, "nvmlGpmSampleFree", freed.append)
    one = counters(node)
    one.read(clock)
    one.close()
    assert len(lock.buffers) == 2
    two = counters(node, 1)
    two.read(clock)
    assert lock.buffers == []
    two.close()
    lock.free_buffers(driver)
    assert len(freed) == 2 and lock.buffers == []


def test_a_driver_without_the_functions_has_no_work_signals(node, monkeypatch):
    driver, clock, _ = node
    monkeypatch.delattr(driver, "nvmlGpmQueryDeviceSupport")
    one = counters(node)
    for _ in range(3):
        assert set(one.read(clock).values.values()) == {Missing.UNSUPPORTED}
        clock.tick(1.0)


# ---- every return code

# Those that end an initialisation or a card among them; what says that the card has no such thing is for good.
CODES = [*range(1, 31), 999]
FOR_GOOD = {2, 3, 13, 25}


def answer(code):
    """Refuse as the binding does; 0 answers."""

    def call(*_):
        raise NVMLError(code)

    return call


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("name", ["nvmlGpmQueryDeviceSupport", "nvmlGpmSampleAlloc"])
def test_no_return_code_of_what_comes_first_costs_more_than_the_work_signals(node, monkeypatch, name, code):
    driver, clock, lock = node
    with monkeypatch.context() as patch:
        patch.setattr(driver, name, answer(code))
        one = counters(node)
        why = set(one.read(clock).values.values())
        assert why == {
            Missing.UNSUPPORTED if code in FOR_GOOD else Missing.NO_PERMISSION if code == 4 else Missing.ERROR
        }
        assert lock.acquire(), "the turn is given back"
        lock.release()
    one.read(clock)
    clock.tick(1.0)
    back = set(one.read(clock).values.values())
    assert (back == {Missing.UNSUPPORTED}) is (code in FOR_GOOD)


# ---- what simulated cards answer


def work(scenario, begin, end, metrics=(SM, OCCUPANCY, TENSOR, DRAM), **more):
    """Return utilisation and metrics of each card between two times of a scenario."""
    world = World(scenario, seed=0, **more)
    world.advance_to(begin)
    first = [GpmSample() for _ in world.gpus]
    for sample, card in zip(first, world.gpus, strict=True):
        sample.record(card, world.now)
    world.advance_to(end)
    found = []
    for sample, card in zip(first, world.gpus, strict=True):
        second = GpmSample()
        second.record(card, world.now)
        found.append((card.utilization, *(metric_between(sample, second, metric) for metric in metrics)))
    return found


def test_gpus_that_wait_in_a_frozen_collective_are_resident_and_do_no_work():
    found = work("hang", 60.0, 70.0)
    for utilization, active, occupancy, tensor, memory in (found[4], found[5], found[7]):
        assert utilization > 0.97
        assert active < 20 and occupancy < 5 and tensor == 0 and memory < 2
    assert found[0][1] > 40


def test_a_throttled_gpu_works_more_of_its_time_than_those_that_wait_for_it():
    found = work("heat", 200.0, 220.0)
    slow, waiting = found[2], [found[index] for index in (0, 1, 3)]
    assert all(slow[1] > other[1] + 3 for other in waiting)  # processors
    assert all(slow[4] == pytest.approx(other[4], rel=0.05) for other in waiting)  # the same bytes in the same time


def test_gpus_that_communicate_over_pcie_are_resident_and_mostly_wait():
    found = work("pcie", 60.0, 80.0)
    assert found[0][0] > 0.95 and found[0][1] < 40
    tensor = [row[3] for row in found]
    assert max(tensor) == pytest.approx(min(tensor), rel=0.05)  # one model's work, split evenly


def test_uneven_ranks_do_uneven_work():
    found = work("skew", 100.0, 120.0)
    assert [row[1] for row in found] == sorted((row[1] for row in found), reverse=True)
    assert found[0][1] > 1.5 * found[7][1]


def test_a_gpu_without_nvlink_has_no_nvlink_traffic():
    (metric,) = {row[1] for row in work("pcie", 10.0, 12.0, metrics=(NVLINK_SENT,))}
    assert metric is None
    assert all(row[1] > 0 for row in work("healthy", 10.0, 12.0, metrics=(NVLINK_SENT,)))
