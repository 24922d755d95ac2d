"""Events of the simulated driver: the XIDs that befall the world's GPUs, behind pynvml's names for event sets."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from exporter.simulate.driver import NVML_ERROR_INVALID_ARGUMENT, NVMLError, SimulatedDriver

NVML_ERROR_TIMEOUT = 10
XID_EVENT = 0x8
OUTSIDE_MIG = 0xFFFFFFFF
_POLL_SECONDS = 0.1  # seconds between looks at the world while waiting


@dataclass(slots=True)
class EventSet:
    """The GPUs that one listener has registered, and how many of the world's XIDs it has seen."""

    gpus: set[int] = field(default_factory=set)
    seen: int = 0

    def next(self, xids: Sequence[tuple[int, int]]) -> SimpleNamespace | None:
        """Return the oldest XID of a registered GPU that was not given yet."""
        while self.seen < len(xids):
            gpu, xid = xids[self.seen]
            self.seen += 1
            if gpu in self.gpus:
                return _event(gpu, xid)
        return None


def event_functions(driver: Callable[[], SimulatedDriver]) -> tuple[Callable[..., Any], ...]:
    """Return five functions: create a set, supported events of a GPU, register a GPU, wait, free the set."""

    def create() -> EventSet:
        return EventSet(seen=len(driver().current_world().xids))

    def supported(handle: Any) -> int:
        driver().gpu(handle)
        return XID_EVENT

    def register(handle: Any, types: int, events: EventSet) -> None:
        driver().gpu(handle)
        if types & ~XID_EVENT:
            raise NVMLError(NVML_ERROR_INVALID_ARGUMENT)
        events.gpus.add(handle)

    def wait(events: EventSet, milliseconds: int) -> SimpleNamespace:
        end = time.monotonic() + milliseconds / 1000
        while True:
            found = events.next(driver().current_world().xids)
            left = end - time.monotonic()
            if found is not None:
                return found
            if left <= 0:
                raise NVMLError(NVML_ERROR_TIMEOUT)
            time.sleep(min(left, _POLL_SECONDS))

    def free(events: EventSet) -> None:
        events.gpus.clear()

    return create, supported, register, wait, free


def _event(gpu: int, xid: int) -> SimpleNamespace:
    return SimpleNamespace(
        device=gpu, eventType=XID_EVENT, eventData=xid, gpuInstanceId=OUTSIDE_MIG, computeInstanceId=OUTSIDE_MIG
    )
