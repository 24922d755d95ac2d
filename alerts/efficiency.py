"""Notes about money: cards that idle with a model loaded, cards that run half empty, tokens that became dear."""

from __future__ import annotations

from alerts.panel_ids import EFFICIENCY_COST, EFFICIENCY_IDLE, NODE_UTILIZATION
from alerts.recordings import CARD, GENERATED, REPLICA, RUNNING, UTILIZATION, WAITING
from alerts.rule import Alert, Component, Group, Severity
from alerts.text import Text
from alerts.tuning import Tuning
from exporter.catalog import metrics as m
from exporter.catalog.spec import Unit
from exporter.promql import aggregate, and_on, over_time, rate, select, unless


def groups(tuning: Tuning) -> tuple[Group, ...]:
    """Give the group about efficiency; money has time, so it is evaluated seldom."""
    return (
        Group(
            name="shardwatch-efficiency",
            rules=(_memory_held_idle(tuning), _low_utilization(tuning), _cost_increased(tuning)),
            interval="2m",
        ),
    )


def _memory_held_idle(tuning: Tuning) -> Alert:
    limits = tuning.thresholds
    held = select(m.GPU_MEMORY_USED_BYTES) / select(m.GPU_MEMORY_TOTAL_BYTES) > limits.held_memory.warning
    idle = rate(select(m.GPU_IDLE_SECONDS_TOTAL), "1h") > limits.idle_share.warning
    return Alert(
        name="GpuMemoryHeldIdle",
        severity=Severity.INFO,
        component=Component.GPU,
        expr=and_on(idle, held, on=CARD),
        for_=limits.idle_share.for_,
        panel=EFFICIENCY_IDLE,
        summary=Text(
            "Card {{ $labels.gpu }} of {{ $labels.instance }} holds a model and does nothing",
            "{{ $labels.instance }} 的 {{ $labels.gpu }} 号卡加载了模型却空闲",
        ),
        description=Text(
            "It idled {{ $value | humanizePercentage }} of the last hour while its memory was taken "
            "({{ $labels.uuid }}). Sleep, scale down, or let another model use it.",
            "过去一小时有 {{ $value | humanizePercentage }} 的时间空闲，显存却被占用（{{ $labels.uuid }}）。"
            "可让引擎休眠、缩容，或交给其他模型使用。",
        ),
    )


def _low_utilization(tuning: Tuning) -> Alert:
    limit = tuning.thresholds.low_utilization
    used = over_time("avg", select(UTILIZATION.known), "30m") < limit.warning
    running = over_time("avg", select(RUNNING.known), "30m") >= 1
    waiting = over_time("max", select(WAITING.known), "5m") > 0
    return Alert(
        name="UtilizationLow",
        severity=Severity.INFO,
        component=Component.ENGINE,
        expr=unless(and_on(used, running, on=REPLICA), waiting, on=REPLICA),
        for_=limit.for_,
        panel=NODE_UTILIZATION,
        summary=Text(
            "The cards of {{ $labels.replica }} on {{ $labels.instance }} are little used while it serves",
            "{{ $labels.instance }} 上 {{ $labels.replica }} 在服务期间显卡利用率偏低",
        ),
        description=Text(
            "{{ $value | humanizePercentage }} over 30 minutes with requests running and none waiting (note below "
            f"{limit.warning:.0%}): fewer or smaller cards would serve as well.",
            "30 分钟内有请求运行且无排队，利用率仅 {{ $value | humanizePercentage }}（低于 "
            f"{limit.warning:.0%} 即提示）：更少或更小的卡即可胜任。",
        ),
    )


def _cost_increased(tuning: Tuning) -> Alert:
    limit = tuning.thresholds.cost_of_past
    # Over the hour each of the daemon's windows gives the same price; which there are is up to the configuration.
    cost = select(m.LLM_COST_PER_MILLION_TOKENS)
    today, yesterday = (
        aggregate("avg", over_time("avg", price, "1h"), without=("window",)) for price in (cost, cost.offset("1d"))
    )
    ratio = (today / yesterday).as_unit(Unit.RATIO)
    served = over_time("avg", select(GENERATED.known), "1h") > tuning.thresholds.cost_tokens.warning
    return Alert(
        name="TokenCostIncreased",
        severity=Severity.INFO,
        component=Component.ENGINE,
        expr=and_on(ratio > limit.warning, served, on=REPLICA),
        for_=limit.for_,
        panel=EFFICIENCY_COST,
        summary=Text(
            "Tokens of {{ $labels.replica }} ({{ $labels.model }}) cost far more than yesterday",
            "{{ $labels.replica }}（{{ $labels.model }}）的 token 成本远高于昨天",
        ),
        description=Text(
            "{{ $value | humanize }} times the price of the same hour yesterday, in {{ $labels.currency }} on "
            "{{ $labels.instance }}: less traffic on as many cards, or slower work.",
            "{{ $labels.instance }} 上的价格（{{ $labels.currency }}）是昨天同一小时的 {{ $value | humanize }} 倍："
            "同样多的卡承担了更少的流量，或处理变慢。",
        ),
    )
