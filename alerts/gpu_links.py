"""Alerts about GPU links: NVLinks down or with errors, PCIe replays, NVSwitch fabric and switch errors."""

from __future__ import annotations

from alerts.panel_ids import GPU_FABRIC, GPU_LINK_ERRORS, GPU_LINKS, GPU_REPLAYS, GPU_SXIDS
from alerts.recordings import RECENT_SECONDS
from alerts.rule import Alert, Component
from alerts.tuning import Tuning
from exporter.catalog import metrics as m
from exporter.model.finding import Severity
from exporter.model.sxid import FATAL_SEVERITY
from exporter.model.text import Text
from exporter.promql import aggregate, increase, select, since


def alerts(tuning: Tuning) -> tuple[Alert, ...]:
    """Return the alerts about links."""
    return (_nvlink_down(), _nvlink_errors(tuning), _pcie_replays(tuning), _fabric(), _switch())


def _nvlink_down() -> Alert:
    return Alert(
        name="GpuNvlinkDown",
        severity=Severity.WARNING,
        component=Component.GPU,
        expr=select(m.GPU_NVLINK_LINKS_DOWN) > 0,
        for_="2m",
        panel=GPU_LINKS,
        summary=Text(
            "GPU {{ $labels.gpu }} on {{ $labels.instance }} has NVLinks down",
            "{{ $labels.instance }} 的 {{ $labels.gpu }} 号卡有 NVLink 断开",
        ),
        description=Text(
            "{{ $value | humanize }} NVLinks are down that were up before or that identical GPUs of the node have "
            "up ({{ $labels.uuid }}). Collectives use fewer links, fall back to PCIe, or time out.",
            "有 {{ $value | humanize }} 条曾经活跃、或同型号邻卡均活跃的 NVLink 断开（{{ $labels.uuid }}）。集合"
            "通信会使用更少的链路、改走 PCIe，或超时。",
        ),
        action=Text(
            "Drain the node and reset all GPUs of the baseboard; reseat the bridge. On NVSwitch systems check the "
            "fabric manager's log.",
            "排空节点并复位整板的卡；重新插接桥接器。NVSwitch 系统请检查 fabric manager 日志。",
        ),
    )


def _nvlink_errors(tuning: Tuning) -> Alert:
    limit = tuning.thresholds.nvlink_errors
    return Alert(
        name="GpuNvlinkErrors",
        severity=Severity.WARNING,
        component=Component.GPU,
        expr=increase(select(m.GPU_NVLINK_ERRORS_TOTAL), "15m") > limit.warning,
        for_=limit.for_,
        keep_firing_for="10m",
        full_series="GpuNvlinkDown and GpuXidInspect (74, 144 to 150) tell a link that fails, not one that errs.",
        panel=GPU_LINK_ERRORS,
        summary=Text(
            "NVLink errors ({{ $labels.type }}) on GPU {{ $labels.gpu }} on {{ $labels.instance }}",
            "{{ $labels.instance }} 的 {{ $labels.gpu }} 号卡出现 NVLink 错误（{{ $labels.type }}）",
        ),
        description=Text(
            "{{ $value | humanize }} {{ $labels.type }} errors in 15 minutes ({{ $labels.uuid }}): a faulty link, "
            "bridge or baseboard connector.",
            "15 分钟内 {{ $value | humanize }} 次 {{ $labels.type }} 错误（{{ $labels.uuid }}）：链路、桥接器或底"
            "板接口故障。",
        ),
        action=Text(
            "Identify the link with nvidia-smi nvlink -e; drain and reset the GPUs at a quiet hour; reseat the "
            "bridge.",
            "用 nvidia-smi nvlink -e 确认是哪条链路；择机排空并复位；重新插接桥接器。",
        ),
    )


def _pcie_replays(tuning: Tuning) -> Alert:
    limit = tuning.thresholds.pcie_replays
    return Alert(
        name="GpuPcieReplays",
        severity=Severity.WARNING,
        component=Component.GPU,
        expr=increase(select(m.GPU_PCIE_REPLAYS_TOTAL), "1h") > limit.warning,
        for_=limit.for_,
        keep_firing_for="10m",
        full_series="GpuPcieDowngraded tells a link that has become narrow or slow.",
        panel=GPU_REPLAYS,
        summary=Text(
            "GPU {{ $labels.gpu }} on {{ $labels.instance }} repeats PCIe packets",
            "{{ $labels.instance }} 的 {{ $labels.gpu }} 号卡频繁重传 PCIe 数据包",
        ),
        description=Text(
            "{{ $value | humanize }} PCIe replays in 1 hour ({{ $labels.uuid }}).",
            "1 小时内 PCIe 重传 {{ $value | humanize }} 次（{{ $labels.uuid }}）。",
        ),
        action=Text(
            "Reseat the GPU; check the riser and the slot; look at AER errors in lspci -vv.",
            "重新插卡；检查转接板与插槽；用 lspci -vv 查看 AER 错误。",
        ),
    )


def _fabric() -> Alert:
    return Alert(
        name="GpuFabricProblem",
        severity=Severity.WARNING,
        component=Component.GPU,
        expr=select(m.GPU_FABRIC_PROBLEM_INFO).equals(1),
        for_="10m",
        panel=GPU_FABRIC,
        summary=Text(
            "GPU {{ $labels.gpu }} on {{ $labels.instance }} cannot fully use the NVSwitch fabric: "
            "{{ $labels.problem }}",
            "{{ $labels.instance }} 的 {{ $labels.gpu }} 号卡无法正常使用 NVSwitch 网络：{{ $labels.problem }}",
        ),
        description=Text(
            "{{ $labels.problem }} for 10 minutes ({{ $labels.uuid }}). CUDA does not start on a GPU that has not "
            "joined the fabric; collectives are slow on one that joined in part.",
            "{{ $labels.problem }} 已持续 10 分钟（{{ $labels.uuid }}）。未加入网络的卡无法启动 CUDA；部分加入的"
            "卡集合通信缓慢。",
        ),
        action=Text(
            "Check systemctl status nvidia-fabricmanager; its version must equal the driver's. Restart it, then "
            "the engines.",
            "检查 systemctl status nvidia-fabricmanager，其版本必须与驱动一致；重启它，然后重启引擎。",
        ),
    )


def _switch() -> Alert:
    """Return the alert by the time of the error: the counter is absent before the first one, and increase() ignores it."""
    fatal = since(select(m.GPU_NVSWITCH_SXID_LAST_TIMESTAMP_SECONDS, severity=FATAL_SEVERITY)) < RECENT_SECONDS
    return Alert(
        name="GpuNvswitchFatal",
        severity=Severity.CRITICAL,
        symptom=True,
        component=Component.GPU,
        # The metric's label "severity" is dropped: the alert has its own.
        expr=aggregate("max", fatal, without=("severity",)),
        for_="1m",
        panel=GPU_SXIDS,
        summary=Text(
            "NVSwitch {{ $labels.pci_bus_id }} on {{ $labels.instance }} reports the fatal error SXid "
            "{{ $labels.sxid }}",
            "{{ $labels.instance }} 的 NVSwitch {{ $labels.pci_bus_id }} 报告致命错误 SXid {{ $labels.sxid }}",
        ),
        description=Text(
            "SXid {{ $labels.sxid }} was reported {{ $value | humanizeDuration }} ago. Traffic through the switch "
            "stalls; jobs whose GPUs communicate through it hang.",
            "{{ $value | humanizeDuration }} 前报告 SXid {{ $labels.sxid }}。经过该交换机的通信停滞，依赖它互联的"
            "任务会挂死。",
        ),
        action=Text(
            "Drain the node and end all GPU processes; reset GPUs and switches together (nvidia-smi --gpu-reset "
            "without -i) or reboot the node.",
            "排空节点并结束所有使用 GPU 的进程；将 GPU 与交换机一起复位（nvidia-smi --gpu-reset，不带 -i），或重"
            "启节点。",
        ),
    )
