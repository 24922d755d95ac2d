"""Alerts about uneven work: between cards of a group, ranks and replicas; only under demand."""

from __future__ import annotations

from alerts.panel_ids import (
    IMBALANCE_GPUS,
    IMBALANCE_MEMORY,
    IMBALANCE_RANKS,
    IMBALANCE_REPLICAS,
    NODE_OVER_PCIE,
    REPLICA_STRAGGLER,
)
from alerts.recordings import GENERATED, MODEL, REPLICA, RUNNING, WAITING, token_rate
from alerts.rule import Alert, Component, Severity
from alerts.text import Text
from alerts.tuning import Tuning
from exporter.catalog import metrics as m
from exporter.promql import (
    Expr,
    aggregate,
    and_on,
    avg_by,
    binary,
    count_by,
    label_replace,
    max_by,
    over_time,
    select,
    sum_by,
    unless,
)  # fmt: skip

_GROUP = ("job", "instance", "replica")


def alerts(tuning: Tuning) -> tuple[Alert, ...]:
    """Give the alerts about balance."""
    cards = (_straggler(), _pcie(tuning), _gpus(tuning), _memory(tuning))
    return (*cards, _ranks(tuning), _replicas(tuning), _not_receiving_traffic(tuning))


def _of_replica(group: Expr) -> Expr:
    """Call the group by its replica's name, which it is in scope replica."""
    return label_replace(group, "replica", "$1", "group", "(.+)")


def _demand() -> Expr:
    """Keep replicas on which requests have been running for all of 3 minutes."""
    return sum_by(over_time("min", select(RUNNING.known), "3m"), *_GROUP) > 0


def _straggler() -> Alert:
    return Alert(
        name="GpuStraggler",
        severity=Severity.WARNING,
        component=Component.GPU,
        # The daemon judges work under load over several cycles, and shows nothing for an idle group.
        expr=select(m.GPU_STRAGGLER).equals(1),
        for_="2m",
        keep_firing_for="5m",
        panel=REPLICA_STRAGGLER,
        summary=Text(
            "The cards of {{ $labels.replica }} on {{ $labels.instance }} wait for card {{ $labels.gpu }}: {{ $labels.cause }}",
            "{{ $labels.instance }} 上 {{ $labels.replica }} 的其他卡在等 {{ $labels.gpu }} 号卡：{{ $labels.cause }}",
        ),
        description=Text(
            "Card {{ $labels.gpu }} ({{ $labels.uuid }}) does the same work more slowly, and the whole group runs at "
            "its pace. Cause: {{ $labels.cause }}; gpu_straggler_slowdown_ratio says by how much where it can be "
            "measured.",
            "{{ $labels.gpu }} 号卡（{{ $labels.uuid }}）完成同样的工作更慢，整组都按它的速度运行。"
            "原因：{{ $labels.cause }}；可测量时 gpu_straggler_slowdown_ratio 给出慢了多少。",
        ),
    )


def _spread() -> Expr:
    return _of_replica(over_time("avg", select(m.GPU_UTILIZATION_SPREAD_RATIO, scope="replica"), "3m"))


def _pcie(tuning: Tuning) -> Alert:
    limit = tuning.thresholds.utilization_spread
    # Many good nodes have no NVLink at all; what is wrong is that the group suffers from it.
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
            "The cards of {{ $labels.replica }} on {{ $labels.instance }} talk over PCIe and wait for each other",
            "{{ $labels.instance }} 上 {{ $labels.replica }} 的卡间通信走 PCIe，互相等待",
        ),
        description=Text(
            "Two cards that work together have no NVLink between them, and utilisation inside the group differs by "
            f"more than {limit.warning:.0%} under load. Use fewer cards for each replica (tensor parallelism of 2 or 4 "
            "inside one PCIe switch, or pipeline stages), or cards with NVLink; llm_card_path_info names the slowest "
            "path.",
            "协同工作的两张卡之间没有 NVLink，且负载下组内利用率相差超过 "
            f"{limit.warning:.0%}。请减少每个副本的卡数（在同一 PCIe 交换机内用 2 或 4 路张量并行，或改用流水线并行），"
            "或使用带 NVLink 的卡；最慢路径见 llm_card_path_info。",
        ),
    )


def _gpus(tuning: Tuning) -> Alert:
    limit = tuning.thresholds.utilization_spread
    return Alert(
        name="GroupUtilizationUneven",
        severity=Severity.WARNING,
        component=Component.GPU,
        expr=and_on(_spread() > limit.warning, _demand(), on=_GROUP),
        for_=limit.for_,
        keep_firing_for="5m",
        panel=IMBALANCE_GPUS,
        summary=Text(
            "The cards of {{ $labels.replica }} on {{ $labels.instance }} are unevenly busy",
            "{{ $labels.instance }} 上 {{ $labels.replica }} 各卡的利用率不均",
        ),
        description=Text(
            "{{ $value | humanizePercentage }} lie between the busiest and the least busy card while requests run "
            f"(alarm above {limit.warning:.0%} for {limit.for_}). Cards over PCIe, a scheduler that prefers the "
            "first rank, or one slow card: llm_imbalance_share_ratio says at which layer.",
            "有请求运行时，最忙与最闲的卡相差 {{ $value | humanizePercentage }}（持续 "
            f"{limit.for_} 高于 {limit.warning:.0%} 即告警）。可能是卡间走 PCIe、调度偏向第一个 rank，"
            "或某张卡变慢：llm_imbalance_share_ratio 指出发生在哪一层。",
        ),
    )


def _memory(tuning: Tuning) -> Alert:
    limit = tuning.thresholds.memory_skew
    skew = _of_replica(select(m.GPU_IMBALANCE_MAX_TO_MEAN_RATIO, scope="replica", signal="memory_used"))
    served = sum_by(over_time("max", select(RUNNING.known), "15m"), *_GROUP) > 0
    return Alert(
        name="GroupMemoryUneven",
        severity=Severity.WARNING,
        component=Component.GPU,
        expr=and_on(skew > limit.warning, served, on=_GROUP),
        for_=limit.for_,
        panel=IMBALANCE_MEMORY,
        summary=Text(
            "One card of {{ $labels.replica }} on {{ $labels.instance }} holds more memory than the others",
            "{{ $labels.instance }} 上 {{ $labels.replica }} 有一张卡的显存占用高于其他卡",
        ),
        description=Text(
            "The fullest card holds {{ $value | humanize }} times the mean of its group (alarm above "
            f"{limit.warning:g}). Shards are equal, so something else is on that card: a leak in one worker, another "
            "process, or a rank with more buffers. It runs out first.",
            "最满的卡是组内均值的 {{ $value | humanize }} 倍（超过 "
            f"{limit.warning:g} 即告警）。各分片大小相同，因此该卡上另有占用：某个 worker 泄漏、其他进程，"
            "或某个 rank 的缓冲更大。它会最先耗尽显存。",
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
            "{{ $labels.instance }} 上 {{ $labels.replica }} 的调度器对各 rank 分配不均",
        ),
        description=Text(
            "The busiest data-parallel rank has {{ $value | humanize }} times the mean number of requests, running or "
            f"waiting (alarm above {limits.rank_imbalance.warning:g}). Its queue is the tail that users feel.",
            "最忙的数据并行 rank 的请求数（运行或等待）是均值的 {{ $value | humanize }} 倍（超过 "
            f"{limits.rank_imbalance.warning:g} 即告警）。它的队列就是用户感受到的长尾。",
        ),
    )


def _replicas(tuning: Tuning) -> Alert:
    limits = tuning.thresholds
    load = over_time("avg", select(RUNNING.known), "5m")
    mean = avg_by(load, *MODEL)
    ratio = max_by(load, *MODEL) / mean
    # Who is given a trickle is a canary as long as no more replicas are than are not, and those are even.  A replica
    # that is given nothing is none.
    trickle = binary("<", load > 0, mean * limits.canary_share.warning, on=MODEL, group_left=())
    rest = unless(load, trickle, on=REPLICA)
    most = count_by(rest, *MODEL) >= count_by(load, *MODEL) * 0.5
    even = and_on(max_by(rest, *MODEL) / avg_by(rest, *MODEL) <= limits.replica_imbalance.warning, most, on=MODEL)
    uneven = unless(ratio > limits.replica_imbalance.warning, even, on=MODEL)
    return Alert(
        name="ReplicasUneven",
        severity=Severity.WARNING,
        component=Component.GATEWAY,
        expr=and_on(uneven, mean >= limits.balance_requests.warning, on=MODEL),
        for_=limits.replica_imbalance.for_,
        keep_firing_for="5m",
        panel=IMBALANCE_REPLICAS,
        summary=Text(
            "One replica of {{ $labels.model }} carries far more requests than the others",
            "{{ $labels.model }} 的某个副本承担的请求远多于其他副本",
        ),
        description=Text(
            "It runs {{ $value | humanize }} times the mean of the model's replicas, on all nodes of "
            f"{{{{ $labels.job }}}} (alarm above {limits.replica_imbalance.warning:g}). The gateway makes this: sticky "
            "sessions, routing by prefix, or a replica that is slower than the rest.",
            "其运行请求数是 {{ $labels.job }} 中该模型所有副本均值的 {{ $value | humanize }} 倍（超过 "
            f"{limits.replica_imbalance.warning:g} 即告警）。原因在网关：会话粘滞、按前缀路由，或某个副本比其他慢。",
        ),
    )


def _not_receiving_traffic(tuning: Tuning) -> Alert:
    floor = tuning.thresholds.balance_requests.warning
    # Short requests slip between two scrapes: tokens tell of them.
    read, wrote = (token_rate(tokens, "10m") for tokens in (m.LLM_PROMPT_TOKENS_TOTAL, m.LLM_GENERATION_TOKENS_TOTAL))
    idle = unless(over_time("max", select(RUNNING.known), "10m").equals(0), (read > 0) | (wrote > 0), on=REPLICA)
    written = select(GENERATED.known)
    used = (written.offset("1h") > 0) | (written.offset("1d") > 0)  # a reserve that nobody ever asked is none's fault
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
            "{{ $labels.replica }} on {{ $labels.instance }} is sent no requests while others of {{ $labels.model }} work",
            "{{ $labels.instance }} 上的 {{ $labels.replica }} 收不到请求，而 {{ $labels.model }} 的其他副本正在工作",
        ),
        description=Text(
            "It is up, wrote tokens an hour ago or at this time yesterday, and has been idle for 15 minutes, while "
            f"those of its model that work run at least {floor:g} requests each on average. The gateway does not "
            "know it any more, holds it unfit, or has it drained.",
            "它在线，一小时前或昨天此时曾产出 token，但已空闲 15 分钟；而同一模型正在工作的副本平均各运行至少 "
            f"{floor:g} 个请求。网关已不认识它、判定它不可用，或正在排空它。",
        ),
    )
