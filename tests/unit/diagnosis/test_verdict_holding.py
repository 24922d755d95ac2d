"""A verdict changes only after the new one has held, and never from ignorance to ejection at once."""

from __future__ import annotations

import pytest

from exporter.model import EngineReading, Quantity, SourceStatus
from exporter.model.finding import STARTING, Verdicts, VerdictState
from exporter.runtime.diagnosis import RESUME_SECONDS, VERDICT_HOLD, Diagnosis
from tests.support.builders import replica, snapshot
from tests.support.records import replace

START = 1000.0


def states(*timeline):
    """Return the state after each (seconds, replica) of one life."""
    diagnosis = Diagnosis()
    states_held = []
    for seconds, state in timeline:
        judged = diagnosis.judge(replace(snapshot(replicas=(state,)), at=START + seconds))
        states_held.append(judged.verdicts.replicas["a"].state)
    return states_held


def down_for(reason):
    """Return a replica that was read before and cannot be read now."""
    return replace(replica("a", up=False), status=SourceStatus(source="engine:a", up=False, reason=reason))


def busy(frozen, **more):
    """Return a replica with a running request."""
    reading = EngineReading(at=START, engine="vllm", model="m", ranks={"0": {Quantity.REQUESTS_RUNNING: 1.0}}, **more)
    return replica("a", reading=reading, frozen=frozen)


WELL, FROZEN = busy(False), busy(True)
HOLD, BACK = VERDICT_HOLD[VerdictState.EJECT], VERDICT_HOLD[VerdictState.SERVE]


def test_no_progress_ejects_at_once_since_it_was_judged_over_twenty_seconds():
    assert states((0, WELL), (1, FROZEN)) == [VerdictState.SERVE, VerdictState.EJECT]


def test_one_good_page_does_not_bring_a_replica_back():
    life = [(0, WELL), (1, FROZEN), (1 + HOLD, FROZEN), (10, WELL), (11, FROZEN), (12, WELL), (12 + BACK, WELL)]
    assert states(*life)[2:] == [
        VerdictState.EJECT,
        VerdictState.EJECT,
        VerdictState.EJECT,
        VerdictState.EJECT,
        VerdictState.SERVE,
    ]


def test_after_a_restart_of_the_daemon_nothing_is_ejected_at_once():
    assert states((0, FROZEN)) == [VerdictState.UNKNOWN]
    assert states((0, FROZEN), (HOLD, FROZEN)) == [VerdictState.UNKNOWN, VerdictState.EJECT]


@pytest.mark.parametrize("reason", ["timeout", "dns", "http_503", "too_large", "hung"])
def test_an_engine_that_cannot_be_read_is_unknown(reason):
    down = down_for(reason)
    assert states((0, WELL), (1, down), (60, down)) == [
        VerdictState.SERVE,
        VerdictState.UNKNOWN,
        VerdictState.UNKNOWN,
    ]


def test_a_refused_connection_ejects():
    down = down_for("refused")
    assert states((0, WELL), (1, down), (1 + HOLD, down)) == [
        VerdictState.SERVE,
        VerdictState.SERVE,
        VerdictState.EJECT,
    ]


def test_a_verdict_of_the_first_seconds_says_why_it_is_unknown():
    assert STARTING.detail.en and STARTING.detail.zh
    assert Verdicts().node == STARTING


def test_after_a_restart_of_the_daemon_a_busy_replica_is_unknown_until_its_progress_was_judged():
    assert states((0, busy(None)), (5, busy(None)), (6, busy(False)), (7, busy(None))) == [
        VerdictState.UNKNOWN,
        VerdictState.UNKNOWN,
        VerdictState.SERVE,
        VerdictState.SERVE,
    ]
    assert states((0, busy(None)), (20, busy(True)), (20 + HOLD, busy(True))) == [
        VerdictState.UNKNOWN,
        VerdictState.UNKNOWN,
        VerdictState.EJECT,
    ]


def test_a_replica_whose_progress_can_never_be_judged_serves():
    assert states((0, busy(None, frozen_after=None))) == [VerdictState.SERVE]


def test_a_node_without_gpus_is_unknown_while_no_replica_is_known():
    diagnosis = Diagnosis()
    node = [
        diagnosis.judge(replace(snapshot(replicas=(state,)), at=START + seconds)).verdicts.node.state
        for seconds, state in ((0, busy(None)), (1, busy(False)))
    ]
    assert node == [VerdictState.UNKNOWN, VerdictState.SERVE]


def test_nothing_is_ejected_because_the_daemon_itself_was_stopped():
    diagnosis, down = Diagnosis(gap=7.0), down_for("refused")

    def state(seconds, engine):
        judged = diagnosis.judge(replace(snapshot(replicas=(engine,)), at=START + seconds))
        return judged.verdicts.replicas["a"].state

    assert [state(0, WELL), state(1, down)] == [VerdictState.SERVE, VerdictState.SERVE]
    resumed = 1 + 20
    assert state(resumed, down) is VerdictState.SERVE
    judged = resumed + RESUME_SECONDS
    assert [state(resumed + 4, down), state(judged, down)] == [VerdictState.SERVE] * 2
    assert [state(judged + HOLD - 0.1, down), state(judged + HOLD, down)] == [VerdictState.SERVE, VerdictState.EJECT]
