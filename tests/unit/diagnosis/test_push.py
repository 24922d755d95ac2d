"""The finding about a receiver that accepts nothing."""

from __future__ import annotations

import pytest

from exporter.diagnosis.diagnose import _pushes
from exporter.model import SourceStatus
from exporter.model.push import PushState
from tests.support import builders


def snapshot(*, up=False, since=1.7e9 - 720, **state):
    status = SourceStatus(source="push:central", up=up, reason="" if up else "http_503")
    push = PushState(target="central", failing_since=since, **state)
    return builders.snapshot(sources=(status,), pushes=(push,))


def test_it_says_since_when_why_and_what_is_lost():
    (found,) = _pushes(snapshot(dropped={"queue_full": 1300, "refused": 25}, queue_bytes=8_000_000, queue_age=600.0))
    assert found.id == "PushFailing"
    assert found.summary.en == (
        "Pushing to central has failed for 12 min (http_503); 8.0 MB wait, 1325 samples dropped"
    )
    assert {item.name: item.value for item in found.evidence} == {
        "reason": "http_503", "queue_age": 600.0, "samples_dropped": 1325.0,
    }  # fmt: skip
    assert "1325" in found.summary.zh


def test_what_has_just_begun_is_told_in_seconds():
    (found,) = _pushes(snapshot(since=1.7e9 - 36))
    assert found.summary.en.startswith("Pushing to central has failed for 36 s (http_503)")


@pytest.mark.parametrize("state", [{"up": True}, {"since": None}])
def test_a_receiver_that_accepts_or_was_never_tried_is_none(state):
    assert list(_pushes(snapshot(**state))) == []
