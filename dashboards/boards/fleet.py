"""Fleet: is anything wrong anywhere, for whom, and on which node?  Drill down from here."""

from __future__ import annotations

from alerts import boards as named
from alerts.boards import Board as Uid
from alerts.text import Text
from dashboards.board import Board, Row
from dashboards.boards.fleet_versions import VERSIONS
from dashboards.boards.marks import OF_FLEET
from dashboards.boards.status import STRAGGLER, TO_NODE, TO_REPLICA, status
from dashboards.limits import BURN, LIMITS, NONE_LOST, NONE_ODD, attainment, burn, promise
from dashboards.panels import Cell, Drill, Panel, Shown, alert_list, bars, column, lines, series, stat, table
from dashboards.scope import NODE, RANGE, WINDOW, seen, seen_buckets, targets
from dashboards.words import Needs
from exporter.catalog import metrics as m
from exporter.catalog.spec import Unit
from exporter.promql import (
    Expr,
    avg_by,
    binary,
    count_by,
    histogram_quantile,
    max_by,
    min_by,
    rate,
    sum_by,
    without_value,
)

TRAFFIC = (Needs.TRAFFIC,)
ENGINE = (Needs.ENGINE,)


_PROMISES: tuple[Panel, ...] = (
    stat(
        Text("TTFT within target", "首 token 达标率"),
        Text(
            "Share of requests whose first token came within the target of the model's class, in the chosen "
            "time; seconds alone would be noise. Below the promise users wait; red is where the alerts page.",
            "首 token 在模型所属等级目标内到达的请求占比（所选时间内）。低于承诺即用户在等；红色对应告警的紧急线。",
        ),
        series(lambda: attainment("first_token", window=RANGE), Text("within target", "达标")),
        needs=TRAFFIC, limit=promise("first_token"), width=4, height=5, decimals=1,
    ),
    stat(
        Text("Token gaps within target", "token 间隔达标率"),
        Text(
            "Share of the times between tokens within the target of the model's class, in the chosen time. Low: answers "
            "stutter.",
            "所选时间内 token 间隔达标的占比。偏低：回答卡顿。",
        ),
        series(lambda: attainment("token", window=RANGE), Text("within target", "达标")),
        needs=TRAFFIC, limit=promise("token"), width=4, height=5, decimals=1,
    ),
    stat(
        Text("Failed requests", "失败请求占比"),
        Text(
            "Failed over finished requests of 5 minutes, the worst replica. Server and engine errors; clients' "
            "mistakes do not count.",
            "5 分钟内失败请求占完成请求的比例，取最差副本。只计服务端与引擎错误，不含客户端错误。",
        ),
        series(lambda: max_by(seen(m.LLM_ERROR_RATIO, window="5m")), Text("worst replica", "最差副本")),
        needs=TRAFFIC, limit=LIMITS.error_ratio, width=4, height=5, decimals=1,
    ),
    lines(
        Text("Promises kept, by model", "承诺达成率（按模型）"),
        Text(
            "Share of requests within target by model: first token and time between tokens. The distance to 100 % "
            "is the error budget being burnt. A drop of one model only is its replicas; of all, the gateway or "
            "the nodes.",
            "按模型的达标请求占比：首 token 与 token 间隔。距 100 % 的差即正在消耗的错误预算。只有一个模型下降查其副本；全部下降查网关或节点。",
        ),
        series(lambda: attainment("first_token", "model"), Text("{{model}} first token", "{{model}} 首 token")),
        series(lambda: attainment("token", "model"), Text("{{model}} token gap", "{{model}} token 间隔")),
        needs=TRAFFIC, most=1, width=12, height=5,
    ),
    lines(
        Text("Error budget burnt, by model and promise", "错误预算消耗速度（按模型与承诺）"),
        Text(
            "How many times faster than allowed the error budget is burnt: 1 uses it up exactly by the end of the 30 "
            "days; at the red line the alerts page. Needs the recording rules of the alerts.",
            "错误预算消耗速度的倍数：1 恰好在 30 天末用完；红线处告警呼叫值班。需要告警附带的记录规则。",
        ),
        series(lambda: seen(burn("5m")) >= 0, Text("{{model}} {{objective}} 5m", "{{model}} {{objective}} 5m"), shown=Shown.FACTOR),
        series(lambda: seen(burn("1h")) >= 0, Text("{{model}} {{objective}} 1h", "{{model}} {{objective}} 1h"), shown=Shown.FACTOR),
        needs=(Needs.RULES, Needs.TRAFFIC), limit=BURN, width=24, height=6, named=named.FLEET_OBJECTIVES,
    ),
)  # fmt: skip


_LOAD: tuple[Panel, ...] = (
    lines(
        Text("Tokens generated", "生成 token 速率"),
        Text(
            "Tokens per second by model. Falling while requests wait means that engines are stuck, not idle.",
            "每秒生成的 token，按模型。请求在排队而此值下降，说明引擎卡住，而非空闲。",
        ),
        series(lambda: sum_by(rate(seen(m.LLM_GENERATION_TOKENS_TOTAL), WINDOW), "model"), "{{model}}"),
        needs=ENGINE, width=6,
    ),
    lines(
        Text("Requests running and waiting", "运行与排队的请求"),
        Text(
            "By model. Waiting requests are the first sign of saturation: they grow before latency does.",
            "按模型。排队是饱和的第一个迹象，先于延迟上升。",
        ),
        series(lambda: sum_by(seen(m.LLM_REQUESTS_RUNNING), "model"), Text("{{model}} running", "{{model}} 运行")),
        series(lambda: sum_by(seen(m.LLM_REQUESTS_WAITING), "model"), Text("{{model}} waiting", "{{model}} 排队")),
        needs=ENGINE, width=6,
    ),
    lines(
        Text("TTFT p95 by model", "首 token p95（按模型）"),
        Text(
            "95th percentile of time to first token over all replicas of a model, from summed buckets; queue and "
            "prefill included.",
            "模型全部副本首 token 时间的 95 分位，由桶求和得出；含排队与预填充。",
        ),
        series(
            lambda: histogram_quantile(
                0.95, sum_by(rate(seen_buckets(m.LLM_TIME_TO_FIRST_TOKEN_SECONDS), WINDOW), "le", "model")
            )
            >= 0,
            "{{model}}",
        ),
        needs=TRAFFIC, limit=LIMITS.first_token, width=6,
    ),
    lines(
        Text("Prefix-cache hit rate by model", "前缀缓存命中率（按模型）"),
        Text(
            "Tokens found over tokens looked up, over all replicas of a model. A fall after a change of routing, prompts or "
            "replicas makes every first token later.",
            "模型全部副本的命中 token 占查询 token 的比例。路由、提示词或副本变化后下降，首 token 都会变慢。",
        ),
        series(
            lambda: sum_by(rate(seen(m.LLM_PREFIX_CACHE_HITS_TOTAL), WINDOW), "model")
            / sum_by(rate(seen(m.LLM_PREFIX_CACHE_QUERIES_TOTAL), WINDOW), "model")
            >= 0,
            "{{model}}",
        ),
        needs=TRAFFIC, limit=LIMITS.hit_rate, most=1, width=6,
    ),
)  # fmt: skip


def problems() -> Expr:
    """Count what is wrong on a node; every part is 0 where there is nothing of it, so that the sum is never absent."""
    dead = max_by(1 - targets(), "instance")
    full = seen(m.GPU_MEMORY_USED_BYTES) / seen(m.GPU_MEMORY_TOTAL_BYTES) > LIMITS.card_memory.warning
    hot = seen(m.GPU_TEMPERATURE_MARGIN_CELSIUS) < LIMITS.temperature_margin.warning
    held = seen(m.GPU_CLOCK_EVENT_ACTIVE, reason=without_value("sw_power_cap")).equals(1)
    uneven = seen(m.GPU_UTILIZATION_SPREAD_RATIO, scope="replica") > LIMITS.utilization_spread.warning
    parts = (
        sum_by(1 - seen(m.GPU_UP), "instance"),
        sum_by(seen(m.LLM_FROZEN), "instance"),
        *(count_by(max_by(one, "instance", "gpu"), "instance") for one in (seen(m.GPU_STRAGGLER), full, hot, held)),
        count_by(uneven, "instance"),
    )
    for part in parts:
        dead = dead + (part | max_by(targets(), "instance") * 0)
    return dead


def _slower() -> Expr:
    named, slower = seen(m.GPU_STRAGGLER), seen(m.GPU_STRAGGLER_SLOWDOWN_RATIO)
    return binary("*", named, slower, on=(*NODE, "uuid", "replica"), bring=()).as_unit(Unit.RATIO)


def _tokens() -> Expr:
    return sum_by(rate(seen(m.LLM_GENERATION_TOKENS_TOTAL), WINDOW), "instance")


_NODES: tuple[Panel, ...] = (
    table(
        Text("Cards that others wait for", "被等待的卡"),
        Text(
            "The slow card of a replica, the cause, and how much longer it takes for the same work. Empty is healthy; "
            "click the replica or node to see it among its neighbours.",
            "副本中的慢卡、原因，及同样工作多花几倍时间。为空即正常；点击副本或节点与邻卡对比。",
        ),
        column(lambda: seen(m.GPU_STRAGGLER), Text("Verdict", "结论"), cell=Cell.COLOUR, states=STRAGGLER),
        column(_slower, Text("Slower by factor", "慢几倍"), shown=Shown.FACTOR),
        rows=("instance", "replica", "gpu", "cause"), needs=(Needs.STRAGGLER,), width=24, height=7,
        drill=(TO_NODE, TO_REPLICA),
    ),
    table(
        Text("Nodes, the worst first", "节点（最差在前）"),
        Text(
            "One row a node; click a node to open it. Problems counts dead exporters, lost cards, cards that others wait "
            "for, frozen or uneven replicas, and cards that are full, hot or held down. An empty cell is a "
            "figure that the node does not have; a node that is missing here altogether has a dead exporter for "
            "more than a day.",
            "每个节点一行，点击节点名进入。问题数 = 失联的采集器 + 丢失的卡 + 被等待的卡 + 冻结或不均衡的副本 + 显存满、过热或被降频的卡。空单元格表示该节点没有这个数据；整行消失表示采集器失联超过一天。",
        ),
        column(problems, Text("Problems", "问题数"), cell=Cell.COLOUR, limit=NONE_ODD),
        column(lambda: 1 - targets(), Text("Exporter dead", "采集器失联"), cell=Cell.COLOUR, limit=NONE_LOST),
        column(lambda: count_by(seen(m.GPU_UP), "instance"), Text("Cards", "卡数")),
        column(
            lambda: sum_by(1 - seen(m.GPU_UP), "instance"), Text("Lost", "丢失"), cell=Cell.COLOUR, limit=NONE_LOST
        ),
        column(
            lambda: avg_by(seen(m.GPU_UTILIZATION_RATIO), "instance"),
            Text("Mean utilisation", "平均利用率"), cell=Cell.BAR, most=1,
        ),
        column(
            lambda: max_by(seen(m.GPU_UTILIZATION_SPREAD_RATIO, scope="replica"), "instance"),
            Text("Widest spread", "组内最大差"), cell=Cell.COLOUR, limit=LIMITS.utilization_spread,
            needs=ENGINE,
        ),
        column(
            lambda: max_by(seen(m.GPU_MEMORY_USED_BYTES) / seen(m.GPU_MEMORY_TOTAL_BYTES), "instance"),
            Text("Fullest card", "最满的卡"), cell=Cell.COLOUR, limit=LIMITS.card_memory,
        ),
        column(
            lambda: min_by(seen(m.GPU_TEMPERATURE_MARGIN_CELSIUS), "instance"),
            Text("Least margin", "最小余量"), cell=Cell.COLOUR, limit=LIMITS.temperature_margin,
        ),
        column(
            lambda: sum_by(seen(m.LLM_REQUESTS_WAITING), "instance"), Text("Waiting", "排队"), cell=Cell.BAR,
            needs=ENGINE,
        ),
        column(lambda: sum_by(seen(m.GPU_POWER_WATTS), "instance"), Text("Power", "功率")),
        column(_tokens, Text("Tokens", "token 速率"), needs=ENGINE),
        column(_tokens, Text("Trend", "趋势"), cell=Cell.TREND, needs=ENGINE),
        rows=("instance",), sort="Problems", width=24, height=11, drill=(TO_NODE,),
    ),
    lines(
        Text("Cards answering, by node", "应答的卡数（按节点）"),
        Text(
            "Cards that answer. A step down is a lost card; a line that ends is a dead exporter.",
            "应答的卡数。台阶式下降是丢卡；线条中断是采集器失联。",
        ),
        series(lambda: sum_by(seen(m.GPU_UP), "instance"), "{{instance}}"),
        named=named.FLEET_CARDS, drill=(TO_NODE,),
    ),
    bars(
        Text("Waiting requests, by replica", "排队请求（按副本）"),
        Text(
            "Which replica holds the queue. One long bar among replicas of one model: the gateway sends too much "
            "there, or that replica is slow; the Imbalance board tells which.",
            "队列在哪个副本。同一模型中只有一根长：网关分配过多或该副本变慢，“不均衡”看板可区分。",
        ),
        series(lambda: sum_by(seen(m.LLM_REQUESTS_WAITING), "instance", "replica"), "{{replica}} {{instance}}"),
        needs=ENGINE, height=8, drill=(Drill(Uid.REPLICA, ("instance", "replica")),),
    ),
    alert_list(
        Text("Alerts", "告警"),
        Text(
            "What fires or is pending. Each alert links to its panel and runbook.",
            "触发或待触发的告警。每条都链接到对应面板与处置手册。",
        ),
    ),
)  # fmt: skip


_BALANCE: tuple[Panel, ...] = (
    stat(
        Text("Busiest replica over mean", "最忙副本/均值"),
        Text(
            "Requests running on a model's busiest replica over the mean of its replicas: 1 is even, 2 of two "
            "replicas is all on one.",
            "某模型最忙副本的运行请求数与副本均值之比：1 为均衡；两个副本时 2 表示全压在一个上。",
        ),
        series(
            lambda: max_by(seen(m.LLM_REPLICA_IMBALANCE_MAX_TO_MEAN_RATIO, signal="requests_running")),
            Text("worst model", "最差模型"), shown=Shown.FACTOR,
        ),
        needs=(Needs.REPLICAS, Needs.TRAFFIC), limit=LIMITS.replica_imbalance, width=6, decimals=2,
    ),
    stat(
        Text("Widest spread inside a replica", "副本内最大利用率差"),
        Text(
            "Highest minus lowest utilisation among the cards of one replica. Cards of a group work in step: a "
            "wide spread is work that somebody waits for.",
            "同一副本内各卡利用率的最大差。组内各卡同步工作：差距大说明有卡在等待。",
        ),
        series(
            lambda: max_by(seen(m.GPU_UTILIZATION_SPREAD_RATIO, scope="replica")), Text("worst replica", "最差副本")
        ),
        needs=ENGINE, limit=LIMITS.utilization_spread, width=6,
    ),
    stat(
        Text("Energy per token", "每 token 能耗"),
        Text(
            "Joules that the cards drew for one generated token, mean of the replicas. Double its usual value "
            "means waiting or tiny batches.",
            "生成一个 token 的卡能耗（焦耳），各副本平均。翻倍通常意味着等待或批次过小。",
        ),
        series(lambda: avg_by(seen(m.LLM_ENERGY_JOULES_PER_TOKEN, window="5m")).as_unit(Unit.JOULES), Text("mean", "平均")),
        needs=TRAFFIC, width=6, decimals=2,
    ),
    stat(
        Text("Cards idle", "空闲的卡"),
        Text(
            "Cards that did nothing for most of the last interval. Idle cards cost what busy ones cost.",
            "最近一段时间基本无工作的卡数。空闲与忙碌的成本相同。",
        ),
        series(
            lambda: count_by(rate(seen(m.GPU_IDLE_SECONDS_TOTAL), WINDOW) > LIMITS.idle_share.warning)
            | count_by(seen(m.GPU_UP)) * 0,
            Text("idle", "空闲"),
        ),
        width=6,
    ),
)  # fmt: skip


FLEET = Board(
    uid=Uid.FLEET,
    title=Text("Shardwatch / Fleet", "Shardwatch / 集群总览"),
    shows=Text(
        "Is anything wrong, for whom, and on which node? From users to nodes; click a node or replica to go on.",
        "有没有问题、影响谁、在哪个节点？从用户到节点；点击节点或副本继续下钻。",
    ),
    rows=(
        status(),
        Row(title=Text("What users get", "用户体验"), panels=_PROMISES),
        Row(title=Text("Load", "负载"), panels=_LOAD),
        Row(title=Text("Nodes", "节点"), panels=_NODES),
        Row(title=Text("Balance and cost", "均衡与成本"), panels=_BALANCE),
        Row(title=Text("Versions, cost and cards in use", "版本、成本与在用卡"), panels=VERSIONS, collapsed=True),
    ),
    notes=OF_FLEET,
)
