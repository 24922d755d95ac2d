"""What the verdict of a replica is by its engine's pages: idle, unreadable, unanswered, stopped."""

from __future__ import annotations

import re

import pytest

from exporter.errors import EndpointError
from exporter.model.finding import VerdictState
from exporter.runtime.diagnosis import Diagnosis
from exporter.sources.replay import ReplayedPage
from tests.support.builders import Clock, snapshot
from tests.support.engine_pages import CAPTURES, make_poller
from tests.support.records import replace

PAGES = sorted(CAPTURES.glob("*.prom"))
SAMPLE = re.compile(rb"^([^#\s{]+(?:\{.*\})?) \S+", re.MULTILINE)
IDLE = b'vllm:num_requests_running{engine="0",model_name="m"} 0\nvllm:generation_tokens_total{engine="0",model_name="m"} 7\n'


def lived(pages, seconds=0.0, step=5.0):
    """Return the snapshots of an engine whose pages these are, each polled once and the last one again and again."""
    clock, diagnosis = Clock(), Diagnosis()
    poller = make_poller(pages, clock)
    snapshots, end = [], clock() + seconds
    while not snapshots or clock() < end:
        poller.poll()
        snapshots.append(diagnosis.judge(replace(snapshot(replicas=(poller.state,)), at=clock())))
        clock.tick(step)
    return snapshots


def states(snapshots):
    return [judged.verdicts.replicas["a"].state for judged in snapshots]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_a_page_of_zeros_serves_and_one_without_a_number_is_unknown(path):
    body = path.read_bytes()
    assert states(lived([SAMPLE.sub(rb"\1 0", body)])) == [VerdictState.SERVE]
    (blank,) = lived([SAMPLE.sub(rb"\1 NaN", body)])
    verdict = blank.verdicts.replicas["a"]
    if "fresh" in path.stem:  # before the first request it has no number, but the capacity in a label
        assert verdict.state is VerdictState.SERVE
    else:
        assert (verdict.state, verdict.reason) == (VerdictState.UNKNOWN, "no_data")


def test_a_page_of_which_no_name_is_known_is_unknown():
    (judged,) = lived([b'vllm:renamed_by_the_next_version{model_name="m"} 1\n'])
    assert judged.verdicts.replicas["a"].detail.en.startswith(
        "a could not be read: the page has vllm:renamed_by_the_next"
    )


def test_an_engine_that_stops_without_requests_looks_idle_as_long_as_its_page_is_answered():
    stopped = lived([IDLE], seconds=600.0)
    assert set(states(stopped)) == {VerdictState.SERVE}
    assert all(judged.findings == () for judged in stopped)


class Stopped:
    """A server whose processes were all stopped after its first page: connections are accepted, none is answered."""

    error = EndpointError("timeout", "no answer in time")

    def __init__(self):
        self._pages = iter([IDLE])

    def fetch(self, path=None):
        for body in self._pages:
            return ReplayedPage(body=body)
        raise self.error

    def close(self):
        """Nothing is open."""


def test_a_server_that_stops_answering_is_a_finding_and_unknown_and_never_ejected():
    judged = lived(Stopped(), seconds=600.0)
    assert states(judged)[0] is VerdictState.SERVE
    assert set(states(judged)[1:]) == {VerdictState.UNKNOWN}
    assert [finding.summary.en for finding in judged[1].findings] == [
        "a does not answer (timeout); nothing else serves m"
    ]
    assert {finding.id for now in judged[1:] for finding in now.findings} == {"EngineDown"}


def test_a_page_of_something_else_is_named_in_the_verdict():
    (judged,) = lived([b"node_load1 2\n"])
    verdict = judged.verdicts.replicas["a"]
    assert (verdict.state, verdict.reason) == (VerdictState.UNKNOWN, "unknown_engine")
    assert verdict.detail.en.startswith("a could not be read: the page has node_load1, and no metrics of vLLM, ")


def test_an_engine_that_was_put_to_sleep_is_drained_and_not_ejected_however_long_requests_wait():
    page = (
        b'vllm:num_requests_running{engine="0",model_name="m"} 0\n'
        b'vllm:num_requests_waiting{engine="0",model_name="m"} 2\n'
        b'vllm:generation_tokens_total{engine="0",model_name="m"} 7\n'
        b'vllm:engine_sleep_state{engine="0",model_name="m",sleep_state="awake"} 0\n'
        b'vllm:engine_sleep_state{engine="0",model_name="m",sleep_state="weights_offloaded"} 1\n'
    )
    verdict = lived([page], seconds=300.0)[-1].verdicts.replicas["a"]
    assert (verdict.state, verdict.reason) == (VerdictState.DRAIN, "asleep")
    assert "wake it up" in verdict.detail.en


def test_an_answer_that_was_cut_off_is_not_called_silence():
    class CutOff(Stopped):
        error = EndpointError("closed", "the peer closed the connection inside a chunked body")

    assert [finding.summary.en for finding in lived(CutOff(), seconds=60.0)[1].findings] == [
        "a does not finish its answer (closed); nothing else serves m"
    ]
