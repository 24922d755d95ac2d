"""A finding that needs time is shown once its condition was seen for that long, not because it lingers."""

from __future__ import annotations

from exporter.model import EngineReading, LatencySummary, Quantity, Stage, WindowFigures
from exporter.runtime.diagnosis import HOLD, LINGER, Diagnosis
from tests.support.builders import replica, snapshot
from tests.support.records import replace

NAME = "ReplicaSlowerThanSiblings"


def sibling(name, itl_p50):
    itl = LatencySummary(observations=1000.0, quantiles={0.5: itl_p50}, overflow_ratio=0.0)
    reading = EngineReading(at=1000.0, engine="vllm", model="m", ranks={"": {Quantity.REQUESTS_RUNNING: 4.0}})
    return replica(
        name, reading=reading, windows={"1m": WindowFigures(seconds=60.0, latency={Stage.INTER_TOKEN: itl})}
    )


EVEN = snapshot(replicas=(sibling("a", 0.02), sibling("b", 0.02)))
SLOW = snapshot(replicas=(sibling("a", 0.02), sibling("b", 0.04)))


def shown(*timeline):
    """Return after each (seconds, snapshot) whether the finding is listed."""
    diagnosis = Diagnosis()
    return [
        any(finding.id == NAME for finding in diagnosis.judge(replace(now, at=1000.0 + seconds)).findings)
        for seconds, now in timeline
    ]


def test_a_condition_seen_once_is_never_shown_however_long_it_lingers():
    assert HOLD[NAME] < LINGER[NAME]
    assert shown((0, SLOW), (1, EVEN), (HOLD[NAME], EVEN), (LINGER[NAME], EVEN)) == [False] * 4


def test_a_condition_that_holds_is_shown_and_lingers():
    timeline = (0, SLOW), (HOLD[NAME], SLOW), (HOLD[NAME] + LINGER[NAME], EVEN), (HOLD[NAME] + LINGER[NAME] + 1, EVEN)
    assert shown(*timeline) == [False, True, True, False]
