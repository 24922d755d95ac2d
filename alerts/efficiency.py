"""Alerts about cost: idle GPUs with a model loaded, low utilisation, increased cost and energy per token."""

from __future__ import annotations

from alerts.panel_ids import EFFICIENCY_COST, EFFICIENCY_ENERGY, EFFICIENCY_IDLE, NODE_UTILIZATION
from alerts.recordings import GENERATED, GPU, REPLICA, RUNNING, UTILIZATION, WAITING
from alerts.rule import Alert, Component, Group
from alerts.tuning import Tuning
from exporter.catalog import metrics as m
from exporter.catalog.spec import Metric, Unit
from exporter.model.finding import Severity
from exporter.model.text import Text
from exporter.promql import Expr, aggregate, and_on, over_time, rate, select, unless


def groups(tuning: Tuning) -> tuple[Group, ...]:
    """Return the group about efficiency, which is evaluated every 2 minutes."""
    return (
        Group(
            name="shardwatch-efficiency",
            rules=(
                _memory_held_idle(tuning),
                _low_utilization(tuning),
                _cost_increased(tuning),
                _energy_increased(tuning),
            ),
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
        expr=and_on(idle, held, on=GPU),
        for_=limits.idle_share.for_,
        panel=EFFICIENCY_IDLE,
        summary=Text(
            "GPU {{ $labels.gpu }} on {{ $labels.instance }} holds a model and is idle",
            "{{ $labels.instance }} 的 {{ $labels.gpu }} 号卡加载了模型但空闲",
        ),
        description=Text(
            "It was idle for {{ $value | humanizePercentage }} of the last hour while its memory was allocated ("
            "{{ $labels.uuid }}).",
            "过去 1 小时有 {{ $value | humanizePercentage }} 的时间空闲，显存却被占用（{{ $labels.uuid }}）。",
        ),
        action=Text(
            "Use the engine's sleep mode, scale down, or share the GPU with another model.",
            "启用引擎的休眠模式、缩容，或与其他模型共享该卡。",
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
            "The GPUs of {{ $labels.replica }} on {{ $labels.instance }} have low utilisation while it serves",
            "{{ $labels.instance }} 上的 {{ $labels.replica }} 在服务期间 GPU 利用率偏低",
        ),
        description=Text(
            "{{ $value | humanizePercentage }} over 30 minutes with requests running and none waiting (threshold "
            f"{limit.warning:.0%}).",
            f"30 分钟内有请求运行且无排队，利用率为 {{{{ $value | humanizePercentage }}}}（阈值 {limit.warning:.0%}）"
            "。",
        ),
        action=Text(
            "Use fewer or smaller GPUs, or place another model on them.",
            "减少卡数、换用较小的卡，或再部署一个模型。",
        ),
    )


def _of_yesterday(metric: Metric) -> Expr:
    """Return a price of the last hour over that of the same hour yesterday."""
    # Over one hour every window of the daemon has the same price; the configuration decides which exist.
    now = select(metric)
    today, yesterday = (
        aggregate("avg", over_time("avg", price, "1h"), without=("window",)) for price in (now, now.offset("1d"))
    )
    return (today / yesterday).as_unit(Unit.RATIO)


def _cost_increased(tuning: Tuning) -> Alert:
    limit = tuning.thresholds.cost_of_past
    ratio = _of_yesterday(m.LLM_COST_PER_MILLION_GENERATED_TOKENS)
    served = over_time("avg", select(GENERATED.known), "1h") > tuning.thresholds.cost_tokens.warning
    return Alert(
        name="TokenCostIncreased",
        severity=Severity.INFO,
        component=Component.ENGINE,
        expr=and_on(ratio > limit.warning, served, on=REPLICA),
        for_=limit.for_,
        panel=EFFICIENCY_COST,
        summary=Text(
            "The token cost of {{ $labels.replica }} ({{ $labels.model }}) increased",
            "{{ $labels.replica }}（{{ $labels.model }}）的 token 成本上升",
        ),
        description=Text(
            "{{ $value | humanize }} times the price of the same hour yesterday, in {{ $labels.currency }} on "
            "{{ $labels.instance }}.",
            "{{ $labels.instance }} 上的单价（{{ $labels.currency }}）是昨天同一小时的 {{ $value | humanize }} 倍。",
        ),
        action=Text(
            "Scale to the traffic; check for a straggler or slower requests.",
            "按流量伸缩；检查是否有慢卡或请求变慢。",
        ),
    )


def _energy_increased(tuning: Tuning) -> Alert:
    limits = tuning.thresholds
    served = over_time("avg", select(GENERATED.known), "1h")
    # Fewer requests at once cost more energy per token: only what traffic does not explain is reported.
    as_busy = served / over_time("avg", select(GENERATED.known).offset("1d"), "1h") > limits.energy_traffic.warning
    risen = _of_yesterday(m.LLM_ENERGY_JOULES_PER_GENERATED_TOKEN) > limits.energy_of_past.warning
    return Alert(
        name="TokenEnergyIncreased",
        severity=Severity.INFO,
        component=Component.ENGINE,
        expr=and_on(and_on(risen, served > limits.cost_tokens.warning, on=REPLICA), as_busy, on=REPLICA),
        for_=limits.energy_of_past.for_,
        panel=EFFICIENCY_ENERGY,
        summary=Text(
            "The energy per token of {{ $labels.replica }} ({{ $labels.model }}) on {{ $labels.instance }} increased",
            "{{ $labels.instance }} 上的 {{ $labels.replica }}（{{ $labels.model }}）每 token 的能耗上升",
        ),
        description=Text(
            "{{ $value | humanize }} times the joules per generated token of the same hour yesterday (threshold "
            f"{limits.energy_of_past.warning:g}), at about the same traffic.",
            "流量相近，每个生成的 token 能耗是昨天同一小时的 {{ $value | humanize }} 倍（阈值 "
            f"{limits.energy_of_past.warning:g}）。",
        ),
        action=Text(
            "Check for GPUs that wait for a straggler, lower clocks, a lower prefix-cache hit rate or fewer accepted "
            "drafts.",
            "检查是否有 GPU 在等待慢卡、频率降低、前缀缓存命中率下降，或投机接受率下降。",
        ),
    )
