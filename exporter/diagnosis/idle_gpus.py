"""Since when each GPU has computed nothing, whatever its utilization.

A step of a language model reads weights from the GPU's memory.  So a GPU that reads and writes none computes nothing,
also where a kernel that waits in a collective keeps its utilization at 100 %.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from exporter.diagnosis import thresholds as limit
from exporter.diagnosis.view import signal
from exporter.model import CardState, Signal

MIN_READINGS = 5  # so that a GPU that is read rarely is not judged by what it did between two steps


class IdleGpu(Struct, frozen=True):
    """A GPU that computes nothing, ``since`` when, and when it was read last, oldest first; monotonic seconds."""

    since: float
    read_at: tuple[float, ...]  # at most MIN_READINGS

    def idle_from(self, start: float) -> float:
        """Return the seconds from ``start`` on without computing; 0 if it was read too rarely to know."""
        begin = max(self.since, start)
        is_known = len(self.read_at) == MIN_READINGS and self.read_at[0] >= begin
        return self.read_at[-1] - begin if is_known else 0.0


class IdleGpus:
    """Follows the GPUs of successive snapshots; bounded by those of the newest."""

    def __init__(self) -> None:
        self._idle: Mapping[str, IdleGpu] = {}

    def update(self, cards: Sequence[CardState]) -> Mapping[str, IdleGpu]:
        """Return each GPU that computes nothing, by UUID."""
        self._idle = {
            card.facts.uuid: _after(self._idle.get(card.facts.uuid), card.reading.at)
            for card in cards
            if card.reading is not None and is_computing(card) is False
        }
        return self._idle


def is_computing(card: CardState) -> bool | None:
    """Return whether a GPU used its memory or tensor cores when it was read last; None: not known."""
    dram = signal(card, Signal.DRAM_ACTIVE)
    if dram is not None:
        tensor = signal(card, Signal.TENSOR_ACTIVE) or 0.0
        return dram >= limit.COMPUTING_MEMORY or tensor >= limit.COMPUTING_TENSOR
    activity = signal(card, Signal.MEMORY_ACTIVITY)
    return None if activity is None else activity > 0.0


def _after(idle: IdleGpu | None, at: float) -> IdleGpu:
    if idle is None:
        return IdleGpu(at, (at,))
    return IdleGpu(idle.since, (*idle.read_at, at)[-MIN_READINGS:]) if at > idle.read_at[-1] else idle
