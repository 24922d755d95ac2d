"""Replica: latency and throughput as users see them, queues, and the replica's GPUs compared."""

from __future__ import annotations

from alerts import panel_ids as ids
from alerts.panel_ids import DashboardUid as Uid
from dashboards.dashboard import Dashboard, Row
from dashboards.definitions.annotations import OF_NODE
from dashboards.definitions.disaggregation import DISAGGREGATION
from dashboards.definitions.engine_features import FEATURES
from dashboards.definitions.latency import REPLICA_NAME, curves, spread_out
from dashboards.definitions.replica_details import MORE
from dashboards.definitions.status import REPLICA_STATES, STRAGGLER, UP, status
from dashboards.no_data_text import Requires
from dashboards.panels import (
    Cell,
    DrillDown,
    NumberFormat,
    Panel,
    bar_gauge,
    column,
    heatmap,
    series,
    stat,
    state_timeline,
    table,
    time_series,
)
from dashboards.thresholds import THRESHOLDS
from dashboards.variables import EXPORTER_WINDOW, RATE_INTERVAL, by_recent_replica, by_replica, selected
from exporter.catalog import metrics as m
from exporter.catalog.spec import Unit
from exporter.model.text import Text
from exporter.promql import Expr, max_by, min_by, rate, regex, sum_by, until

ENGINE = (Requires.ENGINE,)
TRAFFIC = (Requires.TRAFFIC,)


def replica_state() -> Expr:
    """Return 0 for a replica that is down, 1 for up, 2 for frozen."""
    up = min_by(selected(m.LLM_UP), "instance", "replica")
    return up + max_by(selected(m.LLM_FROZEN), "instance", "replica") | up


def _ending() -> Expr:
    """Return 4 for a replica whose certificate expires soon."""
    left = max_by(until(selected(m.LLM_CERTIFICATE_EXPIRY_TIMESTAMP_SECONDS)), "instance", "replica")
    return ((left < THRESHOLDS.certificate_remaining.warning) * 0 + 4).as_unit(Unit.NONE)


_HEALTH: tuple[Panel, ...] = (
    state_timeline(
        Text("Replica state", "副本状态"),
        Text(
            "Up while the engine can be read and makes progress. Frozen: requests run and no counter moves, "
            "usually because a GPU is lost. Separate strips: a stale rank on a Ray node, and a TLS certificate "
            "that expires soon.",
            "引擎可读且有进展即正常。冻结：有请求但毫无进展，通常是掉卡所致。另有条带：Ray 节点上停滞的 rank、即将到期的 TLS 证书。",
        ),
        series(replica_state, REPLICA_NAME),
        series(
            lambda: max_by(selected(m.LLM_RANK_STALE_INFO), "instance", "replica", "rank") + 2,
            f"{REPLICA_NAME} {{{{rank}}}}", requires=(Requires.RAY, Requires.TROUBLE),
        ),
        series(_ending, Text(f"{REPLICA_NAME} certificate", f"{REPLICA_NAME} 证书"), requires=(Requires.TLS, Requires.TROUBLE)),
        value_mappings=REPLICA_STATES, requires=ENGINE, panel_id=ids.REPLICA_HEALTH, width=12, height=5,
    ),
    time_series(
        Text("Error ratio", "错误率"),
        Text(
            "Failed over finished requests of 1 and 5 minutes: server and engine errors, without client errors.",
            "1 分钟与 5 分钟窗口内失败请求占完成请求的比例。只计服务端与引擎错误。",
        ),
        series(lambda: max_by(selected(m.LLM_ERROR_RATIO), "instance", "replica", "window"), f"{REPLICA_NAME} {{{{window}}}}"),
        requires=TRAFFIC, threshold=THRESHOLDS.error_ratio, panel_id=ids.REPLICA_ERRORS, traces="replica", width=12, height=5,
    ),
    time_series(
        Text("Finished requests by outcome", "完成的请求（按结果）"),
        Text(
            "Requests per second. A rise of cancelled: clients give up; of error: the engine fails; of rejected: the engine sheds "
            "load because its queue is full (not a failure, but too little capacity).",
            "每秒完成的请求。cancelled 上升是客户端放弃，error 上升是引擎出错，rejected 上升是引擎因队列已满而拒绝：不算失败，但容量不足。",
        ),
        series(
            lambda: sum_by(rate(selected(m.LLM_REQUESTS_TOTAL), RATE_INTERVAL), "instance", "replica", "outcome"),
            f"{REPLICA_NAME} {{{{outcome}}}}", number_format=NumberFormat.REQUESTS,
        ),
        requires=ENGINE, width=24, height=6,
    ),
)  # fmt: skip


_LATENCY: tuple[Panel, ...] = (
    time_series(
        Text("Time to first token (TTFT)", "首 token 时间（TTFT）"),
        Text(
            "Arrival to first token, queue and prefill included; p50, p95, p99 and mean. p50 normal and p99 "
            "high: some requests wait; all high: the replica is full or slow.",
            "从到达到首 token，含排队与预填充；p50、p95、p99 与平均。p50 正常而 p99 高：部分请求在等；全部上升：副本已满或变慢。",
        ),
        *curves(m.LLM_TIME_TO_FIRST_TOKEN_SECONDS),
        requires=TRAFFIC, threshold=THRESHOLDS.first_token, panel_id=ids.REPLICA_FIRST_TOKEN,
            traces="replica", width=12, height=8,
    ),
    time_series(
        Text("Inter-token latency (ITL)", "token 间隔（ITL）"),
        Text(
            "Time between engine steps of a request; with speculative decoding a step yields several tokens. "
            "Spikes of p99 are long prefills or preemptions; a higher level is a slow GPU or a large batch.",
            "请求相邻引擎步的间隔；投机解码时一步产生多个 token。p99 尖峰是长预填充或抢占；整体抬高是慢卡或大批次。",
        ),
        *curves(m.LLM_INTER_TOKEN_LATENCY_SECONDS),
        requires=TRAFFIC, panel_id=ids.REPLICA_TOKEN, width=12, height=8,
    ),
    heatmap(
        Text("TTFT distribution", "首 token 时间分布"),
        Text(
            "Requests per second by bucket. Two bands are two kinds of requests, such as cached and not; a "
            "rising band is a queue.",
            "各区间每秒的请求数。两条带说明有两类请求（如命中与未命中缓存）；整带上移即在排队。",
        ),
        lambda: spread_out(m.LLM_TIME_TO_FIRST_TOKEN_SECONDS),
        requires=TRAFFIC, width=8, height=8,
    ),
    heatmap(
        Text("ITL distribution", "token 间隔分布"),
        Text(
            "Steps per second by bucket. A second band above the first is interrupted decoding.",
            "各区间每秒的步数。上方出现第二条带即解码被打断。",
        ),
        lambda: spread_out(m.LLM_INTER_TOKEN_LATENCY_SECONDS),
        requires=TRAFFIC, width=8, height=8,
    ),
    time_series(
        Text("Request duration, quantiles over 5 minutes", "请求总时长（5 分钟分位）"),
        Text(
            "Arrival to last token. Depends mostly on the length of answers; read it together with TTFT and ITL.",
            "从到达到最后一个 token。主要取决于回答长度：应与上面两项一起看。",
        ),
        series(
            lambda: max_by(
                selected(m.LLM_LATENCY_QUANTILE_SECONDS, stage="request", window=EXPORTER_WINDOW), "instance", "replica", "quantile"
            ),
            f"{REPLICA_NAME} q{{{{quantile}}}}",
        ),
        requires=TRAFFIC, panel_id=ids.REPLICA_DURATION, traces="replica", width=8, height=8,
    ),
)  # fmt: skip


_QUEUE: tuple[Panel, ...] = (
    time_series(
        Text("Requests running and waiting", "运行与排队的请求"),
        Text(
            "Waiting requests with a full KV cache: too little memory; with an empty one: the engine does not "
            "schedule them, or its limit of sequences is reached. Stalled: requests of a replica that makes no "
            "progress.",
            "KV 缓存已满且有排队：显存不足；缓存空闲却有排队：引擎没有接收，卡住或达到并发上限。滞留：没有进展的副本上的请求。",
        ),
        series(lambda: sum_by(selected(m.LLM_REQUESTS_RUNNING), "instance", "replica"), Text(f"{REPLICA_NAME} running", f"{REPLICA_NAME} 运行")),
        series(lambda: sum_by(selected(m.LLM_REQUESTS_WAITING), "instance", "replica"), Text(f"{REPLICA_NAME} waiting", f"{REPLICA_NAME} 排队")),
        series(lambda: sum_by(selected(m.LLM_STALLED_REQUESTS), "instance", "replica"), Text(f"{REPLICA_NAME} stalled", f"{REPLICA_NAME} 滞留")),
        requires=ENGINE, panel_id=ids.REPLICA_QUEUE, width=12, height=8,
    ),
    time_series(
        Text("KV cache in use", "KV 缓存使用率"),
        Text(
            "Share of the KV cache in use by rank. Full is well used; full with requests waiting is the "
            "bottleneck.",
            "在途请求占用的 KV 缓存比例，按 rank。满是用得好；满且有排队就是在等它。",
        ),
        series(
            lambda: max_by(selected(m.LLM_KV_CACHE_USAGE_RATIO), "instance", "replica", "rank"), f"{REPLICA_NAME} {{{{rank}}}}"
        ),
        requires=ENGINE, threshold=THRESHOLDS.kv_cache_use, max_value=1, panel_id=ids.REPLICA_CACHE, width=12, height=8,
    ),
    time_series(
        Text("Preemptions", "抢占"),
        Text(
            "Running requests preempted per second because the KV cache was full; each computes its tokens "
            "again. Above zero for minutes, tail latency suffers.",
            "每秒因 KV 缓存满而被打回的请求；每次都要重算。持续高于零，尾延迟会变差。",
        ),
        series(lambda: sum_by(rate(selected(m.LLM_PREEMPTIONS_TOTAL), RATE_INTERVAL), "instance", "replica"), REPLICA_NAME),
        requires=ENGINE, threshold=THRESHOLDS.preemption_rate, panel_id=ids.REPLICA_PREEMPTIONS, width=12, height=8,
    ),
    time_series(
        Text("Prefix-cache hit rate", "前缀缓存命中率"),
        Text(
            "Tokens found over tokens looked up, 5 minutes. It depends on the workload: a drop against its own "
            "past is a problem (routing, prompts, evictions), a low level is not.",
            "5 分钟内命中 token 占查询 token 的比例。取决于业务：相对自身历史下降才是问题（路由、提示词、淘汰），绝对值低不是。",
        ),
        series(lambda: max_by(selected(m.LLM_KV_CACHE_HIT_RATIO, window=EXPORTER_WINDOW), "instance", "replica"), REPLICA_NAME),
        requires=TRAFFIC, threshold=THRESHOLDS.hit_rate, max_value=1, panel_id=ids.REPLICA_HITS, width=12, height=8,
    ),
    table(
        Text("KV cache tokens", "KV 缓存：空闲/总量"),
        Text(
            "Free tokens and the capacity of the cache. A lower capacity than usual: the engine started with "
            "less memory.",
            "请求还能占用的 token 数与总容量。总量比平时少：引擎启动时可用显存变少。",
        ),
        column(lambda: selected(m.LLM_KV_CACHE_CAPACITY_TOKENS), Text("Capacity", "总量"), summed=True),
        column(lambda: selected(m.LLM_KV_CACHE_FREE_TOKENS), Text("Free", "空闲"), summed=True),
        rows=("instance", "replica"), requires=ENGINE, width=12, height=6,
    ),
    stat(
        Text("Sequences that still fit", "还能容纳的序列"),
        Text(
            "Sequences of the recent mean length that fit into the free tokens; at 0 the next one waits.",
            "按近期平均长度，空闲 token 还能容纳的序列数；为 0 时新请求要排队。",
        ),
        series(lambda: sum_by(selected(m.LLM_KV_CACHE_FREE_SEQUENCES), "instance", "replica"), REPLICA_NAME),
        requires=TRAFFIC, decimals=0, width=6, height=6,
    ),
    stat(
        Text("Time until the KV cache is full", "缓存写满还需"),
        Text(
            "At the growth of the last minute. A few minutes mean a queue soon; no value while it does not grow.",
            "按最近一分钟的增速估计。只剩几分钟说明很快要排队；不增长时无值。",
        ),
        series(lambda: min_by(selected(m.LLM_KV_CACHE_TIME_TO_FULL_SECONDS), "instance", "replica"), REPLICA_NAME),
        requires=(Requires.PRESSURE, Requires.TRAFFIC), width=6, height=6,
    ),
)  # fmt: skip


GPU_LABELS = ("instance", "replica", "rank", "gpu")
_GPUS: tuple[Panel, ...] = (
    table(
        Text("GPUs side by side", "所属各卡对比"),
        Text(
            "The GPUs of the selected replicas work in lockstep: the one that differs in clock, power, margin or "
            "memory is the one that the others wait for.",
            "所选副本的卡。它们同步工作：频率、功率、余量或显存与邻居不同的那张，就是大家在等的那张。",
        ),
        column(lambda: by_recent_replica(selected(m.GPU_UP)), Text("State", "状态"), cell=Cell.COLOUR, value_mappings=UP),
        column(lambda: by_replica(selected(m.GPU_UTILIZATION_RATIO)), Text("Utilisation", "利用率"), cell=Cell.BAR, max_value=1),
        column(
            lambda: by_replica(selected(m.GPU_SM_ACTIVE_RATIO)), Text("SM activity", "SM 活动"), cell=Cell.BAR, max_value=1,
            requires=(Requires.SUPPORT,),
        ),
        column(
            lambda: by_replica(selected(m.GPU_POWER_WATTS)) / by_replica(selected(m.GPU_POWER_LIMIT_WATTS)),
            Text("Power / limit", "功率/上限"), cell=Cell.BAR, max_value=1,
        ),
        column(lambda: by_replica(selected(m.GPU_CLOCK_HERTZ, domain="sm")), Text("SM clock", "SM 频率")),
        column(
            lambda: by_replica(selected(m.GPU_TEMPERATURE_MARGIN_CELSIUS)), Text("Margin", "温度余量"),
            cell=Cell.COLOUR, threshold=THRESHOLDS.temperature_margin,
        ),
        column(
            lambda: by_replica(selected(m.GPU_MEMORY_USED_BYTES)) / by_replica(selected(m.GPU_MEMORY_TOTAL_BYTES)),
            Text("Memory", "显存"), cell=Cell.BAR, threshold=THRESHOLDS.gpu_memory_used, max_value=1,
        ),
        rows=GPU_LABELS, requires=ENGINE, width=17, height=10, drill_down=(DrillDown(Uid.GPU_HEALTH, ("instance", "gpu")),),
    ),
    state_timeline(
        Text("Straggler and cause", "慢卡与原因"),
        Text(
            "The GPU that the others of its replica wait for, with the cause: thermal, power_brake, power_cap, "
            "clock_lock, other_tenant, pcie, nvlink, memory_pressure. The strip of a replica says whether its "
            "GPUs can be compared.",
            "同副本其他卡在等的那张卡及原因：thermal、power_brake、power_cap、clock_lock、other_tenant、pcie、nvlink、memory_pressure。每个副本的条带说明其卡能否比较。",
        ),
        series(
            lambda: max_by(selected(m.GPU_STRAGGLER), "instance", "replica", "gpu", "cause"),
            "{{replica}} GPU {{gpu}} {{cause}}", requires=(Requires.STRAGGLER,),
        ),
        series(
            lambda: max_by(selected(m.GPU_STRAGGLER_JUDGED, scope="replica", group=regex("$replica")), "instance", "group") + 10,
            "{{group}} {{instance}}",
        ),
        value_mappings=STRAGGLER, requires=(Requires.GROUPS, Requires.ENGINE), width=7, height=10, panel_id=ids.REPLICA_STRAGGLER,
    ),
    bar_gauge(
        Text("Requests by rank", "各 rank 的请求"),
        Text(
            "Running requests of each data-parallel rank. Uneven bars come from the scheduler.",
            "各数据并行 rank 的运行请求数。不均匀即引擎调度器的问题。",
        ),
        series(lambda: sum_by(selected(m.LLM_REQUESTS_RUNNING), "instance", "replica", "rank"), f"{REPLICA_NAME} {{{{rank}}}}"),
        requires=ENGINE, width=8, height=7,
    ),
    time_series(
        Text("Tokens", "token 速率"),
        Text(
            "Prompt and generated tokens per second. More prompt tokens with fewer generated ones are long "
            "prefills.",
            "每秒提示与生成的 token。提示上升而生成下降是长预填充所致。",
        ),
        series(
            lambda: sum_by(rate(selected(m.LLM_PROMPT_TOKENS_TOTAL), RATE_INTERVAL), "instance", "replica"),
            Text(f"{REPLICA_NAME} prompt", f"{REPLICA_NAME} 提示"),
        ),
        series(
            lambda: sum_by(rate(selected(m.LLM_GENERATION_TOKENS_TOTAL), RATE_INTERVAL), "instance", "replica"),
            Text(f"{REPLICA_NAME} generated", f"{REPLICA_NAME} 生成"),
        ),
        requires=ENGINE, width=16, height=7, panel_id=ids.REPLICA_TOKENS,
    ),
)  # fmt: skip


REPLICA = Dashboard(
    uid=Uid.REPLICA,
    title=Text("Shardwatch / Replica", "Shardwatch / 副本"),
    description=Text(
        "User experience of a replica, its bottleneck, and the GPU that differs.",
        "副本的用户体验、瓶颈，以及不同的那张卡。",
    ),
    rows=(
        status(),
        Row(title=Text("Health and GPUs", "健康与所属的卡"), panels=(*_HEALTH[:2], *_GPUS[:2])),
        Row(title=Text("Latency, queue, KV cache", "延迟、排队与 KV 缓存"), panels=(*_LATENCY[:2], *_QUEUE[:2])),
        Row(
            title=Text("Distributions, outcomes, ranks", "分布、结果与 rank"),
            panels=(*_LATENCY[2:], *_HEALTH[2:], *_GPUS[2:]),
            collapsed=True,
        ),
        Row(title=Text("KV cache in detail", "KV 缓存详情"), panels=_QUEUE[2:], collapsed=True),
        Row(
            title=Text(
                "Stages and measurement limits (mostly series: full)", "各阶段与测量限制（多数需 series: full）"
            ),
            panels=MORE,
            collapsed=True,
        ),
        Row(
            title=Text(
                "Speculation, KV-cache tiers, LoRA (series: full)", "投机解码、KV 缓存层级、LoRA（series: full）"
            ),
            panels=FEATURES,
            collapsed=True,
        ),
        Row(
            title=Text("Disaggregation (series: full)", "预填充/解码分离（series: full）"),
            panels=DISAGGREGATION,
            collapsed=True,
        ),
    ),
    annotations=OF_NODE,
)
