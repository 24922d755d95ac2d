"""Byte counters of 32 bits: followed through their wraps, and silent where these cannot be counted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.driver.nvml.counter32 import RANGE, link_limit, unwrap
from exporter.model import Missing

START = 4_000_000_000


def unwrapped(rates, *, max_rate=None, measured=False, gap=1.0, error=1.0):
    """Return what is shown, and what is true, at each look but the first; ``rates``: bytes per second between looks."""
    true, at, now, results = START, 100.0, unwrap(None, 100.0, START % RANGE, max_rate=max_rate), []
    for rate in rates:
        true, at = true + int(rate * gap), at + gap
        shown = int(rate * gap) / gap * error if measured else None
        now = unwrap(now, at, true % RANGE, max_rate=max_rate, reference_rate=shown)
        results.append((now.total if now.why is None else now.why, true))
    return results


@given(st.lists(st.floats(0.0, 63e9), min_size=1, max_size=40), st.floats(0.97, 1.03))
def test_with_a_rate_measured_otherwise_every_lap_is_counted(rates, error):
    assert all(total == true for total, true in unwrapped(rates, max_rate=63e9, measured=True, error=error))


@given(st.lists(st.floats(0.0, 2e9), min_size=1, max_size=40))
def test_a_link_too_slow_for_a_second_lap_needs_no_other_measure(rates):
    assert all(total == true for total, true in unwrapped(rates, max_rate=2e9))
    assert all(total == true for total, true in unwrapped([rate * 10 for rate in rates], max_rate=20e9, gap=0.1))


@pytest.mark.parametrize("max_rate", [None, 4.2e9, 31.5e9])
def test_without_either_there_is_no_total(max_rate):
    assert {total for total, _ in unwrapped([6e9] * 20, max_rate=max_rate)} == {Missing.UNVERIFIED}


def test_it_goes_on_where_the_laps_can_be_counted_again():
    now = unwrap(None, 100.0, 5.0, max_rate=63e9)
    assert now.why is Missing.STARTING
    lost = unwrap(now, 101.0, 7.0, max_rate=63e9)
    assert lost.why is Missing.UNVERIFIED
    results = unwrap(lost, 102.0, 9.0, max_rate=63e9, reference_rate=10.0)
    assert (
        results.why is None
        and unwrap(results, 103.0, 19.0, max_rate=63e9, reference_rate=10.0).total == results.total + 10.0
    )


def test_a_counter_that_was_set_back_starts_anew():
    first = unwrap(None, 100.0, 2e9, max_rate=1e9)
    again = unwrap(first, 101.0, 5.0, max_rate=1e9)
    assert (again.total, again.why) == (5.0, None)


def test_where_two_measures_contradict_each_other_nothing_is_shown_until_they_agree():
    first = unwrap(None, 100.0, 2e9, max_rate=63e9)
    back = unwrap(first, 101.0, 5.0, max_rate=63e9, reference_rate=1e6)
    assert (back.total, back.why) == (2e9 + 1e6, Missing.UNVERIFIED)
    well = unwrap(back, 102.0, 1e6 + 5.0, max_rate=63e9, reference_rate=1e6)
    assert (well.total, well.why) == (2e9 + 2e6, None)
    assert {total for total, _ in unwrapped([6e9] * 20, max_rate=63e9, measured=True, error=0.0)} == {
        Missing.UNVERIFIED
    }


@pytest.mark.parametrize(
    ("generation", "width", "gigabytes"), [(1, 16, 4.0), (3, 16, 15.75), (4, 8, 15.75), (5, 16, 63.0), (6, 16, 121.0)]
)
def test_a_link_carries_no_more_than_its_limit(generation, width, gigabytes):
    assert gigabytes <= link_limit(generation, width) / 1e9 <= gigabytes * 1.06
    assert link_limit(None, width) is None and link_limit(generation, None) is None
