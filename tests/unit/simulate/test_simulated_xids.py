"""Simulated cards report the XIDs that befall them, through the same functions as real ones."""

from __future__ import annotations

import pytest

from exporter.simulate.driver import NVMLError
from exporter.simulate.products import H100_PCIE
from exporter.simulate.scenarios import find
from exporter.simulate.world import World
from tests.support.builders import Clock
from tests.support.records import replace
from tests.support.simulated_driver import simulated_driver

XID = 0x8


@pytest.fixture
def clock():
    return Clock(0.0)


@pytest.fixture
def driver(clock):
    def start(scenario, **more):
        module = simulated_driver(clock, scenario=scenario, **more)
        module.nvmlInit()
        return module

    return start


def listener(driver, cards=range(8)):
    events = driver.nvmlEventSetCreate()
    for card in cards:
        assert driver.nvmlDeviceGetSupportedEventTypes(card) & XID
        driver.nvmlDeviceRegisterEvents(card, XID, events)
    return events


def events_of(driver, events):
    found = []
    with pytest.raises(NVMLError, match="10"):  # the time is over
        while True:
            event = driver.nvmlEventSetWait_v2(events, 0)
            assert event.eventType == XID
            found.append((event.device, event.eventData))
    return found


def test_a_gpu_that_is_lost_says_first_that_its_link_failed_and_then_that_it_is_gone(driver, clock):
    node = driver("hang", fault_at=4.0)
    events = listener(node)
    clock.now = 3.0
    assert events_of(node, events) == []
    clock.now = 6.0
    assert events_of(node, events) == [(6, 74)]
    clock.now = 30.0
    assert events_of(node, events) == [(6, 79)]
    clock.now = 60.0
    assert events_of(node, events) == []


def test_each_subscription_receives_the_events_of_its_gpus_from_its_start_on(driver, clock):
    node = driver("hang", fault_at=4.0)
    early, others = listener(node), listener(node, [0, 1])
    clock.now = 6.0
    node.nvmlSystemGetDriverVersion()
    late = listener(node)
    clock.now = 30.0
    assert events_of(node, late) == [(6, 79)] and events_of(node, others) == []
    assert events_of(node, early) == [(6, 74), (6, 79)]
    node.nvmlEventSetFree(early)
    assert events_of(node, early) == []


@pytest.mark.parametrize("scenario", ["healthy", "heat", "oom", "pcie"])
def test_what_is_no_error_of_a_gpu_has_no_xid(driver, clock, scenario):
    node = driver(scenario, fault_at=2.0)
    events = listener(node)
    clock.now = 60.0
    assert events_of(node, events) == []


def test_a_lost_gpu_cannot_be_registered_and_other_types_of_events_are_not_had(driver, clock):
    node = driver("hang", fault_at=0.0)
    clock.now = 20.0
    events = node.nvmlEventSetCreate()
    with pytest.raises(NVMLError, match="15"):
        node.nvmlDeviceRegisterEvents(6, XID, events)
    with pytest.raises(NVMLError, match="2"):
        node.nvmlDeviceRegisterEvents(0, XID | 0x1, events)


def test_a_gpu_without_nvlink_has_no_failed_link():
    world = World(replace(find("hang"), product=H100_PCIE), fault_at=1.0)
    world.advance_to(30.0)
    assert world.xids == [(6, 79)]


def test_a_gpu_that_comes_back_and_is_lost_again_says_so_again():
    world = World("hang", fault_at=1.0, fault_until=15.0)
    world.advance_to(30.0)
    assert world.xids == [(6, 74), (6, 79)] and not world.gpus[6].lost
