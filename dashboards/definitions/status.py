"""The first row of every dashboard: what is lost, and whether monitoring works."""

from __future__ import annotations

from alerts.panel_ids import DashboardUid
from dashboards.dashboard import Row
from dashboards.no_data_text import Requires
from dashboards.panels import DrillDown, Panel, ValueMapping, series, stat
from dashboards.panels.panel import Colour
from dashboards.thresholds import ANY_CRITICAL, ANY_WARNING
from dashboards.variables import selected, targets
from exporter.catalog import metrics as m
from exporter.model.text import Text
from exporter.promql import ALERTS, Expr, count_by, regex, select, sum_by

NONE_IS_GOOD = (ValueMapping(0, Text("none", "无"), Colour.GOOD),)
UP = (ValueMapping(0, Text("down", "离线"), Colour.CRITICAL), ValueMapping(1, Text("up", "在线"), Colour.GOOD))
YES_IS_BAD = (ValueMapping(0, Text("no", "否"), Colour.GOOD), ValueMapping(1, Text("yes", "是"), Colour.CRITICAL))

REPLICA_STATES = (
    ValueMapping(0, Text("down", "停止"), Colour.CRITICAL),
    ValueMapping(1, Text("up", "正常"), Colour.GOOD),
    ValueMapping(2, Text("frozen", "冻结"), Colour.CRITICAL),
    ValueMapping(3, Text("rank stale", "rank 停滞"), Colour.WARNING),
    ValueMapping(4, Text("certificate expires soon", "证书即将到期"), Colour.WARNING),
)
STRAGGLER = (
    ValueMapping(1, Text("straggler", "慢卡"), Colour.CRITICAL),
    ValueMapping(10, Text("not comparable", "无法比较"), Colour.OFF),
    ValueMapping(11, Text("compared", "已比较"), Colour.GOOD),
)

TO_NODE = DrillDown(DashboardUid.NODE, ("instance",))
TO_GPU = DrillDown(DashboardUid.GPU_HEALTH, ("instance", "gpu"))
TO_REPLICA = DrillDown(DashboardUid.REPLICA, ("instance", "replica"))  # replicas of several nodes may share a name


def _exporters() -> Panel:
    return stat(
        Text("Exporters down", "失联的采集器"),
        Text(
            "Daemons that Prometheus cannot scrape (up), of those seen within one day. Their nodes have no data "
            "on any dashboard.",
            "Prometheus 无法抓取的守护进程数（up），仅计一天内出现过的。失联期间，该节点在所有仪表盘上都没有数据。",
        ),
        series(lambda: sum_by(1 - targets()), Text("down", "失联")),
        threshold=ANY_CRITICAL,
        value_mappings=NONE_IS_GOOD,
        width=6,
        height=3,
    )


def _gpus() -> Panel:
    return stat(
        Text("GPUs lost", "掉卡 / 无应答"),
        Text(
            "GPUs that do not answer (gpu_up is 0): lost, hung or in error. See GPU health.",
            "不应答的卡（gpu_up 为 0）：掉卡、挂死或出错。请看“GPU 健康”。",
        ),
        series(lambda: sum_by(1 - selected(m.GPU_UP)), Text("lost", "掉卡")),
        threshold=ANY_CRITICAL,
        value_mappings=NONE_IS_GOOD,
        width=6,
        height=3,
    )


def _frozen() -> Panel:
    return stat(
        Text("Replicas frozen", "冻结的副本"),
        Text(
            "Replicas that have requests and whose counters do not move (llm_frozen), often in a collective that "
            "waits for a lost GPU, and the requests that they hold (llm_stalled_requests).",
            "有请求但计数器不再变化的副本（llm_frozen），常见原因是集合通信在等掉卡的 GPU；以及它们滞留的请求（llm_stalled_requests）。",
        ),
        series(lambda: sum_by(selected(m.LLM_FROZEN)) | sum_by(selected(m.LLM_UP)) * 0, Text("frozen", "冻结")),
        series(
            lambda: sum_by(selected(m.LLM_STALLED_REQUESTS)) | sum_by(selected(m.LLM_UP)) * 0,
            Text("requests stalled", "滞留的请求"),
        ),
        requires=(Requires.ENGINE,),
        threshold=ANY_CRITICAL,
        value_mappings=NONE_IS_GOOD,
        width=6,
        height=3,
    )


def _firing(severity: str) -> Expr:
    """Return the number of firing alerts of a severity; 0 where Prometheus has rules and none fires."""
    firing = select(
        ALERTS, alertstate="firing", severity=severity, job=regex("$job|"), instance=regex("$instance|")
    )  # fmt: skip
    return count_by(firing) | count_by(select(ALERTS)) * 0


def _alerts() -> Panel:
    return stat(
        Text("Alerts firing", "触发中的告警"),
        Text(
            "Firing critical and warning alerts of the selected nodes, and those without a node. 'no alert "
            "fires' in grey: Prometheus has no rules.",
            "当前触发的 critical 与 warning 告警，含所选节点及不属于任何节点的。灰色“无告警”表示 Prometheus 没有任何规则。",
        ),
        series(lambda: _firing("critical"), Text("critical", "紧急"), threshold=ANY_CRITICAL),
        series(lambda: _firing("warning"), Text("warning", "警告")),
        requires=(Requires.RULES,),
        threshold=ANY_WARNING,
        value_mappings=NONE_IS_GOOD,
        width=6,
        height=3,
    )


def status() -> Row:
    """Return the row."""
    return Row(
        title=Text("Current status", "当前状态"),
        panels=(_exporters(), _gpus(), _frozen(), _alerts()),
    )
