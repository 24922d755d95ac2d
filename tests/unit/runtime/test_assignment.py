"""When the cards' replicas are looked up again."""

from __future__ import annotations

import contextlib
import functools
import logging
import shutil
import socket
import threading

import pytest

from exporter.derive.assignment import Endpoint
from exporter.errors import EndpointError
from exporter.http.client import resolver
from exporter.model import CardFacts, CardProcess, CardReading, CardState, GpuLabels, Missing, Pod, SourceStatus
from exporter.model.process import Process, ProcessTable
from exporter.runtime import assignment as placement_module
from exporter.runtime.assignment import HUNG_AFTER, AssignmentWatcher
from exporter.sources.processes.listening import EngineScan
from tests.support import owned_cards
from tests.support.fake_proc import FakeProc
from tests.support.owned_cards import vllm
from tests.support.processes import read_processes
from tests.support.waiting import until


def card(index: int, *pids: int) -> CardState:
    return CardState(
        facts=CardFacts(index=index, uuid=f"GPU-{index}"),
        status=SourceStatus(source=f"gpu:GPU-{index}", up=True),
        reading=CardReading(at=1.0, signals={}, processes=tuple(CardProcess(pid=pid) for pid in pids)),
        last_read_at=1.0,
        labels=GpuLabels(str(index), f"GPU-{index}"),
    )


class Looks:
    """A placement whose looks are counted; nothing is configured, so that a look reads no process table."""

    def __init__(self) -> None:
        self.count = 0
        self.happened = threading.Event()
        self.assignments = AssignmentWatcher(cards=tuple, endpoints=self._endpoints)

    def _endpoints(self):
        self.count += 1
        self.happened.set()
        return ()

    def another(self) -> bool:
        refreshed = self.happened.wait(5.0)
        self.happened.clear()
        return refreshed


def noticed(*steps):
    looks = Looks()
    looks.assignments.start()
    try:
        assert looks.another(), "the first look"
        refreshes = []
        for cards in steps:
            looks.assignments.on_cards(cards)
            refreshes.append(looks.another())
        return refreshes
    finally:
        looks.assignments.stop()


def test_a_process_on_one_more_gpu_is_looked_up_at_once():
    assert noticed([card(0, 7)], [card(0, 7), card(1, 7)]) == [True, True]


def test_another_process_on_the_same_gpu_is_looked_up_at_once():
    assert noticed([card(0, 7)], [card(0, 8)]) == [True, True]


def test_nothing_is_looked_up_while_nothing_moves():
    looks = Looks()
    looks.assignments.start()
    try:
        assert looks.another()
        looks.assignments.on_cards([card(0, 7)])
        assert looks.another()
        for _ in range(50):
            looks.assignments.on_cards([card(0, 7)])
        assert not looks.happened.wait(0.3)
        assert looks.count == 2
    finally:
        looks.assignments.stop()


def test_an_assignment_that_waits_for_the_driver_is_no_news(monkeypatch, caplog):
    caplog.set_level(logging.INFO, "exporter.runtime.assignment")
    monkeypatch.setattr(placement_module, "read_processes", lambda *_, **__: ProcessTable(processes={}))
    gpus = []
    endpoints = [Endpoint(replica="a", host="127.0.0.1", port=1, gpus=("0",))]
    watcher = AssignmentWatcher(cards=lambda: gpus, endpoints=lambda: endpoints)
    watcher.refresh()
    assert watcher.assignment.unassigned == {"a": "no_driver"} and not caplog.records
    gpus.append(card(0))
    watcher.refresh()
    gpus.clear()
    watcher.refresh()  # a driver that is lost later is news
    assert [record.getMessage() for record in caplog.records] == [
        "event=assignment_changed assigned=1 unassigned=none",
        "event=assignment_changed assigned=0 unassigned=a:no_driver",
    ]


def test_a_process_table_that_hangs_withdraws_what_was_found_there_and_says_so(monkeypatch, caplog):
    caplog.set_level(logging.INFO, "exporter.runtime.assignment")
    now, gate, entered = [100.0], threading.Event(), threading.Event()

    def read(*_, **__):
        entered.set()
        assert gate.wait(20)
        return ProcessTable(processes={})

    monkeypatch.setattr(placement_module, "read_processes", read)
    endpoints = [
        Endpoint(replica="configured", host="127.0.0.1", port=1, gpus=("0",)),
        Endpoint(replica="found", host="127.0.0.1", port=2, gpus=None),
    ]
    watcher = AssignmentWatcher(cards=lambda: [card(0)], endpoints=lambda: endpoints, clock=lambda: now[0])
    gate.set()
    watcher.refresh()
    assignment, before = watcher.assignment.gpus, watcher.assignment
    assert [(each.replica, each.uuid) for each in assignment] == [("configured", "GPU-0")]
    assert watcher.statuses() == () and before.unassigned["found"] != "hung"
    gate.clear()
    entered.clear()
    now[0] += 60.0  # no source says more than one thing a minute
    watcher.start()
    try:
        assert entered.wait(5.0)
        now[0] += HUNG_AFTER
        assert watcher.statuses() == () and watcher.assignment is before
        now[0] += 0.1
        (status,) = watcher.statuses()
        assert (status.source, status.up, status.hung, status.reason) == ("placement", False, True, "hung")
        assert watcher.assignment.gpus == assignment and watcher.assignment.unassigned == {"found": "hung"}
    finally:
        gate.set()
        watcher.stop()
    until(lambda: watcher.statuses() == ())
    assert watcher.assignment == before
    assert [text for text in caplog.text.splitlines() if "state=down reason=hung" in text]


def test_engines_that_do_not_answer_and_names_that_do_not_resolve_are_not_a_process_table_that_hangs(monkeypatch):
    now, refreshes = [100.0], []

    def slow(*_):
        now[0] += HUNG_AFTER + 1.0
        refreshes.append(watcher.is_hung)
        raise EndpointError("dns", "no answer")

    monkeypatch.setattr(placement_module.default_resolver, "addresses", slow)
    monkeypatch.setattr(placement_module, "listening_engines", lambda **_: EngineScan(engines=()))

    def probe(_):
        with contextlib.suppress(EndpointError):
            slow()

    endpoint = Endpoint(replica="a", host="engine.example", port=1, gpus=None)
    watcher = AssignmentWatcher(cards=tuple, endpoints=lambda: [endpoint], on_engines=probe, clock=lambda: now[0])
    watcher.refresh()
    assert refreshes == [False, False]


def test_a_replica_keeps_its_gpus_while_the_name_servers_are_out(tmp_path, monkeypatch):
    held = Held(tmp_path, monkeypatch, host="engine.example")
    first, second = held.pids
    cards = owned_cards.card(0, first), owned_cards.card(1, second)
    shared = resolver.Resolver(lambda _: [(socket.AF_INET, ("127.0.0.1", 0))])
    monkeypatch.setattr(placement_module, "default_resolver", shared)
    assert held.sees(*cards) == ["GPU-0", "GPU-1"]

    def out(_host):
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    monkeypatch.setattr(placement_module, "default_resolver", resolver.Resolver(out))
    assert held.sees(*cards) == ["GPU-0", "GPU-1"]


class Held:
    """Replica "a" with a worker on each of two cards, over an invented /proc; ``sees`` is one cycle and one look."""

    def __init__(self, folder, monkeypatch, host="127.0.0.1") -> None:
        self.node = FakeProc(folder)
        self.pids = vllm(self.node, 100, 1, 8000)
        monkeypatch.setattr(placement_module, "read_processes", functools.partial(read_processes, root=str(folder)))
        self.cards: list[CardState] = []
        place = Endpoint(replica="a", host=host, port=8000, gpus=None)
        self.assignments = AssignmentWatcher(cards=lambda: self.cards, endpoints=lambda: [place])

    def sees(self, *cards: CardState) -> list[str]:
        self.cards = list(cards)
        self.assignments.on_cards(self.cards)
        self.assignments.refresh()
        return [gpu.uuid for gpu in self.assignments.assignment.gpus]

    def ends(self, pid: int) -> None:
        shutil.rmtree(self.node.root / str(pid))


@pytest.fixture
def held(tmp_path, monkeypatch):
    held_gpus = Held(tmp_path, monkeypatch)
    first, second = held_gpus.pids
    assert held_gpus.sees(owned_cards.card(0, first), owned_cards.card(1, second)) == ["GPU-0", "GPU-1"]
    return held_gpus


SILENT = [
    owned_cards.card(1, read=False),
    owned_cards.card(1, known=False, missing=Missing.ERROR),
    owned_cards.card(1, known=False, missing=Missing.SLOW),
]
KNOWN = [owned_cards.card(1), owned_cards.card(1, known=False, missing=Missing.MIG)]


@pytest.mark.parametrize("silent", SILENT)
def test_a_gpu_that_does_not_report_processes_stays_with_its_replica_while_the_process_runs(held, silent):
    first, second = held.pids
    other = owned_cards.card(0, first)
    for _ in range(3):
        assert held.sees(other, silent) == ["GPU-0", "GPU-1"]
    held.ends(second)
    held.sees(other, silent)
    assert held.sees(other, silent) == ["GPU-0"]
    # A process that has the number later is another one.
    held.node.add(second, 101, ["VLLM::Worker_TP1"])
    for _ in range(3):
        assert held.sees(other, silent) == ["GPU-0"]


@pytest.mark.parametrize("known", KNOWN)
def test_a_gpu_that_reports_no_process_leaves_its_replica_at_once(held, known):
    assert held.sees(owned_cards.card(0, held.pids[0]), known) == ["GPU-0"]
    assert held.sees(owned_cards.card(0, held.pids[0]), SILENT[0]) == ["GPU-0"]


def test_a_gpu_that_is_missing_from_the_page_is_unassigned(held):
    assert held.sees(owned_cards.card(0, held.pids[0])) == ["GPU-0"]


def test_a_gpu_that_falls_silent_is_no_reason_to_look_again():
    looks = Looks()
    looks.assignments.start()
    try:
        assert looks.another()
        looks.assignments.on_cards([card(0, 7), card(1, 8)])
        assert looks.another()
        looks.assignments.on_cards([card(0, 7), owned_cards.card(1, read=False)])
        assert not looks.happened.wait(0.3)
    finally:
        looks.assignments.stop()


def test_limits_that_a_scan_reaches_are_logged_once_and_reported_until_it_does_not(monkeypatch, caplog):
    scans = iter([{"processes"}, {"processes", "sockets"}, set()])
    monkeypatch.setattr(
        placement_module,
        "listening_engines",
        lambda **_: EngineScan(engines=(), limits=frozenset(next(scans))),
    )
    watcher = AssignmentWatcher(cards=tuple, endpoints=tuple, on_engines=lambda _: None, clock=lambda: 0.0)
    watcher.refresh()
    assert watcher.limits == {"processes"}
    watcher.refresh()
    assert watcher.limits == {"processes", "sockets"}
    watcher.refresh()
    assert watcher.limits == frozenset()
    lines = [record.getMessage() for record in caplog.records if "scan_limit_reached" in record.getMessage()]
    assert len(lines) == 1
    assert "limits=processes" in lines[0]


def test_a_place_that_two_owners_claim_is_logged_with_their_processes(tmp_path, monkeypatch, caplog):
    node = FakeProc(tmp_path)
    flags = ("--nnodes", "2", "--node-rank", "1", "--headless", "--master-addr", "10.0.0.1")
    for pid, group in ((70, ""), (80, f"0::/system.slice/docker-{'cd' * 32}.scope")):
        node.add(pid, 1, ["vllm", "serve", "m", *flags], cgroup=group)
        node.add(pid + 1, pid, ["VLLM::Worker_TP0"], cgroup=group)
    monkeypatch.setattr(placement_module, "read_processes", functools.partial(read_processes, root=str(tmp_path)))
    cards = [card(0, 71), card(1, 81)]
    watcher = AssignmentWatcher(cards=lambda: cards, endpoints=tuple)
    watcher.refresh()
    watcher.refresh()
    (line,) = (record.getMessage() for record in caplog.records if "replica_place_disputed" in record.getMessage())
    assert "vllm://10.0.0.1:29501 node 1" in line and "pid 71 (" in line and "pid 81 (container docker-cd" in line


# ---------------------------------------------------------------------- owners


def test_the_owners_of_a_gpu_are_known_without_any_engine_and_follow_the_pods(tmp_path, monkeypatch):
    node, pods, changes, names = FakeProc(tmp_path), [], [], [True]
    uid = "8f1c2d3e-4a5b-6c7d-8e9f-0a1b2c3d4e5f"
    node.add(70, 1, ["python3", "train.py"], cgroup=f"0::/kubepods/burstable/pod{uid}/{'c' * 64}")
    monkeypatch.setattr(placement_module, "read_processes", functools.partial(read_processes, root=str(tmp_path)))
    cards = [card(0, 70)]
    watcher = AssignmentWatcher(
        cards=lambda: cards, endpoints=tuple, on_change=lambda: changes.append(1), names_owners=lambda: names[0],
        pods=lambda: pods,
    )  # fmt: skip

    def seen():
        watcher.refresh()
        return [(held.uuid, held.owner.name, held.pids) for held in watcher.owners(cards)]

    assert watcher.owners(cards) == ()
    assert seen() == [("GPU-0", f"pod {uid}", (70,))]
    pods.append(Pod(uid=uid, namespace="ml", name="train-0"))
    assert seen() == [("GPU-0", "ml/train-0", (70,))] and len(changes) == 2
    names[0] = False
    assert seen() == []


def test_while_a_scan_hangs_nobody_is_said_to_hold_a_gpu(monkeypatch):
    now, seen = [100.0], []

    def read(pids, *_, **__):
        now[0] += HUNG_AFTER + 1.0
        seen.append((watcher.is_hung, watcher.owners(cards)))
        return ProcessTable(processes={pid: Process(pid=pid, parent=1) for pid in pids})

    monkeypatch.setattr(placement_module, "read_processes", read)
    cards = [card(0, 70)]
    watcher = AssignmentWatcher(cards=lambda: cards, endpoints=tuple, clock=lambda: now[0])
    watcher.refresh()
    assert [held.pids for held in watcher.owners(cards)] == [(70,)]
    watcher.refresh()
    assert seen == [(True, ()), (True, ())]
