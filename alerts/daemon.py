"""Alerts about the daemon: down, restarting, internal errors, or running with an old configuration."""

from __future__ import annotations

from alerts import pushing, sources
from alerts.panel_ids import SELF_DAEMON, SELF_MEMORY
from alerts.recordings import NODE
from alerts.rule import Alert, Component, Group
from alerts.tuning import Tuning
from exporter.catalog import metrics as m
from exporter.model.finding import Severity
from exporter.model.text import Text
from exporter.promql import (
    TARGET,
    UP,
    ExternalMetric,
    absent,
    and_on,
    changes,
    count_by,
    increase,
    over_time,
    select,
    unless,
)  # fmt: skip

# Every target that was a Shardwatch within a day, whatever the name of its job.
_DAEMONS = over_time("last", select(m.SHARDWATCH_BUILD_INFO), "1d")
_PROCESS_START = ExternalMetric(name="process_start_time_seconds", labels=TARGET)
SERIES_NEAR_LIMIT = 8_000  # of the 10,000 at which the daemon drops series
_SAMPLES_SCRAPED = ExternalMetric(name="scrape_samples_scraped", labels=TARGET)


def groups(tuning: Tuning) -> tuple[Group, ...]:
    """Return the group about the daemon and what it reads."""
    rules = (
        _down(tuning),
        _absent(tuning),
        _restarting(tuning),
        *pushing.pushing(),
        *sources.silent(tuning),
        _not_loaded(),
        *sources.lacking(tuning),
        _fault(),
        _dropped(),
        _near_series_limit(),
        sources.parse_errors(),
        sources.endpoint_certificate(tuning),
        sources.window_missing(tuning),
    )
    return (Group(name="shardwatch-exporter", rules=rules),)


def _down(tuning: Tuning) -> Alert:
    return Alert(
        name="ShardwatchDown",
        severity=Severity.CRITICAL,
        symptom=True,
        component=Component.EXPORTER,
        expr=select(UP, job=tuning.job).equals(0) | and_on(select(UP).equals(0), _DAEMONS, on=NODE),
        for_="2m",
        panel=SELF_DAEMON,
        summary=Text(
            "Shardwatch on {{ $labels.instance }} does not answer",
            "{{ $labels.instance }} 上的 Shardwatch 无响应",
        ),
        description=Text(
            "Prometheus has not been able to scrape {{ $labels.instance }} for 2 minutes. The node is not "
            "monitored: the daemon or the node is down.",
            "Prometheus 已有 2 分钟无法抓取 {{ $labels.instance }}。该节点无人监控：守护进程或整个节点不可用。",
        ),
        action=Text(
            "Check the node (ping, ssh), then systemctl status shardwatch or the pod, and start it.",
            "检查节点（ping、ssh），再检查 systemctl status shardwatch 或 Pod，并启动它。",
        ),
    )


def _absent(tuning: Tuning) -> Alert:
    return Alert(
        name="ShardwatchAbsent",
        severity=Severity.CRITICAL,
        symptom=True,
        component=Component.EXPORTER,
        # Where pods are scraped by their annotations, the job has another name.  Daemons that are all down have targets.
        expr=unless(
            absent(select(UP, job=tuning.job)),
            count_by(select(m.SHARDWATCH_BUILD_INFO) | and_on(select(UP), _DAEMONS, on=NODE)),
            on=(),
        ),
        for_="5m",
        panel=SELF_DAEMON,
        summary=Text(
            "Prometheus has no Shardwatch target",
            "Prometheus 中没有任何 Shardwatch 目标",
        ),
        description=Text(
            "There is no target in job {{ $labels.job }}, and no other job scrapes a Shardwatch: service discovery lost all "
            "nodes. No alert about GPUs or engines can fire.",
            "作业 {{ $labels.job }} 中没有目标，其他作业也没有抓取到 Shardwatch：服务发现丢失了全部节点。关于 GPU 与引擎的告警都无法触发。",
        ),
        action=Text(
            "Check /targets of Prometheus and its service discovery; check whether the daemons run.",
            "检查 Prometheus 的 /targets 与服务发现；检查守护进程是否在运行。",
        ),
    )


def _restarting(tuning: Tuning) -> Alert:
    limit = tuning.thresholds.daemon_restarts
    return Alert(
        name="ShardwatchRestarting",
        severity=Severity.WARNING,
        component=Component.EXPORTER,
        expr=and_on(changes(select(_PROCESS_START), "30m") > limit.warning, _DAEMONS, on=NODE),
        for_=limit.for_,
        panel=SELF_MEMORY,
        summary=Text(
            "Shardwatch on {{ $labels.instance }} restarts repeatedly",
            "{{ $labels.instance }} 上的 Shardwatch 反复重启",
        ),
        description=Text(
            "It restarted {{ $value | humanize }} times in 30 minutes. After each restart the sliding windows "
            "start empty.",
            "30 分钟内重启 {{ $value | humanize }} 次。每次重启后滑动窗口从空开始。",
        ),
        action=Text(
            "Read journalctl -u shardwatch or the previous container's log (kubectl logs --previous).",
            "查看 journalctl -u shardwatch，或上一个容器的日志（kubectl logs --previous）。",
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
            "Shardwatch on {{ $labels.instance }} rejected its new configuration",
            "{{ $labels.instance }} 上的 Shardwatch 拒绝了新配置",
        ),
        description=Text(
            "The last reload failed; the previous configuration stays in use.",
            "最近一次重新加载失败，仍在使用旧配置。",
        ),
        action=Text(
            "Run shardwatch check-config FILE, correct the listed lines, and reload.",
            "运行 shardwatch check-config FILE，修正列出的行后重新加载。",
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
            "Shardwatch on {{ $labels.instance }} had an internal error in {{ $labels.loop }}",
            "{{ $labels.instance }} 上的 Shardwatch 在 {{ $labels.loop }} 中发生内部错误",
        ),
        description=Text(
            "{{ $value | humanize }} internal errors in 15 minutes; the loop was restarted.",
            "15 分钟内发生 {{ $value | humanize }} 次内部错误；该循环已重启。",
        ),
        action=Text(
            "Report the traceback from the log (event=internal_error).",
            "上报日志中的调用栈（event=internal_error）。",
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
            "Shardwatch on {{ $labels.instance }} drops series",
            "{{ $labels.instance }} 上的 Shardwatch 舍弃了部分序列",
        ),
        description=Text(
            "{{ $value | humanize }} series are not exposed because the hard limit is reached or their values are "
            "not finite. Alerts on them cannot fire.",
            "{{ $value | humanize }} 条序列因达到上限或数值非有限而未暴露，依赖它们的告警无法触发。",
        ),
        action=Text(
            "Monitor fewer engines with one daemon; report values that are not finite.",
            "减少单个守护进程监控的引擎数；上报非有限值。",
        ),
    )


def _near_series_limit() -> Alert:
    return Alert(
        name="SeriesLimitNear",
        severity=Severity.WARNING,
        component=Component.EXPORTER,
        expr=and_on(select(_SAMPLES_SCRAPED) > SERIES_NEAR_LIMIT, _DAEMONS, on=NODE),
        for_="15m",
        panel=SELF_DAEMON,
        summary=Text(
            "Shardwatch on {{ $labels.instance }} is close to its limit of series",
            "{{ $labels.instance }} 上的 Shardwatch 接近序列数上限",
        ),
        description=Text(
            "It exposes {{ $value | humanize }} series. At 10000 it drops the rest, and alerts on them cannot fire.",
            "已暴露 {{ $value | humanize }} 条序列。达到 10000 条后其余序列会被舍弃，依赖它们的告警无法触发。",
        ),
        action=Text(
            "Find the metric with the most series; monitor fewer engines with one daemon, or use series: common.",
            "找出序列最多的指标；减少单个守护进程监控的引擎数，或使用 series: common。",
        ),
    )
