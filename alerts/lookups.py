"""Sentences of a description whose values are queried when the alert fires: the XID of a lost GPU, a replica's queue.

Prometheus evaluates the query while it expands the annotation.  A query without a result leaves the sentence out, so
that a description never shows an empty value.
"""

from __future__ import annotations

import re

from alerts.recordings import NODE
from exporter.catalog import metrics as m
from exporter.model.text import Text
from exporter.promql import Expr, aggregate, and_on, binary, bottomk, label_replace, over_time, select, since, topk

_BOUND = re.compile(r'"@([a-z_]+)@"')
_VALUE = re.compile(r"\[value (humanize\w*)\]")
_LABEL = re.compile(r"\[label ([a-z_]+)\]")
_REPLICA = ("job", "instance", "replica")
_GPU = ("job", "instance", "uuid")
_BACKEND = (*NODE, "gateway", "kind", "pool", "backend")


def bound(*labels: str) -> dict[str, str]:
    """Return matchers that take their values from the alert's labels of the same names."""
    return {label: f"@{label}@" for label in labels}


def lookup(query: Expr, en: str, zh: str) -> Text:
    """Return a sentence with a leading space in English, shown when the query has a result.

    ``[value humanize]`` and ``[label NAME]`` stand for the value and a label of the first series.
    """
    text = str(query)
    labels = " ".join(f"$labels.{label}" for label in _BOUND.findall(text))
    form = _BOUND.sub("%q", text)
    start = f"{{{{ with printf `{form}` {labels} | query }}}}"
    return Text(f"{start} {_filled(en)}{{{{ end }}}}", f"{start}{_filled(zh)}{{{{ end }}}}")


def _filled(sentence: str) -> str:
    sentence = _VALUE.sub(r"{{ . | first | value | \1 }}", sentence)
    return _LABEL.sub(r'{{ . | first | label "\1" }}', sentence)


def _gateway_share() -> Expr:
    backends = aggregate("max", select(m.GATEWAY_BACKEND_REPLICA_INFO, **bound(*_REPLICA)), by=_BACKEND)
    share = select(m.GATEWAY_REQUEST_SHARE_RATIO, window="1m", **bound("job"))
    return topk(1, and_on(share, backends, on=_BACKEND) > 0)


def _lost_gpu() -> Expr:
    members = over_time("max", select(m.GPU_REPLICA_INFO, **bound(*_REPLICA)), "15m")
    return and_on(select(m.GPU_UP, **bound("job", "instance")).equals(0), members, on=(*NODE, "uuid"))


def _newest_xid() -> Expr:
    newest = since(aggregate("max", select(m.GPU_XID_LAST_TIMESTAMP_SECONDS, **bound(*_GPU)), without=("source",)))
    by_age = binary(
        "*", select(m.GPU_XID_ACTION_INFO, **bound(*_GPU)), newest < 3600, on=("uuid", "xid"), group_left=()
    )
    return bottomk(1, by_age)


def _engine_down_reason() -> Expr:
    down = select(m.SHARDWATCH_SOURCE_DOWN_INFO, **bound("job", "instance"))
    by_replica = label_replace(down, "replica", "$1", "source", "engine:(.+)")
    return and_on(by_replica, select(m.LLM_UP, **bound(*_REPLICA)), on=_REPLICA)


XID_ADVICE = lookup(
    aggregate("max", select(m.GPU_XID_ACTION_INFO, **bound(*_GPU, "xid")), by=("meaning", "action")),
    "Meaning: [label meaning]; recommended action: [label action].",
    "含义：[label meaning]；建议操作：[label action]。",
)
XID = lookup(
    _newest_xid(),
    "XID [label xid]: [label meaning]; recommended action: [label action].",
    "XID [label xid]：[label meaning]；建议操作：[label action]。",
)
RUNNING = lookup(
    aggregate("sum", select(m.LLM_REQUESTS_RUNNING, **bound(*_REPLICA)), by=("replica",)),
    "Requests running: [value humanize].",
    "运行中的请求：[value humanize]。",
)
WAITING = lookup(
    aggregate("sum", select(m.LLM_REQUESTS_WAITING, **bound(*_REPLICA)), by=("replica",)),
    "Requests waiting: [value humanize].",
    "排队的请求：[value humanize]。",
)
FROZEN = lookup(
    select(m.LLM_FROZEN, **bound(*_REPLICA)).equals(1),
    "The replica is frozen: it has requests and makes no progress.",
    "该副本已冻结：有请求但没有任何进展。",
)
LOST_GPU = lookup(_lost_gpu(), "Its GPU [label gpu] is lost.", "其 [label gpu] 号卡已掉卡。")
GATEWAY_SHARE = lookup(
    _gateway_share(),
    "Gateway [label gateway] still sends it [value humanizePercentage] of the requests of pool [label pool].",
    "网关 [label gateway] 仍把后端池 [label pool] [value humanizePercentage] 的请求发给它。",
)
SLOWDOWN = lookup(
    select(m.GPU_STRAGGLER_SLOWDOWN_RATIO, **bound(*_GPU, "replica")),
    "It needs [value humanize] times as long as its peers for the same work.",
    "完成同样的工作，耗时是同组其他卡的 [value humanize] 倍。",
)
TEMPERATURE = lookup(
    select(m.GPU_TEMPERATURE_CELSIUS, sensor="gpu", **bound(*_GPU)),
    "Current temperature: [value humanize] °C.",
    "当前温度 [value humanize] °C。",
)
SLOWEST_PATH = lookup(
    select(m.LLM_CARD_PATH_INFO, **bound(*_REPLICA)),
    "Slowest path between its GPUs: [label path].",
    "卡间最慢路径：[label path]。",
)
BUDGET_LASTS = Text(  # of 30 days, in seconds
    "{{ with printf `2592000 / %f` $value | query }} At this rate a full error budget lasts "
    "{{ . | first | value | humanizeDuration }}.{{ end }}",
    "{{ with printf `2592000 / %f` $value | query }}按此速率，完整的错误预算将在 "
    "{{ . | first | value | humanizeDuration }} 内耗尽。{{ end }}",
)
ENGINE_DOWN_REASON = lookup(_engine_down_reason(), "Reason: [label reason].", "原因：[label reason]。")
DRIVER_REASON = lookup(
    select(m.SHARDWATCH_SOURCE_DOWN_INFO, source="driver", **bound("job", "instance")),
    "Reason: [label reason].",
    "原因：[label reason]。",
)
