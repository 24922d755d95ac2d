"""The watcher of adapters: absent where there are none, withdrawn while sysfs blocks, begun anew by a reload."""

from __future__ import annotations

import threading

import pytest

from exporter.model.nic import NicPort, NicPortKey
from exporter.runtime.nics import PERIOD, PERIOD_WITHOUT, NicWatcher
from exporter.sources.nics import NicScan
from tests.support.builders import Clock
from tests.support.waiting import until

PORT = NicPort(key=NicPortKey("mlx5_0", "1"), state="active", physical_state="link_up", rate=50e9)
FOUND = NicScan(ports=(PORT,))


@pytest.fixture
def clock():
    return Clock()


def watcher(clock, read, **more):
    return NicWatcher(cards=tuple, read=read, clock=clock, unix_now=clock, **more)


def test_without_adapters_there_is_neither_state_nor_source_and_sysfs_is_looked_at_rarely(clock):
    nics = watcher(clock, lambda *_: NicScan())
    nics.refresh("/sys")
    assert (nics.states(), nics.statuses(), nics.loop_restarts) == ((), (), {})
    assert nics._poll_loop._requested == (PERIOD_WITHOUT, clock.now + PERIOD_WITHOUT)
    clock.now += PERIOD_WITHOUT
    assert nics.statuses() == (), "the next look is not late"


def test_ports_that_come_and_go_are_followed(clock):
    scans = [NicScan(), FOUND, NicScan()]
    nics = watcher(clock, lambda *_: scans.pop(0))
    seen = []
    for _ in range(3):
        nics.refresh("/sys")
        seen.append(([state.port.key.device for state in nics.states()], [each.source for each in nics.statuses()]))
    assert seen == [([], []), (["mlx5_0"], ["nics"]), ([], [])]


def test_the_publisher_is_notified_of_ports_only(clock):
    scans, changes = [NicScan(), FOUND], []
    nics = watcher(clock, lambda *_: scans.pop(0), on_change=lambda: changes.append(1))
    nics.refresh("/sys")
    assert not changes
    nics.refresh("/sys")
    assert changes


def test_a_failure_withdraws_the_ports_and_is_said(clock):
    def read(*_):
        if len(calls) == 1:
            raise OSError(5, "Input/output error")
        return FOUND

    calls = []
    nics = watcher(clock, read)
    nics.refresh("/sys")
    calls.append(1)
    nics.refresh("/sys")
    (status,) = nics.statuses()
    assert (nics.states(), status.up, status.reason) == ((), False, "unreadable")


def test_while_sysfs_blocks_the_ports_are_withdrawn_and_nobody_waits(clock):
    blocked, release = threading.Event(), threading.Event()

    def read(*_):
        if first.pop():
            return FOUND
        blocked.set()
        release.wait(60)
        return FOUND

    first = [False, True]
    nics = watcher(clock, read)
    nics.refresh("/sys")
    assert nics.states()
    thread = threading.Thread(target=nics.refresh, args=("/sys",), daemon=True)
    thread.start()
    assert blocked.wait(60)
    assert nics.states(), "a slow read is no blocked one"
    clock.tick(2 * PERIOD + 5.1)
    (status,) = nics.statuses()
    assert (nics.states(), status.up, status.reason, status.hung) == ((), False, "hung", True)
    nics.stop()
    release.set()
    thread.join(60)
    assert nics.states(), "it is back as soon as sysfs answers"


def test_what_a_replaced_reader_still_brings_is_dropped(clock):
    roots = []

    def read(root, _):
        roots.append(root)
        if root == "/old":
            nics.watch(enabled=False, root="/old")
        return FOUND

    nics = watcher(clock, read)
    nics.watch(enabled=True, root="/old")
    try:
        until(lambda: roots == ["/old"])
        until(lambda: nics._root is None)
        assert nics.states() == ()
        nics.watch(enabled=True, root="/new")
        until(nics.states)
        assert roots == ["/old", "/new"]
    finally:
        nics.stop()


def test_more_ports_than_the_limit_are_logged_once(clock, caplog):
    nics = watcher(clock, lambda *_: NicScan(ports=(PORT,), limit_reached=True))
    for _ in range(3):
        nics.refresh("/sys")
    assert "".join(record.getMessage() for record in caplog.records).count("port_limit_reached") == 1
