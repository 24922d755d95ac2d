"""Clock event counters against the clock on the wall: which unit they run in, and whether they are what they should be."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.driver.nvml.counter_units import (
    DOUBT,
    ENOUGH_ACTIVE,
    MICROSECONDS,
    NANOSECONDS,
    UnitEvidence,
    is_plausible,
    update,
)

UNITS = st.sampled_from([NANOSECONDS, MICROSECONDS])
GAPS = st.lists(st.floats(0.2, 5.0), min_size=2, max_size=40)
BEFORE = st.floats(1.0, 1e7)  # seconds that the counter showed when we came


def watched(numbers, evidence=None, unit=None):
    """Extract in (at, raw, active) one after another."""
    evidence = evidence or UnitEvidence()
    for at, raw, active in numbers:
        evidence = update(evidence, at, raw, active=active, unit=unit)
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
    assert evidence.unit == (unit if sum(gaps) >= ENOUGH_ACTIVE else None) and not evidence.disproved
    if evidence.unit:
        assert evidence.value(None) == pytest.approx(begin + share * sum(gaps))


@given(UNITS, GAPS, BEFORE)
def test_before_it_has_shown_its_unit_a_counter_has_no_value_but_zero(unit, gaps, begin):
    evidence = watched(running(gaps, unit, begin, share=0.0, active=False))
    assert evidence.unit is None and evidence.value(None) is None and not evidence.disproved
    assert evidence.value(unit) == pytest.approx(begin)  # once another card has shown it
    assert watched([(1.0, 0.0, False)]).value(None) == 0.0


@given(UNITS, st.lists(st.floats(0.5, 5.0), min_size=32, max_size=40), BEFORE)
def test_a_counter_that_runs_with_time_without_its_reason_is_something_else(unit, gaps, begin):
    evidence = watched(running(gaps, unit, begin, active=False), unit=unit)
    assert evidence.disproved and evidence.value(unit) is None
    own = watched(running([1.0, 1.0, 1.0], unit, begin))
    numbers = [(own.at + at, own.raw + raw, active) for at, raw, active in running(gaps, unit, begin, active=False)]
    assert watched(numbers, own).disproved


def restless(interval, share, hours, seed, *, burst=0.05, unit=NANOSECONDS):
    """Inspect a reason that comes and goes many times between two looks: (at, raw, active), evenly spaced."""
    chance, seconds = random.Random(seed), 123.0
    deviation = (share * (1.0 - share) * burst / interval) ** 0.5
    for number in range(int(hours * 3600 / interval)):
        seconds += interval * min(1.0, max(0.0, chance.gauss(share, deviation)))
        yield number * interval, seconds / unit, chance.random() < share


@pytest.mark.parametrize("interval", [1.0, 5.0, 30.0])
@pytest.mark.parametrize("share", [0.02, 0.1, 0.15, 0.5, 0.93, 0.98])
def test_a_reason_that_comes_and_goes_between_the_looks_never_refutes_its_counter(interval, share):
    evidence = UnitEvidence()
    for at, raw, active in restless(interval, share, hours=6, seed=3):
        evidence = update(evidence, at, raw, active=active, unit=NANOSECONDS)
        assert not evidence.disproved, at
    if share > 0.9:
        assert evidence.unit == NANOSECONDS


@given(st.floats(0.0, 1.0), st.integers(0, 200), st.sampled_from([1.0, 5.0, 10.0]))
def test_one_burst_that_no_look_has_seen_refutes_nothing(burst, quiet, interval):
    evidence = watched(running([1.0] * 20, NANOSECONDS, 5.0))
    at, raw = evidence.at, evidence.raw
    for number in range(400):
        at += interval
        raw += burst / NANOSECONDS if number == quiet else 0.0
        evidence = update(evidence, at, raw, active=False)
        assert not evidence.disproved and evidence.value(None) == raw * NANOSECONDS


def test_without_a_known_unit_nothing_is_held_against_a_counter_that_rests():
    slow = watched(running([1.0] * 60, MICROSECONDS, 5.0, active=False))
    assert not slow.disproved and slow.value(None) is None


def test_a_rejected_counter_is_used_again_once_its_values_are_plausible():
    def on(evidence, share, seconds, *, active):
        steps = list(running([1.0] * seconds, NANOSECONDS, 0.0, share=share, active=active))
        return watched([(evidence.at + at - 99.0, evidence.raw + raw, bit) for at, raw, bit in steps], evidence)

    known = watched(running([1.0] * 5, NANOSECONDS, 5.0))
    ran = on(known, 1.0, 20, active=False)
    assert ran.disproved
    assert on(ran, 1.0, 60, active=True).disproved, "so does any clock"
    still = on(ran, 0.0, 20, active=False)
    assert not still.disproved and still.value(None) == pytest.approx(still.raw * NANOSECONDS)
    odd = on(watched([(1.0, 5.0, True)]), 0.05, 20, active=True)
    assert odd.disproved and odd.unit is None
    fitting = on(odd, 1.0, 20, active=True)
    assert not fitting.disproved and fitting.unit == NANOSECONDS


def test_a_counter_once_seen_to_run_as_nanoseconds_do_was_never_microseconds():
    seldom = watched(running([1.0] * 3, NANOSECONDS, 5.0, share=0.0007))
    assert seldom.unit == MICROSECONDS, "what else: 0.7 ms in each second, and active at each look"
    more = running([1.0] * 20, NANOSECONDS, 0.0)
    assert (
        watched([(seldom.at + at - 99.0, seldom.raw + raw, bit) for at, raw, bit in more], seldom).unit == NANOSECONDS
    )


def test_two_looks_far_apart_do_not_show_a_unit():
    assert watched(running([30.0], NANOSECONDS, 5.0)).unit is None
    assert watched(running([30.0, 30.0], NANOSECONDS, 5.0)).unit == NANOSECONDS


@given(
    st.floats(0.0, 1e4) | st.floats(3e6, 5e7) | st.floats(2e9, 1e15), st.lists(st.just(1.0), min_size=12, max_size=20)
)
def test_a_counter_that_fits_no_unit_while_its_reason_is_active_is_something_else(steps, gaps):
    numbers = [(float(place), 7.0 + steps * place, True) for place in range(len(gaps))]
    evidence = watched(numbers)
    assert len(gaps) - 1 >= DOUBT and evidence.disproved and evidence.value(NANOSECONDS) is None


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 1e18), st.none() | st.booleans()), max_size=60))
def test_whatever_a_driver_says_a_value_is_seconds_of_a_known_unit_or_none(numbers):
    at, evidence = 0.0, UnitEvidence()
    for gap, raw, active in numbers:
        at += gap
        evidence = update(evidence, at, raw, active=active)
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
    assert is_plausible(evidence, evidence.at + 1.0, evidence.raw + 1.0 / unit, unit)
    assert not is_plausible(evidence, evidence.at + 1.0, evidence.raw - 1.0, unit)
    assert not is_plausible(evidence, evidence.at + 1.0, evidence.raw + 9.0 / unit, unit)


def test_a_fall_starts_the_judgement_anew_and_keeps_the_unit():
    evidence = watched(running([1.0] * 4, NANOSECONDS, 50.0))
    fallen = update(evidence, evidence.at + 1.0, 5.0, active=True)
    assert fallen.unit == NANOSECONDS and fallen.seconds == 0.0 and fallen.reads == 0
