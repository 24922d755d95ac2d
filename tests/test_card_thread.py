"""One card's thread in the worker: what is asked seldom is asked more seldom of a card that is slow to answer."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from exporter.sources.driver import card_thread, pipe
from exporter.sources.driver.nvml_card import Shared
from tests.fake_nvml import FakeDriver
from tests.waiting import until

SELDOM = "nvmlDeviceGetEnforcedPowerLimit"


@pytest.fixture
def card(monkeypatch):
    """Give a card's thread as ``read()``, which says whether the slow questions were asked."""
    monkeypatch.setattr(card_thread, "SLOW_EVERY", -1.0)
    monkeypatch.setattr(card_thread, "SLOW_EVERY_DEMOTED", 1e6)
    driver, sent = FakeDriver({}), []
    thread = card_thread.CardThread(
        driver, 0, "590.48", outlet=SimpleNamespace(send=sent.append), driver_gone=sent.append, shared=Shared()
    )

    def answered(cycle):
        return any(isinstance(message, pipe.CardRead) and message.cycle == cycle for message in list(sent))

    def read():
        until(lambda: not thread.working)
        before, cycle = driver.counts[SELDOM], len(sent) + 1000
        thread.ask(cycle)
        until(lambda: answered(cycle))
        return driver.counts[SELDOM] > before

    until(lambda: answered(0))
    thread._slow_every = card_thread.SLOW_EVERY
    yield read
    thread.end()
    thread.thread.join(10.0)
    assert not thread.thread.is_alive()


def test_a_card_that_answers_quickly_is_asked_the_slow_questions_when_they_are_due(card, monkeypatch):
    monkeypatch.setattr(card_thread, "SLOW_READ", 1e6)
    assert [card() for _ in range(3)] == [True, True, True]


def test_a_card_that_is_slow_to_answer_is_asked_them_more_seldom_and_read_all_the_same(card, monkeypatch):
    monkeypatch.setattr(card_thread, "SLOW_READ", -1.0)
    assert [card() for _ in range(3)] == [True, False, False]
