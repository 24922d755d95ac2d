"""Recordings and alerts about replicas whose GPUs are on several nodes: what one node cannot know of the others.

The nodes of a replica are joined by ``replica_key``.  A claim on a node may be forged, so no expression fails where two
nodes call themselves the head: heads are always the side of a join that may have several.
"""

from __future__ import annotations

from alerts.lookup import bound, lookup
from alerts.panel_ids import IMBALANCE_NODES, IMBALANCE_NODES_LOST
from alerts.recordings import GPU_EXPORTER_DOWN, NODE, RELEASED, RUNNING
from alerts.rule import Alert, Component, Recording
from alerts.tuning import Tuning
from exporter.catalog import metrics as m
from exporter.catalog.spec import Metric, Unit
from exporter.model.finding import Severity
from exporter.model.text import Text
from exporter.promql import (
    Expr,
    and_on,
    avg_by,
    binary,
    bottomk,
    count_by,
    max_by,
    min_by,
    no_regex,
    over_time,
    select,
    sum_by,
    topk,
    unless,
)

_KEY = ("job", "replica_key")
_GPU = (*NODE, "uuid")
_PART = (*NODE, "replica_key")
_HEAD = (*NODE, "replica", "replica_key")
_INFO = m.GPU_MULTI_NODE_REPLICA_INFO
# A GPU that is lost keeps its place while the daemon that saw it there runs.
_RECENT = "10m"


def _of_key(**matchers: str) -> Expr:
    """Return the GPUs of the alert's replica, by their places in it."""
    return select(_INFO, **bound("job", "replica_key"), **matchers)


def _workers_with(metric: Metric, value: float) -> Expr:
    members = over_time("last", _of_key(role="worker"), "15m")
    return topk(1, and_on(select(metric, **bound("job")).equals(value), members, on=_GPU))


def _missing_node() -> Expr:
    before = max_by(over_time("last", _of_key(role="worker"), "1h"), *NODE)
    return topk(1, unless(before, max_by(_of_key(), *NODE), on=NODE))


def _least_node() -> Expr:
    return bottomk(1, avg_by(and_on(select(m.GPU_UTILIZATION_RATIO, **bound("job")), _of_key(), on=_GPU), *NODE))


_LOST = lookup(
    _workers_with(m.GPU_UP, 0),
    "GPU [label gpu] on [label instance] is lost.",
    "[label instance] 的 [label gpu] 号卡已掉卡。",
)
_SLOW = lookup(
    _workers_with(m.GPU_STRAGGLER, 1),
    "GPU [label gpu] on [label instance]: [label cause].",
    "[label instance] 的 [label gpu] 号卡：[label cause]。",
)
_MISSING = lookup(_missing_node(), "It was on [label instance].", "它曾在 [label instance] 上。")
_WORKER = lookup(
    topk(1, max_by(_of_key(role="worker"), *NODE)),
    "One of its nodes is [label instance].",
    "其中一个节点是 [label instance]。",
)
_LEAST = lookup(
    _least_node(),
    "The least utilised is [label instance] with [value percent].",
    "利用率最低的是 [label instance]，为 [value percent]。",
)


def _by_node(figure: Expr) -> Expr:
    """Return the mean of a GPU's figure over each node of a replica."""
    places = max_by(select(_INFO), *_PART, "uuid")
    each = binary("*", places, figure, on=_GPU, group_left=())
    return avg_by(each, *_PART).as_unit(figure.unit or Unit.NONE)


UTILIZATION = Recording(
    level=_PART, noun="gpu_utilization_ratio", operations="avg", expr=_by_node(select(m.GPU_UTILIZATION_RATIO))
)
NODES = Recording(
    level=_KEY,
    noun="gpu_multi_node_replica_nodes",
    operations="count",
    expr=count_by(count_by(select(_INFO), *_PART), *_KEY),
)


def recordings() -> tuple[Recording, ...]:
    """Return the recordings by node of a replica; without series where no replica spans nodes."""
    return (UTILIZATION, NODES)


def alerts(tuning: Tuning) -> tuple[Alert, ...]:
    """Return the alerts about replicas that span nodes."""
    return (_peer_lost(), _node_missing(), _peer_straggler(), _nodes_uneven(tuning), _head_unknown())


def _heads() -> Expr:
    """Return the heads that have the replica's metrics endpoint; value 1."""
    return max_by(select(_INFO, role="head"), *_HEAD)


def _of_heads(by_key: Expr) -> Expr:
    """Return a figure of all nodes of a replica with the labels of its head."""
    return binary("*", _heads(), by_key, on=_KEY, group_left=())


def _workers(window: str = "") -> Expr:
    places = select(_INFO, role="worker")
    return max_by(over_time("last", places, window) if window else places, *_GPU, "gpu", "replica_key")


def _lost_peers() -> Expr:
    """Return the GPUs of workers that are lost."""
    lost = unless(unless(select(m.GPU_UP).equals(0), RELEASED, on=NODE), GPU_EXPORTER_DOWN, on=NODE)
    return and_on(_workers(_RECENT), lost, on=_GPU)


def _peer_lost() -> Alert:
    return Alert(
        name="ReplicaPeerLost",
        severity=Severity.CRITICAL,
        symptom=True,
        component=Component.GPU,
        expr=_of_heads(count_by(_lost_peers(), *_KEY)),
        for_="1m",
        keep_firing_for="5m",  # as GpuLost
        panel=IMBALANCE_NODES_LOST,
        summary=Text(
            "{{ $labels.replica }} on {{ $labels.instance }} spans nodes, and a GPU of it on another node is lost",
            "{{ $labels.instance }} 上的 {{ $labels.replica }} 跨多个节点，其在另一节点上的卡掉卡",
        ),
        description=Text(
            "{{ $value | humanize }} of the replica's GPUs on other nodes have not answered for 1 minute. All nodes of the "
            "replica ({{ $labels.replica_key }}) wait for them.",
            "该副本在其他节点上有 {{ $value | humanize }} 张卡已 1 分钟无应答，副本（{{ $labels.replica_key }}）的所有节点都在等待。",
        )
        + _LOST,
        action=Text(
            "1. Take {{ $labels.replica }} out of the gateway. 2. Follow GpuLost on the node of the lost GPU. 3. Start "
            "the replica on all of its nodes again.",
            "1. 将 {{ $labels.replica }} 从网关摘除。2. 在掉卡的节点上按 GpuLost 处理。3. 在全部节点上重新启动该副本。",
        ),
    )


def _node_missing() -> Alert:
    fewer = NODES.known
    gone = binary("<", select(fewer), over_time("max", select(fewer), "1h"), on=_KEY)
    return Alert(
        name="ReplicaNodeMissing",
        severity=Severity.WARNING,
        component=Component.GPU,
        expr=_of_heads(gone),
        for_="2m",
        keep_firing_for="5m",
        panel=IMBALANCE_NODES_LOST,
        summary=Text(
            "{{ $labels.replica }} on {{ $labels.instance }} spans nodes, and one of them has no GPUs of it any more",
            "{{ $labels.instance }} 上的 {{ $labels.replica }} 跨多个节点，其中一个节点上已没有它的卡",
        ),
        description=Text(
            "GPUs of {{ $labels.replica_key }} are seen on {{ $value | humanize }} nodes, and on more within the last hour. The "
            "node, its daemon or its worker processes are gone.",
            "目前在 {{ $value | humanize }} 个节点上看到 {{ $labels.replica_key }} 的卡，一小时内曾更多。该节点、其守护进程或 worker 进程已不在。",
        )
        + _MISSING,
        action=Text(
            "Check that node: is it up, does its daemon run (ShardwatchDown), do the engine's worker processes run? "
            "Restart the replica on all of its nodes if workers have ended.",
            "检查该节点：是否在线，守护进程是否运行（ShardwatchDown），引擎的 worker 进程是否运行？若 worker 已退出，"
            "在全部节点上重启该副本。",
        ),
    )


def _peer_straggler() -> Alert:
    slow = and_on(_workers(), select(m.GPU_STRAGGLER).equals(1), on=_GPU)
    return Alert(
        name="ReplicaPeerStraggler",
        severity=Severity.WARNING,
        component=Component.GPU,
        expr=_of_heads(count_by(slow, *_KEY)),
        for_="2m",
        keep_firing_for="10m",  # as GpuStraggler
        panel=IMBALANCE_NODES,
        summary=Text(
            "{{ $labels.replica }} on {{ $labels.instance }} is slow, it waits for a GPU on another node",
            "{{ $labels.instance }} 上的 {{ $labels.replica }} 变慢，它在等另一节点上的卡",
        ),
        description=Text(
            "{{ $value | humanize }} GPUs on other nodes delay the replica ({{ $labels.replica_key }}).",
            "其他节点上有 {{ $value | humanize }} 张卡拖慢该副本（{{ $labels.replica_key }}）。",
        )
        + _SLOW,
        action=Text(
            "Follow GpuStraggler on the node of the slow GPU; it names the cause.",
            "在慢卡所在的节点上按 GpuStraggler 处理，该告警给出原因。",
        ),
    )


def _nodes_uneven(tuning: Tuning) -> Alert:
    limit = tuning.thresholds.utilization_spread
    mean = over_time("avg", select(UTILIZATION.known), "3m")
    spread = (max_by(mean, *_KEY) - min_by(mean, *_KEY)) > limit.warning
    group = (*NODE, "replica")
    demand = sum_by(over_time("min", select(RUNNING.known), "3m"), *group) > 0
    return Alert(
        name="ReplicaNodesUneven",
        severity=Severity.WARNING,
        component=Component.GPU,
        expr=(and_on(_of_heads(spread), demand, on=group) * 100).as_unit(Unit.NONE),  # percentage points
        for_=limit.for_,
        keep_firing_for="5m",
        panel=IMBALANCE_NODES,
        summary=Text(
            "The nodes of {{ $labels.replica }}, whose head is {{ $labels.instance }}, are unevenly utilised",
            "{{ $labels.replica }}（首节点 {{ $labels.instance }}）的各节点利用率不均",
        ),
        description=Text(
            "The mean utilisation of the most and the least utilised node of {{ $labels.replica_key }} differ by "
            "{{ $value | humanize }} percentage points while requests run (threshold "
            f"{limit.warning * 100:g} for {limit.for_}).",
            "有请求运行时，{{ $labels.replica_key }} 利用率最高与最低的节点相差 {{ $value | humanize }} 个百分点（阈值：持续 "
            f"{limit.for_} 高于 {limit.warning * 100:g}）。",
        )
        + _LEAST,
        action=Text(
            "With data-parallel ranks on each node: check the scheduler (RanksUneven). With tensor or pipeline "
            "parallelism: the least utilised node waits; check the network adapters and GPUs of the others.",
            "各节点有各自的数据并行 rank 时：检查调度器（RanksUneven）。张量或流水线并行时：利用率最低的节点在等待；检查其他节点的网卡与 GPU。",
        ),
    )


def _head_unknown() -> Alert:
    # What starts Ray's actors may run where no GPU is, or be no server that is known: nothing is wrong then.
    workers = max_by(select(_INFO, role="worker", replica_key=no_regex("ray://.*")), *_KEY)
    return Alert(
        name="ReplicaHeadUnknown",
        severity=Severity.INFO,
        component=Component.EXPORTER,
        expr=unless(workers, max_by(select(_INFO, role="head"), *_KEY), on=_KEY),
        for_="15m",
        panel=IMBALANCE_NODES,
        summary=Text(
            "GPUs work for the replica {{ $labels.replica_key }}, and no node is its head",
            "有卡在为副本 {{ $labels.replica_key }} 工作，但没有任何节点是它的首节点",
        ),
        description=Text(
            "Its GPUs are assigned to the key, and cannot be joined with the replica's requests and latencies.",
            "这些卡已归到该 key，但无法与该副本的请求和延迟对应起来。",
        )
        + _WORKER,
        action=Text(
            "Run Shardwatch on the head's node under the same job, and give all nodes the rendezvous address in the "
            "same spelling (docs/metrics.md, Replicas that span nodes).",
            "在首节点上以相同的 job 运行 Shardwatch，并让所有节点以相同写法使用会合地址（见 docs/metrics.md 的 "
            "Replicas that span nodes）。",
        ),
    )
