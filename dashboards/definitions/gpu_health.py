"""GPU health: errors, remapped memory, links and XIDs; which GPU to take out of service, and what to do with it."""

from __future__ import annotations

from alerts import panel_ids as ids
from alerts.panel_ids import DashboardUid as Uid
from dashboards.dashboard import Dashboard, Row
from dashboards.definitions import xids
from dashboards.definitions.annotations import OF_GPUS
from dashboards.definitions.nics import NICS
from dashboards.definitions.status import TO_NODE, UP, YES_IS_BAD, status
from dashboards.no_data_text import Requires
from dashboards.panels import (
    Cell,
    NumberFormat,
    Panel,
    ValueMapping,
    column,
    series,
    state_timeline,
    status_history,
    table,
    time_series,
)
from dashboards.panels.panel import Colour
from dashboards.thresholds import ANY_CRITICAL, ANY_WARNING, THRESHOLDS
from dashboards.variables import RANGE, RATE_INTERVAL, selected
from exporter.catalog import metrics as m
from exporter.model.text import Text
from exporter.promql import Expr, and_on, increase, max_by, over_time, since, without_value

GPU_LEGEND = "{{instance}} GPU {{gpu}}"
XID = (Requires.XID,)
SWITCH = ("pci_bus_id", "sxid", "severity")
FABRIC = (
    ValueMapping(1, Text("not started", "未启动"), Colour.WARNING),
    ValueMapping(2, Text("in progress", "进行中"), Colour.WARNING),
    ValueMapping(3, Text("completed", "完成"), Colour.GOOD),
)


_STATUS: tuple[Panel, ...] = (
    table(
        Text("GPU problems", "各卡的问题"),
        Text(
            "GPUs with a problem; a healthy GPU has no row. Remap failed or uncorrected errors (since the GPU's "
            "last reset; corrected errors in the selected time range): request service. Remap pending: reset at "
            "the next opportunity. Down: reset the GPU or reboot the node.",
            "只列出有问题的卡。重映射失败与不可纠正错误（自该卡上次复位以来；已纠正错误为所选时间内）：报修；待重映射：择机复位；掉卡：复位该卡或重启节点。",
        ),
        column(lambda: selected(m.GPU_UP).equals(0), Text("State", "状态"), cell=Cell.COLOUR, value_mappings=UP),
        column(
            lambda: over_time("last", selected(m.GPU_ECC_ERRORS_TOTAL, error="uncorrected", scope="volatile"), RATE_INTERVAL) > 0,
            Text("Uncorrected ECC", "不可纠正 ECC"), cell=Cell.COLOUR, threshold=ANY_CRITICAL, summed=True, decimals=0,
        ),
        column(
            lambda: increase(selected(m.GPU_ECC_ERRORS_TOTAL, error="corrected", scope="volatile"), RANGE) > 0,
            Text("Corrected ECC", "已纠正 ECC"), cell=Cell.COLOUR, threshold=THRESHOLDS.corrected_ecc, summed=True, decimals=0,
        ),
        column(
            lambda: selected(m.GPU_SRAM_ECC_THRESHOLD_EXCEEDED).equals(1), Text("SRAM threshold", "SRAM 超阈值"),
            cell=Cell.COLOUR, value_mappings=YES_IS_BAD,
        ),
        column(lambda: selected(m.GPU_ROW_REMAP_PENDING).equals(1), Text("Remap pending", "待重映射"), cell=Cell.COLOUR, value_mappings=YES_IS_BAD),
        column(lambda: selected(m.GPU_ROW_REMAP_FAILED).equals(1), Text("Remap failed", "重映射失败"), cell=Cell.COLOUR, value_mappings=YES_IS_BAD),
        column(
            lambda: selected(m.GPU_NVLINK_LINKS_DOWN) > 0, Text("NVLinks down", "断开的 NVLink"), cell=Cell.COLOUR,
            threshold=ANY_WARNING, requires=(Requires.NVLINK,),
        ),
        column(
            lambda: selected(m.GPU_PCIE_LINK_DEGRADED).equals(1), Text("PCIe degraded", "PCIe 降级"), cell=Cell.COLOUR,
            value_mappings=YES_IS_BAD, requires=(Requires.TRAFFIC,),
        ),
        column(lambda: selected(m.GPU_DATA_AGE_SECONDS) > THRESHOLDS.gpu_data_age.warning, Text("Age of data", "数据年龄"), cell=Cell.COLOUR, threshold=THRESHOLDS.gpu_data_age),
        rows=("instance", "gpu"), requires=(Requires.TROUBLE,), drill_down=(TO_NODE,), panel_id=ids.GPU_VERDICTS, width=24, height=7,
    ),
    table(
        Text("XIDs and recommended actions", "XID 与建议操作"),
        Text(
            "Codes that occurred, kernel-log history included, with meaning, recommended action and age of the "
            "newest.",
            "出现过的编号（含内核日志中的历史）、含义、建议操作，以及最近一次距今多久。",
        ),
        column(lambda: selected(m.GPU_XID_ACTION_INFO), Text("Seen", "已见"), cell=Cell.FACT),
        column(xids.ago, Text("Age", "距今"), number_format=NumberFormat.AGE),
        rows=("instance", "gpu", "xid", "class", "action", "meaning"), requires=XID, width=24, height=6,
        drill_down=(TO_NODE,),
    ),
    table(
        Text("Recovery actions requested by the driver", "驱动要求的恢复操作"),
        Text(
            "GPUs for which the driver requests an action: reset, reboot, drain. Empty is healthy.",
            "驱动要求执行操作的卡：复位、重启、排空。为空即正常。",
        ),
        column(
            lambda: selected(m.GPU_RECOVERY_ACTION, action=without_value("none")).equals(1), Text("Requested", "要求"),
            cell=Cell.COLOUR, threshold=ANY_CRITICAL,
        ),
        rows=("instance", "gpu", "action"), requires=(Requires.TROUBLE,), drill_down=(TO_NODE,), panel_id=ids.GPU_RECOVERY, width=12, height=6,
    ),
    table(
        Text("Verdicts on GPUs", "GPU 判定"),
        Text(
            "GPUs that schedulers are told not to use (gpu_verdict): drain, eject or unknown, with the reason. Empty: "
            "all serve.",
            "调度器不应使用的卡（gpu_verdict）：drain、eject 或 unknown，并附原因。为空即全部可用。",
        ),
        column(lambda: selected(m.GPU_VERDICT, state=without_value("serve")), Text("In force", "生效"), cell=Cell.FACT),
        rows=("instance", "gpu", "state", "reason"), requires=(Requires.TROUBLE,), drill_down=(TO_NODE,), width=12, height=6,
    ),
    table(
        Text("Missing signals and reasons", "缺失的信号及原因"),
        Text(
            "Values that a GPU does not provide although it is up: no_permission, mig, disabled, error, invalid; with "
            "series: full also unsupported.",
            "卡在线但不提供的数据：no_permission、mig、disabled、error、invalid；series: full 时还有 unsupported。",
        ),
        column(lambda: selected(m.GPU_SIGNAL_MISSING_INFO), Text("Absent", "缺失"), cell=Cell.FACT),
        rows=("instance", "gpu", "signal", "reason"), requires=(Requires.TROUBLE,), width=24, height=6, panel_id=ids.GPU_SIGNALS,
    ),
)  # fmt: skip


def _lost() -> Expr:
    """Return 1 while a GPU does not answer, for each that was lost at any time of the range."""
    worst = over_time("min", selected(m.GPU_UP), RANGE)
    return max_by(and_on(1 - selected(m.GPU_UP), worst < 1, on=("job", "instance", "uuid")), "instance", "gpu")


_XIDS: tuple[Panel, ...] = (
    status_history(
        Text("XIDs by GPU", "XID（按卡）"),
        Text(
            "New XID errors over time. 79: GPU fallen off the bus; 48, 95: memory; 74: NVLink; 119, 120: GSP. "
            "These make the GPU unusable until it is reset or the node is rebooted. 13, 31 and 94 end a process; "
            "the GPU stays usable. A GPU that does not answer stays red.",
            "各时刻新出现的 XID；每行自该编号首次出现时开始。79 掉卡；48、95 显存；74 NVLink；119、120 GSP：卡不可用，需复位卡或重启节点。13、31、94 只终止程序，卡可继续运行。无应答的卡保持红色。",
        ),
        series(xids.fresh, f"{GPU_LEGEND} XID {{{{xid}}}}"),
        series(
            _lost, Text(f"{GPU_LEGEND} not answering", f"{GPU_LEGEND} 无应答"), threshold=ANY_CRITICAL,
            requires=(Requires.TROUBLE,),
        ),
        threshold=ANY_WARNING, value_mappings=(ValueMapping(0, Text("none", "无"), Colour.ABSENT),), requires=XID, panel_id=ids.GPU_XIDS, drill_down=(TO_NODE,),
    ),
    table(
        Text("NVSwitch errors (SXid)", "NVSwitch 错误（SXid）"),
        Text(
            "Errors of the NVSwitches from the kernel log. A fatal error affects every job that uses NVLink on "
            "this node; XID 74 of the GPUs at the same time is a consequence.",
            "NVSwitch 的错误，来自内核日志。fatal 会影响本机所有走 NVLink 的任务；同一时刻各卡的 XID 74 是其伴随现象。",
        ),
        column(
            lambda: since(max_by(selected(m.GPU_NVSWITCH_SXID_LAST_TIMESTAMP_SECONDS), "instance", *SWITCH)),
            Text("Age", "距今"), number_format=NumberFormat.AGE,
        ),
        column(
            lambda: increase(selected(m.GPU_NVSWITCH_SXID_EVENTS_TOTAL), RANGE), Text("New", "新增"), cell=Cell.COLOUR,
            threshold=ANY_WARNING, summed=True, decimals=0,
        ),
        rows=("instance", *SWITCH), requires=(Requires.SXID,), width=12, height=8, panel_id=ids.GPU_SXIDS, drill_down=(TO_NODE,),
    ),
)  # fmt: skip


_MEMORY: tuple[Panel, ...] = (
    time_series(
        Text("ECC errors by GPU", "ECC 错误（按卡）"),
        Text(
            "Errors in the last interval. An uncorrected error ends the process; a hundred corrected ones per "
            "day often precede it.",
            "最近时段内的 ECC 错误。一次不可纠正错误就会杀死进程；一天上百次已纠正错误往往是先兆。",
        ),
        series(
            lambda: max_by(increase(selected(m.GPU_ECC_ERRORS_TOTAL, scope="volatile"), RATE_INTERVAL), "instance", "gpu", "error"),
            f"{GPU_LEGEND} {{{{error}}}}",
        ),
        requires=(Requires.SUPPORT,), panel_id=ids.GPU_ECC, drill_down=(TO_NODE,), width=24, height=8,
    ),
    state_timeline(
        Text("Row remapping pending", "待重映射的行"),
        Text(
            "A memory row will be remapped at the next reset. Schedule a reset; the GPU stays usable.",
            "有显存行将在下次复位时重映射。安排复位；卡可继续运行。",
        ),
        series(lambda: max_by(selected(m.GPU_ROW_REMAP_PENDING), "instance", "gpu"), GPU_LEGEND),
        value_mappings=YES_IS_BAD, requires=(Requires.SUPPORT,), width=12, panel_id=ids.GPU_REMAP, drill_down=(TO_NODE,),
    ),
    time_series(
        Text("NVLinks up", "活跃 NVLink 数"),
        Text(
            "Active NVLinks by GPU. A step down costs bandwidth and often precedes a frozen replica.",
            "各卡活跃的 NVLink 数。台阶下降意味着带宽损失，常是副本冻结的前兆。",
        ),
        series(lambda: max_by(selected(m.GPU_NVLINK_ACTIVE_LINKS), "instance", "gpu"), GPU_LEGEND),
        requires=(Requires.NVLINK,), width=12, panel_id=ids.GPU_LINKS, drill_down=(TO_NODE,),
    ),
    table(
        Text("Fabric problems", "Fabric 问题"),
        Text(
            "Problems that keep a GPU from fully using the NVSwitch fabric. Empty is healthy, or there is no "
            "such fabric.",
            "妨碍卡充分使用 NVSwitch fabric 的问题。为空即正常或没有此类 fabric。",
        ),
        column(lambda: selected(m.GPU_FABRIC_PROBLEM_INFO), Text("Seen", "已见"), cell=Cell.COLOUR, threshold=ANY_WARNING),
        rows=("instance", "gpu", "problem"), requires=(Requires.TROUBLE,), width=12, height=8, drill_down=(TO_NODE,), panel_id=ids.GPU_FABRIC,
    ),
)  # fmt: skip


def _fallen() -> Expr:
    each, worst = selected(m.GPU_NVLINK_UP), over_time("min", selected(m.GPU_NVLINK_UP), RANGE)
    return max_by(and_on(each, worst < 1, on=("instance", "gpu", "link")), "instance", "gpu", "link")


FULL = (Requires.FULL, Requires.SUPPORT)
_FULL: tuple[Panel, ...] = (
    time_series(
        Text("NVLink errors", "NVLink 错误"),
        Text(
            "New errors by type, including C2C links. A healthy link has none; replays cost bandwidth before the "
            "link fails.",
            "新增错误（按类型），含 C2C 链路。正常链路没有错误；重放先损失带宽，再损失链路。",
        ),
        series(
            lambda: max_by(increase(selected(m.GPU_NVLINK_ERRORS_TOTAL), RATE_INTERVAL), "instance", "gpu", "type"),
            f"{GPU_LEGEND} {{{{type}}}}",
        ),
        series(
            lambda: max_by(increase(selected(m.GPU_C2C_ERRORS_TOTAL), RATE_INTERVAL), "instance", "gpu", "type"),
            f"{GPU_LEGEND} C2C {{{{type}}}}", requires=(Requires.C2C,),
        ),
        requires=(Requires.FULL, Requires.NVLINK), threshold=THRESHOLDS.nvlink_errors, drill_down=(TO_NODE,), panel_id=ids.GPU_LINK_ERRORS,
    ),
    time_series(
        Text("PCIe replays", "PCIe 重传"),
        Text("Repeated packets. One per minute is a faulty riser, slot or cable.", "重传的包。每分钟一次说明转接卡、插槽或线缆有问题。"),
        series(lambda: max_by(increase(selected(m.GPU_PCIE_REPLAYS_TOTAL), RATE_INTERVAL), "instance", "gpu"), GPU_LEGEND),
        requires=FULL, threshold=THRESHOLDS.pcie_replays, drill_down=(TO_NODE,), panel_id=ids.GPU_REPLAYS,
    ),
    time_series(
        Text("Rows remapped, pages retired", "重映射的行与停用的页"),
        Text(
            "Rows remapped (before Ampere: pages retired) by cause, in the last interval. Repeated uncorrectable "
            "causes: request service.",
            "最近时段新替换的行（Ampere 之前为停用的页），按原因。不可纠正原因不断累积就该报修。",
        ),
        series(
            lambda: max_by(increase(selected(m.GPU_REMAPPED_ROWS_TOTAL), RATE_INTERVAL), "instance", "gpu", "cause"),
            f"{GPU_LEGEND} {{{{cause}}}}",
        ),
        series(
            lambda: max_by(increase(selected(m.GPU_RETIRED_PAGES_TOTAL), RATE_INTERVAL), "instance", "gpu", "cause"),
            Text(f"{GPU_LEGEND} {{{{cause}}}} (page)", f"{GPU_LEGEND} {{{{cause}}}}（页）"), requires=(Requires.OLDER,),
        ),
        requires=FULL, drill_down=(TO_NODE,),
    ),
    state_timeline(
        Text("NVSwitch fabric", "NVSwitch fabric"),
        Text(
            "Fabric state by GPU. Other than completed: no multi-GPU work can start.",
            "各卡 fabric 状态。不是“完成”就无法启动多卡任务。",
        ),
        series(lambda: max_by(selected(m.GPU_FABRIC_STATE), "instance", "gpu"), GPU_LEGEND),
        value_mappings=FABRIC, requires=FULL, width=12, drill_down=(TO_NODE,),
    ),
    state_timeline(
        Text("NVLinks that were down, by link", "断开过的 NVLink（按链路）"),
        Text(
            "Each link that was down at any time of the selected range: which failed first, and did its peer?",
            "所选时间内断开过的每条链路：哪条先断，对端呢？",
        ),
        series(_fallen, f"{GPU_LEGEND} {{{{link}}}}"),
        value_mappings=UP, requires=(Requires.FULL, Requires.NVLINK, Requires.TROUBLE), width=12, drill_down=(TO_NODE,),
    ),
    table(
        Text("NVLink bit error ratio", "NVLink 误码率"),
        Text(
            "Bit error ratio of the GPU's worst link: raw on the wire, effective after correction, symbol for "
            "symbols after correction. Effective above about 1E-15, or far above that of the other GPUs: cable, "
            "socket or GPU.",
            "该卡最差链路的误码率：raw 为线上，effective 为纠错后，symbol 为纠错后的符号。effective 高于约 1E-15 或远高于邻卡：线缆、插座或卡有问题。",
        ),
        column(lambda: selected(m.GPU_NVLINK_BIT_ERROR_RATIO), Text("Ratio", "占比"), number_format=NumberFormat.TINY),
        rows=("instance", "gpu", "type"), requires=(Requires.FULL, Requires.NEWER), width=12, height=8, drill_down=(TO_NODE,),
    ),
    table(
        Text("NVLink peers", "NVLink 对端"),
        Text(
            "NVLinks of each GPU by peer: another GPU, a switch, a CPU. GPUs of one node should agree; 'unknown' "
            "is often a link that is down.",
            "各卡 NVLink 的对端：另一张 GPU、交换机或 CPU。同节点的卡应一致；unknown 往往是断开的链路。",
        ),
        column(lambda: selected(m.GPU_NVLINK_REMOTE_LINKS), Text("Links", "链路数")),
        rows=("instance", "gpu", "remote"), requires=(Requires.FULL, Requires.NVLINK), width=12, height=8, drill_down=(TO_NODE,),
    ),
)  # fmt: skip


_FACTS: tuple[Panel, ...] = (
    table(
        Text("GPU identity", "GPU 标识"),
        Text(
            "Serial number, slot and VBIOS for a replacement. GPUs of one model with different VBIOS may differ "
            "in power and clocks.",
            "换卡所需：序列号、插槽与 VBIOS。同型号而 VBIOS 不同的卡，功率与频率可能不同。",
        ),
        column(lambda: selected(m.GPU_INFO), Text("Seen", "已见"), cell=Cell.FACT),
        rows=("instance", "gpu", "name", "serial", "pci_bus_id", "vbios_version", "numa_node"), height=10,
        drill_down=(TO_NODE,),
    ),
)  # fmt: skip


GPU_HEALTH = Dashboard(
    uid=Uid.GPU_HEALTH,
    title=Text("Shardwatch / GPU health", "Shardwatch / GPU 健康"),
    description=Text(
        "Errors, row remapping, links and XIDs: which GPU to take out of service, and what to do.",
        "错误、重映射、链路与 XID：哪张卡该下线，怎么处置。",
    ),
    rows=(
        status(),
        Row(title=Text("Status", "状态"), panels=_STATUS[:4]),
        Row(title=Text("XIDs and memory", "XID 与显存"), panels=(*_XIDS, *_MEMORY[:1], *_STATUS[4:])),
        Row(title=Text("Row remapping, links", "行重映射与链路"), panels=_MEMORY[1:], collapsed=True),
        NICS,
        Row(title=Text("Serial numbers, slots, VBIOS", "序列号、插槽与 VBIOS"), panels=_FACTS, collapsed=True),
        Row(title=Text("More (series: full)", "更多（series: full）"), panels=_FULL, collapsed=True),
    ),
    annotations=OF_GPUS,
    per_gpu=True,
)
