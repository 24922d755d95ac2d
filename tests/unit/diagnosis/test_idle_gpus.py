"""A replica whose counters stand still is ejected sooner if its GPUs compute nothing, which no step does."""

from __future__ import annotations

import pytest

from exporter.model import EngineReading, GpuAssignment, Quantity, Signal
from exporter.model.finding import VerdictState
from exporter.model.node import MultiNodeGpu
from exporter.runtime.diagnosis import Diagnosis
from tests.support.builders import card, replica, snapshot
from tests.support.records import replace

START, INTERVAL = 1000.0, 5
WAITS = {Signal.UTILIZATION.value: 1.0, Signal.DRAM_ACTIVE.value: 0.006, Signal.TENSOR_ACTIVE.value: 0.0}
WORKS = {**WAITS, Signal.DRAM_ACTIVE.value: 0.4}
PREFILLS = {**WAITS, Signal.TENSOR_ACTIVE.value: 0.5}
OLD_WAITS = {Signal.UTILIZATION.value: 1.0, Signal.MEMORY_ACTIVITY.value: 0.0}
OLD_WORKS = {**OLD_WAITS, Signal.MEMORY_ACTIVITY.value: 0.01}


def at_second(second, **parts):
    return replace(snapshot(**parts), at=START + second)


def ejected_at(gpus, *, running=1.0, moves=lambda _: False, idle_after=10.0, seconds=18, read_every=1, multi_node=()):
    """Return the second in which the replica is ejected; ``gpus``: second → signals of each of its GPUs."""
    diagnosis, moved_at, readings = Diagnosis(), START, {}
    assignments = tuple(GpuAssignment(uuid=card(index).facts.uuid, replica="a") for index in range(len(gpus(0))))
    for second in range(seconds):
        polled = START + second - second % INTERVAL
        moved_at = polled if moves(second) else moved_at
        reading = EngineReading(
            at=polled, engine="vllm", ranks={"0": {Quantity.REQUESTS_RUNNING: running}}, idle_after=idle_after
        )
        if second % read_every == 0:
            readings = {
                index: card(index, at=START + second, **signals) for index, signals in enumerate(gpus(second))
            }
        judged = diagnosis.judge(
            at_second(
                second,
                cards=tuple(readings.values()),
                assignments=assignments,
                multi_node=multi_node,
                replicas=(replica("a", reading=reading, frozen=False, moved_at=moved_at),),
            )
        )
        if judged.verdicts.replicas["a"].state is VerdictState.EJECT:
            return second
    return None


@pytest.mark.parametrize("waits", [WAITS, OLD_WAITS], ids=["with GPM", "without"])
def test_a_replica_whose_gpus_wait_in_a_collective_is_ejected_after_ten_seconds(waits):
    assert ejected_at(lambda _: [waits] * 2) == 10


@pytest.mark.parametrize(
    ("waits", "works"), [(WAITS, WORKS), (WAITS, PREFILLS), (OLD_WAITS, OLD_WORKS)], ids=["memory", "tensor", "old"]
)
def test_one_gpu_that_computes_now_and_then_is_a_long_step(waits, works):
    assert ejected_at(lambda second: [waits, works if second % 9 == 8 else waits]) is None


def test_counters_that_move_are_progress():
    assert ejected_at(lambda _: [WAITS], moves=lambda second: second in (5, 10, 15)) is None


def test_without_requests_idle_gpus_are_normal():
    assert ejected_at(lambda _: [WAITS], running=0.0) is None


def test_gpus_that_are_not_read_or_not_known_prove_nothing():
    assert ejected_at(lambda _: [WAITS, {Signal.UTILIZATION.value: 1.0}]) is None
    assert ejected_at(lambda _: []) is None


def test_gpus_that_are_read_rarely_prove_nothing():
    assert ejected_at(lambda _: [WAITS], read_every=5) is None


def test_the_gpus_of_another_node_may_compute():
    elsewhere = MultiNodeGpu(uuid=card(0).facts.uuid, replica="a", key="k", engine="vllm", head=True, nodes=2)
    assert ejected_at(lambda _: [WAITS], multi_node=(elsewhere,)) is None


def test_an_engine_whose_gauge_may_be_old_is_not_judged_by_its_gpus():
    assert ejected_at(lambda _: [WAITS], idle_after=None) is None


def test_a_page_from_before_the_gpus_were_idle_proves_nothing():
    """The requests on it may have ended with the last step."""
    diagnosis, states = Diagnosis(), []
    reading = EngineReading(at=START, engine="vllm", ranks={"0": {Quantity.REQUESTS_RUNNING: 1.0}}, idle_after=10.0)
    for second in range(1, 15):
        judged = diagnosis.judge(
            at_second(
                second,
                cards=(card(0, at=START + second, **WAITS),),
                assignments=(GpuAssignment(uuid=card(0).facts.uuid, replica="a"),),
                replicas=(replica("a", reading=reading, frozen=False, moved_at=START - 15),),
            )
        )
        states.append(judged.verdicts.replicas["a"].state)
    assert set(states) == {VerdictState.SERVE}


def test_idle_time_before_the_request_does_not_count():
    assert ejected_at(lambda _: [WAITS], moves=lambda second: second <= 10, seconds=30) == 20


def test_a_reading_from_before_the_request_does_not_count():
    """The GPU computes from the request on; it is read each 10 s."""
    moves = {"moves": lambda second: second <= 40, "read_every": 10, "seconds": 60}
    assert ejected_at(lambda second: [WAITS if second <= 40 else WORKS], **moves) is None
