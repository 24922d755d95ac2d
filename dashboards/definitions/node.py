"""Node: the cards side by side, to see which one is different, since when, and whose work suffers."""

from __future__ import annotations

from alerts import panel_ids as ids
from alerts.panel_ids import DashboardUid as Uid
from alerts.text import Text
from dashboards.dashboard import Dashboard, Row
from dashboards.definitions import xids
from dashboards.definitions.annotations import OF_NODE
from dashboards.definitions.node_details import MORE
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
from exporter.promql import (
    Expr,
    Match,
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
    ValueMapping(0, Text("one", "同一个"), Colour.GOOD),
    ValueMapping(1, Text("several", "跨插槽"), Colour.WARNING),
)


def held_down(*labels: str, **matchers: Match) -> Expr:
    """Return the share of time in which clocks were held down; for reasons that the driver does not time, of readings."""
    timed = rate(selected(m.GPU_CLOCK_EVENT_SECONDS_TOTAL, **matchers), RATE_INTERVAL)
    sampled = over_time("avg", selected(m.GPU_CLOCK_EVENT_ACTIVE, **matchers), RATE_INTERVAL)
    assert timed.unit is not None
    return max_by(timed | sampled.as_unit(timed.unit, per_second=timed.per_second), *GPU_LABELS, *labels)


def throttled() -> Expr:
    """Return the share of time in which heat or a power brake held a card's clocks down."""
    return held_down(reason=without_value("sw_power_cap"))


def memory_share() -> Expr:
    """Return the share of a card's memory that is allocated."""
    return max_by(selected(m.GPU_MEMORY_USED_BYTES) / selected(m.GPU_MEMORY_TOTAL_BYTES), *GPU_LABELS)


def _both_ways(*counters: Metric) -> Expr:
    sent, received = (max_by(rate(selected(one), RATE_INTERVAL), *GPU_LABELS) for one in counters)
    return sent + received


_GPUS: tuple[Panel, ...] = (
    table(
        Text("Cards side by side", "各卡对比"),
        Text(
            "One row a card: look down the columns for the one that differs. Utilisation without SM work is "
            "spinning: the card waits for another; 'Others wait' names the card that they wait for, by the cause. An empty "
            "cell is a signal that the card does not give; a red 'down' with the rest empty is a lost card.",
            "每卡一行，竖着看，找不同的那一张。有利用率而无 SM 工作即空转：在等别的卡；“大家在等”标出被等的卡及原因。空单元格表示该卡没有此信号；红色“停”且其余为空表示丢卡。",
        ),
        column(lambda: selected(m.GPU_UP), Text("State", "状态"), cell=Cell.COLOUR, value_mappings=UP),
        column(
            cause, Text("Others wait", "大家在等"), cell=Cell.COLOUR, value_mappings=CAUSES,
            requires=(Requires.STRAGGLER,),
        ),
        column(lambda: selected(m.GPU_UTILIZATION_RATIO), Text("Utilisation", "利用率"), cell=Cell.BAR, max_value=1),
        column(
            lambda: selected(m.GPU_SM_ACTIVE_RATIO), Text("SM work", "SM 工作"), cell=Cell.BAR, max_value=1, requires=SUPPORT,
        ),
        column(memory_share, Text("Memory", "显存"), cell=Cell.BAR, threshold=THRESHOLDS.gpu_memory_used, max_value=1),
        column(
            lambda: selected(m.GPU_POWER_WATTS) / selected(m.GPU_POWER_LIMIT_WATTS), Text("Power of limit", "功率/上限"),
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
            lambda: selected(m.GPU_STRAGGLER_SLOWDOWN_RATIO), Text("Slower by factor", "慢几倍"), number_format=NumberFormat.FACTOR,
            requires=(Requires.STRAGGLER,),
        ),
        rows=GPU_LABELS, height=10, drill_down=(TO_GPU,),
    ),
    table(
        Text("Who uses which card", "谁在用哪张卡"),
        Text(
            "Replica and rank of each card, with the memory that is allocated on it. A card that is not listed "
            "belongs to nobody that Shardwatch knows.",
            "每张卡所属的副本与 rank，及其已分配显存。未列出的卡不属于任何已知副本。",
        ),
        column(lambda: by_recent_replica(selected(m.GPU_UP)), Text("State", "状态"), cell=Cell.COLOUR, value_mappings=UP),
        column(lambda: by_replica(selected(m.GPU_MEMORY_USED_BYTES)), Text("Memory used", "已用显存"), cell=Cell.BAR),
        rows=("instance", "gpu", "replica", "model", "rank"), requires=(Requires.ENGINE,), width=12, height=10,
        drill_down=(TO_REPLICA,),
    ),
    state_timeline(
        Text("Cards answering", "卡是否应答"),
        Text(
            "Up and down over time, by card. A gap in a strip is the exporter, not the card.",
            "各卡应答情况随时间变化。条带中断是采集器的问题，不是卡的问题。",
        ),
        series(lambda: max_by(selected(m.GPU_UP), *GPU_LABELS), GPU_LEGEND),
        value_mappings=UP, width=12, height=10, drill_down=(TO_GPU,),
    ),
)  # fmt: skip


_WORK: tuple[Panel, ...] = (
    time_series(
        Text("Utilisation by card", "利用率（按卡）"),
        Text(
            "Share of time in which a kernel was resident. It says nothing about work: a card that waits in a "
            "collective shows 100 %. Bad is one line apart from the others of its replica.",
            "有内核驻留的时间占比。不代表在做事：在集合通信中等待的卡也显示 100 %。同一副本中有一条线偏离即异常。",
        ),
        series(lambda: max_by(selected(m.GPU_UTILIZATION_RATIO), *GPU_LABELS), GPU_LEGEND),
        max_value=1, panel_id=ids.NODE_UTILIZATION, drill_down=(TO_GPU,),
    ),
    bar_gauge(
        Text("Busy without work", "忙而无功"),
        Text(
            "Utilisation minus SM work: how much of a card's busy time is spinning. The card with the LOWEST bar "
            "of a waiting group is the one that the others wait for.",
            "利用率减去 SM 工作：忙碌时间中空转的部分。一组都在等待时，条最短的那张就是被等的卡。",
        ),
        series(lambda: max_by(selected(m.GPU_UTILIZATION_RATIO) - selected(m.GPU_SM_ACTIVE_RATIO), *GPU_LABELS), GPU_LEGEND),
        requires=SUPPORT, threshold=BUSY_WAITING, max_value=1, height=8, drill_down=(TO_GPU,),
    ),
    time_series(
        Text("Power by card", "功率（按卡）"),
        Text(
            "Watts drawn; the dashed line is the lowest limit of the node. Power follows real work: a card far "
            "below its group does less, a card at the limit is slowed by it.",
            "功耗；虚线为节点内最低的功率上限。功率反映真实工作量：明显低于同组的卡干得少；贴着上限的卡被限速。",
        ),
        series(lambda: max_by(selected(m.GPU_POWER_WATTS), *GPU_LABELS), GPU_LEGEND),
        series(
            lambda: min_by(selected(m.GPU_POWER_LIMIT_WATTS), "instance"),
            Text("limit {{instance}}", "上限 {{instance}}"), dashed=True,
        ),
        panel_id=ids.NODE_POWER, drill_down=(TO_GPU,),
    ),
    time_series(
        Text("Tensor work by card", "张量核心工作（按卡）"),
        Text(
            "Share of time in which the tensor cores worked. Cards of a group do the same work: one that does less is "
            "waited for, or has lost its share.",
            "张量核心工作的时间占比。同组的卡做同样的工作：偏低的一张在被等，或分到的活变少。",
        ),
        series(lambda: max_by(selected(m.GPU_TENSOR_ACTIVE_RATIO), *GPU_LABELS), GPU_LEGEND),
        requires=SUPPORT, max_value=1, width=12, drill_down=(TO_GPU,),
    ),
    time_series(
        Text("Memory bandwidth in use", "显存带宽使用率"),
        Text(
            "Bandwidth used over the highest possible. Decoding lives on it: high is good work, low with high "
            "utilisation is waiting.",
            "已用带宽占最大带宽之比。解码主要靠它：高是在好好干活；利用率高而此值低是在等待。",
        ),
        series(lambda: max_by(selected(m.GPU_DRAM_ACTIVE_RATIO), *GPU_LABELS), GPU_LEGEND),
        requires=SUPPORT, max_value=1, width=12, drill_down=(TO_GPU,),
    ),
)  # fmt: skip


_STATE: tuple[Panel, ...] = (
    time_series(
        Text("Memory by card", "显存（按卡）"),
        Text(
            "Share of memory allocated. Engines take about 90 % at start and keep it: that is healthy. Bad is a "
            "card that climbs beyond the others of its replica.",
            "已分配显存占比。引擎启动即占约 90 % 并保持，属正常。异常是某卡持续高于同副本的其他卡。",
        ),
        series(memory_share, GPU_LEGEND),
        threshold=THRESHOLDS.gpu_memory_used, max_value=1, panel_id=ids.NODE_MEMORY, drill_down=(TO_GPU,),
    ),
    time_series(
        Text("Margin to slowdown", "距降频温度的余量"),
        Text(
            "Degrees left until the card slows itself down. Near 0 it throttles, and its whole replica waits.",
            "距离卡自行降频还剩多少度。接近 0 就会降频，整个副本都要等它。",
        ),
        series(lambda: max_by(selected(m.GPU_TEMPERATURE_MARGIN_CELSIUS), *GPU_LABELS), GPU_LEGEND),
        threshold=THRESHOLDS.temperature_margin, min_value=None, panel_id=ids.NODE_TEMPERATURE, drill_down=(TO_GPU,),
    ),
    time_series(
        Text("Clocks held down, share of time", "频率被压低的时间占比"),
        Text(
            "By card and reason. Thermal and power-brake slowdowns are trouble; the power cap is a budget at "
            "work. Empty is healthy.",
            "按卡与原因。热降频与功率制动是故障；功率上限属于预算生效。为空即正常。",
        ),
        series(
            lambda: held_down("reason") > 0,
            f"{GPU_LEGEND} {{{{reason}}}}",
        ),
        requires=(Requires.TROUBLE,), threshold=THRESHOLDS.throttled_share, max_value=1, panel_id=ids.NODE_THROTTLE, drill_down=(TO_GPU,),
    ),
    state_timeline(
        Text("Throttle timeline", "降频时间线"),
        Text(
            "When heat or a power brake held a card's clocks down; compare with the moment at which latency rose.",
            "热或功率制动压低频率的时段；与延迟上升的时刻对照。",
        ),
        series(lambda: max_by(selected(m.GPU_CLOCK_EVENT_ACTIVE, reason=without_value("sw_power_cap")), *GPU_LABELS), GPU_LEGEND),
        value_mappings=YES_IS_BAD, width=8, drill_down=(TO_GPU,),
    ),
    time_series(
        Text("SM clock by card", "SM 频率（按卡）"),
        Text(
            "Clock of the processors. One card below the others of its replica sets the pace for all of them.",
            "处理器频率。同副本中频率较低的一张卡决定了所有卡的节奏。",
        ),
        series(lambda: max_by(selected(m.GPU_CLOCK_HERTZ, domain="sm"), *GPU_LABELS), GPU_LEGEND),
        width=8, drill_down=(TO_GPU,),
    ),
    time_series(
        Text("Temperature by sensor", "温度（按传感器）"),
        Text(
            "Core and memory. 85 °C is normal for one make and too much for another: judge by the margin; the line "
            "counts for cards that tell no limit.",
            "核心与显存温度。85 °C 对某些型号正常、对另一些过高：以余量为准；此线用于不提供上限的卡。",
        ),
        series(lambda: max_by(selected(m.GPU_TEMPERATURE_CELSIUS), *GPU_LABELS, "sensor"), f"{GPU_LEGEND} {{{{sensor}}}}"),
        threshold=THRESHOLDS.temperature, width=8, drill_down=(TO_GPU,),
    ),
)  # fmt: skip


_LINKS: tuple[Panel, ...] = (
    time_series(
        Text("PCIe and NVLink traffic by card", "PCIe 与 NVLink 流量（按卡）"),
        Text(
            "Bytes sent and received. Group traffic on PCIe where NVLink is expected makes eight cards slower than four; "
            "a line that drops alone is a link.",
            "收发字节数之和。本应走 NVLink 的组通信走了 PCIe，会使八卡比四卡还慢；单独下降的一条线是链路问题。",
        ),
        series(
            lambda: _both_ways(m.GPU_PCIE_TRANSMIT_BYTES_TOTAL, m.GPU_PCIE_RECEIVE_BYTES_TOTAL), f"{GPU_LEGEND} PCIe"
        ),
        series(
            lambda: _both_ways(m.GPU_NVLINK_TRANSMIT_BYTES_TOTAL, m.GPU_NVLINK_RECEIVE_BYTES_TOTAL),
            f"{GPU_LEGEND} NVLink", requires=(Requires.NVLINK,),
        ),
        height=10, panel_id=ids.NODE_LINKS, drill_down=(TO_GPU,),
    ),
    table(
        Text("Links that are worse than they should be", "降级的链路"),
        Text(
            "PCIe links below their best although the card worked, and NVLinks that were active before. One row "
            "a card; both columns 0 is healthy.",
            "卡在工作却低于最佳状态的 PCIe 链路，以及曾经活跃而现在断开的 NVLink。每卡一行，两列均为 0 即正常。",
        ),
        column(lambda: selected(m.GPU_UP), Text("State", "状态"), cell=Cell.WORD, value_mappings=UP),
        column(
            lambda: selected(m.GPU_PCIE_LINK_DEGRADED), Text("PCIe degraded", "PCIe 降级"), cell=Cell.COLOUR,
            value_mappings=YES_IS_BAD, requires=(Requires.TRAFFIC,),
        ),
        column(
            lambda: selected(m.GPU_NVLINK_LINKS_DOWN), Text("NVLinks down", "断开的 NVLink"), cell=Cell.COLOUR,
            threshold=ANY_WARNING, requires=(Requires.NVLINK,),
        ),
        rows=GPU_LABELS, width=10, height=10, drill_down=(TO_GPU,), panel_id=ids.NODE_DEGRADED,
    ),
    table(
        Text("How the cards of a replica reach each other", "副本内各卡的互联路径"),
        Text(
            "The slowest path between two cards that work together: NV# is NVLink; PIX, PXB, PHB and NODE are "
            "PCIe; SYS crosses sockets and is the slowest.",
            "一起工作的两卡间最慢的路径：NV# 为 NVLink；PIX、PXB、PHB、NODE 为 PCIe；SYS 跨 CPU 插槽，最慢。",
        ),
        column(lambda: selected(m.LLM_CARD_PATH_INFO), Text("Seen", "已见"), cell=Cell.FACT),
        rows=("instance", "replica", "path"), requires=(Requires.GROUPS, Requires.ENGINE), width=6, height=10,
        drill_down=(TO_REPLICA,),
    ),
    table(
        Text("XIDs in the chosen time", "所选时间内的 XID"),
        Text(
            f"Errors that the driver reported by number. {xids.RESETTING} take the card out of "
            "use until it or the node is reset; what to do about each stands on Card health.",
            f"驱动按编号上报的错误。出现 {xids.RESETTING} 时该卡不可用，需复位卡或重启节点；各编号的处置见“卡健康”。",
        ),
        column(
            xids.counted, Text("Events", "次数"), cell=Cell.COLOUR, threshold=ANY_WARNING, summed=True, decimals=0,
        ),
        rows=(*GPU_LABELS, "xid"), requires=(Requires.XID,), width=16, height=6, drill_down=(TO_GPU,),
    ),
    table(
        Text("Replicas that talk over PCIe", "走 PCIe 通信的副本"),
        Text(
            "PCIe in orange: cards of the replica have no NVLink between them, and more cards may be slower than "
            "fewer. Across sockets it is slower still.",
            "橙色 PCIe：该副本的卡之间没有 NVLink，卡多可能反而更慢；跨 CPU 插槽则更慢。",
        ),
        column(lambda: selected(m.LLM_CARDS_OVER_PCIE), Text("Talk over", "通信方式"), cell=Cell.COLOUR, value_mappings=PCIE),
        column(lambda: selected(m.LLM_CARDS_CROSS_SOCKETS), Text("Sockets", "插槽"), cell=Cell.WORD, value_mappings=SOCKETS),
        rows=("instance", "replica"), requires=(Requires.GROUPS, Requires.ENGINE), width=8, height=6, drill_down=(TO_REPLICA,), panel_id=ids.NODE_OVER_PCIE,
    ),
)  # fmt: skip


NODE = Dashboard(
    uid=Uid.NODE,
    title=Text("Shardwatch / Node", "Shardwatch / 节点"),
    description=Text(
        "The cards of a node side by side: which one is different, since when, and whose work suffers.",
        "节点内各卡对比：哪张不同、从何时起、影响谁。",
    ),
    rows=(
        status(),
        Row(title=Text("The cards", "各卡"), panels=_GPUS),
        Row(title=Text("Work and spin", "工作与空转"), panels=_WORK),
        Row(title=Text("Memory, heat, clocks", "显存、温度、频率"), panels=_STATE),
        Row(title=Text("Links and errors", "链路与错误"), panels=_LINKS),
        Row(
            title=Text("More: MIG, and with series: full", "更多：MIG，及 series: full"), panels=MORE, collapsed=True
        ),
    ),
    annotations=OF_NODE,
    per_gpu=True,
)
