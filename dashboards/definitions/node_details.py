"""Node, details: kinds of work, limits of the GPUs, topology, MIG.

Most of it needs the full set of series, so its rows are collapsed.
"""

from __future__ import annotations

from dashboards.definitions.status import TO_GPU
from dashboards.no_data_text import Requires
from dashboards.panels import Cell, Panel, column, series, table, time_series
from dashboards.variables import NODE, selected
from exporter.catalog import metrics as m
from exporter.model.text import Text
from exporter.promql import Expr, join, label_replace, max_by, regex, select, sum_by

GPU_LEGEND = "{{instance}} GPU {{gpu}}"
GPU_LABELS = ("instance", "gpu")
FULL = (Requires.FULL,)
WORK = (Requires.FULL, Requires.SUPPORT)


def _peers() -> Expr:
    """Return the paths between GPUs, with the index of the peer beside its uuid."""
    facts = select(m.GPU_INFO, job=regex("$job"), instance=regex("$instance"))  # the peer may not be selected
    peer = label_replace(label_replace(facts, "peer", "$1", "uuid", "(.+)"), "peer_gpu", "$1", "gpu", "(.+)")
    index = max_by(peer, *NODE, "peer", "peer_gpu")
    return join(selected(m.GPU_PEER_PATH_INFO), index, on=(*NODE, "peer"), group_left=("peer_gpu",))


_WORK: tuple[Panel, ...] = (
    time_series(
        Text("Occupancy", "占用率"),
        Text(
            "Active warps over the maximum of the SMs. Low with high SM activity: kernels too small for the GPU.",
            "活跃 warp 占处理器上限的比例。SM 活动高而此值低：核函数对这张卡太小。",
        ),
        series(lambda: max_by(selected(m.GPU_SM_OCCUPANCY_RATIO), *GPU_LABELS), GPU_LEGEND),
        requires=WORK, max_value=1, drill_down=(TO_GPU,),
    ),
    time_series(
        Text("Pipe activity", "运算管线活动"),
        Text(
            "Share of time in which each arithmetic pipe was active. FP32 where tensor operations are expected: "
            "a kernel without tensor cores.",
            "处理器执行各类运算的时间占比。本应是张量运算却在做 FP32：核函数没有用上张量核心。",
        ),
        series(lambda: max_by(selected(m.GPU_PIPE_ACTIVE_RATIO), *GPU_LABELS, "pipe"), f"{GPU_LEGEND} {{{{pipe}}}}"),
        requires=WORK, max_value=1, drill_down=(TO_GPU,),
    ),
    time_series(
        Text("Memory activity", "显存活动"),
        Text(
            "Share of time in which device memory was read or written: not bandwidth, but all that GPUs before "
            "Hopper report.",
            "显存有读写的时间占比：不是带宽，但 Hopper 之前的卡只提供它。",
        ),
        series(lambda: max_by(selected(m.GPU_MEMORY_ACTIVITY_RATIO), *GPU_LABELS), GPU_LEGEND),
        requires=FULL, max_value=1, drill_down=(TO_GPU,),
    ),
    time_series(
        Text("Video engines", "视频引擎"),
        Text(
            "Share of time in which encoder and decoder were busy; video models decode there.",
            "编码器与解码器的忙碌占比：处理视频的模型在此解码。",
        ),
        series(lambda: max_by(selected(m.GPU_ENCODER_UTILIZATION_RATIO), *GPU_LABELS), Text(f"{GPU_LEGEND} encoder", f"{GPU_LEGEND} 编码")),
        series(lambda: max_by(selected(m.GPU_DECODER_UTILIZATION_RATIO), *GPU_LABELS), Text(f"{GPU_LEGEND} decoder", f"{GPU_LEGEND} 解码")),
        requires=FULL, max_value=1, drill_down=(TO_GPU,),
    ),
)  # fmt: skip


_RATED: tuple[Panel, ...] = (
    table(
        Text("Rated vs current limits", "各卡的额定值与当前值"),
        Text(
            "One row per GPU; GPUs of one model should agree. A different P-state under load, a lower link "
            "generation or fewer links show which part to check.",
            "每卡一行，同型号的卡应一致。负载下 P-state 不同、链路代数更低或链路更少，即指出该查哪一部分。",
        ),
        column(lambda: selected(m.GPU_CLOCK_MAX_HERTZ, domain="sm"), Text("Max SM clock", "最高 SM 频率")),
        column(lambda: selected(m.GPU_PERFORMANCE_STATE), Text("P-state", "P-state")),
        column(lambda: selected(m.GPU_TEMPERATURE_LIMIT_CELSIUS, limit="slowdown"), Text("Slowdown temperature", "降频温度")),
        column(lambda: selected(m.GPU_PCIE_LINK_GENERATION), Text("PCIe generation", "PCIe 代数")),
        column(lambda: selected(m.GPU_PCIE_LINK_GENERATION_MAX), Text("Max generation", "最高代数")),
        column(lambda: selected(m.GPU_PCIE_LINK_WIDTH), Text("Lanes", "通道数")),
        column(lambda: selected(m.GPU_PCIE_LINK_WIDTH_MAX), Text("Max lanes", "最多通道")),
        column(lambda: selected(m.GPU_NVLINK_LINKS), Text("NVLinks", "NVLink 数"), requires=(Requires.NVLINK,)),
        column(lambda: selected(m.GPU_C2C_LINKS), Text("C2C links", "C2C 链路"), requires=(Requires.C2C,)),
        column(lambda: selected(m.GPU_C2C_ACTIVE_LINKS), Text("C2C active", "活跃 C2C"), requires=(Requires.C2C,)),
        column(lambda: selected(m.GPU_MEMORY_RESERVED_BYTES), Text("Reserved", "保留显存")),
        rows=GPU_LABELS, requires=FULL, height=10, drill_down=(TO_GPU,),
    ),
    table(
        Text("Paths between GPUs", "卡间路径"),
        Text(
            "As in nvidia-smi topo -m: NV# is that many NVLinks; PIX, PXB, PHB and NODE are PCIe; SYS crosses "
            "CPU sockets. Peer access says what the driver allows, or why it does not.",
            "同 nvidia-smi topo -m：NV# 为若干条 NVLink；PIX、PXB、PHB、NODE 走 PCIe；SYS 跨 CPU socket。“对等访问”为驱动允许的操作或不允许的原因。",
        ),
        column(_peers, Text("Seen", "已见"), cell=Cell.FACT),
        rows=(*GPU_LABELS, "peer_gpu", "path", "p2p"), requires=(Requires.FULL, Requires.GROUPS), width=16, height=10, drill_down=(TO_GPU,),
    ),
    table(
        Text("MIG instances", "MIG 实例"),
        Text(
            "Instances of MIG-enabled GPUs; each counts as a GPU on these dashboards. Some signals do not exist "
            "for them.",
            "启用 MIG 的 GPU 的实例，在仪表盘上各算一张卡。部分信号本就没有。",
        ),
        column(lambda: selected(m.GPU_MIG_INFO), Text("Seen", "已见"), cell=Cell.FACT),
        rows=(*GPU_LABELS, "profile", "gpu_instance", "compute_instance"), requires=(Requires.MIG,), width=8, height=10,
    ),
)  # fmt: skip


_STATE: tuple[Panel, ...] = (
    time_series(
        Text("Clocks of all domains", "各域频率"),
        Text(
            "Memory, video and graphics clocks. A memory clock that falls alone halves the decode speed.",
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
            "Memory that can still be allocated. At a few hundred MiB further allocations fail.",
            "仍可分配的显存。只剩几百 MiB 时，继续分配将失败。",
        ),
        series(lambda: max_by(selected(m.GPU_MEMORY_FREE_BYTES), *GPU_LABELS), GPU_LEGEND),
        requires=FULL,
    ),
    time_series(
        Text("Fans", "风扇"),
        Text(
            "Intended speed over the maximum. At 100 % the inlet is warm or the cooler dusty; absent on "
            "passively cooled GPUs.",
            "目标转速占最高转速之比。100 % 说明进风过热或积灰；被动散热卡无此数据。",
        ),
        series(lambda: max_by(selected(m.GPU_FAN_SPEED_RATIO), *GPU_LABELS), GPU_LEGEND),
        requires=(Requires.FULL, Requires.FANS), max_value=1,
    ),
    time_series(
        Text("Processes on the GPU", "卡上的进程"),
        Text(
            "Processes with a compute context. One more than usual is another tenant.",
            "持有计算上下文的进程数。比平时多出一个即有第二个租户。",
        ),
        series(lambda: sum_by(selected(m.GPU_PROCESSES), *GPU_LABELS), GPU_LEGEND),
        requires=FULL,
    ),
)  # fmt: skip

MORE = (*_RATED, *_WORK, *_STATE)
