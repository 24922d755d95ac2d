"""Alerts about the watcher itself: down, restarting, failing inside, or running on an old configuration."""

from __future__ import annotations

from alerts import sources
from alerts.panel_ids import SELF_DAEMON, SELF_MEMORY
from alerts.rule import Alert, Component, Group, Severity
from alerts.text import Text
from alerts.tuning import Tuning
from exporter.catalog import metrics as m
from exporter.promql import TARGET, UP, ExternalMetric, absent, changes, increase, select

_PROCESS_START = ExternalMetric(name="process_start_time_seconds", labels=TARGET)


def groups(tuning: Tuning) -> tuple[Group, ...]:
    """Give the group about the daemon and what it reads."""
    rules = (
        _down(tuning),
        _absent(tuning),
        _restarting(tuning),
        *sources.silent(tuning),
        _not_loaded(),
        *sources.lacking(tuning),
        _fault(),
        _dropped(),
        sources.parse_errors(),
        sources.window_missing(tuning),
    )
    return (Group(name="shardwatch-exporter", rules=rules),)


def _down(tuning: Tuning) -> Alert:
    return Alert(
        name="ShardwatchDown",
        severity=Severity.CRITICAL,
        symptom=True,
        component=Component.EXPORTER,
        expr=select(UP, job=tuning.job).equals(0),
        for_="2m",
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
    )


def _absent(tuning: Tuning) -> Alert:
    return Alert(
        name="ShardwatchAbsent",
        severity=Severity.CRITICAL,
        symptom=True,
        component=Component.EXPORTER,
        expr=absent(select(UP, job=tuning.job)),
        for_="5m",
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
    )


def _restarting(tuning: Tuning) -> Alert:
    limit = tuning.thresholds.daemon_restarts
    return Alert(
        name="ShardwatchRestarting",
        severity=Severity.WARNING,
        component=Component.EXPORTER,
        expr=changes(select(_PROCESS_START, job=tuning.job), "30m") > limit.warning,
        for_=limit.for_,
        panel=SELF_MEMORY,
        summary=Text(
            "Shardwatch on {{ $labels.instance }} restarts again and again",
            "{{ $labels.instance }} 上的 Shardwatch 反复重启",
        ),
        description=Text(
            "It has restarted {{ $value | humanize }} times in 30 minutes. Windows and counters begin anew each "
            "time; the supervisor's log says why it ends.",
            "30 分钟内已重启 {{ $value | humanize }} 次。每次重启都会使窗口和计数重新开始；退出原因见进程管理器的日志。",
        ),
    )


def _not_loaded() -> Alert:
    return Alert(
        name="ConfigurationNotLoaded",
        severity=Severity.WARNING,
        component=Component.EXPORTER,
        expr=select(m.SHARDWATCH_CONFIG_LAST_RELOAD_SUCCESSFUL).equals(0),
        for_="5m",
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
    )


def _fault() -> Alert:
    return Alert(
        name="ShardwatchFault",
        severity=Severity.WARNING,
        component=Component.EXPORTER,
        expr=increase(select(m.SHARDWATCH_LOOP_RESTARTS_TOTAL), "15m") > 0,
        for_="1m",
        panel=SELF_DAEMON,
        summary=Text(
            "Shardwatch on {{ $labels.instance }} survived an unexpected error in {{ $labels.loop }}",
            "{{ $labels.instance }} 上的 Shardwatch 在 {{ $labels.loop }} 中遇到意外错误并已恢复",
        ),
        description=Text(
            "{{ $value | humanize }} errors in 15 minutes. Each is a bug worth a report, with the log's traceback.",
            "15 分钟内 {{ $value | humanize }} 次。每一次都是值得上报的缺陷，请附上日志中的调用栈。",
        ),
    )


def _dropped() -> Alert:
    return Alert(
        name="SeriesDropped",
        severity=Severity.WARNING,
        component=Component.EXPORTER,
        expr=select(m.SHARDWATCH_DROPPED_SERIES) > 0,
        for_="5m",
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
    )
