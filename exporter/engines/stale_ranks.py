"""Figures that stand still on a page that gathers several servers: the load of a server that is gone is withdrawn.

Ray shows the last figures of a deleted replica until its cluster restarts.  Nothing marks them, so only time can
tell: a rank whose every figure stands still while another rank of the page moves is taken for gone, soon when it
claims to have work, late when it claims to be idle.  A server that hangs looks the same and is named the same way.
"""

from __future__ import annotations

from exporter.model import Quantity

WITH_WORK = 120.0  # seconds; Ray pushes every 10
WITHOUT_WORK = 900.0

_LOAD = (
    Quantity.REQUESTS_RUNNING,
    Quantity.REQUESTS_WAITING,
    Quantity.REQUESTS_SWAPPED,
    Quantity.KV_CACHE_USAGE,
    Quantity.KV_CACHE_CAPACITY,
)


class StaleRankDetector:
    """Remembers since when the figures of each rank have not moved."""

    def __init__(self) -> None:
        self._since: dict[str, tuple[tuple[float, ...], float]] = {}

    def withdraw(self, ranks: dict[str, dict[Quantity, float]], at: float) -> frozenset[str]:
        """Take the load out of ranks that stand still while others move; give their names."""
        since = {}
        for rank, figures in ranks.items():
            now = tuple(figures.values())
            known = self._since.get(rank)
            since[rank] = (now, at if known is None or known[0] != now else known[1])
        self._since = since
        newest = max((moved for _, moved in since.values()), default=at)
        still = []
        for rank, figures in ranks.items():
            busy = figures.get(Quantity.REQUESTS_RUNNING, 0.0) > 0 or figures.get(Quantity.REQUESTS_WAITING, 0.0) > 0
            if newest - since[rank][1] >= (WITH_WORK if busy else WITHOUT_WORK):
                still.append(rank)
        for rank in still:
            for quantity in _LOAD:
                ranks[rank].pop(quantity, None)
        return frozenset(still)
