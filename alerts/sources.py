"""Alerts about what the daemon reads: silent, hung or old sources, and what it cannot learn from them."""

from __future__ import annotations

from alerts.panel_ids import (
    GPU_SIGNALS,
    REPLICA_ERRORS,
    REPLICA_HEALTH,
    SELF_DOWN,
    SELF_GPU_AGES,
    SELF_HUNG,
    SELF_PARSE_ERRORS,
    SELF_SOURCES,
    SELF_UNASSIGNED,
)
from alerts.recordings import CARD, FINISHED, NODE, POOL, RELEASED, REPLICA, WINDOW
from alerts.rule import Alert, Component, Severity
from alerts.text import Text
from alerts.tuning import Tuning
from exporter.catalog import metrics as m
from exporter.promql import (
    aggregate,
    and_on,
    increase,
    max_by,
    rate,
    regex,
    select,
    since,
    unless,
    until,
    without_value,
)

_SUCCESS = m.SHARDWATCH_SOURCE_LAST_SUCCESS_TIMESTAMP_SECONDS


def silent(tuning: Tuning) -> tuple[Alert, ...]:
    """Give the alerts about sources from which nothing comes any more."""
    return (_blind(tuning), _driver(), _released(), _hung(), _gpu_data_stale(tuning), _source_stale(tuning))


def lacking(tuning: Tuning) -> tuple[Alert, ...]:
    """Give the alerts about what a source that answers does not let us know, now or soon."""
    return (_certificate(tuning), _unassigned(), _signals())


def _blind(tuning: Tuning) -> Alert:
    limit = tuning.thresholds.replica_data_age
    newest = since(aggregate("max", select(_SUCCESS), without=("source",)))
    return Alert(
        name="ShardwatchBlind",
        severity=Severity.WARNING,
        component=Component.EXPORTER,
        expr=unless(newest > limit.warning, RELEASED, on=NODE),
        for_=limit.for_,
        panel=SELF_SOURCES,
        summary=Text(
            "Shardwatch on {{ $labels.instance }} answers but reads nothing any more",
            "{{ $labels.instance }} 上的 Shardwatch 有响应，但已读不到任何数据",
        ),
        description=Text(
            "No source has been read for {{ $value | humanizeDuration }}: the page is served, the poll loop or "
            "every source behind it stands still.",
            "已有 {{ $value | humanizeDuration }} 没有任何数据源读取成功：页面仍在提供，但轮询循环或其后的所有数据源都已停滞。",
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
            "NVML gives no answer, so no card of this node is watched. shardwatch_source_down_info says why: a "
            "driver that was upgraded under running processes, missing permissions, or a hung driver.",
            "NVML 无法应答，因此该节点的显卡全部处于无监控状态。原因见 shardwatch_source_down_info："
            "运行中升级了驱动、权限不足，或驱动挂死。",
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
            "Shardwatch on {{ $labels.instance }} was told to let go of its cards and has not taken them up again",
            "{{ $labels.instance }} 上的 Shardwatch 被要求释放显卡，且至今未重新接管",
        ),
        description=Text(
            "SIGUSR1 released them an hour ago or earlier, for MIG or the driver to be changed; until SIGUSR2 no card of "
            "this node is watched, and a lost one goes unnoticed.",
            "至少一小时前由 SIGUSR1 释放（用于切换 MIG 或更换驱动）；在收到 SIGUSR2 之前，该节点的显卡均无监控，掉卡不会被发现。",
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
            "{{ $labels.source }} on {{ $labels.instance }} does not return from a call",
            "{{ $labels.instance }} 的 {{ $labels.source }} 调用未返回",
        ),
        description=Text(
            "A call to {{ $labels.source }} has not returned for 2 minutes. A driver call that hangs usually "
            "means a card that has fallen off the bus; it cannot be killed and ends with a reboot.",
            "对 {{ $labels.source }} 的调用已有 2 分钟未返回。驱动调用挂死通常意味着显卡已从总线掉落；"
            "这种调用无法终止，只能重启节点。",
        ),
    )


def _gpu_data_stale(tuning: Tuning) -> Alert:
    limit = tuning.thresholds.gpu_data_age
    return Alert(
        name="GpuDataStale",
        severity=Severity.WARNING,
        component=Component.GPU,
        expr=and_on(select(m.GPU_DATA_AGE_SECONDS) > limit.warning, select(m.GPU_UP).equals(1), on=CARD),
        for_=limit.for_,
        panel=SELF_GPU_AGES,
        summary=Text(
            "Card {{ $labels.gpu }} of {{ $labels.instance }} has given no new reading",
            "{{ $labels.instance }} 的 {{ $labels.gpu }} 号卡没有新数据",
        ),
        description=Text(
            "The newest reading of card {{ $labels.gpu }} is {{ $value | humanizeDuration }} old although the "
            "card counts as up.",
            "{{ $labels.gpu }} 号卡仍被视为在线，但最新读数已是 {{ $value | humanizeDuration }} 之前的。",
        ),
    )


def _source_stale(tuning: Tuning) -> Alert:
    limit = tuning.thresholds.replica_data_age
    age = since(select(_SUCCESS))
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
            "{{ $labels.source }} on {{ $labels.instance }} counts as up but is not read",
            "{{ $labels.instance }} 的 {{ $labels.source }} 显示在线却没有被读取",
        ),
        description=Text(
            "The last successful reading of {{ $labels.source }} is {{ $value | humanizeDuration }} ago.",
            "{{ $labels.source }} 上一次成功读取是在 {{ $value | humanizeDuration }} 之前。",
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
            "The TLS certificate of {{ $labels.replica }} on {{ $labels.instance }} ends soon",
            "{{ $labels.instance }} 上 {{ $labels.replica }} 的 TLS 证书即将到期",
        ),
        description=Text(
            "{{ $value | humanizeDuration }} are left; then clients and Shardwatch are refused.",
            "还剩 {{ $value | humanizeDuration }}；到期后客户端和 Shardwatch 都会被拒绝。",
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
            "No card is known for {{ $labels.replica }} on {{ $labels.instance }}: {{ $labels.reason }}",
            "{{ $labels.instance }} 上的 {{ $labels.replica }} 找不到对应的显卡：{{ $labels.reason }}",
        ),
        description=Text(
            "Stragglers, imbalance and cost of this replica cannot be judged. Name its cards under `gpus` in the "
            "configuration, or let the daemon see the host's processes.",
            "因此无法判断该副本的拖慢卡、不均衡与成本。请在配置的 `gpus` 中写明显卡，或让守护进程看到宿主机进程。",
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
            "Alerts and panels that need {{ $labels.signal }} stay silent on at least one card of this node.",
            "该节点至少有一张卡上，依赖 {{ $labels.signal }} 的告警和面板会保持沉默。",
        ),
    )


def parse_errors() -> Alert:
    """Give the alert about pages that are understood in part."""
    return Alert(
        name="ParseErrors",
        severity=Severity.INFO,
        component=Component.EXPORTER,
        expr=increase(select(m.SHARDWATCH_SOURCE_ODDITIES_TOTAL), "1h") > 0,
        for_="30m",
        panel=SELF_PARSE_ERRORS,
        summary=Text(
            "The page of {{ $labels.source }} on {{ $labels.instance }} holds lines that cannot be used",
            "{{ $labels.instance }} 上 {{ $labels.source }} 的页面含有无法使用的行",
        ),
        description=Text(
            "{{ $value | humanize }} lines or numbers in an hour were left out ({{ $labels.reason }}). A new "
            "engine version may write its page differently.",
            "一小时内有 {{ $value | humanize }} 行或数值被略去（{{ $labels.reason }}）。可能是新版引擎改变了页面格式。",
        ),
    )


def window_missing(tuning: Tuning) -> Alert:
    """Give the alert about figures that stand on the page over other windows than the one that rules read."""
    limit = tuning.thresholds.gateway_requests.warning
    # Only under demand: a longer window still shows the figure when there was nothing within this one.
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
            f"Shardwatch on {{{{ $labels.instance }}}} has no window of {WINDOW}, which alerts and boards read",
            f"{{{{ $labels.instance }}}} 上的 Shardwatch 没有告警与面板所读取的 {WINDOW} 窗口",
        ),
        description=Text(
            "Replicas or pools of this node work, and their figures are on the page over other windows only: "
            f"HighErrorRatio and GatewayUneven cannot fire here. Put {WINDOW} back into `windows` of the configuration, "
            "beside the others, and reload.",
            "该节点的副本或后端池正在工作，但页面上只有其他窗口的数值：HighErrorRatio 与 GatewayUneven 无法触发。"
            f"请把 {WINDOW} 加回配置的 `windows`（可与其他窗口并存）并重新加载。",
        ),
    )
