"""Now: the first dashboard on call: what is wrong, who is affected, how saturated the service is, where to go."""

from __future__ import annotations

from alerts.panel_ids import DashboardUid as Uid
from dashboards.dashboard import Dashboard, Row
from dashboards.definitions import problems
from dashboards.definitions.annotations import OF_FLEET
from dashboards.definitions.gateways import BACKEND
from dashboards.definitions.status import NONE_IS_GOOD, REPLICA_STATES, TO_NODE, TO_REPLICA
from dashboards.no_data_text import Requires
from dashboards.panels import (
    Cell,
    DrillDown,
    Panel,
    alert_list,
    column,
    series,
    stat,
    table,
    time_series,
)
from dashboards.thresholds import ANY_CRITICAL, THRESHOLDS, TOP_N
from dashboards.variables import EXPORTER_WINDOW, NODE, selected, targets
from exporter.catalog import metrics as m
from exporter.catalog.spec import Unit
from exporter.model.text import Text
from exporter.promql import Expr, join, max_by, regex, select, sum_by, topk, unless

ENGINE = (Requires.ENGINE,)
TRAFFIC = (Requires.TRAFFIC,)


def _latency(stage: str, quantile: str) -> Expr:
    return selected(m.LLM_LATENCY_QUANTILE_SECONDS, stage=stage, quantile=quantile, window=EXPORTER_WINDOW)


_AT_A_GLANCE: tuple[Panel, ...] = (
    stat(
        Text("Requests without an answer", "没有应答的请求"),
        Text(
            "Requests that run or wait on frozen replicas. They never finish, so they are in no latency and no error "
            "ratio.",
            "冻结的副本上运行与排队的请求。它们永远不会结束，因此不计入任何延迟与错误率。",
        ),
        series(lambda: sum_by(selected(m.LLM_STALLED_REQUESTS)), Text("open", "未完成")),
        requires=ENGINE, threshold=ANY_CRITICAL, value_mappings=NONE_IS_GOOD, width=5, height=3,
    ),
    stat(
        Text("GPUs lost", "掉卡 / 无应答"),
        Text("GPUs that do not answer (gpu_up is 0).", "不应答的卡（gpu_up 为 0）。"),
        series(lambda: sum_by(1 - selected(m.GPU_UP)), Text("lost", "掉卡")),
        threshold=ANY_CRITICAL, value_mappings=NONE_IS_GOOD, width=4, height=3,
    ),
    stat(
        Text("Highest error ratio", "最高错误率"),
        Text(
            "Of the replicas, over 5 minutes; client errors and aborted requests do not count.",
            "各副本 5 分钟内的最高值；客户端错误与主动中止不计入。",
        ),
        series(lambda: max_by(selected(m.LLM_ERROR_RATIO, window=EXPORTER_WINDOW)), Text("worst replica", "最差副本")),
        requires=TRAFFIC, threshold=THRESHOLDS.error_ratio, width=5, height=3, decimals=1,
    ),
    stat(
        Text("Requests waiting", "排队的请求"),
        Text("In the queues of all replicas.", "全部副本队列中的请求。"),
        series(lambda: sum_by(selected(m.LLM_REQUESTS_WAITING)), Text("waiting", "排队")),
        requires=ENGINE, width=5, height=3,
    ),
    stat(
        Text("Exporters down", "失联的采集器"),
        Text("Nodes without data on any dashboard.", "在所有仪表盘上都没有数据的节点。"),
        series(lambda: sum_by(1 - targets()), Text("down", "失联")),
        threshold=ANY_CRITICAL, value_mappings=NONE_IS_GOOD, width=5, height=3,
    ),
)  # fmt: skip


def _while_moving(expr: Expr) -> Expr:
    """Return figures of replicas without those of frozen ones, which are of before."""
    return unless(expr, selected(m.LLM_FROZEN).equals(1), on=(*NODE, "replica"))


def _gateway_share() -> Expr:
    """Return the share of a gateway's requests that each replica received in the last minute."""
    facts = select(m.GATEWAY_BACKEND_REPLICA_INFO, job=regex("$job"), instance=regex("$instance"))
    share = select(m.GATEWAY_REQUEST_SHARE_RATIO, job=regex("$job"), instance=regex("$instance"), window="1m")
    named = join(share, max_by(facts, *BACKEND, "replica"), on=BACKEND, group_left=("replica",))
    return max_by(named, "instance", "replica").as_unit(Unit.RATIO)


def _state() -> Expr:
    return selected(m.LLM_UP) + selected(m.LLM_FROZEN) | selected(m.LLM_UP)


_PROBLEMS: tuple[Panel, ...] = (
    table(
        Text("What is wrong", "当前问题"),
        Text(
            "The worst problem of each node, GPU and replica, with its cause and what to do first. Empty: nothing is "
            "wrong. A model in the column Replica: its nodes differ in versions.",
            "每个节点、GPU 与副本最严重的问题、原因以及首先要做的事。为空表示一切正常。副本一列中为模型名时：其各节点版本不一致。",
        ),
        column(problems.worst, Text("Problem", "问题"), cell=Cell.COLOUR, value_mappings=problems.PROBLEMS),
        column(problems.worst, Text("First action", "首先处理"), cell=Cell.WORD, value_mappings=problems.ACTIONS),
        rows=problems.SUBJECT, sort=("Problem",), requires=(Requires.TROUBLE,), width=24, height=6,
        drill_down=(TO_NODE, DrillDown(Uid.GPU_HEALTH, ("instance", "gpu")), TO_REPLICA),
    ),
)  # fmt: skip

_AFFECTED: tuple[Panel, ...] = (
    table(
        Text("Who is affected", "受影响的副本"),
        Text(
            "Replicas, the longest queue first. Compare the latency of replicas of one model: one that is slower "
            "than the others waits for something. A frozen replica has no latency; its gateway share should be 0.",
            "各副本，队列最长者在前。比较同一模型各副本的延迟：明显更慢的一个在等待。冻结的副本没有延迟，其网关占比应为 0。",
        ),
        column(lambda: topk(TOP_N, _state()), Text("State", "状态"), cell=Cell.COLOUR, value_mappings=REPLICA_STATES),
        column(lambda: selected(m.LLM_REQUESTS_RUNNING), Text("Running", "运行"), summed=True, decimals=0),
        column(lambda: selected(m.LLM_REQUESTS_WAITING), Text("Waiting", "排队"), summed=True, decimals=0),
        column(
            lambda: _while_moving(_latency("time_to_first_token", "0.99")), Text("TTFT p99", "TTFT p99"), cell=Cell.COLOUR,
            threshold=THRESHOLDS.first_token, requires=TRAFFIC,
        ),
        column(lambda: _while_moving(_latency("inter_token", "0.5")), Text("ITL p50", "ITL p50"), requires=TRAFFIC),
        column(
            lambda: selected(m.LLM_ERROR_RATIO, window=EXPORTER_WINDOW), Text("Errors", "错误率"), cell=Cell.COLOUR,
            threshold=THRESHOLDS.error_ratio, requires=TRAFFIC,
        ),
        column(_gateway_share, Text("Gateway share", "网关占比"), requires=(Requires.GATEWAY, Requires.TRAFFIC)),
        rows=("instance", "replica"), sort=("Waiting", "Errors"), requires=ENGINE, width=18, height=6,
        drill_down=(TO_NODE, TO_REPLICA),
    ),
    alert_list(
        Text("Alerts", "告警"),
        Text(
            "Firing and pending alerts; each has the cause, the action and a link to its dashboard.",
            "触发或待触发的告警；每条都有原因、处理与仪表盘链接。",
        ),
        width=6, height=6,
    ),
)  # fmt: skip

_SATURATION: tuple[Panel, ...] = (
    time_series(
        Text("Requests waiting by replica", "排队的请求（按副本）"),
        Text(
            f"The {TOP_N} longest queues. A queue that grows is the first sign of saturation, or of a replica without "
            "progress.",
            f"最长的 {TOP_N} 个队列。队列持续增长是饱和或副本没有进展的第一个迹象。",
        ),
        series(
            lambda: topk(TOP_N, sum_by(selected(m.LLM_REQUESTS_WAITING), "instance", "replica")),
            "{{replica}} {{instance}}",
        ),
        requires=ENGINE, drill_down=(TO_REPLICA,), height=6,
    ),
    time_series(
        Text("ITL p50 by replica", "ITL p50（按副本）"),
        Text(
            "Median inter-token latency over 5 minutes. A replica above its siblings is slowed down by a GPU, a link or "
            "another tenant.",
            "5 分钟 token 间隔中位数。高于同模型其他副本：被慢卡、链路或其他租户拖慢。",
        ),
        series(
            lambda: topk(TOP_N, max_by(_while_moving(_latency("inter_token", "0.5")), "instance", "replica")),
            "{{replica}} {{instance}}",
        ),
        requires=TRAFFIC, drill_down=(TO_REPLICA,), height=6,
    ),
    time_series(
        Text("Error ratio by replica", "错误率（按副本）"),
        Text(
            "Failed requests over 5 minutes; client errors and aborted requests do not count.",
            "5 分钟失败请求占比；客户端错误与主动中止不计入。",
        ),
        series(
            lambda: topk(TOP_N, max_by(selected(m.LLM_ERROR_RATIO, window=EXPORTER_WINDOW), "instance", "replica")),
            "{{replica}} {{instance}}",
        ),
        requires=TRAFFIC, threshold=THRESHOLDS.error_ratio, drill_down=(TO_REPLICA,), height=6,
    ),
)  # fmt: skip

NOW = Dashboard(
    uid=Uid.NOW,
    title=Text("Shardwatch / Now", "Shardwatch / 现在"),
    description=Text(
        "What is wrong, who is affected, and what to do first. Start here.",
        "哪里出了问题、影响谁、首先做什么。值班从这里开始。",
    ),
    rows=(
        Row(title=Text("At a glance", "概览"), panels=_AT_A_GLANCE),
        Row(title=Text("Problems and who is affected", "问题与影响"), panels=(*_PROBLEMS, *_AFFECTED)),
        Row(title=Text("Failure and saturation", "故障与饱和"), panels=_SATURATION),
    ),
    annotations=OF_FLEET,
)
