"""Byte counters of 32 bits: followed through their wraps, and silent where these cannot be counted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.driver.nvml.counter32 import RANGE, follow, link_limit
from exporter.model import Missing

START = 4_000_000_000


def told(rates, *, most=None, measured=False, gap=1.0, error=1.0):
    """Give what is shown, and what is true, at each look but the first; ``rates``: bytes per second between looks."""
    true, at, now, found = START, 100.0, follow(None, 100.0, START % RANGE, most=most), []
    for rate in rates:
        true, at = true + int(rate * gap), at + gap
        shown = int(rate * gap) / gap * error if measured else None
        now = follow(now, at, true % RANGE, most=most, shown=shown)
        found.append((now.total if now.why is None else now.why, true))
    return found


@given(st.lists(st.floats(0.0, 63e9), min_size=1, max_size=40), st.floats(0.97, 1.03))
def test_with_a_rate_measured_otherwise_every_lap_is_counted(rates, error):
    assert all(total == true for total, true in told(rates, most=63e9, measured=True, error=error))


@given(st.lists(st.floats(0.0, 2e9), min_size=1, max_size=40))
def test_a_link_too_slow_for_a_second_lap_needs_no_other_measure(rates):
    assert all(total == true for total, true in told(rates, most=2e9))
    assert all(total == true for total, true in told([rate * 10 for rate in rates], most=20e9, gap=0.1))


@pytest.mark.parametrize("most", [None, 4.2e9, 31.5e9])
def test_without_either_there_is_no_total(most):
    assert {total for total, _ in told([6e9] * 20, most=most)} == {Missing.UNVERIFIED}


def test_it_goes_on_where_the_laps_can_be_counted_again():
    now = follow(None, 100.0, 5.0, most=63e9)
    assert now.why is Missing.STARTING
    lost = follow(now, 101.0, 7.0, most=63e9)
    assert lost.why is Missing.UNVERIFIED
    found = follow(lost, 102.0, 9.0, most=63e9, shown=10.0)
    assert found.why is None and follow(found, 103.0, 19.0, most=63e9, shown=10.0).total == found.total + 10.0


def test_a_counter_that_was_set_back_starts_anew():
    first = follow(None, 100.0, 2e9, most=1e9)
    again = follow(first, 101.0, 5.0, most=1e9)
    assert (again.total, again.why) == (5.0, None)


def test_where_two_measures_contradict_each_other_nothing_is_shown_until_they_agree():
    first = follow(None, 100.0, 2e9, most=63e9)
    back = follow(first, 101.0, 5.0, most=63e9, shown=1e6)
    assert (back.total, back.why) == (2e9 + 1e6, Missing.UNVERIFIED)
    well = follow(back, 102.0, 1e6 + 5.0, most=63e9, shown=1e6)
    assert (well.total, well.why) == (2e9 + 2e6, None)
    assert {total for total, _ in told([6e9] * 20, most=63e9, measured=True, error=0.0)} == {Missing.UNVERIFIED}


@pytest.mark.parametrize(
    ("generation", "width", "gigabytes"), [(1, 16, 4.0), (3, 16, 15.75), (4, 8, 15.75), (5, 16, 63.0), (6, 16, 121.0)]
)
def test_a_link_carries_no_more_than_its_limit(generation, width, gigabytes):
    assert gigabytes <= link_limit(generation, width) / 1e9 <= gigabytes * 1.06
    assert link_limit(None, width) is None and link_limit(generation, None) is None
