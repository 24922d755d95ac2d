"""A finding that needs time is shown once its condition was seen for that long, not because it lingers."""

from __future__ import annotations

from exporter.diagnosis.conditions import CONDITIONS
from exporter.model import EngineReading, Quantity, SourceStatus
from exporter.model.finding import VerdictState
from exporter.model.node import DaemonState
from exporter.runtime.diagnosis import RESUME_SECONDS, Diagnosis
from tests.support.builders import card, replica, snapshot
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


def test_what_was_wrong_with_a_gpu_ends_as_it_is_released_and_the_verdict_says_why():
    diagnosis = Diagnosis()
    bad = card(0, ecc_uncorrected_volatile=4.0)
    released = replace(bad, reading=None, status=SourceStatus(source="gpu:GPU-0000", up=False, reason="released"))
    assert [finding.id for finding in diagnosis.judge(snapshot(cards=(bad,))).findings] == ["GpuEccUncorrectable"]
    judged = diagnosis.judge(replace(snapshot(cards=(released,)), at=1002.0))
    assert judged.findings == ()
    assert (judged.verdicts.node.state, judged.verdicts.node.reason) == (VerdictState.UNKNOWN, "released")


def test_gpus_that_are_removed_on_purpose_are_so_at_once():
    """The driver's count has been the truth for as long as it takes; nothing of before stays beside it."""
    diagnosis = Diagnosis()
    both = snapshot(cards=(card(0, utilization=0.5), card(1, up=False)))
    for seconds in (0, 6, 12):
        judged = diagnosis.judge(replace(both, at=1000.0 + seconds))
    assert ([finding.id for finding in judged.findings], judged.verdicts.node.state) == (
        ["GpuLost"],
        VerdictState.DRAIN,
    )
    one = snapshot(cards=(card(0, utilization=0.5),), removed=(card(1).facts,))
    judged = diagnosis.judge(replace(one, at=1013.0))
    assert [finding.id for finding in judged.findings] == ["GpusRemoved"]
    assert judged.verdicts.node.state is VerdictState.SERVE
