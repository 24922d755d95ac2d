"""Alerts about lost capacity: replicas that are down or have disappeared, and models without a replica.

A replica that ended with requests running while others of its model are up is a warning at first, and pages after the
time that loading takes.  One without requests may have been drained for a rollout, or have crashed: it is a warning after
that time, unless its model was scaled to zero.  A discovered replica is removed one minute after its process ended,
without an ``llm_up`` of 0; the recordings remember it for ``MEMORY``.
"""

from __future__ import annotations

from alerts import lookups
from alerts.panel_ids import REPLICA_HEALTH
from alerts.recordings import ALERTS_LABELS, MODEL, NODE, REPLICA, RUNNING, RUNNING_BY_MODEL, UP_BY_MODEL
from alerts.rule import Alert, Component, Group, Recording, Rule
from alerts.tuning import Tuning
from exporter.catalog import metrics as m
from exporter.model.finding import Severity
from exporter.model.text import Text
from exporter.promql import (
    UP,
    Expr,
    ExternalMetric,
    aggregate,
    and_on,
    binary,
    over_time,
    select,
    sum_by,
    unless,
    without_value,
)  # fmt: skip

MEMORY = "6h"
_PLACE = (*NODE, "replica")  # the model of a replica is not known before it answers
_REPLICA_ALERTS = ExternalMetric(name="ALERTS", labels=ALERTS_LABELS | set(REPLICA))
_MODEL_ALERTS = ExternalMetric(name="ALERTS", labels=(ALERTS_LABELS - {"instance"}) | set(MODEL))

# How many replicas its model had up while this one ran requests, and 0 while it ran none.  The least of half an hour:
# a rollout that starts the new replica first has one too many for minutes, and loses nothing when the old one ends.
SERVING = Recording(
    level=REPLICA,
    noun="llm_replicas_while_serving",
    operations="min30m",
    expr=binary(
        "*",
        binary(">", select(RUNNING.known), 0, boolean=True),
        over_time("min", select(UP_BY_MODEL.known), "30m"),
        on=MODEL,
        group_left=(),
    ),
)
# The same of every replica that was read within ``MEMORY``, as it was read last: looked up once, and not by each alert.
LATELY = Recording(
    level=REPLICA,
    noun="llm_replicas_while_serving",
    operations=f"last{MEMORY}",
    expr=over_time("last", select(SERVING.known), MEMORY),
)
# The most requests within three minutes, so that a model that is scaled down for want of them ends with 0, and one
# that ends between two requests does not.
USED = Recording(
    level=MODEL,
    noun="llm_requests_running",
    operations="max3m",
    expr=and_on(
        over_time("max", select(RUNNING_BY_MODEL.known), "3m"), sum_by(select(RUNNING.known), *MODEL), on=MODEL
    ),
)


def groups(tuning: Tuning) -> tuple[Group, ...]:
    """Return the group about lost capacity."""
    rules: tuple[Rule, ...] = (SERVING, LATELY, USED, *_down(tuning), *_vanished(tuning), _model_has_no_replica())
    return (Group(name="shardwatch-capacity", rules=rules),)


def _served_last() -> Expr:
    """Return replicas with requests running at their last read; the value is the number of replicas their model had up."""
    return select(LATELY.known) > 0


def _siblings() -> Expr:
    return sum_by(select(m.LLM_UP, model=without_value("")), *MODEL) > 0


def _down(tuning: Tuning) -> tuple[Alert, ...]:
    limits = tuning.thresholds
    now = select(m.LLM_UP)
    down = now < limits.engine_down.warning
    alone = unless(select(m.LLM_UP, model=without_value("")) < limits.engine_down.warning, _siblings(), on=MODEL)
    served = _served_last()
    last_of_model = and_on(down, unless(served, _siblings(), on=MODEL), on=_PLACE)
    loading = limits.engine_loading
    long = and_on(
        over_time("max", now, loading.for_) < loading.warning,
        now.offset(loading.for_) < loading.warning,
        on=REPLICA,
    )
    pages = alone | last_of_model | and_on(long, served, on=_PLACE)
    return (
        _engine_down(tuning, Severity.CRITICAL, pages),
        _engine_down(tuning, Severity.WARNING, and_on(down, served, on=_PLACE) | long),
    )


def _engine_down(tuning: Tuning, severity: Severity, expr: Expr) -> Alert:
    limits = tuning.thresholds
    for_, loading = limits.engine_down.for_, limits.engine_loading.for_
    pages = severity is Severity.CRITICAL
    meaning = (
        Text(
            f"No other replica of its model is up, or requests ran on it and it has been down for {loading}.",
            f"该模型没有其他可用副本，或它曾有请求在运行且已离线 {loading}。",
        )
        if pages
        else Text(
            f"Other replicas of its model are up: it may be loading. It pages after {loading} if requests ran on it; one "
            f"that was drained is reported after {loading}.",
            f"同一模型的其他副本在线：可能正在加载。若此前有请求在运行，{loading} 后升级为紧急告警；已排空的副本 {loading} 后才报告。",
        )
    )
    return Alert(
        name="EngineDown",
        severity=severity,
        symptom=pages,
        component=Component.ENGINE,
        expr=expr,
        for_=for_,
        panel=REPLICA_HEALTH,
        summary=Text(
            "{{ $labels.replica }} ({{ $labels.model }}) on {{ $labels.instance }} is down",
            "{{ $labels.instance }} 上的 {{ $labels.replica }}（{{ $labels.model }}）不可用",
        ),
        description=Text(
            f"The {{{{ $labels.engine }}}} server has not answered for {for_} or longer. ",
            f"{{{{ $labels.engine }}}} 服务至少 {for_} 没有应答。",
        )
        + meaning
        + lookups.ENGINE_DOWN_REASON
        + lookups.GATEWAY_SHARE
        + lookups.REPLICA_OWNER
        + lookups.VERDICT,
        action=Text(
            "By reason: refused: read why the process ended and start it; timeout: treat as frozen; tls or "
            "http_401: fix the configuration.",
            "按原因处理：refused 则查进程为何退出并启动它；timeout 按冻结处理；tls、http_401 则修正配置。",
        ),
    )


def _gone(before: Expr) -> Expr:
    """Return replicas that are no longer exposed although their node's daemon answers."""
    return and_on(unless(before, select(m.LLM_UP), on=_PLACE), select(UP).equals(1), on=NODE)


def _vanished(tuning: Tuning) -> tuple[Alert, ...]:
    return (_gone_while_serving(tuning), _gone_from_page(tuning))


def _gone_while_serving(tuning: Tuning) -> Alert:
    gone = _gone(_served_last())
    # Pods get new names when they are replaced, so what counts is whether the model has as many replicas as then.
    now = sum_by(select(m.LLM_UP), *MODEL)
    fewer = binary(">", gone, now, on=MODEL, group_left=()) | unless(gone, now, on=MODEL)
    # Evaluated when it disappears: a model that is scaled down hours later says nothing about this replica.
    just = over_time("last", select(SERVING.known), "30m")
    firing = select(_REPLICA_ALERTS, alertname="ReplicaVanished", severity="critical")  # pending, then firing
    known = aggregate("max", just, by=_PLACE) | aggregate("max", firing, by=_PLACE)
    for_ = tuning.thresholds.engine_loading.for_
    return Alert(
        name="ReplicaVanished",
        severity=Severity.CRITICAL,
        symptom=True,
        component=Component.ENGINE,
        expr=and_on(fewer, known, on=_PLACE),
        for_=for_,
        panel=REPLICA_HEALTH,
        summary=Text(
            "{{ $labels.replica }} ({{ $labels.model }}) on {{ $labels.instance }} ended while serving",
            "{{ $labels.instance }} 上的 {{ $labels.replica }}（{{ $labels.model }}）在服务中消失",
        ),
        description=Text(
            f"Requests were running when it was last read. It has been unknown to Shardwatch for {for_}, and "
            "its model, which had {{ $value | humanize }} replicas up, has fewer now. Resolves when the model has "
            f"as many replicas again, or after {MEMORY}.",
            f"最后一次读取时仍有请求在运行，此后 {for_} 内 Shardwatch 中已没有它；该模型当时有 "
            f"{{{{ $value | humanize }}}} 个可用副本，现在更少。副本数恢复后（或 {MEMORY} 后）自动恢复。",
        ),
        action=Text(
            "Start the replica again; read the log of the ended process.",
            "重新启动副本；查看已退出进程的日志。",
        ),
    )


def _gone_from_page(tuning: Tuning) -> Alert:
    hour, quarter, loading = "1h", "15m", tuning.thresholds.engine_loading.for_
    before = select(m.LLM_UP).offset(quarter).equals(1) | select(m.LLM_UP).offset(hour).equals(1)
    up = select(UP_BY_MODEL.known)
    now = sum_by(select(m.LLM_UP), *MODEL)
    as_many = binary("<=", up.offset(hour) | up.offset(quarter), now)
    gone = _gone(before)
    # Without requests it may be a rollout, which starts it anew within that time, or a model that is scaled to zero.
    long = unless(gone, over_time("last", select(m.LLM_UP), loading), on=_PLACE)
    lost = and_on(gone, _served_last(), on=_PLACE) | and_on(long, now > 0, on=MODEL)
    return Alert(
        name="ReplicaVanished",
        severity=Severity.WARNING,
        component=Component.ENGINE,
        expr=unless(lost, as_many, on=MODEL),
        for_="1m",
        panel=REPLICA_HEALTH,
        summary=Text(
            "{{ $labels.replica }} ({{ $labels.model }}) on {{ $labels.instance }} has disappeared",
            "{{ $labels.instance }} 上的 {{ $labels.replica }}（{{ $labels.model }}）已从 Shardwatch 中消失",
        ),
        description=Text(
            "It was up within the last hour, and its model has fewer replicas up than then: the process ended, it was "
            f"scaled down, or removed from the configuration. One without requests is reported after {loading}. "
            "Resolves after 1 hour at most.",
            "1 小时内它仍在线，且该模型的可用副本少于当时：进程退出、被缩容，或已从配置中删除。没有请求的副本在 "
            f"{loading} 后才报告。最多 1 小时后自动恢复。",
        ),
        action=Text(
            "Start the replica unless it was removed on purpose.",
            "若非有意下线，请重新启动该副本。",
        ),
    )


def _model_has_no_replica() -> Alert:
    # Where Shardwatch itself is down nothing is known, so such a node neither accuses nor acquits.
    had = select(LATELY.known)
    watched = sum_by(and_on(had, select(UP).equals(1), on=NODE), *MODEL)
    unknown = sum_by(and_on(had, select(UP).equals(0), on=NODE), *MODEL)
    firing = aggregate("max", select(_MODEL_ALERTS, alertname="ModelHasNoReplica", alertstate="firing"), by=MODEL)
    used = over_time("last", select(USED.known), "1d") > 0
    served = unless(and_on(used, watched | firing, on=MODEL), unknown, on=MODEL)
    return Alert(
        name="ModelHasNoReplica",
        severity=Severity.CRITICAL,
        symptom=True,
        component=Component.ENGINE,
        expr=unless(served, sum_by(select(m.LLM_UP), *MODEL) > 0, on=MODEL),
        for_="2m",
        panel=REPLICA_HEALTH,
        summary=Text(
            "No replica of {{ $labels.model }} is up",
            "{{ $labels.model }} 没有可用副本",
        ),
        description=Text(
            "Requests were running until the end ({{ $value | humanize }} within the last 3 minutes) in job "
            "{{ $labels.job }}, and no replica answers now. A model that was idle when it was removed does not "
            "fire this.",
            "作业 {{ $labels.job }} 中直到最后仍有请求在运行（最后 3 分钟内最多 {{ $value | humanize }} 个），现"
            "在没有任何副本应答。下线前已空闲的模型不会触发。",
        ),
        action=Text(
            "Start a replica; find what all replicas had in common: node, image, volume, rollout.",
            "启动一个副本；查明所有副本的共同点：节点、镜像、存储或发布。",
        ),
    )
