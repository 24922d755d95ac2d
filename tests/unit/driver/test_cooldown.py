"""Patience with drivers: how soon a worker is started again, and when a card that hangs gets a new one."""

from __future__ import annotations

from exporter.driver.daemon import cooldown
from exporter.driver.daemon.cooldown import REST_LAST, Cooldown, HangPatience, Restarts


def test_useless_drivers_are_tried_ever_less_often():
    restarts = Restarts()
    assert [restarts.delay("library", now, 0.0) for now in range(8)] == [1, 2, 4, 8, 16, 32, 60, 60]
    assert restarts.delay("library", 100.0, cooldown.WORKED) == 1


def test_three_deaths_in_a_minute_are_forgiven_and_the_fourth_waits():
    restarts = Restarts()
    delays = [restarts.delay("crashed", now, 0.0) for now in (0.0, 1.0, 2.0, 3.0, 4.0)]
    assert delays == [cooldown.AT_ONCE] * 3 + [1, 2]
    slow = Restarts()
    assert {slow.delay("crashed", now, 0.0) for now in range(0, 3000, 30)} == {cooldown.AT_ONCE}


def test_a_mismatch_is_tried_at_once_then_steadily_then_rarely():
    restarts = Restarts()
    assert restarts.delay("mismatch", 0.0, 100.0) == cooldown.AT_ONCE
    assert {restarts.delay("mismatch", now, 0.0) for now in (1.0, 60.0, 119.0)} == {2.0}
    assert restarts.delay("mismatch", 121.0, 0.5) == 10.0


def test_a_recycled_worker_is_replaced_at_once_unless_it_is_recycled_all_the_time():
    restarts = Restarts()
    assert {restarts.delay("recycled", now, 20.0) for now in range(10)} == {cooldown.AT_ONCE}
    assert restarts.delay("recycled", 20.0, 1.0) == cooldown.AT_ONCE
    assert [restarts.delay("recycled", now, 1.0) for now in (21.0, 22.0, 23.0)][-1] == 1


def test_a_hanging_card_gets_a_new_worker_after_ten_seconds_then_ever_less_often():
    patience, times = HangPatience(), []
    for now in range(2500):
        if patience.due(float(now), hung=True, settled=False):
            times.append(now)
    gaps = [after - before for before, after in zip(times, times[1:])]
    assert times[0] == 10
    assert gaps == [60, 120, 240, 480, 600, 600][: len(gaps)] and len(gaps) >= 5
    patience.due(2600.0, hung=False, settled=False)  # a new worker, the card has not answered yet
    assert not patience.due(2601.0, hung=True, settled=False)
    patience.due(2700.0, hung=False, settled=True)
    assert not patience.due(2701.0, hung=True, settled=False)
    assert patience.due(2711.0, hung=True, settled=False)


def test_a_card_that_hangs_again_rests_twice_as_long_up_to_ten_minutes():
    rests, now, lengths = Cooldown(), 100.0, []
    for _ in range(5):
        lengths.append(rests.begin("GPU-a", now))
        assert rests.left(now + 1.0) == {"GPU-a": lengths[-1] - 1.0}
        now += lengths[-1] + 20.0
        assert rests.left(now) == {}
    assert lengths == [120.0, 240.0, 480.0, 600.0, 600.0]
    assert rests.begin("GPU-b", now) == 120.0
    assert rests.begin("GPU-a", now + REST_LAST) == 120.0, "that was long ago"
