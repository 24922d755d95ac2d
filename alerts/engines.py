"""Alerts about engines: frozen, without progress, idle with a queue, out of KV cache, preempting, restarting."""

from __future__ import annotations

from alerts import lookups
from alerts.panel_ids import (
    REPLICA_CACHE,
    REPLICA_FIRST_TOKEN,
    REPLICA_HEALTH,
    REPLICA_HITS,
    REPLICA_PREEMPTIONS,
    REPLICA_QUEUE,
    REPLICA_TOKENS,
)
from alerts.recordings import (
    HIT_RATIO,
    REPLICA,
    RUNNING,
    UTILIZATION,
    WAITING,
    mean_latency,
    share_of_past,
    token_rate,
)
from alerts.rule import Alert, Component
from alerts.tuning import Tuning
from exporter.catalog import metrics as m
from exporter.model.finding import Severity
from exporter.model.text import Text
from exporter.promql import Expr, aggregate, and_on, increase, observations, over_time, resets, select, unless


def alerts(tuning: Tuning) -> tuple[Alert, ...]:
    """Return the alerts about engines."""
    return (
        _frozen(),
        _no_tokens(),
        *_idle_with_queue(tuning),
        _queue_growing(tuning),
        _cache_pressure(tuning),
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
        keep_firing_for="5m",
        panel=REPLICA_HEALTH,
        summary=Text(
            "{{ $labels.replica }} ({{ $labels.model }}) on {{ $labels.instance }} is frozen",
            "{{ $labels.instance }} 上的 {{ $labels.replica }}（{{ $labels.model }}）已冻结",
        ),
        description=Text(
            "Requests are running and no counter of the engine moves. It does not recover by itself.",
            "有请求在运行，但引擎的所有计数器都不再变化。它不会自行恢复。",
        )
        + lookups.LOST_GPU
        + lookups.DOWN_PORT
        + lookups.REPLICA,
        action=Text(
            "Remove the replica from the gateway; check its GPUs and network ports (gpu_up, XIDs, NVLinks); end all of its "
            "processes and start it again.",
            "将副本从网关摘除；检查其 GPU 与网卡端口（gpu_up、XID、NVLink）；结束全部进程后重新启动。",
        ),
    )


def _still(window: str) -> Expr:
    """Return the running requests of replicas that had some throughout the window and produced no token."""
    busy = over_time("min", select(RUNNING.known), window) > 0
    already = select(RUNNING.known).offset(window) > 0
    no_output = token_rate(m.LLM_GENERATION_TOKENS_TOTAL, window).equals(0)
    no_input = token_rate(m.LLM_PROMPT_TOKENS_TOTAL, window).equals(0)
    return and_on(and_on(and_on(busy, already, on=REPLICA), no_output, on=REPLICA), no_input, on=REPLICA)


def _no_tokens() -> Alert:
    # Engines with llm_frozen count while they work.  Others may count only when a request ends, and one long answer
    # must not page.
    progress = select(m.LLM_FROZEN)
    return Alert(
        name="EngineNoTokens",
        severity=Severity.CRITICAL,
        symptom=True,
        component=Component.ENGINE,
        expr=and_on(_still("5m"), progress.equals(0), on=REPLICA) | unless(_still("20m"), progress, on=REPLICA),
        for_="2m",
        panel=REPLICA_HEALTH,
        summary=Text(
            "{{ $labels.replica }} ({{ $labels.model }}) on {{ $labels.instance }} is running requests but "
            "generating no tokens",
            "{{ $labels.instance }} 上的 {{ $labels.replica }}（{{ $labels.model }}）有请求在运行但不生成 token",
        ),
        description=Text(
            "{{ $value | humanize }} requests have been running for 5 minutes (20 where the engine may count only "
            "finished requests) and no token was read or generated. The engine's metrics endpoint still answers.",
            "{{ $value | humanize }} 个请求已运行 5 分钟（只统计已完成请求的引擎为 20 分钟），没有读入或生成任何 "
            "token，而引擎的指标端点仍有响应。",
        )
        + lookups.LOST_GPU
        + lookups.DOWN_PORT
        + lookups.REPLICA,
        action=Text(
            "Remove the replica from the gateway; save a stack dump (py-spy dump); end all of its processes and "
            "start it again.",
            "将副本从网关摘除；保存调用栈（py-spy dump）；结束全部进程后重新启动。",
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
                "Requests wait for {{ $labels.replica }} on {{ $labels.instance }} while its GPUs are idle",
                "{{ $labels.instance }} 上的 {{ $labels.replica }} 有请求排队，而 GPU 空闲",
            ),
            description=Text(
                "Its GPUs are {{ $value | humanizePercentage }} utilised while requests wait (threshold "
                f"{value:.0%} for {limit.for_}). The limit is in the engine or its CPU threads, not in the GPUs.",
                f"有请求排队，而 GPU 利用率为 {{{{ $value | humanizePercentage }}}}（阈值：持续 {limit.for_} 低于 "
                f"{value:.0%}）。瓶颈在引擎或其 CPU 线程，不在 GPU。",
            )
            + lookups.LATENCY
            + lookups.REPLICA,
            action=Text(
                "Compare running requests with the engine's limits (--max-num-seqs); check for a CPU thread at "
                "100 % (top -H); restart the engine if its scheduler is stuck.",
                "比较运行请求数与引擎上限（--max-num-seqs）；检查是否有 CPU 线程达到 100 %（top -H）；若调度器卡"
                "住则重启引擎。",
            ),
        )

    return tuple(alert(Severity(tier), value) for tier, value in limit.tiers())


def _queue_growing(tuning: Tuning) -> Alert:
    limits = tuning.thresholds
    queue = select(WAITING.known)
    now, earlier, before = (over_time("avg", queue.offset(ago) if ago else queue, "5m") for ago in ("", "10m", "20m"))
    step = over_time("avg", select(RUNNING.known), "5m") * limits.queue_growth.warning
    # Twice in a row: a queue that rose once and stays has become steady, which objectives of latency judge.
    grows = and_on(now - earlier > step, earlier - before > step, on=REPLICA)
    long = and_on(grows, now >= limits.balance_requests.warning, on=REPLICA)
    busy = over_time("avg", select(UTILIZATION.known), "5m") >= limits.idle_with_queue.warning
    return Alert(
        name="QueueGrowing",
        severity=Severity.WARNING,
        component=Component.ENGINE,
        expr=unless(and_on(long, busy, on=REPLICA), select(m.LLM_FROZEN).equals(1), on=REPLICA),
        for_=limits.queue_growth.for_,
        keep_firing_for="10m",
        panel=REPLICA_QUEUE,
        summary=Text(
            "The queue of {{ $labels.replica }} ({{ $labels.model }}) on {{ $labels.instance }} grows while its GPUs are busy",
            "{{ $labels.instance }} 上的 {{ $labels.replica }}（{{ $labels.model }}）GPU 满载，排队持续增长",
        ),
        description=Text(
            "It has grown by {{ $value | humanize }} requests in 10 minutes, and grew in the 10 minutes before: more "
            "requests arrive than the replica can serve.",
            "10 分钟内排队增加了 {{ $value | humanize }} 个请求，再之前的 10 分钟也在增长：到达的请求超过该副本的处理能力。",
        )
        + lookups.TTFT
        + lookups.REPLICA,
        action=Text(
            "Add replicas of the model or shed load at the gateway; compare with other replicas of the model: one queue "
            "alone is routing.",
            "为该模型扩容，或在网关限流；与该模型其他副本对比：若只有一个排队，则是路由问题。",
        ),
    )


def _cache_pressure(tuning: Tuning) -> Alert:
    limit, slow = tuning.thresholds.kv_cache_use, tuning.thresholds.first_token.warning
    used = aggregate("max", over_time("avg", select(m.LLM_KV_CACHE_USAGE_RATIO), "3m"), without=("rank",))
    waiting = over_time("min", select(WAITING.known), "3m") > 0
    # A full cache with a queue is normal at full throughput; it is a fault where first tokens are late.
    late = mean_latency(m.LLM_TIME_TO_FIRST_TOKEN_SECONDS, "5m") > slow
    return Alert(
        name="KvCachePressure",
        severity=Severity.WARNING,
        component=Component.ENGINE,
        expr=and_on(and_on(used > limit.warning, waiting, on=REPLICA), late, on=REPLICA),
        for_=limit.for_,
        keep_firing_for="5m",
        panel=REPLICA_CACHE,
        summary=Text(
            "Requests wait for KV cache of {{ $labels.replica }} on {{ $labels.instance }}",
            "{{ $labels.instance }} 上的 {{ $labels.replica }} 的请求在等待 KV 缓存",
        ),
        description=Text(
            "{{ $value | humanizePercentage }} of the KV cache of the fullest rank is in use (threshold "
            f"{limit.warning:.0%} for {limit.for_}), requests wait, and first tokens take longer than {slow:g} s on "
            "average.",
            f"最满的 rank 已使用 {{{{ $value | humanizePercentage }}}} 的 KV 缓存（阈值：持续 {limit.for_} 高于 "
            f"{limit.warning:.0%}），有请求排队，且首 token 平均超过 {slow:g} 秒。",
        )
        + lookups.TTFT
        + lookups.REPLICA,
        action=Text(
            "Add replicas, limit the context length, use a quantised KV cache, or give the cache more memory.",
            "增加副本、限制上下文长度、使用量化 KV 缓存，或加大缓存。",
        ),
    )


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
            "{{ $labels.replica }} on {{ $labels.instance }} preempts running requests",
            "{{ $labels.instance }} 上的 {{ $labels.replica }} 频繁抢占运行中的请求",
        ),
        description=Text(
            f"{{{{ $value | humanize }}}} preemptions per second over 5 minutes (threshold {limit.warning:g}). Each "
            "preempted request computes its tokens again.",
            f"5 分钟内每秒 {{{{ $value | humanize }}}} 次抢占（阈值 {limit.warning:g}）。被抢占的请求需要重新计算。",
        ),
        action=Text(
            "Lower --max-num-seqs, add replicas, or give the KV cache more memory.",
            "降低 --max-num-seqs、增加副本，或加大 KV 缓存。",
        ),
    )


def _hit_rate_dropped(tuning: Tuning) -> Alert:
    limits = tuning.thresholds
    # The same half hour of yesterday, because prompts follow the time of day; 1 hour ago while there is no yesterday.
    now = select(HIT_RATIO.known)
    past = now.offset("1d") | now.offset("1h")
    collapsed = share_of_past(now, past, below=limits.hit_rate_of_past.warning, floor=limits.past_hit_rate.warning)
    asked = token_rate(m.LLM_PREFIX_CACHE_QUERIES_TOTAL, "30m") > limits.hit_rate_lookups.warning
    return Alert(
        name="PrefixCacheHitRateDropped",
        severity=Severity.WARNING,
        component=Component.ENGINE,
        expr=and_on(collapsed, asked, on=REPLICA),
        for_=limits.hit_rate_of_past.for_,
        panel=REPLICA_HITS,
        summary=Text(
            "The prefix-cache hit rate of {{ $labels.replica }} on {{ $labels.instance }} dropped",
            "{{ $labels.instance }} 上的 {{ $labels.replica }} 的前缀缓存命中率下降",
        ),
        description=Text(
            "It is {{ $value | humanizePercentage }} of its own past (the same half hour yesterday, or 1 hour "
            "ago) at a similar number of lookups.",
            "为自身历史值（昨天同一半小时，或 1 小时前）的 {{ $value | humanizePercentage }}，而查询量相当。",
        ),
        action=Text(
            "Check whether prompts changed (a timestamp at the start?), whether prefix routing changed, and the "
            "room for cached blocks.",
            "检查提示词是否改变（开头加了时间戳？）、前缀路由是否改变，以及缓存块的空间。",
        ),
    )


def _saturated(tuning: Tuning) -> Alert:
    limits = tuning.thresholds
    # The configuration decides which windows exist, and the common set has the longest only: all must agree.
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
            "{{ $labels.stage }} latency of {{ $labels.replica }} on {{ $labels.instance }} exceeds the largest "
            "histogram bucket",
            "{{ $labels.instance }} 上的 {{ $labels.replica }} 的 {{ $labels.stage }} 延迟超出最大的直方图桶",
        ),
        description=Text(
            "{{ $value | humanizePercentage }} of the observations are above the last bucket bound, in every "
            "window. Quantiles are capped at that bound; the real latency is higher.",
            "每个窗口内都有 {{ $value | humanizePercentage }} 的观测超出最后一个桶边界。分位数被截断在该边界，真"
            "实延迟更高。",
        ),
        action=Text(
            "Reduce the latency, or configure larger buckets in the engine.",
            "降低延迟，或在引擎中配置更大的桶。",
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
            "{{ $labels.replica }} on {{ $labels.instance }} restarts repeatedly",
            "{{ $labels.instance }} 上的 {{ $labels.replica }} 反复重启",
        ),
        description=Text(
            "Its counters were reset {{ $value | humanize }} times in 30 minutes.",
            "30 分钟内其计数器重置了 {{ $value | humanize }} 次。",
        ),
        action=Text(
            "Read the engine's log for why it ended: out of memory, a lost worker, a failed liveness probe.",
            "查看引擎日志中的退出原因：内存不足、worker 丢失、存活探针失败。",
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
            "Rank {{ $labels.rank }} of {{ $labels.replica }} on {{ $labels.instance }} is stale",
            "{{ $labels.instance }} 上的 {{ $labels.replica }} 的 rank {{ $labels.rank }} 停滞",
        ),
        description=Text(
            "Its metrics have not changed for 5 minutes while those of other ranks do: the worker is gone or hangs.",
            "其他 rank 的指标在变化，而它已有 5 分钟不变：worker 已退出或挂起。",
        ),
        action=Text(
            "Restart the worker (ray list actors).",
            "重启该 worker（ray list actors）。",
        ),
    )
