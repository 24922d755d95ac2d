"""Queries refuse what no metric has, and what they write is read back as it was meant."""

from __future__ import annotations

import promql_parser
import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.catalog import metrics as m
from exporter.catalog.spec import MetricKind, Unit
from exporter.errors import QueryError
from exporter.promql import (
    TARGET,
    UP,
    ExternalMetric,
    absent,
    aggregate,
    and_on,
    avg_by,
    binary,
    bottomk,
    buckets,
    changes,
    clamp_max,
    count_by,
    delta,
    deriv,
    histogram_quantile,
    increase,
    join,
    label_replace,
    labels_of,
    no_regex,
    number,
    observations,
    over_time,
    rate,
    regex,
    resets,
    select,
    since,
    sum_by,
    topk,
    total,
    unless,
    until,
    vector,
    without_value,
)  # fmt: skip

UTIL, MEMORY, POWER = (
    select(metric) for metric in (m.GPU_UTILIZATION_RATIO, m.GPU_MEMORY_USED_BYTES, m.GPU_POWER_WATTS)
)
ENERGY = select(m.GPU_ENERGY_JOULES_TOTAL)
FIRST = m.LLM_TIME_TO_FIRST_TOKEN_SECONDS
CARD = ("job", "instance", "gpu", "uuid")


@pytest.mark.parametrize(
    ("write", "why"),
    [
        (lambda: select(m.GPU_UP, replica="a"), "no label 'replica'"),
        (lambda: select(FIRST), "histogram"),
        (lambda: buckets(m.GPU_UP), "no histogram"),
        (lambda: sum_by(UTIL, "replica"), "no label 'replica'"),
        (lambda: sum_by(ENERGY, "instance"), "take its rate first"),
        (lambda: over_time("avg", ENERGY, "5m"), "take its rate first"),
        (lambda: delta(ENERGY, "5m"), "use increase"),
        (lambda: deriv(ENERGY, "5m"), "use rate"),
        (lambda: rate(UTIL, "5m"), "takes a counter"),
        (lambda: rate(rate(ENERGY, "5m"), "5m"), "takes a counter"),
        (lambda: resets(UTIL, "5m"), "takes a counter"),
        (lambda: rate(ENERGY, "5 minutes"), "no duration"),
        (lambda: ENERGY.offset("yesterday"), "no duration"),
        (lambda: sum_by(UTIL).offset("1d"), "offset belongs to a selector"),
        (lambda: POWER + MEMORY, "watts against bytes"),
        (lambda: UTIL > POWER, "ratio against watts"),
        (lambda: UTIL / select(m.LLM_UP), "can never match"),
        (lambda: and_on(UTIL, select(m.LLM_UP), on=("replica",)), "no label 'replica'"),
        (lambda: and_on(UTIL, number(1), on=("job",)), "no labels to match"),
        (lambda: binary("and", UTIL, 1), "no labels to match"),
        (lambda: join(UTIL, select(m.GPU_REPLICA_INFO), on=CARD, group_left=("version",)), "no label 'version'"),
        (lambda: histogram_quantile(0.99, sum_by(rate(buckets(FIRST), "5m"), "model")), "no label 'le'"),
        (lambda: label_replace(UTIL, "a", "$1", "group", "(.+)"), "no label 'group'"),
        (lambda: aggregate("median", UTIL), "no aggregation"),
        (lambda: aggregate("sum", UTIL, by=("gpu",), without=("uuid",)), "either by or without"),
    ],
    ids=lambda value: value if isinstance(value, str) else "query",  # a function's text is its address
)
def test_a_query_that_could_not_work_is_refused_where_it_is_written(write, why):
    with pytest.raises(QueryError, match=why):
        write()


def test_labels_and_units_follow_the_query():
    per_model = sum_by(rate(buckets(FIRST, engine="vllm"), "5m"), "model", "le")
    p99 = histogram_quantile(0.99, per_model)
    assert (p99.labels, p99.unit, p99.per_second) == (frozenset({"model"}), Unit.SECONDS, False)
    watts = rate(ENERGY, "5m")
    assert (watts.unit, watts.per_second) == (Unit.WATTS, False)
    assert rate(select(m.GPU_IDLE_SECONDS_TOTAL), "5m").unit is Unit.RATIO
    assert (MEMORY / select(m.GPU_MEMORY_TOTAL_BYTES)).unit is Unit.RATIO
    tokens = rate(select(m.LLM_GENERATION_TOKENS_TOTAL), "5m")
    assert tokens.per_second
    assert increase(observations(FIRST), "5m").unit is Unit.NONE
    assert total(FIRST).unit is Unit.SECONDS
    owned = join(UTIL, select(m.GPU_REPLICA_INFO), on=CARD, group_left=("replica", "model"))
    assert owned.labels == labels_of(m.GPU_UTILIZATION_RATIO) | {"replica", "model"}
    assert count_by(UTIL, "instance").unit is Unit.NONE
    assert since(select(m.SHARDWATCH_SOURCE_LAST_SUCCESS_TIMESTAMP_SECONDS)).unit is Unit.SECONDS
    assert until(select(m.LLM_CERTIFICATE_EXPIRY_TIMESTAMP_SECONDS)).labels == labels_of(
        m.LLM_CERTIFICATE_EXPIRY_TIMESTAMP_SECONDS
    )


def test_absent_carries_what_was_matched_by_equality():
    assert absent(select(UP, job="shardwatch")).labels == frozenset({"job"})
    assert absent(select(UP, job=regex("shard.*"))).labels == frozenset()


def test_several_matchers_of_one_label_all_stand_there():
    text = str(select(m.LLM_UP, model=(regex("chat-.*"), without_value("chat-old"), no_regex("x|y"))))
    assert text == 'llm_up{model=~"chat-.*",model!="chat-old",model!~"x|y"}'
    promql_parser.parse(text)


def test_values_are_quoted():
    value = 'a"b\\c\nd'
    parsed = promql_parser.parse(str(select(m.LLM_UP, model=value)))
    assert [matcher.value for matcher in parsed.matchers.matchers] == [value]


def test_a_family_declared_elsewhere_is_checked_the_same_way():
    known = ExternalMetric(name="x_total", labels=TARGET | {"a"}, kind=MetricKind.COUNTER)
    assert str(increase(select(known, a="1"), "1h")) == 'increase(x_total{a="1"}[1h])'
    with pytest.raises(QueryError, match="no label 'b'"):
        select(known, b="1")


def test_ranges_stand_on_selectors_and_subqueries_on_the_rest():
    assert str(over_time("max", UTIL.offset("1d"), "5m")) == "max_over_time(gpu_utilization_ratio[5m] offset 1d)"
    assert str(over_time("max", avg_by(UTIL, "gpu"), "1h", step="1m")) == (
        "max_over_time(avg by (gpu) (gpu_utilization_ratio)[1h:1m])"
    )
    assert str(over_time("max", UTIL * 2, "1h")) == "max_over_time((gpu_utilization_ratio * 2)[1h:])"
    for expr in (changes(UTIL, "1h"), topk(3, UTIL), bottomk(1, UTIL), clamp_max(UTIL, 1), unless(UTIL, UTIL > 1)):
        promql_parser.parse(str(expr))


# Round trip: a tree of operators, written by us and read by somebody else's parser, is the same tree.
ATOMS = {"a": UTIL, "b": select(m.GPU_SM_ACTIVE_RATIO), "c": select(m.GPU_DRAM_ACTIVE_RATIO)}
OPERATORS = ("+", "-", "*", "/", "and", "or", "unless", ">", "<=", "==")
trees = st.recursive(
    st.sampled_from(sorted(ATOMS)), lambda inner: st.tuples(st.sampled_from(OPERATORS), inner, inner), max_leaves=8
)


def written(tree):
    if isinstance(tree, str):
        return ATOMS[tree]
    operator, left_side, right = tree
    return binary(operator, written(left_side).as_unit(Unit.RATIO), written(right).as_unit(Unit.RATIO))


def read(node):
    if isinstance(node, promql_parser.ParenExpr):
        return read(node.expr)
    if isinstance(node, promql_parser.BinaryExpr):
        return (str(node.op), read(node.lhs), read(node.rhs))
    return next(name for name, expr in ATOMS.items() if str(expr) == node.name)


@given(trees)
def test_precedence_and_parentheses_survive_the_round_trip(tree):
    assert read(promql_parser.parse(str(written(tree)))) == tree


def test_numbers_on_either_side_read_back():
    assert str(1 - UTIL) == "1 - gpu_utilization_ratio"
    assert str(1 / (1 - UTIL)) == "1 / (1 - gpu_utilization_ratio)"
    assert str((UTIL - 1) - (UTIL - 2)) == "gpu_utilization_ratio - 1 - (gpu_utilization_ratio - 2)"
    assert str(vector(1)) == "vector(1)"
    assert str(UTIL > 1e-9) == "gpu_utilization_ratio > 1e-09"
    promql_parser.parse(str(UTIL > 1e-9))
