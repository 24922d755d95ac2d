"""One card's thread in the worker: what is asked seldom, and what becomes of facts that are not answered for once."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from exporter.driver import protocol
from exporter.driver.nvml.shared import SharedState
from exporter.driver.worker import gpu_thread
from tests.support.fake_nvml import FakeDriver
from tests.support.waiting import until

SELDOM = "nvmlDeviceGetEnforcedPowerLimit"


def started(driver, sent):
    """Return the thread of GPU 0 of a driver, running."""
    thread = gpu_thread.GpuThread(
        driver,
        0,
        "590.48",
        sender=SimpleNamespace(send=sent.append),
        on_driver_unavailable=sent.append,
        shared=SharedState(),
    )
    thread.start()
    return thread


@pytest.fixture
def card(monkeypatch):
    """Return a card's thread as ``read()``, which says whether the slow questions were asked."""
    monkeypatch.setattr(gpu_thread, "SLOW_EVERY", -1.0)
    monkeypatch.setattr(gpu_thread, "SLOW_EVERY_DEMOTED", 1e6)
    driver, sent = FakeDriver({}), []
    thread = started(driver, sent)

    def answered(cycle):
        return any(isinstance(message, protocol.CardRead) and message.cycle == cycle for message in list(sent))

    def read():
        until(lambda: not thread.busy)
        before, cycle = driver.counts[SELDOM], len(sent) + 1000
        thread.request(cycle)
        until(lambda: answered(cycle))
        return driver.counts[SELDOM] > before

    until(lambda: answered(0))
    thread._slow_every = gpu_thread.SLOW_EVERY
    yield read
    thread.end()
    assert thread.join(10.0)


def test_a_gpu_that_answers_quickly_gets_the_slow_calls_when_they_are_due(card, monkeypatch):
    monkeypatch.setattr(gpu_thread, "SLOW_READ", 1e6)
    assert [card() for _ in range(3)] == [True, True, True]


def test_a_gpu_that_is_slow_to_answer_gets_them_less_often_and_is_read(card, monkeypatch):
    monkeypatch.setattr(gpu_thread, "SLOW_READ", -1.0)
    assert [card() for _ in range(3)] == [True, False, False]


FACTS = {"Name": "name", "PciInfo": "pci_bus_id", "Serial": "serial", "VbiosVersion": "vbios_version"}
WHOLE = ("Fake GPU", "00000000:1B:00.0", "1234", "96.00")


@pytest.fixture
def opened():
    """Start a card's thread over a plan; gives ``read(plan)``, which puts another one and gives all facts said so far."""
    threads = []

    def start(plan):
        driver, sent = FakeDriver(plan), []
        thread = started(driver, sent)
        threads.append(thread)

        def read(plan):
            until(lambda: not thread.busy)
            driver.plan = plan
            cycle = len(sent) + 1000
            thread.request(cycle)
            until(
                lambda: any(
                    isinstance(message, protocol.CardRead) and message.cycle == cycle for message in list(sent)
                )
            )
            found = [message.facts for message in sent if isinstance(message, protocol.CardFound)]
            return [tuple(getattr(facts, name) for name in FACTS.values()) for facts in found]

        read.driver = driver
        return read

    yield start
    for thread in threads:
        thread.end()
        assert thread.join(10.0)


def failing(*names, code=999):
    return {"calls": {f"nvmlDeviceGet{name}": {"error": code} for name in names}}


def test_facts_that_failed_while_the_gpu_was_opened_are_asked_for_again_soon(opened, monkeypatch):
    monkeypatch.setattr(gpu_thread, "FACTS_SOON", -1.0)
    read = opened(failing(*FACTS))
    assert read(failing(*FACTS)) == [("", "", "", "")]
    assert read({}) == [("", "", "", ""), WHOLE]
    handles = read.driver.counts["nvmlDeviceGetHandleByIndex"]
    asked = read.driver.counts["nvmlDeviceGetName"]
    assert len(read({})) == 2
    assert (handles, read.driver.counts["nvmlDeviceGetName"]) == (1, asked)  # ten minutes have not passed


def test_facts_that_a_gpu_does_not_have_are_not_asked_for_again_soon(opened, monkeypatch):
    monkeypatch.setattr(gpu_thread, "FACTS_SOON", -1.0)
    read = opened(failing("Serial", code=3))
    assert read({}) == [(*WHOLE[:2], "", WHOLE[3])]
    assert read({}) == [(*WHOLE[:2], "", WHOLE[3])]


@pytest.mark.parametrize("name", [*FACTS, "UUID", "MemoryAffinity"])
def test_a_fact_that_fails_at_a_later_look_neither_vanishes_nor_starts_the_gpu_anew(opened, monkeypatch, name):
    read = opened({})
    assert read({}) == [WHOLE]
    monkeypatch.setattr(gpu_thread, "FACTS_EVERY", -1.0)
    assert read(failing(name)) == [WHOLE]
    assert read({}) == [WHOLE]
    assert read.driver.counts["nvmlDeviceGetHandleByIndex"] == 1
