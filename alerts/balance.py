"""Alerts about imbalance between GPUs of a group, ranks and replicas; only under demand."""

from __future__ import annotations

from alerts import lookups, words
from alerts.panel_ids import (
    IMBALANCE_GPUS,
    IMBALANCE_MEMORY,
    IMBALANCE_RANKS,
    IMBALANCE_REPLICAS,
    NODE_OVER_PCIE,
    REPLICA_STRAGGLER,
    REPLICA_TOKEN,
)
from alerts.recordings import (
    GENERATED,
    ITL,
    MODEL,
    NODE,
    REPLICA,
    RUNNING,
    WAITING,
    memory_to_mean,
    token_rate,
)
from alerts.rule import Alert, Component
from alerts.tuning import Tuning
from exporter.catalog import metrics as m
from exporter.catalog.spec import Unit
from exporter.diagnosis.cause_names import CAUSE_NAMES
from exporter.model.finding import Severity
from exporter.model.text import Text
from exporter.promql import (
    Expr,
    aggregate,
    and_on,
    avg_by,
    binary,
    count_by,
    increase,
    label_replace,
    max_by,
    min_by,
    observations,
    over_time,
    select,
    sum_by,
    unless,
)  # fmt: skip

_GROUP = ("job", "instance", "replica")


def alerts(tuning: Tuning) -> tuple[Alert, ...]:
    """Return the alerts about balance."""
    gpus = (_straggler(), _pcie(tuning), _gpus(tuning), _memory(tuning))
    return (*gpus, _ranks(tuning), _slower(tuning), _replicas(tuning), _not_receiving_traffic(tuning))


def _of_replica(group: Expr) -> Expr:
    """Return the series with label ``replica``: in scope replica a group has the replica's name."""
    return label_replace(group, "replica", "$1", "group", "(.+)")


def _demand() -> Expr:
    """Return replicas with requests running throughout the last 3 minutes."""
    return sum_by(over_time("min", select(RUNNING.known), "3m"), *_GROUP) > 0


_CAUSE = words.by_label("cause", {cause.value: name for cause, name in CAUSE_NAMES.items()})


def _straggler() -> Alert:
    return Alert(
        name="GpuStraggler",
        severity=Severity.WARNING,
        component=Component.GPU,
        # The daemon evaluates several cycles under load and exposes nothing for an idle group.
        expr=select(m.GPU_STRAGGLER).equals(1),
        for_="2m",
        keep_firing_for="10m",  # as long as the symptoms that it inhibits
        panel=REPLICA_STRAGGLER,
        summary=Text(
            "{{ $labels.replica }} on {{ $labels.instance }} is slow, its GPUs wait for GPU {{ $labels.gpu }}: "
            f"{_CAUSE.en}",
            "{{ $labels.instance }} 上的 {{ $labels.replica }} 变慢，其他卡在等 {{ $labels.gpu }} 号卡："
            f"{_CAUSE.zh}",
        ),
        description=Text(
            f"GPU {{{{ $labels.gpu }}}} ({{{{ $labels.uuid }}}}) is the straggler of its group: {_CAUSE.en}.",
            f"{{{{ $labels.gpu }}}} 号卡（{{{{ $labels.uuid }}}}）拖慢了整组：{_CAUSE.zh}。",
        )
        + lookups.HEAD
        + lookups.SLOWDOWN
        + lookups.HOT
        + lookups.SM_CLOCK
        + lookups.POWER_LIMIT
        + lookups.PCIE_WIDTH
        + lookups.FOREIGN_OWNER
        + lookups.MEAN_ITL
        + lookups.SIBLING_ITL
        + lookups.REPLICA,
        action=words.by_label("cause", words.CAUSE_ACTIONS),
    )


def _spread() -> Expr:
    return _of_replica(over_time("avg", select(m.GPU_UTILIZATION_SPREAD_RATIO, scope="replica"), "3m"))


def _pcie(tuning: Tuning) -> Alert:
    limit = tuning.thresholds.utilization_spread
    # Many healthy nodes have no NVLink; the alert needs an effect on the group.
    suffers = and_on(_spread() > limit.warning, _demand(), on=_GROUP)
    return Alert(
        name="ReplicaUsesPcie",
        severity=Severity.WARNING,
        component=Component.GPU,
        expr=and_on(select(m.LLM_CARDS_OVER_PCIE).equals(1), suffers, on=_GROUP),
        for_=limit.for_,
        keep_firing_for="5m",
        panel=NODE_OVER_PCIE,
        summary=Text(
            "The GPUs of {{ $labels.replica }} on {{ $labels.instance }} communicate over PCIe and wait for each "
            "other",
            "{{ $labels.instance }} 上的 {{ $labels.replica }} 的卡间通信走 PCIe，互相等待",
        ),
        description=Text(
            "Two GPUs of the replica have no NVLink between them, and the group is unevenly utilised under load "
            f"(threshold {limit.warning * 100:g} percentage points).",
            f"该副本有两张卡之间没有 NVLink，且负载下组内利用率不均（阈值 {limit.warning * 100:g} 个百分点）。",
        )
        + lookups.SPREAD
        + lookups.SLOWEST_PATH
        + lookups.LATENCY
        + lookups.REPLICA,
        action=Text(
            "Use fewer GPUs per replica (tensor parallelism of 2 or 4 inside one PCIe switch, or pipeline "
            "parallelism), or GPUs with NVLink.",
            "减少每个副本的卡数（同一 PCIe 交换机内 2 或 4 路张量并行，或改用流水线并行），或使用带 NVLink 的卡。",
        ),
    )


def _gpus(tuning: Tuning) -> Alert:
    limit = tuning.thresholds.utilization_spread
    return Alert(
        name="GroupUtilizationUneven",
        severity=Severity.WARNING,
        component=Component.GPU,
        expr=(and_on(_spread() > limit.warning, _demand(), on=_GROUP) * 100).as_unit(Unit.NONE),  # percentage points
        for_=limit.for_,
        keep_firing_for="5m",
        panel=IMBALANCE_GPUS,
        summary=Text(
            "The GPUs of {{ $labels.replica }} on {{ $labels.instance }} are unevenly utilised",
            "{{ $labels.instance }} 上的 {{ $labels.replica }} 各卡利用率不均",
        ),
        description=Text(
            "The most and the least utilised GPU differ by {{ $value | humanize }} percentage points while "
            f"requests run (threshold {limit.warning * 100:g} for {limit.for_}).",
            f"有请求运行时，利用率最高与最低的卡相差 {{{{ $value | humanize }}}} 个百分点（阈值：持续 {limit.for_} 高"
            f"于 {limit.warning * 100:g}）。",
        )
        + lookups.SLOWEST_PATH
        + lookups.LATENCY
        + lookups.REPLICA,
        action=Text(
            "Find the layer on the Imbalance dashboard: gateway, scheduler or GPU. Check for communication over "
            "PCIe, a scheduler that prefers low ranks, and a slow GPU.",
            "在“不均衡”仪表盘上确认出在哪一层：网关、调度器还是 GPU。检查卡间是否走 PCIe、调度器是否偏向前面的 "
            "rank、是否有慢卡。",
        ),
    )


def _memory(tuning: Tuning) -> Alert:
    limit = tuning.thresholds.memory_skew
    served = sum_by(over_time("max", select(RUNNING.known), "15m"), *_GROUP) > 0
    return Alert(
        name="GroupMemoryUneven",
        severity=Severity.WARNING,
        component=Component.GPU,
        expr=and_on(memory_to_mean() > limit.warning, served, on=_GROUP),
        for_=limit.for_,
        panel=IMBALANCE_MEMORY,
        summary=Text(
            "GPU {{ $labels.gpu }} on {{ $labels.instance }} holds more memory than the others of {{ $labels.replica }}",
            "{{ $labels.instance }} 的 {{ $labels.gpu }} 号卡的显存占用高于 {{ $labels.replica }} 的其他卡",
        ),
        description=Text(
            "It ({{ $labels.uuid }}) holds {{ $value | humanize }} times the mean of its group (threshold "
            f"{limit.warning:g}). Shards are equal, so something else uses that GPU.",
            f"该卡（{{{{ $labels.uuid }}}}）的占用是组内均值的 {{{{ $value | humanize }}}} 倍（阈值 {limit.warning:g}）。各分片大小相同，说明"
            "该卡上另有占用。",
        ),
        action=Text(
            "Compare the processes of the group's GPUs (nvidia-smi --query-compute-apps=gpu_uuid,pid,used_memory "
            "--format=csv): another tenant, or a worker that leaks.",
            "比较组内各卡的进程（nvidia-smi --query-compute-apps=gpu_uuid,pid,used_memory --format=csv）：其他租"
            "户，或泄漏的 worker。",
        ),
    )


def _ranks(tuning: Tuning) -> Alert:
    limits = tuning.thresholds
    floor = limits.balance_requests.warning

    def skew(signal: str, load: Expr) -> Expr:
        ratio = over_time("avg", select(m.LLM_RANK_IMBALANCE_MAX_TO_MEAN_RATIO, signal=signal), "5m")
        return and_on(ratio > limits.rank_imbalance.warning, over_time("avg", load, "5m") >= floor, on=REPLICA)

    uneven = skew("requests_running", select(RUNNING.known)) | skew("requests_waiting", select(WAITING.known))
    return Alert(
        name="RanksUneven",
        severity=Severity.WARNING,
        component=Component.ENGINE,
        expr=aggregate("max", uneven, without=("signal",)),
        for_=limits.rank_imbalance.for_,
        keep_firing_for="5m",
        panel=IMBALANCE_RANKS,
        summary=Text(
            "The scheduler of {{ $labels.replica }} on {{ $labels.instance }} loads its ranks unevenly",
            "{{ $labels.instance }} 上的 {{ $labels.replica }} 的调度器对各 rank 分配不均",
        ),
        description=Text(
            "Its data-parallel ranks have unequal numbers of requests (threshold: the busiest has "
            f"{limits.rank_imbalance.warning:g} times the mean).",
            f"其各数据并行 rank 的请求数不等（阈值：最忙的是均值的 {limits.rank_imbalance.warning:g} 倍）。",
        )
        + lookups.rank_requests(limits.rank_imbalance.warning)
        + lookups.LATENCY
        + lookups.REPLICA,
        action=Text(
            "Use a data-parallel load balancer that considers queue and KV cache, upgrade the engine, or balance "
            "externally with one endpoint per rank.",
            "使用参考队列与 KV 缓存的数据并行负载均衡，升级引擎，或每个 rank 一个端点、由网关均衡。",
        ),
    )


def _slower(tuning: Tuning) -> Alert:
    limits = tuning.thresholds
    siblings = (*NODE, "model")  # of one node: GPUs of other nodes may be of another kind
    tokens = increase(observations(m.LLM_INTER_TOKEN_LATENCY_SECONDS), "5m") >= limits.sibling_tokens.warning
    itl = and_on(select(ITL.known), tokens, on=REPLICA)
    # A canary with few requests has short steps: nothing to compare a replica with that carries the load.
    load = over_time("avg", select(RUNNING.known), "5m")
    canaries = binary("<", load, avg_by(load, *siblings) * limits.canary_share.warning, on=siblings, group_left=())
    best = min_by(unless(itl, canaries, on=REPLICA), *siblings)
    # Of two replicas with a queue, the one whose steps compute more prompts takes longer.
    waits = over_time("avg", select(WAITING.known), "3m") > 0
    fastest = binary("==", itl, best, on=siblings, group_left=())
    both = and_on(waits, max_by(and_on(fastest, waits, on=REPLICA), *siblings), on=siblings)
    slower = unless(
        binary("/", itl, best, on=siblings, group_left=()) > limits.sibling_slowdown.warning, both, on=REPLICA
    )
    return Alert(
        name="ReplicaSlowerThanSiblings",
        severity=Severity.WARNING,
        component=Component.ENGINE,
        expr=slower,
        for_=limits.sibling_slowdown.for_,
        panel=REPLICA_TOKEN,
        summary=Text(
            "{{ $labels.replica }} on {{ $labels.instance }} is slower than other replicas of {{ $labels.model }}",
            "{{ $labels.instance }} 上的 {{ $labels.replica }} 比 {{ $labels.model }} 的其他副本慢",
        ),
        description=Text(
            "Its mean inter-token latency is {{ $value | humanize }} times that of the fastest replica of the model on "
            f"the node (threshold {limits.sibling_slowdown.warning:g} for {limits.sibling_slowdown.for_}).",
            "其平均 ITL 是本节点上同一模型最快副本的 {{ $value | humanize }} 倍（阈值：持续 "
            f"{limits.sibling_slowdown.for_} 高于 {limits.sibling_slowdown.warning:g}）。",
        )
        + lookups.MEAN_ITL
        + lookups.SIBLING_ITL
        + lookups.REPLICA,
        action=Text(
            "Move load off the replica; compare its GPUs (clocks, temperature, links, other processes) and its engine "
            "arguments with those of the other.",
            "减少该副本的流量；与另一副本对比 GPU（时钟、温度、链路、其他进程）与引擎参数。",
        ),
    )


def _replicas(tuning: Tuning) -> Alert:
    limits = tuning.thresholds
    load = over_time("avg", select(RUNNING.known), "5m")
    mean = avg_by(load, *MODEL)
    ratio = max_by(load, *MODEL) / mean
    # Replicas with little load are canaries while at most half of the replicas are, and the others are even.  A replica
    # without any load is not a canary.
    canaries = binary("<", load > 0, mean * limits.canary_share.warning, on=MODEL, group_left=())
    rest = unless(load, canaries, on=REPLICA)
    majority = count_by(rest, *MODEL) >= count_by(load, *MODEL) * 0.5
    even = and_on(max_by(rest, *MODEL) / avg_by(rest, *MODEL) <= limits.replica_imbalance.warning, majority, on=MODEL)
    # No weight of a gateway gives more to a replica that has a queue.
    waits = over_time("min", select(WAITING.known), "5m") > 0
    queued = max_by(and_on(binary("<", load, mean, on=MODEL, group_left=()), waits, on=REPLICA), *MODEL)
    uneven = unless(unless(ratio > limits.replica_imbalance.warning, even, on=MODEL), queued, on=MODEL)
    return Alert(
        name="ReplicasUneven",
        severity=Severity.WARNING,
        component=Component.GATEWAY,
        expr=and_on(uneven, mean >= limits.balance_requests.warning, on=MODEL),
        for_=limits.replica_imbalance.for_,
        keep_firing_for="5m",
        panel=IMBALANCE_REPLICAS,
        summary=Text(
            "One replica of {{ $labels.model }} runs far more requests than the others",
            "{{ $labels.model }} 的某个副本承担的请求远多于其他副本",
        ),
        description=Text(
            "It runs {{ $value | humanize }} times the mean of the model's replicas on all nodes of "
            f"{{{{ $labels.job }}}} (threshold {limits.replica_imbalance.warning:g}).",
            "其运行请求数是 {{ $labels.job }} 中该模型所有副本均值的 {{ $value | humanize }} 倍（阈值 "
            f"{limits.replica_imbalance.warning:g}）。",
        ),
        action=Text(
            "Check the gateway: sticky sessions, prefix routing, weights. Check whether that replica is slower "
            "than the others.",
            "检查网关：会话粘滞、前缀路由、权重；并检查该副本是否比其他副本慢。",
        ),
    )


def _not_receiving_traffic(tuning: Tuning) -> Alert:
    floor = tuning.thresholds.balance_requests.warning
    # Short requests fall between two scrapes; their tokens are counted.
    read, wrote = (token_rate(tokens, "10m") for tokens in (m.LLM_PROMPT_TOKENS_TOTAL, m.LLM_GENERATION_TOKENS_TOTAL))
    idle = unless(over_time("max", select(RUNNING.known), "10m").equals(0), (read > 0) | (wrote > 0), on=REPLICA)
    written = select(GENERATED.known)
    used = (written.offset("1h") > 0) | (written.offset("1d") > 0)  # an unused reserve is intended
    siblings = avg_by(over_time("avg", select(RUNNING.known), "10m") > 0, "job", "model") >= floor
    spare = and_on(and_on(idle, select(m.LLM_UP).equals(1), on=REPLICA), used, on=REPLICA)
    return Alert(
        name="ReplicaNotReceivingTraffic",
        severity=Severity.WARNING,
        component=Component.GATEWAY,
        expr=and_on(spare, siblings, on=("job", "model")),
        for_="5m",
        panel=IMBALANCE_REPLICAS,
        summary=Text(
            "{{ $labels.replica }} on {{ $labels.instance }} receives no requests while other replicas of "
            "{{ $labels.model }} are busy",
            "{{ $labels.instance }} 上的 {{ $labels.replica }} 收不到请求，而 {{ $labels.model }} 的其他副本正忙",
        ),
        description=Text(
            "It is up and generated tokens 1 hour ago or at this time yesterday, but has been idle for 15 "
            f"minutes. The busy replicas of its model run at least {floor:g} requests each on average.",
            "它在线，1 小时前或昨天此时曾生成 token，但已空闲 15 分钟；同一模型其他忙碌的副本平均各运行至少 "
            f"{floor:g} 个请求。",
        ),
        action=Text(
            "Send it a request directly. If it answers, add it back to the gateway or fix the gateway's health "
            "check.",
            "直接向它发送请求；若有应答，将其加回网关，或修正网关的健康检查。",
        ),
    )
