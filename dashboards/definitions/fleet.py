"""Fleet: the state of all nodes and models, and the entry to the other dashboards."""

from __future__ import annotations

from alerts import panel_ids as ids
from alerts.panel_ids import DashboardUid as Uid
from dashboards.dashboard import Dashboard, Row
from dashboards.definitions.annotations import OF_FLEET
from dashboards.definitions.fleet_inventory import VERSIONS
from dashboards.definitions.node_ranking import pages, problems
from dashboards.definitions.slo import SLO
from dashboards.definitions.status import NONE_IS_GOOD, STRAGGLER, TO_NODE, TO_REPLICA, status
from dashboards.no_data_text import Requires
from dashboards.panels import (
    Cell,
    DrillDown,
    NumberFormat,
    Panel,
    alert_list,
    bar_gauge,
    column,
    series,
    stat,
    table,
    time_series,
)
from dashboards.recorded_quantiles import quantile
from dashboards.thresholds import ANY_CRITICAL, ANY_WARNING, THRESHOLDS, TOP_N
from dashboards.variables import EXPORTER_WINDOW, NODE, RATE_INTERVAL, selected, targets
from exporter.catalog import metrics as m
from exporter.catalog.spec import Unit
from exporter.model.text import Text
from exporter.promql import (
    Expr,
    avg_by,
    binary,
    bottomk,
    count_by,
    join,
    max_by,
    min_by,
    rate,
    sum_by,
    topk,
    without_value,
)

TRAFFIC = (Requires.TRAFFIC,)
ENGINE = (Requires.ENGINE,)


_LOAD: tuple[Panel, ...] = (
    time_series(
        Text("Requests running and waiting", "运行与排队的请求"),
        Text(
            "By model. Waiting requests are the first sign of saturation: the queue grows before latency does.",
            "按模型。排队是饱和的第一个迹象，先于延迟上升。",
        ),
        series(lambda: sum_by(selected(m.LLM_REQUESTS_RUNNING), "model"), Text("{{model}} running", "{{model}} 运行")),
        series(lambda: sum_by(selected(m.LLM_REQUESTS_WAITING), "model"), Text("{{model}} waiting", "{{model}} 排队")),
        requires=ENGINE, width=24, height=8,
    ),
    time_series(
        Text("Tokens generated", "生成 token 速率"),
        Text(
            "Tokens per second by model. Falling while requests wait means that engines are stuck, not idle.",
            "每秒生成的 token，按模型。请求在排队而此值下降，说明引擎卡住，而非空闲。",
        ),
        series(lambda: sum_by(rate(selected(m.LLM_GENERATION_TOKENS_TOTAL), RATE_INTERVAL), "model"), "{{model}}"),
        requires=ENGINE, width=8, height=8,
    ),
    time_series(
        Text("TTFT p95 by model", "首 token p95（按模型）"),
        Text(
            "95th percentile of TTFT over all replicas of a model and engine, 5 minutes, from summed buckets; "
            "includes queue and prefill. Always of all nodes. Needs the recording rules of the alerts.",
            "模型（按引擎）全部副本 5 分钟首 token 时间的 95 分位，由桶求和得出；含排队与预填充。不随所选节点变化。需要告警附带的记录规则。",
        ),
        series(
            lambda: max_by(quantile(m.LLM_TIME_TO_FIRST_TOKEN_SECONDS, 0.95), "model", "engine") >= 0,
            "{{model}} {{engine}}",
        ),
        requires=(Requires.RULES, Requires.TRAFFIC), threshold=THRESHOLDS.first_token, width=8, height=8,
    ),
    time_series(
        Text("Prefix-cache hit rate by model", "前缀缓存命中率（按模型）"),
        Text(
            "Tokens found over tokens looked up, over all replicas of a model. A drop after a change of routing, "
            "prompts or replicas raises TTFT.",
            "模型全部副本的命中 token 占查询 token 的比例。路由、提示词或副本变化后下降，首 token 都会变慢。",
        ),
        series(
            lambda: sum_by(rate(selected(m.LLM_PREFIX_CACHE_HITS_TOTAL), RATE_INTERVAL), "model")
            / sum_by(rate(selected(m.LLM_PREFIX_CACHE_QUERIES_TOTAL), RATE_INTERVAL), "model")
            >= 0,
            "{{model}}",
        ),
        requires=TRAFFIC, threshold=THRESHOLDS.hit_rate, max_value=1, width=8, height=8,
    ),
)  # fmt: skip


def _differing() -> Expr:
    """Return the number of models whose nodes differ in driver or CUDA version, or whose replicas differ in engine's.

    As the alerts DriverVersionsDiffer and EngineVersionsDiffer do.
    """
    versions, model = ("driver_version", "cuda_version"), ("job", "model")
    engines = selected(m.LLM_ENGINE_INFO, version=without_value(""))
    served = join(selected(m.LLM_ENGINE_INFO), selected(m.GPU_DRIVER_INFO), on=NODE, group_left=versions)
    none = count_by(selected(m.GPU_UP)) * 0
    found = (
        count_by(count_by(count_by(serving, *whose, *names), *whose) > 1)
        for serving, whose, names in ((served, model, versions), (engines, (*model, "engine"), ("version",)))
    )
    drivers, software = (count | none for count in found)
    return drivers + software


def _slower() -> Expr:
    straggler, slower = selected(m.GPU_STRAGGLER), selected(m.GPU_STRAGGLER_SLOWDOWN_RATIO)
    return binary("*", straggler, slower, on=(*NODE, "uuid", "replica"), group_left=()).as_unit(Unit.RATIO)


def _tokens() -> Expr:
    return sum_by(rate(selected(m.LLM_GENERATION_TOKENS_TOTAL), RATE_INTERVAL), "instance")


_NODES: tuple[Panel, ...] = (
    table(
        Text("Nodes by severity", "节点（最严重在前）"),
        Text(
            "One row per node. Critical: exporter down, GPUs lost, engines down or frozen, failing requests, a "
            "fatal NVSwitch error, or the node's critical alerts if there are more. Problems adds stragglers, "
            "GPUs with memory errors, faulty links or a pending reset, full, hot or throttled GPUs, and uneven "
            "replicas. An empty cell is a value that the node does not have; a missing row is an exporter that "
            "has been down for more than one day.",
            "每个节点一行，点击节点名进入。紧急告警 = 采集器失联、掉卡、引擎停止或冻结、请求失败、NVSwitch 致命错误；若该节点的 critical "
            "告警更多则取告警数。问题数另加：慢卡，显存出错、链路不良或待复位的卡，显存满、过热或被降频的卡，不均衡的副本。空单元格表示该节点没有这个数据；整行消失表示采集器失联超过一天。",
        ),
        column(pages, Text("Critical", "紧急告警"), cell=Cell.COLOUR, threshold=ANY_CRITICAL),
        column(problems, Text("Problems", "问题数"), cell=Cell.COLOUR, threshold=ANY_WARNING),
        column(lambda: 1 - targets(), Text("Down", "采集器失联"), cell=Cell.COLOUR, threshold=ANY_CRITICAL),
        column(lambda: count_by(selected(m.GPU_UP), "instance"), Text("GPUs", "GPU 数")),
        column(
            lambda: sum_by(1 - selected(m.GPU_UP), "instance"), Text("Lost", "掉卡"), cell=Cell.COLOUR, threshold=ANY_CRITICAL
        ),
        column(
            lambda: avg_by(selected(m.GPU_UTILIZATION_RATIO), "instance"),
            Text("Utilisation", "平均利用率"), cell=Cell.BAR, max_value=1,
        ),
        column(
            lambda: max_by(selected(m.GPU_UTILIZATION_SPREAD_RATIO, scope="replica"), "instance"),
            Text("Spread", "组内最大差"), cell=Cell.COLOUR, threshold=THRESHOLDS.utilization_spread,
            requires=ENGINE,
        ),
        column(
            lambda: max_by(selected(m.GPU_MEMORY_USED_BYTES) / selected(m.GPU_MEMORY_TOTAL_BYTES), "instance"),
            Text("Max memory", "最高显存占用"), cell=Cell.COLOUR, threshold=THRESHOLDS.gpu_memory_used,
        ),
        column(
            lambda: min_by(selected(m.GPU_TEMPERATURE_MARGIN_CELSIUS), "instance"),
            Text("Min margin", "最小温度余量"), cell=Cell.COLOUR, threshold=THRESHOLDS.temperature_margin,
        ),
        column(
            lambda: sum_by(selected(m.LLM_REQUESTS_WAITING), "instance"), Text("Waiting", "排队"), cell=Cell.BAR,
            requires=ENGINE,
        ),
        column(lambda: sum_by(selected(m.GPU_POWER_WATTS), "instance"), Text("Power", "功率")),
        column(_tokens, Text("Tokens", "token 速率"), requires=ENGINE),
        column(_tokens, Text("Trend", "趋势"), cell=Cell.TREND, requires=ENGINE),
        rows=("instance",), sort=("Critical", "Problems"), drill_down=(TO_NODE,), width=24, height=11,
    ),
    table(
        Text("Stragglers", "慢卡"),
        Text(
            "The GPU that the others of its replica wait for, the cause, and the slowdown. Empty is healthy. "
            "Click a replica or node for details.",
            "其他卡在等的那张卡、原因与减速倍数。为空即正常；点击副本或节点查看详情。",
        ),
        column(lambda: selected(m.GPU_STRAGGLER), Text("Verdict", "判定"), cell=Cell.COLOUR, value_mappings=STRAGGLER),
        column(_slower, Text("Slowdown", "减速倍数"), number_format=NumberFormat.FACTOR),
        rows=("instance", "replica", "gpu", "cause"), requires=(Requires.STRAGGLER,),
        drill_down=(TO_NODE, TO_REPLICA), width=24, height=6,
    ),
    time_series(
        Text("GPUs up by node", "在线 GPU（按节点）"),
        Text(
            f"GPUs that answer, the {TOP_N} nodes with the fewest. A step down is a lost GPU; a line that ends is "
            "an exporter that is down.",
            f"在线的 GPU 数，只画最少的 {TOP_N} 个节点。台阶式下降是掉卡；线条中断是采集器失联。",
        ),
        series(lambda: bottomk(TOP_N, sum_by(selected(m.GPU_UP), "instance")), "{{instance}}"),
        panel_id=ids.FLEET_GPUS, drill_down=(TO_NODE,),
    ),
    bar_gauge(
        Text("Waiting requests by replica", "排队请求（按副本）"),
        Text(
            f"The {TOP_N} longest queues. One long queue among replicas of a model: the gateway sends it too "
            "much, or it is slow; see Imbalance.",
            f"最长的 {TOP_N} 个队列。同一模型中只有一个长：网关分配过多或该副本变慢，见“不均衡”仪表盘。",
        ),
        series(
            lambda: topk(TOP_N, sum_by(selected(m.LLM_REQUESTS_WAITING), "instance", "replica")), "{{replica}} {{instance}}"
        ),
        requires=ENGINE, height=8, drill_down=(DrillDown(Uid.REPLICA, ("instance", "replica")),),
    ),
    alert_list(
        Text("Alerts", "告警"),
        Text(
            "Firing and pending alerts. Each links to its dashboard and runbook.",
            "触发或待触发的告警。每条都链接到对应的仪表盘与运行手册。",
        ),
    ),
)  # fmt: skip


_BALANCE: tuple[Panel, ...] = (
    stat(
        Text("Version mismatches", "版本不一致"),
        Text(
            "Models whose nodes differ in driver or CUDA version, plus models whose replicas differ in engine "
            "version. The last row of this dashboard lists the versions.",
            "所在节点驱动或 CUDA 版本不一致的模型数，加上副本引擎版本不一致的模型数。本仪表盘最后一行列出各自的版本。",
        ),
        series(_differing, Text("models", "模型")),
        threshold=ANY_WARNING, value_mappings=NONE_IS_GOOD, width=6, height=6,
    ),
    stat(
        Text("Busiest replica over mean", "最忙副本/均值"),
        Text(
            "Requests running on the busiest replica of a model over the mean of its replicas: 1 is even; with "
            "two replicas 2 means all on one.",
            "某模型最忙副本的运行请求数与副本均值之比：1 为均衡；两个副本时 2 表示全压在一个上。",
        ),
        series(
            lambda: max_by(selected(m.LLM_REPLICA_IMBALANCE_MAX_TO_MEAN_RATIO, signal="requests_running")),
            Text("worst model", "最差模型"), number_format=NumberFormat.FACTOR,
        ),
        requires=(Requires.REPLICAS, Requires.TRAFFIC), threshold=THRESHOLDS.replica_imbalance, decimals=2, width=6, height=4,
    ),
    stat(
        Text("Utilisation spread inside a replica", "副本内最大利用率差"),
        Text(
            "Highest minus lowest utilisation among the GPUs of one replica. They work in lockstep: a wide "
            "spread means that some wait.",
            "同一副本内各卡利用率的最大差。组内各卡同步工作：差距大说明有卡在等待。",
        ),
        series(
            lambda: max_by(selected(m.GPU_UTILIZATION_SPREAD_RATIO, scope="replica")), Text("worst replica", "最差副本")
        ),
        requires=ENGINE, threshold=THRESHOLDS.utilization_spread, width=6, height=4,
    ),
    stat(
        Text("Energy per token", "每 token 能耗"),
        Text(
            "Energy of the GPUs per generated token, mean of the replicas. Twice the usual value means waiting "
            "or very small batches.",
            "生成一个 token 的卡能耗（焦耳），各副本平均。翻倍通常意味着等待或批次过小。",
        ),
        series(lambda: avg_by(selected(m.LLM_ENERGY_JOULES_PER_GENERATED_TOKEN, window=EXPORTER_WINDOW)).as_unit(Unit.JOULES), Text("mean", "平均")),
        requires=TRAFFIC, decimals=2, width=6, height=4,
    ),
    stat(
        Text("GPUs idle", "空闲的 GPU"),
        Text(
            "GPUs without work for most of the last interval.",
            "最近一段时间基本没有工作的 GPU 数。",
        ),
        series(
            lambda: count_by(rate(selected(m.GPU_IDLE_SECONDS_TOTAL), RATE_INTERVAL) > THRESHOLDS.idle_share.warning)
            | count_by(selected(m.GPU_UP)) * 0,
            Text("idle", "空闲"),
        ), width=6, height=4,
    ),
)  # fmt: skip


FLEET = Dashboard(
    uid=Uid.FLEET,
    title=Text("Shardwatch / Fleet", "Shardwatch / 集群总览"),
    description=Text(
        "Is anything wrong, for whom, and on which node? Click a node or replica for details.",
        "有没有问题、影响谁、在哪个节点？点击节点或副本继续下钻。",
    ),
    rows=(
        status(),
        Row(title=Text("Nodes", "节点"), panels=_NODES[:2]),
        Row(title=Text("User experience, versions", "用户体验与版本"), panels=(*SLO, *_BALANCE[:1])),
        Row(title=Text("Load and alerts", "负载与告警"), panels=(*_LOAD, *_NODES[2:]), collapsed=True),
        Row(title=Text("Balance and cost", "均衡与成本"), panels=_BALANCE[1:], collapsed=True),
        Row(title=Text("Versions, cost and GPUs in use", "版本、成本与在用 GPU"), panels=VERSIONS, collapsed=True),
    ),
    annotations=OF_FLEET,
)
