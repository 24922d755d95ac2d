"""Alerts about network adapters that carry RDMA: ports down, flapping, below their rate, with errors."""

from __future__ import annotations

from alerts import lookups
from alerts.panel_ids import GPU_NIC_ERRORS, GPU_NIC_PORTS, GPU_NIC_RATES
from alerts.rule import Alert, Component
from alerts.tuning import Tuning
from exporter.catalog import metrics as m
from exporter.diagnosis.thresholds import WINDOW
from exporter.model.finding import Severity
from exporter.model.text import Text
from exporter.promql import increase, select

_PORT = Text(
    "{{ $labels.device }} port {{ $labels.port }} on {{ $labels.instance }}",
    "{{ $labels.instance }} 的 {{ $labels.device }} 端口 {{ $labels.port }}",
)
_CABLE = Text(
    "Check the cable, the transceiver and the switch port; ibstat or ethtool shows the state, the kernel log the cause.",
    "检查线缆、光模块与交换机端口；用 ibstat 或 ethtool 查看状态，原因见内核日志。",
)


def alerts(tuning: Tuning) -> tuple[Alert, ...]:
    """Return the alerts about adapters."""
    return (_down(), _flaps(tuning), _below_rate(), _errors(tuning))


def _down() -> Alert:
    return Alert(
        name="NicPortDown",
        severity=Severity.WARNING,
        component=Component.GPU,
        expr=select(m.NIC_PORT_DOWN).equals(1),
        for_="1m",
        panel=GPU_NIC_PORTS,
        summary=_PORT + Text(" is down", "已断开"),
        description=Text(
            "The port was up since the daemon's start, or the same port of every equal adapter is. What communicates "
            "over it stalls until the time limit of its collectives, or uses fewer links.",
            "该端口自守护进程启动以来曾处于活跃状态，或其他同型号适配器的同一端口均活跃。经由它的通信会停滞直至集合"
            "通信超时，或只能使用更少的链路。",
        )
        + lookups.NEAREST_GPU,
        action=_CABLE,
    )


def _flaps(tuning: Tuning) -> Alert:
    limit = tuning.thresholds.nic_link_downs
    downs = increase(select(m.NIC_PORT_LINK_DOWNS_TOTAL), WINDOW) >= limit.warning
    return Alert(
        name="NicLinkFlaps",
        severity=Severity.WARNING,
        component=Component.GPU,
        # Some drivers of Ethernet count no link_downed; the carrier changes twice each time.
        expr=downs | (increase(select(m.NIC_PORT_CARRIER_CHANGES_TOTAL), WINDOW) / 2 >= limit.warning),
        for_=limit.for_,
        keep_firing_for="10m",
        panel=GPU_NIC_ERRORS,
        summary=_PORT + Text(" goes down and up", "反复断开与恢复"),
        description=Text(
            'The link went down {{ $value | printf "%.0f" }} times in 5 minutes. Each time what is under way is sent again '
            "or fails.",
            '5 分钟内链路断开 {{ $value | printf "%.0f" }} 次。每次断开时正在进行的传输会重发或失败。',
        ),
        action=_CABLE,
    )


def _below_rate() -> Alert:
    return Alert(
        name="NicBelowRate",
        severity=Severity.WARNING,
        component=Component.GPU,
        expr=select(m.NIC_PORT_RATE_BYTES_PER_SECOND) < select(m.NIC_PORT_RATE_MAX_BYTES_PER_SECOND),
        for_="5m",
        panel=GPU_NIC_RATES,
        summary=_PORT + Text(" runs below its rate", "低于应有速率"),
        description=Text(
            "The link runs at {{ $value | humanize }}B/s; it was faster since the daemon's start. Lanes are lost, or "
            "both ends agreed on a lower speed.",
            "链路速率为 {{ $value | humanize }}B/s，低于守护进程启动以来的最高值。部分通道丢失，或两端协商到更低的速率。",
        ),
        action=_CABLE,
    )


def _errors(tuning: Tuning) -> Alert:
    limit = tuning.thresholds.nic_errors
    return Alert(
        name="NicErrorsRise",
        severity=Severity.WARNING,
        component=Component.GPU,
        expr=increase(select(m.NIC_PORT_ERRORS_TOTAL), WINDOW) > limit.warning,
        for_=limit.for_,
        keep_firing_for="10m",
        panel=GPU_NIC_ERRORS,
        summary=_PORT + Text(" has {{ $labels.type }} errors", "出现 {{ $labels.type }} 错误"),
        description=Text(
            "{{ $value | humanize }} {{ $labels.type }} errors in 5 minutes. Each costs a repetition; throughput falls "
            "before the link fails.",
            "5 分钟内 {{ $labels.type }} 错误 {{ $value | humanize }} 次。每次都需要重传；链路中断之前吞吐先下降。",
        ),
        action=Text(
            "Compare the counters of both ends (perfquery, ethtool -S). Errors of the link: cable or transceiver; of "
            "transport on RoCE: congestion, PFC and ECN settings.",
            "比较两端的计数器（perfquery、ethtool -S）。链路类错误：线缆或光模块；RoCE 的传输类错误：拥塞、PFC 与 ECN 配置。",
        ),
    )
