"""Node, for those who look closer: kinds of work, what cards are rated for, how they reach each other, MIG.

Mostly what only the full set of series holds; its row of the board is folded.
"""

from __future__ import annotations

from alerts.text import Text
from dashboards.definitions.status import TO_GPU
from dashboards.no_data_text import Requires
from dashboards.panels import Cell, Panel, column, series, table, time_series
from dashboards.variables import NODE, selected
from exporter.catalog import metrics as m
from exporter.promql import Expr, join, label_replace, max_by, regex, select, sum_by

GPU_LEGEND = "{{instance}} GPU {{gpu}}"
GPU_LABELS = ("instance", "gpu")
FULL = (Requires.FULL,)
WORK = (Requires.FULL, Requires.SUPPORT)


def _peers() -> Expr:
    """Return the paths between cards with the other card's index: its uuid alone nobody knows by heart."""
    facts = select(m.GPU_INFO, job=regex("$job"), instance=regex("$instance"))  # the other card may not be chosen
    peer = label_replace(label_replace(facts, "peer", "$1", "uuid", "(.+)"), "peer_gpu", "$1", "gpu", "(.+)")
    index = max_by(peer, *NODE, "peer", "peer_gpu")
    return join(selected(m.GPU_PEER_PATH_INFO), index, on=(*NODE, "peer"), group_left=("peer_gpu",))


_WORK: tuple[Panel, ...] = (
    time_series(
        Text("Occupancy", "占用率"),
        Text(
            "Active warps over the most that the processors hold. Low with high SM work: kernels too small for the card.",
            "活跃 warp 占处理器上限的比例。SM 工作高而此值低：核函数对这张卡太小。",
        ),
        series(lambda: max_by(selected(m.GPU_SM_OCCUPANCY_RATIO), *GPU_LABELS), GPU_LEGEND),
        requires=WORK, max_value=1, drill_down=(TO_GPU,),
    ),
    time_series(
        Text("Arithmetic by kind", "运算类型"),
        Text(
            "Share of time in which the processors did this kind of arithmetic. FP32 where tensor work is expected: "
            "a kernel that does not use the tensor cores.",
            "处理器执行各类运算的时间占比。本应是张量运算却在做 FP32：核函数没有用上张量核心。",
        ),
        series(lambda: max_by(selected(m.GPU_PIPE_ACTIVE_RATIO), *GPU_LABELS, "pipe"), f"{GPU_LEGEND} {{{{pipe}}}}"),
        requires=WORK, max_value=1, drill_down=(TO_GPU,),
    ),
    time_series(
        Text("Memory activity", "显存活动"),
        Text(
            "Share of time in which device memory was read or written: not bandwidth, but all that cards before Hopper say.",
            "显存有读写的时间占比：不是带宽，但 Hopper 之前的卡只提供它。",
        ),
        series(lambda: max_by(selected(m.GPU_MEMORY_ACTIVITY_RATIO), *GPU_LABELS), GPU_LEGEND),
        requires=FULL, max_value=1, drill_down=(TO_GPU,),
    ),
    time_series(
        Text("Video engines", "视频引擎"),
        Text(
            "Share of time in which encoder and decoder were busy: models that watch videos decode there.",
            "编码器与解码器的忙碌占比：处理视频的模型在此解码。",
        ),
        series(lambda: max_by(selected(m.GPU_ENCODER_UTILIZATION_RATIO), *GPU_LABELS), Text(f"{GPU_LEGEND} encoder", f"{GPU_LEGEND} 编码")),
        series(lambda: max_by(selected(m.GPU_DECODER_UTILIZATION_RATIO), *GPU_LABELS), Text(f"{GPU_LEGEND} decoder", f"{GPU_LEGEND} 解码")),
        requires=FULL, max_value=1, drill_down=(TO_GPU,),
    ),
)  # fmt: skip


_RATED: tuple[Panel, ...] = (
    table(
        Text("What each card is rated for, and what it has now", "各卡的额定值与当前值"),
        Text(
            "One row a card; cards of one name should agree. Another P-state under load, a lower link generation or "
            "fewer links than its neighbours say which part to look at.",
            "每卡一行，同型号的卡应一致。负载下 P-state 不同、链路代数更低或链路更少，即指出该查哪一部分。",
        ),
        column(lambda: selected(m.GPU_CLOCK_MAX_HERTZ, domain="sm"), Text("Best SM clock", "最高 SM 频率")),
        column(lambda: selected(m.GPU_PERFORMANCE_STATE), Text("P-state", "P-state")),
        column(lambda: selected(m.GPU_TEMPERATURE_LIMIT_CELSIUS, limit="slowdown"), Text("Slows down at", "降频温度")),
        column(lambda: selected(m.GPU_PCIE_LINK_GENERATION), Text("PCIe generation", "PCIe 代数")),
        column(lambda: selected(m.GPU_PCIE_LINK_GENERATION_MAX), Text("Best generation", "最高代数")),
        column(lambda: selected(m.GPU_PCIE_LINK_WIDTH), Text("Lanes", "通道数")),
        column(lambda: selected(m.GPU_PCIE_LINK_WIDTH_MAX), Text("Most lanes", "最多通道")),
        column(lambda: selected(m.GPU_NVLINK_LINKS), Text("NVLinks", "NVLink 数"), requires=(Requires.NVLINK,)),
        column(lambda: selected(m.GPU_C2C_LINKS), Text("C2C links", "C2C 链路"), requires=(Requires.C2C,)),
        column(lambda: selected(m.GPU_C2C_ACTIVE_LINKS), Text("C2C active", "活跃 C2C"), requires=(Requires.C2C,)),
        column(lambda: selected(m.GPU_MEMORY_RESERVED_BYTES), Text("Reserved", "保留显存")),
        rows=GPU_LABELS, requires=FULL, height=10, drill_down=(TO_GPU,),
    ),
    table(
        Text("How each card reaches the others", "卡与卡之间的路径"),
        Text(
            "As nvidia-smi topo -m has it: NV# over that many NVLinks; PIX, PXB, PHB and NODE over PCIe; SYS between "
            "sockets. Peer access says what the driver lets the two do, or why nothing.",
            "同 nvidia-smi topo -m：NV# 为若干条 NVLink；PIX、PXB、PHB、NODE 走 PCIe；SYS 跨插槽。“对等访问”为驱动允许的操作或不允许的原因。",
        ),
        column(_peers, Text("Seen", "已见"), cell=Cell.FACT),
        rows=(*GPU_LABELS, "peer_gpu", "path", "p2p"), requires=(Requires.FULL, Requires.GROUPS), width=16, height=10, drill_down=(TO_GPU,),
    ),
    table(
        Text("Divided cards (MIG)", "MIG 分区"),
        Text(
            "The instances of divided cards, each a card of its own on these boards. Some signals of theirs are "
            "absent by design.",
            "MIG 分区实例，在看板上各算一张卡。部分信号本就缺失。",
        ),
        column(lambda: selected(m.GPU_MIG_INFO), Text("Seen", "已见"), cell=Cell.FACT),
        rows=(*GPU_LABELS, "profile", "gpu_instance", "compute_instance"), requires=(Requires.MIG,), width=8, height=10,
    ),
)  # fmt: skip


_STATE: tuple[Panel, ...] = (
    time_series(
        Text("Clocks of all domains", "各域频率"),
        Text(
            "Memory, video and graphics clocks beside the SM's. A memory clock that fell alone halves decoding.",
            "除 SM 外的显存、视频与图形频率。显存频率单独下降会使解码速度减半。",
        ),
        series(
            lambda: max_by(selected(m.GPU_CLOCK_HERTZ, domain=regex("memory|graphics|video")), *GPU_LABELS, "domain"),
            f"{GPU_LEGEND} {{{{domain}}}}",
        ),
        requires=FULL,
    ),
    time_series(
        Text("Memory free", "空闲显存"),
        Text(
            "Bytes that can still be allocated. At a few hundred MiB the next allocation fails.",
            "仍可分配的字节数。只剩几百 MiB 时，下一次分配就会失败。",
        ),
        series(lambda: max_by(selected(m.GPU_MEMORY_FREE_BYTES), *GPU_LABELS), GPU_LEGEND),
        requires=FULL,
    ),
    time_series(
        Text("Fans", "风扇"),
        Text(
            "Intended speed over the highest. At 100 % the air is warm or the cooler full of dust; absent on "
            "passive cards.",
            "目标转速占最高转速之比。100 % 说明进风过热或积灰；被动散热卡无此数据。",
        ),
        series(lambda: max_by(selected(m.GPU_FAN_SPEED_RATIO), *GPU_LABELS), GPU_LEGEND),
        requires=(Requires.FULL, Requires.FANS), max_value=1,
    ),
    time_series(
        Text("Processes on the card", "卡上的进程"),
        Text(
            "Processes with a compute context. One more than usual is a second tenant.",
            "持有计算上下文的进程数。比平时多出一个即有第二个租户。",
        ),
        series(lambda: sum_by(selected(m.GPU_PROCESSES), *GPU_LABELS), GPU_LEGEND),
        requires=FULL,
    ),
)  # fmt: skip

MORE = (*_RATED, *_WORK, *_STATE)
