"""Quantiles from bucket differences, against a plain transcription of PromQL's rules."""

from __future__ import annotations

from itertools import accumulate
from math import isclose, isnan, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.derive.latency import summarize
from exporter.model import Histogram

QUANTILES = (0.5, 0.95, 0.99, 0.999)


def histogram(bounds, counts) -> Histogram:
    return Histogram(bounds=tuple(bounds), counts=tuple(map(float, counts)))


def quantile(q, bounds, counts):
    return summarize(None, histogram(bounds, counts), [q]).quantiles.get(q)


def test_a_quantile_is_linear_inside_its_bucket():
    assert quantile(0.5, [1, 2, 4], [10, 30, 40, 40]) == pytest.approx(1.5)
    assert quantile(0.75, [1, 2, 4], [10, 30, 40, 40]) == 2.0


def test_the_first_bucket_starts_at_zero():
    assert quantile(0.5, [0.3, 1], [10, 10, 10]) == pytest.approx(0.15)


def test_a_first_bound_at_or_below_zero_is_itself_the_answer():
    assert quantile(0.5, [-1, 1], [10, 10, 10]) == -1.0
    assert quantile(0.5, [0, 1], [10, 10, 10]) == 0.0


def test_a_quantile_beyond_the_top_bucket_is_the_last_finite_bound_and_the_share_says_so():
    answer = summarize(None, histogram([1, 30], [1, 23, 100]), QUANTILES)
    assert answer.quantiles == dict.fromkeys(QUANTILES, 30.0)
    assert answer.overflow_ratio == pytest.approx(0.77)
    assert answer.observations == 100


def test_only_what_was_observed_after_the_base_counts():
    answer = summarize(histogram([1, 2], [100, 100, 100]), histogram([1, 2], [100, 110, 110]), [0.5])
    assert answer.quantiles == {0.5: 1.5}
    assert answer.observations == 10
    assert answer.overflow_ratio == 0.0


def test_without_observations_there_are_no_quantiles():
    same = histogram([1, 2], [3, 4, 5])
    for answer in (summarize(same, same, QUANTILES), summarize(None, histogram([1], [0, 0]), QUANTILES)):
        assert answer.quantiles == {}
        assert answer.observations == 0
        assert answer.overflow_ratio is None


def test_a_single_observation_is_enough():
    assert summarize(None, histogram([1, 2], [0, 1, 1]), [0.5]).quantiles == {0.5: 1.5}


def test_different_bounds_are_never_mixed():
    assert summarize(histogram([1, 2], [1, 1, 1]), histogram([1, 3], [5, 5, 5]), QUANTILES) is None
    assert summarize(None, histogram([], [5]), QUANTILES) is None


def test_increments_that_fall_with_the_bound_are_repaired_with_the_running_maximum():
    before, after = histogram([1, 2, 4], [0, 9, 10, 10]), histogram([1, 2, 4], [10, 14, 20, 20])
    answer = summarize(before, after, [0.5, 0.9])  # increments 10, 5, 10, 10
    assert answer.quantiles == {0.5: 0.5, 0.9: 0.9}


def test_two_counts_that_differ_only_by_rounding_are_one():
    rounded = [1e6, 1e6 * (1 + 1e-13), 1e6 * (1 + 1e-13)]
    assert quantile(1.0, [1, 2], rounded) == 1.0
    assert quantile(1.0, [1, 2], [1e6, 1e6 + 1, 1e6 + 1]) == 2.0


def test_quantile_zero_of_an_empty_first_bucket_is_absent():
    assert quantile(0.0, [1, 2], [0, 5, 5]) is None
    assert quantile(0.0, [1, 2], [5, 5, 5]) == 0.0
    assert quantile(1.0, [1, 2], [5, 5, 5]) == 1.0


def test_a_quantile_outside_zero_to_one_is_absent():
    assert summarize(None, histogram([1], [5, 5]), [-0.1, 1.1, nan]).quantiles == {}


# ── Properties ──────────────────────────────────────────────────────────────────────────────────────────────────


def almost_equal(a, b, epsilon=1e-12):
    if a == b:
        return True
    if a == 0 or b == 0:
        return False
    return abs(a - b) / (abs(a) + abs(b)) < epsilon


def promql(q, bounds, counts):
    counts = list(counts)
    highest = counts[0]
    for i in range(1, len(counts)):
        if almost_equal(highest, counts[i]) or counts[i] < highest:
            counts[i] = highest
        else:
            highest = counts[i]
    if counts[-1] == 0:
        return nan
    rank = q * counts[-1]
    b = next((i for i in range(len(bounds)) if counts[i] >= rank), len(bounds))
    if b == len(bounds):
        return bounds[-1]
    if b == 0 and bounds[0] <= 0:
        return bounds[0]
    start, count = 0.0, counts[b]
    if b > 0:
        start, count, rank = bounds[b - 1], count - counts[b - 1], rank - counts[b - 1]
    return start + (bounds[b] - start) * (rank / count) if count else nan


@st.composite
def two_states(draw):
    bounds = sorted(draw(st.sets(st.floats(-5, 5000).map(lambda x: round(x, 3)), min_size=1, max_size=20)))
    size = len(bounds) + 1
    numbers = st.one_of(st.integers(0, 10), st.integers(0, 10**12), st.floats(0, 1e6))
    old = list(accumulate(draw(st.lists(numbers, min_size=size, max_size=size))))
    more = draw(st.lists(numbers, min_size=size, max_size=size))  # not cumulative: read between increments
    return bounds, old, [a + b for a, b in zip(old, more)]


@given(two_states(), st.lists(st.floats(0, 1), min_size=1, max_size=4))
def test_quantiles_equal_promql_over_the_same_differences(states, quantiles):
    bounds, old, new = states
    answer = summarize(histogram(bounds, old), histogram(bounds, new), quantiles)
    differences = [float(b) - float(a) for a, b in zip(old, new)]
    for q in quantiles:
        expected = promql(q, bounds, differences)
        if isnan(expected):
            assert q not in answer.quantiles
        else:
            assert isclose(answer.quantiles[q], expected, rel_tol=1e-12, abs_tol=1e-12)


@given(two_states())
def test_quantiles_never_fall_with_q_and_stay_inside_the_bounds(states):
    bounds, _, new = states
    answer = summarize(None, histogram(bounds, new), QUANTILES)
    values = [answer.quantiles[q] for q in QUANTILES if q in answer.quantiles]
    assert values == sorted(values)
    assert all(min(0.0, bounds[0]) <= value <= bounds[-1] for value in values)
    assert answer.overflow_ratio is None or 0 <= answer.overflow_ratio <= 1
