"""Alerts about the links of a card: NVLink lost or erring, PCIe packets repeated, a fabric torn or not fully joined."""

from __future__ import annotations

from alerts.panel_ids import GPU_FABRIC, GPU_LINK_ERRORS, GPU_LINKS, GPU_REPLAYS, GPU_SXIDS
from alerts.recordings import RECENT_SECONDS
from alerts.rule import Alert, Component, Severity
from alerts.text import Text
from alerts.tuning import Tuning
from exporter.catalog import metrics as m
from exporter.model.sxid import FATAL_SEVERITY
from exporter.promql import aggregate, increase, select, since


def alerts(tuning: Tuning) -> tuple[Alert, ...]:
    """Give the alerts about links."""
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
            "Card {{ $labels.gpu }} of {{ $labels.instance }} has lost NVLinks",
            "{{ $labels.instance }} 的 {{ $labels.gpu }} 号卡有 NVLink 断开",
        ),
        description=Text(
            "{{ $value | humanize }} links are down that were up before, or that its neighbours have "
            "({{ $labels.uuid }}). Collectives of its replicas run over fewer links, over PCIe, or time out.",
            "有 {{ $value | humanize }} 条曾经在线或同型号邻卡具备的链路断开（{{ $labels.uuid }}）。"
            "相关副本的集合通信会使用更少的链路、改走 PCIe，或超时。",
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
            "NVLink errors ({{ $labels.type }}) on card {{ $labels.gpu }} of {{ $labels.instance }}",
            "{{ $labels.instance }} 的 {{ $labels.gpu }} 号卡出现 NVLink 错误（{{ $labels.type }}）",
        ),
        description=Text(
            "{{ $value | humanize }} {{ $labels.type }} errors in 15 minutes ({{ $labels.uuid }}): a bad link, "
            "bridge or baseboard connector.",
            "15 分钟内 {{ $value | humanize }} 次 {{ $labels.type }} 错误（{{ $labels.uuid }}）："
            "链路、桥接器或底板接口不良。",
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
            "Card {{ $labels.gpu }} of {{ $labels.instance }} repeats PCIe packets",
            "{{ $labels.instance }} 的 {{ $labels.gpu }} 号卡频繁重传 PCIe 数据包",
        ),
        description=Text(
            "{{ $value | humanize }} replays in an hour ({{ $labels.uuid }}): reseat the card, check riser and slot.",
            "一小时内重传 {{ $value | humanize }} 次（{{ $labels.uuid }}）：请重新插卡，检查转接板与插槽。",
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
            "Card {{ $labels.gpu }} of {{ $labels.instance }} cannot fully use the NVSwitch fabric: {{ $labels.problem }}",
            "{{ $labels.instance }} 的 {{ $labels.gpu }} 号卡无法充分使用 NVSwitch 网络：{{ $labels.problem }}",
        ),
        description=Text(
            "{{ $labels.problem }} for 10 minutes ({{ $labels.uuid }}). CUDA does not start on a card that has not "
            "joined, and collectives are slow on one that joined half: look at the fabric manager.",
            "{{ $labels.problem }} 已持续 10 分钟（{{ $labels.uuid }}）。未加入网络的卡无法启动 CUDA，"
            "部分加入的卡集合通信缓慢：请检查 fabric manager。",
        ),
    )


def _switch() -> Alert:
    """By the time of the error, not by the counter's increase: the counter is absent before the first one."""
    fatal = since(select(m.GPU_NVSWITCH_SXID_LAST_TIMESTAMP_SECONDS, severity=FATAL_SEVERITY)) < RECENT_SECONDS
    return Alert(
        name="GpuNvswitchFatal",
        severity=Severity.CRITICAL,
        symptom=True,
        component=Component.GPU,
        # The figure's label "severity" is dropped: the alert has one of its own.
        expr=aggregate("max", fatal, without=("severity",)),
        for_="1m",
        panel=GPU_SXIDS,
        summary=Text(
            "NVSwitch {{ $labels.pci_bus_id }} of {{ $labels.instance }} reports the fatal error SXid {{ $labels.sxid }}",
            "{{ $labels.instance }} 的 NVSwitch {{ $labels.pci_bus_id }} 报告致命错误 SXid {{ $labels.sxid }}",
        ),
        description=Text(
            "SXid {{ $labels.sxid }} was seen {{ $value | humanizeDuration }} ago. Traffic through the switch stalls, "
            "and jobs whose cards talk through it hang. Drain the node and reset its cards and switches together, or "
            "reboot it.",
            "{{ $value | humanizeDuration }} 前出现 SXid {{ $labels.sxid }}。经过该交换机的通信会停滞，"
            "依赖它互联的任务会挂死。请排空节点，将显卡与交换机一起复位，或重启节点。",
        ),
    )
