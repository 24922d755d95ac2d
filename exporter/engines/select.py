"""What of a page is shown where it has more than there is room for: one of several models, and the ranks that move.

Pages that gather several servers keep what they last heard of one that is gone: Ray's until its cluster restarts.  So
what stands still gives way to what moves, and only to that: labels that change begin all windows anew.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from enum import Enum
from math import inf

from exporter.model import EMPTY

MAX_RANKS = 100  # of one page
MAX_MODELS = 100  # that are watched
_MAX_WATCHED = 1_000  # ranks
# Seconds; Ray pushes every 10.  A model gives its name to all that is shown of the page, and may be idle for long.
RANK_STILL = 120.0
MODEL_STILL = 900.0


class Kind(Enum):
    """What there may be too many of."""

    MODEL = "model"
    RANK = "rank"


Candidates = Mapping[tuple[Kind, str], tuple[int, ...]]  # who is on the page → positions of the figures


class SeriesSelector:
    """Remembers who is shown and, where somebody must be left out, when the figures of each moved last."""

    def __init__(self) -> None:
        self._model = ""
        self._ranks: frozenset[str] = frozenset()
        self._seen: dict[tuple[Kind, str], tuple[int, float, float]] = {}  # figures, when they moved, seen since
        self._at = -inf

    def model(self, series: Counter[str]) -> str:
        """Choose among models by their numbers of series: the known one, else the one that most carry."""
        if self._model not in series:
            # The first by name among equals, so that the choice does not depend on the order.
            self._model = min(series, key=lambda name: (-series[name], name)) if series else ""
        return self._model

    def ranks(self, found: Iterable[str]) -> frozenset[str]:
        """Choose ``MAX_RANKS``: those that move, of these those shown so far, else the first of the page."""
        order = list(dict.fromkeys(found))
        if len(order) > MAX_RANKS:
            # What belongs to no rank, such as the answers of the HTTP side, comes first.
            order.sort(key=lambda rank: (rank != "", not self._moves(rank), rank not in self._ranks))
        self._ranks = frozenset(order[:MAX_RANKS])
        return self._ranks

    def should_reselect(self, rivals: Candidates, numbers: list[float], at: float) -> bool:
        """Note which figures have moved; say whether somebody else ought to be shown."""
        seen = {}
        for key, positions in rivals.items():
            figures = hash(tuple([number for p in positions if (number := numbers[p]) == number]))  # NaN never rests
            known = self._seen.get(key, (figures, -inf, at))
            seen[key] = known if known[0] == figures else (figures, at, known[2])
        self._seen, self._at = seen, at
        return self._other_model() or self._other_ranks(rivals)

    def _moves(self, rank: str) -> bool:
        known = self._seen.get((Kind.RANK, rank))
        return known is not None and self._at - known[1] < RANK_STILL

    def _other_ranks(self, rivals: Candidates) -> bool:
        moving = {rank: self._moves(rank) for kind, rank in rivals if kind is Kind.RANK}
        shown = [moves for rank, moves in moving.items() if rank in self._ranks]
        return not all(shown) and any(moves for rank, moves in moving.items() if rank not in self._ranks)

    def _other_model(self) -> bool:
        known = self._seen.get((Kind.MODEL, self._model))
        if known is None or self._at - max(known[1:]) < MODEL_STILL:
            return False
        others = {name: moved for (kind, name), (_, moved, _) in self._seen.items() if kind is Kind.MODEL}
        latest = max(others, key=others.__getitem__)
        if self._at - others[latest] >= RANK_STILL:
            return False
        self._model = latest
        return True


def rivals(models: Mapping[str, list[int]], ranks: Mapping[str, list[int]]) -> Candidates:
    """Say who must be watched: nobody, where all of them are shown."""
    found: dict[tuple[Kind, str], tuple[int, ...]] = {}
    if len(models) > 1:
        found.update({(Kind.MODEL, name): tuple(models[name]) for name in list(models)[:MAX_MODELS]})
    if len(ranks) > MAX_RANKS:
        found.update({(Kind.RANK, name): tuple(ranks[name]) for name in list(ranks)[:_MAX_WATCHED]})
    return found or EMPTY
