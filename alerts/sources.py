"""Alerts about the daemon's sources: unreadable, hung or stale, and data that cannot be read."""

from __future__ import annotations

from alerts import lookups
from alerts.panel_ids import (
    GPU_SIGNALS,
    REPLICA_ERRORS,
    REPLICA_HEALTH,
    SELF_CERTIFICATES,
    SELF_DOWN,
    SELF_GPU_AGES,
    SELF_HUNG,
    SELF_PARSE_ERRORS,
    SELF_SOURCES,
    SELF_UNASSIGNED,
)
from alerts.recordings import FINISHED, GPU, NODE, POOL, RELEASED, REPLICA, WINDOW
from alerts.rule import Alert, Component
from alerts.tuning import Tuning
from exporter.catalog import metrics as m
from exporter.model.finding import Severity
from exporter.model.text import Text
from exporter.promql import (
    aggregate,
    and_on,
    increase,
    max_by,
    no_regex,
    rate,
    regex,
    select,
    since,
    unless,
    until,
    without_value,
)

_SUCCESS = m.SHARDWATCH_SOURCE_LAST_SUCCESS_TIMESTAMP_SECONDS
_PUSH = "push:.+"  # nothing is read there


def silent(tuning: Tuning) -> tuple[Alert, ...]:
    """Return the alerts about sources that deliver nothing."""
    return (_blind(tuning), _driver(), _released(), _hung(), _gpu_data_stale(tuning), _source_stale(tuning))


def lacking(tuning: Tuning) -> tuple[Alert, ...]:
    """Return the alerts about data that a source does not deliver, now or soon."""
    return (_certificate(tuning), _unassigned(), _signals())


def _blind(tuning: Tuning) -> Alert:
    limit = tuning.thresholds.replica_data_age
    newest = since(aggregate("max", select(_SUCCESS, source=no_regex(_PUSH)), without=("source",)))
    return Alert(
        name="ShardwatchBlind",
        severity=Severity.WARNING,
        component=Component.EXPORTER,
        expr=unless(newest > limit.warning, RELEASED, on=NODE),
        for_=limit.for_,
        panel=SELF_SOURCES,
        summary=Text(
            "Shardwatch on {{ $labels.instance }} answers but reads no source",
            "{{ $labels.instance }} 上的 Shardwatch 有响应，但读不到任何数据源",
        ),
        description=Text(
            "No source has been read for {{ $value | humanizeDuration }}.",
            "已有 {{ $value | humanizeDuration }} 没有成功读取任何数据源。",
        ),
        action=Text(
            "Check /-/ready and the log; check the node's load and clock; restart the daemon and report it.",
            "检查 /-/ready 与日志，检查节点负载与时钟；重启守护进程并上报。",
        ),
    )


def _driver() -> Alert:
    return Alert(
        name="GpuDriverUnreadable",
        severity=Severity.WARNING,
        component=Component.GPU,
        expr=unless(select(m.SHARDWATCH_SOURCE_UP, source="driver").equals(0), RELEASED, on=NODE),
        for_="2m",
        panel=SELF_SOURCES,
        summary=Text(
            "The GPU driver on {{ $labels.instance }} cannot be read",
            "无法读取 {{ $labels.instance }} 的 GPU 驱动",
        ),
        description=Text(
            "NVML does not answer; no GPU of this node is monitored.",
            "NVML 无应答，该节点的 GPU 均无监控。",
        )
        + lookups.DRIVER_REASON,
        action=Text(
            "mismatch: restart after the driver upgrade; permission: check device nodes and container runtime; "
            "hung: reboot the node.",
            "mismatch：驱动升级后重启；permission：检查设备节点与容器运行时；hung：重启节点。",
        ),
    )


def _released() -> Alert:
    return Alert(
        name="GpusReleased",
        severity=Severity.INFO,
        component=Component.GPU,
        expr=RELEASED.equals(1),
        for_="1h",
        panel=SELF_DOWN,
        summary=Text(
            "Shardwatch on {{ $labels.instance }} has released its GPUs and not re-acquired them",
            "{{ $labels.instance }} 上的 Shardwatch 释放 GPU 后一直未重新接管",
        ),
        description=Text(
            "SIGUSR1 released them at least 1 hour ago, to change MIG or the driver. Until SIGUSR2 no GPU of this "
            "node is monitored.",
            "至少 1 小时前由 SIGUSR1 释放（用于切换 MIG 或更换驱动）。在收到 SIGUSR2 之前，该节点的 GPU 均无监控。",
        ),
        action=Text(
            "After the maintenance run systemctl kill --signal=SIGUSR2 shardwatch, or restart the daemon.",
            "维护结束后执行 systemctl kill --signal=SIGUSR2 shardwatch，或重启守护进程。",
        ),
    )


def _hung() -> Alert:
    return Alert(
        name="SourceHung",
        severity=Severity.WARNING,
        component=Component.EXPORTER,
        expr=select(m.SHARDWATCH_SOURCE_HUNG).equals(1),
        for_="2m",
        panel=SELF_HUNG,
        summary=Text(
            "A call to {{ $labels.source }} on {{ $labels.instance }} hangs",
            "{{ $labels.instance }} 对 {{ $labels.source }} 的调用挂死",
        ),
        description=Text(
            "A call to {{ $labels.source }} has not returned for 2 minutes.",
            "对 {{ $labels.source }} 的调用已有 2 分钟未返回。",
        ),
        action=Text(
            "For the driver: check dmesg and processes in state D; a hung driver call cannot be killed and ends "
            "with a reboot of the node.",
            "若是驱动：检查 dmesg 与处于 D 状态的进程；挂死的驱动调用无法终止，只能重启节点。",
        ),
    )


def _gpu_data_stale(tuning: Tuning) -> Alert:
    limit = tuning.thresholds.gpu_data_age
    return Alert(
        name="GpuDataStale",
        severity=Severity.WARNING,
        component=Component.GPU,
        expr=and_on(select(m.GPU_DATA_AGE_SECONDS) > limit.warning, select(m.GPU_UP).equals(1), on=GPU),
        for_=limit.for_,
        panel=SELF_GPU_AGES,
        summary=Text(
            "GPU {{ $labels.gpu }} on {{ $labels.instance }} has no new data",
            "{{ $labels.instance }} 的 {{ $labels.gpu }} 号卡没有新数据",
        ),
        description=Text(
            "The last reading is {{ $value | humanizeDuration }} old although the GPU is up.",
            "该卡在线，但最新读数已是 {{ $value | humanizeDuration }} 之前。",
        ),
        action=Text(
            "Check shardwatch_source_hung and the node's load; treat as a hung source.",
            "检查 shardwatch_source_hung 与节点负载；按挂死的数据源处理。",
        ),
    )


def _source_stale(tuning: Tuning) -> Alert:
    limit = tuning.thresholds.replica_data_age
    age = since(select(_SUCCESS, source=no_regex(_PUSH)))
    return Alert(
        name="SourceStale",
        severity=Severity.WARNING,
        component=Component.EXPORTER,
        expr=and_on(
            age > limit.warning,
            select(m.SHARDWATCH_SOURCE_UP).equals(1),
            on=("job", "instance", "source"),
        ),
        for_=limit.for_,
        panel=SELF_SOURCES,
        summary=Text(
            "{{ $labels.source }} on {{ $labels.instance }} is up but not read",
            "{{ $labels.instance }} 的 {{ $labels.source }} 显示在线但没有被读取",
        ),
        description=Text(
            "The last successful read of {{ $labels.source }} is {{ $value | humanizeDuration }} ago.",
            "{{ $labels.source }} 上一次成功读取是在 {{ $value | humanizeDuration }} 之前。",
        ),
        action=Text(
            "Read the daemon's log; restart the daemon and report it.",
            "查看守护进程日志；重启守护进程并上报。",
        ),
    )


def _certificate(tuning: Tuning) -> Alert:
    limit = tuning.thresholds.certificate_remaining
    left = until(select(m.LLM_CERTIFICATE_EXPIRY_TIMESTAMP_SECONDS))
    return Alert(
        name="CertificateExpires",
        severity=Severity.WARNING,
        component=Component.ENGINE,
        expr=left < limit.warning,
        for_=limit.for_,
        panel=REPLICA_HEALTH,
        summary=Text(
            "The TLS certificate of {{ $labels.replica }} on {{ $labels.instance }} expires soon",
            "{{ $labels.instance }} 上的 {{ $labels.replica }} 的 TLS 证书即将到期",
        ),
        description=Text(
            "It expires in {{ $value | humanizeDuration }}; clients and Shardwatch are rejected after that.",
            "还剩 {{ $value | humanizeDuration }}；到期后客户端与 Shardwatch 都会被拒绝。",
        ),
        action=Text(
            "Renew the certificate and reload the engine.",
            "续签证书并重新加载引擎。",
        ),
    )


def endpoint_certificate(tuning: Tuning) -> Alert:
    """Return the alert about the certificate that the daemon itself shows to whoever scrapes it."""
    limit = tuning.thresholds.certificate_remaining
    return Alert(
        name="EndpointCertificateExpiring",
        severity=Severity.WARNING,
        component=Component.EXPORTER,
        expr=until(select(m.SHARDWATCH_CERTIFICATE_EXPIRY_TIMESTAMP_SECONDS)) < limit.warning,
        for_=limit.for_,
        panel=SELF_CERTIFICATES,
        summary=Text(
            "The TLS certificate of Shardwatch on {{ $labels.instance }} expires soon",
            "{{ $labels.instance }} 上 Shardwatch 的 TLS 证书即将到期",
        ),
        description=Text(
            "It expires in {{ $value | humanizeDuration }}. Prometheus rejects it after that: the node is not "
            "monitored, and ShardwatchDown pages.",
            "还剩 {{ $value | humanizeDuration }}。到期后 Prometheus 将拒绝该证书：节点无人监控，并触发 ShardwatchDown。",
        ),
        action=Text(
            "Renew the certificate at the path of web.config.file; the daemon reads it again without a restart.",
            "在 web.config.file 指定的路径续签证书；守护进程无需重启即可重新读取。",
        ),
    )


def _unassigned() -> Alert:
    return Alert(
        name="ReplicaUnassigned",
        severity=Severity.INFO,
        component=Component.EXPORTER,
        expr=select(m.SHARDWATCH_REPLICA_UNASSIGNED_INFO, reason=without_value("remote")).equals(1),
        for_="15m",
        panel=SELF_UNASSIGNED,
        summary=Text(
            "No GPU is known for {{ $labels.replica }} on {{ $labels.instance }}: {{ $labels.reason }}",
            "{{ $labels.instance }} 上的 {{ $labels.replica }} 找不到对应的 GPU：{{ $labels.reason }}",
        ),
        description=Text(
            "Stragglers, imbalance and cost of this replica cannot be computed.",
            "无法计算该副本的慢卡、不均衡与成本。",
        ),
        action=Text(
            "Name its GPUs under gpus in the configuration, or run the daemon with the host's PID namespace.",
            "在配置的 gpus 中写明其 GPU，或让守护进程使用宿主机的 PID 命名空间。",
        ),
    )


def _signals() -> Alert:
    return Alert(
        name="SignalsUnreadable",
        severity=Severity.INFO,
        component=Component.EXPORTER,
        expr=aggregate(
            "max",
            select(m.GPU_SIGNAL_MISSING_INFO, reason=regex("no_permission|error|busy")),
            without=("gpu", "uuid"),
        ).equals(1),
        for_="1h",
        panel=GPU_SIGNALS,
        summary=Text(
            "{{ $labels.signal }} cannot be read on {{ $labels.instance }}: {{ $labels.reason }}",
            "{{ $labels.instance }} 无法读取 {{ $labels.signal }}：{{ $labels.reason }}",
        ),
        description=Text(
            "On at least one GPU of this node, alerts and panels that need {{ $labels.signal }} have no data.",
            "该节点至少有一张卡上，依赖 {{ $labels.signal }} 的告警与面板没有数据。",
        ),
        action=Text(
            "no_permission: grant access to the device nodes or profiling counters; error, busy: read the "
            "daemon's log.",
            "no_permission：授予设备节点或性能计数器权限；error、busy：查看守护进程日志。",
        ),
    )


def parse_errors() -> Alert:
    """Return the alert about metrics that are parsed in part."""
    return Alert(
        name="ParseErrors",
        severity=Severity.INFO,
        component=Component.EXPORTER,
        expr=increase(select(m.SHARDWATCH_SOURCE_ODDITIES_TOTAL), "1h") > 0,
        for_="30m",
        panel=SELF_PARSE_ERRORS,
        summary=Text(
            "The metrics of {{ $labels.source }} on {{ $labels.instance }} contain lines that cannot be used",
            "{{ $labels.instance }} 上 {{ $labels.source }} 的指标含有无法解析的行",
        ),
        description=Text(
            "{{ $value | humanize }} lines or numbers were ignored in 1 hour ({{ $labels.reason }}).",
            "1 小时内有 {{ $value | humanize }} 行或数值被忽略（{{ $labels.reason }}）。",
        ),
        action=Text(
            "Report the engine's version together with its metrics output.",
            "连同指标输出上报引擎版本。",
        ),
    )


def window_missing(tuning: Tuning) -> Alert:
    """Return the alert about values that exist only for windows other than the one that rules read."""
    limit = tuning.thresholds.gateway_requests.warning
    # Only under demand: a longer window still has a value when this one has no data.
    serves = and_on(select(FINISHED.known) > 0, select(m.LLM_ERROR_RATIO), on=REPLICA)
    engines = unless(serves, select(m.LLM_ERROR_RATIO, window=WINDOW), on=REPLICA)
    imbalance = m.GATEWAY_BACKEND_IMBALANCE_MAX_TO_MEAN_RATIO
    sends = and_on(rate(select(m.GATEWAY_POOL_REQUESTS_TOTAL), "5m") > limit, select(imbalance), on=POOL)
    gateways = unless(sends, select(imbalance, window=WINDOW), on=POOL)
    return Alert(
        name="WindowMissing",
        severity=Severity.WARNING,
        component=Component.EXPORTER,
        expr=max_by(engines, *NODE) | max_by(gateways, *NODE),
        for_="15m",
        panel=REPLICA_ERRORS,
        summary=Text(
            f"Shardwatch on {{{{ $labels.instance }}}} has no {WINDOW} window, which alerts and dashboards read",
            f"{{{{ $labels.instance }}}} 上的 Shardwatch 没有告警与仪表盘所读取的 {WINDOW} 窗口",
        ),
        description=Text(
            "Replicas or pools of this node are busy and their values exist for other windows only: "
            "HighErrorRatio and GatewayUneven cannot fire.",
            "该节点的副本或后端池正在工作，但只有其他窗口的数值：HighErrorRatio 与 GatewayUneven 无法触发。",
        ),
        action=Text(
            f"Add {WINDOW} to windows in the daemon's configuration and reload.",
            f"在守护进程配置的 windows 中加回 {WINDOW} 并重新加载。",
        ),
    )
