"""Recordings by node, model and job, and alerts about versions that differ and GPUs that are missing.

Quantiles are computed from buckets summed over replicas with the same bounds, by model and engine; quantiles are never
averaged.  Dashboards over many nodes read these few series instead of the raw ones.
"""

from __future__ import annotations

from collections.abc import Iterator

from alerts import lookups
from alerts.lookup import bound, listed
from alerts.panel_ids import FLEET_ENGINE_VERSIONS, FLEET_GPUS, FLEET_VERSIONS
from alerts.recordings import (
    GENERATED,
    MODEL,
    NODE,
    RELEASED,
    REPLICA,
    RUNNING,
    RUNNING_BY_MODEL,
    UP_BY_MODEL,
    UTILIZATION,
    WAITING,
)
from alerts.rule import Alert, Component, Group, Recording
from alerts.tuning import Tuning
from exporter.catalog import metrics as m
from exporter.catalog.spec import Metric
from exporter.model.finding import Severity
from exporter.model.text import Text
from exporter.promql import (
    Expr,
    aggregate,
    and_on,
    avg_by,
    binary,
    buckets,
    count_by,
    histogram_quantile,
    max_by,
    over_time,
    rate,
    select,
    sum_by,
    topk,
    unless,
    without_value,
)  # fmt: skip

_KIND = ("job", "model", "engine")
QUANTILES = (0.5, 0.95, 0.99)
_LATENCIES = (
    m.LLM_TIME_TO_FIRST_TOKEN_SECONDS,
    m.LLM_INTER_TOKEN_LATENCY_SECONDS,
    m.LLM_REQUEST_DURATION_SECONDS,
)

_VERSIONS = ("driver_version", "cuda_version")
_NODES = listed(
    topk(
        3,
        max_by(
            and_on(select(m.GPU_DRIVER_INFO, **bound("job")), select(m.LLM_ENGINE_INFO, **bound(*MODEL)), on=NODE),
            "instance",
            *_VERSIONS,
        ),
        by=_VERSIONS,
    ),
    "For example {[label instance] (driver [label driver_version], CUDA [label cuda_version])}.",
    "例如 {[label instance]（驱动 [label driver_version]，CUDA [label cuda_version]）}。",
)
_REPLICAS = listed(
    topk(
        3,
        max_by(
            select(m.LLM_ENGINE_INFO, version=without_value(""), **bound(*_KIND)), "instance", "replica", "version"
        ),
        by=("version",),
    ),
    "For example {[label replica] on [label instance] ([label version])}.",
    "例如 {[label instance] 上的 [label replica]（[label version]）}。",
)
GPUS = Recording(level=NODE, noun="gpu_up", operations="count", expr=count_by(select(m.GPU_UP), *NODE))


def groups(tuning: Tuning) -> tuple[Group, ...]:
    """Return the groups about the fleet; the rule over one week is evaluated every 5 minutes."""
    return (
        Group(name="shardwatch-fleet", rules=(*_nodes(), *_models(), _drivers(), _engine_versions(tuning))),
        Group(name="shardwatch-inventory", rules=(_count_decreased(),), interval="5m"),
        Group(name="shardwatch-latency", rules=tuple(_quantiles())),
    )


def _nodes() -> Iterator[Recording]:
    yield GPUS
    yield _of_node("sum", m.GPU_UP)
    yield _of_node("avg", m.GPU_UTILIZATION_RATIO)
    yield _of_node("max", m.GPU_UTILIZATION_RATIO)
    yield _of_node("sum", m.GPU_MEMORY_USED_BYTES)
    yield _of_node("sum", m.GPU_MEMORY_TOTAL_BYTES)
    yield _of_node("sum", m.GPU_POWER_WATTS)
    yield _of_node("min", m.GPU_TEMPERATURE_MARGIN_CELSIUS)
    yield _of_node("sum", m.LLM_UP)
    idle = sum_by(rate(select(m.GPU_IDLE_SECONDS_TOTAL), "5m"), *NODE)
    yield Recording(level=NODE, noun="gpu_idle_seconds", operations="rate5m", expr=idle)


def _of_node(operation: str, metric: Metric) -> Recording:
    expr = aggregate(operation, select(metric), by=NODE)
    return Recording(level=NODE, noun=metric.name, operations=operation, expr=expr)


def _models() -> Iterator[Recording]:
    yield RUNNING_BY_MODEL
    for recording in (WAITING, GENERATED):
        yield Recording(
            level=MODEL,
            noun=recording.noun,
            operations=recording.operations,
            expr=sum_by(select(recording.known), *MODEL),
        )
    used = aggregate("max", select(m.LLM_KV_CACHE_USAGE_RATIO), by=MODEL)
    yield Recording(level=MODEL, noun="llm_kv_cache_usage_ratio", operations="max", expr=used)
    mean = aggregate("avg", select(UTILIZATION.known), by=MODEL)
    yield Recording(level=MODEL, noun="gpu_utilization_ratio", operations="avg", expr=mean)
    yield UP_BY_MODEL
    yield Recording(level=MODEL, noun="llm_up", operations="count", expr=count_by(select(m.LLM_UP), *MODEL))
    for metric in (m.LLM_PROMPT_TOKENS_TOTAL, m.LLM_PREFIX_CACHE_QUERIES_TOTAL, m.LLM_PREFIX_CACHE_HITS_TOTAL):
        yield Recording(level=MODEL, noun=metric.family, operations="rate5m", expr=_rate(metric))
    finished = sum_by(rate(select(m.LLM_REQUESTS_TOTAL), "5m"), *MODEL, "outcome")
    yield Recording(level=(*MODEL, "outcome"), noun="llm_requests", operations="rate5m", expr=finished)


def _rate(metric: Metric) -> Expr:
    return sum_by(rate(select(metric), "5m"), *MODEL)


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


def _drivers() -> Alert:
    engines, drivers = select(m.LLM_ENGINE_INFO), select(m.GPU_DRIVER_INFO)
    # On all labels of the targets, not on job and instance alone: two clusters may have nodes with the same name.
    own = sorted(engines.labels ^ drivers.labels)
    by_model = binary("*", engines, drivers, ignoring=own, group_left=_VERSIONS)
    return Alert(
        name="DriverVersionsDiffer",
        severity=Severity.WARNING,
        component=Component.GPU,
        expr=count_by(count_by(by_model, *MODEL, *_VERSIONS), *MODEL) > 1,
        for_="30m",
        panel=FLEET_VERSIONS,
        summary=Text(
            "Nodes that serve {{ $labels.model }} run different driver or CUDA versions",
            "提供 {{ $labels.model }} 的节点驱动或 CUDA 版本不一致",
        ),
        description=Text(
            "{{ $value | humanize }} combinations of driver and CUDA version in job {{ $labels.job }} for 30 "
            "minutes. Speed and failures differ by node.",
            "作业 {{ $labels.job }} 中有 {{ $value | humanize }} 种驱动与 CUDA 版本组合，已持续 30 分钟。速度与故"
            "障因节点而异。",
        )
        + _NODES
        + lookups.ENGINE_VERSIONS,
        action=Text(
            "Drain the nodes that differ and bring them to one version.",
            "排空版本不同的节点并统一版本。",
        ),
    )


def _engine_versions(tuning: Tuning) -> Alert:
    load = over_time("avg", select(RUNNING.known), "30m")
    # A canary gets few requests on purpose.
    few = avg_by(load, *MODEL) * tuning.thresholds.canary_share.warning
    canaries = binary("<", load > 0, few, on=MODEL, group_left=())
    versions = unless(select(m.LLM_ENGINE_INFO, version=without_value("")), canaries, on=REPLICA)
    by_version = count_by(versions, *_KIND, "version")
    return Alert(
        name="EngineVersionsDiffer",
        severity=Severity.WARNING,
        component=Component.ENGINE,
        expr=count_by(by_version, *_KIND) > 1,
        for_="30m",
        panel=FLEET_ENGINE_VERSIONS,
        summary=Text(
            "Replicas of {{ $labels.model }} run different versions of {{ $labels.engine }}",
            "{{ $labels.model }} 的副本运行着不同版本的 {{ $labels.engine }}",
        ),
        description=Text(
            "{{ $value | humanize }} versions in job {{ $labels.job }} for 30 minutes: a rollout that stopped "
            "half way. Canaries, with less than a quarter of the mean load, are left out.",
            "作业 {{ $labels.job }} 中有 {{ $value | humanize }} 个版本并存，已持续 30 分钟：发布中途停止。负载低于均值四分之一的"
            "金丝雀副本不计入。",
        )
        + _REPLICAS,
        action=Text(
            "Finish or roll back the rollout; silence this alert for a canary with more load.",
            "完成或回滚发布；负载更高的金丝雀发布期间请静默本告警。",
        ),
    )


def _count_decreased() -> Alert:
    now = select(GPUS.known)
    max_of_week = over_time("max", now, "7d")
    none = and_on(
        unless(max_of_week, now, on=NODE), select(m.SHARDWATCH_SOURCE_UP, source="driver").equals(1), on=NODE
    )
    return Alert(
        name="GpuCountDecreased",
        severity=Severity.WARNING,
        component=Component.GPU,
        expr=unless((max_of_week - now > 0) | none, RELEASED, on=NODE),
        for_="5m",
        panel=FLEET_GPUS,
        summary=Text(
            "{{ $labels.instance }} has fewer GPUs than within the last week",
            "{{ $labels.instance }} 的 GPU 数量少于过去一周",
        ),
        description=Text(
            "{{ $value | humanize }} GPUs that the driver listed within the last week are missing.",
            "过去一周驱动列出过的 GPU 中有 {{ $value | humanize }} 张缺失。",
        ),
        action=Text(
            "Compare lspci with nvidia-smi -L; read the kernel log of the boot; reseat and power-cycle. Silence "
            "it if MIG was reconfigured on purpose.",
            "比较 lspci 与 nvidia-smi -L；查看开机内核日志；重新插卡并断电冷启动。若有意重新划分 MIG，请静默。",
        ),
    )
