"""The head of every board: is anything lost, and does somebody still measure?  Six figures, the same everywhere."""

from __future__ import annotations

from alerts.panel_ids import DashboardUid
from alerts.text import Text
from dashboards.dashboard import Row
from dashboards.no_data_text import Requires
from dashboards.panels import DrillDown, Panel, ValueMapping, series, stat
from dashboards.panels.panel import Colour
from dashboards.thresholds import ANY_CRITICAL, ANY_WARNING
from dashboards.variables import selected, targets
from exporter.catalog import metrics as m
from exporter.promql import ALERTS, count_by, regex, select, sum_by, without_value

NONE_IS_GOOD = (ValueMapping(0, Text("none", "无"), Colour.GOOD),)
UP = (ValueMapping(0, Text("down", "停"), Colour.CRITICAL), ValueMapping(1, Text("up", "正常"), Colour.GOOD))
YES_IS_BAD = (ValueMapping(0, Text("no", "否"), Colour.GOOD), ValueMapping(1, Text("yes", "是"), Colour.CRITICAL))

REPLICA_STATES = (
    ValueMapping(0, Text("down", "停"), Colour.CRITICAL),
    ValueMapping(1, Text("up", "正常"), Colour.GOOD),
    ValueMapping(2, Text("frozen", "冻结"), Colour.WARNING),
    ValueMapping(3, Text("rank stands still", "rank 停滞"), Colour.WARNING),
    ValueMapping(4, Text("certificate ends soon", "证书将到期"), Colour.WARNING),
)
STRAGGLER = (
    ValueMapping(1, Text("others wait for it", "大家在等它"), Colour.CRITICAL),
    ValueMapping(10, Text("cannot be compared", "无法比较"), Colour.OFF),
    ValueMapping(11, Text("compared", "已比较"), Colour.GOOD),
)

TO_NODE = DrillDown(DashboardUid.NODE, ("instance",))
TO_GPU = DrillDown(DashboardUid.GPU_HEALTH, ("instance", "gpu"))
TO_REPLICA = DrillDown(DashboardUid.REPLICA, ("instance", "replica"))  # many nodes call a replica alike


def _exporters() -> Panel:
    return stat(
        Text("Exporters dead", "失联的采集器"),
        Text(
            "Daemons that Prometheus cannot reach (up), of those seen within a day. While one is dead, everything of "
            "its node is missing on all boards: absent, not zero.",
            "Prometheus 无法访问的守护进程数（up），仅计一天内出现过的。若有失联，该节点在所有看板上都没有数据：是缺失，不是零。",
        ),
        series(lambda: sum_by(1 - targets()), Text("dead", "失联")),
        threshold=ANY_CRITICAL,
        value_mappings=NONE_IS_GOOD,
    )


def _cards() -> Panel:
    return stat(
        Text("Cards lost", "丢失的卡"),
        Text(
            "Cards that do not answer (gpu_up is 0): lost, hung or in error. Its replica usually freezes with it. "
            "Look at Card health.",
            "不应答的卡（gpu_up 为 0）：丢失、卡死或出错。所属副本通常随之冻结。请看“卡健康”。",
        ),
        series(lambda: sum_by(1 - selected(m.GPU_UP)), Text("lost", "丢失")),
        threshold=ANY_CRITICAL,
        value_mappings=NONE_IS_GOOD,
    )


def _engines() -> Panel:
    return stat(
        Text("Engines down", "停止的引擎"),
        Text(
            "Engines whose metrics page cannot be read or understood (llm_up is 0).",
            "指标页面无法读取或解析的引擎（llm_up 为 0）。",
        ),
        series(lambda: sum_by(1 - selected(m.LLM_UP)), Text("down", "停止")),
        requires=(Requires.ENGINE,),
        threshold=ANY_CRITICAL,
        value_mappings=NONE_IS_GOOD,
    )


def _frozen() -> Panel:
    return stat(
        Text("Replicas frozen", "冻结的副本"),
        Text(
            "Requests run and no counter has moved for 20 seconds (llm_frozen): the engine hangs, often in a "
            "collective that waits for a card.",
            "有请求在运行，但 20 秒内没有任何计数器变化（llm_frozen）：引擎卡住，常见原因是集合通信在等某张卡。",
        ),
        series(lambda: sum_by(selected(m.LLM_FROZEN)) | sum_by(selected(m.LLM_UP)) * 0, Text("frozen", "冻结")),
        requires=(Requires.ENGINE,),
        threshold=ANY_CRITICAL,
        value_mappings=NONE_IS_GOOD,
    )


def _alerts() -> Panel:
    return stat(
        Text("Alerts firing", "触发中的告警"),
        Text(
            "Alerts of severity critical and warning that fire now, of the chosen nodes and of none. 'no alert fires' in grey means that "
            "Prometheus knows no rules at all: not even the one that always fires.",
            "当前触发的 critical 与 warning 告警，含所选节点及不属于任何节点的。灰色“无告警”表示 Prometheus 没有任何规则，连恒触发的那条也没有。",
        ),
        series(
            lambda: (
                count_by(
                    select(
                        ALERTS,
                        alertstate="firing",
                        severity=regex("critical|warning"),
                        job=regex("$job|"),
                        instance=regex("$instance|"),
                    )
                )
                | count_by(select(ALERTS)) * 0
            ),
            Text("firing", "触发"),
        ),
        requires=(Requires.RULES,),
        threshold=ANY_WARNING,
        value_mappings=NONE_IS_GOOD,
    )


def _missing() -> Panel:
    return stat(
        Text("Signals unreadable", "读不到的信号"),
        Text(
            "Signals of answering cards that could not be read although the card should have them "
            "(gpu_signal_missing_info; those that it does not support are not counted). Their figures are absent on the "
            "boards; Card health lists them with the reason.",
            "卡有应答、但读不到的信号数（gpu_signal_missing_info；不支持的不计）。相应数据在看板上缺失；“卡健康”列出原因。",
        ),
        series(
            lambda: (
                count_by(selected(m.GPU_SIGNAL_MISSING_INFO, reason=without_value("unsupported")))
                | count_by(selected(m.GPU_UP)) * 0
            ),
            Text("missing", "缺失"),
        ),
        threshold=ANY_WARNING,
        value_mappings=NONE_IS_GOOD,
    )


def status() -> Row:
    """Return the head row."""
    return Row(
        title=Text("Now: what is lost, and who still measures", "此刻：丢了什么，谁还在采集"),
        panels=(_exporters(), _cards(), _engines(), _frozen(), _alerts(), _missing()),
    )
