"""A queue that grows beside busy GPUs, and a node whose GPUs are all held at a lowered power limit."""

from __future__ import annotations

import pytest

from exporter.diagnosis.diagnose import find
from exporter.diagnosis.history import DiagnosisHistory
from exporter.model import Detail, EngineReading, GpuAssignment, Quantity
from tests.support.builders import card, replica, snapshot
from tests.support.records import replace


def queued(waiting, *, utilization=0.98, frozen=False, minutes=40):
    """Return the findings after so many minutes; ``waiting`` gives the queue of a minute, 64 requests run."""
    history = DiagnosisHistory()
    found = ()
    for minute in range(minutes + 1):
        numbers = {Quantity.REQUESTS_RUNNING: 64.0, Quantity.REQUESTS_WAITING: float(waiting(minute))}
        reading = EngineReading(at=1000.0, engine="vllm", model="m", ranks={"": numbers})
        now = snapshot(
            cards=(card(utilization=utilization),),
            replicas=(replica("a", reading=reading, frozen=frozen),),
            assignments=(GpuAssignment(uuid="GPU-0000", replica="a"),),
        )
        now = replace(now, at=60.0 * minute)
        found = find(now, history.update(now))
    return {finding.id: finding for finding in found}


def test_a_queue_that_grows_while_the_gpus_are_busy_is_a_finding_with_its_figures():
    finding = queued(lambda minute: 4 * minute)["QueueGrowing"]
    assert finding.summary.en == "The queue of a grew by 40 to 150 requests in 10 min; its GPUs are 98% utilized"
    assert finding.replica == "a"


@pytest.mark.parametrize(
    ("waiting", "more"),
    [
        (lambda minute: 150 if minute >= 20 else 0, {}),  # a burst, and then full throughput
        (lambda minute: 150, {}),
        (lambda minute: 0.5 * minute, {}),
        (lambda minute: max(0, 160 - 4 * minute), {}),
        (lambda minute: 4 * minute, {"utilization": 0.3}),  # EngineIdleWithQueue
        (lambda minute: 4 * minute, {"frozen": True}),  # EngineFrozen
        (lambda minute: 4 * minute, {"minutes": 18}),  # two steps are not known yet
    ],
    ids=["burst", "steady", "slow", "shrinks", "idle", "frozen", "young"],
)
def test_a_queue_that_does_not_grow_steadily_beside_busy_gpus_is_none(waiting, more):
    assert "QueueGrowing" not in queued(waiting, **more)


def capped(*gpus):
    """Return the findings about GPUs, each given by limit in watts, share of time at it, and utilisation."""
    history = DiagnosisHistory()
    found = ()
    for second in range(0, 61, 10):
        cards = []
        for index, (watts, share, utilization) in enumerate(gpus):
            one = card(index, utilization=utilization, power_limit=watts, power_limit_default=700.0, clock_sm=1.1e9)
            reading = replace(one.reading, clock_event_seconds={"sw_power_cap": share * second})
            cards.append(replace(one, reading=reading))
        now = replace(snapshot(cards=tuple(cards)), at=float(second))
        found = find(now, history.update(now))
    return {finding.id: finding for finding in found}


def test_a_node_whose_busy_gpus_are_all_capped_is_a_finding_with_the_limit():
    finding = capped((350.0, 0.5, 0.98), (420.0, 0.4, 0.97), (700.0, 0.0, 0.0))["NodePowerCapped"]
    assert finding.summary.en == "All 2 busy GPUs are held at 420 W, 60% of the default power limit"
    assert {evidence.name for evidence in finding.evidence} == {"power_limit", "power_limit_default", "sm_clock"}


@pytest.mark.parametrize(
    "gpus",
    [
        ((700.0, 0.9, 0.98), (700.0, 0.9, 0.98)),  # normal under load
        ((350.0, 0.9, 0.98), (700.0, 0.0, 0.98)),  # a straggler
        ((350.0, 0.0, 0.98), (350.0, 0.0, 0.98)),  # nothing reaches the limit
        ((350.0, 0.9, 0.98),),
    ],
    ids=["default", "one", "unreached", "single"],
)
def test_power_limits_that_slow_no_node_are_none(gpus):
    assert "NodePowerCapped" not in capped(*gpus)


def test_a_queue_at_an_engine_that_was_put_to_sleep_asks_to_wake_it_up():
    numbers = {Quantity.REQUESTS_RUNNING: 0.0, Quantity.REQUESTS_WAITING: 2.0}
    details = {Detail.SLEEP_STATES: {"": {"awake": 0.0, "weights_offloaded": 1.0}}}
    reading = EngineReading(at=1000.0, engine="vllm", model="m", ranks={"": numbers}, details=details)
    now = snapshot(
        cards=(card(utilization=0.0),),
        replicas=(replica("a", reading=reading),),
        assignments=(GpuAssignment(uuid="GPU-0000", replica="a"),),
    )
    finding = {found.id: found for found in find(now)}["EngineIdleWithQueue"]
    assert finding.summary.en == "a is asleep while 2 requests wait"
    assert [step.en for step in finding.actions] == ["Wake it up: POST /wake_up."]


def test_a_gpu_throttled_all_the_time_is_throttled_for_no_more_than_all_of_it():
    """Its readings and the snapshots are of different moments."""
    past = DiagnosisHistory()
    for second in range(0, 60, 10):
        reading = replace(card().reading, clock_event_seconds={"sw_thermal_slowdown": 1.01 * second})
        newest = past.update(replace(snapshot(cards=(replace(card(), reading=reading),)), at=1000.0 + second))
    assert newest.throttled == {(card().facts.uuid, "sw_thermal_slowdown"): 1.0}
