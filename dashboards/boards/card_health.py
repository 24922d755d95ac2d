"""Card health: errors, remapped memory, links and XIDs; which card must be taken out, and what to do with it."""

from __future__ import annotations

from alerts import panel_ids as named
from alerts.panel_ids import Board as Uid
from alerts.text import Text
from dashboards.board import Board, Row
from dashboards.boards import xids
from dashboards.boards.marks import OF_CARDS
from dashboards.boards.status import TO_NODE, UP, YES_BAD, status
from dashboards.limits import LIMITS, NONE_LOST, NONE_ODD
from dashboards.no_data_text import Needs
from dashboards.panels import Cell, Panel, Shown, State, column, history, lines, series, table, timeline
from dashboards.panels.record import Colour
from dashboards.variables import RANGE, WINDOW, seen
from exporter.catalog import metrics as m
from exporter.promql import Expr, both, increase, max_by, over_time, since, without_value

CARD = "{{instance}} GPU {{gpu}}"
XID = (Needs.XID,)
SWITCH = ("pci_bus_id", "sxid", "severity")
FABRIC = (
    State(1, Text("not started", "未启动"), Colour.WARNING),
    State(2, Text("in progress", "进行中"), Colour.WARNING),
    State(3, Text("completed", "完成"), Colour.GOOD),
)


_VERDICTS: tuple[Panel, ...] = (
    table(
        Text("Cards and what is wrong with them", "各卡及其问题"),
        Text(
            "One row a card. Green or 0 across is healthy. Failed remaps and uncorrected errors (since the card's last reset; "
            "corrected ones are of the chosen time) mean service; a pending remap means a reset at the next chance; a lost "
            "card, a node reboot at worst.",
            "每卡一行，全绿或全 0 即健康。重映射失败与不可纠正错误（自该卡上次复位以来；已纠正错误为所选时间内）：报修；待重映射：择机重置；丢卡：最坏需重启节点。",
        ),
        column(lambda: seen(m.GPU_UP), Text("State", "状态"), cell=Cell.COLOUR, states=UP),
        column(
            lambda: over_time("last", seen(m.GPU_ECC_ERRORS_TOTAL, error="uncorrected", scope="volatile"), WINDOW),
            Text("Uncorrected ECC", "不可纠正 ECC"), cell=Cell.COLOUR, limit=NONE_LOST, summed=True, decimals=0,
        ),
        column(
            lambda: increase(seen(m.GPU_ECC_ERRORS_TOTAL, error="corrected", scope="volatile"), RANGE),
            Text("Corrected ECC", "已纠正 ECC"), cell=Cell.COLOUR, limit=LIMITS.corrected_ecc, summed=True, decimals=0,
        ),
        column(lambda: seen(m.GPU_ROW_REMAP_PENDING), Text("Remap pending", "待重映射"), cell=Cell.COLOUR, states=YES_BAD),
        column(lambda: seen(m.GPU_ROW_REMAP_FAILED), Text("Remap failed", "重映射失败"), cell=Cell.COLOUR, states=YES_BAD),
        column(
            lambda: seen(m.GPU_NVLINK_LINKS_DOWN), Text("NVLinks down", "断开的 NVLink"), cell=Cell.COLOUR,
            limit=NONE_ODD, needs=(Needs.NVLINK,),
        ),
        column(
            lambda: seen(m.GPU_PCIE_LINK_DEGRADED), Text("PCIe degraded", "PCIe 降级"), cell=Cell.COLOUR,
            states=YES_BAD, needs=(Needs.TRAFFIC,),
        ),
        column(lambda: seen(m.GPU_DATA_AGE_SECONDS), Text("Age of data", "数据年龄"), cell=Cell.COLOUR, limit=LIMITS.card_age),
        rows=("instance", "gpu"), height=10, drill=(TO_NODE,), named=named.CARD_VERDICTS,
    ),
    table(
        Text("What the driver asks for", "驱动要求的动作"),
        Text(
            "Cards for which the driver asks for an action: reset, reboot, drain. Empty is healthy.",
            "驱动要求动作的卡：重置、重启、排空。为空即正常。",
        ),
        column(
            lambda: seen(m.GPU_RECOVERY_ACTION, action=without_value("none")).equals(1), Text("Asked", "要求"),
            cell=Cell.COLOUR, limit=NONE_LOST,
        ),
        rows=("instance", "gpu", "action"), needs=(Needs.TROUBLE,), width=12, height=7, drill=(TO_NODE,), named=named.CARD_RECOVERY,
    ),
    table(
        Text("Signals that are absent, and why", "缺失的信号及原因"),
        Text(
            "Figures that an answering card does not give: no_permission, mig, error, invalid; with series: full "
            "also unsupported. Their panels are empty for this reason, not for want of trouble.",
            "卡有应答但给不出的数据：no_permission、mig、error、invalid；series: full 时还有 unsupported。面板为空是这个原因，而不是没有问题。",
        ),
        column(lambda: seen(m.GPU_SIGNAL_MISSING_INFO), Text("Absent", "缺失"), cell=Cell.FACT),
        rows=("instance", "gpu", "signal", "reason"), needs=(Needs.TROUBLE,), width=12, height=7, named=named.CARD_SIGNALS,
    ),
)  # fmt: skip


_XIDS: tuple[Panel, ...] = (
    history(
        Text("XIDs by card", "XID（按卡）"),
        Text(
            "New XID errors at each moment; a row begins with the first of its code. 79 is a card that fell off the bus, 48 and 95 memory, 74 NVLink, "
            "119 and 120 the card's own processor: these take the card out of use until it or the node is reset. 13, 31 and 94 "
            "end a program, and the card goes on.",
            "各时刻新出现的 XID；每行自该编号首次出现时开始。79 掉卡；48、95 显存；74 NVLink；119、120 GSP：卡不可用，需复位卡或重启节点。13、31、94 只终止程序，卡可继续运行。",
        ),
        series(
            xids.fresh,
            f"{CARD} XID {{{{xid}}}}",
        ),
        limit=NONE_ODD, needs=XID, named=named.CARD_XIDS, drill=(TO_NODE,),
    ),
    table(
        Text("Errors of NVSwitches (SXid)", "NVSwitch 错误（SXid）"),
        Text(
            "What the switches between the cards reported by number, from the kernel log. A fatal one takes every job on "
            "this node's NVLinks with it; the cards' own XID 74 of the same moment is its echo.",
            "卡间交换机按编号上报的错误，来自内核日志。fatal 会中断本机所有走 NVLink 的任务；同一时刻各卡的 XID 74 只是它的回声。",
        ),
        column(
            lambda: since(max_by(seen(m.GPU_NVSWITCH_SXID_LAST_TIMESTAMP_SECONDS), "instance", *SWITCH)),
            Text("Ago", "距今"), shown=Shown.AGE,
        ),
        column(
            lambda: increase(seen(m.GPU_NVSWITCH_SXID_EVENTS_TOTAL), RANGE), Text("New", "新增"), cell=Cell.COLOUR,
            limit=NONE_ODD, summed=True, decimals=0,
        ),
        rows=("instance", *SWITCH), needs=(Needs.SXID,), width=12, height=8, named=named.CARD_SXIDS, drill=(TO_NODE,),
    ),
    table(
        Text("XIDs seen, and what to do", "出现过的 XID 与处置"),
        Text(
            "Codes that were seen, kernel-log history included, with their meaning, what to do, and how long ago the newest was.",
            "出现过的编号（含内核日志中的历史）、含义、处置方式，以及最近一次距今多久。",
        ),
        column(lambda: seen(m.GPU_XID_ACTION_INFO), Text("Seen", "已见"), cell=Cell.FACT),
        column(xids.ago, Text("Ago", "距今"), shown=Shown.AGE),
        rows=("instance", "gpu", "xid", "class", "action", "meaning"), needs=XID, width=24, height=6,
        drill=(TO_NODE,),
    ),
)  # fmt: skip


_MEMORY: tuple[Panel, ...] = (
    lines(
        Text("ECC errors by card", "ECC 错误（按卡）"),
        Text(
            "Errors in the last interval, corrected and uncorrected. One uncorrected error kills the process; a "
            "hundred corrected ones a day often come before it.",
            "最近时段内的 ECC 错误。一次不可纠正错误就会杀死进程；一天上百次已纠正错误往往是先兆。",
        ),
        series(
            lambda: max_by(increase(seen(m.GPU_ECC_ERRORS_TOTAL, scope="volatile"), WINDOW), "instance", "gpu", "error"),
            f"{CARD} {{{{error}}}}",
        ),
        needs=(Needs.SUPPORT,), width=12, named=named.CARD_ECC, drill=(TO_NODE,),
    ),
    timeline(
        Text("Rows to remap", "待重映射的行"),
        Text(
            "A memory row waits for the next reset to be replaced by a spare one. Plan a reset; the card runs on.",
            "有显存行等待下次重置时替换为备用行。安排重置；卡可继续运行。",
        ),
        series(lambda: max_by(seen(m.GPU_ROW_REMAP_PENDING), "instance", "gpu"), CARD),
        states=YES_BAD, needs=(Needs.SUPPORT,), width=12, named=named.CARD_REMAP, drill=(TO_NODE,),
    ),
    lines(
        Text("NVLinks up", "活跃 NVLink 数"),
        Text(
            "Active NVLinks by card. A step down costs bandwidth and often comes before a frozen replica. Their "
            "errors stand in the row below (series: full).",
            "各卡活跃的 NVLink 数。台阶下降意味着带宽损失，常是副本冻结的前兆。错误数见下方（series: full）。",
        ),
        series(lambda: max_by(seen(m.GPU_NVLINK_ACTIVE_LINKS), "instance", "gpu"), CARD),
        needs=(Needs.NVLINK,), width=12, named=named.CARD_LINKS, drill=(TO_NODE,),
    ),
    table(
        Text("Fabric problems", "Fabric 问题"),
        Text(
            "What keeps a card from using the NVSwitch fabric fully. Empty is healthy, or no such fabric.",
            "妨碍卡充分使用 NVSwitch fabric 的问题。为空即正常或没有此类 fabric。",
        ),
        column(lambda: seen(m.GPU_FABRIC_PROBLEM_INFO), Text("Seen", "已见"), cell=Cell.COLOUR, limit=NONE_ODD),
        rows=("instance", "gpu", "problem"), needs=(Needs.TROUBLE,), width=12, height=8, drill=(TO_NODE,), named=named.CARD_FABRIC,
    ),
)  # fmt: skip


def _fallen() -> Expr:
    each, worst = seen(m.GPU_NVLINK_UP), over_time("min", seen(m.GPU_NVLINK_UP), RANGE)
    return max_by(both(each, worst < 1, on=("instance", "gpu", "link")), "instance", "gpu", "link")


FULL = (Needs.FULL, Needs.SUPPORT)
_FULL: tuple[Panel, ...] = (
    lines(
        Text("NVLink errors", "NVLink 错误"),
        Text(
            "New errors by type, those of links to a processor on the same module too. A good link makes none; replays cost "
            "bandwidth before they cost the link.",
            "新增错误（按类型），含同模块处理器的 C2C 链路。好的链路没有错误；重放先损失带宽，再损失链路。",
        ),
        series(
            lambda: max_by(increase(seen(m.GPU_NVLINK_ERRORS_TOTAL), WINDOW), "instance", "gpu", "type"),
            f"{CARD} {{{{type}}}}",
        ),
        series(
            lambda: max_by(increase(seen(m.GPU_C2C_ERRORS_TOTAL), WINDOW), "instance", "gpu", "type"),
            f"{CARD} C2C {{{{type}}}}", needs=(Needs.C2C,),
        ),
        needs=(Needs.FULL, Needs.NVLINK), limit=LIMITS.nvlink_errors, drill=(TO_NODE,), named=named.CARD_LINK_ERRORS,
    ),
    lines(
        Text("PCIe replays", "PCIe 重传"),
        Text("Packets sent again. One a minute is a bad riser, slot or cable.", "重传的包。每分钟一次说明转接卡、插槽或线缆有问题。"),
        series(lambda: max_by(increase(seen(m.GPU_PCIE_REPLAYS_TOTAL), WINDOW), "instance", "gpu"), CARD),
        needs=FULL, limit=LIMITS.pcie_replays, drill=(TO_NODE,), named=named.CARD_REPLAYS,
    ),
    lines(
        Text("Rows remapped, pages retired", "重映射的行与停用的页"),
        Text(
            "New rows replaced (before Ampere: pages retired), by cause, in the last interval. Uncorrectable causes add "
            "up to a card for service.",
            "最近时段新替换的行（Ampere 之前为停用的页），按原因。不可纠正原因不断累积就该报修。",
        ),
        series(
            lambda: max_by(increase(seen(m.GPU_REMAPPED_ROWS_TOTAL), WINDOW), "instance", "gpu", "cause"),
            f"{CARD} {{{{cause}}}}",
        ),
        series(
            lambda: max_by(increase(seen(m.GPU_RETIRED_PAGES_TOTAL), WINDOW), "instance", "gpu", "cause"),
            Text(f"{CARD} {{{{cause}}}} (page)", f"{CARD} {{{{cause}}}}（页）"), needs=(Needs.OLDER,),
        ),
        needs=FULL, drill=(TO_NODE,),
    ),
    timeline(
        Text("NVSwitch fabric", "NVSwitch fabric"),
        Text(
            "State of the fabric by card. Anything but completed: no multi-card work starts.",
            "各卡 fabric 状态。不是“完成”就无法启动多卡任务。",
        ),
        series(lambda: max_by(seen(m.GPU_FABRIC_STATE), "instance", "gpu"), CARD),
        states=FABRIC, needs=FULL, width=12, drill=(TO_NODE,),
    ),
    timeline(
        Text("NVLinks that were down, by link", "断开过的 NVLink（按链路）"),
        Text(
            "Each link that was down at any time of the chosen range: which one fell first, and did its partner?",
            "所选时间内断开过的每条链路：哪条先断，对端呢？",
        ),
        series(_fallen, f"{CARD} {{{{link}}}}"),
        states=UP, needs=(Needs.FULL, Needs.NVLINK, Needs.TROUBLE), width=12, drill=(TO_NODE,),
    ),
    table(
        Text("Bits that arrive wrong over NVLink", "NVLink 误码率"),
        Text(
            "Share of bits that arrive wrong on the card's worst link: raw on the wire, effective after correction, symbol "
            "for symbols after correction. Effective above 1E-15 or so, or far above its neighbours: cable, socket or card.",
            "该卡最差链路的误码率：raw 为线上，effective 为纠错后，symbol 为纠错后的符号。effective 高于约 1E-15 或远高于邻卡：线缆、插座或卡有问题。",
        ),
        column(lambda: seen(m.GPU_NVLINK_BIT_ERROR_RATIO), Text("Share", "占比"), shown=Shown.TINY),
        rows=("instance", "gpu", "type"), needs=(Needs.FULL, Needs.NEWER), width=12, height=8, drill=(TO_NODE,),
    ),
    table(
        Text("What is at the other end of the NVLinks", "NVLink 的另一端"),
        Text(
            "Links of each card by what they lead to: another card, a switch, a processor. Cards of one node should "
            "agree; 'unknown' is often a link that is down.",
            "各卡 NVLink 的对端：另一张卡、交换机或处理器。同节点的卡应一致；unknown 往往是断开的链路。",
        ),
        column(lambda: seen(m.GPU_NVLINK_REMOTE_LINKS), Text("Links", "链路数")),
        rows=("instance", "gpu", "remote"), needs=(Needs.FULL, Needs.NVLINK), width=12, height=8, drill=(TO_NODE,),
    ),
)  # fmt: skip


_FACTS: tuple[Panel, ...] = (
    table(
        Text("Which card it is", "是哪张卡"),
        Text(
            "What whoever takes a card out must know: serial number, slot and VBIOS. Cards of one name with different "
            "VBIOS may differ in power and clocks.",
            "换卡所需：序列号、插槽与 VBIOS。同型号而 VBIOS 不同的卡，功率与频率可能不同。",
        ),
        column(lambda: seen(m.GPU_INFO), Text("Seen", "已见"), cell=Cell.FACT),
        rows=("instance", "gpu", "name", "serial", "pci_bus_id", "vbios_version", "numa_node"), height=10,
        drill=(TO_NODE,),
    ),
)  # fmt: skip


CARD_HEALTH = Board(
    uid=Uid.CARD_HEALTH,
    title=Text("Shardwatch / Card health", "Shardwatch / 卡健康"),
    shows=Text(
        "Errors, remapped memory, links and XIDs: which card must be taken out, and what to do with it.",
        "错误、重映射、链路与 XID：哪张卡该下线，怎么处置。",
    ),
    rows=(
        status(),
        Row(title=Text("Verdicts", "结论"), panels=_VERDICTS),
        Row(title=Text("XIDs", "XID"), panels=_XIDS),
        Row(title=Text("Memory and links", "显存与链路"), panels=_MEMORY),
        Row(title=Text("Serial numbers, slots, VBIOS", "序列号、插槽与 VBIOS"), panels=_FACTS, collapsed=True),
        Row(title=Text("More, with series: full", "更多（series: full）"), panels=_FULL, collapsed=True),
    ),
    notes=OF_CARDS,
    by_card=True,
)
