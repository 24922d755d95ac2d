"""Alerts about the watcher itself: down, blind, stale, hung, or running on an old configuration."""

from __future__ import annotations

from alerts.boards import REPLICA_HEALTH, SELF_DAEMON, SELF_SOURCES
from alerts.rule import Alert, Component, Group, Severity
from alerts.text import Text
from alerts.tuning import Tuning
from exporter.catalog import metrics as m
from exporter.promql import (
    TARGET,
    UP,
    Known,
    absent,
    both,
    changes,
    increase,
    max_by,
    regex,
    select,
    since,
    until,
    without_value,
)  # fmt: skip

_PROCESS_START = Known(name="process_start_time_seconds", labels=TARGET)
_SUCCESS = m.SHARDWATCH_SOURCE_LAST_SUCCESS_TIMESTAMP_SECONDS


def groups(tuning: Tuning) -> tuple[Group, ...]:
    """Give the group about the daemon."""
    return (Group(name="shardwatch-exporter", rules=(*_gone(tuning), *_blind(tuning), *_hints(tuning))),)


def _gone(tuning: Tuning) -> tuple[Alert, ...]:
    up = select(UP, job=tuning.job)
    limit = tuning.thresholds.daemon_restarts
    return (
        Alert(
            name="ShardwatchDown",
            severity=Severity.CRITICAL,
            symptom=True,
            component=Component.EXPORTER,
            expr=up.equals(0),
            lasting="2m",
            panel=SELF_DAEMON,
            summary=Text(
                "Shardwatch on {{ $labels.instance }} does not answer",
                "{{ $labels.instance }} 上的 Shardwatch 无响应",
            ),
            description=Text(
                "Prometheus has not been able to scrape {{ $labels.instance }} for 2 minutes. Nothing on this node is "
                "watched: a lost card or a dead engine would go unnoticed. Either the daemon or the node is gone.",
                "Prometheus 已有 2 分钟无法抓取 {{ $labels.instance }}。该节点目前无人监控：掉卡或引擎崩溃都不会被发现。"
                "可能是守护进程退出，也可能是整个节点不可用。",
            ),
        ),
        Alert(
            name="ShardwatchAbsent",
            severity=Severity.CRITICAL,
            symptom=True,
            component=Component.EXPORTER,
            expr=absent(up),
            lasting="5m",
            panel=SELF_DAEMON,
            summary=Text(
                "Prometheus knows no Shardwatch target in job {{ $labels.job }}",
                "Prometheus 的任务 {{ $labels.job }} 中没有任何 Shardwatch 目标",
            ),
            description=Text(
                "No target of job {{ $labels.job }} exists: service discovery lost all nodes, or the job has another "
                "name. No alert about cards or engines can fire.",
                "任务 {{ $labels.job }} 没有任何目标：服务发现丢失了全部节点，或任务改了名字。"
                "所有关于显卡与引擎的告警都无法触发。",
            ),
        ),
        Alert(
            name="ShardwatchRestarting",
            severity=Severity.WARNING,
            component=Component.EXPORTER,
            expr=changes(select(_PROCESS_START, job=tuning.job), "30m") > limit.warning,
            lasting=limit.lasting,
            panel=SELF_DAEMON,
            summary=Text(
                "Shardwatch on {{ $labels.instance }} restarts again and again",
                "{{ $labels.instance }} 上的 Shardwatch 反复重启",
            ),
            description=Text(
                "It has restarted {{ $value | humanize }} times in 30 minutes. Windows and counters begin anew each "
                "time; the supervisor's log says why it ends.",
                "30 分钟内已重启 {{ $value | humanize }} 次。每次重启都会使窗口和计数重新开始；退出原因见进程管理器的日志。",
            ),
        ),
    )


def _blind(tuning: Tuning) -> tuple[Alert, ...]:
    limits = tuning.thresholds
    silent = max_by(since(select(_SUCCESS)), "job", "instance", "source")
    newest = since(max_by(select(_SUCCESS), "job", "instance"))
    return (
        Alert(
            name="ShardwatchBlind",
            severity=Severity.WARNING,
            component=Component.EXPORTER,
            expr=newest > limits.replica_age.warning,
            lasting=limits.replica_age.lasting,
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
        ),
        Alert(
            name="GpuDriverUnreadable",
            severity=Severity.WARNING,
            component=Component.GPU,
            expr=select(m.SHARDWATCH_SOURCE_UP, source="driver").equals(0),
            lasting="2m",
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
        ),
        Alert(
            name="SourceHung",
            severity=Severity.WARNING,
            component=Component.EXPORTER,
            expr=select(m.SHARDWATCH_SOURCE_HUNG).equals(1),
            lasting="2m",
            panel=SELF_SOURCES,
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
        ),
        Alert(
            name="CardDataStale",
            severity=Severity.WARNING,
            component=Component.GPU,
            expr=both(
                select(m.GPU_DATA_AGE_SECONDS) > limits.card_age.warning,
                select(m.GPU_UP).equals(1),
                on=("job", "instance", "gpu", "uuid"),
            ),
            lasting=limits.card_age.lasting,
            panel=SELF_SOURCES,
            summary=Text(
                "Card {{ $labels.gpu }} of {{ $labels.instance }} has given no new reading",
                "{{ $labels.instance }} 的 {{ $labels.gpu }} 号卡没有新数据",
            ),
            description=Text(
                "The newest reading of card {{ $labels.gpu }} is {{ $value | humanizeDuration }} old although the "
                "card counts as up.",
                "{{ $labels.gpu }} 号卡仍被视为在线，但最新读数已是 {{ $value | humanizeDuration }} 之前的。",
            ),
        ),
        Alert(
            name="SourceStale",
            severity=Severity.WARNING,
            component=Component.EXPORTER,
            expr=both(
                silent > limits.replica_age.warning,
                select(m.SHARDWATCH_SOURCE_UP).equals(1),
                on=("job", "instance", "source"),
            ),
            lasting=limits.replica_age.lasting,
            panel=SELF_SOURCES,
            summary=Text(
                "{{ $labels.source }} on {{ $labels.instance }} counts as up but is not read",
                "{{ $labels.instance }} 的 {{ $labels.source }} 显示在线却没有被读取",
            ),
            description=Text(
                "The last successful reading of {{ $labels.source }} is {{ $value | humanizeDuration }} ago.",
                "{{ $labels.source }} 上一次成功读取是在 {{ $value | humanizeDuration }} 之前。",
            ),
        ),
        Alert(
            name="ConfigurationNotLoaded",
            severity=Severity.WARNING,
            component=Component.EXPORTER,
            expr=select(m.SHARDWATCH_CONFIG_LAST_RELOAD_SUCCESSFUL).equals(0),
            lasting="5m",
            panel=SELF_DAEMON,
            summary=Text(
                "Shardwatch on {{ $labels.instance }} refused its new configuration",
                "{{ $labels.instance }} 上的 Shardwatch 拒绝了新配置",
            ),
            description=Text(
                "The newest reload was refused and the old configuration goes on; new engines are not watched. "
                "`shardwatch check-config FILE` lists every problem with its line.",
                "最近一次重新加载被拒绝，旧配置仍在使用，新增的引擎不会被监控。"
                "用 `shardwatch check-config FILE` 可列出全部问题及行号。",
            ),
        ),
    )


def _hints(tuning: Tuning) -> tuple[Alert, ...]:
    left = until(select(m.LLM_CERTIFICATE_EXPIRY_TIMESTAMP_SECONDS))
    limit = tuning.thresholds.certificate_left
    return (
        Alert(
            name="CertificateExpires",
            severity=Severity.WARNING,
            component=Component.ENGINE,
            expr=left < limit.warning,
            lasting=limit.lasting,
            panel=REPLICA_HEALTH,
            summary=Text(
                "The TLS certificate of {{ $labels.replica }} on {{ $labels.instance }} ends soon",
                "{{ $labels.instance }} 上 {{ $labels.replica }} 的 TLS 证书即将到期",
            ),
            description=Text(
                "{{ $value | humanizeDuration }} are left; then clients and Shardwatch are refused.",
                "还剩 {{ $value | humanizeDuration }}；到期后客户端和 Shardwatch 都会被拒绝。",
            ),
        ),
        Alert(
            name="ReplicaUnassigned",
            severity=Severity.INFO,
            component=Component.EXPORTER,
            expr=select(m.SHARDWATCH_REPLICA_UNASSIGNED_INFO, reason=without_value("remote")).equals(1),
            lasting="15m",
            panel=SELF_SOURCES,
            summary=Text(
                "No card is known for {{ $labels.replica }} on {{ $labels.instance }}: {{ $labels.reason }}",
                "{{ $labels.instance }} 上的 {{ $labels.replica }} 找不到对应的显卡：{{ $labels.reason }}",
            ),
            description=Text(
                "Stragglers, imbalance and cost of this replica cannot be judged. Name its cards under `gpus` in the "
                "configuration, or let the daemon see the host's processes.",
                "因此无法判断该副本的拖慢卡、不均衡与成本。请在配置的 `gpus` 中写明显卡，或让守护进程看到宿主机进程。",
            ),
        ),
        Alert(
            name="SignalsUnreadable",
            severity=Severity.INFO,
            component=Component.EXPORTER,
            expr=max_by(
                select(m.GPU_SIGNAL_MISSING_INFO, reason=regex("no_permission|error")),
                "job",
                "instance",
                "signal",
                "reason",
            ).equals(1),
            lasting="1h",
            panel=SELF_SOURCES,
            summary=Text(
                "{{ $labels.signal }} cannot be read on {{ $labels.instance }}: {{ $labels.reason }}",
                "{{ $labels.instance }} 无法读取 {{ $labels.signal }}：{{ $labels.reason }}",
            ),
            description=Text(
                "Alerts and panels that need {{ $labels.signal }} stay silent on at least one card of this node.",
                "该节点至少有一张卡上，依赖 {{ $labels.signal }} 的告警和面板会保持沉默。",
            ),
        ),
        Alert(
            name="ShardwatchFault",
            severity=Severity.WARNING,
            component=Component.EXPORTER,
            expr=increase(select(m.SHARDWATCH_LOOP_RESTARTS_TOTAL), "15m") > 0,
            lasting="1m",
            panel=SELF_DAEMON,
            summary=Text(
                "Shardwatch on {{ $labels.instance }} survived an unexpected error in {{ $labels.loop }}",
                "{{ $labels.instance }} 上的 Shardwatch 在 {{ $labels.loop }} 中遇到意外错误并已恢复",
            ),
            description=Text(
                "{{ $value | humanize }} errors in 15 minutes. Each is a bug worth a report, with the log's traceback.",
                "15 分钟内 {{ $value | humanize }} 次。每一次都是值得上报的缺陷，请附上日志中的调用栈。",
            ),
        ),
        Alert(
            name="SeriesDropped",
            severity=Severity.WARNING,
            component=Component.EXPORTER,
            expr=select(m.SHARDWATCH_DROPPED_SERIES) > 0,
            lasting="5m",
            panel=SELF_DAEMON,
            summary=Text(
                "Shardwatch on {{ $labels.instance }} leaves series out of its page",
                "{{ $labels.instance }} 上的 Shardwatch 从页面中舍弃了部分序列",
            ),
            description=Text(
                "{{ $value | humanize }} series were left out because the page would exceed its hard cap or their "
                "values were not finite; alerts on them stay silent.",
                "有 {{ $value | humanize }} 条序列因超出页面上限或数值非有限而被舍弃；依赖它们的告警会保持沉默。",
            ),
        ),
        Alert(
            name="SourceOddities",
            severity=Severity.INFO,
            component=Component.EXPORTER,
            expr=increase(select(m.SHARDWATCH_SOURCE_ODDITIES_TOTAL), "1h") > 0,
            lasting="30m",
            panel=SELF_SOURCES,
            summary=Text(
                "The page of {{ $labels.source }} on {{ $labels.instance }} holds lines that cannot be used",
                "{{ $labels.instance }} 上 {{ $labels.source }} 的页面含有无法使用的行",
            ),
            description=Text(
                "{{ $value | humanize }} lines or numbers in an hour were left out ({{ $labels.reason }}). A new "
                "engine version may write its page differently.",
                "一小时内有 {{ $value | humanize }} 行或数值被略去（{{ $labels.reason }}）。可能是新版引擎改变了页面格式。",
            ),
        ),
    )
