"""Alerts about GPUs under load: temperature, throttling, power brake, PCIe link, full memory, leftover processes."""

from __future__ import annotations

from alerts import lookups
from alerts.panel_ids import NODE_DEGRADED, NODE_MEMORY, NODE_OWNERS, NODE_POWER, NODE_TEMPERATURE, NODE_THROTTLE
from alerts.recordings import GPU, NODE, REPLICA_INFO, memory_to_mean, with_replica
from alerts.rule import Alert, Component, Group
from alerts.tuning import Tuning
from exporter.catalog import metrics as m
from exporter.catalog.spec import Unit
from exporter.model.finding import Severity
from exporter.model.text import Text
from exporter.promql import (
    Expr,
    Matcher,
    aggregate,
    and_on,
    binary,
    count_by,
    max_by,
    min_by,
    over_time,
    rate,
    regex,
    select,
    unless,
)  # fmt: skip


def groups(tuning: Tuning) -> tuple[Group, ...]:
    """Return the group about GPUs under load."""
    hot = (_hot(tuning), _hot_without_limit(tuning))
    clocks = (_thermal_throttling(tuning), _power_brake(tuning), _power_capped(tuning))
    rules = (*hot, *clocks, _pcie(), _full(tuning), _orphans())
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
            "GPU {{ $labels.gpu }} on {{ $labels.instance }} is hot",
            "{{ $labels.instance }} 的 {{ $labels.gpu }} 号卡温度过高",
        ),
        description=Text(
            "The GPU ({{ $labels.uuid }}) is {{ $value | humanize }} °C below its slowdown temperature (threshold "
            f"{limit.warning:g} °C for {limit.for_}).",
            f"该卡（{{{{ $labels.uuid }}}}）距降频温度 {{{{ $value | humanize }}}} °C（阈值：持续 {limit.for_} 低于 "
            f"{limit.warning:g} °C）。",
        )
        + lookups.TEMPERATURE,
        action=Text(
            "Compare with the other GPUs of the node: one hot GPU points to its cooler or dust, all hot point to "
            "airflow or inlet temperature. Check fans and filters; move load.",
            "与同节点其他卡比较：单卡过热查散热器与积灰，全部过热查风道与进风温度。检查风扇与滤网，必要时迁移负载。",
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
            on=GPU,
        ),
        for_=limit.for_,
        keep_firing_for="5m",
        panel=NODE_TEMPERATURE,
        summary=Text(
            "GPU {{ $labels.gpu }} on {{ $labels.instance }} is hot and reports no temperature limit",
            "{{ $labels.instance }} 的 {{ $labels.gpu }} 号卡温度过高，且未报告降频温度",
        ),
        description=Text(
            f"The GPU ({{{{ $labels.uuid }}}}) is at {{{{ $value | humanize }}}} °C (threshold {limit.warning:g} °C). It "
            "reports no slowdown temperature, so the general threshold applies.",
            f"该卡（{{{{ $labels.uuid }}}}）当前 {{{{ $value | humanize }}}} °C（阈值 {limit.warning:g} °C）。它不报告降频"
            "温度，因此使用通用阈值。",
        ),
        action=Text(
            "Check the vendor's limit for this model; check fans, filters and inlet temperature. Set the "
            "threshold temperature for GPUs that run hotter by design.",
            "核对该型号的厂商上限；检查风扇、滤网与进风温度。设计上温度较高的型号请调整阈值 temperature。",
        ),
    )


def _held_down(reason: Matcher) -> Expr:
    """Return the share of 5 minutes in which a GPU's clocks were reduced for a reason.

    Drivers before R575 do not measure the time; the share of scrapes that found it active is a good estimate.
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
        expr=and_on(heat > limit.warning, _busy(tuning), on=GPU),
        for_=limit.for_,
        keep_firing_for="5m",
        panel=NODE_THROTTLE,
        summary=Text(
            "GPU {{ $labels.gpu }} on {{ $labels.instance }} is thermally throttled under load",
            "{{ $labels.instance }} 的 {{ $labels.gpu }} 号卡在负载下过热降频",
        ),
        description=Text(
            "Clocks were reduced for {{ $value | humanizePercentage }} of the last 5 minutes ("
            "{{ $labels.uuid }}). The other GPUs of its group wait for it.",
            "最近 5 分钟有 {{ $value | humanizePercentage }} 的时间处于降频状态（{{ $labels.uuid }}），同组其他卡"
            "都在等它。",
        )
        + lookups.TEMPERATURE,
        action=Text(
            "Improve cooling: fans, filters, inlet temperature. Until then lower the power limit of the whole "
            "group evenly (nvidia-smi -pl) or move the replica.",
            "改善散热：风扇、滤网、进风温度。在此之前，对整组均匀降低功率上限（nvidia-smi -pl），或迁移副本。",
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
            "The external power brake slows down GPU {{ $labels.gpu }} on {{ $labels.instance }}",
            "{{ $labels.instance }} 的 {{ $labels.gpu }} 号卡被外部功率制动（power brake）限速",
        ),
        description=Text(
            "The power brake was active for {{ $value | humanizePercentage }} of the last 5 minutes ("
            "{{ $labels.uuid }}). A power supply is missing, overloaded or too hot; usually all GPUs of the "
            "chassis are affected.",
            "最近 5 分钟有 {{ $value | humanizePercentage }} 的时间处于功率制动（{{ $labels.uuid }}）。电源缺失、"
            "过载或过热；通常整机的卡都受影响。",
        ),
        action=Text(
            "Check the power supplies in the BMC, replace or reconnect the faulty one; lower power limits until "
            "then.",
            "在 BMC 中检查电源，更换或重新连接故障电源；在此之前降低功率上限。",
        ),
    )


def _power_capped(tuning: Tuning) -> Alert:
    limits = tuning.thresholds
    busy = _busy(tuning)
    default = select(m.GPU_POWER_LIMIT_SETTING_WATTS, limit="default")
    share = binary("/", select(m.GPU_POWER_LIMIT_WATTS), default, ignoring=("limit",)).as_unit(Unit.RATIO)
    held = and_on(_held_down("sw_power_cap"), busy, on=GPU)
    # All busy GPUs of the node alike: a single one is a straggler, and power capping at the default limit is normal.
    limited = max_by(and_on(share, busy, on=GPU), *NODE) < limits.power_limit_share.warning
    capped = and_on(limited, min_by(held, *NODE) > limits.throttled_share.warning, on=NODE)
    return Alert(
        name="NodePowerCapped",
        severity=Severity.WARNING,
        component=Component.GPU,
        expr=and_on(capped, count_by(held, *NODE) > 1, on=NODE),
        for_=limits.power_limit_share.for_,
        keep_firing_for="10m",
        panel=NODE_POWER,
        summary=Text(
            "All busy GPUs of {{ $labels.instance }} are slowed down by a lowered power limit",
            "{{ $labels.instance }} 上所有工作中的卡都被调低的功率上限限速",
        ),
        description=Text(
            "Their highest power limit is {{ $value | humanizePercentage }} of the default (threshold "
            f"{limits.power_limit_share.warning:.0%}), and each was held at it for more than "
            f"{limits.throttled_share.warning:.0%} of the last 5 minutes. No GPU is slower than the others, so imbalance "
            "does not show it.",
            "功率上限最高的一张也只有默认值的 {{ $value | humanizePercentage }}（阈值 "
            f"{limits.power_limit_share.warning:.0%}），且最近 5 分钟内每张卡超过 "
            f"{limits.throttled_share.warning:.0%} 的时间受其限制。各卡同样慢，因此看不出不均衡。",
        )
        + lookups.NODE_POWER_LIMIT
        + lookups.NODE_SM_CLOCK,
        action=Text(
            "Find out who set the limit (nvidia-smi -q -d POWER; power management of the chassis or the data center). "
            "Unless it is intended, restore it: nvidia-smi -pl WATTS.",
            "查明是谁设置了该上限（nvidia-smi -q -d POWER；机箱或数据中心的功率管理）。若非有意，用 nvidia-smi -pl 瓦数 恢复。",
        ),
    )


def _pcie() -> Alert:
    return Alert(
        name="GpuPcieDowngraded",
        severity=Severity.WARNING,
        component=Component.GPU,
        # Exposed only while the GPU is busy: an idle GPU lowers its link on purpose.
        expr=over_time("min", select(m.GPU_PCIE_LINK_DEGRADED), "5m").equals(1),
        for_="5m",
        keep_firing_for="10m",
        panel=NODE_DEGRADED,
        summary=Text(
            "The PCIe link of GPU {{ $labels.gpu }} on {{ $labels.instance }} is degraded under load",
            "{{ $labels.instance }} 的 {{ $labels.gpu }} 号卡在负载下 PCIe 链路降级",
        ),
        description=Text(
            "The link generation or width is below the maximum of GPU and slot although the GPU is busy ("
            "{{ $labels.uuid }}). Weight loading, CPU offload and collectives without NVLink are slower.",
            "该卡正在工作，但链路代数或宽度低于卡与插槽支持的最大值（{{ $labels.uuid }}）。权重加载、CPU/KV "
            "offload 以及不走 NVLink 的集合通信会变慢。",
        ),
        action=Text(
            "Check with nvidia-smi -q -d PCIE under load; reseat the GPU, check the slot's firmware settings and "
            "the riser.",
            "在负载下用 nvidia-smi -q -d PCIE 检查；重新插卡，检查插槽固件设置与转接板。",
        ),
    )


def _full(tuning: Tuning) -> Alert:
    limit = tuning.thresholds.gpu_memory_used
    share = select(m.GPU_MEMORY_USED_BYTES) / select(m.GPU_MEMORY_TOTAL_BYTES)
    return Alert(
        name="GpuMemoryFull",
        severity=Severity.WARNING,
        component=Component.GPU,
        # A group whose GPUs are equally full was configured so; nothing grows.
        expr=with_replica(
            unless(share > limit.warning, memory_to_mean() <= tuning.thresholds.memory_even.warning, on=GPU),
            "GpuMemoryFull",
        ),
        optional_labels=REPLICA_INFO,
        for_=limit.for_,
        keep_firing_for="5m",
        panel=NODE_MEMORY,
        summary=Text(
            "The memory of GPU {{ $labels.gpu }} on {{ $labels.instance }} is full",
            "{{ $labels.instance }} 的 {{ $labels.gpu }} 号卡显存已满",
        ),
        description=Text(
            "{{ $value | humanizePercentage }} of the memory of {{ $labels.uuid }} is allocated (threshold "
            f"{limit.warning:.0%}).{{{{ with $labels.replica }}}} It serves replica {{{{ . }}}}.{{{{ end }}}} Further "
            "allocations fail.",
            f"该卡（{{{{ $labels.uuid }}}}）的显存已分配 {{{{ $value | humanizePercentage }}}}（阈值 {limit.warning:.0%}）"
            "。{{ with $labels.replica }}其上运行副本 {{ . }}。{{ end }}继续分配将失败。",
        )
        + lookups.PEER_MEMORY
        + lookups.FOREIGN_OWNER
        + lookups.RUNNING
        + lookups.WAITING
        + lookups.GATEWAY_SHARE
        + lookups.OWNER
        + lookups.VERDICT,
        action=Text(
            "List the processes on the GPU (nvidia-smi --query-compute-apps=gpu_uuid,pid,used_memory "
            "--format=csv): end another tenant's process, or restart the replica with a lower "
            "--gpu-memory-utilization.",
            "列出该卡上的进程（nvidia-smi --query-compute-apps=gpu_uuid,pid,used_memory --format=csv）：结束其他"
            "租户的进程，或降低 --gpu-memory-utilization 后重启副本。",
        ),
    )


def _orphans() -> Alert:
    return Alert(
        name="GpuOrphanProcesses",
        severity=Severity.WARNING,
        component=Component.GPU,
        expr=over_time("min", select(m.GPU_ORPHAN_PROCESSES), "2m") > 0,
        for_="5m",
        keep_firing_for="5m",
        panel=NODE_OWNERS,
        summary=Text(
            "Leftover processes hold GPU {{ $labels.gpu }} on {{ $labels.instance }}",
            "{{ $labels.instance }} 的 {{ $labels.gpu }} 号卡被残留进程占用",
        ),
        description=Text(
            "{{ $value | humanize }} processes are on the GPU ({{ $labels.uuid }}) though the engine server that started "
            "them has exited, or they have exited themselves.{{ with $labels.owner }} Owner: {{ . }}.{{ end }}",
            "该卡（{{ $labels.uuid }}）上有 {{ $value | humanize }} 个残留进程：启动它们的引擎服务进程已退出，或它们自身已退出。"
            "{{ with $labels.owner }}使用者：{{ . }}。{{ end }}",
        )
        + lookups.OWNER_MEMORY,
        action=Text(
            "End the processes on the GPU (nvidia-smi) whose parent is gone: kill PID, after a minute kill -9 PID. If their "
            "memory stays, drain the GPU and reset it: nvidia-smi --gpu-reset -i {{ $labels.gpu }}.",
            "用 nvidia-smi 列出并结束父进程已不在的进程：kill PID，仍在则 kill -9 PID。显存未释放则复位该卡：nvidia-smi "
            "--gpu-reset -i {{ $labels.gpu }}。",
        ),
    )
