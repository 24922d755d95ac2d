"""Select which series of a page are shown where it has too many: one of several models, and the ranks that change.

Pages that gather several servers keep the last figures of one that is gone: Ray's until its cluster restarts.  So
what does not change is replaced by what does, and by nothing else: labels that change restart all windows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from enum import Enum
from math import inf
from typing import NamedTuple

from exporter.model import EMPTY

MAX_RANKS = 100  # of one page
MAX_MODELS = 100  # that are watched
_MAX_WATCHED = 1_000  # ranks
# Seconds; Ray pushes every 10.  A model gives its name to all that is shown of the page, and may be idle for long.
RANK_STILL = 120.0
MODEL_STILL = 900.0


class Dimension(Enum):
    """What there may be too many of."""

    MODEL = "model"
    RANK = "rank"


class Candidate(NamedTuple):
    """A model or a rank of the page, by its name."""

    dimension: Dimension
    name: str


Candidates = Mapping[Candidate, tuple[int, ...]]  # → positions of the figures


class _Activity(NamedTuple):
    """The hash of a candidate's figures, when they changed last, and since when it has been seen."""

    figures: int
    changed_at: float
    seen_since: float


class SeriesSelector:
    """Remembers what is shown and, where something must be left out, when the figures of each candidate changed."""

    def __init__(self) -> None:
        self._model = ""
        self._ranks: frozenset[str] = frozenset()
        self._activity: dict[Candidate, _Activity] = {}
        self._at = -inf

    def model(self, series: Counter[str]) -> str:
        """Choose among models by their numbers of series: the one shown so far, else the one that most carry."""
        if self._model not in series:
            # The first by name among equals, so that the choice does not depend on the order.
            self._model = min(series, key=lambda name: (-series[name], name)) if series else ""
        return self._model

    def ranks(self, names: Iterable[str]) -> frozenset[str]:
        """Choose ``MAX_RANKS``: those that change, of these those shown so far, else the first of the page."""
        order = list(dict.fromkeys(names))
        if len(order) > MAX_RANKS:
            # What belongs to no rank, such as the answers of the HTTP side, comes first.
            order.sort(key=lambda rank: (rank != "", not self._changes(rank), rank not in self._ranks))
        self._ranks = frozenset(order[:MAX_RANKS])
        return self._ranks

    def should_reselect(self, candidates: Candidates, numbers: list[float], at: float) -> bool:
        """Record which figures have changed at ``at``; return whether the choice ought to be made again."""
        activity = {}
        for candidate, positions in candidates.items():
            # NaN equals nothing, not even itself.
            figures = hash(tuple([number for p in positions if (number := numbers[p]) == number]))
            known = self._activity.get(candidate, _Activity(figures, -inf, at))
            activity[candidate] = known if known.figures == figures else _Activity(figures, at, known.seen_since)
        self._activity, self._at = activity, at
        return self._other_model() or self._other_ranks(candidates)

    def _changes(self, rank: str) -> bool:
        known = self._activity.get(Candidate(Dimension.RANK, rank))
        return known is not None and self._at - known.changed_at < RANK_STILL

    def _other_ranks(self, candidates: Candidates) -> bool:
        changing = {
            candidate.name: self._changes(candidate.name)
            for candidate in candidates
            if candidate.dimension is Dimension.RANK
        }
        shown = [changes for rank, changes in changing.items() if rank in self._ranks]
        return not all(shown) and any(changes for rank, changes in changing.items() if rank not in self._ranks)

    def _other_model(self) -> bool:
        known = self._activity.get(Candidate(Dimension.MODEL, self._model))
        if known is None or self._at - max(known.changed_at, known.seen_since) < MODEL_STILL:
            return False
        changed = {
            candidate.name: activity.changed_at
            for candidate, activity in self._activity.items()
            if candidate.dimension is Dimension.MODEL
        }
        latest = max(changed, key=changed.__getitem__)
        if self._at - changed[latest] >= RANK_STILL:
            return False
        self._model = latest
        return True


def candidates(models: Mapping[str, list[int]], ranks: Mapping[str, list[int]]) -> Candidates:
    """Return who must be watched: nobody, where all of them are shown."""
    watched: dict[Candidate, tuple[int, ...]] = {}
    if len(models) > 1:
        watched.update({Candidate(Dimension.MODEL, name): tuple(models[name]) for name in list(models)[:MAX_MODELS]})
    if len(ranks) > MAX_RANKS:
        watched.update({Candidate(Dimension.RANK, name): tuple(ranks[name]) for name in list(ranks)[:_MAX_WATCHED]})
    return watched or EMPTY
