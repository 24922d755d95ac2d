"""When the cards' replicas are looked up again."""

from __future__ import annotations

import threading

from exporter.model import CardFacts, CardProcess, CardReading, CardState, SourceStatus
from exporter.placement import Placement


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
