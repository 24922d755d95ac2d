"""Alerts about engines: wedged, frozen, waiting beside idle cards, out of KV cache, thrashing, blind tails."""

from __future__ import annotations

from alerts.panel_ids import (
    REPLICA_CACHE,
    REPLICA_FIRST_TOKEN,
    REPLICA_HEALTH,
    REPLICA_HITS,
    REPLICA_PREEMPTIONS,
    REPLICA_QUEUE,
    REPLICA_TOKENS,
)
from alerts.recordings import HIT_RATIO, REPLICA, RUNNING, UTILIZATION, WAITING, token_rate
from alerts.rule import Alert, Component, Severity
from alerts.text import Text
from alerts.tuning import Tuning
from exporter.catalog import metrics as m
from exporter.promql import Expr, aggregate, and_on, increase, observations, over_time, resets, select, unless


def alerts(tuning: Tuning) -> tuple[Alert, ...]:
    """Give the alerts about engines."""
    return (
        _frozen(),
        _no_tokens(),
        *_idle_with_queue(tuning),
        *_cache_pressure(tuning),
        _preemptions(tuning),
        _hit_rate_dropped(tuning),
        _saturated(tuning),
        _restarting(tuning),
        _rank_stale(),
    )


def _frozen() -> Alert:
    return Alert(
        name="EngineFrozen",
        severity=Severity.CRITICAL,
        symptom=True,
        component=Component.ENGINE,
        expr=select(m.LLM_FROZEN).equals(1),
        for_="1m",
        keep_firing_for="2m",
        panel=REPLICA_HEALTH,
        summary=Text(
            "{{ $labels.replica }} ({{ $labels.model }}) on {{ $labels.instance }} is frozen",
            "{{ $labels.instance }} 上的 {{ $labels.replica }}（{{ $labels.model }}）已冻结",
        ),
        description=Text(
            "Requests are running and no counter of the engine moves: a collective that does not end, a lost card "
            "or link, or a deadlock. It does not heal by itself; restart the replica after looking at its cards.",
            "有请求在运行，但引擎的所有计数都不再变化：集合通信无法结束、掉卡或链路断开，或死锁。"
            "它不会自行恢复；检查显卡后请重启该副本。",
        ),
    )


def _still(window: str) -> Expr:
    """Give the requests of replicas that had some at both ends of the window and ever between, and made no token."""
    busy = over_time("min", select(RUNNING.known), window) > 0
    already = select(RUNNING.known).offset(window) > 0
    no_output = token_rate(m.LLM_GENERATION_TOKENS_TOTAL, window).equals(0)
    no_input = token_rate(m.LLM_PROMPT_TOKENS_TOTAL, window).equals(0)
    return and_on(and_on(and_on(busy, already, on=REPLICA), no_output, on=REPLICA), no_input, on=REPLICA)


def _no_tokens() -> Alert:
    # Engines that let freezing be judged count while they work.  The others may count at a request's end alone, and
    # one long answer on a quiet night must wake nobody.
    judged = select(m.LLM_FROZEN)
    return Alert(
        name="EngineNoTokens",
        severity=Severity.CRITICAL,
        symptom=True,
        component=Component.ENGINE,
        expr=and_on(_still("5m"), judged.equals(0), on=REPLICA) | unless(_still("20m"), judged, on=REPLICA),
        for_="2m",
        panel=REPLICA_HEALTH,
        summary=Text(
            "{{ $labels.replica }} ({{ $labels.model }}) on {{ $labels.instance }} runs requests and makes no token",
            "{{ $labels.instance }} 上的 {{ $labels.replica }}（{{ $labels.model }}）有请求在运行却不产出 token",
        ),
        description=Text(
            "{{ $value | humanize }} requests have been running for 5 minutes (20 where the engine may count only what "
            "is finished) and not one token was read or generated, although the engine's page still answers.",
            "有 {{ $value | humanize }} 个请求已运行 5 分钟（只统计已完成请求的引擎为 20 分钟），"
            "既没有读入也没有生成任何 token，而引擎页面仍有响应。",
        ),
    )


def _idle_with_queue(tuning: Tuning) -> tuple[Alert, ...]:
    limit = tuning.thresholds.idle_with_queue
    waiting = over_time("min", select(WAITING.known), "3m") > 0
    idle = over_time("avg", select(UTILIZATION.known), "3m")

    def alert(severity: Severity, value: float) -> Alert:
        return Alert(
            name="EngineIdleWithQueue",
            severity=severity,
            symptom=severity is Severity.CRITICAL,
            component=Component.ENGINE,
            expr=and_on(idle < value, waiting, on=REPLICA),
            for_=limit.for_,
            keep_firing_for="3m",
            panel=REPLICA_QUEUE,
            summary=Text(
                "Requests wait for {{ $labels.replica }} on {{ $labels.instance }} while its cards idle",
                "{{ $labels.instance }} 上 {{ $labels.replica }} 的请求在排队，而显卡空闲",
            ),
            description=Text(
                "Its cards are {{ $value | humanizePercentage }} utilised while requests wait (alarm below "
                f"{value:.0%} for {limit.for_}): the engine's own limits, its CPU threads or a stuck scheduler hold "
                "them back, not the hardware.",
                "有请求在排队，而显卡利用率仅 {{ $value | humanizePercentage }}（持续 "
                f"{limit.for_} 低于 {value:.0%} 即告警）：瓶颈是引擎自身的限制、CPU 线程或卡住的调度器，而不是硬件。",
            ),
        )

    return tuple(alert(Severity(tier), value) for tier, value in limit.tiers())


def _cache_pressure(tuning: Tuning) -> tuple[Alert, ...]:
    limit = tuning.thresholds.kv_cache_use
    used = aggregate("max", over_time("avg", select(m.LLM_KV_CACHE_USAGE_RATIO), "3m"), without=("rank",))
    waiting = over_time("min", select(WAITING.known), "3m") > 0

    def alert(severity: Severity, value: float) -> Alert:
        return Alert(
            name="KvCachePressure",
            severity=severity,
            symptom=severity is Severity.CRITICAL,
            component=Component.ENGINE,
            expr=and_on(used > value, waiting, on=REPLICA),
            for_=limit.for_,
            keep_firing_for="5m",
            panel=REPLICA_CACHE,
            summary=Text(
                "Requests wait for the KV cache of {{ $labels.replica }} on {{ $labels.instance }}",
                "{{ $labels.instance }} 上 {{ $labels.replica }} 的请求在等待 KV 缓存",
            ),
            description=Text(
                "{{ $value | humanizePercentage }} of the fullest rank's cache is held by live requests (alarm above "
                f"{value:.0%} for {limit.for_}) and requests wait. More replicas, shorter contexts, or a quantised "
                "cache.",
                "最满的 rank 已有 {{ $value | humanizePercentage }} 的缓存被活跃请求占用（持续 "
                f"{limit.for_} 高于 {value:.0%} 即告警），并有请求在等待。可增加副本、缩短上下文或量化缓存。",
            ),
        )

    return tuple(alert(Severity(tier), value) for tier, value in limit.tiers())


def _preemptions(tuning: Tuning) -> Alert:
    limit = tuning.thresholds.preemption_rate
    return Alert(
        name="PreemptionStorm",
        severity=Severity.WARNING,
        component=Component.ENGINE,
        expr=token_rate(m.LLM_PREEMPTIONS_TOTAL) > limit.warning,
        for_=limit.for_,
        keep_firing_for="5m",
        panel=REPLICA_PREEMPTIONS,
        summary=Text(
            "{{ $labels.replica }} on {{ $labels.instance }} throws running requests back",
            "{{ $labels.instance }} 上的 {{ $labels.replica }} 频繁抢占运行中的请求",
        ),
        description=Text(
            "{{ $value | humanize }} preemptions a second over 5 minutes (alarm above "
            f"{limit.warning:g}): the cache is full, and each preempted request computes its tokens again.",
            "5 分钟内每秒 {{ $value | humanize }} 次抢占（超过 "
            f"{limit.warning:g} 即告警）：缓存已满，每个被抢占的请求都要重新计算其 token。",
        ),
    )


def _hit_rate_dropped(tuning: Tuning) -> Alert:
    limits = tuning.thresholds
    # The same half hour of yesterday, because prompts follow the day; an hour ago while there is no yesterday.
    now = select(HIT_RATIO.known)
    past = now.offset("1d") | now.offset("1h")
    collapsed = and_on(now / past < limits.hit_rate_of_past.warning, past > limits.past_hit_rate.warning, on=REPLICA)
    asked = token_rate(m.LLM_PREFIX_CACHE_QUERIES_TOTAL, "30m") > limits.hit_rate_lookups.warning
    return Alert(
        name="PrefixCacheHitRateDropped",
        severity=Severity.WARNING,
        component=Component.ENGINE,
        expr=and_on(collapsed, asked, on=REPLICA),
        for_=limits.hit_rate_of_past.for_,
        panel=REPLICA_HITS,
        summary=Text(
            "The prefix cache of {{ $labels.replica }} on {{ $labels.instance }} hits far less than before",
            "{{ $labels.instance }} 上 {{ $labels.replica }} 的前缀缓存命中率大幅下降",
        ),
        description=Text(
            "It stands at {{ $value | humanizePercentage }} of its own past (the same half hour yesterday, or an hour "
            "ago), with as many lookups. Prompts, routing by prefix or the room for cached blocks have changed.",
            "仅为自身过去（昨天同一半小时，或一小时前）的 {{ $value | humanizePercentage }}，而查询量相当。"
            "可能是提示词、按前缀路由或缓存空间发生了变化。",
        ),
    )


def _saturated(tuning: Tuning) -> Alert:
    limits = tuning.thresholds
    # Which windows there are is up to the configuration, and the common set has the longest only: all must agree.
    beyond = aggregate("min", select(m.LLM_LATENCY_ABOVE_TOP_BUCKET_RATIO), without=("window",))
    seen = increase(observations(m.LLM_TIME_TO_FIRST_TOKEN_SECONDS), "5m") > limits.error_requests.warning
    return Alert(
        name="LatencyBeyondBuckets",
        severity=Severity.WARNING,
        component=Component.ENGINE,
        expr=and_on(beyond > limits.saturated_share.warning, seen, on=REPLICA),
        for_=limits.saturated_share.for_,
        panel=REPLICA_FIRST_TOKEN,
        summary=Text(
            "{{ $labels.stage }} of {{ $labels.replica }} on {{ $labels.instance }} exceeds what its buckets can show",
            "{{ $labels.instance }} 上 {{ $labels.replica }} 的 {{ $labels.stage }} 超出直方图可表示的范围",
        ),
        description=Text(
            "{{ $value | humanizePercentage }} of the observations lie beyond the last bound, in every window of the "
            "daemon: quantiles stand still there while users wait longer.",
            "守护进程的每个窗口内都有 {{ $value | humanizePercentage }} 以上的观测超出最后一个桶边界："
            "分位数停在边界上，而用户等待更久。",
        ),
    )


def _restarting(tuning: Tuning) -> Alert:
    limit = tuning.thresholds.engine_restarts
    return Alert(
        name="EngineRestarting",
        severity=Severity.WARNING,
        component=Component.ENGINE,
        expr=aggregate("max", resets(select(m.LLM_GENERATION_TOKENS_TOTAL), "30m"), without=("rank",))
        > limit.warning,
        for_=limit.for_,
        panel=REPLICA_TOKENS,
        summary=Text(
            "{{ $labels.replica }} on {{ $labels.instance }} restarts again and again",
            "{{ $labels.instance }} 上的 {{ $labels.replica }} 反复重启",
        ),
        description=Text(
            "Its counters began anew {{ $value | humanize }} times in 30 minutes. The engine's log says why it "
            "ended: out of memory, a lost worker, a failed health check.",
            "30 分钟内其计数重新开始了 {{ $value | humanize }} 次。退出原因见引擎日志：显存不足、worker 丢失或健康检查失败。",
        ),
    )


def _rank_stale() -> Alert:
    return Alert(
        name="RankStale",
        severity=Severity.WARNING,
        component=Component.ENGINE,
        expr=select(m.LLM_RANK_STALE_INFO).equals(1),
        for_="5m",
        panel=REPLICA_HEALTH,
        summary=Text(
            "Rank {{ $labels.rank }} of {{ $labels.replica }} on {{ $labels.instance }} stands still",
            "{{ $labels.instance }} 上 {{ $labels.replica }} 的 rank {{ $labels.rank }} 停滞",
        ),
        description=Text(
            "Its figures have not moved for 5 minutes while those of other ranks do: the worker is gone or hangs.",
            "其他 rank 的数值在变化，而它已有 5 分钟不变：worker 已退出或挂起。",
        ),
    )
