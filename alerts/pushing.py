"""Alerts about nodes that push their series: a receiver that accepts nothing, lost samples, a node that is silent."""

from __future__ import annotations

from alerts.panel_ids import SELF_DAEMON, SELF_PUSH, SELF_SOURCES
from alerts.recordings import NODE
from alerts.rule import Alert, Component
from exporter.catalog import metrics as m
from exporter.model.finding import Severity
from exporter.model.text import Text
from exporter.promql import UP, increase, max_by, over_time, regex, select, unless


def pushing() -> tuple[Alert, ...]:
    """Return the alerts; none fires where nothing is pushed."""
    return (_silent(), _failing(), _dropped())


def _silent() -> Alert:
    # Under push nobody writes up = 0: the daemon pushes 1, and then nothing.  Only what is pushed has the marker, so
    # that a node which is scraped here and pushes elsewhere may be removed from service discovery.
    pushed = max_by(over_time("last", select(m.SHARDWATCH_PUSHED_INFO), "1d"), *NODE)
    return Alert(
        name="ShardwatchNotPushing",
        severity=Severity.CRITICAL,
        symptom=True,
        component=Component.EXPORTER,
        expr=unless(pushed, select(UP), on=NODE),
        for_="2m",
        panel=SELF_DAEMON,
        summary=Text(
            "Shardwatch on {{ $labels.instance }} has stopped pushing",
            "{{ $labels.instance }} 上的 Shardwatch 已停止推送",
        ),
        description=Text(
            "It pushed within the last day and pushes nothing now. The node is not monitored: the daemon or the node "
            "is down, or cannot reach the receiver. The alert ends a day after the last push, whether or not the node "
            "is back.",
            "它在一天之内推送过，现在没有任何推送。该节点无人监控：守护进程或节点不可用，或无法连接接收端。最后一次推送一天之后，"
            "无论节点是否恢复，告警都会结束。",
        ),
        action=Text(
            "On the node run shardwatch check: PushFailing gives the reason. If the daemon is down, start it. "
            "Silence the alert for a day if the node was taken out of service.",
            "在节点上运行 shardwatch check：PushFailing 会给出原因。守护进程未运行则启动它；节点已下线则静默一天。",
        ),
    )


def _failing() -> Alert:
    return Alert(
        name="PushFailing",
        severity=Severity.WARNING,
        component=Component.EXPORTER,
        expr=select(m.SHARDWATCH_SOURCE_UP, source=regex("push:.+")).equals(0),
        for_="5m",
        panel=SELF_SOURCES,
        summary=Text(
            "{{ $labels.source }} on {{ $labels.instance }} fails",
            "{{ $labels.instance }} 的 {{ $labels.source }} 失败",
        ),
        description=Text(
            "The receiver has accepted nothing for 5 minutes. Samples that it refuses (4xx except 429; over OTLP 500 too) "
            "are lost at once; otherwise they wait in memory, within queue.max_age and queue.max_bytes.",
            "接收端已有 5 分钟未接受任何数据。被其拒绝的样本（429 以外的 4xx；OTLP 还包括 500）立即丢失；其余情况下在内存中等待，以 "
            "queue.max_age 与 queue.max_bytes 为限。",
        ),
        action=Text(
            "Read the reason in shardwatch_source_down_info: http_4xx: URL, tenant or credentials; tls_unknown_ca, "
            "tls_name: tls.ca_file, tls.server_name; http_5xx, refused (the connection), timeout: the receiver or the "
            "network.",
            "在 shardwatch_source_down_info 中查看原因：http_4xx：URL、租户或凭据；tls_unknown_ca、tls_name：tls.ca_file、"
            "tls.server_name；http_5xx、refused（连接被拒绝）、timeout：接收端或网络。",
        ),
    )


def _dropped() -> Alert:
    return Alert(
        name="PushSamplesDropped",
        severity=Severity.WARNING,
        component=Component.EXPORTER,
        expr=increase(select(m.SHARDWATCH_PUSH_SAMPLES_DROPPED_TOTAL), "15m") > 0,
        for_="1m",
        panel=SELF_PUSH,
        summary=Text(
            "Shardwatch on {{ $labels.instance }} drops samples for {{ $labels.target }}: {{ $labels.reason }}",
            "{{ $labels.instance }} 上的 Shardwatch 丢弃发往 {{ $labels.target }} 的样本：{{ $labels.reason }}",
        ),
        description=Text(
            "{{ $value | humanize }} samples in 15 minutes never reached the receiver; graphs have a gap there.",
            "15 分钟内有 {{ $value | humanize }} 个样本未送达；图表在该时段有缺口。",
        ),
        action=Text(
            "refused: read the receiver's log (limits, out-of-order samples, credentials). queue_full, too_old: it was "
            "away for longer than queue.max_bytes or queue.max_age cover. internal: report it with the daemon's log.",
            "refused：查看接收端日志（限额、乱序样本、凭据）。queue_full、too_old：其不可用时间超出 queue.max_bytes 或 "
            "queue.max_age。internal：附守护进程日志上报。",
        ),
    )
