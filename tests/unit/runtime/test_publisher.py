"""The publisher: what it joins, when it publishes, and what it says of its own health."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

from exporter.derive.assignment import Assignment
from exporter.model import (
    DriverFacts,
    GatewayLabels,
    GatewayReading,
    GatewayState,
    GpuAssignment,
    Outcome,
    SourceStatus,
)
from exporter.runtime.publisher import DEAD_AFTER, GAP, SETTLE_SECONDS, STARTUP_GRACE, Publisher
from tests.support.builders import Clock, card, replica
from tests.support.records import replace
from tests.support.waiting import until


@dataclass
class View:
    cards: tuple = ()
    removed: tuple = ()
    driver: DriverFacts | None = None
    status: SourceStatus = SourceStatus(source="driver", up=True)


class Cards:
    def __init__(self, *cards, status=None):
        self.view = View(cards=cards, driver=DriverFacts(driver_version="580"))
        if status is not None:
            self.view.status = status

    def state(self, now):
        return self.view


class Source:
    loop_restarts = 0

    def __init__(self, state, **parse_warnings):
        self.state, self.parse_warnings = state, parse_warnings

    def view(self, now):
        return self.state


def publisher(cards=None, replicas=(), clock=None, **more):
    published = []
    made = Publisher(
        cards=cards,
        replicas=lambda: list(replicas),
        assignment=more.pop("assignment", Assignment),
        publish=more.pop("publish", published.append),
        clock=clock or Clock(),
        unix_now=lambda: 1.7e9,
        **more,
    )
    return made, published


def test_a_snapshot_joins_gpus_replicas_owners_and_every_sources_health():
    cards = Cards(card(0, utilization=0.9), card(1, utilization=0.5))
    assignment = Assignment(
        gpus=tuple(GpuAssignment(uuid=f"GPU-000{i}", replica="a") for i in range(2)), unassigned={"b": "no_processes"}
    )
    sources = [Source(replica("a"), duplicate=2), Source(replica("b", up=False))]
    made, _ = publisher(cards, sources, assignment=lambda: assignment)
    snapshot = made.compose()
    assert [status.source for status in snapshot.sources] == [
        "driver",
        "gpu:GPU-0000",
        "gpu:GPU-0001",
        "engine:a",
        "engine:b",
    ]
    assert [(group.scope, group.group) for group in snapshot.imbalance] == [("replica", "a"), ("node", "")]
    assert snapshot.daemon.parse_warnings == {("engine:a", "duplicate"): 2}
    assert snapshot.daemon.unassigned == {"b": "no_processes"}
    assert snapshot.driver.driver_version == "580"


def test_without_gpus_the_replicas_are_still_shown():
    made, published = publisher(None, [Source(replica("a"))])
    made.publish_once()
    assert [replica_state.name for replica_state in published[0].replicas] == ["a"]
    assert published[0].driver is None


def test_ready_needs_one_source_that_answers():
    made, _ = publisher(Cards(card(0, up=False)), [Source(replica("a", up=False))])
    assert made.ready() == Outcome(False, "no snapshot yet")
    made.publish_once()
    assert made.ready() == Outcome(False, "0 of 1 GPUs and 0 of 1 replicas answer")
    made, _ = publisher(Cards(card(0, up=False)), [Source(replica("a"))])
    made.publish_once()
    assert made.ready().ok is True


def test_a_gateway_that_answers_is_a_source_to_be_ready_with():
    status = SourceStatus(source="gateway:edge", up=True)
    silent = GatewayState(
        name="edge", labels=GatewayLabels("edge", ""), status=status, reading=None, last_read_at=None
    )
    polled = replace(silent, reading=GatewayReading(gateway="haproxy", at=1000.0, backends={}), last_read_at=1000.0)
    for state, answers in ((silent, 0), (polled, 1)):
        made, _ = publisher(gateways=lambda state=state: [Source(state)])
        made.publish_once()
        outcome = Outcome(answers > 0, f"0 of 0 GPUs and 0 of 0 replicas and {answers} of 1 gateways answer")
        assert made.ready() == outcome


def test_ready_waits_for_a_source_that_has_not_answered_once_but_not_for_ever():
    clock = Clock()
    starting = SourceStatus(source="driver", up=False, reason="starting")
    made, _ = publisher(Cards(status=starting), [Source(replica("a"))], clock=clock)
    made.publish_once()
    assert made.ready() == Outcome(False, "the first cycle is not done yet")
    clock.tick(STARTUP_GRACE)
    made.publish_once()
    assert made.ready().ok is True


def test_a_snapshot_that_is_old_is_not_ready():
    clock = Clock()
    made, _ = publisher(None, [Source(replica("a"))], clock=clock)
    made.publish_once()
    clock.tick(DEAD_AFTER + 1)
    assert made.ready().ok is False


def test_health_means_that_the_loop_turns_whatever_gpus_and_engines_do():
    made, _ = publisher(Cards(card(0, up=False)), [Source(replica("a", up=False))], clock=time.monotonic)
    assert made.healthy().ok is False
    made.start()
    try:
        assert made.healthy().ok is True
    finally:
        made.stop()
    made._thread.join(3)
    assert made.healthy().ok is False


def test_a_loop_that_hangs_is_unhealthy():
    release = threading.Event()
    made, _ = publisher(None, [], publish=lambda _: release.wait(10), clock=time.monotonic)
    made.start()
    try:
        assert made.healthy().ok is True
        made._clock = lambda: time.monotonic() + DEAD_AFTER + 1
        assert made.healthy().ok is False
    finally:
        release.set()
        made._clock = time.monotonic
        made.stop()


def test_what_cannot_wait_is_published_without_keeping_the_interval():
    published = []
    made, _ = publisher(None, [], publish=published.append, clock=time.monotonic)
    made.interval = 3600.0
    made.start()
    try:
        until(lambda: published)
        made.notify(at_once=True)
        until(lambda: len(published) >= 2)
    finally:
        made.stop()


def test_an_error_in_the_loop_is_survived_and_counted():
    failures = iter([RuntimeError("a bug"), RuntimeError("again")])
    published = []

    def publish(snapshot):
        error = next(failures, None)
        if error:
            raise error
        published.append(snapshot)

    made, _ = publisher(None, [], publish=publish, clock=time.monotonic)
    made.interval = 0.02
    made.start()
    try:
        until(lambda: made.notify() or published)
    finally:
        made.stop()
    assert published[0].daemon.loop_restarts["publisher"] == 2


def test_news_is_published_at_most_once_an_interval():
    made, published = publisher(None, [Source(replica("a"))], clock=time.monotonic)
    made.interval = 0.3
    made.start()
    try:
        began = time.monotonic()
        while len(published) < 5:
            assert time.monotonic() < began + 60.0, published
            made.notify()
            time.sleep(0.005)
        assert time.monotonic() - began > 3 * made.interval  # the first one comes at once
    finally:
        made.stop()


def test_everything_that_starts_is_shown_at_once():
    source = Source(
        replace(replica("a", up=False), status=SourceStatus(source="engine:a", up=False, reason="starting"))
    )
    made, published = publisher(None, [source], clock=time.monotonic)
    made.interval = 60.0
    made.start()
    try:
        source.state = replica("a")
        made.notify()
        until(lambda: any(published_snapshot.replicas[0].reading for published_snapshot in published))
    finally:
        made.stop()


def test_after_it_was_stopped_itself_the_sources_are_read_before_anything_is_published():
    clock, life = Clock(), []

    class Stopping(threading.Event):
        def wait(self, timeout=None):
            life.append(("wait", timeout))
            return self.is_set()

    made, _ = publisher(clock=clock, publish=lambda _: life.append("snapshot"))
    made._stopping = Stopping()
    made.start()
    try:
        until(lambda: life)
        clock.tick(GAP + 1.0)
        made.notify(at_once=True)
        until(lambda: len(life) >= 3)
    finally:
        made.stop()
    assert life[:3] == ["snapshot", ("wait", SETTLE_SECONDS), "snapshot"]
