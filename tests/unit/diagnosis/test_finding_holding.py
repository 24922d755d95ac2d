"""A finding that needs time is shown once its condition was seen for that long, not because it lingers."""

from __future__ import annotations

from exporter.diagnosis.conditions import CONDITIONS
from exporter.model import EngineReading, Quantity, SourceStatus
from exporter.model.node import DaemonState
from exporter.runtime.diagnosis import RESUME_SECONDS, Diagnosis
from tests.support.builders import replica, snapshot
from tests.support.records import replace

NAME = "RanksUneven"
HOLD, LINGER = CONDITIONS[NAME].hold, CONDITIONS[NAME].linger


def ranks(*running):
    numbers = {str(rank): {Quantity.REQUESTS_RUNNING: load} for rank, load in enumerate(running)}
    reading = EngineReading(at=1000.0, engine="vllm", model="m", ranks=numbers)
    imbalance = {"requests_running": max(running) / (sum(running) / len(running))}
    return snapshot(replicas=(replica("a", reading=reading, rank_imbalance=imbalance),))


EVEN, UNEVEN = ranks(10.0, 10.0), ranks(18.0, 2.0)


def shown(*timeline):
    """Return after each (seconds, snapshot) whether the finding is listed."""
    diagnosis = Diagnosis()
    return [
        any(finding.id == NAME for finding in diagnosis.judge(replace(now, at=1000.0 + seconds)).findings)
        for seconds, now in timeline
    ]


def test_a_condition_seen_once_is_never_shown_however_long_it_lingers():
    assert shown((0, UNEVEN), (1, EVEN), (HOLD, EVEN), (HOLD + LINGER, EVEN)) == [False] * 4


def test_a_condition_that_holds_is_shown_and_lingers():
    timeline = (0, UNEVEN), (HOLD, UNEVEN), (HOLD + LINGER, EVEN), (HOLD + LINGER + 1, EVEN)
    assert shown(*timeline) == [False, True, True, False]


def test_what_a_stopped_daemon_missed_is_no_finding_and_a_finding_keeps_its_beginning():
    diagnosis = Diagnosis(gap=7.0)

    def at(seconds, **parts):
        made = replace(snapshot(**parts), at=1000.0 + seconds, unix_time=1.7e9 + seconds)
        return {finding.id: finding.since for finding in diagnosis.judge(made).findings}

    refused = DaemonState(config_reload_successful=False)
    hung = SourceStatus(source="kernel_log", up=False, reason="hung", hung=True)
    since = {"ConfigurationNotLoaded": 1.7e9}
    assert at(0, daemon=refused) == since
    assert at(20, sources=(hung,)) == since
    assert at(24, sources=(hung,)) == since
    assert at(20 + RESUME_SECONDS, daemon=refused) == since
    assert at(21 + RESUME_SECONDS, sources=(hung,), daemon=refused).keys() == {*since, "SourceHung"}
