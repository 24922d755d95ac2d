"""When the cards' replicas are looked up again."""

from __future__ import annotations

import logging
import threading

from exporter import placement as placement_module
from exporter.derive.replicas import Endpoint
from exporter.model import CardFacts, CardProcess, CardReading, CardState, SourceStatus
from exporter.placement import HANGS, Placement
from exporter.sources.processes.records import ProcessTable
from tests.waiting import until


def card(index: int, *pids: int) -> CardState:
    return CardState(
        facts=CardFacts(index=index, uuid=f"GPU-{index}"),
        status=SourceStatus(source=f"gpu:GPU-{index}", up=True),
        reading=CardReading(at=1.0, signals={}, processes=tuple(CardProcess(pid=pid) for pid in pids)),
        last_read_at=1.0,
        labels=(str(index), f"GPU-{index}"),
    )


class Looks:
    """A placement whose looks are counted; nothing is configured, so that a look reads no process table."""

    def __init__(self) -> None:
        self.count = 0
        self.happened = threading.Event()
        self.placement = Placement(cards=tuple, endpoints=self._endpoints)

    def _endpoints(self):
        self.count += 1
        self.happened.set()
        return ()

    def another(self) -> bool:
        found = self.happened.wait(5.0)
        self.happened.clear()
        return found


def noticed(*steps):
    looks = Looks()
    looks.placement.start()
    try:
        assert looks.another(), "the first look"
        seen = []
        for cards in steps:
            looks.placement.notice(cards)
            seen.append(looks.another())
        return seen
    finally:
        looks.placement.stop()


def test_a_process_that_sits_on_one_more_card_is_looked_up_at_once():
    assert noticed([card(0, 7)], [card(0, 7), card(1, 7)]) == [True, True]


def test_another_process_on_the_same_card_is_looked_up_at_once():
    assert noticed([card(0, 7)], [card(0, 8)]) == [True, True]


def test_nothing_is_looked_up_while_nothing_moves():
    looks = Looks()
    looks.placement.start()
    try:
        assert looks.another()
        looks.placement.notice([card(0, 7)])
        assert looks.another()
        for _ in range(50):
            looks.placement.notice([card(0, 7)])
        assert not looks.happened.wait(0.3)
        assert looks.count == 2
    finally:
        looks.placement.stop()


def test_a_process_table_that_hangs_withdraws_what_was_found_there_and_says_so(monkeypatch, caplog):
    caplog.set_level(logging.INFO, "exporter.placement")
    now, gate, entered = [100.0], threading.Event(), threading.Event()

    def read(*_):
        entered.set()
        assert gate.wait(20)
        return ProcessTable(processes={})

    monkeypatch.setattr(placement_module, "read_processes", read)
    places = [
        Endpoint(replica="configured", host="127.0.0.1", port=1, gpus=("0",)),
        Endpoint(replica="found", host="127.0.0.1", port=2, gpus=None),
    ]
    one = Placement(cards=lambda: [card(0)], endpoints=lambda: places, clock=lambda: now[0])
    gate.set()
    one.look()
    owner, before = one.assignment.owners, one.assignment
    assert [(each.replica, each.uuid) for each in owner] == [("configured", "GPU-0")]
    assert one.statuses() == () and before.unassigned["found"] != "hung"
    gate.clear()
    entered.clear()
    now[0] += 60.0  # no source says more than one thing a minute
    one.start()
    try:
        assert entered.wait(5.0)
        now[0] += HANGS
        assert one.statuses() == () and one.assignment is before
        now[0] += 0.1
        (status,) = one.statuses()
        assert (status.source, status.up, status.hung, status.reason) == ("placement", False, True, "hung")
        assert one.assignment.owners == owner and one.assignment.unassigned == {"found": "hung"}
    finally:
        gate.set()
        one.stop()
    until(lambda: one.statuses() == ())
    assert one.assignment == before
    assert [text for text in caplog.text.splitlines() if "state=down reason=hung" in text]
