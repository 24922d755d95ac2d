"""SLO attainment and error budget; part of Fleet."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from msgspec import Struct

from alerts import panel_ids as ids
from dashboards.no_data_text import Requires
from dashboards.panels import NumberFormat, Panel, series, stat, time_series
from dashboards.thresholds import BURN_RATE, THRESHOLDS, attainment, burn_rate, has_slo, slo_threshold
from dashboards.variables import EXPORTER_WINDOW, RANGE, selected
from exporter.catalog import metrics as m
from exporter.model.text import Text
from exporter.promql import max_by

TRAFFIC = (Requires.TRAFFIC,)


class LatencyObjective(Struct, frozen=True, kw_only=True):
    """What the panels say of one latency objective; ``legend`` names a model's line."""

    legend: Text
    title: Text
    description: Text


def _attainment(kind: str) -> Panel:
    objective = _OBJECTIVES[kind]
    return stat(
        objective.title, objective.description,
        series(lambda: attainment(kind, window=RANGE), Text("within target", "达标")),
        requires=TRAFFIC, threshold=slo_threshold(kind), width=4, height=5, decimals=1,
    )  # fmt: skip


_OBJECTIVES: Mapping[str, LatencyObjective] = {
    "first_token": LatencyObjective(
        legend=Text("{{model}} TTFT", "{{model}} TTFT"),
        title=Text("TTFT SLO attainment", "TTFT SLO 达成率"),
        description=Text(
            "Share of requests whose TTFT is within the target of the model's class, in the selected time range. "
            "Red is the level at which the alerts page.",
            "TTFT 在模型所属等级目标内的请求占比（所选时间内）。红色对应紧急告警的水平。",
        ),
    ),
    "token": LatencyObjective(
        legend=Text("{{model}} ITL", "{{model}} ITL"),
        title=Text("ITL SLO attainment", "ITL SLO 达成率"),
        description=Text(
            "Share of inter-token latencies within the target of the model's class, in the selected time range.",
            "token 间隔（ITL）在目标内的占比（所选时间内）。偏低：回答卡顿。",
        ),
    ),
}
_KINDS = tuple(kind for kind in _OBJECTIVES if has_slo(kind))
_BY_MODEL: tuple[Panel, ...] = (
    time_series(
        Text("SLO attainment by model", "SLO 达成率（按模型）"),
        Text(
            "Share of requests within target by model: TTFT and ITL. A drop of one model: its replicas; of all: "
            "the gateway or the nodes.",
            "按模型的达标占比：TTFT 与 ITL。只有一个模型下降查其副本；全部下降查网关或节点。",
        ),
        *(series(partial(attainment, kind, "model"), _OBJECTIVES[kind].legend) for kind in _KINDS),
        requires=TRAFFIC, max_value=1, width=12, height=5,
    ),
) if _KINDS else ()  # fmt: skip
SLO: tuple[Panel, ...] = (
    *(_attainment(kind) for kind in _KINDS),
    stat(
        Text("Error ratio", "错误率"),
        Text(
            "Failed over finished requests of 5 minutes, the worst replica: server and engine errors, without "
            "client errors.",
            "5 分钟内失败请求占完成请求的比例，取最差副本。只计服务端与引擎错误，不含客户端错误。",
        ),
        series(lambda: max_by(selected(m.LLM_ERROR_RATIO, window=EXPORTER_WINDOW)), Text("worst replica", "最差副本")),
        requires=TRAFFIC, threshold=THRESHOLDS.error_ratio, width=4, height=5, decimals=1,
    ),
    *_BY_MODEL,
    time_series(
        Text("Burn rate by model and objective", "错误预算消耗速率（按模型与目标）"),
        Text(
            "Burn rate of the error budget: 1 uses it up exactly within 30 days; at the red line the alerts "
            "page. Needs the recording rules of the alerts.",
            "错误预算消耗速率：1 恰好在 30 天末用完；红线处触发紧急告警。需要告警附带的记录规则。",
        ),
        series(lambda: selected(burn_rate("5m")) >= 0, Text("{{model}} {{objective}} 5m", "{{model}} {{objective}} 5m"), number_format=NumberFormat.FACTOR),
        series(lambda: selected(burn_rate("1h")) >= 0, Text("{{model}} {{objective}} 1h", "{{model}} {{objective}} 1h"), number_format=NumberFormat.FACTOR),
        requires=(Requires.RULES, Requires.TRAFFIC), threshold=BURN_RATE, width=18, height=6, panel_id=ids.FLEET_OBJECTIVES,
    ),
)  # fmt: skip
