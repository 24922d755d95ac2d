"""Detect ranks whose figures stand still on a page that gathers several servers, and withdraw their load.

Ray shows the last figures of a deleted replica until its cluster restarts.  Nothing marks them, so only time can
tell: a rank whose every figure stands still while another rank of the page changes is taken for gone, soon when it
claims to have work, late when it claims to be idle.  A server that hangs looks the same and is named the same way.
"""

from __future__ import annotations

from typing import NamedTuple

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


class _Figures(NamedTuple):
    """The figures of a rank, and when they changed last."""

    values: tuple[float, ...]
    changed_at: float


class StaleRankDetector:
    """Remembers since when the figures of each rank have not changed."""

    def __init__(self) -> None:
        self._figures: dict[str, _Figures] = {}

    def withdraw(self, ranks: dict[str, dict[Quantity, float]], at: float) -> frozenset[str]:
        """Remove the load of ranks that stand still while others change; return their names."""
        known = self._figures
        self._figures = {}
        for rank, quantities in ranks.items():
            values = tuple(quantities.values())
            unchanged = rank in known and known[rank].values == values
            self._figures[rank] = known[rank] if unchanged else _Figures(values, at)
        newest = max((figures.changed_at for figures in self._figures.values()), default=at)
        stale = frozenset(
            rank
            for rank, quantities in ranks.items()
            if newest - self._figures[rank].changed_at >= (WITH_WORK if _has_work(quantities) else WITHOUT_WORK)
        )
        for rank in stale:
            for quantity in _LOAD:
                ranks[rank].pop(quantity, None)
        return stale


def _has_work(quantities: dict[Quantity, float]) -> bool:
    return any(quantities.get(name, 0.0) > 0 for name in (Quantity.REQUESTS_RUNNING, Quantity.REQUESTS_WAITING))
