"""Unevenness between cards: inside groups first."""

from __future__ import annotations

from math import nan, sqrt
from statistics import pstdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.derive.imbalance import SIGNALS, group_imbalances
from exporter.model import CardFacts, CardReading, CardState, GpuAssignment, GpuLabels, Signal, SourceStatus

USE = Signal.UTILIZATION
POWER = Signal.POWER


def card(index: int, signals=None, **named) -> CardState:
    uuid = f"GPU-{index}"
    signals = named if signals is None else signals
    values = {Signal(name): value for name, value in signals.items()}
    return CardState(
        facts=CardFacts(index=index, uuid=uuid),
        status=SourceStatus(source=f"gpu:{uuid}", up=True),
        reading=CardReading(at=1.0, signals=values),
        last_read_at=1.0,
        labels=GpuLabels(str(index), uuid),
    )


def lost(index: int) -> CardState:
    uuid = f"GPU-{index}"
    status = SourceStatus(source=f"gpu:{uuid}", up=False, reason="lost")
    return CardState(
        facts=CardFacts(index=index, uuid=uuid),
        status=status,
        reading=None,
        last_read_at=None,
        labels=GpuLabels(str(index), uuid),
    )


def used(*values) -> list[CardState]:
    return [card(index, {USE: value}) for index, value in enumerate(values)]


def owns(replica: str, *indexes: int, rank: str = "") -> list[GpuAssignment]:
    return [GpuAssignment(uuid=f"GPU-{index}", replica=replica, rank=rank) for index in indexes]


def by_group(cards, assignments):
    return {row.group: row for row in group_imbalances(cards, assignments)}


def test_a_group_is_measured_with_the_population_standard_deviation():
    row = by_group(used(0.98, 0.65, 0.60, 0.58), owns("a", 0, 1, 2, 3))["a"]
    spread = row.spreads[USE]
    assert row.scope == "replica"
    assert spread.stddev == pytest.approx(pstdev([0.98, 0.65, 0.60, 0.58]))
    assert spread.spread == pytest.approx(0.40)
    assert spread.coefficient_of_variation == pytest.approx(spread.stddev / 0.7025)
    assert spread.max_to_mean == pytest.approx(0.98 / 0.7025)


def test_a_gpu_deviates_from_the_median_of_its_group():
    row = by_group(used(0.5, 0.5, 0.5, 0.25), owns("a", 0, 1, 2, 3))["a"]
    assert row.deviations[USE] == {"GPU-0": 0.0, "GPU-1": 0.0, "GPU-2": 0.0, "GPU-3": -0.5}
    assert by_group(used(0.2, 0.4), owns("a", 0, 1))["a"].deviations[USE]["GPU-0"] == pytest.approx(-1 / 3)


def test_a_median_of_zero_gives_no_deviation():
    row = by_group(used(0.0, 0.0, 0.9), owns("a", 0, 1, 2))["a"]
    assert USE not in row.deviations
    assert row.spreads[USE].spread == 0.9


def test_all_zero_has_no_ratio_to_the_mean():
    spread = by_group(used(0.0, 0.0), owns("a", 0, 1))["a"].spreads[USE]
    assert (spread.stddev, spread.coefficient_of_variation, spread.max_to_mean) == (0.0, None, None)


def test_two_models_and_two_idle_gpus_are_balanced_when_each_group_is():
    rows = by_group(used(0.9, 0.9, 0.9, 0.9, 0.3, 0.3, 0.0, 0.0), owns("big", 0, 1, 2, 3) + owns("small", 4, 5))
    node = rows[""].spreads[USE]
    assert rows[""].scope == "node"
    assert (node.stddev, node.spread, node.coefficient_of_variation, node.max_to_mean) == (0.0, 0.0, 0.0, 1.0)


def test_the_node_pools_the_deviations_inside_its_groups():
    rows = by_group(used(1.0, 0.8, 0.5, 0.1), owns("a", 0, 1) + owns("b", 2, 3))
    node = rows[""].spreads[USE]
    assert node.stddev == pytest.approx(sqrt((0.1**2 * 2 + 0.2**2 * 2) / 4))
    assert node.spread == pytest.approx(0.4)
    assert node.coefficient_of_variation == pytest.approx(node.stddev / 0.6)
    assert node.max_to_mean == pytest.approx(0.5 / 0.3)
    assert rows[""].deviations == {}


def test_without_any_ownership_all_gpus_are_one_group():
    (node,) = group_imbalances(used(0.2, 0.6), [])
    assert (node.scope, node.group) == ("node", "")
    assert node.spreads[USE].stddev == pytest.approx(0.2)
    assert node.deviations[USE] == pytest.approx({"GPU-0": -0.5, "GPU-1": 0.5})


def test_owners_of_unknown_gpus_are_no_ownership():
    (node,) = group_imbalances(used(0.2, 0.6), owns("ghost", 7, 8))
    assert node.spreads[USE].stddev == pytest.approx(0.2)


def test_gpus_of_no_group_are_left_out_once_a_group_is_known():
    rows = by_group(used(0.5, 0.5, 0.0), owns("a", 0, 1))
    assert rows[""].spreads[USE].stddev == 0.0


def test_a_gpu_of_two_replicas_counts_in_both():
    rows = by_group(used(0.2, 0.4, 0.8), owns("a", 0, 1) + owns("b", 1, 2))
    assert rows["a"].spreads[USE].stddev == pytest.approx(0.1)
    assert rows["b"].spreads[USE].stddev == pytest.approx(0.2)
    assert rows[""].spreads[USE].stddev == pytest.approx(sqrt((2 * 0.1**2 + 2 * 0.2**2) / 4))


def test_two_ranks_of_one_replica_on_a_gpu_count_it_once():
    once = group_imbalances(used(0.2, 0.8), owns("a", 0, 1))
    assert group_imbalances(used(0.2, 0.8), owns("a", 0, 1, rank="0") + owns("a", 0, rank="1")) == once


def test_a_lost_gpu_leaves_its_group_to_the_others():
    rows = by_group([*used(0.5, 0.5), lost(2)], owns("a", 0, 1, 2))
    assert rows["a"].deviations[USE].keys() == {"GPU-0", "GPU-1"}
    assert group_imbalances([*used(0.5), lost(1)], owns("a", 0, 1)) == ()
    assert group_imbalances([lost(0), lost(1)], []) == ()


def test_empty_and_single_give_nothing():
    assert group_imbalances([], []) == ()
    assert group_imbalances(used(0.5), []) == ()
    assert group_imbalances(used(0.5), owns("a", 0)) == ()


def test_one_gpu_replicas_have_no_row_but_a_balanced_node():
    (node,) = group_imbalances(used(0.1, 0.9), owns("a", 0) + owns("b", 1))
    assert node.scope == "node"
    assert node.spreads[USE].stddev == 0.0


def test_a_signal_that_one_gpu_lacks_is_compared_among_the_rest():
    cards = [card(0, utilization=0.5, power=300.0), card(1, utilization=0.7, power=500.0), card(2, utilization=0.9)]
    row = by_group(cards, owns("a", 0, 1, 2))["a"]
    assert row.spreads[POWER].stddev == 100.0
    assert row.deviations[POWER].keys() == {"GPU-0", "GPU-1"}
    lonely = by_group([card(0, utilization=0.5, power=300.0), card(1, utilization=0.7)], owns("a", 0, 1))["a"]
    assert POWER not in lonely.spreads
    assert POWER not in lonely.deviations


def test_a_number_that_is_none_spoils_nothing():
    row = by_group(used(0.5, nan, 0.7), owns("a", 0, 1, 2))["a"]
    assert row.spreads[USE].stddev == pytest.approx(0.1)
    assert row.deviations[USE].keys() == {"GPU-0", "GPU-2"}


# ── Properties ──────────────────────────────────────────────────────────────────────────────────────────────────

ratios = st.lists(st.floats(0, 1), min_size=2, max_size=16)


@given(st.data())
def test_the_order_of_gpus_and_owners_does_not_matter(data):
    cards = [
        card(
            index, {signal: data.draw(st.floats(0, 1e12)) for signal in data.draw(st.sets(st.sampled_from(SIGNALS)))}
        )
        for index in range(data.draw(st.integers(0, 6)))
    ]
    pair = st.tuples(st.integers(0, 6), st.sampled_from("abc"))
    assignments = [GpuAssignment(uuid=f"GPU-{i}", replica=r) for i, r in data.draw(st.lists(pair, max_size=10))]
    assert group_imbalances(
        data.draw(st.permutations(cards)), data.draw(st.permutations(assignments))
    ) == group_imbalances(cards, assignments)


@given(ratios)
def test_a_ratio_never_deviates_by_more_than_one_half(values):
    for row in group_imbalances(used(*values), owns("a", *range(len(values)))):
        assert 0 <= row.spreads[USE].stddev <= 0.5 + 1e-12
        assert 0 <= row.spreads[USE].spread <= 1


@given(st.floats(0, 1e12), st.integers(2, 16))
def test_equal_gpus_are_exactly_balanced(value, count):
    row = group_imbalances(used(*[value] * count), owns("a", *range(count)))[0]
    spread = row.spreads[USE]
    assert (spread.stddev, spread.spread) == (0.0, 0.0)
    assert set(row.deviations.get(USE, {}).values()) <= {0.0}
    assert spread.max_to_mean == (1.0 if value else None)


@given(st.lists(st.floats(0.001, 1000), min_size=2, max_size=12), st.floats(0.01, 1e6))
def test_scaled_signals_keep_their_ratios_and_scale_their_spreads(values, factor):
    plain = group_imbalances(used(*values), [])[0]
    scaled = group_imbalances(used(*(value * factor for value in values)), [])[0]
    a, b = plain.spreads[USE], scaled.spreads[USE]
    assert b.stddev == pytest.approx(a.stddev * factor, rel=1e-6, abs=1e-9 * factor * max(values))
    assert b.spread == pytest.approx(a.spread * factor, rel=1e-6, abs=1e-9 * factor * max(values))
    assert b.coefficient_of_variation == pytest.approx(a.coefficient_of_variation, rel=1e-6, abs=1e-9)
    assert b.max_to_mean == pytest.approx(a.max_to_mean)
    assert scaled.deviations[USE] == pytest.approx(plain.deviations[USE], rel=1e-6, abs=1e-9)


@given(st.lists(ratios, min_size=1, max_size=4), st.floats(0.1, 10))
def test_the_node_ignores_how_far_its_groups_are_apart(teams, shift):
    def node(offsets):
        values = [value + offset for team, offset in zip(teams, offsets) for value in team]
        assignments, start = [], 0
        for number, team in enumerate(teams):
            assignments += owns(str(number), *range(start, start + len(team)))
            start += len(team)
        return by_group(used(*values), assignments)[""].spreads[USE]

    near, far = node([0.0] * len(teams)), node([shift * number for number in range(len(teams))])
    assert far.stddev == pytest.approx(near.stddev, abs=1e-9)
    assert far.spread == pytest.approx(near.spread, abs=1e-9)
