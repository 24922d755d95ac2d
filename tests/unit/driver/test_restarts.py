"""How soon a driver worker is started again, and when a GPU that hangs gets a new one."""

from __future__ import annotations

from exporter.driver.daemon import restarts
from exporter.driver.daemon.restarts import ReplacementPolicy, RestartPolicy


def test_useless_drivers_are_tried_ever_less_often():
    policy = RestartPolicy()
    assert [policy.delay("library", now, 0.0) for now in range(8)] == [1, 2, 4, 8, 16, 32, 60, 60]
    assert policy.delay("library", 100.0, restarts.WORKED) == 1


def test_three_deaths_in_a_minute_are_forgiven_and_the_fourth_waits():
    policy = RestartPolicy()
    delays = [policy.delay("crashed", now, 0.0) for now in (0.0, 1.0, 2.0, 3.0, 4.0)]
    assert delays == [restarts.IMMEDIATELY] * 3 + [1, 2]
    slow = RestartPolicy()
    assert {slow.delay("crashed", now, 0.0) for now in range(0, 3000, 30)} == {restarts.IMMEDIATELY}


def test_a_mismatch_is_tried_at_once_then_steadily_then_rarely():
    policy = RestartPolicy()
    assert policy.delay("mismatch", 0.0, 100.0) == restarts.IMMEDIATELY
    assert {policy.delay("mismatch", now, 0.0) for now in (1.0, 60.0, 119.0)} == {2.0}
    assert policy.delay("mismatch", 121.0, 0.5) == 10.0


def test_a_recycled_worker_is_replaced_at_once_unless_it_is_recycled_all_the_time():
    policy = RestartPolicy()
    assert {policy.delay("recycled", now, 20.0) for now in range(10)} == {restarts.IMMEDIATELY}
    assert policy.delay("recycled", 20.0, 1.0) == restarts.IMMEDIATELY
    assert [policy.delay("recycled", now, 1.0) for now in (21.0, 22.0, 23.0)][-1] == 1


def test_a_hanging_gpu_gets_a_new_worker_after_ten_seconds_then_ever_less_often():
    policy, times = ReplacementPolicy(), []
    for now in range(2500):
        if policy.due(float(now), hung=True, settled=False):
            times.append(now)
    gaps = [after - before for before, after in zip(times, times[1:])]
    assert times[0] == 10
    assert gaps == [60, 120, 240, 480, 600, 600][: len(gaps)] and len(gaps) >= 5
    policy.due(2600.0, hung=False, settled=False)  # a new worker, the GPU has not answered yet
    assert not policy.due(2601.0, hung=True, settled=False)
    policy.due(2700.0, hung=False, settled=True)
    assert not policy.due(2701.0, hung=True, settled=False)
    assert policy.due(2711.0, hung=True, settled=False)
