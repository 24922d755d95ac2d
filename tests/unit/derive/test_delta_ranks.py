"""Ranks that come and go: what is remembered of them and for how long, and sums over the ranks that never fall."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.derive.counters import MAX_NAMES
from exporter.derive.delta import RETENTION, departed_totals, update
from exporter.derive.departed_ranks import MAX_DEPARTED, MAX_EXPIRED
from exporter.derive.ranks import quantity_totals, sum_over_ranks
from exporter.model import Window
from tests.support.builders import Clock
from tests.support.counted_pages import GEN, TTFT, histogram, page, run, tokens
from tests.support.engine_pages import make_poller, polled


def shown(progress, reading):
    """The sum over the ranks; None when no rank shows the counter."""
    return quantity_totals(reading.ranks, departed_totals(progress, reading).quantities).get(GEN)


def named(at, names, value=5.0, **fields):
    histograms = {TTFT: {name: histogram(1, 2, 3, value) for name in names}}
    finished = {name: {"stop": value} for name in names}
    return page(at, {name: {GEN: value} for name in names}, histograms=histograms, finished=finished, **fields)


# ── What is remembered ──────────────────────────────────────────────────────────────────────────────────────────


def test_ranks_that_are_others_on_every_page_do_not_pile_up_and_all_count():
    names = [["stays", *(f"{at}-{n}" for n in range(20))] for at in range(100)]
    pages = [named(at, ranks, created=dict.fromkeys(ranks, 1.0)) for at, ranks in enumerate(names)]
    progress = run(*pages)
    raw, totals = progress.raw, progress.totals
    assert len(raw.ranks) == 21 + MAX_DEPARTED
    assert len(raw.departed.expired) == MAX_EXPIRED
    assert len(totals.rank_generation) <= 21 + MAX_DEPARTED
    assert raw.created.keys() == raw.ranks.keys()
    assert totals.quantities[GEN] == 99 * 20 * 5
    assert totals.histograms[TTFT].counts[-1] == 99 * 20 * 5
    assert shown(progress, pages[-1]) == (1 + 100 * 20) * 5


@pytest.mark.parametrize("what", ["finished", "responses"])
def test_names_that_are_others_on_every_page_do_not_pile_up(what):
    def churn(at):
        names = {f"{at}-{n}": 1.0 for n in range(30)} | {"stop": float(at)}
        return page(at, **{what: {"0": names} if what == "finished" else names})

    progress = run(*(churn(at) for at in range(50)))
    known = progress.raw.ranks["0"].finished if what == "finished" else progress.raw.responses
    assert len(known) <= MAX_NAMES
    assert len(getattr(progress.totals, what)) <= MAX_NAMES
    assert getattr(progress.totals, what)["stop"] == 49


def test_a_rank_is_kept_for_as_long_as_a_window_reaches_back():
    both = tokens(0, 100, 1000)
    pages = [tokens(at, 100) for at in (1, RETENTION)]
    assert set(run(both, *pages).raw.ranks) == {"0", "1"}
    progress = run(both, *pages, tokens(RETENTION + 1, 100))
    assert set(progress.raw.ranks) == {"0"}
    assert progress.totals.rank_generation.keys() == {"0"}


def test_a_replica_keeps_ranks_for_its_longest_window():
    def body(*numbers):
        rows = [
            f'vllm:generation_tokens_total{{engine="{rank}",model_name="m"}} {n}' for rank, n in enumerate(numbers)
        ]
        return ("\n".join(rows) + "\n").encode()

    clock = Clock()
    bodies = [body(100, 1e6), *[body(100)] * 4, body(100, 1e6 + 50)]
    poller = make_poller(bodies, clock, windows=(Window("1m", 60.0), Window("1h", 3600.0)))
    state = polled(poller, clock, len(bodies), step=2 * RETENTION)
    assert state.windows["1h"].generation_token_rate == pytest.approx(50 / (10 * RETENTION))


def test_time_without_any_page_expires_no_rank():
    progress = run(tokens(0, 100, 1000), tokens(10 * RETENTION, 100), tokens(10 * RETENTION + 1, 100, 1007))
    assert progress.totals.quantities[GEN] == 7


def test_what_a_removed_rank_counts_while_it_is_away_is_not_estimated():
    pages = [tokens(0, 100, 1e9), tokens(1, 100), tokens(RETENTION + 1, 100), tokens(RETENTION + 2, 100, 1e9 + 50)]
    assert run(*pages).totals.quantities[GEN] == 0
    assert run(*pages, tokens(RETENTION + 3, 100, 1e9 + 53)).totals.quantities[GEN] == 3


def test_a_removed_rank_that_comes_back_alone_is_no_other_engine():
    pages = [
        tokens(0, 100, 1e9),
        tokens(1, 100),
        tokens(RETENTION + 1, 100),
        page(RETENTION + 2, {"1": {GEN: 1e9 + 50}}),
    ]
    totals = run(*pages).totals
    assert (totals.restarts, totals.quantities[GEN]) == (0, 0)


def test_a_rank_that_is_gone_for_good_takes_no_bounds_from_the_others():
    wide, narrow = histogram(1, 2, 3, 4), histogram(1, 2, bounds=(0.5,))

    def two(at, **ranks):
        return page(at, {rank: {GEN: 1.0} for rank in ranks}, histograms={TTFT: ranks})

    pages = [two(0, a=wide, b=narrow), two(1, a=wide), two(RETENTION + 1, a=wide), two(RETENTION + 2, a=wide)]
    assert run(*pages[:2]).totals.histograms[TTFT].bounds == (0.5,)
    assert run(*pages).totals.histograms[TTFT].bounds == wide.bounds


# ── One restart is one ──────────────────────────────────────────────────────────────────────────────────────────


def test_an_engine_that_comes_back_with_ranks_of_other_names_has_restarted():
    old = page(
        0,
        {"": {GEN: 1e6}},
        finished={"": {"stop": 9.0}},
        histograms={TTFT: {"": histogram(5, 9, bounds=(0.5,))}},
        responses={"2xx": 40.0},
    )
    new = page(
        1,
        {"0": {GEN: 7.0}},
        finished={"0": {"stop": 1.0}, "": {"rejected": 0.0}},
        histograms={TTFT: {"0": histogram(1, 1, 1, 1)}},
        responses={"2xx": 41.0},
    )
    progress = run(old, new)
    assert progress.totals.restarts == 1
    assert progress.totals.quantities[GEN] == 7
    assert progress.totals.responses == {"2xx": 41}
    assert progress.totals.histograms[TTFT].bounds == (0.1, 0.5, 1.0)
    assert progress.raw.ranks.keys() == {"0", ""}


def test_ranks_that_could_not_be_read_for_a_page_are_no_others():
    whole, odd = tokens(0, 100, 1e6), page(1, {"7": {GEN: 3.0}}, parse_warnings={"unreadable": 2})
    assert run(whole, odd, tokens(2, 101, 1e6)).totals.restarts == 0


def late(at, *tokens_, **fields):
    """A page of an engine that shows a counter only from its first event on."""
    ranks = {str(rank): {} if value is None else {GEN: value} for rank, value in enumerate(tokens_)}
    return page(at, ranks, **fields)


def test_a_restart_that_shows_rank_by_rank_is_one():
    before = late(0, 9e3, 9e3, 9e3, 9e3, finished={"": {"finished": 400.0}}, responses={"2xx": 400.0})
    pages = [late(at, *[100.0 if rank < at else None for rank in range(4)]) for at in range(1, 5)]
    done = late(9, 200, 200, 200, 200, finished={"": {"finished": 3.0}}, responses={"2xx": 3.0})
    totals = run(before, late(0.5, None, None, None, None), *pages, done).totals
    assert totals.restarts == 1
    assert totals.quantities[GEN] == 4 * 200
    assert (totals.finished, totals.responses) == ({"finished": 3}, {"2xx": 3})


def test_answers_count_whole_after_a_restart_that_only_the_ranks_reported():
    before = tokens(0, 1000, responses={"2xx": 5.0, "5xx": 30.0})
    after = tokens(2, 500, responses={"2xx": 100.0, "5xx": 40.0})
    totals = run(before, tokens(1, 0), after).totals
    assert (totals.restarts, totals.responses) == (1, {"2xx": 100, "5xx": 40})


def test_answers_that_fell_on_a_page_without_any_rank_are_a_restart_of_all():
    before = tokens(0, 1000, responses={"2xx": 50.0})
    totals = run(before, late(1, None, responses={"2xx": 1.0}), tokens(2, 2000, responses={"2xx": 9.0})).totals
    assert (totals.restarts, totals.quantities[GEN]) == (1, 2000)


def test_ranks_that_never_counted_anything_do_not_make_one_restart_several():
    idle = {"finished": {"": {"rejected": 0.0}}}
    before = tokens(0, 500, 700, 0, responses={"2xx": 9.0}, **idle)
    totals = run(before, tokens(1, 5, 7, 0, **idle), tokens(2, 5, 7, 0, responses={"2xx": 8.0}, **idle)).totals
    assert (totals.restarts, totals.responses) == (1, {"2xx": 8})


def test_a_rank_that_is_gone_for_long_hides_no_restart_of_the_others():
    both = {"0": 1000.0, "1": 1000.0}
    pages = [tokens(0, 50, 50, created=both), *(tokens(at, 50, created={"0": 1000.0}) for at in (1, RETENTION + 1))]
    again = tokens(RETENTION + 2, 60, responses={"2xx": 3.0}, created={"0": 2000.0})
    progress = run(*pages, again)
    assert (progress.totals.quantities[GEN], progress.totals.restarts) == (60, 1)
    assert progress.raw.created == {"0": 2000.0}


# ── Sums over the ranks ─────────────────────────────────────────────────────────────────────────────────────────


def sums(*pages):
    totals, progress = [], None
    for reading in pages:
        progress = update(progress, reading)
        totals.append(shown(progress, reading))
    return totals


def test_a_sum_does_not_fall_while_a_rank_is_missing_nor_once_it_is_removed():
    pages = [
        tokens(0, 100, 200),
        tokens(1, 101),
        tokens(RETENTION, 102),
        tokens(RETENTION + 1, 103),
        tokens(RETENTION + 2, 104, 207),
    ]
    assert sums(*pages) == [300, 301, 302, 303, 304]
    assert sums(*pages[:3], tokens(RETENTION + 0.5, 103, 207)) == [300, 301, 302, 310]


def test_a_sum_does_not_fall_when_one_rank_begins_anew_alone():
    assert sums(tokens(0, 100, 200), tokens(1, 101, 10), tokens(2, 101, 12)) == [300, 311, 313]


def test_a_sum_begins_anew_with_the_engine():
    assert sums(tokens(0, 100, 200), tokens(1, 101), tokens(2, 3)) == [300, 301, 3]


def test_half_a_page_makes_no_sum_fall():
    renewed = tokens(1, 101, 5, complete=False)
    assert sums(tokens(0, 100, 200), renewed, tokens(2, 102, 6)) == [300, 301, 308]
    back = tokens(RETENTION + 2, 100, 207, complete=False)
    assert sums(tokens(0, 100, 200), tokens(1, 100), tokens(RETENTION + 1, 100), back) == [300] * 4
    half = tokens(1, 101, complete=False)
    assert sums(tokens(0, 100, 200), half, tokens(2, 102, 201)) == [300, 301, 303]


def test_what_no_rank_shows_is_absent_and_no_sum():
    assert sums(tokens(0, 100, 200), page(1), tokens(2, 100, 200)) == [300, None, 300]


def test_outcomes_of_a_missing_rank_stay_in_their_sums():
    both = page(0, finished={"0": {"stop": 5.0}, "1": {"stop": 7.0, "error": 2.0}})
    first_rank = page(1, finished={"0": {"stop": 6.0}})
    assert departed_totals(run(both, first_rank), first_rank).finished == {"stop": 7.0, "error": 2.0}


def test_buckets_of_a_missing_rank_stay_in_their_sums_even_when_it_is_removed():
    def two(at, *by_rank):
        ranks = {str(rank): {GEN: 1.0} for rank, _ in enumerate(by_rank)}
        return page(at, ranks, histograms={TTFT: {str(rank): totals for rank, totals in enumerate(by_rank)}})

    first, other, more = histogram(1, 2, 3, 4), histogram(10, 20, 30, 40), histogram(10, 20, 30, 45)
    pages = [two(0, first, other), two(1, first), two(RETENTION + 1, first), two(RETENTION + 2, first, more)]
    for count in range(1, 5):
        progress = run(*pages[:count])
        assert sum_over_ranks(departed_totals(progress, pages[count - 1]).histograms[TTFT]).counts == (11, 22, 33, 44)
    last = two(RETENTION + 3, first, histogram(10, 20, 30, 49))
    assert sum_over_ranks(departed_totals(run(*pages, last), last).histograms[TTFT]).counts == (11, 22, 33, 48)


def test_removed_ranks_take_no_bounds_from_what_is_shown():
    narrow, wide = histogram(5, 6, bounds=(0.5,)), histogram(1, 2, 3, 4)

    def ranks(at, **found):
        return page(at, {rank: {GEN: 1.0} for rank in found}, histograms={TTFT: found})

    pages = [ranks(0, a=wide, b=narrow), ranks(1, a=wide), ranks(RETENTION + 1, a=wide)]
    assert sum_over_ranks(departed_totals(run(*pages), pages[-1]).histograms[TTFT]) == wide


def test_while_all_ranks_are_present_nothing_is_carried_or_copied():
    pages = [named(at, ["0", "1"], 5.0 + at) for at in range(3)]
    departed = departed_totals(run(*pages), pages[-1])
    assert (departed.quantities, departed.finished) == ({}, {})
    assert departed.histograms is pages[-1].histograms


steps = st.lists(
    st.tuples(
        st.sampled_from([1.0, 5.0, RETENTION / 2, RETENTION]),  # seconds to the next page
        st.lists(st.integers(0, 1000), min_size=3, max_size=3),  # what each rank generates
        st.sampled_from([(), (), (1,), (2,), (1, 2)]),  # who is missing; rank 0 is always there
        st.sampled_from([None, None, 1, 2]),  # who begins anew, alone
        st.booleans(),  # whether the page is whole
    ),
    max_size=25,
)


@given(steps)
def test_sums_never_fall_and_never_exceed_what_was_really_counted(pages):
    raw, truth, last, progress, at = [10.0, 1e6, 1e9], 1e9 + 1e6 + 10, 0.0, None, 0.0
    for gap, grown, missing, anew, whole in [(1.0, [0, 0, 0], (), None, True), *pages]:
        at += gap
        if anew is not None:
            raw[anew] = 0.0
        raw = [value + more for value, more in zip(raw, [grown[0] + 1, *grown[1:]])]
        truth += sum(grown) + 1
        reading = page(at, {str(rank): {GEN: raw[rank]} for rank in range(3) if rank not in missing}, complete=whole)
        progress = update(progress, reading)
        total = shown(progress, reading)
        assert last <= total <= truth
        if whole:
            assert progress.totals.quantities[GEN] + 1e9 + 1e6 + 11 == total
            last = total
        assert len(progress.raw.ranks) <= 3
