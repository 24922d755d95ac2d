"""What concerns many nodes: figures recorded by node, model and job, and alerts about what differs or is gone.

Quantiles are computed from buckets summed over replicas with the same bounds, by model and engine; a mean of
quantiles would be no quantile.  A board over a thousand nodes reads these few series instead of all.
"""

from __future__ import annotations

from collections.abc import Iterator

from alerts.boards import FLEET_CARDS, FLEET_VERSIONS, REPLICA_HEALTH
from alerts.figures import GENERATED, RUNNING, UTILIZATION, WAITING
from alerts.rule import Alert, Component, Group, Recording, Severity
from alerts.text import Text
from alerts.tuning import Tuning
from exporter.catalog import metrics as m
from exporter.catalog.spec import Metric
from exporter.promql import (
    UP,
    Expr,
    aggregate,
    both,
    buckets,
    count_by,
    histogram_quantile,
    join,
    over_time,
    rate,
    select,
    sum_by,
    unless,
    without_value,
)  # fmt: skip

_NODE = ("job", "instance")
_MODEL = ("job", "model")
_KIND = ("job", "model", "engine")
QUANTILES = (0.5, 0.95, 0.99)
_LATENCIES = (
    m.LLM_TIME_TO_FIRST_TOKEN_SECONDS,
    m.LLM_INTER_TOKEN_LATENCY_SECONDS,
    m.LLM_REQUEST_DURATION_SECONDS,
)

CARDS = Recording(level=_NODE, noun="gpu_up", operations="count", expr=count_by(select(m.GPU_UP), *_NODE))


def groups(tuning: Tuning) -> tuple[Group, ...]:
    """Give the groups about the fleet."""
    del tuning
    return (
        Group(name="shardwatch-fleet", rules=(*_nodes(), *_models(), *_alerts())),
        Group(name="shardwatch-latency", rules=tuple(_quantiles())),
    )


def _nodes() -> Iterator[Recording]:
    yield CARDS
    figures: tuple[tuple[str, str, Expr], ...] = (
        ("gpu_up", "sum", select(m.GPU_UP)),
        ("gpu_utilization_ratio", "avg", select(m.GPU_UTILIZATION_RATIO)),
        ("gpu_utilization_ratio", "max", select(m.GPU_UTILIZATION_RATIO)),
        ("gpu_memory_used_bytes", "sum", select(m.GPU_MEMORY_USED_BYTES)),
        ("gpu_memory_total_bytes", "sum", select(m.GPU_MEMORY_TOTAL_BYTES)),
        ("gpu_power_watts", "sum", select(m.GPU_POWER_WATTS)),
        ("gpu_temperature_margin_celsius", "min", select(m.GPU_TEMPERATURE_MARGIN_CELSIUS)),
        ("llm_up", "sum", select(m.LLM_UP)),
    )
    for noun, operation, expr in figures:
        yield Recording(level=_NODE, noun=noun, operations=operation, expr=aggregate(operation, expr, by=_NODE))
    idle = sum_by(rate(select(m.GPU_IDLE_SECONDS_TOTAL), "5m"), *_NODE)
    yield Recording(level=_NODE, noun="gpu_idle_seconds", operations="rate5m", expr=idle)


def _models() -> Iterator[Recording]:
    for recording in (RUNNING, WAITING, GENERATED):
        yield Recording(
            level=_MODEL,
            noun=recording.noun,
            operations=recording.operations,
            expr=sum_by(select(recording.known), *_MODEL),
        )
    used = aggregate("max", select(m.LLM_KV_CACHE_USAGE_RATIO), by=_MODEL)
    yield Recording(level=_MODEL, noun="llm_kv_cache_usage_ratio", operations="max", expr=used)
    mean = aggregate("avg", select(UTILIZATION.known), by=_MODEL)
    yield Recording(level=_MODEL, noun="gpu_utilization_ratio", operations="avg", expr=mean)
    for operation in ("sum", "count"):
        yield Recording(
            level=_MODEL, noun="llm_up", operations=operation, expr=aggregate(operation, select(m.LLM_UP), by=_MODEL)
        )
    for metric in (m.LLM_PROMPT_TOKENS_TOTAL, m.LLM_PREFIX_CACHE_QUERIES_TOTAL, m.LLM_PREFIX_CACHE_HITS_TOTAL):
        yield Recording(level=_MODEL, noun=metric.family, operations="rate5m", expr=_rate(metric))
    finished = sum_by(rate(select(m.LLM_REQUESTS_TOTAL), "5m"), *_MODEL, "outcome")
    yield Recording(level=(*_MODEL, "outcome"), noun="llm_requests", operations="rate5m", expr=finished)


def _rate(metric: Metric) -> Expr:
    return sum_by(rate(select(metric), "5m"), *_MODEL)


def _quantiles() -> Iterator[Recording]:
    for metric in _LATENCIES:
        summed = Recording(
            level=_KIND,
            noun=f"{metric.name}_bucket",
            operations="rate5m",
            expr=sum_by(rate(buckets(metric), "5m"), *_KIND, "le"),
            kept=frozenset({"le"}),
        )
        yield summed
        for quantile in QUANTILES:
            yield Recording(
                level=_KIND,
                noun=metric.name,
                operations="quantile_rate5m",
                expr=histogram_quantile(quantile, select(summed.known)),
                labels={"quantile": f"{quantile:g}"},
                kept=frozenset({"quantile"}),
            )


def _alerts() -> tuple[Alert, ...]:
    return (_drivers(), _engine_versions(), _fewer_cards(), _vanished(), _unserved())


def _drivers() -> Alert:
    versions = ("driver_version", "cuda_version")
    by_model = join(select(m.LLM_ENGINE_INFO), select(m.GPU_DRIVER_INFO), on=_NODE, bring=versions)
    return Alert(
        name="DriverVersionsDiffer",
        severity=Severity.WARNING,
        component=Component.GPU,
        expr=count_by(count_by(by_model, *_MODEL, *versions), *_MODEL) > 1,
        lasting="30m",
        panel=FLEET_VERSIONS,
        summary=Text(
            "Nodes that serve {{ $labels.model }} run different drivers or CUDA versions",
            "提供 {{ $labels.model }} 的节点驱动或 CUDA 版本不一致",
        ),
        description=Text(
            "{{ $value | humanize }} combinations of driver and CUDA version serve the model in job "
            "{{ $labels.job }} for 30 minutes. Speed and failures differ by node; bring them to one version.",
            "任务 {{ $labels.job }} 中该模型由 {{ $value | humanize }} 种驱动与 CUDA 版本组合提供服务，已持续 30 分钟。"
            "不同节点的速度和故障会不同；请统一版本。",
        ),
    )


def _engine_versions() -> Alert:
    by_version = count_by(select(m.LLM_ENGINE_INFO, version=without_value("")), *_KIND, "version")
    return Alert(
        name="EngineVersionsDiffer",
        severity=Severity.WARNING,
        component=Component.ENGINE,
        expr=count_by(by_version, *_KIND) > 1,
        lasting="30m",
        panel=FLEET_VERSIONS,
        summary=Text(
            "Replicas of {{ $labels.model }} run different versions of {{ $labels.engine }}",
            "{{ $labels.model }} 的副本运行着不同版本的 {{ $labels.engine }}",
        ),
        description=Text(
            "{{ $value | humanize }} versions in job {{ $labels.job }} for 30 minutes: a rollout that stopped half "
            "way. Answers, speed and memory differ by replica.",
            "任务 {{ $labels.job }} 中有 {{ $value | humanize }} 个版本并存，已持续 30 分钟：发布中途停止。"
            "不同副本的回答、速度与显存占用会不同。",
        ),
    )


def _fewer_cards() -> Alert:
    now = select(CARDS.known)
    return Alert(
        name="GpuCountFell",
        severity=Severity.WARNING,
        component=Component.GPU,
        expr=now - over_time("max", now, "1d") < 0,
        lasting="5m",
        panel=FLEET_CARDS,
        summary=Text(
            "{{ $labels.instance }} has fewer cards than it had within the last day",
            "{{ $labels.instance }} 的显卡数量少于过去一天",
        ),
        description=Text(
            "The driver lists {{ $value | humanize }} cards against the day's most: a card did not come back after a "
            "reboot or a reset, or MIG was set anew.",
            "驱动列出的卡数与当天最多时相比为 {{ $value | humanize }}：重启或复位后有卡未恢复，或重新划分了 MIG。",
        ),
    )


def _vanished() -> Alert:
    # A replica that discovery found leaves the page when its process ends: no llm_up 0 tells of it.
    before = select(m.LLM_UP).offset("15m").equals(1)
    answering = select(UP).equals(1)
    gone = unless(before, select(m.LLM_UP), on=("job", "instance", "replica"))
    return Alert(
        name="ReplicaVanished",
        severity=Severity.WARNING,
        component=Component.ENGINE,
        expr=both(gone, answering, on=_NODE),
        lasting="1m",
        panel=REPLICA_HEALTH,
        summary=Text(
            "{{ $labels.replica }} ({{ $labels.model }}) is no longer on {{ $labels.instance }}",
            "{{ $labels.instance }} 上已没有 {{ $labels.replica }}（{{ $labels.model }}）",
        ),
        description=Text(
            "It was up 15 minutes ago and Shardwatch does not know it any more: its process ended, or it was taken "
            "out of the configuration. Resolves by itself after 15 minutes.",
            "15 分钟前仍在线，现在 Shardwatch 已不再知道它：进程退出，或已从配置中删除。15 分钟后自动恢复。",
        ),
    )


def _unserved() -> Alert:
    # Where Shardwatch itself is down nothing is known, so such a node neither accuses nor acquits.
    before = over_time("max", select(RUNNING.known).offset("5m"), "30m")
    watched = both(before, select(UP).equals(1), on=_NODE)
    unknown = both(before, select(UP).equals(0), on=_NODE)
    served = unless(sum_by(watched, *_MODEL) > 0, sum_by(unknown, *_MODEL), on=_MODEL)
    up = sum_by(select(m.LLM_UP), *_MODEL) > 0
    return Alert(
        name="ModelUnserved",
        severity=Severity.CRITICAL,
        symptom=True,
        component=Component.ENGINE,
        expr=unless(served, up, on=_MODEL),
        lasting="3m",
        panel=REPLICA_HEALTH,
        summary=Text(
            "No replica of {{ $labels.model }} is up",
            "{{ $labels.model }} 已没有可用副本",
        ),
        description=Text(
            "Requests were running on it in the last half hour in job {{ $labels.job }} "
            "({{ $value | humanize }} at most), and now no replica answers.",
            "过去半小时内任务 {{ $labels.job }} 中仍有请求运行（最多 {{ $value | humanize }} 个），而现在没有任何副本应答。",
        ),
    )
