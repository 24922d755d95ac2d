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


class _IdleTime(Struct):
    since: float  # monotonic, of the first reading
    read_at: float  # the newest
    readings: int = 1


class IdleGpus:
    """Follows the GPUs of successive snapshots; bounded by those of the newest."""

    def __init__(self) -> None:
        self._idle: dict[str, _IdleTime] = {}

    def update(self, cards: Sequence[CardState]) -> Mapping[str, float]:
        """Return since when (monotonic) each GPU that computes nothing has done so, by UUID."""
        self._idle = {
            card.facts.uuid: _after(self._idle.get(card.facts.uuid), card.reading.at)
            for card in cards
            if card.reading is not None and is_computing(card) is False
        }
        return {uuid: idle.since for uuid, idle in self._idle.items() if idle.readings >= MIN_READINGS}


def is_computing(card: CardState) -> bool | None:
    """Return whether a GPU used its memory or tensor cores when it was read last; None: not known."""
    dram = signal(card, Signal.DRAM_ACTIVE)
    if dram is not None:
        tensor = signal(card, Signal.TENSOR_ACTIVE) or 0.0
        return dram >= limit.COMPUTING_MEMORY or tensor >= limit.COMPUTING_TENSOR
    activity = signal(card, Signal.MEMORY_ACTIVITY)
    return None if activity is None else activity > 0.0


def _after(idle: _IdleTime | None, at: float) -> _IdleTime:
    if idle is None:
        return _IdleTime(at, at)
    if at > idle.read_at:
        idle.read_at, idle.readings = at, idle.readings + 1
    return idle
