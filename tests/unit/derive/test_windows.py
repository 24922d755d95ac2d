"""The thinned past: where a window starts, what a gap is, how much is kept."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from exporter.derive.delta import ReplicaTotals
from exporter.derive.windows import History
from exporter.model import Window


def totals(at: float) -> ReplicaTotals:
    return ReplicaTotals(at=at, first_at=0.0, moved_at=at)


def filled(windows, times) -> History:
    history = History(windows)
    for at in times:
        history.add(totals(at))
    return history


def kept(history: History) -> int:
    return max(len(ring) for ring in history._rings.values())


def test_nothing_is_known_before_the_first_reading():
    history = History([Window("1m", 60.0)])
    assert history.base("1m") is None
    assert history.latest is None


def test_a_single_reading_is_its_own_base():
    history = filled([Window("1m", 60.0)], [5.0])
    assert history.base("1m") is history.latest


def test_the_base_is_the_oldest_inside_the_window_with_both_ends_inside():
    history = filled([Window("1m", 60.0), Window("5m", 300.0)], range(0, 605, 5))
    assert history.base("1m").at == 540
    assert history.base("5m").at == 300
    assert history.labels == ("1m", "5m")


def test_the_base_can_be_kept_after_a_change_of_bounds():
    history = filled([Window("1m", 60.0)], range(0, 100, 5))
    assert history.base("1m", 70.0).at == 70
    assert history.base("1m", 1e9) is history.latest


def test_an_outage_longer_than_the_window_leaves_nothing_to_subtract_from():
    history = filled([Window("1m", 60.0), Window("5m", 300.0)], [0.0, 5.0, 10.0, 90.0])
    assert history.base("1m") is history.latest
    assert history.base("5m").at == 0
    history.add(totals(95.0))
    assert history.base("1m").at == 90


def test_a_suspended_daemon_shows_a_gap():
    history = filled([Window("1m", 60.0)], [*range(30), *range(90, 100)])
    assert history.base("1m").at == 90


def test_time_that_runs_back_is_ignored():
    history = filled([Window("1m", 60.0)], [10.0, 20.0, 20.0, 5.0])
    assert history.latest.at == 20
    assert history.base("1m").at == 10


def test_a_poll_a_millisecond_early_does_not_double_the_spacing():
    history = filled([Window("1m", 60.0)], [second * 0.999 for second in range(61)])
    assert kept(history) == 61


def test_polls_faster_than_the_spacing_do_not_shorten_the_window():
    history = filled([Window("5m", 300.0)], range(900))
    assert kept(history) <= 65
    assert 599 <= history.base("5m").at < 599 + 300 / 64 + 1


def test_windows_share_their_entries():
    history = filled([Window("1m", 60.0), Window("5m", 300.0)], range(300))
    short, long = history._rings["1m"], history._rings["5m"]
    assert sum(any(entry is other for other in short) for entry in long) >= 10


@given(
    st.floats(1.0, 7200.0),
    st.lists(st.floats(0.01, 400.0), min_size=1, max_size=400),
)
def test_any_polling_keeps_few_entries_and_a_window_never_too_long(length, gaps):
    history, at, times = History([("w", length)]), 0.0, []
    for gap in gaps:
        at += gap
        times.append(at)
        history.add(totals(at))
        base = history.base("w")
        assert kept(history) <= 65
        assert at - length <= base.at <= at
        oldest = min(time for time in times if time >= at - length)
        assert base.at - oldest < length / 64 + max(gaps)


def test_other_windows_begin_with_what_the_old_ones_kept():
    history = filled([Window("1m", 60.0), Window("5m", 300.0)], range(0, 605, 5))
    other = history.with_windows([Window("30s", 30.0), Window("5m", 300.0), Window("10m", 600.0)])
    assert other.latest is history.latest and other.labels == ("30s", "5m", "10m")
    assert other.base("30s").at == 570
    assert other.base("5m") is history.base("5m")
    assert other.base("10m").at == 300, "all that was kept, and no more"
    other.add(totals(605))
    assert other.base("5m").at == 305 and history.base("5m").at == 300, "the old one is not written to"


def test_a_history_without_readings_has_none_over_other_windows():
    assert History([Window("1m", 60.0)]).with_windows([Window("5m", 300.0)]).latest is None
