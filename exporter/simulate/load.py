"""What the work of a rank asks of one GPU."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class Load:
    """What one GPU is asked to do for one step of time."""

    utilization: float = 0.0  # at full clock
    prefill: float = 0.0  # share of that in compute-bound work
    pace: float = 1.0  # own compute time ÷ step time: below 1 when the GPU waits for a slower one of its group
    compute: float = 0.0  # share of the time in which the GPU computes; the rest of its utilisation it waits
    peer_bytes: float = 0.0  # to and from the other GPUs
    host_bytes: float = 0.0
