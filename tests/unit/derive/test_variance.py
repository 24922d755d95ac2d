"""Where unevenness arises: replicas, ranks or cards; by hand, by properties, and on simulated nodes."""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from math import isclose

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.derive.imbalance import SIGNALS
from exporter.derive.variance import CARD, RANK, REPLICA, variance_breakdown, variance_breakdowns
from exporter.model import EngineReading, GpuAssignment, Quantity, WindowFigures
from exporter.simulate.products import H100, LLAMA_8B
from exporter.simulate.records import ReplicaSpec, Scenario, Traffic
from exporter.simulate.scenarios import find
from tests.support.builders import card, replica
from tests.support.records import replace
from tests.support.virtual_node import VirtualNode


def own(name, *indexes, rank=""):
    return [GpuAssignment(uuid=f"GPU-{index:04d}", replica=name, rank=rank) for index in indexes]


def used(*values):
    return [card(index, utilization=value) for index, value in enumerate(values)]


def rows(cards, replicas, assignments):
    return {(row.model, row.signal): row for row in variance_breakdowns(cards, replicas, assignments)}


def busy(name, *running, model="m", rates=None):
    """A replica with one rank for each number of running requests."""
    ranks = {str(rank): {Quantity.REQUESTS_RUNNING: number} for rank, number in enumerate(running)}
    windows = {"1m": WindowFigures(seconds=60.0, rank_token_rates=rates)} if rates else {}
    return replica(
        name, reading=EngineReading(at=1000.0, engine="vllm", model=model, ranks=ranks), model=model, windows=windows
    )


# ── By hand ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_three_terms_are_those_of_a_nested_analysis_of_variance():
    values = [[[1.0, 2.0], [4.0]], [[6.0, 8.0], [9.0]]]  # mean 5; replicas 7/3 and 23/3; ranks 1.5, 4, 7, 9
    between_replicas = 3 * (7 / 3 - 5) ** 2 + 3 * (23 / 3 - 5) ** 2
    between_ranks = 2 * (1.5 - 7 / 3) ** 2 + (4 - 7 / 3) ** 2 + 2 * (7 - 23 / 3) ** 2 + (9 - 23 / 3) ** 2
    between_cards = 2 * 0.5**2 + 2 * 1.0**2
    total = sum((value - 5) ** 2 for value in (1, 2, 4, 6, 8, 9))
    assert total == pytest.approx(between_replicas + between_ranks + between_cards)
    coefficient, shares = variance_breakdown(values)
    assert shares == pytest.approx(
        {REPLICA: between_replicas / total, RANK: between_ranks / total, CARD: between_cards / total}
    )
    assert coefficient == pytest.approx((total / 6) ** 0.5 / 5)


def test_a_replica_of_four_gpus_weighs_twice_as_much_as_one_of_two():
    _, shares = variance_breakdown([[[1.0, 1.0, 1.0, 2.0]], [[4.0, 5.0]]])
    mean = 14 / 6
    between = 4 * (1.25 - mean) ** 2 + 2 * (4.5 - mean) ** 2
    within = 3 * 0.25**2 + 0.75**2 + 2 * 0.5**2
    assert shares == pytest.approx({REPLICA: between / (between + within), CARD: within / (between + within)})


def test_one_busy_and_one_idle_replica_are_the_gateways_doing():
    row = rows(used(0.9, 0.9, 0.1, 0.1), [replica("a"), replica("b")], own("a", 0, 1) + own("b", 2, 3))
    assert row["m", "utilization"].shares == pytest.approx({REPLICA: 1.0, CARD: 0.0})


def test_ranks_that_differ_alike_in_every_replica_are_the_schedulers_doing():
    assignments = own("a", 0, rank="0") + own("a", 1, rank="1") + own("b", 2, rank="0") + own("b", 3, rank="1")
    row = rows(used(0.9, 0.3, 0.9, 0.3), [replica("a"), replica("b")], assignments)["m", "utilization"]
    assert row.shares == pytest.approx({REPLICA: 0.0, RANK: 1.0})
    assert row.coefficient_of_variation == pytest.approx(0.5)


def test_gpus_whose_rank_is_not_known_are_one_rank():
    assignments = own("a", 0, 1) + own("a", 2, 3, rank="1")
    shares = rows(used(0.2, 0.4, 0.8, 0.8), [replica("a")], assignments)["m", "utilization"].shares
    assert shares == pytest.approx({RANK: 0.25 / 0.27, CARD: 0.02 / 0.27})


def test_a_gpu_of_several_replicas_is_left_out():
    assignments = own("a", 0, 1) + own("b", 1, 2)
    shares = rows(used(0.2, 0.9, 0.4), [replica("a"), replica("b")], assignments)["m", "utilization"].shares
    assert shares == pytest.approx({REPLICA: 1.0})


def test_a_gpu_of_several_ranks_is_in_a_rank_of_its_own():
    assignments = own("a", 0, rank="0") + own("a", 1, rank="1") + own("a", 2, 3, rank="0") + own("a", 2, 3, rank="1")
    shares = rows(used(0.2, 0.4, 0.7, 0.9), [replica("a")], assignments)["m", "utilization"].shares
    assert shares.keys() == {RANK, CARD}
    assert shares[CARD] == pytest.approx(0.02 / 0.29)


def test_models_are_kept_apart_and_an_unknown_model_is_not_compared():
    replicas = [replica("a", model="big"), replica("b", model="small"), replica("c", model="")]
    result = rows(used(0.9, 0.9, 0.1, 0.1, 0.5, 0.7), replicas, own("a", 0, 1) + own("b", 2, 3) + own("c", 4, 5))
    assert {model for model, _ in result} == {"big", "small"}
    assert rows([], [busy("a", 1.0, model=""), busy("b", 9.0, model="")], []) == {}
    assert all(row.coefficient_of_variation == 0.0 and not row.shares for row in result.values())


def test_a_lost_gpu_and_a_number_that_is_none_are_left_to_the_others():
    cards = [*used(0.9, 0.5, float("nan")), card(3, up=False)]
    row = rows(cards, [replica("a")], own("a", 0, 1, 2, 3))["m", "utilization"]
    assert row.coefficient_of_variation == pytest.approx(0.2 / 0.7)
    assert variance_breakdowns(used(0.9), [replica("a")], own("a", 0)) == ()
    assert variance_breakdowns([], [], own("ghost", 0)) == ()


def test_request_load_has_no_layer_of_gpus():
    result = rows([], [busy("a", 8.0, 4.0), busy("b", 0.0, 0.0)], [])["m", "requests_running"]
    assert result.shares == pytest.approx({REPLICA: 36 / 44, RANK: 8 / 44})
    assert rows([], [busy("a", 8.0), busy("b", 2.0)], [])["m", "requests_running"].shares == {REPLICA: 1.0}


def test_a_replica_that_does_not_answer_has_no_request_load_but_keeps_its_gpus():
    silent = replace(busy("b", 5.0), reading=None)
    result = rows(used(0.9, 0.1), [busy("a", 8.0), silent], own("a", 0) + own("b", 1))
    assert ("m", "requests_running") not in result
    assert result["m", "utilization"].shares == {REPLICA: 1.0}


def test_token_rates_of_different_windows_are_not_mixed():
    late = replace(busy("b", 1.0), windows={"5m": WindowFigures(seconds=60.0, rank_token_rates={"0": 9.0})})
    both = {label: WindowFigures(seconds=60.0, rank_token_rates={"0": 3.0}) for label in ("1m", "5m")}
    early = replace(busy("a", 1.0), windows=both)
    assert rows([], [early, late], [])["m", "generation_token_rate"].coefficient_of_variation == pytest.approx(0.5)
    assert ("m", "generation_token_rate") not in rows([], [busy("a", 1.0, rates={"0": 3.0}), late], [])


# ── Properties ──────────────────────────────────────────────────────────────────────────────────────────────────

numbers = st.just(0.0) | st.floats(1e-9, 1e12) | st.floats(0.1, 1)
nested = st.lists(st.lists(st.lists(numbers, max_size=4), max_size=3), max_size=4)


@given(nested)
def test_shares_add_to_one_and_none_is_negative(values):
    breakdown = variance_breakdown(values)
    if breakdown is not None and breakdown[1]:
        assert sum(breakdown[1].values()) == pytest.approx(1.0)
        assert min(breakdown[1].values()) >= 0.0


def exactly(values):
    """The same decomposition in rational numbers: squared coefficient of variation, and all three shares."""
    team = [[[Fraction(value) for value in rank] for rank in ranks if rank] for ranks in values]
    team = [ranks for ranks in team if ranks]
    flat = [[value for rank in ranks for value in rank] for ranks in team]
    every = [value for ranks in flat for value in ranks]
    mean = sum(every) / len(every)
    total = sum((value - mean) ** 2 for value in every)
    terms = {
        REPLICA: sum(len(ranks) * (sum(ranks) / len(ranks) - mean) ** 2 for ranks in flat),
        RANK: sum(
            len(rank) * (sum(rank) / len(rank) - sum(all_) / len(all_)) ** 2
            for ranks, all_ in zip(team, flat)
            for rank in ranks
        ),
        CARD: sum((value - sum(rank) / len(rank)) ** 2 for ranks in team for rank in ranks for value in rank),
    }
    assert sum(terms.values()) == total  # the decomposition itself
    return total / len(every) / mean**2, {layer: term / total for layer, term in terms.items()}


@given(nested)
def test_terms_and_coefficient_are_those_of_exact_arithmetic(values):
    breakdown = variance_breakdown(values)
    assert (breakdown is None) == (sum(len(rank) for ranks in values for rank in ranks) < 2)
    if breakdown is not None and breakdown[0]:
        square, shares = exactly(values)
        assert breakdown[0] == pytest.approx(float(square) ** 0.5, rel=1e-6, abs=1e-9)
        if breakdown[0] > 1e-6:  # nearer to nothing, rounding decides
            for layer, share in shares.items():
                assert breakdown[1].get(layer, 0.0) == pytest.approx(float(share), rel=1e-6, abs=1e-9)


@given(st.data())
def test_the_order_of_replicas_ranks_and_gpus_does_not_matter(data):
    values = data.draw(nested)
    shuffled = [
        [data.draw(st.permutations(rank)) for rank in data.draw(st.permutations(team))]
        for team in data.draw(st.permutations(values))
    ]
    a, b = variance_breakdown(values), variance_breakdown(shuffled)
    assert (a is None) == (b is None)
    if a is not None:
        assert a[0] == pytest.approx(b[0])
        assert a[1] == pytest.approx(b[1])


@given(nested, st.floats(1e-6, 1e6))
def test_the_unit_of_a_signal_does_not_matter(values, factor):
    scaled = [[[value * factor for value in rank] for rank in team] for team in values]
    a, b = variance_breakdown(values), variance_breakdown(scaled)
    assert (a is None) == (b is None)
    if a is not None and a[0] and a[0] > 1e-6 and b[0]:  # nearer to nothing, rounding decides
        assert a[0] == pytest.approx(b[0], rel=1e-6)
        assert a[1] == pytest.approx(b[1], rel=1e-6, abs=1e-6)


@given(st.lists(st.lists(numbers, max_size=4), max_size=4))
def test_a_single_replica_has_no_share_between_replicas(team):
    breakdown = variance_breakdown([team])
    assert breakdown is None or REPLICA not in breakdown[1]


@given(st.lists(st.lists(numbers, max_size=4), max_size=4))
def test_a_single_rank_has_no_share_between_ranks(teams):
    breakdown = variance_breakdown([[rank] for rank in teams])
    assert breakdown is None or RANK not in breakdown[1]


@given(st.lists(st.lists(numbers, max_size=4), max_size=4))
def test_a_single_gpu_has_no_share_between_gpus(teams):
    breakdown = variance_breakdown([[[value] for value in ranks] for ranks in teams])
    assert breakdown is None or CARD not in breakdown[1]


@given(st.floats(0, 1e300), st.integers(1, 4), st.integers(1, 3), st.integers(1, 4))
def test_equal_gpus_have_no_shares(value, replicas, ranks, cards):
    breakdown = variance_breakdown([[[value] * cards] * ranks] * replicas)
    if replicas * ranks * cards > 1:
        assert breakdown == ((0.0 if value else None), {})


def test_a_difference_that_is_only_rounding_is_none():
    assert variance_breakdown([[[0.1 + 0.2, 0.3]], [[0.3, 0.3]]]) == (0.0, {})


def test_the_largest_numbers_there_are_overflow_nothing():
    assert variance_breakdown([[[1.7e308, 1.7e308]], [[0.0, 0.0]]]) == (1.0, {REPLICA: 1.0, CARD: 0.0})


@given(st.data())
def test_the_order_of_gpus_replicas_and_owners_does_not_matter(data):
    cards = [
        card(index, **{s.value: data.draw(numbers) for s in data.draw(st.sets(st.sampled_from(SIGNALS)))})
        for index in range(data.draw(st.integers(0, 5)))
    ]
    replicas = [busy(name, *data.draw(st.lists(numbers, max_size=3))) for name in "abc"]
    triple = st.tuples(st.sampled_from("abc"), st.integers(0, 5), st.sampled_from(("", "0", "1")))
    assignments = [own(name, index, rank=rank)[0] for name, index, rank in data.draw(st.lists(triple, max_size=8))]
    plain = rows(cards, replicas, assignments)
    mixed = rows(*(data.draw(st.permutations(part)) for part in (cards, replicas, assignments)))
    assert plain.keys() == mixed.keys()
    for key, row in plain.items():
        assert row.coefficient_of_variation == pytest.approx(mixed[key].coefficient_of_variation)
        assert row.shares == pytest.approx(mixed[key].shares)


# ── Simulated nodes ─────────────────────────────────────────────────────────────────────────────────────────────

LOAD = ("utilization", "power", "requests_running", "generation_token_rate")
SKEW = find("skew").replicas[0]
FOUR = (12.6, 9.0, 6.7, 3.1)  # the shares that a scheduler gives four ranks


def two_replicas(name, rates, shares):
    """Two replicas of four ranks, one card each; ``rates`` is what the gateway sends to each."""
    replicas = tuple(
        ReplicaSpec(
            name=f"chat-{number}",
            model=LLAMA_8B,
            traffic=replace(SKEW.traffic, rate=rate, shares=shares),
            ranks=tuple((4 * number + rank,) for rank in range(4)),
        )
        for number, rate in enumerate(rates)
    )
    return Scenario(name=name, summary="", product=H100, replicas=replicas)


@cache
def lived(name):
    scenarios = {
        "gateway": two_replicas("gateway", (24.0, 0.2), ()),
        "scheduler": two_replicas("scheduler", (28.0, 28.0), FOUR),
        "group": Scenario(
            name="group",
            summary="",
            product=H100,
            replicas=(ReplicaSpec(name="chat", model=LLAMA_8B, traffic=Traffic(rate=8.0), ranks=((0, 1, 2, 3),)),),
            busy_ratio=(1.0, 0.7, 0.6, 0.5, 1.0, 1.0, 1.0, 1.0),
        ),
    }
    snapshot = VirtualNode(scenarios.get(name, name), seed=1).live_until(75.0)
    return {row.signal: row for row in snapshot.variance_breakdowns}


@pytest.mark.parametrize("signal", LOAD)
def test_the_skew_of_the_field_is_imbalance_between_ranks(signal):
    row = lived("skew")[signal]
    assert row.shares == {RANK: 1.0}
    assert row.coefficient_of_variation > 0.1


@pytest.mark.parametrize("signal", LOAD)
def test_a_gateway_that_sends_one_replica_everything_is_imbalance_between_replicas(signal):
    row = lived("gateway")[signal]
    assert row.shares[REPLICA] > 0.7 > 0.3 > row.shares[RANK]
    assert row.coefficient_of_variation > 0.2


@pytest.mark.parametrize("signal", LOAD)
def test_a_scheduler_that_prefers_the_first_rank_of_each_of_two_replicas_is_imbalance_between_ranks(signal):
    row = lived("scheduler")[signal]
    assert row.shares[RANK] > 0.7 > 0.3 > row.shares[REPLICA]
    assert isclose(sum(row.shares.values()), 1.0)


def test_unequal_gpus_of_one_group_are_imbalance_between_gpus():
    row = lived("group")["utilization"]
    assert row.shares == {CARD: 1.0}
    assert row.coefficient_of_variation > 0.2
    assert "requests_running" not in lived("group")


def test_a_healthy_node_shows_shares_of_little():
    assert lived("healthy")["utilization"].coefficient_of_variation < 0.15
