"""Alerts about the monitoring itself: the watchdog, and failures of Prometheus and Alertmanager.

They have no dashboard: their series are those of Prometheus and Alertmanager.
"""

from __future__ import annotations

from alerts.rule import Alert, Component, Group
from alerts.tuning import Tuning
from exporter.catalog.spec import MetricKind, Unit
from exporter.model.finding import Severity
from exporter.model.text import Text
from exporter.promql import TARGET, Expr, ExternalMetric, increase, select, vector

_RULE_FAILURES = ExternalMetric(
    name="prometheus_rule_evaluation_failures_total", labels=TARGET | {"rule_group"}, kind=MetricKind.COUNTER
)
_SENT = TARGET | {"alertmanager"}
_SEND_ERRORS = ExternalMetric(name="prometheus_notifications_errors_total", labels=_SENT, kind=MetricKind.COUNTER)
_ALERTMANAGERS = ExternalMetric(name="prometheus_notifications_alertmanagers_discovered", labels=TARGET)
_PROMETHEUS_LOADED = ExternalMetric(name="prometheus_config_last_reload_successful", labels=TARGET)
_GROUP_TOOK, _GROUP_INTERVAL = (
    ExternalMetric(name=f"prometheus_rule_group_{what}_seconds", labels=TARGET | {"rule_group"}, unit=Unit.SECONDS)
    for what in ("last_duration", "interval")
)
_NOTIFY_FAILURES = ExternalMetric(
    name="alertmanager_notifications_failed_total", labels=TARGET | {"integration"}, kind=MetricKind.COUNTER
)
_ALERTMANAGER_LOADED = ExternalMetric(name="alertmanager_config_last_reload_successful", labels=TARGET)


WATCHDOG, MONITORING = GROUPS = ("shardwatch-watchdog", "shardwatch-monitoring")


def groups(tuning: Tuning) -> tuple[Group, ...]:
    """Return the watchdog and the group about Prometheus and Alertmanager."""
    del tuning
    prometheus = (_rules_fail(), _rules_slow(), _not_sent(), _nobody_to_send_to(), _prometheus_not_loaded())
    alertmanager = (_notifications_failing(), _alertmanager_not_loaded())
    return (
        Group(name=WATCHDOG, rules=(_watchdog(),)),
        Group(name=MONITORING, rules=(*prometheus, *alertmanager)),
    )


def _watchdog() -> Alert:
    return Alert(
        name="Watchdog",
        severity=Severity.NONE,
        component=Component.MONITORING,
        expr=vector(1),
        for_="0s",
        panel=None,
        summary=Text(
            "Alerting works: this alert always fires",
            "告警链路正常：本告警始终触发",
        ),
        description=Text(
            "Route it to an external receiver that alerts when this notification stops coming.",
            "请将它路由到外部接收端：一旦收不到本通知，由对方报警。",
        ),
        action=Text(
            "None while it arrives. If it stops: check Prometheus, Alertmanager and the network, in this order.",
            "正常到达时无需处理；若停止，请依次检查 Prometheus、Alertmanager 与网络。",
        ),
    )


def _alert(name: str, expr: Expr, for_: str, *texts: Text) -> Alert:
    summary, description, action = texts
    return Alert(
        name=name,
        severity=Severity.WARNING,
        component=Component.MONITORING,
        expr=expr,
        for_=for_,
        panel=None,
        summary=summary,
        description=description,
        action=action,
    )


def _rules_fail() -> Alert:
    return _alert(
        "RulesFail",
        increase(select(_RULE_FAILURES), "5m") > 0,
        "5m",
        Text(
            "Prometheus {{ $labels.instance }} cannot evaluate {{ $labels.rule_group }}",
            "Prometheus {{ $labels.instance }} 无法计算 {{ $labels.rule_group }}",
        ),
        Text(
            "{{ $value | humanize }} evaluations failed in 5 minutes; alerts of that group do not fire.",
            "5 分钟内有 {{ $value | humanize }} 次计算失败；该组告警不会触发。",
        ),
        Text(
            "Read the error on /rules and in the log; run promtool check rules.",
            "查看 /rules 页面与日志中的错误；运行 promtool check rules。",
        ),
    )


def _rules_slow() -> Alert:
    return _alert(
        "RulesSlow",
        select(_GROUP_TOOK) / select(_GROUP_INTERVAL) > 1,
        "10m",
        Text(
            "Rule group {{ $labels.rule_group }} of Prometheus {{ $labels.instance }} is slow",
            "Prometheus {{ $labels.instance }} 的规则组 {{ $labels.rule_group }} 计算过慢",
        ),
        Text(
            "One evaluation takes {{ $value | humanize }} times the interval of the group; alerts are late.",
            "一次计算耗时是该组间隔的 {{ $value | humanize }} 倍，告警会延迟。",
        ),
        Text(
            "Give Prometheus more CPU, or divide the nodes among servers.",
            "为 Prometheus 增加 CPU，或把节点分到多台服务器。",
        ),
    )


def _not_sent() -> Alert:
    return _alert(
        "NotificationsNotSent",
        increase(select(_SEND_ERRORS), "5m") > 0,
        "5m",
        Text(
            "Prometheus {{ $labels.instance }} cannot reach Alertmanager {{ $labels.alertmanager }}",
            "Prometheus {{ $labels.instance }} 无法连接 Alertmanager {{ $labels.alertmanager }}",
        ),
        Text(
            "{{ $value | humanize }} batches of alerts failed in 5 minutes.",
            "5 分钟内有 {{ $value | humanize }} 批告警发送失败。",
        ),
        Text(
            "Check network and TLS between them; run a second Alertmanager.",
            "检查两者之间的网络与 TLS；部署第二个 Alertmanager。",
        ),
    )


def _nobody_to_send_to() -> Alert:
    return _alert(
        "NoAlertmanager",
        select(_ALERTMANAGERS) < 1,
        "5m",
        Text(
            "Prometheus {{ $labels.instance }} has no Alertmanager",
            "Prometheus {{ $labels.instance }} 没有可用的 Alertmanager",
        ),
        Text(
            "Alerts fire, and no notification is sent.",
            "告警会触发，但不会发出任何通知。",
        ),
        Text(
            "Set alerting.alertmanagers in its configuration.",
            "在其配置中设置 alerting.alertmanagers。",
        ),
    )


def _prometheus_not_loaded() -> Alert:
    return _alert(
        "PrometheusConfigurationNotLoaded",
        select(_PROMETHEUS_LOADED).equals(0),
        "5m",
        Text(
            "Prometheus {{ $labels.instance }} rejected its new configuration",
            "Prometheus {{ $labels.instance }} 拒绝了新配置",
        ),
        Text(
            "The previous configuration and rules stay in use.",
            "仍在使用旧配置与旧规则。",
        ),
        Text(
            "Run promtool check config, correct the error, and reload.",
            "运行 promtool check config，修正后重新加载。",
        ),
    )


def _notifications_failing() -> Alert:
    return _alert(
        "AlertmanagerNotificationsFailing",
        increase(select(_NOTIFY_FAILURES), "5m") > 0,
        "5m",
        Text(
            "Alertmanager {{ $labels.instance }} cannot notify by {{ $labels.integration }}",
            "Alertmanager {{ $labels.instance }} 无法通过 {{ $labels.integration }} 发送通知",
        ),
        Text(
            "{{ $value | humanize }} notifications failed in 5 minutes.",
            "5 分钟内有 {{ $value | humanize }} 条通知发送失败。",
        ),
        Text(
            "Read its log; renew an expired secret; check whether the service is down.",
            "查看其日志；更新过期的密钥；确认对方服务是否可用。",
        ),
    )


def _alertmanager_not_loaded() -> Alert:
    return _alert(
        "AlertmanagerConfigurationNotLoaded",
        select(_ALERTMANAGER_LOADED).equals(0),
        "5m",
        Text(
            "Alertmanager {{ $labels.instance }} rejected its new configuration",
            "Alertmanager {{ $labels.instance }} 拒绝了新配置",
        ),
        Text(
            "The previous routes stay in use.",
            "仍在使用旧路由。",
        ),
        Text(
            "Run amtool check-config, correct the error, and reload.",
            "运行 amtool check-config，修正后重新加载。",
        ),
    )
