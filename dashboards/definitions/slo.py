"""What users were promised, and how much of it they get: a part of the board Fleet."""

from __future__ import annotations

from functools import partial

from alerts import panel_ids as ids
from alerts.text import Text
from dashboards.no_data_text import Requires
from dashboards.panels import NumberFormat, Panel, series, stat, time_series
from dashboards.thresholds import BURN_RATE, THRESHOLDS, attainment, burn_rate, has_slo, slo_threshold
from dashboards.variables import EXPORTER_WINDOW, RANGE, selected
from exporter.catalog import metrics as m
from exporter.promql import max_by

TRAFFIC = (Requires.TRAFFIC,)


def _attainment(kind: str, title: Text, description: Text) -> Panel:
    return stat(
        title, description, series(lambda: attainment(kind, window=RANGE), Text("within target", "达标")),
        requires=TRAFFIC, threshold=slo_threshold(kind), width=4, height=5, decimals=1,
    )  # fmt: skip


_ABOUT: dict[str, tuple[Text, Text, Text]] = {
    "first_token": (
        Text("{{model}} first token", "{{model}} 首 token"),
        Text("TTFT within target", "首 token 达标率"),
        Text(
            "Share of requests whose first token came within the target of the model's class, in the chosen "
            "time; seconds alone would be noise. Below the promise users wait; red is where the alerts page.",
            "首 token 在模型所属等级目标内到达的请求占比（所选时间内）。低于承诺即用户在等；红色对应告警的紧急线。",
        ),
    ),
    "token": (
        Text("{{model}} token gap", "{{model}} token 间隔"),
        Text("Token gaps within target", "token 间隔达标率"),
        Text(
            "Share of the times between tokens within the target of the model's class, in the chosen time. Low: answers "
            "stutter.",
            "所选时间内 token 间隔达标的占比。偏低：回答卡顿。",
        ),
    ),
}  # fmt: skip
_KINDS = tuple(kind for kind in _ABOUT if has_slo(kind))  # to any class of models; of no other can any be kept
_BY_MODEL: tuple[Panel, ...] = (
    time_series(
        Text("Promises kept, by model", "承诺达成率（按模型）"),
        Text(
            "Share of requests within target by model: first token and time between tokens. The distance to 100 % "
            "is the error budget being burnt. A drop of one model only is its replicas; of all, the gateway or "
            "the nodes.",
            "按模型的达标请求占比：首 token 与 token 间隔。距 100 % 的差即正在消耗的错误预算。只有一个模型下降查其副本；全部下降查网关或节点。",
        ),
        *(series(partial(attainment, kind, "model"), _ABOUT[kind][0]) for kind in _KINDS),
        requires=TRAFFIC, max_value=1, width=12, height=5,
    ),
) if _KINDS else ()  # fmt: skip
SLO: tuple[Panel, ...] = (
    *(_attainment(kind, *_ABOUT[kind][1:]) for kind in _KINDS),
    stat(
        Text("Failed requests", "失败请求占比"),
        Text(
            "Failed over finished requests of 5 minutes, the worst replica. Server and engine errors; clients' "
            "mistakes do not count.",
            "5 分钟内失败请求占完成请求的比例，取最差副本。只计服务端与引擎错误，不含客户端错误。",
        ),
        series(lambda: max_by(selected(m.LLM_ERROR_RATIO, window=EXPORTER_WINDOW)), Text("worst replica", "最差副本")),
        requires=TRAFFIC, threshold=THRESHOLDS.error_ratio, width=4, height=5, decimals=1,
    ),
    *_BY_MODEL,
    time_series(
        Text("Error budget burnt, by model and promise", "错误预算消耗速度（按模型与承诺）"),
        Text(
            "How many times faster than allowed the error budget is burnt: 1 uses it up exactly by the end of the 30 "
            "days; at the red line the alerts page. Needs the recording rules of the alerts.",
            "错误预算消耗速度的倍数：1 恰好在 30 天末用完；红线处告警呼叫值班。需要告警附带的记录规则。",
        ),
        series(lambda: selected(burn_rate("5m")) >= 0, Text("{{model}} {{objective}} 5m", "{{model}} {{objective}} 5m"), number_format=NumberFormat.FACTOR),
        series(lambda: selected(burn_rate("1h")) >= 0, Text("{{model}} {{objective}} 1h", "{{model}} {{objective}} 1h"), number_format=NumberFormat.FACTOR),
        requires=(Requires.RULES, Requires.TRAFFIC), threshold=BURN_RATE, width=24, height=6, panel_id=ids.FLEET_OBJECTIVES,
    ),
)  # fmt: skip
