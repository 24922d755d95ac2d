"""Alerts about cards that are slower or fuller than they should be: heat, power brake, PCIe under load, memory."""

from __future__ import annotations

from alerts.panel_ids import NODE_DEGRADED, NODE_MEMORY, NODE_TEMPERATURE, NODE_THROTTLE
from alerts.recordings import CARD, REPLICA_INFO, with_replica
from alerts.rule import Alert, Component, Group, Severity
from alerts.text import Text
from alerts.tuning import Tuning
from exporter.catalog import metrics as m
from exporter.catalog.spec import Unit
from exporter.promql import Expr, Matcher, aggregate, and_on, over_time, rate, regex, select, unless


def groups(tuning: Tuning) -> tuple[Group, ...]:
    """Give the group about the load on cards."""
    hot = (_hot(tuning), _hot_without_limit(tuning))
    rules = (*hot, _thermal_throttling(tuning), _power_brake(tuning), _pcie(), _full(tuning))
    return (Group(name="shardwatch-gpu-load", rules=rules),)


def _busy(tuning: Tuning) -> Expr:
    return over_time("avg", select(m.GPU_UTILIZATION_RATIO), "5m") > tuning.thresholds.busy_utilization.warning


def _hot(tuning: Tuning) -> Alert:
    limit = tuning.thresholds.temperature_margin
    margin = over_time("max", select(m.GPU_TEMPERATURE_MARGIN_CELSIUS), "2m")
    return Alert(
        name="GpuHot",
        severity=Severity.WARNING,
        component=Component.GPU,
        expr=margin < limit.warning,
        for_=limit.for_,
        keep_firing_for="5m",
        panel=NODE_TEMPERATURE,
        summary=Text(
            "Card {{ $labels.gpu }} of {{ $labels.instance }} is about to slow down for heat",
            "{{ $labels.instance }} 的 {{ $labels.gpu }} 号卡即将因过热降频",
        ),
        description=Text(
            "{{ $value | humanize }} °C are left to the slowdown limit of {{ $labels.uuid }} (alarm below "
            f"{limit.warning:g} °C for {limit.for_}). Its whole group will run at its pace.",
            "{{ $labels.uuid }} 距降频温度只剩 {{ $value | humanize }} °C（持续 "
            f"{limit.for_} 低于 {limit.warning:g} °C 即告警）。整组卡都会被它拖慢。",
        ),
    )


def _hot_without_limit(tuning: Tuning) -> Alert:
    limit = tuning.thresholds.temperature
    return Alert(
        name="GpuHotWithoutLimit",
        severity=Severity.WARNING,
        component=Component.GPU,
        expr=unless(
            over_time("min", select(m.GPU_TEMPERATURE_CELSIUS, sensor="gpu"), "2m") > limit.warning,
            select(m.GPU_TEMPERATURE_MARGIN_CELSIUS),
            on=CARD,
        ),
        for_=limit.for_,
        keep_firing_for="5m",
        panel=NODE_TEMPERATURE,
        summary=Text(
            "Card {{ $labels.gpu }} of {{ $labels.instance }} is hot and does not tell its limit",
            "{{ $labels.instance }} 的 {{ $labels.gpu }} 号卡温度过高且未报告上限",
        ),
        description=Text(
            f"{{{{ $value | humanize }}}} °C, alarm above {limit.warning:g} °C "
            "({{ $labels.uuid }}). This card tells no slowdown limit, so the general figure is used.",
            f"{{{{ $value | humanize }}}} °C，超过 {limit.warning:g} °C 即告警"
            "（{{ $labels.uuid }}）。该卡未报告降频温度，因此使用通用数值。",
        ),
    )


def _held_down(reason: Matcher) -> Expr:
    """Give the share of 5 minutes in which a card's clocks were held down.

    Drivers before R575 count no time for heat and brake: how often a scrape found it so is as good for such shares.
    """
    counted = rate(select(m.GPU_CLOCK_EVENT_SECONDS_TOTAL, reason=reason), "5m")
    found = over_time("avg", select(m.GPU_CLOCK_EVENT_ACTIVE, reason=reason), "5m").as_unit(Unit.RATIO)
    return aggregate("max", counted | found, without=("reason",))


def _thermal_throttling(tuning: Tuning) -> Alert:
    limit = tuning.thresholds.throttled_share
    heat = _held_down(regex("(sw|hw)_thermal_slowdown"))
    return Alert(
        name="GpuThermalThrottling",
        severity=Severity.WARNING,
        component=Component.GPU,
        expr=and_on(heat > limit.warning, _busy(tuning), on=CARD),
        for_=limit.for_,
        keep_firing_for="5m",
        panel=NODE_THROTTLE,
        summary=Text(
            "Card {{ $labels.gpu }} of {{ $labels.instance }} works with its clocks held down by heat",
            "{{ $labels.instance }} 的 {{ $labels.gpu }} 号卡在负载下因过热降频",
        ),
        description=Text(
            "{{ $value | humanizePercentage }} of the last 5 minutes under load ({{ $labels.uuid }}). The other "
            "cards of its replica wait for it.",
            "负载下最近 5 分钟有 {{ $value | humanizePercentage }} 的时间被降频（{{ $labels.uuid }}）。"
            "同一副本的其他卡都在等它。",
        ),
    )


def _power_brake(tuning: Tuning) -> Alert:
    limit = tuning.thresholds.power_brake
    brake = _held_down("hw_power_brake_slowdown")
    return Alert(
        name="GpuPowerBrake",
        severity=Severity.WARNING,
        component=Component.GPU,
        expr=brake > limit.warning,
        for_=limit.for_,
        keep_firing_for="5m",
        panel=NODE_THROTTLE,
        summary=Text(
            "The power supply holds card {{ $labels.gpu }} of {{ $labels.instance }} down",
            "供电系统正在限制 {{ $labels.instance }} 的 {{ $labels.gpu }} 号卡",
        ),
        description=Text(
            "{{ $value | humanizePercentage }} of the last 5 minutes the external power brake was pulled "
            "({{ $labels.uuid }}): a power supply is missing, overloaded or too hot. Usually all cards of a "
            "chassis are hit.",
            "最近 5 分钟有 {{ $value | humanizePercentage }} 的时间外部功率刹车被触发（{{ $labels.uuid }}）："
            "电源缺失、过载或过热。通常整机的卡都会受影响。",
        ),
    )


def _pcie() -> Alert:
    return Alert(
        name="GpuPcieDowngraded",
        severity=Severity.WARNING,
        component=Component.GPU,
        # Shown by the daemon only while the card works: an idle card lowers its link on purpose.
        expr=over_time("min", select(m.GPU_PCIE_LINK_DEGRADED), "5m").equals(1),
        for_="5m",
        keep_firing_for="10m",
        panel=NODE_DEGRADED,
        summary=Text(
            "The PCIe link of card {{ $labels.gpu }} on {{ $labels.instance }} is slow under load",
            "{{ $labels.instance }} 的 {{ $labels.gpu }} 号卡在负载下 PCIe 链路降级",
        ),
        description=Text(
            "Generation or width stand below the highest that card and slot can reach although the card works "
            "({{ $labels.uuid }}). Loading weights, offloading and collectives without NVLink are slower by as much.",
            "该卡正在工作，但链路的代数或通道数低于卡与插槽可达到的最高值（{{ $labels.uuid }}）。"
            "加载权重、卸载以及不走 NVLink 的集合通信会相应变慢。",
        ),
    )


def _full(tuning: Tuning) -> Alert:
    limit = tuning.thresholds.gpu_memory_used
    share = select(m.GPU_MEMORY_USED_BYTES) / select(m.GPU_MEMORY_TOTAL_BYTES)
    return Alert(
        name="GpuMemoryFull",
        severity=Severity.WARNING,
        component=Component.GPU,
        expr=with_replica(share > limit.warning, "GpuMemoryFull"),
        optional_labels=REPLICA_INFO,
        for_=limit.for_,
        keep_firing_for="2m",
        panel=NODE_MEMORY,
        summary=Text(
            "The memory of card {{ $labels.gpu }} on {{ $labels.instance }} is full",
            "{{ $labels.instance }} 的 {{ $labels.gpu }} 号卡显存已满",
        ),
        description=Text(
            "{{ $value | humanizePercentage }} of {{ $labels.uuid }} are allocated (alarm above "
            f"{limit.warning:.1%}). {{{{ with $labels.replica }}}}{{{{ . }}}} uses it. {{{{ end }}}}The next allocation "
            "fails, and with it requests or the whole replica: look who else holds memory on this card.",
            "{{ $labels.uuid }} 的显存已分配 {{ $value | humanizePercentage }}（超过 "
            f"{limit.warning:.1%} 即告警）。{{{{ with $labels.replica }}}}由 {{{{ . }}}} 使用。{{{{ end }}}}下一次分配会失败，导致请求失败甚至副本崩溃：请查看还有谁占用该卡显存。",
        ),
    )
