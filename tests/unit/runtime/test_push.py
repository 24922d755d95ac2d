"""One receiver on a virtual clock: what is sent, in which order, how often, and what is given up."""

from __future__ import annotations

import logging

import pytest
from msgspec.structs import replace

from exporter.config.push import PushQueueSettings, PushSettings
from exporter.errors import EndpointError
from exporter.model import EMPTY
from exporter.model.push import PushAnswer, PushVerdict
from exporter.render.remote_write import verdict
from exporter.runtime.push.queue import Batch, PushQueue
from exporter.runtime.push.target import PushTarget, retry_after
from tests.support import builders

UNIX = 1.7e9
BODY = 1000  # bytes


def answered(status, headers=EMPTY, body=b""):
    return PushAnswer(status=status, headers=headers, body=body)


class Form:
    """A format whose bodies say when they were read and whether anything was alive."""

    headers = {"Content-Type": "test"}  # noqa: RUF012

    def __init__(self):
        self.verdict = None

    def read(self, snapshot, at):
        text = f"{at}:{'end' if snapshot is None else 'all'}".encode()
        return text.ljust(BODY), 10

    def wire(self, body):
        return body

    def judge(self, answer, samples):
        found, self.verdict = self.verdict, None
        return found or verdict(answer.status), 0


class Poster:
    """A receiver that answers what ``answers`` say, an exception included; the last one for ever."""

    def __init__(self, clock, *answers):
        self._clock, self._answers = clock, list(answers) or [answered(204)]
        self.tried, self.accepted = [], []

    def post(self, body, headers):
        self.tried.append((self._clock.now, body.decode().strip()))
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        if answer.status == 204:
            self.accepted.append(body.decode().strip())
        return answer

    def answers(self, *answers):
        self._answers = list(answers)

    def close(self):
        pass


class Node:
    """A target, its receiver and their clock."""

    def __init__(self, *answers, interval=15.0, jitter=1.0, **queue):
        self.clock = builders.Clock(1000.0)
        self.snapshot_at = lambda: self.clock.now
        self.form, self.poster = Form(), Poster(self.clock, *answers)
        settings = PushSettings(
            url="http://127.0.0.1:1/write", name="central", interval=interval, timeout=10.0,
            labels={"instance": "n:1"}, queue=PushQueueSettings(**queue),
        )  # fmt: skip
        self.target = PushTarget(
            settings, self.form, self.poster, snapshot=self._snapshot, clock=self.clock,
            unix_now=lambda: UNIX + self.clock.now, jitter=lambda: jitter,
        )  # fmt: skip

    def _snapshot(self):
        at = self.snapshot_at()
        return None if at is None else replace(builders.snapshot(), at=at)

    def live(self, seconds):
        end = self.clock.now + seconds
        while self.clock.now < end:
            self.clock.now = min(end, self.clock.now + max(0.001, self.target.turn()))


REFUSED = EndpointError("refused", "nobody listens")


def test_an_edition_is_sent_each_interval():
    node = Node()
    node.live(15 * 8)
    times = [at for at, _ in node.poster.tried]
    assert len(times) == 8
    assert {round(after - before, 3) for before, after in zip(times, times[1:], strict=False)} == {15.0}
    assert times[0] - 1000.0 < 15.0, "the first within one interval"
    assert node.target.state().samples == 80
    assert node.target.status().up


def test_an_outage_keeps_the_order_and_what_was_read_in_it():
    node = Node(REFUSED)
    node.live(600)
    assert node.poster.accepted == []
    state = node.target.state()
    assert (state.queue_bytes, state.dropped) == (40 * BODY, {})
    assert 585 <= state.queue_age <= 600
    node.poster.answers(answered(204))
    node.live(60)
    assert node.poster.accepted == sorted(node.poster.accepted)
    assert len(node.poster.accepted) == 44
    assert node.target.state().queue_bytes == 0


def test_attempts_move_apart_up_to_half_a_minute_and_are_spread():
    node = Node(REFUSED, interval=300.0, jitter=1.0)
    node.live(900)
    times = [at for at, _ in node.poster.tried]
    gaps = [round(after - before) for before, after in zip(times, times[1:], strict=False)]
    assert gaps[:6] == [1, 2, 4, 8, 16, 30]
    assert max(gaps) == 30
    half = Node(REFUSED, interval=300.0, jitter=0.0)
    half.live(900)
    times = [at for at, _ in half.poster.tried]
    assert round(times[1] - times[0], 3) == 0.5, "between half of it and all of it"


def test_hours_of_errors_keep_memory_bounded_and_the_newest():
    node = Node(answered(500), max_bytes=100 * BODY)
    node.live(4 * 3600)
    state = node.target.state()
    assert state.queue_bytes == 100 * BODY
    assert state.dropped["queue_full"] == (4 * 240 - 100) * 10
    assert node.target.status().reason == "http_500"
    node.poster.answers(answered(204))
    node.live(45)
    assert node.poster.accepted == sorted(node.poster.accepted)
    assert len(node.poster.accepted) >= 100


def test_what_is_too_old_is_dropped_whole():
    node = Node(REFUSED, max_age=120.0)
    node.live(600)
    state = node.target.state()
    assert state.queue_age <= 120.0 + 15.0, "seen at the next turn"
    assert state.dropped == {"too_old": 10 * (40 - state.queue_bytes // BODY)}


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 422])
def test_what_is_refused_is_not_sent_again(status):
    node = Node(answered(status), answered(204))
    node.live(40)
    assert len({body for _, body in node.poster.tried}) == len(node.poster.tried)
    state = node.target.state()
    assert state.dropped == {"refused": 10}
    assert node.target.status().failures == {f"http_{status}": 1}


def test_a_status_that_no_standard_knows_invents_no_reason():
    node = Node(answered(499), answered(498), answered(204))
    node.live(60)
    assert node.target.status().failures == {"http_4xx": 2}


@pytest.mark.parametrize("status", [301, 307, 429, 500, 503])
def test_what_may_be_taken_later_is_sent_again(status):
    node = Node(answered(status), answered(204))
    node.live(40)
    assert node.poster.tried[0][1] == node.poster.tried[1][1]
    assert node.target.state().dropped == {}


def test_the_time_that_a_receiver_asks_for_is_kept():
    node = Node(answered(429, {"retry-after": "45"}), answered(204))
    node.live(120)
    first, second = node.poster.tried[:2]
    assert second[0] - first[0] == pytest.approx(45, abs=0.1)
    assert node.poster.accepted == sorted(node.poster.accepted)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("120", 120.0),
        ("Tue, 14 Nov 2023 22:13:50 GMT", 30.0),
        ("Tue, 14 Nov 2023 22:13:00 GMT", 0.0),
        ("99999999999999999999", 300.0),
        ("-5", 0.0),
        ("", 0.0),
        ("soon", 0.0),
        ("1e9", 0.0),
        ("Tue, 14 Nov 99999 22:13:00 GMT", 0.0),
    ],
)
def test_retry_after_is_seconds_or_a_date_and_at_most_five_minutes(value, seconds):
    assert retry_after(value, 1.7e9) == seconds


def test_another_version_is_tried_at_once_with_the_same_edition():
    node = Node()
    node.form.verdict = PushVerdict.OTHER_VERSION
    node.live(20)
    (at, body), (again, same) = node.poster.tried[:2]
    assert body == same
    assert again - at < 0.1
    assert node.target.state().samples >= 10
    assert node.target.status().up


def test_an_old_snapshot_ends_every_series_as_a_failed_scrape_does():
    node = Node()
    node.live(30)
    node.snapshot_at = lambda: 1000.0
    node.live(30)
    assert node.poster.accepted[-1].endswith("end")


def test_a_clean_stop_sends_what_waits_and_then_the_end():
    node = Node(REFUSED)
    node.live(45)
    node.poster.answers(answered(204))
    node.target.end()
    assert [text.partition(":")[2] for text in node.poster.accepted] == ["all", "all", "all", "end"]


def test_a_clean_stop_does_not_insist():
    node = Node(REFUSED)
    node.live(45)
    tried = len(node.poster.tried)
    node.target.end()
    assert len(node.poster.tried) == tried + 1


def test_an_ended_receiver_logs_no_state(caplog):
    node = Node()
    caplog.set_level(logging.INFO, "exporter.runtime.push.target")
    node.live(15)
    assert len(caplog.records) == 1, "up"
    caplog.clear()
    node.target.stop()
    node.poster.answers(EndpointError("closed", "this client is closed"))
    node.target.end()
    node.poster.answers(answered(204))
    node.target.end()
    assert node.poster.tried[-1][1].endswith("end")
    assert [record.getMessage() for record in caplog.records] == []


def test_a_mistake_of_ours_loses_one_edition_and_not_the_thread():
    node = Node(ValueError("a bug"), answered(204))
    with pytest.raises(ValueError, match="a bug"):
        node.live(20)
    assert node.target.state().dropped == {"internal": 10}
    node.live(20)
    assert node.poster.accepted


def test_a_body_larger_than_the_queue_is_dropped_and_counted():
    queue = PushQueue(max_bytes=100, max_age=60.0)
    queue.put(Batch(body=b"x" * 101, samples=7, at=0.0))
    assert (queue.oldest, queue.bytes, dict(queue.dropped)) == (None, 0, {"queue_full": 7})
