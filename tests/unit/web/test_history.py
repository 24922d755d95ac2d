"""Curves of ten minutes in fixed arrays, and the events between two snapshots."""

from __future__ import annotations

from math import isnan

import pytest

from exporter.model import Quantity, XidCount, XidLabels
from exporter.model.engine import EngineReading
from exporter.model.finding import Finding, Severity, Subject, SubjectKind, Verdict, Verdicts, VerdictState
from exporter.model.text import Text
from exporter.web.history import GPU_SERIES, MAX_EVENTS, MAX_GPUS, POINTS, REPLICA_SERIES, STEP, NodeHistory
from tests.support.builders import card, replica, snapshot
from tests.support.records import replace

UUID = card().facts.uuid
FINDING = Finding(
    id="GpuHot",
    severity=Severity.WARNING,
    subject=Subject(SubjectKind.GPU, UUID, "GPU 0"),
    summary=Text("GPU 0 is hot", "GPU 0 过热"),
    actions=(),
    since=1.7e9 - 30,
)


def at(seconds, **parts):
    return replace(snapshot(**parts), at=float(seconds), unix_time=1.7e9 + seconds)


def curve(history, series="utilization"):
    return list(history.curve("gpu", UUID, series))


def test_a_curve_has_one_point_for_each_five_seconds_the_newest_last():
    history = NodeHistory()
    for second in range(30):
        history.update(at(second, cards=(card(utilization=second / 100),)))
    assert curve(history)[-6:] == pytest.approx([0.0, 0.05, 0.10, 0.15, 0.20, 0.25])
    assert all(isnan(point) for point in curve(history)[:-6])
    assert len(curve(history)) == POINTS


def test_a_curve_keeps_ten_minutes_and_no_more():
    history = NodeHistory()
    for point in range(3 * POINTS):
        history.update(at(point * STEP, cards=(card(utilization=point / 1000),)))
    assert curve(history) == pytest.approx([point / 1000 for point in range(2 * POINTS, 3 * POINTS)])


def test_what_was_not_read_is_a_gap_and_no_zero():
    history = NodeHistory()
    for point, cards in enumerate([(card(utilization=0.5),), (card(up=False),), (card(power=3.0),), ()]):
        history.update(at(point * STEP, cards=cards))
    assert curve(history)[-4] == 0.5
    assert all(isnan(point) for point in curve(history)[-3:])
    assert curve(history, "power")[-2] == 3.0


def test_a_pause_of_the_daemon_is_a_gap():
    history = NodeHistory()
    history.update(at(0, cards=(card(utilization=0.5),)))
    history.update(at(100, cards=(card(utilization=0.7),)))
    points = curve(history)
    assert (points[-1], points[-21]) == pytest.approx((0.7, 0.5))
    assert all(isnan(point) for point in points[-20:-1])


def test_the_curves_of_a_gpu_that_has_gone_are_dropped_after_ten_minutes():
    history = NodeHistory()
    history.update(at(0, cards=(card(utilization=0.5),)))
    for point in range(1, POINTS + 1):
        history.update(at(point * STEP))
    assert curve(history) == []
    assert history.size == 0


def test_the_bytes_are_those_of_four_for_each_point():
    history = NodeHistory()
    history.update(at(0, cards=tuple(card(index) for index in range(64)), replicas=(replica("a"), replica("b"))))
    assert history.size == 4 * POINTS * (64 * len(GPU_SERIES) + 2 * len(REPLICA_SERIES))


def test_the_number_of_curves_is_bounded_also_where_gpus_come_and_go():
    history = NodeHistory()
    for point in range(POINTS):
        cards = tuple(card(point * MAX_GPUS + index) for index in range(MAX_GPUS + 10))
        history.update(at(point * STEP, cards=cards))
    assert history.size <= 4 * POINTS * len(GPU_SERIES) * 2 * MAX_GPUS


def test_a_replicas_curves_sum_its_ranks():
    ranks = {"0": {Quantity.REQUESTS_RUNNING: 3.0}, "1": {Quantity.REQUESTS_RUNNING: 4.0}}
    history = NodeHistory()
    history.update(at(0, replicas=(replica(reading=EngineReading(at=1.0, engine="vllm", ranks=ranks)),)))
    assert history.curve("replica", "a", "running")[-1] == 7.0
    assert isnan(history.curve("replica", "a", "kv")[-1])


# ---------------------------------------------------------------------- events


def texts(history):
    return [event.text.en for event in history.events]


def test_a_finding_is_an_event_when_it_begins_and_when_it_is_over():
    history = NodeHistory()
    history.update(at(0))
    history.update(at(1, findings=(FINDING,)))
    history.update(at(2, findings=(replace(FINDING, summary=Text("GPU 0 is hotter", "")),)))
    history.update(at(3))
    assert texts(history) == ["over: GPU 0 is hotter", "GPU 0 is hot"]
    assert history.events[1].unix_time == FINDING.since


def test_a_finding_that_becomes_a_cause_is_no_new_event():
    other = replace(FINDING, id="EngineFrozen", subject=Subject(SubjectKind.REPLICA, "a", "a"), since=None)
    history = NodeHistory()
    history.update(at(0, findings=(FINDING,)))
    history.update(at(1, findings=(replace(other, causes=(FINDING,)),)))
    assert len(history.events) == 2


@pytest.mark.parametrize("place", ["worse", "cause", "beneath a cause", "replica"])
def test_a_finding_whose_subject_another_finding_names_is_not_over(place):
    worse = replace(FINDING, id="GpuLost", severity=Severity.CRITICAL, summary=Text("lost", ""), since=None)
    other = replace(worse, id="EngineFrozen", subject=Subject(SubjectKind.REPLICA, "a", "a"), summary=Text("a", ""))
    successor = {
        "worse": worse,
        "cause": replace(other, causes=(worse,)),
        "beneath a cause": replace(other, causes=(replace(other, id="X", causes=(worse,)),)),
        "replica": replace(other, replica=UUID),
    }[place]
    history = NodeHistory()
    history.update(at(0, findings=(FINDING,)))
    history.update(at(1, findings=(successor,)))
    assert [text for text in texts(history) if text.startswith("over")] == []
    history.update(at(2))
    assert f"over: {successor.summary.en}" in texts(history)


def test_a_verdict_that_changes_is_an_event_and_the_first_one_is_none():
    history = NodeHistory()
    states = (VerdictState.UNKNOWN, VerdictState.SERVE, VerdictState.EJECT, VerdictState.SERVE)
    for second, state in enumerate(states):
        verdicts = Verdicts(replicas={"a": Verdict(state, "no_progress" if state is VerdictState.EJECT else "")})
        history.update(at(second, verdicts=verdicts))
    assert texts(history) == ["verdict on a: eject → serve", "verdict on a: serve → eject (no progress)"]
    assert [event.severity for event in history.events] == [Severity.NONE, Severity.CRITICAL]


def test_events_are_the_newest_first_also_where_one_is_noticed_late_and_equal_times_keep_their_order():
    others = tuple(
        replace(FINDING, id=f"Gpu{number}", since=1.7e9 + 1, summary=Text(f"{number}", "")) for number in range(8)
    )
    history = NodeHistory()
    history.update(at(1, findings=others))
    history.update(at(2, findings=(*others, FINDING)))
    assert texts(history) == [*map(str, range(8)), "GPU 0 is hot"]


def test_an_xid_and_a_critical_finding_are_not_evicted_by_what_comes_and_goes():
    count = XidCount(labels=XidLabels("0", UUID, "79", "nvml"), xid=79, count=1, last_unix_time=1.7e9)
    critical = replace(FINDING, id="EngineFrozen", severity=Severity.CRITICAL, summary=Text("critical", ""))
    history = NodeHistory()
    history.update(at(0, xids=(count,), findings=(critical,)))
    for second in range(1, 3 * MAX_EVENTS):
        noise = replace(FINDING, since=None, summary=Text(f"noise {second}", ""))
        history.update(at(second, xids=(count,), findings=(noise,) if second % 2 else ()))
    assert len(history.events) == MAX_EVENTS
    assert texts(history)[-1] == "critical"
    assert "XID 79" in texts(history)[-2]


def test_an_xid_is_an_event_each_time_it_is_seen_also_one_from_before_the_start():
    count = XidCount(labels=XidLabels("0", UUID, "79", "nvml"), xid=79, count=0, last_unix_time=1.6e9)
    history = NodeHistory()
    history.update(at(0, xids=(count,)))
    history.update(at(1, xids=(count,)))
    history.update(at(2, xids=(replace(count, count=1, last_unix_time=1.7e9),)))
    assert [event.unix_time for event in history.events] == [1.7e9, 1.6e9]
    assert "fallen off the bus" in history.events[0].text.en


def test_a_restart_of_an_engine_is_an_event():
    history = NodeHistory()
    history.update(at(0, replicas=(replica("a", restarts=1),)))
    history.update(at(1, replicas=(replica("a", restarts=2), replica("b", restarts=5))))
    assert texts(history) == ["a restarted"]


def test_the_events_are_bounded_the_newest_first():
    history = NodeHistory()
    for second in range(2 * MAX_EVENTS):
        found = (replace(FINDING, since=1.7e9 + second),) if second % 2 else ()
        history.update(at(second, findings=found))
    assert len(history.events) == MAX_EVENTS
    assert history.events[0].unix_time == 1.7e9 + 2 * MAX_EVENTS - 1
