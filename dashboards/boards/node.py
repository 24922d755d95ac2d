"""Node: the cards side by side, to see which one is different, since when, and whose work suffers."""

from __future__ import annotations

from alerts import panel_ids as named
from alerts.panel_ids import Board as Uid
from alerts.text import Text
from dashboards.board import Board, Row
from dashboards.boards import xids
from dashboards.boards.marks import OF_NODE
from dashboards.boards.node_full import MORE
from dashboards.boards.status import TO_CARD, TO_REPLICA, UP, YES_BAD, status
from dashboards.boards.waiting import CAUSES, cause
from dashboards.limits import LIMITS, NONE_ODD, NONE_WASTED
from dashboards.no_data_text import Needs
from dashboards.panels import Cell, Panel, Shown, State, bars, column, lines, series, table, timeline
from dashboards.panels.record import Colour
from dashboards.variables import WINDOW, owned, owned_lately, seen
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

CARD = "{{instance}} GPU {{gpu}}"
BY_CARD = ("instance", "gpu")
SUPPORT = (Needs.SUPPORT,)
PCIE = (State(0, Text("NVLink", "NVLink"), Colour.GOOD), State(1, Text("PCIe", "PCIe"), Colour.WARNING))

SOCKETS = (State(0, Text("one", "同一个"), Colour.GOOD), State(1, Text("several", "跨插槽"), Colour.WARNING))


def held_down(*labels: str, **matchers: Match) -> Expr:
    """Give the share of time in which clocks were held down; for reasons that the driver does not time, of readings."""
    timed = rate(seen(m.GPU_CLOCK_EVENT_SECONDS_TOTAL, **matchers), WINDOW)
    sampled = over_time("avg", seen(m.GPU_CLOCK_EVENT_ACTIVE, **matchers), WINDOW)
    assert timed.unit is not None
    return max_by(timed | sampled.as_unit(timed.unit, per_second=timed.per_second), *BY_CARD, *labels)


def throttled() -> Expr:
    """Give the share of time in which heat or a power brake held a card's clocks down."""
    return held_down(reason=without_value("sw_power_cap"))


def memory_share() -> Expr:
    """Give the share of a card's memory that is allocated."""
    return max_by(seen(m.GPU_MEMORY_USED_BYTES) / seen(m.GPU_MEMORY_TOTAL_BYTES), *BY_CARD)


def _both_ways(*counters: Metric) -> Expr:
    sent, received = (max_by(rate(seen(one), WINDOW), *BY_CARD) for one in counters)
    return sent + received


_CARDS: tuple[Panel, ...] = (
    table(
        Text("Cards side by side", "各卡对比"),
        Text(
            "One row a card: look down the columns for the one that differs. Utilisation without SM work is "
            "spinning: the card waits for another; 'Others wait' names the card that they wait for, by the cause. An empty "
            "cell is a signal that the card does not give; a red 'down' with the rest empty is a lost card.",
            "每卡一行，竖着看，找不同的那一张。有利用率而无 SM 工作即空转：在等别的卡；“大家在等”标出被等的卡及原因。空单元格表示该卡没有此信号；红色“停”且其余为空表示丢卡。",
        ),
        column(lambda: seen(m.GPU_UP), Text("State", "状态"), cell=Cell.COLOUR, states=UP),
        column(
            cause, Text("Others wait", "大家在等"), cell=Cell.COLOUR, states=CAUSES,
            needs=(Needs.STRAGGLER,),
        ),
        column(lambda: seen(m.GPU_UTILIZATION_RATIO), Text("Utilisation", "利用率"), cell=Cell.BAR, most=1),
        column(
            lambda: seen(m.GPU_SM_ACTIVE_RATIO), Text("SM work", "SM 工作"), cell=Cell.BAR, most=1, needs=SUPPORT,
        ),
        column(memory_share, Text("Memory", "显存"), cell=Cell.BAR, limit=LIMITS.card_memory, most=1),
        column(
            lambda: seen(m.GPU_POWER_WATTS) / seen(m.GPU_POWER_LIMIT_WATTS), Text("Power of limit", "功率/上限"),
            cell=Cell.BAR, most=1,
        ),
        column(
            lambda: seen(m.GPU_TEMPERATURE_MARGIN_CELSIUS), Text("Thermal margin", "温度余量"), cell=Cell.COLOUR,
            limit=LIMITS.temperature_margin,
        ),
        column(lambda: seen(m.GPU_CLOCK_HERTZ, domain="sm"), Text("SM clock", "SM 频率")),
        column(throttled, Text("Throttled", "降频占比"), cell=Cell.COLOUR, limit=LIMITS.throttled_share),
        column(lambda: seen(m.GPU_NVLINK_ACTIVE_LINKS), Text("NVLinks", "NVLink 数"), needs=(Needs.NVLINK,)),
        column(
            lambda: seen(m.GPU_STRAGGLER_SLOWDOWN_RATIO), Text("Slower by factor", "慢几倍"), shown=Shown.FACTOR,
            needs=(Needs.STRAGGLER,),
        ),
        rows=BY_CARD, height=10, drill=(TO_CARD,),
    ),
    table(
        Text("Who uses which card", "谁在用哪张卡"),
        Text(
            "Replica and rank of each card, with the memory that is allocated on it. A card that is not listed "
            "belongs to nobody that Shardwatch knows.",
            "每张卡所属的副本与 rank，及其已分配显存。未列出的卡不属于任何已知副本。",
        ),
        column(lambda: owned_lately(seen(m.GPU_UP)), Text("State", "状态"), cell=Cell.COLOUR, states=UP),
        column(lambda: owned(seen(m.GPU_MEMORY_USED_BYTES)), Text("Memory used", "已用显存"), cell=Cell.BAR),
        rows=("instance", "gpu", "replica", "model", "rank"), needs=(Needs.ENGINE,), width=12, height=10,
        drill=(TO_REPLICA,),
    ),
    timeline(
        Text("Cards answering", "卡是否应答"),
        Text(
            "Up and down over time, by card. A gap in a strip is the exporter, not the card.",
            "各卡应答情况随时间变化。条带中断是采集器的问题，不是卡的问题。",
        ),
        series(lambda: max_by(seen(m.GPU_UP), *BY_CARD), CARD),
        states=UP, width=12, height=10, drill=(TO_CARD,),
    ),
)  # fmt: skip


_WORK: tuple[Panel, ...] = (
    lines(
        Text("Utilisation by card", "利用率（按卡）"),
        Text(
            "Share of time in which a kernel was resident. It says nothing about work: a card that waits in a "
            "collective shows 100 %. Bad is one line apart from the others of its replica.",
            "有内核驻留的时间占比。不代表在做事：在集合通信中等待的卡也显示 100 %。同一副本中有一条线偏离即异常。",
        ),
        series(lambda: max_by(seen(m.GPU_UTILIZATION_RATIO), *BY_CARD), CARD),
        most=1, named=named.NODE_UTILIZATION, drill=(TO_CARD,),
    ),
    bars(
        Text("Busy without work", "忙而无功"),
        Text(
            "Utilisation minus SM work: how much of a card's busy time is spinning. The card with the LOWEST bar "
            "of a waiting group is the one that the others wait for.",
            "利用率减去 SM 工作：忙碌时间中空转的部分。一组都在等待时，条最短的那张就是被等的卡。",
        ),
        series(lambda: max_by(seen(m.GPU_UTILIZATION_RATIO) - seen(m.GPU_SM_ACTIVE_RATIO), *BY_CARD), CARD),
        needs=SUPPORT, limit=NONE_WASTED, most=1, height=8, drill=(TO_CARD,),
    ),
    lines(
        Text("Power by card", "功率（按卡）"),
        Text(
            "Watts drawn; the dashed line is the lowest limit of the node. Power follows real work: a card far "
            "below its group does less, a card at the limit is slowed by it.",
            "功耗；虚线为节点内最低的功率上限。功率反映真实工作量：明显低于同组的卡干得少；贴着上限的卡被限速。",
        ),
        series(lambda: max_by(seen(m.GPU_POWER_WATTS), *BY_CARD), CARD),
        series(
            lambda: min_by(seen(m.GPU_POWER_LIMIT_WATTS), "instance"),
            Text("limit {{instance}}", "上限 {{instance}}"), dashed=True,
        ),
        named=named.NODE_POWER, drill=(TO_CARD,),
    ),
    lines(
        Text("Tensor work by card", "张量核心工作（按卡）"),
        Text(
            "Share of time in which the tensor cores worked. Cards of a group do the same work: one that does less is "
            "waited for, or has lost its share.",
            "张量核心工作的时间占比。同组的卡做同样的工作：偏低的一张在被等，或分到的活变少。",
        ),
        series(lambda: max_by(seen(m.GPU_TENSOR_ACTIVE_RATIO), *BY_CARD), CARD),
        needs=SUPPORT, most=1, width=12, drill=(TO_CARD,),
    ),
    lines(
        Text("Memory bandwidth in use", "显存带宽使用率"),
        Text(
            "Bandwidth used over the highest possible. Decoding lives on it: high is good work, low with high "
            "utilisation is waiting.",
            "已用带宽占最大带宽之比。解码主要靠它：高是在好好干活；利用率高而此值低是在等待。",
        ),
        series(lambda: max_by(seen(m.GPU_DRAM_ACTIVE_RATIO), *BY_CARD), CARD),
        needs=SUPPORT, most=1, width=12, drill=(TO_CARD,),
    ),
)  # fmt: skip


_STATE: tuple[Panel, ...] = (
    lines(
        Text("Memory by card", "显存（按卡）"),
        Text(
            "Share of memory allocated. Engines take about 90 % at start and keep it: that is healthy. Bad is a "
            "card that climbs beyond the others of its replica.",
            "已分配显存占比。引擎启动即占约 90 % 并保持，属正常。异常是某卡持续高于同副本的其他卡。",
        ),
        series(memory_share, CARD),
        limit=LIMITS.card_memory, most=1, named=named.NODE_MEMORY, drill=(TO_CARD,),
    ),
    lines(
        Text("Margin to slowdown", "距降频温度的余量"),
        Text(
            "Degrees left until the card slows itself down. Near 0 it throttles, and its whole replica waits.",
            "距离卡自行降频还剩多少度。接近 0 就会降频，整个副本都要等它。",
        ),
        series(lambda: max_by(seen(m.GPU_TEMPERATURE_MARGIN_CELSIUS), *BY_CARD), CARD),
        limit=LIMITS.temperature_margin, least=None, named=named.NODE_TEMPERATURE, drill=(TO_CARD,),
    ),
    lines(
        Text("Clocks held down, share of time", "频率被压低的时间占比"),
        Text(
            "By card and reason. Thermal and power-brake slowdowns are trouble; the power cap is a budget at "
            "work. Empty is healthy.",
            "按卡与原因。热降频与功率制动是故障；功率上限属于预算生效。为空即正常。",
        ),
        series(
            lambda: held_down("reason") > 0,
            f"{CARD} {{{{reason}}}}",
        ),
        needs=(Needs.TROUBLE,), limit=LIMITS.throttled_share, most=1, named=named.NODE_THROTTLE, drill=(TO_CARD,),
    ),
    timeline(
        Text("Throttle timeline", "降频时间线"),
        Text(
            "When heat or a power brake held a card's clocks down; compare with the moment at which latency rose.",
            "热或功率制动压低频率的时段；与延迟上升的时刻对照。",
        ),
        series(lambda: max_by(seen(m.GPU_CLOCK_EVENT_ACTIVE, reason=without_value("sw_power_cap")), *BY_CARD), CARD),
        states=YES_BAD, width=8, drill=(TO_CARD,),
    ),
    lines(
        Text("SM clock by card", "SM 频率（按卡）"),
        Text(
            "Clock of the processors. One card below the others of its replica sets the pace for all of them.",
            "处理器频率。同副本中频率较低的一张卡决定了所有卡的节奏。",
        ),
        series(lambda: max_by(seen(m.GPU_CLOCK_HERTZ, domain="sm"), *BY_CARD), CARD),
        width=8, drill=(TO_CARD,),
    ),
    lines(
        Text("Temperature by sensor", "温度（按传感器）"),
        Text(
            "Core and memory. 85 °C is normal for one make and too much for another: judge by the margin; the line "
            "counts for cards that tell no limit.",
            "核心与显存温度。85 °C 对某些型号正常、对另一些过高：以余量为准；此线用于不提供上限的卡。",
        ),
        series(lambda: max_by(seen(m.GPU_TEMPERATURE_CELSIUS), *BY_CARD, "sensor"), f"{CARD} {{{{sensor}}}}"),
        limit=LIMITS.temperature, width=8, drill=(TO_CARD,),
    ),
)  # fmt: skip


_LINKS: tuple[Panel, ...] = (
    lines(
        Text("PCIe and NVLink traffic by card", "PCIe 与 NVLink 流量（按卡）"),
        Text(
            "Bytes sent and received. Group traffic on PCIe where NVLink is expected makes eight cards slower than four; "
            "a line that drops alone is a link.",
            "收发字节数之和。本应走 NVLink 的组通信走了 PCIe，会使八卡比四卡还慢；单独下降的一条线是链路问题。",
        ),
        series(
            lambda: _both_ways(m.GPU_PCIE_TRANSMIT_BYTES_TOTAL, m.GPU_PCIE_RECEIVE_BYTES_TOTAL), f"{CARD} PCIe"
        ),
        series(
            lambda: _both_ways(m.GPU_NVLINK_TRANSMIT_BYTES_TOTAL, m.GPU_NVLINK_RECEIVE_BYTES_TOTAL),
            f"{CARD} NVLink", needs=(Needs.NVLINK,),
        ),
        height=10, named=named.NODE_LINKS, drill=(TO_CARD,),
    ),
    table(
        Text("Links that are worse than they should be", "降级的链路"),
        Text(
            "PCIe links below their best although the card worked, and NVLinks that were active before. One row "
            "a card; both columns 0 is healthy.",
            "卡在工作却低于最佳状态的 PCIe 链路，以及曾经活跃而现在断开的 NVLink。每卡一行，两列均为 0 即正常。",
        ),
        column(lambda: seen(m.GPU_UP), Text("State", "状态"), cell=Cell.WORD, states=UP),
        column(
            lambda: seen(m.GPU_PCIE_LINK_DEGRADED), Text("PCIe degraded", "PCIe 降级"), cell=Cell.COLOUR,
            states=YES_BAD, needs=(Needs.TRAFFIC,),
        ),
        column(
            lambda: seen(m.GPU_NVLINK_LINKS_DOWN), Text("NVLinks down", "断开的 NVLink"), cell=Cell.COLOUR,
            limit=NONE_ODD, needs=(Needs.NVLINK,),
        ),
        rows=BY_CARD, width=10, height=10, drill=(TO_CARD,), named=named.NODE_DEGRADED,
    ),
    table(
        Text("How the cards of a replica reach each other", "副本内各卡的互联路径"),
        Text(
            "The slowest path between two cards that work together: NV# is NVLink; PIX, PXB, PHB and NODE are "
            "PCIe; SYS crosses sockets and is the slowest.",
            "一起工作的两卡间最慢的路径：NV# 为 NVLink；PIX、PXB、PHB、NODE 为 PCIe；SYS 跨 CPU 插槽，最慢。",
        ),
        column(lambda: seen(m.LLM_CARD_PATH_INFO), Text("Seen", "已见"), cell=Cell.FACT),
        rows=("instance", "replica", "path"), needs=(Needs.GROUPS, Needs.ENGINE), width=6, height=10,
        drill=(TO_REPLICA,),
    ),
    table(
        Text("XIDs in the chosen time", "所选时间内的 XID"),
        Text(
            f"Errors that the driver reported by number. {xids.RESETTING} take the card out of "
            "use until it or the node is reset; what to do about each stands on Card health.",
            f"驱动按编号上报的错误。出现 {xids.RESETTING} 时该卡不可用，需复位卡或重启节点；各编号的处置见“卡健康”。",
        ),
        column(
            xids.counted, Text("Events", "次数"), cell=Cell.COLOUR, limit=NONE_ODD, summed=True, decimals=0,
        ),
        rows=(*BY_CARD, "xid"), needs=(Needs.XID,), width=16, height=6, drill=(TO_CARD,),
    ),
    table(
        Text("Replicas that talk over PCIe", "走 PCIe 通信的副本"),
        Text(
            "PCIe in orange: cards of the replica have no NVLink between them, and more cards may be slower than "
            "fewer. Across sockets it is slower still.",
            "橙色 PCIe：该副本的卡之间没有 NVLink，卡多可能反而更慢；跨 CPU 插槽则更慢。",
        ),
        column(lambda: seen(m.LLM_CARDS_OVER_PCIE), Text("Talk over", "通信方式"), cell=Cell.COLOUR, states=PCIE),
        column(lambda: seen(m.LLM_CARDS_CROSS_SOCKETS), Text("Sockets", "插槽"), cell=Cell.WORD, states=SOCKETS),
        rows=("instance", "replica"), needs=(Needs.GROUPS, Needs.ENGINE), width=8, height=6, drill=(TO_REPLICA,), named=named.NODE_OVER_PCIE,
    ),
)  # fmt: skip


NODE = Board(
    uid=Uid.NODE,
    title=Text("Shardwatch / Node", "Shardwatch / 节点"),
    shows=Text(
        "The cards of a node side by side: which one is different, since when, and whose work suffers.",
        "节点内各卡对比：哪张不同、从何时起、影响谁。",
    ),
    rows=(
        status(),
        Row(title=Text("The cards", "各卡"), panels=_CARDS),
        Row(title=Text("Work and spin", "工作与空转"), panels=_WORK),
        Row(title=Text("Memory, heat, clocks", "显存、温度、频率"), panels=_STATE),
        Row(title=Text("Links and errors", "链路与错误"), panels=_LINKS),
        Row(
            title=Text("More: MIG, and with series: full", "更多：MIG，及 series: full"), panels=MORE, collapsed=True
        ),
    ),
    notes=OF_NODE,
    by_card=True,
)
