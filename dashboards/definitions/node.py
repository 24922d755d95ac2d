"""Node: the GPUs of a node side by side, over time, and the replicas that run on them."""

from __future__ import annotations

from alerts import panel_ids as ids
from alerts.panel_ids import DashboardUid as Uid
from dashboards.dashboard import Dashboard, Row
from dashboards.definitions import xids
from dashboards.definitions.annotations import OF_NODE
from dashboards.definitions.node_details import MORE
from dashboards.definitions.node_owners import OWNERS
from dashboards.definitions.status import TO_GPU, TO_REPLICA, UP, YES_IS_BAD, status
from dashboards.definitions.straggler_causes import CAUSES, cause
from dashboards.no_data_text import Requires
from dashboards.panels import (
    Cell,
    NumberFormat,
    Panel,
    ValueMapping,
    bar_gauge,
    column,
    series,
    state_timeline,
    table,
    time_series,
)
from dashboards.panels.panel import Colour
from dashboards.thresholds import ANY_WARNING, BUSY_WAITING, THRESHOLDS
from dashboards.variables import RATE_INTERVAL, by_recent_replica, by_replica, selected
from exporter.catalog import metrics as m
from exporter.catalog.spec import Metric
from exporter.model.text import Text
from exporter.promql import (
    Expr,
    Match,
    and_on,
    max_by,
    min_by,
    over_time,
    rate,
    without_value,
)

GPU_LEGEND = "{{instance}} GPU {{gpu}}"
GPU_LABELS = ("instance", "gpu")
SUPPORT = (Requires.SUPPORT,)
PCIE = (ValueMapping(0, Text("NVLink", "NVLink"), Colour.GOOD), ValueMapping(1, Text("PCIe", "PCIe"), Colour.WARNING))

SOCKETS = (
    ValueMapping(0, Text("same", "CPU socket：同一颗"), Colour.GOOD),
    ValueMapping(1, Text("different", "CPU socket：跨 CPU"), Colour.WARNING),
)


def held_down(*labels: str, **matchers: Match) -> Expr:
    """Return the share of time in which clocks were reduced, by reason; of samples where the driver has no counter."""
    timed = rate(selected(m.GPU_CLOCK_EVENT_SECONDS_TOTAL, **matchers), RATE_INTERVAL)
    sampled = over_time("avg", selected(m.GPU_CLOCK_EVENT_ACTIVE, **matchers), RATE_INTERVAL)
    assert timed.unit is not None
    return max_by(timed | sampled.as_unit(timed.unit, per_second=timed.per_second), *GPU_LABELS, *labels)


def throttled() -> Expr:
    """Return the share of time in which a GPU's clocks were reduced by heat or a power brake."""
    return held_down(reason=without_value("sw_power_cap"))


def memory_share() -> Expr:
    """Return the share of a GPU's memory that is allocated."""
    return max_by(selected(m.GPU_MEMORY_USED_BYTES) / selected(m.GPU_MEMORY_TOTAL_BYTES), *GPU_LABELS)


def _over_pcie(fact: Metric) -> Expr:
    """Return a fact about the GPUs of a replica, of the replicas without NVLink between some of them."""
    return and_on(selected(fact), selected(m.LLM_CARDS_OVER_PCIE).equals(1), on=("job", "instance", "replica"))


def _both_ways(*counters: Metric) -> Expr:
    sent, received = (max_by(rate(selected(counter), RATE_INTERVAL), *GPU_LABELS) for counter in counters)
    return sent + received


_GPUS: tuple[Panel, ...] = (
    table(
        Text("GPUs side by side", "各卡对比"),
        Text(
            "One row per GPU: look for the one that differs. Utilisation without SM activity is busy-waiting; "
            "Straggler marks the GPU that the others wait for, with the cause. An empty cell is a signal that "
            "the GPU does not provide; a red 'down' without other values is a lost GPU.",
            "每卡一行，找出不同的那一张。有利用率而无 SM 活动即空转（利用率高但无有效计算）；“慢卡”标出被等的卡及原因。空单元格表示该卡不提供此信号；红色“离线”且其余为空表示掉卡。",
        ),
        column(lambda: selected(m.GPU_UP), Text("State", "状态"), cell=Cell.COLOUR, value_mappings=UP),
        column(
            cause, Text("Straggler", "慢卡"), cell=Cell.COLOUR, value_mappings=CAUSES,
            requires=(Requires.STRAGGLER,),
        ),
        column(lambda: selected(m.GPU_UTILIZATION_RATIO), Text("Utilisation", "利用率"), cell=Cell.BAR, max_value=1),
        column(
            lambda: selected(m.GPU_SM_ACTIVE_RATIO), Text("SM activity", "SM 活动"), cell=Cell.BAR, max_value=1, requires=SUPPORT,
        ),
        column(memory_share, Text("Memory", "显存"), cell=Cell.BAR, threshold=THRESHOLDS.gpu_memory_used, max_value=1),
        column(
            lambda: selected(m.GPU_POWER_WATTS) / selected(m.GPU_POWER_LIMIT_WATTS), Text("Power / limit", "功率/上限"),
            cell=Cell.BAR, max_value=1,
        ),
        column(
            lambda: selected(m.GPU_TEMPERATURE_MARGIN_CELSIUS), Text("Thermal margin", "温度余量"), cell=Cell.COLOUR,
            threshold=THRESHOLDS.temperature_margin,
        ),
        column(lambda: selected(m.GPU_CLOCK_HERTZ, domain="sm"), Text("SM clock", "SM 频率")),
        column(throttled, Text("Throttled", "降频占比"), cell=Cell.COLOUR, threshold=THRESHOLDS.throttled_share),
        column(lambda: selected(m.GPU_NVLINK_ACTIVE_LINKS), Text("NVLinks", "NVLink 数"), requires=(Requires.NVLINK,)),
        column(
            lambda: selected(m.GPU_STRAGGLER_SLOWDOWN_RATIO), Text("Slowdown", "减速倍数"), number_format=NumberFormat.FACTOR,
            requires=(Requires.STRAGGLER,),
        ),
        rows=GPU_LABELS, drill_down=(TO_GPU,), width=24, height=10,
    ),
    table(
        Text("GPU assignment", "GPU 归属"),
        Text(
            "Replica and rank of each GPU, and the memory allocated on it. GPUs without a known replica are not "
            "listed.",
            "每张卡所属的副本与 rank，及其已分配显存。未列出的卡不属于任何已知副本。",
        ),
        column(lambda: by_recent_replica(selected(m.GPU_UP)), Text("State", "状态"), cell=Cell.COLOUR, value_mappings=UP),
        column(lambda: by_replica(selected(m.GPU_MEMORY_USED_BYTES)), Text("Memory used", "已用显存"), cell=Cell.BAR),
        rows=("instance", "gpu", "replica", "model", "rank"), requires=(Requires.ENGINE,), width=12, height=10,
        drill_down=(TO_REPLICA,),
    ),
    state_timeline(
        Text("GPUs up", "卡是否应答"),
        Text(
            "Up and down over time by GPU. A gap is the exporter, not the GPU.",
            "各卡应答情况随时间变化。条带中断是采集器的问题，不是卡的问题。",
        ),
        series(lambda: max_by(selected(m.GPU_UP), *GPU_LABELS), GPU_LEGEND),
        value_mappings=UP, width=12, height=10, drill_down=(TO_GPU,),
    ),
)  # fmt: skip


_WORK: tuple[Panel, ...] = (
    time_series(
        Text("Utilisation by GPU", "利用率（按卡）"),
        Text(
            "Share of time in which a kernel was resident. It says nothing about useful work: a GPU that waits "
            "in a collective shows 100 %. A line apart from the others of its replica is abnormal.",
            "有内核驻留的时间占比。不代表在做事：在集合通信中等待的卡也显示 100 %。同一副本中有一条线偏离即异常。",
        ),
        series(lambda: max_by(selected(m.GPU_UTILIZATION_RATIO), *GPU_LABELS), GPU_LEGEND),
        max_value=1, panel_id=ids.NODE_UTILIZATION, drill_down=(TO_GPU,), width=12, height=8,
    ),
    bar_gauge(
        Text("Utilised but idle SMs", "空转（利用率高但无有效计算）"),
        Text(
            "Utilisation minus SM activity: busy-waiting. In a waiting group the GPU with the lowest bar is the "
            "one that the others wait for.",
            "利用率减去 SM 活动：忙碌时间中空转的部分。一组都在等待时，条最短的那张就是被等的卡。",
        ),
        series(lambda: max_by(selected(m.GPU_UTILIZATION_RATIO) - selected(m.GPU_SM_ACTIVE_RATIO), *GPU_LABELS), GPU_LEGEND),
        requires=SUPPORT, threshold=BUSY_WAITING, max_value=1, drill_down=(TO_GPU,), width=12, height=8,
    ),
    time_series(
        Text("Power by GPU", "功率（按卡）"),
        Text(
            "Power draw; the dashed lines are the lowest limit of the node and its default. Power follows useful work: "
            "a GPU far below its group does less, a GPU at the limit is slowed down by it.",
            "功耗；虚线为节点内最低的功率上限及其出厂默认值。功率反映真实工作量：明显低于同组的卡干得少；贴着上限的卡被限速。",
        ),
        series(lambda: max_by(selected(m.GPU_POWER_WATTS), *GPU_LABELS), GPU_LEGEND),
        series(
            lambda: min_by(selected(m.GPU_POWER_LIMIT_WATTS), "instance"),
            Text("limit {{instance}}", "上限 {{instance}}"), dashed=True,
        ),
        series(
            lambda: min_by(selected(m.GPU_POWER_LIMIT_SETTING_WATTS, limit="default"), "instance"),
            Text("default limit {{instance}}", "默认上限 {{instance}}"), dashed=True,
        ),
        panel_id=ids.NODE_POWER, drill_down=(TO_GPU,), width=8, height=8,
    ),
    time_series(
        Text("Tensor core activity by GPU", "张量核心活动（按卡）"),
        Text(
            "Share of time in which the tensor cores were active. GPUs of a group do the same work: a lower one "
            "is waited for, or has less work.",
            "张量核心工作的时间占比。同组的卡做同样的工作：偏低的一张在被等，或分到的活变少。",
        ),
        series(lambda: max_by(selected(m.GPU_TENSOR_ACTIVE_RATIO), *GPU_LABELS), GPU_LEGEND),
        requires=SUPPORT, max_value=1, drill_down=(TO_GPU,), width=8, height=8,
    ),
    time_series(
        Text("Memory bandwidth in use", "显存带宽使用率"),
        Text(
            "Bandwidth used over the maximum. Decoding is bound by it: high is useful work; low with high "
            "utilisation is waiting.",
            "已用带宽占最大带宽之比。解码主要靠它：高是在好好干活；利用率高而此值低是在等待。",
        ),
        series(lambda: max_by(selected(m.GPU_DRAM_ACTIVE_RATIO), *GPU_LABELS), GPU_LEGEND),
        requires=SUPPORT, max_value=1, drill_down=(TO_GPU,), width=8, height=8,
    ),
)  # fmt: skip


_STATE: tuple[Panel, ...] = (
    time_series(
        Text("Memory by GPU", "显存（按卡）"),
        Text(
            "Share of memory allocated. Engines allocate about 90 % at start and keep it. A GPU that rises above "
            "the others of its replica is abnormal.",
            "已分配显存占比。引擎启动即占约 90 % 并保持，属正常。异常是某卡持续高于同副本的其他卡。",
        ),
        series(memory_share, GPU_LEGEND),
        threshold=THRESHOLDS.gpu_memory_used, max_value=1, panel_id=ids.NODE_MEMORY, drill_down=(TO_GPU,), width=12, height=8,
    ),
    time_series(
        Text("Throttling, share of time", "降频时间占比"),
        Text(
            "By GPU and reason. Thermal and power-brake slowdowns are faults; the power cap is expected. Empty "
            "is healthy.",
            "按卡与原因。热降频与功率制动是故障；功率上限属于预算生效。为空即正常。",
        ),
        series(
            lambda: held_down("reason") > 0,
            f"{GPU_LEGEND} {{{{reason}}}}",
        ),
        requires=(Requires.TROUBLE,), threshold=THRESHOLDS.throttled_share, max_value=1, panel_id=ids.NODE_THROTTLE, drill_down=(TO_GPU,), width=12, height=8,
    ),
    time_series(
        Text("Temperature margin", "距降频温度的余量"),
        Text(
            "Degrees below the slowdown temperature. Near 0 the GPU throttles and its whole replica waits.",
            "距离卡自行降频还剩多少度。接近 0 就会降频，整个副本都要等它。",
        ),
        series(lambda: max_by(selected(m.GPU_TEMPERATURE_MARGIN_CELSIUS), *GPU_LABELS), GPU_LEGEND),
        threshold=THRESHOLDS.temperature_margin, min_value=None, panel_id=ids.NODE_TEMPERATURE, drill_down=(TO_GPU,), width=12, height=8,
    ),
    state_timeline(
        Text("Throttle timeline", "降频时间线"),
        Text(
            "Time ranges with thermal or power-brake throttling; compare with the time at which latency rose.",
            "热或功率制动压低频率的时段；与延迟上升的时刻对照。",
        ),
        series(lambda: max_by(selected(m.GPU_CLOCK_EVENT_ACTIVE, reason=without_value("sw_power_cap")), *GPU_LABELS), GPU_LEGEND),
        value_mappings=YES_IS_BAD, drill_down=(TO_GPU,), width=12, height=8,
    ),
    time_series(
        Text("SM clock by GPU", "SM 频率（按卡）"),
        Text(
            "One GPU below the others of its replica slows all of them down.",
            "处理器频率。同副本中频率较低的一张卡决定了所有卡的节奏。",
        ),
        series(lambda: max_by(selected(m.GPU_CLOCK_HERTZ, domain="sm"), *GPU_LABELS), GPU_LEGEND),
        drill_down=(TO_GPU,), width=12, height=8,
    ),
    time_series(
        Text("Temperature by sensor", "温度（按传感器）"),
        Text(
            "Core and memory temperature. 85 °C is normal for some models and too hot for others: use the "
            "margin; the line applies to GPUs that report no limit.",
            "核心与显存温度。85 °C 对某些型号正常、对另一些过高：以余量为准；此线用于不提供上限的卡。",
        ),
        series(lambda: max_by(selected(m.GPU_TEMPERATURE_CELSIUS), *GPU_LABELS, "sensor"), f"{GPU_LEGEND} {{{{sensor}}}}"),
        threshold=THRESHOLDS.temperature, drill_down=(TO_GPU,), width=12, height=8,
    ),
)  # fmt: skip


_LINKS: tuple[Panel, ...] = (
    table(
        Text("Replicas over PCIe", "走 PCIe 通信的副本"),
        Text(
            "Replicas with GPUs that have no NVLink between them: more GPUs may be slower than fewer, across CPU sockets "
            "still more so. Empty: every replica uses NVLink.",
            "只列出卡之间没有 NVLink 的副本：卡多可能反而更慢，跨 CPU socket 则更慢。为空即全部走 NVLink。",
        ),
        column(lambda: _over_pcie(m.LLM_CARDS_OVER_PCIE), Text("Transport", "通信方式"), cell=Cell.COLOUR, value_mappings=PCIE),
        column(lambda: _over_pcie(m.LLM_CARDS_CROSS_SOCKETS), Text("CPU sockets", "CPU socket"), cell=Cell.WORD, value_mappings=SOCKETS),
        rows=("instance", "replica"), requires=(Requires.TROUBLE,), drill_down=(TO_REPLICA,), panel_id=ids.NODE_OVER_PCIE, width=8, height=6,
    ),
    table(
        Text("Degraded links", "降级的链路"),
        Text(
            "PCIe links below their maximum although the GPU was busy, and NVLinks that were active before. Only "
            "GPUs with a degraded link are listed.",
            "卡在工作却低于最大值的 PCIe 链路，以及曾经活跃而现在断开的 NVLink。只列出有降级链路的卡。",
        ),
        column(
            lambda: selected(m.GPU_PCIE_LINK_DEGRADED).equals(1), Text("PCIe degraded", "PCIe 降级"), cell=Cell.COLOUR,
            value_mappings=YES_IS_BAD, requires=(Requires.TRAFFIC,),
        ),
        column(
            lambda: selected(m.GPU_NVLINK_LINKS_DOWN) > 0, Text("NVLinks down", "断开的 NVLink"), cell=Cell.COLOUR,
            threshold=ANY_WARNING, requires=(Requires.NVLINK,),
        ),
        rows=GPU_LABELS, requires=(Requires.TROUBLE,), drill_down=(TO_GPU,), panel_id=ids.NODE_DEGRADED, width=8, height=6,
    ),
    table(
        Text("XIDs in the selected time range", "所选时间内的 XID"),
        Text(
            f"Errors reported by the driver. After {xids.RESETTING} the GPU is unusable until it is reset or the "
            "node is rebooted; recommended actions are on GPU health.",
            f"驱动按编号上报的错误。出现 {xids.RESETTING} 时该卡不可用，需复位卡或重启节点；各编号的建议操作见“GPU 健康”。",
        ),
        column(
            xids.counted, Text("Events", "次数"), cell=Cell.COLOUR, threshold=ANY_WARNING, summed=True, decimals=0,
        ),
        rows=(*GPU_LABELS, "xid"), requires=(Requires.XID,), drill_down=(TO_GPU,), width=8, height=6,
    ),
    time_series(
        Text("PCIe and NVLink traffic by GPU", "PCIe 与 NVLink 流量（按卡）"),
        Text(
            "Bytes sent and received. Group traffic over PCIe where NVLink is expected makes eight GPUs slower "
            "than four; a single line that drops is a link fault.",
            "收发字节数之和。本应走 NVLink 的组通信走了 PCIe，会使八卡比四卡还慢；单独下降的一条线是链路问题。",
        ),
        series(
            lambda: _both_ways(m.GPU_PCIE_TRANSMIT_BYTES_TOTAL, m.GPU_PCIE_RECEIVE_BYTES_TOTAL), f"{GPU_LEGEND} PCIe"
        ),
        series(
            lambda: _both_ways(m.GPU_NVLINK_TRANSMIT_BYTES_TOTAL, m.GPU_NVLINK_RECEIVE_BYTES_TOTAL),
            f"{GPU_LEGEND} NVLink", requires=(Requires.NVLINK,),
        ),
        panel_id=ids.NODE_LINKS, drill_down=(TO_GPU,), width=14, height=10,
    ),
    table(
        Text("Slowest path between the GPUs of a replica", "副本内最慢的卡间路径"),
        Text(
            "NV# is NVLink; PIX, PXB, PHB and NODE are PCIe; SYS crosses CPU sockets and is the slowest.",
            "NV# 为 NVLink；PIX、PXB、PHB、NODE 为 PCIe；SYS 跨 CPU socket，最慢。",
        ),
        column(lambda: selected(m.LLM_CARD_PATH_INFO), Text("Seen", "已见"), cell=Cell.FACT),
        rows=("instance", "replica", "path"), requires=(Requires.GROUPS, Requires.ENGINE),
        drill_down=(TO_REPLICA,), width=10, height=10,
    ),
)  # fmt: skip


NODE = Dashboard(
    uid=Uid.NODE,
    title=Text("Shardwatch / Node", "Shardwatch / 节点"),
    description=Text(
        "The GPUs of a node side by side: which one differs, since when, and which replica is affected.",
        "节点内各卡对比：哪张不同、从何时起、影响谁。",
    ),
    rows=(
        status(),
        Row(title=Text("GPUs", "GPU"), panels=(*_GPUS[:1], *_LINKS[:3])),
        Row(title=Text("Work, memory, throttling", "工作量、显存与降频"), panels=(*_WORK[:2], *_STATE[:2])),
        Row(
            title=Text("Assignment, owners, traffic, paths", "归属、使用者、流量与路径"),
            panels=(*_GPUS[1:], *OWNERS, *_LINKS[3:]),
            collapsed=True,
        ),
        Row(
            title=Text("Power, temperature, clocks", "功率、温度与频率"),
            panels=(*_WORK[2:], *_STATE[2:]),
            collapsed=True,
        ),
        Row(
            title=Text("More: MIG, and with series: full", "更多：MIG，及 series: full"), panels=MORE, collapsed=True
        ),
    ),
    annotations=OF_NODE,
    per_gpu=True,
)
