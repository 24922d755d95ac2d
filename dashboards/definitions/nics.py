"""The row of GPU health about network adapters that carry RDMA."""

from __future__ import annotations

from alerts import panel_ids as ids
from dashboards.dashboard import Row
from dashboards.definitions.status import TO_NODE, YES_IS_BAD
from dashboards.no_data_text import Requires
from dashboards.panels import Cell, NumberFormat, Panel, column, series, state_timeline, table, time_series
from dashboards.thresholds import ANY_WARNING, THRESHOLDS
from dashboards.variables import RANGE, RATE_INTERVAL, selected
from exporter.catalog import metrics as m
from exporter.model.text import Text
from exporter.promql import increase, max_by, rate, since

_LEGEND = "{{instance}} {{device}}/{{port}}"
_PORT = ("instance", "device", "port")
_NIC = (Requires.NIC,)

_PANELS: tuple[Panel, ...] = (
    state_timeline(
        Text("Ports of network adapters that are down", "断开的网络适配器端口"),
        Text(
            "Yes: the port was up since the daemon's start, or the same port of every equal adapter is. Collectives "
            "over it stall.",
            "是：该端口自守护进程启动以来曾活跃，或其他同型号适配器的同一端口均活跃。经由它的集合通信会停滞。",
        ),
        series(lambda: max_by(selected(m.NIC_PORT_DOWN), *_PORT), _LEGEND),
        value_mappings=YES_IS_BAD, requires=_NIC, width=12, panel_id=ids.GPU_NIC_PORTS, drill_down=(TO_NODE,),
    ),
    time_series(
        Text("Errors and downs of network adapters", "网络适配器的错误与断开"),
        Text(
            "New errors by type, and times that the link went down. Link errors (symbol, receive): cable or "
            "transceiver. Transport errors on RoCE (out_of_sequence, ack_timeout): congestion.",
            "新增错误（按类型）与链路断开次数。链路错误（symbol、receive）：线缆或光模块；RoCE 传输错误（out_of_sequence、"
            "ack_timeout）：拥塞。",
        ),
        series(
            lambda: max_by(increase(selected(m.NIC_PORT_ERRORS_TOTAL), RATE_INTERVAL), *_PORT, "type"),
            f"{_LEGEND} {{{{type}}}}",
        ),
        series(
            lambda: max_by(increase(selected(m.NIC_PORT_LINK_DOWNS_TOTAL), RATE_INTERVAL), *_PORT),
            Text(f"{_LEGEND} down", f"{_LEGEND} 断开"),
        ),
        series(
            lambda: max_by(increase(selected(m.NIC_PORT_CARRIER_CHANGES_TOTAL), RATE_INTERVAL), *_PORT),
            Text(f"{_LEGEND} carrier", f"{_LEGEND} 载波变化"), requires=(Requires.NIC, Requires.SUPPORT),
        ),
        requires=_NIC, width=12, threshold=THRESHOLDS.nic_errors, panel_id=ids.GPU_NIC_ERRORS, drill_down=(TO_NODE,),
    ),
    time_series(
        Text("Traffic of network adapters", "网络适配器流量"),
        Text("Bytes per second over RDMA in each direction.", "RDMA 各方向每秒字节数。"),
        series(
            lambda: max_by(rate(selected(m.NIC_PORT_RECEIVE_BYTES_TOTAL), RATE_INTERVAL), *_PORT),
            Text(f"{_LEGEND} received", f"{_LEGEND} 接收"),
        ),
        series(
            lambda: max_by(rate(selected(m.NIC_PORT_TRANSMIT_BYTES_TOTAL), RATE_INTERVAL), *_PORT),
            Text(f"{_LEGEND} sent", f"{_LEGEND} 发送"),
        ),
        requires=_NIC, width=12, drill_down=(TO_NODE,),
    ),
    table(
        Text("Rates of network adapters", "网络适配器速率"),
        Text(
            "Rate of each link now (bytes per second) and the best since the daemon's start. Lower: lanes are lost, or "
            "both ends agreed on a lower speed.",
            "各链路当前速率（每秒字节数）与守护进程启动以来的最高值。偏低：通道丢失，或两端协商到更低的速率。",
        ),
        column(lambda: selected(m.NIC_PORT_UP), Text("Up", "活跃")),
        column(lambda: selected(m.NIC_PORT_RATE_BYTES_PER_SECOND), Text("Rate", "速率"), number_format=NumberFormat.COUNT),
        column(lambda: selected(m.NIC_PORT_RATE_MAX_BYTES_PER_SECOND), Text("Best", "最高"), number_format=NumberFormat.COUNT),
        rows=_PORT, requires=_NIC, width=12, height=8, panel_id=ids.GPU_NIC_RATES, drill_down=(TO_NODE,),
    ),
    table(
        Text("States of network adapters", "网络适配器状态"),
        Text(
            "Logical and physical state of each port.",
            "各端口的逻辑状态与物理状态。",
        ),
        column(lambda: selected(m.NIC_PORT_STATE_INFO), Text("Seen", "已见"), cell=Cell.FACT),
        rows=(*_PORT, "state", "physical_state"), requires=_NIC, width=12, height=8, drill_down=(TO_NODE,),
    ),
    table(
        Text("GPUs beside network adapters", "网络适配器相邻的 GPU"),
        Text(
            "GPUs with the shortest PCIe path to each port, in the words of nvidia-smi topo -m. PIX and PXB can use "
            "GPUDirect RDMA at full speed.",
            "到各端口 PCIe 路径最短的 GPU，用 nvidia-smi topo -m 的写法。PIX 与 PXB 可全速使用 GPUDirect RDMA。",
        ),
        column(lambda: selected(m.NIC_NEAREST_GPU_INFO), Text("Seen", "已见"), cell=Cell.FACT),
        rows=(*_PORT, "gpu", "path"), requires=_NIC, width=12, height=8, drill_down=(TO_NODE,),
    ),
    table(
        Text("Network adapters", "网络适配器"),
        Text(
            "Adapters with link layer, interface, PCI address, firmware and first partition key. Adapters of one node "
            "should have one firmware.",
            "各适配器的链路层、网络接口、PCI 地址、固件与首个分区键。同一节点的适配器固件应一致。",
        ),
        column(lambda: selected(m.NIC_PORT_INFO), Text("Seen", "已见"), cell=Cell.FACT),
        rows=(*_PORT, "link_layer", "interface", "pci_bus_id", "adapter", "firmware", "pkey"), requires=_NIC, height=8,
        drill_down=(TO_NODE,),
    ),
    table(
        Text("Driver messages about network adapters", "网络适配器的驱动消息"),
        Text(
            "Faults that the mlx5 driver reported in the kernel log.",
            "mlx5 驱动在内核日志中报告的故障。",
        ),
        column(
            lambda: since(max_by(selected(m.NIC_DRIVER_EVENT_LAST_TIMESTAMP_SECONDS), "instance", "pci_bus_id", "event")),
            Text("Age", "距今"), number_format=NumberFormat.AGE,
        ),
        column(
            lambda: increase(selected(m.NIC_DRIVER_EVENTS_TOTAL), RANGE), Text("New", "新增"), cell=Cell.COLOUR,
            threshold=ANY_WARNING, summed=True, decimals=0,
        ),
        rows=("instance", "pci_bus_id", "event"), requires=(Requires.NIC, Requires.TROUBLE), height=7, drill_down=(TO_NODE,),
    ),
)  # fmt: skip

NICS = Row(title=Text("Network adapters", "网络适配器"), panels=_PANELS, collapsed=True)
