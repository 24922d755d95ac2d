"""A page that gathers several servers: the load of one that stands still while another moves is withdrawn."""

from __future__ import annotations

import pytest

from exporter.engines.stale_ranks import WITH_WORK, WITHOUT_WORK, StaleRankDetector
from exporter.model import Quantity

RUNNING, WAITING = Quantity.REQUESTS_RUNNING, Quantity.REQUESTS_WAITING
TOKENS = Quantity.GENERATION_TOKENS


def withdrawn(figures, seconds, *, others=True):
    """Return what is left of a rank that shows the same for so long, and whether it is named; ``others``: one moves."""
    watch, named = StaleRankDetector(), frozenset()
    for at in (0.0, seconds):
        ranks = {"still": dict(figures)}
        if others:
            ranks["moves"] = {TOKENS: at, RUNNING: 1.0}
        named = watch.withdraw(ranks, at)
    assert not others or ranks["moves"] == {TOKENS: seconds, RUNNING: 1.0}
    return named, ranks["still"]


@pytest.mark.parametrize(
    ("figures", "min_count"),
    [
        ({RUNNING: 2.0, WAITING: 0.0}, WITH_WORK),
        ({RUNNING: 0.0, WAITING: 3.0}, WITH_WORK),
        ({RUNNING: 0.0, WAITING: 0.0}, WITHOUT_WORK),
        ({Quantity.KV_CACHE_USAGE: 0.5}, WITHOUT_WORK),
    ],
)
def test_a_rank_that_claims_work_is_taken_for_gone_sooner_than_an_idle_one(figures, min_count):
    figures = {**figures, TOKENS: 100.0}
    assert withdrawn(figures, min_count - 1.0) == (frozenset(), figures)
    assert withdrawn(figures, min_count) == ({"still"}, {TOKENS: 100.0}), "its counters stay"


def test_where_nothing_moves_no_rank_is_missing():
    assert withdrawn({RUNNING: 2.0}, 10 * WITHOUT_WORK, others=False) == (frozenset(), {RUNNING: 2.0})


def test_a_rank_that_moves_again_is_there_again():
    watch = StaleRankDetector()
    for at in (0.0, WITH_WORK):
        named = watch.withdraw({"a": {RUNNING: 2.0}, "b": {RUNNING: at + 1.0}}, at)
    assert named == {"a"}
    back = {"a": {RUNNING: 3.0}, "b": {RUNNING: 7.0}}
    assert watch.withdraw(back, WITH_WORK + 10.0) == frozenset()
    assert back["a"] == {RUNNING: 3.0}
