"""What the hardware's own counters say of a simulated card: how long units worked, not how long a kernel sat there.

A card that waits for its peers spins in a collective's kernel: resident all the time, on a few processors, with no
tensor work and next to no memory traffic.  That is what tells it from the card it waits for.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import nan
from operator import add
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from exporter.simulate.card import Card, Load

# The driver's metric ids, in the order of the tuples below.
GRAPHICS, SM, OCCUPANCY, INTEGER, TENSOR, HMMA, DRAM, FP32, FP16 = _UNITS = (1, 2, 3, 4, 5, 7, 10, 12, 13)
_NEVER_USED = frozenset({6, 8, 9, 11})  # double precision and integer tensor work: language models do none
PCIE_SENT, PCIE_RECEIVED, NVLINK_RECEIVED, NVLINK_SENT = 20, 21, 60, 61

# Percent of each unit while a card computes at full speed: bound by memory, bound by arithmetic, and while it waits.
_DECODE = (100.0, 86.0, 23.0, 14.0, 12.0, 12.0, 64.0, 9.0, 3.0)
_PREFILL = (100.0, 96.0, 31.0, 19.0, 61.0, 61.0, 34.0, 11.0, 5.0)
_SPIN = (100.0, 13.0, 2.5, 1.5, 0.0, 0.0, 0.6, 0.0, 0.0)


@dataclass(slots=True)
class Work:
    """Percent of each unit now, and its integral over the card's life in percent seconds."""

    rates: tuple[float, ...] = (0.0,) * len(_UNITS)
    totals: tuple[float, ...] = (0.0,) * len(_UNITS)

    def advance(self, seconds: float, load: Load, utilization: float, clock: float) -> None:
        """Live through ``seconds`` at ``clock`` (share of the highest), resident for ``utilization`` of them."""
        computing = min(load.work, utilization)
        waiting = utilization - computing
        self.rates = tuple(
            # A slow clock takes longer for the same bytes, and the memory does not slow down with it.
            computing * (clock if unit == DRAM else 1.0) * (decode + (prefill - decode) * load.prefill)
            + waiting * spin
            for unit, decode, prefill, spin in zip(_UNITS, _DECODE, _PREFILL, _SPIN, strict=True)
        )
        self.totals = tuple(map(add, self.totals, (rate * seconds for rate in self.rates)))


@dataclass(slots=True)
class Sample:
    """A buffer for the state of a card's counters at one instant; ``at`` in seconds since the start."""

    at: float = nan
    rates: tuple[float, ...] = ()
    totals: tuple[float, ...] = ()
    bytes: dict[int, float] = field(default_factory=dict)

    def take(self, card: Card, now: float) -> None:
        """Fill the buffer from the card."""
        self.at, self.rates, self.totals = now, card.work.rates, card.work.totals
        self.bytes = {PCIE_SENT: card.pcie_sent, PCIE_RECEIVED: card.pcie_received}
        if card.kind.nvlinks:
            self.bytes |= {NVLINK_RECEIVED: card.nvlink_received, NVLINK_SENT: card.nvlink_sent}


def between(first: Sample, second: Sample, metric: int) -> float | None:
    """Give a metric over the time between two samples, percent or MiB/s; None where the card does not have it."""
    seconds = second.at - first.at
    if metric in _NEVER_USED:
        return 0.0
    if metric in _UNITS:
        place = _UNITS.index(metric)
        if seconds <= 0.0:  # the world moves in steps, and none lay between
            return second.rates[place]
        return (second.totals[place] - first.totals[place]) / seconds
    if metric in second.bytes and metric in first.bytes:
        return max(0.0, second.bytes[metric] - first.bytes[metric]) / 2**20 / seconds if seconds > 0.0 else 0.0
    return None
