"""Alerts about speculation, the KV cache's tier in host memory, disaggregation, LoRA adapters, and starts.

They read the full set of series and are silent where it is not exposed, or where an engine does not use the feature.
"""

from __future__ import annotations

from alerts import lookups
from alerts.panel_ids import (
    REPLICA_DISAGGREGATION,
    REPLICA_LORA,
    REPLICA_OFFLOAD,
    REPLICA_SPECULATION,
    REPLICA_STARTUP,
    REPLICA_TRANSFERS,
)
from alerts.recordings import (
    MODEL,
    REPLICA,
    UTILIZATION,
    WAITING,
    mean_latency,
    share_of_past,
    token_rate,
    without_rank,
)
from alerts.rule import Alert, Component
from alerts.tuning import Tuning
from exporter.catalog import metrics as m
from exporter.catalog.spec import Unit
from exporter.model.finding import Severity
from exporter.model.text import Text
from exporter.promql import Expr, aggregate, and_on, avg_by, increase, over_time, rate, regex, select, sum_by, unless


def alerts(tuning: Tuning) -> tuple[Alert, ...]:
    """Return the alerts about features of engines that the full set of series shows."""
    features = (_acceptance_dropped(tuning), _host_cache(tuning), _transfers(tuning), _adapters(tuning))
    return (*features, *_prefill_and_decode(tuning), _slow_start(tuning))


def _acceptance(earlier: str = "") -> Expr:
    """Return accepted over drafted tokens; an engine that has accepted none yet has no series of accepted ones."""
    accepted, drafted = (
        without_rank(rate(select(metric).offset(earlier) if earlier else select(metric), "30m"))
        for metric in (m.LLM_SPEC_DECODE_ACCEPTED_TOKENS_TOTAL, m.LLM_SPEC_DECODE_DRAFT_TOKENS_TOTAL)
    )
    return (accepted | drafted * 0) / drafted


def _accepted_length(earlier: str = "") -> Expr:
    """Return the accepted tokens per step of engines that count no drafts, the step's own token left out."""
    reported = select(m.LLM_SPEC_DECODE_REPORTED_ACCEPTED_LENGTH_TOKENS)
    mean = over_time("avg", reported.offset(earlier) if earlier else reported, "30m")
    return aggregate("avg", mean, without=("rank",)) - 1


def _acceptance_dropped(tuning: Tuning) -> Alert:
    limits = tuning.thresholds
    # As the prefix cache's hit rate: what a draft model guesses right depends on the prompts, which follow the day.
    ratio, length = (
        share_of_past(
            figure(), figure("1d") | figure("1h"), below=limits.acceptance_of_past.warning, floor=floor.warning
        )
        for figure, floor in (
            (_acceptance, limits.past_acceptance),
            (_accepted_length, limits.past_accepted_length),
        )
    )
    generated = token_rate(m.LLM_GENERATION_TOKENS_TOTAL, "30m") > limits.acceptance_tokens.warning
    return Alert(
        name="SpeculationAcceptanceDropped",
        severity=Severity.WARNING,
        component=Component.ENGINE,
        expr=and_on(ratio | length, generated, on=REPLICA),
        for_=limits.acceptance_of_past.for_,
        panel=REPLICA_SPECULATION,
        full_series="No alert: ItlSloBurn tells when it slows answers.",
        summary=Text(
            "{{ $labels.replica }} on {{ $labels.instance }} accepts far fewer speculated tokens",
            "{{ $labels.instance }} 上的 {{ $labels.replica }} 接受的投机 token 大幅减少",
        ),
        description=Text(
            "It is {{ $value | humanizePercentage }} of its own past (the same half hour yesterday, or 1 hour ago). "
            "Drafts that are rejected cost time and energy and yield no token.",
            "为自身历史值（昨天同一半小时，或 1 小时前）的 {{ $value | humanizePercentage }}。被拒绝的草稿耗费时间与"
            "能量，却不产生 token。",
        ),
        action=Text(
            "Check whether the model or its draft model was exchanged alone, and whether prompts or sampling changed; "
            "draft fewer tokens, or switch speculation off.",
            "检查是否只更换了模型或草稿模型之一、提示词或采样是否改变；减少草稿 token 数，或关闭投机解码。",
        ),
    )


def _host_cache(tuning: Tuning) -> Alert:
    limits = tuning.thresholds

    def moved(direction: str) -> Expr:
        rates = rate(select(m.LLM_KV_OFFLOAD_BYTES_TOTAL, direction=direction), "30m")
        return aggregate("sum", rates, without=("rank", "direction"))

    stored = moved("GPU_to_CPU") > limits.host_cache_stored.warning
    # Without a load yet there is no series of that direction.
    useful = moved("CPU_to_GPU") / stored >= limits.host_cache_loaded.warning
    return Alert(
        name="HostKvCacheThrashing",
        severity=Severity.INFO,
        component=Component.ENGINE,
        expr=unless(stored, useful, on=REPLICA),
        for_=limits.host_cache_loaded.for_,
        panel=REPLICA_OFFLOAD,
        full_series="No alert: PrefixCacheHitRateDropped judges the cache in GPU memory.",
        summary=Text(
            "{{ $labels.replica }} on {{ $labels.instance }} writes KV cache to host memory and hardly reads it back",
            "{{ $labels.instance }} 上的 {{ $labels.replica }} 把 KV 缓存写入主机内存却几乎不读回",
        ),
        description=Text(
            "{{ $value | humanize1024 }}B per second were stored over 30 minutes, and less than "
            f"{limits.host_cache_loaded.warning:.0%} of that was loaded again: blocks are evicted before they are "
            "used, or no prompt repeats.",
            f"30 分钟内每秒写入 {{{{ $value | humanize1024 }}}}B，读回不足 {limits.host_cache_loaded.warning:.0%}："
            "缓存块在被使用前已被淘汰，或提示词没有重复。",
        ),
        action=Text(
            "Give the tier more host memory or route by prefix; switch offloading off if prompts do not repeat.",
            "加大主机内存层或按前缀路由；若提示词不重复，关闭卸载。",
        ),
    )


def _transfers(tuning: Tuning) -> Alert:
    limits = tuning.thresholds
    failures = select(m.LLM_KV_TRANSFER_FAILURES_TOTAL)
    failed = aggregate("sum", increase(failures, "10m"), without=("rank", "kind"))
    finished = aggregate("sum", increase(select(m.LLM_REQUESTS_TOTAL), "10m"), without=("outcome",))
    return Alert(
        name="KvTransfersFail",
        severity=Severity.WARNING,
        component=Component.ENGINE,
        expr=and_on(
            (failed / finished).as_unit(Unit.RATIO) > limits.transfer_failures.warning,
            failed > limits.failed_transfers.warning,
            on=REPLICA,
        ),
        for_=limits.transfer_failures.for_,
        keep_firing_for="5m",
        panel=REPLICA_TRANSFERS,
        full_series="HighErrorRatio and TtftSloBurn tell when requests fail or wait for it.",
        summary=Text(
            "Transfers of KV caches of {{ $labels.replica }} on {{ $labels.instance }} fail",
            "{{ $labels.instance }} 上的 {{ $labels.replica }} 的 KV 缓存传输失败",
        ),
        description=Text(
            "Failed, unconfirmed or expired transfers are {{ $value | humanizePercentage }} of the requests of 10 "
            f"minutes (threshold {limits.transfer_failures.warning:.0%}, and more than "
            f"{limits.failed_transfers.warning:g} transfers). Each such prompt is computed again, or its request "
            "fails.",
            "10 分钟内失败、未确认或过期的传输占请求数的 {{ $value | humanizePercentage }}（阈值 "
            f"{limits.transfer_failures.warning:.0%}，且多于 {limits.failed_transfers.warning:g} 次）。对应的提示需要重"
            "新计算，或请求失败。",
        ),
        action=Text(
            "Check the network adapters and the path between prefill and decode (nic_*, NIXL or UCX errors in the "
            "engine's log), and whether the decode replicas take the caches in time.",
            "检查网卡以及预填充与解码之间的路径（nic_*、引擎日志中的 NIXL 或 UCX 错误），以及解码副本是否及时取走缓存。",
        ),
    )


def _prefill_and_decode(tuning: Tuning) -> tuple[Alert, ...]:
    limits = tuning.thresholds

    def on_side(expr: Expr, side: str) -> Expr:
        """Return a figure of the replicas that have queues of one side of disaggregation."""
        queues = aggregate(
            "max", select(m.LLM_SCHEDULER_QUEUE_REQUESTS, queue=regex(f"{side}_.+")), without=("rank", "queue")
        )
        return and_on(expr, queues, on=REPLICA)

    def idle(side: str) -> Expr:
        utilization = on_side(over_time("avg", select(UTILIZATION.known), "5m"), side)
        return avg_by(utilization, *MODEL) < limits.idle_with_queue.warning

    # A prefill replica queues prompts; a decode replica queues requests for which it has no KV cache left.
    prompts = on_side(over_time("min", select(WAITING.known), "5m"), "prefill")
    placed = over_time("min", select(m.LLM_SCHEDULER_QUEUE_REQUESTS, queue="decode_prealloc"), "5m")
    floor = limits.balance_requests.warning

    def alert(side: str, other: str, names: Text, queue: Expr) -> Alert:
        return Alert(
            name="PrefillDecodeUneven",
            severity=Severity.WARNING,
            component=Component.ENGINE,
            expr=and_on(sum_by(queue, *MODEL) >= floor, idle(other), on=MODEL),
            for_=limits.balance_requests.for_,
            keep_firing_for="10m",
            labels={"side": side},
            panel=REPLICA_DISAGGREGATION,
            full_series="TtftSloBurn tells when first tokens are late; GPU utilisation by replica shows the idle side.",
            summary=Text(
                f"Requests of {{{{ $labels.model }}}} wait for {names.en} while the GPUs of the other side are idle",
                f"{{{{ $labels.model }}}} 的请求在等待{names.zh}，而另一侧的 GPU 空闲",
            ),
            description=Text(
                f"{{{{ $value | humanize }}}} requests of job {{{{ $labels.job }}}} have waited for {names.en} for 5 "
                f"minutes (threshold {floor:g}), and the {other} replicas are less than "
                f"{limits.idle_with_queue.warning:.0%} utilised: prefill and decode are out of balance.",
                f"作业 {{{{ $labels.job }}}} 中有 {{{{ $value | humanize }}}} 个请求已等待{names.zh} 5 分钟（阈值 {floor:g}），"
                f"而 {other} 副本利用率低于 {limits.idle_with_queue.warning:.0%}：预填充与解码失衡。",
            ),
            action=Text(
                f"Move GPUs from {other} to {side} replicas, or change the share of requests that are disaggregated.",
                f"把 GPU 从 {other} 副本调给 {side} 副本，或调整分离处理的请求比例。",
            ),
        )

    return (
        alert("prefill", "decode", Text("prefill", "预填充"), prompts),
        alert("decode", "prefill", Text("decode", "解码"), placed),
    )


def _adapters(tuning: Tuning) -> Alert:
    limits = tuning.thresholds
    used, slots = (
        aggregate("sum", over_time("min", select(m.LLM_LORA_SLOTS, state=state), "5m"), without=("rank", "state"))
        for state in ("used", "total")
    )
    waiting = over_time("min", select(WAITING.known), "5m") > 0
    late = mean_latency(m.LLM_TIME_TO_FIRST_TOKEN_SECONDS, "5m") > limits.first_token.warning
    # Slots stay taken by adapters that nobody uses; a full KV cache explains the queue without them.
    full_cache = (
        aggregate("max", over_time("avg", select(m.LLM_KV_CACHE_USAGE_RATIO), "5m"), without=("rank",))
        > limits.kv_cache_use.warning
    )
    busy = and_on(and_on((used / slots) >= limits.lora_slots.warning, waiting, on=REPLICA), late, on=REPLICA)
    return Alert(
        name="LoraSlotsExhausted",
        severity=Severity.WARNING,
        component=Component.ENGINE,
        expr=unless(busy, full_cache, on=REPLICA),
        for_=limits.lora_slots.for_,
        keep_firing_for="5m",
        panel=REPLICA_LORA,
        full_series="TtftSloBurn tells when requests wait for an adapter.",
        summary=Text(
            "Requests wait while all LoRA slots of {{ $labels.replica }} on {{ $labels.instance }} are in use",
            "{{ $labels.instance }} 上的 {{ $labels.replica }} 的 LoRA 槽位已用完且有请求排队",
        ),
        description=Text(
            "{{ $value | humanizePercentage }} of the slots are in use, requests wait, and first tokens take longer "
            f"than {limits.first_token.warning:g} s on average, although the KV cache has room.",
            "槽位已使用 {{ $value | humanizePercentage }}，有请求排队，首 token 平均超过 "
            f"{limits.first_token.warning:g} 秒，而 KV 缓存仍有空间。",
        )
        + lookups.TTFT
        + lookups.REPLICA,
        action=Text(
            "Raise the number of adapters per batch (--max-loras, --max-loras-per-batch), or give the adapters in use "
            "replicas of their own.",
            "提高每批适配器数（--max-loras、--max-loras-per-batch），或为常用适配器单设副本。",
        ),
    )


def _slow_start(tuning: Tuning) -> Alert:
    limits = tuning.thresholds

    def startup(earlier: str = "") -> Expr:
        every = select(m.LLM_STARTUP_DURATION_SECONDS)
        return aggregate("max", every.offset(earlier) if earlier else every, without=("rank", "phase"))

    # The engine reports its newest start for as long as it runs: after an hour it is nobody's surprise.
    known = (startup() / startup("1h")).equals(1)
    return Alert(
        name="ModelLoadSlow",
        severity=Severity.WARNING,
        component=Component.ENGINE,
        expr=unless(startup() > limits.startup.warning, known, on=REPLICA),
        for_=limits.startup.for_,
        panel=REPLICA_STARTUP,
        full_series="No alert: EngineDown tells while the replica does not answer.",
        summary=Text(
            "{{ $labels.replica }} on {{ $labels.instance }} took long to start",
            "{{ $labels.instance }} 上的 {{ $labels.replica }} 启动耗时过长",
        ),
        description=Text(
            "Its newest start took {{ $value | humanizeDuration }} "
            f"(threshold {limits.startup.warning:g} s). Every restart and every new replica costs as long.",
            f"最近一次启动耗时 {{{{ $value | humanizeDuration }}}}（阈值 {limits.startup.warning:g} 秒）。每次重启或扩容"
            "都要等待同样长的时间。",
        ),
        action=Text(
            "Look at the phases: with load_weight, put the weights on local disks or warm the page cache; with the "
            "rest, keep the caches of compilation and CUDA graphs.",
            "查看各阶段：若为 load_weight，将权重放到本地磁盘或预热页缓存；若为其他阶段，保留编译与 CUDA Graph 的缓存。",
        ),
    )
