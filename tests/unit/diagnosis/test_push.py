"""The finding about a receiver that accepts nothing."""

from __future__ import annotations

import pytest

from exporter.diagnosis.diagnose import _pushes
from exporter.model import SourceStatus
from exporter.model.push import PushState
from tests.support import builders


def snapshot(*, up=False, reason="http_503", since=1.7e9 - 720, **state):
    status = SourceStatus(source="push:central", up=up, reason="" if up else reason)
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


def test_little_that_waits_is_told_in_kilobytes():
    (found,) = _pushes(snapshot(queue_bytes=20_400))
    assert "20 kB wait" in found.summary.en
    assert "20 kB 等待发送" in found.summary.zh


@pytest.mark.parametrize(
    ("reason", "step"),
    [
        ("http_401", "credentials under push"),
        ("http_429", "rate limit"),
        ("http_503", "curl its URL"),
        ("tls_unknown_ca", "push[].tls.ca_file"),
        ("tls_name", "push[].tls.server_name"),
        ("tls_expired", "Renew"),
        ("tls", "curl its URL"),
        ("refused", "curl its URL"),
    ],
)
def test_what_to_do_follows_from_the_reason(reason, step):
    (found,) = _pushes(snapshot(reason=reason))
    assert step in found.actions[0].en


@pytest.mark.parametrize("state", [{"up": True}, {"since": None}])
def test_a_receiver_that_accepts_or_was_never_tried_is_none(state):
    assert list(_pushes(snapshot(**state))) == []
