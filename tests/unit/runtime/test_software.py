"""The watcher of software: joined over the GPUs, bounded, and not held up by a process whose file system blocks."""

from __future__ import annotations

import threading

import pytest

from exporter.model import CardProcess
from exporter.model.software import ComponentVersion, ProcessSoftware, SharedMemory
from exporter.runtime import software as software_module
from exporter.runtime.software import MAX_BLOCKED, MAX_PROCESSES, SoftwareWatcher
from tests.support.builders import Clock, card
from tests.support.records import replace
from tests.support.waiting import until

NCCL, NEWER = ComponentVersion("nccl", "2.27.3"), ComponentVersion("nccl", "2.29.1")


def gpu(index, *pids):
    made = card(index)
    return replace(made, reading=replace(made.reading, processes=tuple(CardProcess(pid=pid) for pid in pids)))


def watcher(cards, read, **more):
    return SoftwareWatcher(
        cards=lambda: cards,
        read=lambda _, pid: read(pid),
        clock=Clock(),
        unix_now=Clock(),
        root="/nonexistent",
        **more,
    )


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(software_module, "READ_SECONDS", 0.05)


def test_versions_are_listed_once_and_the_smallest_shared_memory_counts():
    read = {
        1: ProcessSoftware(versions=frozenset({NCCL}), shared_memory=SharedMemory(64e6, 1e6)),
        2: ProcessSoftware(versions=frozenset({NCCL, NEWER}), shared_memory=SharedMemory(8e9, 2e6)),
        3: ProcessSoftware(is_mps=True),
    }
    changes = []
    watch = watcher([gpu(0, 1, 2), gpu(1, 2), gpu(2, 3), gpu(3)], read.get, on_change=lambda: changes.append(1))
    watch.refresh()
    found = watch.software
    assert found.versions == (NCCL, NEWER)
    assert {uuid: memory.size for uuid, memory in found.shared_memory.items()} == {"GPU-0000": 64e6, "GPU-0001": 8e9}
    assert found.mps == {"GPU-0000": False, "GPU-0001": False, "GPU-0002": True}
    watch.refresh()
    assert changes == [1], "nothing is new"


def test_a_process_that_claims_many_versions_fills_no_more_than_its_place():
    many = frozenset(ComponentVersion("nccl", f"2.{number}.0") for number in range(1000))
    watch = watcher([gpu(0, 1)], lambda _: ProcessSoftware(versions=many))
    watch.refresh()
    assert len(watch.software.versions) == 4


def test_thousands_of_processes_are_read_so_far_and_no_further():
    read = []
    watch = watcher([gpu(0, *range(1, 3000))], lambda pid: read.append(pid) or ProcessSoftware())
    watch.refresh()
    assert len(read) == MAX_PROCESSES


def test_a_process_whose_file_system_blocks_costs_the_others_nothing(impatient):
    release, blocked = threading.Event(), []

    def read(pid):
        if pid < 100:
            blocked.append(pid)
            release.wait(60)
        return ProcessSoftware(versions=frozenset({NCCL}))

    watch = watcher([gpu(0, 1, 100)], read)
    try:
        watch.refresh()
        # On a loaded machine the other one may take longer than the patience of this test, too.
        until(lambda: watch.refresh() or watch.software.versions == (NCCL,))
        assert blocked == [1], "it is not looked into again while that look has not ended"
    finally:
        release.set()


def test_not_more_than_some_threads_are_left_behind(impatient):
    release, begun = threading.Event(), []
    watch = watcher([gpu(0, *range(1, 20))], lambda pid: begun.append(pid) or release.wait(60))
    try:
        watch.refresh()
        watch.refresh()
        until(lambda: len(begun) >= MAX_BLOCKED)
        assert len(begun) == MAX_BLOCKED
    finally:
        release.set()
