"""Events of the simulated driver: the XIDs that befall the world's cards, behind pynvml's names for event sets."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from exporter.simulate.playing import NVML_ERROR_INVALID_ARGUMENT, Node, NVMLError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

NVML_ERROR_TIMEOUT = 10
XID_EVENT = 0x8
OUTSIDE_MIG = 0xFFFFFFFF
_LOOK = 0.1  # seconds between looks at the world while waiting


@dataclass(slots=True)
class EventSet:
    """What one listener has registered, and how many of the world's XIDs it has been past."""

    cards: set[int] = field(default_factory=set)
    passed: int = 0

    def next(self, happened: Sequence[tuple[int, int]]) -> SimpleNamespace | None:
        """Give the oldest XID of a registered card that was not given yet."""
        while self.passed < len(happened):
            card, xid = happened[self.passed]
            self.passed += 1
            if card in self.cards:
                return _event(card, xid)
        return None


def functions(node: Callable[[], Node]) -> tuple[Callable[..., Any], ...]:
    """Make the five functions: create a set, which events a card has, register a card, wait, free the set."""

    def create() -> EventSet:
        return EventSet(passed=len(node().live().xids))

    def supported(handle: Any) -> int:
        node().card(handle)
        return XID_EVENT

    def register(handle: Any, types: int, events: EventSet) -> None:
        node().card(handle)
        if types & ~XID_EVENT:
            raise NVMLError(NVML_ERROR_INVALID_ARGUMENT)
        events.cards.add(handle)

    def wait(events: EventSet, milliseconds: int) -> SimpleNamespace:
        end = time.monotonic() + milliseconds / 1000
        while True:
            found = events.next(node().live().xids)
            left = end - time.monotonic()
            if found is not None:
                return found
            if left <= 0:
                raise NVMLError(NVML_ERROR_TIMEOUT)
            time.sleep(min(left, _LOOK))

    def free(events: EventSet) -> None:
        events.cards.clear()

    return create, supported, register, wait, free


def _event(card: int, xid: int) -> SimpleNamespace:
    return SimpleNamespace(
        device=card, eventType=XID_EVENT, eventData=xid, gpuInstanceId=OUTSIDE_MIG, computeInstanceId=OUTSIDE_MIG
    )
