"""Alerts about gateways: unreadable, pools without a healthy backend, failing or uneven backends, pickers that are blind."""

from __future__ import annotations

from dataclasses import replace

from alerts.lookup import bound, listed
from alerts.panel_ids import (
    IMBALANCE_BACKENDS,
    IMBALANCE_BUSIEST,
    IMBALANCE_DISAGGREGATION,
    IMBALANCE_GATEWAYS,
    IMBALANCE_PICKER,
    IMBALANCE_POOLS,
)
from alerts.recordings import ALERTS_LABELS, NODE, POOL, WINDOW, failing
from alerts.rule import Alert, Component, Group
from alerts.tuning import Tuning
from exporter.catalog import metrics as m
from exporter.catalog.spec import Unit
from exporter.model.finding import Severity
from exporter.model.text import Text
from exporter.promql import (
    Expr,
    ExternalMetric,
    Match,
    aggregate,
    and_on,
    avg_by,
    binary,
    count_by,
    increase,
    max_by,
    no_regex,
    over_time,
    rate,
    regex,
    select,
    sum_by,
    topk,
    unless,
    without_value,
)

# Several daemons may read one gateway; a pool that is down for all of them fires once.  A loopback address, which is the
# name of a gateway without another one, is another gateway on each node.
_SHARED = ("job", "gateway", "kind", "pool")
LOOPBACK = r"(127\..*|localhost|\[::1\])(:.*)?"
_BY_SUBJECT = ((regex(LOOPBACK), POOL), (no_regex(LOOPBACK), _SHARED))
_POOL_ALERTS = ExternalMetric(name="ALERTS", labels=ALERTS_LABELS | set(POOL))
_REPLICA_ALERTS = ExternalMetric(name="ALERTS", labels=ALERTS_LABELS | {"replica"})
_STOPPED = ("EngineDown", "EngineFrozen", "EngineNoTokens", "GpuLost")
_SEEN_FROM = listed(
    topk(8, max_by(select(m.GATEWAY_BACKEND_UP, **bound(*_SHARED)), *NODE).equals(0)),
    "Seen from {[label instance]}.",
    "观测自 {[label instance]}。",
)


def groups(tuning: Tuning) -> tuple[Group, ...]:
    """Return the group about gateways."""
    rules = (
        _unreadable(),
        _pool_down(),
        _backend_down(),
        *_errors(tuning),
        _uneven(tuning),
        _picker_blind(tuning),
        _never_disaggregated(tuning),
    )
    return (Group(name="shardwatch-gateways", rules=rules),)


def _unreadable() -> Alert:
    return Alert(
        name="GatewayUnreadable",
        severity=Severity.WARNING,
        component=Component.GATEWAY,
        expr=select(m.GATEWAY_UP).equals(0),
        for_="2m",
        panel=IMBALANCE_GATEWAYS,
        summary=Text(
            "Gateway {{ $labels.gateway }} cannot be scraped from {{ $labels.instance }}",
            "无法从 {{ $labels.instance }} 读取网关 {{ $labels.gateway }}",
        ),
        description=Text(
            "Its metrics endpoint has not been read for 2 minutes. Shares and errors by backend are unknown "
            "meanwhile.",
            "已有 2 分钟无法读取其指标端点，期间各后端的份额与错误未知。",
        ),
        action=Text(
            "Send a request through the gateway; start it, or correct the address of its metrics endpoint.",
            "经网关发送一个请求；启动网关，或修正其指标端点的地址。",
        ),
    )


def _without_backend(gateway: Match, pool: tuple[str, ...]) -> Expr:
    """Return the pools of these gateways without a healthy backend, by the labels that tell pools apart."""
    down = count_by(max_by(select(m.GATEWAY_BACKEND_UP, gateway=gateway), *POOL).equals(0), *pool)
    # The newest requests may be of before: where replicas behind it are well, the pool is drained, and nobody asks.
    before = max_by(over_time("max", select(m.GATEWAY_BACKEND_UP), "2m"), *pool) > 0
    serving = max_by(select(m.LLM_UP), *NODE, "replica").equals(1)
    well = max_by(_with_replicas(select(m.GATEWAY_BACKEND_REPLICA_INFO), serving), *pool)
    drained = and_on(before, well, on=pool)
    requests = unless(sum_by(increase(select(m.GATEWAY_POOL_REQUESTS_TOTAL), "2m") > 0, *pool), drained, on=pool)
    # Some gateways do not count requests without a backend: once firing, it lasts until a backend is up.
    asked = (
        requests
        | sum_by(select(m.GATEWAY_POOL_REQUESTS_QUEUED) > 0, *pool)
        | max_by(select(_POOL_ALERTS, alertname="GatewayPoolDown"), *pool)
    )
    whole = tuple(label for label in pool if label not in {"kind", "pool"})
    of_gateway = sum_by(increase(select(m.GATEWAY_POOL_REQUESTS_TOTAL, pool=""), "2m") > 0, *whole)
    uncounted = unless(down, select(m.GATEWAY_POOL_REQUESTS_TOTAL), on=whole)
    return and_on(down, asked, on=pool) | and_on(down, of_gateway, on=whole) | uncounted


def _pool_down() -> Alert:
    local, shared = (_without_backend(gateway, pool) for gateway, pool in _BY_SUBJECT)
    return Alert(
        name="GatewayPoolDown",
        severity=Severity.CRITICAL,
        symptom=True,
        component=Component.GATEWAY,
        expr=replace(local | shared, labels=shared.labels),
        optional_labels=frozenset({"instance"}),
        for_="1m",
        panel=IMBALANCE_BACKENDS,
        summary=Text(
            "Pool {{ $labels.pool }} of gateway {{ $labels.gateway }}{{ with $labels.instance }} on {{ . }}{{ end }} has no "
            "healthy backend",
            "{{ with $labels.instance }}{{ . }} 上的{{ end }}网关 {{ $labels.gateway }} 的后端池 {{ $labels.pool }} 没有健康的后端",
        ),
        description=Text(
            "Every backend of the pool is down according to the gateway, and the pool receives requests: they fail.",
            "网关认为该池的所有后端均不可用，而该池仍有请求：全部失败。",
        )
        + _SEEN_FROM,
        action=Text(
            "Start the replicas. If they are up, fix the gateway's health check.",
            "启动副本；若副本在线，请修正网关的健康检查。",
        ),
    )


def _backend_down() -> Alert:
    up = select(m.GATEWAY_BACKEND_UP)
    return Alert(
        name="GatewayBackendDown",
        severity=Severity.WARNING,
        component=Component.GATEWAY,
        expr=and_on(up.equals(0), max_by(up, *POOL).equals(1), on=POOL),
        for_="15m",  # a rollout drains a replica and loads its weights
        panel=IMBALANCE_BACKENDS,
        summary=Text(
            "Gateway {{ $labels.gateway }} reports {{ $labels.backend }} of pool {{ $labels.pool }} as down",
            "网关 {{ $labels.gateway }} 报告后端池 {{ $labels.pool }} 的 {{ $labels.backend }} 不可用",
        ),
        description=Text(
            "The backend has failed health checks, drained or been in maintenance for 15 minutes (seen from "
            "{{ $labels.instance }}).",
            "该后端健康检查失败、正在排空或处于维护已有 15 分钟（观测自 {{ $labels.instance }}）。",
        ),
        action=Text(
            "Start the replica, end its draining, or fix the health check.",
            "启动副本、取消排空，或修正健康检查。",
        ),
    )


def _errors(tuning: Tuning) -> tuple[Alert, ...]:
    limits = tuning.thresholds
    failed = rate(select(m.GATEWAY_POOL_ERRORS_TOTAL), "5m")
    served = rate(select(m.GATEWAY_POOL_REQUESTS_TOTAL), "5m")
    enough: Expr = increase(select(m.GATEWAY_POOL_REQUESTS_TOTAL), "5m") >= limits.error_requests.warning

    def alert(severity: Severity, value: float) -> Alert:
        errors = and_on(failed / served > value, enough, on=POOL)
        told = _told(tuning, value)
        elsewhere = _told(tuning, value, gateway=no_regex(LOOPBACK))  # another node may know the replica
        return Alert(
            name="GatewayErrors",
            severity=severity,
            symptom=severity is Severity.CRITICAL,
            component=Component.REQUEST,
            # Failing replicas behind the pool have an alert of the same severity, which names them.
            expr=unless(unless(errors, told, on=POOL), max_by(elsewhere, *_SHARED), on=_SHARED),
            for_=limits.error_ratio.for_,
            keep_firing_for="3m",
            panel=IMBALANCE_POOLS,
            summary=Text(
                "Requests to pool {{ $labels.pool }} of gateway {{ $labels.gateway }} fail",
                "发往网关 {{ $labels.gateway }} 后端池 {{ $labels.pool }} 的请求失败",
            ),
            description=Text(
                "{{ $value | humanizePercentage }} of the responses of 5 minutes were server errors (threshold "
                f"{value:.0%} of at least {limits.error_requests.warning:g} requests; seen from "
                "{{ $labels.instance }}).",
                f"5 分钟内 {{{{ $value | humanizePercentage }}}} 的应答为服务端错误（阈值 {value:.0%}，且请求数不少于 "
                f"{limits.error_requests.warning:g}；观测自 {{{{ $labels.instance }}}}）。",
            ),
            action=Text(
                "Find the backend with errors (gateway_errors_total) and drain it; if there is none, the gateway "
                "itself rejects requests: check its limits.",
                "找出出错的后端（gateway_errors_total）并排空；若没有，则是网关自身拒绝请求：检查其限额。",
            ),
        )

    return tuple(alert(Severity(tier), value) for tier, value in limits.error_ratio.tiers())


def _told(tuning: Tuning, threshold: float, **gateway: Match) -> Expr:
    """Return the pools with requests to a replica that fails as often or has stopped, of which another alert tells."""
    replica = (*NODE, "replica")
    fail = max_by(failing(threshold, tuning.thresholds.error_requests.warning), *replica)
    stopped = max_by(select(_REPLICA_ALERTS, alertname=regex("|".join(_STOPPED)), alertstate="firing"), *replica)
    down = select(m.GATEWAY_BACKEND_UP, **gateway).equals(0)  # gets no requests, so that it explains no errors
    behind = unless(select(m.GATEWAY_BACKEND_REPLICA_INFO, **gateway), down, on=(*POOL, "backend"))
    return _with_replicas(behind, (fail | stopped).as_unit(Unit.NONE))


def _with_replicas(behind: Expr, replicas: Expr) -> Expr:
    """Return the pools with a backend that is one of these replicas, by the node that knows it."""
    return max_by(binary("*", behind, replicas, on=(*NODE, "replica"), group_left=()), *POOL)


def _uneven(tuning: Tuning) -> Alert:
    limits = tuning.thresholds
    uneven = select(m.GATEWAY_BACKEND_IMBALANCE_MAX_TO_MEAN_RATIO, window=WINDOW) > limits.gateway_imbalance.warning
    enough = rate(select(m.GATEWAY_POOL_REQUESTS_TOTAL), "5m") > limits.gateway_requests.warning
    # Backends with few requests are canaries while most are none and those are even.  In a pool of two that may as well
    # be stickiness: there the canary is the one of another version.
    shares = select(m.GATEWAY_REQUEST_SHARE_RATIO, window=WINDOW)
    few = avg_by(shares, *POOL) * limits.canary_share.warning
    rest = unless(shares, binary("<", shares > 0, few, on=POOL, group_left=()), on=(*POOL, "backend"))
    engines = select(m.LLM_ENGINE_INFO, version=without_value(""))
    several = count_by(count_by(engines, "job", "model", "version"), "job", "model") > 1
    mixed = and_on(engines, several, on=("job", "model"))
    differ = and_on(select(m.GATEWAY_BACKEND_REPLICA_INFO), mixed, on=(*NODE, "replica"))
    half = count_by(shares, *POOL) * 0.5
    majority = (count_by(rest, *POOL) > half) | and_on(count_by(rest, *POOL) >= half, differ, on=POOL)
    even = and_on(max_by(rest, *POOL) / avg_by(rest, *POOL) <= limits.gateway_imbalance.warning, majority, on=POOL)
    return Alert(
        name="GatewayUneven",
        severity=Severity.WARNING,
        component=Component.GATEWAY,
        expr=and_on(unless(uneven, even, on=POOL), enough, on=POOL),
        for_=limits.gateway_imbalance.for_,
        keep_firing_for="5m",
        panel=IMBALANCE_BUSIEST,
        summary=Text(
            "Gateway {{ $labels.gateway }} distributes requests of pool {{ $labels.pool }} unevenly",
            "网关 {{ $labels.gateway }} 对后端池 {{ $labels.pool }} 的请求分配不均",
        ),
        description=Text(
            "One backend received {{ $value | humanize }} times the mean of its pool in 5 minutes (threshold "
            f"{limits.gateway_imbalance.warning:g} for {limits.gateway_imbalance.for_}; seen from "
            "{{ $labels.instance }}). Intended weights count too.",
            "5 分钟内某个后端收到的请求是池内均值的 {{ $value | humanize }} 倍（阈值：持续 "
            f"{limits.gateway_imbalance.for_} 高于 {limits.gateway_imbalance.warning:g}；观测自 "
            "{{ $labels.instance }}）。有意设置的权重也会计入。",
        ),
        action=Text(
            "Check the balancing algorithm and the weights; raise the threshold gateway_imbalance for intended "
            "weights.",
            "检查负载均衡算法与权重；有意设置的权重请提高阈值 gateway_imbalance。",
        ),
    )


def _picker_blind(tuning: Tuning) -> Alert:
    limits = tuning.thresholds
    # What is stale is counted when a request arrives, so that the gauge stands still while none does.  A picker that
    # takes stale endpoints for saturated answers none, and counts errors alone.
    arriving = rate(select(m.GATEWAY_POOL_REQUESTS_TOTAL), "5m") > limits.gateway_requests.warning
    refused = rate(select(m.GATEWAY_POOL_ERRORS_TOTAL), "5m") > limits.gateway_requests.warning
    stale = over_time("min", select(m.GATEWAY_POOL_STALE_ENDPOINTS), "5m") > limits.stale_endpoints.warning
    failing = rate(select(m.GATEWAY_POOL_POLL_ERRORS_TOTAL), "5m") > limits.picker_poll_errors.warning
    blind = stale.as_unit(Unit.NONE) | failing.as_unit(Unit.NONE)
    return Alert(
        name="EndpointPickerBlind",
        severity=Severity.WARNING,
        component=Component.GATEWAY,
        expr=and_on(blind, arriving | refused, on=POOL),
        for_=limits.picker_poll_errors.for_,
        keep_firing_for="5m",
        panel=IMBALANCE_PICKER,
        summary=Text(
            "Endpoint picker {{ $labels.gateway }} cannot read the metrics of its endpoints",
            "端点选择器 {{ $labels.gateway }} 无法读取其端点的指标",
        ),
        description=Text(
            "Endpoints are stale, or reading their metrics fails ({{ $value | humanize }} endpoints, or failures per "
            "second; seen from {{ $labels.instance }}). It chooses by old loads; with flow control it takes such "
            "endpoints for saturated and may hold every request back.",
            "端点数据过期，或读取其指标失败（{{ $value | humanize }} 个端点，或每秒失败次数；观测自 "
            "{{ $labels.instance }}）。它按旧的负载做选择；启用流控时会把这些端点视为饱和，可能拦住所有请求。",
        ),
        action=Text(
            "Compare the port and the engine-type label of the endpoints with what the picker expects; fetch an "
            "endpoint's /metrics from the picker's pod; look for endpoints that answer late.",
            "核对端点的端口与引擎类型标签是否符合选择器的预期；在选择器的 Pod 中访问端点的 /metrics；查找应答迟缓的端点。",
        ),
    )


def _never_disaggregated(tuning: Tuning) -> Alert:
    limits = tuning.thresholds
    decisions = rate(select(m.GATEWAY_POOL_DISAGGREGATION_DECISIONS_TOTAL), "30m")
    every = aggregate("sum", decisions, without=("decision",))
    alone = aggregate(
        "sum",
        rate(select(m.GATEWAY_POOL_DISAGGREGATION_DECISIONS_TOTAL, decision="decode_only"), "30m"),
        without=("decision",),
    )
    return Alert(
        name="DisaggregationUnused",
        severity=Severity.INFO,
        component=Component.GATEWAY,
        expr=and_on(
            (alone / every).as_unit(Unit.RATIO) > limits.decode_only.warning,
            every > limits.gateway_requests.warning,
            on=POOL,
        ),
        for_=limits.decode_only.for_,
        panel=IMBALANCE_DISAGGREGATION,
        summary=Text(
            "Endpoint picker {{ $labels.gateway }} sends hardly any prompt to a prefill replica",
            "端点选择器 {{ $labels.gateway }} 几乎不把提示发给预填充副本",
        ),
        description=Text(
            "{{ $value | humanizePercentage }} of the requests of 30 minutes were decided decode-only (threshold "
            f"{limits.decode_only.warning:.0%}; seen from {{{{ $labels.instance }}}}): the decode replicas compute the "
            "prompts, and the prefill replicas are idle.",
            "30 分钟内 {{ $value | humanizePercentage }} 的请求被判定为仅解码（阈值 "
            f"{limits.decode_only.warning:.0%}；观测自 {{{{ $labels.instance }}}}）：提示由解码副本计算，预填充副本空闲。",
        ),
        action=Text(
            "Check the role labels of the prefill pods and the picker's threshold of prompt length; without use for "
            "them, give the prefill replicas' GPUs to decode.",
            "检查预填充 Pod 的角色标签与选择器的提示长度阈值；若无用处，将预填充副本的 GPU 改作解码。",
        ),
    )
