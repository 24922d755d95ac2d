"""Hardware counters of a simulated GPU: how long its units worked, not how long a kernel was resident.

A GPU that waits for its peers spins in a collective's kernel: resident all the time, on a few processors, with no
tensor work and next to no memory traffic.  That is what tells it from the GPU it waits for.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import add

from exporter.simulate.load import Load

# The driver's metric ids, in the order of the tuples below.
GRAPHICS, SM, OCCUPANCY, INTEGER, TENSOR, HMMA, DRAM, FP32, FP16 = UNITS = (1, 2, 3, 4, 5, 7, 10, 12, 13)
NEVER_USED = frozenset({6, 8, 9, 11})  # double precision and integer tensor work: language models do none
PCIE_SENT, PCIE_RECEIVED, NVLINK_RECEIVED, NVLINK_SENT = 20, 21, 60, 61

# Percent of each unit while a GPU computes at full speed: bound by memory, bound by arithmetic, and while it waits.
_DECODE = (100.0, 86.0, 23.0, 14.0, 12.0, 12.0, 64.0, 9.0, 3.0)
_PREFILL = (100.0, 96.0, 31.0, 19.0, 61.0, 61.0, 34.0, 11.0, 5.0)
_SPIN = (100.0, 13.0, 2.5, 1.5, 0.0, 0.0, 0.6, 0.0, 0.0)


@dataclass(slots=True)
class UnitCounters:
    """Percent of each unit now, and its integral over the GPU's life in percent seconds."""

    rates: tuple[float, ...] = (0.0,) * len(UNITS)
    totals: tuple[float, ...] = (0.0,) * len(UNITS)

    def advance(self, seconds: float, load: Load, utilization: float, clock: float) -> None:
        """Advance by ``seconds`` at ``clock`` (share of the highest), resident for ``utilization`` of them."""
        computing = min(load.compute, utilization)
        waiting = utilization - computing
        self.rates = tuple(
            # A slow clock takes longer for the same bytes, and the memory does not slow down with it.
            computing * (clock if unit == DRAM else 1.0) * (decode + (prefill - decode) * load.prefill)
            + waiting * spin
            for unit, decode, prefill, spin in zip(UNITS, _DECODE, _PREFILL, _SPIN, strict=True)
        )
        self.totals = tuple(map(add, self.totals, (rate * seconds for rate in self.rates)))
