"""Imbalance: how uneven the load is, and where it arises: gateway, scheduler or hardware."""

from __future__ import annotations

from alerts import panel_ids as ids
from alerts.panel_ids import DashboardUid as Uid
from dashboards.dashboard import Dashboard, Row
from dashboards.definitions.annotations import OF_BALANCE
from dashboards.definitions.gateways import GATEWAY_PANELS
from dashboards.definitions.status import TO_GPU, TO_REPLICA, status
from dashboards.no_data_text import Requires
from dashboards.panels import NumberFormat, Panel, bar_gauge, series, stat, status_history, time_series
from dashboards.thresholds import ANY_CRITICAL, THRESHOLDS
from dashboards.variables import NODE, by_replica, selected
from exporter.catalog import metrics as m
from exporter.catalog.spec import Metric, Unit
from exporter.model.text import Text
from exporter.promql import (
    Expr,
    Matcher,
    and_on,
    avg_by,
    binary,
    max_by,
    over_time,
    regex,
    select,
    sum_by,
    without_value,
)

ENGINE = (Requires.ENGINE,)
SEVERAL = (Requires.REPLICAS, Requires.TRAFFIC)
RANKS = (Requires.RANKS, Requires.TRAFFIC)
SPANNING = (Requires.MULTI_NODE,)
TRAFFIC = (Requires.TRAFFIC, Requires.ENGINE)
MIN_VARIATION = 0.12  # coefficient of variation of power over 5 minutes; below it the shares are noise


def _variation(*by: str, **matchers: Matcher) -> Expr:
    """Return the coefficient of variation over 5 minutes: what differs from one scrape to the next is no imbalance."""
    return max_by(
        over_time("avg", selected(m.LLM_IMBALANCE_COEFFICIENT_OF_VARIATION, **matchers), "5m"), "model", *by
    )


def _long_queues() -> Expr:
    """Return the models of which enough requests wait: one request in one of two queues is no imbalance."""
    waiting = over_time("avg", selected(m.LLM_REQUESTS_WAITING), "5m")
    return sum_by(waiting, "model") >= THRESHOLDS.balance_requests.warning


_LAYERS: tuple[Panel, ...] = (
    stat(
        Text("Between replicas", "副本之间"),
        Text(
            "Running requests on the busiest replica over the mean. High: the gateway distributes unevenly.",
            "最忙副本的运行请求与均值之比。偏高：网关分配不均。",
        ),
        series(
            lambda: max_by(selected(m.LLM_REPLICA_IMBALANCE_MAX_TO_MEAN_RATIO, signal="requests_running"), "model"),
            "{{model}}", number_format=NumberFormat.FACTOR,
        ),
        requires=SEVERAL, threshold=THRESHOLDS.replica_imbalance, width=8, height=5, decimals=2,
    ),
    stat(
        Text("Between ranks", "rank 之间"),
        Text(
            "Running requests on the busiest rank over the mean. High: the scheduler prefers some ranks.",
            "最忙 rank 的运行请求与均值之比。偏高：引擎调度器偏向部分 rank。",
        ),
        series(
            lambda: max_by(selected(m.LLM_RANK_IMBALANCE_MAX_TO_MEAN_RATIO, signal="requests_running"), "replica"),
            "{{replica}}", number_format=NumberFormat.FACTOR,
        ),
        requires=RANKS, threshold=THRESHOLDS.rank_imbalance, width=8, height=5, decimals=2,
    ),
    stat(
        Text("Between GPUs", "卡之间"),
        Text(
            "Highest minus lowest utilisation inside a replica. High with even ranks: the GPUs, or a worker.",
            "同一副本内最高与最低利用率之差。rank 均衡而此值高：硬件或 worker 的问题。",
        ),
        series(
            lambda: max_by(selected(m.GPU_UTILIZATION_SPREAD_RATIO, scope="replica"), "group"), "{{group}}",
        ),
        requires=ENGINE, threshold=THRESHOLDS.utilization_spread, width=8, height=5,
    ),
    time_series(
        Text("Imbalance by layer", "不均衡出在哪一层"),
        Text(
            "Share of a model's imbalance in power: between replicas (gateway), between ranks (scheduler), "
            "between GPUs of a rank (hardware). Adds up to 100 %. Empty while the coefficient of variation over 5 "
            "minutes is below 12 %.",
            "模型功率不均衡的来源占比：副本间（网关）、rank 间（调度器）、卡间（硬件）。合计 100 %。5 分钟变异系数低于 12 % 时为空。",
        ),
        series(
            lambda: and_on(
                max_by(over_time("avg", selected(m.LLM_IMBALANCE_SHARE_RATIO, signal="power"), "5m"), "model", "layer"),
                _variation(signal="power") > MIN_VARIATION,
                on=("model",),
            ),
            "{{model}} {{layer}}",
        ),
        requires=(Requires.UNEVEN,), max_value=1, width=12,
    ),
    time_series(
        Text("Coefficient of variation by model", "各模型的变异系数"),
        Text(
            "Standard deviation over mean of all GPUs of the model (request load: of all ranks), averaged over 5 "
            "minutes. Below a tenth the layer does not matter. Waiting requests only where the model's queues are long.",
            "模型全部卡（请求负载：全部 rank）的标准差与均值之比，取 5 分钟平均。低于十分之一时，不必在意左侧的层。仅在模型排队较长时显示排队的请求。",
        ),
        series(
            lambda: (
                _variation("signal", signal=without_value("requests_waiting"))
                | and_on(_variation("signal", signal="requests_waiting"), _long_queues(), on=("model",))
            ),
            "{{model}} {{signal}}",
        ),
        requires=ENGINE, width=12,
    ),
)  # fmt: skip


def _deviation(expr: Expr) -> Expr:
    """Return each GPU's value relative to the mean of its replica, minus 1."""
    each = max_by(by_replica(expr), "instance", "replica", "gpu")
    return binary("/", each, avg_by(each, "instance", "replica"), on=("instance", "replica"), group_left=()) - 1


_GPUS: tuple[Panel, ...] = (
    bar_gauge(
        Text("Utilisation by GPU", "各卡利用率"),
        Text(
            "Bars that fall from the first GPU to the last: a scheduler that prefers low ranks, or communication "
            "over PCIe.",
            "从第一张卡到最后一张依次下降：调度器偏向前面的 rank，或卡间通信走 PCIe。",
        ),
        series(lambda: max_by(selected(m.GPU_UTILIZATION_RATIO), "instance", "gpu"), "{{instance}} GPU {{gpu}}"),
        max_value=1, drill_down=(TO_GPU,), width=8, height=8,
    ),
    status_history(
        Text("Utilisation relative to the group", "利用率与组内均值之差"),
        Text(
            "Utilisation of each GPU relative to the mean of its replica. Yellow is even; a row that stays blue "
            "(below) or red (above) is the one that differs.",
            "各卡利用率相对副本均值的偏差。黄色为均衡；持续偏蓝（低）或偏红（高）的一行就是不同的那张卡。",
        ),
        series(lambda: _deviation(selected(m.GPU_UTILIZATION_RATIO)), "{{instance}} GPU {{gpu}}"),
        requires=TRAFFIC, min_value=-0.3, max_value=0.3, drill_down=(TO_GPU,), width=12, height=9,
    ),
    status_history(
        Text("Power relative to the group", "功率与组内均值之差"),
        Text(
            "Power follows useful work and shows the straggler that utilisation hides: a waiting GPU has full "
            "utilisation and low power.",
            "功率反映有效工作量，能发现利用率掩盖的慢卡：等待中的卡利用率满、功率低。",
        ),
        series(lambda: _deviation(selected(m.GPU_POWER_WATTS)), "{{instance}} GPU {{gpu}}"),
        requires=ENGINE, min_value=-0.3, max_value=0.3, drill_down=(TO_GPU,), width=12, height=9,
    ),
    time_series(
        Text("Utilisation spread by group", "组内利用率差"),
        Text(
            "Highest minus lowest utilisation of each replica's GPUs. Above the threshold some wait.",
            "每个副本内最高与最低利用率之差。越过线即有卡在等。",
        ),
        series(
            lambda: max_by(selected(m.GPU_UTILIZATION_SPREAD_RATIO, scope="replica"), "instance", "group"), "{{group}} {{instance}}"
        ),
        requires=ENGINE, threshold=THRESHOLDS.utilization_spread, max_value=1, panel_id=ids.IMBALANCE_GPUS,
    ),
    time_series(
        Text("Utilisation standard deviation by group", "组内利用率标准差"),
        Text(
            "Standard deviation of utilisation inside each replica; at most 50 %.",
            "每个副本内利用率的标准差；不会超过 50 %。",
        ),
        series(
            lambda: max_by(selected(m.GPU_UTILIZATION_STDDEV_RATIO, scope="replica"), "instance", "group"), "{{group}} {{instance}}"
        ),
        requires=ENGINE, threshold=THRESHOLDS.utilization_stddev, max_value=0.5,
    ),
    time_series(
        Text("Memory skew by group", "组内显存不均"),
        Text(
            "Fullest GPU over the mean of its replica. Shards are equal: a rise is a leak or a second tenant.",
            "最满的卡与副本均值之比。分片大小相同：上升即泄漏或有第二个租户。",
        ),
        series(
            lambda: max_by(
                selected(m.GPU_IMBALANCE_MAX_TO_MEAN_RATIO, scope="replica", signal="memory_used"), "instance", "group"
            ),
            "{{group}} {{instance}}", number_format=NumberFormat.FACTOR,
        ),
        requires=ENGINE, threshold=THRESHOLDS.memory_skew, min_value=1, panel_id=ids.IMBALANCE_MEMORY,
    ),
)  # fmt: skip


_ENGINES: tuple[Panel, ...] = (
    time_series(
        Text("Load by rank", "各 rank 负载"),
        Text(
            "Running and waiting requests of each rank. Lines that stay apart come from the scheduler.",
            "各 rank 的运行与排队请求。长期分离的线是调度器造成的。",
        ),
        series(
            lambda: sum_by(selected(m.LLM_REQUESTS_RUNNING), "instance", "replica", "rank"),
            Text("{{replica}} {{instance}} {{rank}} running", "{{replica}} {{instance}} {{rank}} 运行"),
        ),
        series(
            lambda: sum_by(selected(m.LLM_REQUESTS_WAITING), "instance", "replica", "rank"),
            Text("{{replica}} {{instance}} {{rank}} waiting", "{{replica}} {{instance}} {{rank}} 排队"),
        ),
        requires=ENGINE, panel_id=ids.IMBALANCE_RANKS, drill_down=(TO_REPLICA,),
    ),
    time_series(
        Text("Load by replica", "各副本负载"),
        Text(
            "Requests running and waiting by replica. Replicas of one model should be close together.",
            "各副本运行与排队请求之和。同一模型的副本应聚在一起。",
        ),
        series(
            lambda: sum_by(selected(m.LLM_REQUESTS_RUNNING), "instance", "replica")
            + sum_by(selected(m.LLM_REQUESTS_WAITING), "instance", "replica"),
            "{{replica}} {{instance}}",
        ),
        requires=ENGINE, panel_id=ids.IMBALANCE_REPLICAS, drill_down=(TO_REPLICA,),
    ),
)  # fmt: skip


_FULL: tuple[Panel, ...] = (
    status_history(
        Text("Deviation from the group's median", "相对组中位数的偏差"),
        Text(
            "As computed by the daemon, by signal: 0 is the median, -20 % a fifth below.",
            "守护进程按信号计算：0 为中位数，-20 % 即低五分之一。",
        ),
        series(
            lambda: max_by(
                selected(m.GPU_GROUP_DEVIATION_RATIO, signal=regex("utilization|power|clock_sm")),
                "group", "gpu", "signal",
            ),
            "{{group}} GPU {{gpu}} {{signal}}",
        ),
        requires=(Requires.FULL, Requires.ENGINE), min_value=-0.3, max_value=0.3, width=12, height=10,
    ),
    time_series(
        Text("Coefficient of variation by signal", "各信号变异系数"),
        Text(
            "Standard deviation over mean inside each group, by signal. The signal that stands out names the "
            "problem.",
            "组内各信号的标准差与均值之比。脱离其余的那个信号指出问题所在。",
        ),
        series(
            lambda: max_by(selected(m.GPU_IMBALANCE_COEFFICIENT_OF_VARIATION, scope="replica"), "group", "signal"),
            "{{group}} {{signal}}",
        ),
        requires=(Requires.FULL, Requires.ENGINE), width=12, height=10,
    ),
)  # fmt: skip


def _on_nodes(metric: Metric) -> Expr:
    """Select by node alone: a replica's name differs between its nodes."""
    return select(metric, job=regex("$job"), instance=regex("$instance"))


def _of_places(metric: Metric) -> Expr:
    """Return a figure of each GPU of the replicas that span nodes."""
    places = max_by(_on_nodes(m.GPU_MULTI_NODE_REPLICA_INFO), *NODE, "uuid", "gpu", "replica_key", "role")
    return binary("*", places, _on_nodes(metric), on=(*NODE, "uuid"), group_left=())


def _by_node(metric: Metric) -> Expr:
    """Return the mean of a figure over the GPUs that each node contributes to a replica."""
    return avg_by(_of_places(metric), "replica_key", "instance", "role")


_NODES: tuple[Panel, ...] = (
    time_series(
        Text("Utilisation by node", "各节点利用率"),
        Text(
            "Mean utilisation of the GPUs that each node contributes to a replica. Nodes that stay apart: unequal "
            "ranks, or nodes that wait.",
            "每个节点为副本提供的卡的平均利用率。长期分离：rank 不均，或有节点在等待。",
        ),
        series(
            lambda: _by_node(m.GPU_UTILIZATION_RATIO).as_unit(Unit.RATIO), "{{replica_key}} {{instance}} {{role}}"
        ),
        requires=SPANNING, max_value=1, panel_id=ids.IMBALANCE_NODES,
    ),
    time_series(
        Text("Power by node", "各节点功率"),
        Text(
            "Mean power of these GPUs. Power follows useful work: a node that waits has full utilisation and low power.",
            "上述卡的平均功率。功率反映有效工作量：等待中的节点利用率满、功率低。",
        ),
        series(
            lambda: _by_node(m.GPU_POWER_WATTS).as_unit(Unit.WATTS), "{{replica_key}} {{instance}} {{role}}"
        ),
        requires=SPANNING,
    ),
    time_series(
        Text("GPUs lost by node", "各节点掉卡数"),
        Text(
            "GPUs of these replicas that do not answer. One is enough to stop a replica on all of its nodes.",
            "这些副本中无应答的卡。一张即可使副本在所有节点上停住。",
        ),
        series(
            lambda: sum_by(binary("==", _of_places(m.GPU_UP), 0, boolean=True), "replica_key", "instance", "role"),
            "{{replica_key}} {{instance}} {{role}}",
        ),
        requires=SPANNING, threshold=ANY_CRITICAL, panel_id=ids.IMBALANCE_NODES_LOST,
    ),
)  # fmt: skip


IMBALANCE = Dashboard(
    uid=Uid.IMBALANCE,
    title=Text("Shardwatch / Imbalance", "Shardwatch / 不均衡"),
    description=Text(
        "How uneven is the load, and where does it come from: gateway, scheduler or GPU?",
        "负载有多不均衡，出自哪里：网关、调度器还是 GPU？",
    ),
    rows=(
        status(),
        Row(title=Text("Layers", "分层"), panels=_LAYERS),
        Row(title=Text("GPUs, ranks, replicas", "卡、rank 与副本"), panels=(*_GPUS[:1], *_ENGINES)),
        Row(title=Text("GPUs in their groups", "组内的卡"), panels=_GPUS[1:], collapsed=True),
        Row(title=Text("Replicas that span nodes", "跨节点的副本"), panels=_NODES, collapsed=True),
        Row(title=Text("Gateways", "网关"), panels=GATEWAY_PANELS, collapsed=True),
        Row(title=Text("More (series: full)", "更多（series: full）"), panels=_FULL, collapsed=True),
    ),
    annotations=OF_BALANCE,
)
