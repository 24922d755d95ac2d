"""What a driver's counters have shown of their units, over a new initialisation, another worker and another driver."""

from __future__ import annotations

import os
import signal
from types import SimpleNamespace

import pytest

from exporter.driver import protocol
from exporter.driver.nvml.counter_units import MICROSECONDS, NANOSECONDS, UnitEvidence
from exporter.driver.nvml.shared import SharedState
from exporter.driver.worker.worker import Worker
from exporter.model import Missing, Signal
from tests.support.fake_nvml import FakeDriver
from tests.support.waiting import until
from tests.support.watched_cards import Node, alive

CAP = "sw_power_cap"
VERSION = "590.48.01"
SECONDS = 5e9  # nanoseconds
# A counter that rests, while the reason is not active: what it runs in cannot be seen.
QUIET = {"fields": {"74": SECONDS}, "calls": {"nvmlDeviceGetCurrentClocksEventReasons": {"return": 0}}}
FOUND = protocol.CounterUnits(driver_version=VERSION, units={CAP: NANOSECONDS})


@pytest.fixture
def inside():
    """Return a worker's parts in this process, with the driver and what was sent; all threads end afterwards."""
    driver, sent = FakeDriver(dict(QUIET)), []
    worker = Worker(protocol.WorkerOptions(module="tests.support.fake_nvml"), SimpleNamespace(send=sent.append))
    yield SimpleNamespace(worker=worker, driver=driver, sent=sent)
    worker._release()


def first_readings(inside, again):
    """Initialise and give the first reading of each card."""
    before = len(inside.sent)
    again(inside.driver)

    def readings():
        reads = [message for message in inside.sent[before:] if isinstance(message, protocol.CardRead)]
        return {message.uuid: message.reading for message in reversed(reads)}

    until(lambda: len(readings()) == 2)
    return list(readings().values())


def shown(readings):
    return [reading.clock_event_seconds.get(CAP) for reading in readings]


def test_units_outlive_an_initialisation_but_not_the_driver(inside):
    worker = inside.worker
    readings = first_readings(inside, worker._start)
    assert shown(readings) == [None, None]
    assert [reading.missing[Signal.CLOCK_EVENT_TIME] for reading in readings] == [Missing.UNVERIFIED] * 2
    worker._shared.units[CAP] = NANOSECONDS
    assert shown(first_readings(inside, worker._initialise_again)) == [5.0, 5.0]
    inside.driver.plan = {**QUIET, "driver": "595.10"}
    assert shown(first_readings(inside, worker._initialise_again)) == [None, None]


def test_a_counter_that_was_found_to_be_another_stays_so_over_an_initialisation(inside):
    worker = inside.worker
    worker._set_driver_version(VERSION)
    worker._shared.units[CAP] = NANOSECONDS
    worker._shared.evidence["GPU-a"] = {CAP: UnitEvidence(at=1.0, raw=3.0, unit=NANOSECONDS, runs_idle=True)}
    first_readings(inside, worker._start)
    assert sorted(shown(first_readings(inside, worker._initialise_again)), key=str) == [5.0, None]


@pytest.mark.parametrize(("version", "expected"), [(VERSION, 5.0), ("580.10", None)])
def test_a_worker_uses_what_an_earlier_one_has_found_out_about_the_same_driver(inside, version, expected):
    inside.worker._known_units = protocol.CounterUnits(driver_version=version, units={CAP: NANOSECONDS})
    assert shown(first_readings(inside, inside.worker._start)) == [expected] * 2


def test_a_worker_says_once_what_it_has_found_out_and_again_when_that_changes(inside):
    worker, shared = inside.worker, inside.worker._shared
    worker._send_units()
    worker._set_driver_version(VERSION)
    worker._send_units()
    assert inside.sent == []
    shared.units[CAP] = NANOSECONDS
    for _ in range(3):
        worker._send_units()
    assert inside.sent == [FOUND]
    shared.evidence["GPU-a"] = {CAP: UnitEvidence(fits_nothing=True)}
    worker._send_units()
    assert inside.sent[1:] == [protocol.CounterUnits(driver_version=VERSION, units={})]


def test_counter_units_that_one_gpu_disproves_are_not_used():
    units = {CAP: NANOSECONDS, "sync_boost": MICROSECONDS}
    evidence = {"GPU-a": {CAP: UnitEvidence(runs_idle=True)}, "GPU-b": {CAP: UnitEvidence(unit=NANOSECONDS)}}
    assert SharedState(units=units).confirmed_units() == units
    assert SharedState(units=units, evidence=evidence).confirmed_units() == {"sync_boost": MICROSECONDS}


@pytest.mark.slow
def test_throttle_time_goes_on_at_once_in_a_new_worker(tmp_path):
    node = Node(tmp_path / "plan.json", {"fields": {"74": {"unit": NANOSECONDS}}})
    node.source.start()
    try:
        assert node.until(lambda: node.up() and CAP in node.card().reading.clock_event_seconds)
        assert node.until(lambda: node.source._supervisor.counter_units == FOUND)
        node.plan(QUIET)
        pid, at = node.pid, node.card().reading.at
        readings_seen = []
        os.kill(pid, signal.SIGKILL)

        def another():
            reading = node.card().reading
            if node.pid not in {pid, None} and reading is not None and reading.at > at + 0.1:
                readings_seen.append(reading.clock_event_seconds.get(CAP))
            return len(readings_seen) > 20

        assert node.until(another)
        assert None not in readings_seen
    finally:
        node.source.stop()
        assert node.until(lambda: not any(alive(pid) for pid in node.pids))
