"""The daemon with and without receivers: what it pushes, what its end and a reload do, and that off is off."""

from __future__ import annotations

import contextlib
import struct
import threading
import time

import pytest

from exporter.config.settings import parse
from exporter.render import remote_write
from exporter.runtime.app import App
from tests.component.http.test_post import serving
from tests.support.waiting import until

QUIET = "listen: 127.0.0.1:0\ngpu: {enabled: false}\nkernel_log: {enabled: false}\ndiscovery: {processes: false}\n"
STALE = 0x7FF0000000000002


@contextlib.contextmanager
def daemon(text, later=""):
    app = App(parse(QUIET + text, "t", {}), reread=lambda: parse(QUIET + later, "t", {}))
    app.start()
    app.listen()
    try:
        yield app
    finally:
        app.stop()


def page(app):
    return (app.pages.page(openmetrics=False, gzip=False) or b"").decode()


def threads():
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("push:")}


def samples(body):
    """Return {name: (value's bits, labels)} of a request of 2.0."""
    request = remote_write.decode(body, 2)
    texts = list(request.symbols)
    found = {}
    for series in request.timeseries:
        words = [texts[ref] for ref in series.labels_refs]
        labels = dict(zip(words[::2], words[1::2], strict=True))
        (bits,) = struct.unpack("<Q", struct.pack("<d", series.samples[0].value))
        found[labels["__name__"], tuple(labels.items())] = bits
    return found


@pytest.fixture
def receiver():
    with serving() as server:
        yield server


def test_without_receivers_there_is_neither_a_thread_nor_a_series():
    with daemon("") as app:
        until(lambda: "shardwatch_build_info" in page(app))
        assert "push" not in page(app)
        assert threads() == set()
        assert app.pushes is None


def test_the_daemon_pushes_and_says_how_it_goes(receiver):
    with daemon(f"push: [{{url: '{receiver.url('good')}', interval: 1s, name: central}}]") as app:
        until(lambda: 'shardwatch_source_up{source="push:central"} 1.0' in page(app))
        until(lambda: 'shardwatch_push_samples_total{target="central"}' in page(app))
        assert 'shardwatch_push_queue_bytes{target="central"}' in page(app)
        assert threads() == {"push:central"}
        assert app.publisher.snapshot.findings == ()
    first, last = samples(receiver.seen[0][2]), samples(receiver.seen[-1][2])
    assert {name for name, _ in first} >= {"up", "shardwatch_build_info", "process_cpu_seconds_total"}
    assert all(dict(labels)["job"] == "shardwatch" and dict(labels)["instance"] for _, labels in first)
    assert set(last.values()) == {STALE}, "the end of every series is the last that is said"
    assert threads() == set()


def test_a_reload_begins_and_ends_pushing(receiver):
    push = f"push: [{{url: '{receiver.url('good')}', interval: 1s}}]"
    with daemon(push, later="") as app:
        until(lambda: receiver.seen)
        assert app.reload().ok
        assert threads() == set()
        assert set(samples(receiver.seen[-1][2]).values()) == {STALE}
        until(lambda: "shardwatch_push_samples_total" not in page(app))
    receiver.seen.clear()
    with daemon("", later=push) as app:
        assert app.reload().ok
        until(lambda: receiver.seen)


def test_a_receiver_that_hangs_delays_no_stop(receiver):
    with daemon(f"push: [{{url: '{receiver.url('hang')}', interval: 60s, timeout: 60s}}]") as app:
        app.pushes._targets[0]._ticker.restart(60.0, 0.0)
        app.pushes._targets[0]._wake.set()
        until(lambda: receiver.seen)
        began = time.monotonic()
        app.stop()
        assert time.monotonic() - began < 30.0, "half of the exchange's deadline"
        until(lambda: threads() == set())
