"""Which processes sit on which card, and who sat there before a card stopped saying so.

A card that is lost, hangs, or once fails to list its processes has not changed hands: taken from its replica, nobody
would see which replica lost it.  So it keeps those who sat there last, each for as long as the process lives.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from exporter.model import EMPTY, CardState, Missing, Signal

GpuProcesses = Mapping[
    str, frozenset[int]
]  # UUID of a card or instance → pids; cards on which nobody sits are left out

# These pass, and what is true of the card goes on meanwhile; of the rest, none says that anybody sits there.
_SILENT = frozenset({Missing.ERROR, Missing.INVALID, Missing.STARTING, Missing.BUSY, Missing.SLOW, Missing.CRASHED})


def gpu_processes(
    cards: Iterable[CardState], before: GpuProcesses = EMPTY, gone: Collection[int] = ()
) -> GpuProcesses:
    """Give who sits where.  ``before``: the same at the last time; ``gone``: pids known to be no more."""
    found = {card.facts.uuid: _sitting(card, before, gone) for card in cards}
    return {uuid: pids for uuid, pids in found.items() if pids}


def _sitting(card: CardState, before: GpuProcesses, gone: Collection[int]) -> frozenset[int]:
    reading = card.reading
    if reading is not None and reading.processes is not None:
        return frozenset(process.pid for process in reading.processes)
    if reading is not None and reading.missing.get(Signal.PROCESSES) not in _SILENT:
        return frozenset()
    return before.get(card.facts.uuid, frozenset()).difference(gone)
