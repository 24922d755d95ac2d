"""How long a reading is shown, also across a change of the interval."""

from __future__ import annotations

from exporter.driver.daemon.freshness import Freshness


def test_a_reading_is_shown_for_an_interval_and_a_deadline():
    assert Freshness(1.0, 2.0).seconds(100.0) == 3.0


def test_a_shorter_interval_withdraws_nothing_until_the_gpus_have_had_the_time_to_answer():
    freshness = Freshness(10.0, 2.0)
    assert freshness.reconfigure(1.0, 0.5, now=100.0)
    assert [freshness.seconds(now) for now in (100.0, 100.5, 100.51)] == [12.0, 12.0, 1.5]


def test_a_second_change_within_that_time_keeps_what_was_fresh_before_the_first():
    freshness = Freshness(10.0, 2.0)
    freshness.reconfigure(1.0, 0.5, now=100.0)
    assert freshness.reconfigure(2.0, 0.5, now=100.2)
    assert [freshness.seconds(now) for now in (100.7, 100.71)] == [12.0, 2.5]


def test_a_longer_interval_holds_at_once():
    freshness = Freshness(1.0, 0.5)
    assert not freshness.reconfigure(10.0, 2.0, now=100.0)
    assert freshness.seconds(100.0) == 12.0
