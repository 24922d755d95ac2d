"""Sentences of a description whose values are queried when the alert fires: the XID of a lost GPU, a replica's queue.

Prometheus evaluates the query while it expands the annotation.  A query without a result leaves the sentence out, so
that a description never shows an empty value.
"""

from __future__ import annotations

import re

from alerts import words
from alerts.recordings import NODE, RECENT_SECONDS, WINDOW
from exporter.catalog import metrics as m
from exporter.catalog.spec import Metric
from exporter.model.text import Language, Text
from exporter.model.xid_catalog import Class
from exporter.promql import (
    Expr,
    aggregate,
    and_on,
    binary,
    bottomk,
    label_replace,
    min_by,
    over_time,
    select,
    since,
    topk,
    unless,
    without_value,
)

_BOUND = re.compile(r'"@([a-z_]+)@"')
_VALUE = re.compile(r"\[value (humanize\w*)\]")
_LABEL = re.compile(r"\[label ([a-z_]+)\]")
_WORD = re.compile(r"\[(action|verdict) ([a-z_]+)\]")
_REPLICA = ("job", "instance", "replica")
_GPU = ("job", "instance", "uuid")
_BACKEND = (*NODE, "gateway", "kind", "pool", "backend")


def bound(*labels: str) -> dict[str, str]:
    """Return matchers that take their values from the alert's labels of the same names."""
    return {label: f"@{label}@" for label in labels}


def lookup(query: Expr, en: str, zh: str) -> Text:
    """Return a sentence with a leading space in English, shown when the query has a result.

    ``[value humanize]`` and ``[label NAME]`` stand for the value and a label of the first series; ``[action NAME]``,
    ``[verdict NAME]`` and ``[meaning]`` for the words of ``alerts.words``.
    """
    text = str(query)
    labels = " ".join(f"$labels.{label}" for label in _BOUND.findall(text))
    form = _BOUND.sub("%q", text)
    start = f"{{{{ with printf `{form}` {labels} | query }}}}"
    english, chinese = _filled(en, Language.ENGLISH), _filled(zh, Language.CHINESE)
    return Text(f"{start} {english}{{{{ end }}}}", f"{start}{chinese}{{{{ end }}}}")


def _filled(sentence: str, language: Language) -> str:
    def word(found: re.Match[str]) -> str:
        known = words.ACTIONS if found[1] == "action" else words.VERDICTS
        return f'{{{{ with . | first | label "{found[2]}" }}}}{words.chosen(known, language)}{{{{ end }}}}'

    sentence = _WORD.sub(word, sentence).replace("[meaning]", words.meaning(language))
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

    def by_age(**matchers: str) -> Expr:
        known = select(m.GPU_XID_ACTION_INFO, **bound(*_GPU), **matchers)
        return binary("*", known, newest < RECENT_SECONDS, on=("uuid", "xid"), group_left=())

    # A lost GPU reports several XIDs within a second; the one that asks for a reboot says what to do.
    return bottomk(1, by_age(**{"class": Class.RESET_NODE.value}) - RECENT_SECONDS | by_age())


def _reset_xid() -> Expr:
    """Return the newest XID that asks for a reset of the GPU, unless another one asks for a reboot."""

    def recent(class_: Class) -> Expr:
        known = select(m.GPU_XID_ACTION_INFO, **bound(*_GPU), **{"class": class_.value})
        newest = since(
            aggregate("max", select(m.GPU_XID_LAST_TIMESTAMP_SECONDS, **bound(*_GPU)), without=("source",))
        )
        return binary("*", known, newest < RECENT_SECONDS, on=("uuid", "xid"), group_left=())

    return bottomk(1, unless(recent(Class.RESET_CARD), recent(Class.RESET_NODE), on=("uuid",)))


def _peer_power_limit() -> Expr:
    members = select(m.GPU_REPLICA_INFO, **bound(*_REPLICA))
    peers = and_on(select(m.GPU_POWER_LIMIT_WATTS, **bound("job", "instance")), members, on=(*NODE, "uuid"))
    return aggregate("max", peers, by=NODE)


def _full_gpu() -> Expr:
    used = select(m.GPU_MEMORY_USED_BYTES, **bound("job", "instance")) / select(m.GPU_MEMORY_TOTAL_BYTES)
    members = over_time("max", select(m.GPU_REPLICA_INFO, **bound(*_REPLICA)), "15m")
    return topk(1, and_on(used > 0.9, members, on=(*NODE, "uuid")))


def _peer_memory() -> Expr:
    used = select(m.GPU_MEMORY_USED_BYTES, **bound("job", "instance"), uuid=without_value("@uuid@"))
    members = select(m.GPU_REPLICA_INFO, **bound(*_REPLICA))
    return topk(1, and_on(used / select(m.GPU_MEMORY_TOTAL_BYTES), members, on=(*NODE, "uuid")))


def _latency() -> Expr:
    return select(
        m.LLM_LATENCY_QUANTILE_SECONDS, stage="inter_token", quantile="0.5", window=WINDOW, **bound(*_REPLICA)
    )


def _sibling_latency() -> Expr:
    mine = aggregate("max", select(m.LLM_ENGINE_INFO, **bound(*_REPLICA)), by=("job", "model"))
    others = select(
        m.LLM_LATENCY_QUANTILE_SECONDS,
        stage="inter_token", quantile="0.5", window=WINDOW, **bound("job"), replica=without_value("@replica@"),
    )  # fmt: skip
    return bottomk(1, and_on(others, mine, on=("job", "model")))


def _latency_ratio() -> Expr:
    siblings = min_by(_sibling_latency(), "job", "model")
    return binary("/", _latency(), siblings, on=("job", "model"), group_left=()) > 1.05


def _owned(**gpus: str) -> Expr:
    """Return the memory that each named owner holds, by GPU; of a lost GPU as it was a quarter of an hour ago at most."""
    return over_time("last", select(m.GPU_OWNER_MEMORY_BYTES, owner=without_value(""), **gpus), "15m")


def _foreign_owner() -> Expr:
    """Return the owner that is on the GPU and on no other GPU of its replica."""
    here = select(m.GPU_OWNER_MEMORY_BYTES, owner=without_value(""), **bound(*_GPU))
    others = select(m.GPU_OWNER_MEMORY_BYTES, uuid=without_value("@uuid@"), **bound("job", "instance"))
    peers = and_on(others, select(m.GPU_REPLICA_INFO, **bound(*_REPLICA)), on=(*NODE, "uuid"))
    return topk(1, unless(and_on(here, peers, on=NODE), peers, on=(*NODE, "owner")))


def _owner_of_replica() -> Expr:
    members = over_time("max", select(m.GPU_REPLICA_INFO, **bound(*_REPLICA)), "15m")
    return topk(1, and_on(_owned(**bound("job", "instance")), members, on=(*NODE, "uuid")))


def _engine_versions() -> Expr:
    by_version = aggregate(
        "count", select(m.LLM_ENGINE_INFO, **bound("job", "model")), by=("job", "model", "version")
    )
    return aggregate("count", by_version, by=("job", "model")) > 1


def _engine_down_reason() -> Expr:
    down = select(m.SHARDWATCH_SOURCE_DOWN_INFO, **bound("job", "instance"))
    by_replica = label_replace(down, "replica", "$1", "source", "engine:(.+)")
    return and_on(by_replica, select(m.LLM_UP, **bound(*_REPLICA)), on=_REPLICA)


XID_ADVICE = lookup(
    aggregate("max", select(m.GPU_XID_ACTION_INFO, **bound(*_GPU, "xid")), by=("xid", "meaning", "action")),
    "Meaning: [meaning]; recommended action: [action action].",
    "含义：[meaning]；建议操作：[action action]。",
)
XID = lookup(
    _newest_xid(),
    "XID [label xid]: [meaning]; recommended action: [action action].",
    "XID [label xid]：[meaning]；建议操作：[action action]。",
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
VERDICT = lookup(
    select(m.LLM_VERDICT, state=without_value("serve"), **bound(*_REPLICA)).equals(1),
    "Verdict: [verdict state] ([label reason]).",
    "判定：[verdict state]（[label reason]）。",
)
FULL_GPU = lookup(
    _full_gpu(),
    "Its GPU [label gpu] has [value humanizePercentage] of its memory in use.",
    "其 [label gpu] 号卡显存已用 [value humanizePercentage]。",
)
PEER_MEMORY = lookup(
    _peer_memory(),
    "The next of the replica's GPUs is at [value humanizePercentage].",
    "同副本其他卡最高 [value humanizePercentage]。",
)
OWNER = lookup(topk(1, _owned(**bound(*_GPU))), "Owner: [label owner].", "使用者：[label owner]。")
FOREIGN_OWNER = lookup(
    _foreign_owner(),
    "Only on this GPU of the replica: [label owner], with [value humanize1024]B.",
    "副本各卡中仅此卡上有：[label owner]，占用 [value humanize1024]B。",
)
REPLICA_OWNER = lookup(_owner_of_replica(), "Owner: [label owner].", "使用者：[label owner]。")
OWNER_MEMORY = lookup(
    select(m.GPU_OWNER_MEMORY_BYTES, **bound(*_GPU, "owner")),
    "This owner holds [value humanize1024]B of the GPU's memory.",
    "该使用者占用此卡显存 [value humanize1024]B。",
)
RESET_FIRST = lookup(
    _reset_xid(),
    "XID [label xid] recommends a reset of the GPU: try it before the reboot.",
    "XID [label xid] 建议复位该卡：重启之前先尝试复位。",
)
_OWN_POWER_LIMIT = select(m.GPU_POWER_LIMIT_WATTS, **bound(*_GPU))
_LOWER_POWER_LIMIT = binary("<", _OWN_POWER_LIMIT, _peer_power_limit(), on=NODE, group_left=())
POWER_LIMIT = lookup(
    _LOWER_POWER_LIMIT, "Power limit: [value humanize] W.", "功率上限 [value humanize] W。"
) + lookup(
    binary(">", _peer_power_limit(), aggregate("max", _OWN_POWER_LIMIT, by=NODE), on=NODE),
    "The highest of its group: [value humanize] W.",
    "组内最高 [value humanize] W。",
)
_PCIE_WIDTH, _PCIE_WIDTH_MAX = (
    aggregate("max", select(width, **bound(*_GPU)), by=_GPU)
    for width in (m.GPU_PCIE_LINK_WIDTH, m.GPU_PCIE_LINK_WIDTH_MAX)
)
PCIE_WIDTH = lookup(_PCIE_WIDTH < _PCIE_WIDTH_MAX, "PCIe x[value humanize]", "PCIe x[value humanize]") + lookup(
    _PCIE_WIDTH_MAX > _PCIE_WIDTH, "of x[value humanize].", "（最大 x[value humanize]）。"
)


NODE_POWER_LIMIT = lookup(
    aggregate("max", select(m.GPU_POWER_LIMIT_WATTS, **bound(*NODE)), by=NODE),
    "Power limit: [value humanize] W.",
    "功率上限 [value humanize] W。",
) + lookup(
    aggregate("max", select(m.GPU_POWER_LIMIT_SETTING_WATTS, limit="default", **bound(*NODE)), by=NODE),
    "Default: [value humanize] W.",
    "默认值 [value humanize] W。",
)
NODE_SM_CLOCK = lookup(
    aggregate("min", select(m.GPU_CLOCK_HERTZ, domain="sm", **bound(*NODE)), by=NODE),
    "Lowest SM clock: [value humanize]Hz.",
    "最低 SM 时钟 [value humanize]Hz。",
)
TTFT = lookup(
    select(
        m.LLM_LATENCY_QUANTILE_SECONDS, stage="time_to_first_token", quantile="0.5", window=WINDOW, **bound(*_REPLICA)
    ),
    "TTFT p50 is [value humanizeDuration].",
    "TTFT p50 为 [value humanizeDuration]。",
)


def rank_requests(threshold: float) -> Text:
    """Return how uneven the ranks' running and waiting requests are, each where it is above the threshold."""

    def ratio(signal: str) -> Expr:
        known = select(m.LLM_RANK_IMBALANCE_MAX_TO_MEAN_RATIO, signal=signal, **bound(*_REPLICA))
        return over_time("avg", known, "5m") > threshold

    def busiest(load: Metric, signal: str) -> Expr:
        by_rank = aggregate("sum", select(load, **bound(*_REPLICA)), by=(*_REPLICA, "rank"))
        return topk(1, and_on(by_rank > 0, ratio(signal), on=_REPLICA))

    return (
        lookup(
            ratio("requests_running"),
            "The busiest runs [value humanize] times the mean number of requests.",
            "最忙的 rank 运行的请求数是均值的 [value humanize] 倍。",
        )
        + lookup(
            ratio("requests_waiting"),
            "The longest queue is [value humanize] times the mean queue.",
            "最长的排队是均值的 [value humanize] 倍。",
        )
        + lookup(
            busiest(m.LLM_REQUESTS_RUNNING, "requests_running"),
            "Rank [label rank] runs most: [value humanize] requests.",
            "rank [label rank] 运行最多：[value humanize] 个请求。",
        )
        + lookup(
            busiest(m.LLM_REQUESTS_WAITING, "requests_waiting"),
            "Rank [label rank] has the longest queue: [value humanize] requests.",
            "rank [label rank] 排队最长：[value humanize] 个请求。",
        )
    )


ITL = lookup(
    _latency(),
    "ITL p50 is [value humanizeDuration].",
    "ITL p50 为 [value humanizeDuration]。",
)
SIBLING_ITL = lookup(
    _sibling_latency(),
    "Another replica of the model has [value humanizeDuration].",
    "同一模型的其他副本为 [value humanizeDuration]。",
)
ITL_RATIO = lookup(
    _latency_ratio(),
    "This replica takes [value humanize] times as long per token.",
    "每个 token 的耗时是后者的 [value humanize] 倍。",
)
SM_CLOCK = lookup(
    select(m.GPU_CLOCK_HERTZ, domain="sm", **bound(*_GPU)),
    "SM clock: [value humanize]Hz.",
    "SM 时钟 [value humanize]Hz。",
)
ENGINE_VERSIONS = lookup(
    _engine_versions(),
    "Engine versions differ as well ([value humanize]).",
    "引擎版本也不一致（[value humanize] 个）。",
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
