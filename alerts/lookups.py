"""The sentences of descriptions with queried values: the XID of a lost GPU, a replica's queue, who still sends to it."""

from __future__ import annotations

from alerts import recordings
from alerts.lookup import VALUE, bound, lookup
from alerts.recordings import NODE, RECENT_SECONDS, WINDOW
from exporter.catalog import metrics as m
from exporter.catalog.spec import Metric
from exporter.model.text import Text
from exporter.model.xid_catalog import Class
from exporter.promql import (
    Expr,
    aggregate,
    and_on,
    binary,
    bottomk,
    label_replace,
    max_by,
    over_time,
    regex,
    select,
    since,
    topk,
    unless,
    without_value,
)

_REPLICA = ("job", "instance", "replica")
_GPU = ("job", "instance", "uuid")
_PORT = (*NODE, "device", "port")
_BACKEND = (*NODE, "gateway", "kind", "pool", "backend")


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


def _lower_than_peers(metric: Metric, en: str, zh: str, **matchers: str) -> Text:
    """Return a figure of the GPU and the highest of its group, where the GPU's is clearly lower."""
    members = select(m.GPU_REPLICA_INFO, **bound(*_REPLICA))
    group = and_on(select(metric, **matchers, **bound("job", "instance")), members, on=(*NODE, "uuid"))
    own, highest = (aggregate("max", gpus, by=NODE) for gpus in (select(metric, **matchers, **bound(*_GPU)), group))
    form = VALUE.search(en)
    assert form is not None
    return lookup(binary("<", own, highest * 0.95, on=NODE), en, zh) + lookup(
        binary(">", highest, own / 0.95, on=NODE), f"The highest of its group: {form[0]}.", f"组内最高 {form[0]}。"
    )


def _while_thermal(expr: Expr) -> Expr:
    """Return a figure of the GPU if heat makes it a straggler."""
    return and_on(expr, select(m.GPU_STRAGGLER, cause="thermal", **bound(*_GPU)), on=_GPU)


def _down_port() -> Expr:
    """Return a port that is down, and the GPU of the replica that it is nearest to."""
    near = select(m.NIC_NEAREST_GPU_INFO, **bound("job", "instance"))
    mine = and_on(near, select(m.GPU_REPLICA_INFO, **bound(*_REPLICA)), on=(*NODE, "uuid"))
    down = select(m.NIC_PORT_DOWN, **bound("job", "instance")).equals(1)
    return topk(1, and_on(max_by(mine, *_PORT, "gpu"), down, on=_PORT))


def _near_port() -> Expr:
    """Return the GPU nearest to the port, and the replica that it serves."""
    near = max_by(select(m.NIC_NEAREST_GPU_INFO, **bound(*_PORT)), *NODE, "gpu", "uuid")
    owned = max_by(select(m.GPU_REPLICA_INFO, **bound("job", "instance")), *NODE, "uuid", "replica")
    return bottomk(1, binary("*", owned, near, on=(*NODE, "uuid"), group_left=("gpu",)))


def _full_gpu() -> Expr:
    used = select(m.GPU_MEMORY_USED_BYTES, **bound("job", "instance")) / select(m.GPU_MEMORY_TOTAL_BYTES)
    members = over_time("max", select(m.GPU_REPLICA_INFO, **bound(*_REPLICA)), "15m")
    return topk(1, and_on(used > 0.9, members, on=(*NODE, "uuid")))


def _peer_memory() -> Expr:
    used = select(m.GPU_MEMORY_USED_BYTES, **bound("job", "instance"), uuid=without_value("@uuid@"))
    members = select(m.GPU_REPLICA_INFO, **bound(*_REPLICA))
    return topk(1, and_on(used / select(m.GPU_MEMORY_TOTAL_BYTES), members, on=(*NODE, "uuid")))


def _latency() -> Expr:
    return select(recordings.ITL.known, **bound(*_REPLICA))


def _sibling_latency() -> Expr:
    mine = aggregate("max", select(m.LLM_ENGINE_INFO, **bound(*_REPLICA)), by=("job", "model"))
    others = select(recordings.ITL.known, **bound(*NODE), replica=without_value("@replica@"))
    return bottomk(1, and_on(others, mine, on=("job", "model")))


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


HEAD = lookup(
    topk(1, select(m.GPU_MULTI_NODE_REPLICA_INFO, role="head", replica_key="@replica@", **bound("job"))),
    "It works for [label replica], whose head is [label instance].",
    "该卡为 [label replica] 工作，其首节点是 [label instance]。",
)
XID_ADVICE = lookup(
    aggregate("max", select(m.GPU_XID_ACTION_INFO, **bound(*_GPU, "xid")), by=("xid", "meaning", "action")),
    "Meaning: [meaning]. Recommended action: [action action].",
    "含义：[meaning]。建议操作：[action action]。",
)
XID = lookup(
    _newest_xid(),
    "XID [label xid]: [meaning]. Recommended action: [action action].",
    "XID [label xid]：[meaning]。建议操作：[action action]。",
)
RESET_FIRST = lookup(
    _reset_xid(),
    "XID [label xid] recommends a reset of the GPU: try it before the reboot.",
    "XID [label xid] 建议复位该卡：重启之前先尝试复位。",
)
FROZEN = lookup(
    select(m.LLM_FROZEN, **bound(*_REPLICA)).equals(1),
    "[label replica] is frozen: it has requests and makes no progress.",
    "[label replica] 已冻结：有请求但没有任何进展。",
)
LOST_GPU = lookup(_lost_gpu(), "Its GPU [label gpu] is lost.", "其 [label gpu] 号卡已掉卡。")
DOWN_PORT = lookup(
    _down_port(),
    "Network port [label device]/[label port], near its GPU [label gpu], is down.",
    "其 [label gpu] 号卡邻近的网卡端口 [label device]/[label port] 已断开。",
)
FULL_GPU = lookup(
    _full_gpu(),
    "Its GPU [label gpu] has [value percent] of its memory in use.",
    "其 [label gpu] 号卡显存已用 [value percent]。",
)
PEER_MEMORY = lookup(
    _peer_memory(),
    "The next of the replica's GPUs is at [value percent].",
    "同副本其他卡最高 [value percent]。",
)

# ---------------------------------------------------------------------- what slows a GPU down

_SLOWDOWN = select(m.GPU_STRAGGLER_SLOWDOWN_RATIO, **bound(*_GPU, "replica"))
_LINK = select(m.GPU_STRAGGLER, cause=regex("pcie|nvlink"), **bound(*_GPU))  # all GPUs wait for it alike
SLOWDOWN = lookup(
    unless(_SLOWDOWN, _LINK, on=_GPU),
    "It needs [value number] times as long as its peers for the same work.",
    "完成同样的工作，耗时是同组其他卡的 [value number] 倍。",
) + lookup(
    and_on(_SLOWDOWN, _LINK, on=_GPU),
    "Estimated cost of its link: each step takes [value number] times as long.",
    "估算每步耗时 [value number] 倍。",
)
TEMPERATURE = lookup(
    select(m.GPU_TEMPERATURE_CELSIUS, sensor="gpu", **bound(*_GPU)),
    "Current temperature: [value count] °C.",
    "当前温度 [value count] °C。",
)
HOT = lookup(
    _while_thermal(select(m.GPU_TEMPERATURE_CELSIUS, sensor="gpu", **bound(*_GPU))),
    "Current temperature: [value count] °C.",
    "当前温度 [value count] °C。",
) + lookup(
    _while_thermal(select(m.GPU_TEMPERATURE_MARGIN_CELSIUS, **bound(*_GPU))),
    "Its slowdown temperature is [value count] °C higher.",
    "距降频温度 [value count] °C。",
)
SM_CLOCK = _lower_than_peers(
    m.GPU_CLOCK_HERTZ, "SM clock: [value megahertz].", "SM 时钟 [value megahertz]。", domain="sm"
)
POWER_LIMIT = _lower_than_peers(m.GPU_POWER_LIMIT_WATTS, "Power limit: [value watts].", "功率上限 [value watts]。")
_PCIE_WIDTH, _PCIE_WIDTH_MAX = (
    aggregate("max", select(width, **bound(*_GPU)), by=_GPU)
    for width in (m.GPU_PCIE_LINK_WIDTH, m.GPU_PCIE_LINK_WIDTH_MAX)
)
PCIE_WIDTH = lookup(_PCIE_WIDTH < _PCIE_WIDTH_MAX, "PCIe x[value count]", "PCIe x[value count]") + lookup(
    _PCIE_WIDTH_MAX > _PCIE_WIDTH, "of x[value count].", "（最大 x[value count]）。"
)
NODE_POWER_LIMIT = lookup(
    aggregate("max", select(m.GPU_POWER_LIMIT_WATTS, **bound(*NODE)), by=NODE),
    "Power limit: [value watts].",
    "功率上限 [value watts]。",
) + lookup(
    aggregate("max", select(m.GPU_POWER_LIMIT_SETTING_WATTS, limit="default", **bound(*NODE)), by=NODE),
    "Default: [value watts].",
    "默认值 [value watts]。",
)
NODE_SM_CLOCK = lookup(
    aggregate("min", select(m.GPU_CLOCK_HERTZ, domain="sm", **bound(*NODE)), by=NODE),
    "Lowest SM clock: [value megahertz].",
    "最低 SM 时钟 [value megahertz]。",
)
SLOWEST_PATH = lookup(
    select(m.LLM_CARD_PATH_INFO, **bound(*_REPLICA)),
    "Slowest path between its GPUs: [label path].",
    "卡间最慢路径：[label path]。",
)
SPREAD = lookup(
    over_time(
        "avg", select(m.GPU_UTILIZATION_SPREAD_RATIO, scope="replica", group="@replica@", **bound(*NODE)), "3m"
    ),
    "The most and the least utilised differ by [value points] percentage points.",
    "利用率最高与最低的卡相差 [value points] 个百分点。",
)
NEAREST_GPU = lookup(
    _near_port(),
    "Nearest GPU: [label gpu], of [label replica].",
    "最近的卡：[label gpu] 号卡，属于 [label replica]。",
)

# ---------------------------------------------------------------------- who is affected, and who sends to whom

ITL = lookup(
    select(m.LLM_LATENCY_QUANTILE_SECONDS, stage="inter_token", quantile="0.5", window=WINDOW, **bound(*_REPLICA)),
    "ITL p50: [value milliseconds].",
    "ITL p50：[value milliseconds]。",
)
MEAN_ITL = lookup(_latency(), "Mean ITL: [value milliseconds].", "平均 ITL：[value milliseconds]。")
SIBLING_ITL = lookup(
    _sibling_latency(),
    "Another replica of the model: [value milliseconds].",
    "其他副本：[value milliseconds]。",
)
TTFT = lookup(
    select(
        m.LLM_LATENCY_QUANTILE_SECONDS,
        stage="time_to_first_token",
        quantile="0.99",
        window=WINDOW,
        **bound(*_REPLICA),
    ),
    "TTFT p99: [value seconds].",
    "TTFT p99：[value seconds]。",
)
RUNNING = lookup(
    aggregate("sum", select(m.LLM_REQUESTS_RUNNING, **bound(*_REPLICA)), by=("replica",)),
    "Requests running: [value count].",
    "运行中的请求：[value count]。",
)
WAITING = lookup(
    aggregate("sum", select(m.LLM_REQUESTS_WAITING, **bound(*_REPLICA)), by=("replica",)),
    "Requests waiting: [value count].",
    "排队的请求：[value count]。",
)
GATEWAY_SHARE = lookup(
    _gateway_share(),
    "Gateway [label gateway] still sends it [value percent] of the requests of pool [label pool].",
    "网关 [label gateway] 仍把后端池 [label pool] [value percent] 的请求发给它。",
)
OWNER = lookup(topk(1, _owned(**bound(*_GPU))), "Owner: [label owner].", "使用者：[label owner]。")
FOREIGN_OWNER = lookup(
    _foreign_owner(),
    "Only on this GPU of the replica: [label owner], which holds [value bytes].",
    "副本各卡中仅此卡上有 [label owner]，占用 [value bytes]。",
)
REPLICA_OWNER = lookup(_owner_of_replica(), "Owner: [label owner].", "使用者：[label owner]。")
OWNER_MEMORY = lookup(
    select(m.GPU_OWNER_MEMORY_BYTES, **bound(*_GPU, "owner")),
    "This owner holds [value bytes] of the GPU's memory.",
    "该使用者占用此卡显存 [value bytes]。",
)
VERDICT = lookup(
    select(m.LLM_VERDICT, **bound(*_REPLICA)).equals(1),
    "Verdict: [verdict state][reason reason].",
    "判定：[verdict state][reason reason]。",
)
REPLICA = RUNNING + WAITING + GATEWAY_SHARE + REPLICA_OWNER + VERDICT  # how every message about a replica ends
LATENCY = TTFT + ITL
ENGINE_VERSIONS = lookup(
    _engine_versions(),
    "Engine versions differ as well ([value count]).",
    "引擎版本也不一致（[value count] 个）。",
)
ENGINE_DOWN_REASON = lookup(_engine_down_reason(), "Reason: [label reason].", "原因：[label reason]。")
DRIVER_REASON = lookup(
    select(m.SHARDWATCH_SOURCE_DOWN_INFO, source="driver", **bound("job", "instance")),
    "Reason: [label reason].",
    "原因：[label reason]。",
)
BUDGET_LASTS = Text(  # of 30 days, in seconds
    "{{ with printf `2592000 / %f` $value | query }} At this rate a full error budget lasts "
    "{{ . | first | value | humanizeDuration }}.{{ end }}",
    "{{ with printf `2592000 / %f` $value | query }}按此速率，完整的错误预算将在 "
    "{{ . | first | value | humanizeDuration }} 内耗尽。{{ end }}",
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
            "The busiest runs [value number] times the mean number of requests.",
            "最忙的 rank 运行的请求数是均值的 [value number] 倍。",
        )
        + lookup(
            ratio("requests_waiting"),
            "The longest queue is [value number] times the mean queue.",
            "最长的排队是均值的 [value number] 倍。",
        )
        + lookup(
            busiest(m.LLM_REQUESTS_RUNNING, "requests_running"),
            "Rank [label rank] runs most: [value count] requests.",
            "rank [label rank] 运行最多：[value count] 个请求。",
        )
        + lookup(
            busiest(m.LLM_REQUESTS_WAITING, "requests_waiting"),
            "Rank [label rank] has the longest queue: [value count] requests.",
            "rank [label rank] 排队最长：[value count] 个请求。",
        )
    )
