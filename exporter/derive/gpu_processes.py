"""The processes on each card, kept while a card stops reporting them.

A card that is lost, hangs, or fails once to list its processes has not changed hands: without its processes it would
leave its replica, and nothing would show which replica lost it.  So it keeps the last known processes, each for as
long as the process lives.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from exporter.model import EMPTY, CardState, Missing, Signal

GpuProcesses = Mapping[str, frozenset[int]]  # UUID of a card → pids; cards without processes are left out

# Transient reasons.  The others say that no processes are known, or that there are none.
_TRANSIENT = frozenset(
    {Missing.ERROR, Missing.INVALID, Missing.STARTING, Missing.BUSY, Missing.SLOW, Missing.CRASHED}
)


def gpu_processes(
    cards: Iterable[CardState], before: GpuProcesses = EMPTY, exited: Collection[int] = ()
) -> GpuProcesses:
    """Return the processes on each card.  ``before``: the previous result; ``exited``: pids known to have ended."""
    by_card = {card.facts.uuid: _of_card(card, before, exited) for card in cards}
    return {uuid: pids for uuid, pids in by_card.items() if pids}


def _of_card(card: CardState, before: GpuProcesses, exited: Collection[int]) -> frozenset[int]:
    reading = card.reading
    if reading is not None and reading.processes is not None:
        return frozenset(process.pid for process in reading.processes)
    if reading is not None and reading.missing.get(Signal.PROCESSES) not in _TRANSIENT:
        return frozenset()
    return before.get(card.facts.uuid, frozenset()).difference(exited)
