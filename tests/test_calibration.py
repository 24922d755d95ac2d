"""Clock event counters against the clock on the wall: which unit they run in, and whether they are what they should be."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.sources.driver.calibration import (
    DOUBT,
    ENOUGH_ACTIVE,
    MICROSECONDS,
    NANOSECONDS,
    Evidence,
    plausible,
    weigh,
    widened,
)

UNITS = st.sampled_from([NANOSECONDS, MICROSECONDS])
GAPS = st.lists(st.floats(0.2, 5.0), min_size=2, max_size=40)
BEFORE = st.floats(1.0, 1e7)  # seconds that the counter showed when we came


def watched(numbers, evidence=None):
    """Take in (at, raw, active) one after another."""
    evidence = evidence or Evidence()
    for at, raw, active in numbers:
        evidence = weigh(evidence, at, raw, active=active)
    return evidence


def running(gaps, unit, begin, *, share=1.0, active=True):
    at, seconds = 100.0, begin
    yield at, seconds / unit, active
    for gap in gaps:
        at, seconds = at + gap, seconds + gap * share
        yield at, seconds / unit, active


@given(UNITS, GAPS, BEFORE, st.floats(0.25, 1.0))
def test_a_counter_that_runs_with_time_while_its_reason_is_active_shows_its_unit(unit, gaps, begin, share):
    numbers = list(running(gaps, unit, begin, share=share))
    evidence = watched(numbers)
    assert evidence.unit == (unit if sum(gaps) >= ENOUGH_ACTIVE else None) and not evidence.refuted
    if evidence.unit:
        assert evidence.value(None) == pytest.approx(begin + share * sum(gaps))


@given(UNITS, GAPS, BEFORE)
def test_before_it_has_shown_its_unit_a_counter_has_no_value_but_zero(unit, gaps, begin):
    evidence = watched(running(gaps, unit, begin, share=0.0, active=False))
    assert evidence.unit is None and evidence.value(None) is None and not evidence.refuted
    assert evidence.value(unit) == pytest.approx(begin)  # once another card has shown it
    assert watched([(1.0, 0.0, False)]).value(None) == 0.0


@given(UNITS, st.lists(st.floats(0.2, 5.0), min_size=30, max_size=40), BEFORE)
def test_a_counter_that_runs_with_time_without_its_reason_is_something_else(unit, gaps, begin):
    evidence = watched(running(gaps, unit, begin, active=False))
    assert evidence.refuted and evidence.value(unit) is None


@given(
    st.floats(0.0, 1e4) | st.floats(3e6, 5e7) | st.floats(2e9, 1e15), st.lists(st.just(1.0), min_size=12, max_size=20)
)
def test_a_counter_that_fits_no_unit_while_its_reason_is_active_is_something_else(steps, gaps):
    numbers = [(float(place), 7.0 + steps * place, True) for place in range(len(gaps))]
    evidence = watched(numbers)
    assert len(gaps) - 1 >= DOUBT and evidence.refuted and evidence.value(NANOSECONDS) is None


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 1e18), st.none() | st.booleans()), max_size=60))
def test_whatever_a_driver_says_a_value_is_seconds_of_a_known_unit_or_none(numbers):
    at, evidence = 0.0, Evidence()
    for gap, raw, active in numbers:
        at += gap
        evidence = weigh(evidence, at, raw, active=active)
        assert evidence.unit in {None, NANOSECONDS, MICROSECONDS}
        assert evidence.value(None) in {None, 0.0, raw * (evidence.unit or 0.0)}


def test_bits_that_come_and_go_decide_nothing():
    numbers = [(float(n), n * 1e9 / 2 + 5, n % 2 == 0) for n in range(30)]
    assert watched(numbers).unit is None


def test_unknown_bits_decide_nothing():
    assert watched(running([1.0] * 30, NANOSECONDS, 5.0, active=None)).unit is None


@pytest.mark.parametrize("unit", [NANOSECONDS, MICROSECONDS])
def test_a_counter_never_goes_back_and_never_outruns_time(unit):
    evidence = watched(running([1.0] * 4, unit, 50.0))
    assert plausible(evidence, evidence.at + 1.0, evidence.raw + 1.0 / unit, unit)
    assert not plausible(evidence, evidence.at + 1.0, evidence.raw - 1.0, unit)
    assert not plausible(evidence, evidence.at + 1.0, evidence.raw + 9.0 / unit, unit)


def test_a_fall_starts_the_judgement_anew_and_keeps_the_unit():
    evidence = watched(running([1.0] * 4, NANOSECONDS, 50.0))
    fallen = weigh(evidence, evidence.at + 1.0, 5.0, active=True)
    assert fallen.unit == NANOSECONDS and fallen.active_seconds == 0.0


# ---- byte counters of 32 bits


@given(st.lists(st.integers(0, 2**31 - 2), min_size=1, max_size=50), st.integers(0, 2**32 - 2))
def test_a_narrow_counter_goes_on_through_its_wraps(steps, begin):
    before, wraps, true = float(begin), 0, begin
    for step in steps:
        true += step
        raw = float(true % 2**32)
        wide, wraps = widened(before, raw, wraps, 32)
        before = raw
        if wraps == true // 2**32:
            assert wide == true
        else:  # it fell from the lower half: taken for a reset, and never for more than was counted
            assert wide < true
            return


def test_a_fall_in_the_lower_half_is_a_reset():
    assert widened(2.0**31 - 1, 5.0, 3, 32) == (5.0, 0)
    assert widened(2.0**32 - 1, 5.0, 3, 32) == (5.0 + 4 * 2.0**32, 4)
    assert widened(None, 7.0, 0, 32) == (7.0, 0)
