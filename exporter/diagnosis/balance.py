"""Findings about unevenness: between the GPUs of a group, the ranks of a replica, and the replicas of a model."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from exporter.diagnosis import thresholds as limit
from exporter.diagnosis.history import Past
from exporter.diagnosis.view import View, less_load, queues, replica_subject, requests, window
from exporter.model import EMPTY, Quantity, ReplicaState, Signal, Stage
from exporter.model.finding import Evidence, Finding, Severity, Subject, SubjectKind
from exporter.model.text import Text

_REPLICA_SCOPE = "replica"


def findings(view: View, past: Past) -> Iterator[Finding]:
    """Yield what is uneven on the node."""
    spreads = _spreads(view)
    over_pcie = set()
    for finding in _over_pcie(view, spreads):
        over_pcie.add(finding.replica)
        yield finding
    for replica in view.snapshot.replicas:
        uneven_ranks = tuple(_ranks(view, replica))
        yield from uneven_ranks
        # The cause of unevenly utilised GPUs is the finding, as its alert inhibits the other one.
        straggles = any(straggler.replica == replica.name for straggler in view.stragglers.values())
        if not uneven_ranks and not straggles and replica.name not in over_pcie:
            yield from _utilization(view, replica, spreads)
    for model, replicas in _by_model(view).items():
        yield from _siblings(past, model, replicas)
        starved = tuple(_not_receiving_traffic(view, past, model, replicas))
        yield from starved
        if not starved:
            yield from _replicas(past, model, replicas)


def _by_model(view: View) -> dict[str, list[ReplicaState]]:
    """Return the replicas of each model of which there are several."""
    models: dict[str, list[ReplicaState]] = defaultdict(list)
    for replica in view.snapshot.replicas:
        if replica.reading is not None:
            models[replica.labels.model].append(replica)
    return {model: replicas for model, replicas in models.items() if len(replicas) > 1}


# ── GPUs of a group ─────────────────────────────────────────────────────────────────────────────────────────────


def _spreads(view: View) -> dict[str, float]:
    """Return by how much utilisation differs within the groups that serve and differ too much."""
    spreads = {}
    for group in view.snapshot.imbalance:
        spread = group.spreads.get(Signal.UTILIZATION) if group.scope == _REPLICA_SCOPE else None
        replica = view.replicas.get(group.group)
        if spread is None or replica is None or spread.spread <= limit.UTILIZATION_SPREAD:
            continue
        if requests(replica, Quantity.REQUESTS_RUNNING):
            spreads[group.group] = spread.spread
    return spreads


def _utilizations(view: View, replica: str) -> tuple[Evidence, ...]:
    return tuple(
        Evidence(f"utilization_gpu_{card.labels.gpu}", card.reading.signals[Signal.UTILIZATION], "ratio")
        for card in view.gpus_of(replica)
        if card.reading is not None and Signal.UTILIZATION in card.reading.signals
    )


def _over_pcie(view: View, spreads: dict[str, float]) -> Iterator[Finding]:
    """Yield the groups that communicate over PCIe and suffer from it; many healthy nodes have no NVLink."""
    for group in view.snapshot.topology.groups:
        gpus = view.gpus_of(group.replica)
        if not group.over_pcie or len(gpus) < 2 or group.replica not in spreads:
            continue
        sockets = ", across CPU sockets" if group.cross_sockets else ""
        sockets_zh = "，跨 CPU" if group.cross_sockets else ""
        yield Finding(
            id="ReplicaUsesPcie",
            severity=Severity.WARNING,
            subject=Subject(SubjectKind.REPLICA, group.replica, group.replica),
            summary=Text(
                f"{group.replica} runs on {len(gpus)} GPUs that talk over PCIe, slowest path {group.worst}{sockets}",
                f"{group.replica} 的 {len(gpus)} 张 GPU 经 PCIe 通信，最慢路径 {group.worst}{sockets_zh}",
            ),
            evidence=(
                Evidence("slowest_path", group.worst),
                Evidence("gpus", float(len(gpus))),
                *_utilizations(view, group.replica),
            ),
            actions=(
                Text(
                    "Use smaller groups inside one PCIe switch, or GPUs with NVLink.",
                    "改用同一 PCIe 交换机内的小组，或带 NVLink 的 GPU。",
                ),
            ),
            replica=group.replica,
        )


def _utilization(view: View, replica: ReplicaState, spreads: dict[str, float]) -> Iterator[Finding]:
    spread = spreads.get(replica.name)
    if spread is None:
        return
    yield Finding(
        id="GroupUtilizationUneven",
        severity=Severity.WARNING,
        subject=replica_subject(replica),
        summary=Text(
            f"The utilization of the GPUs of {replica.name} differs by {spread * 100:.0f} percentage points",
            f"{replica.name} 各 GPU 的利用率相差 {spread * 100:.0f} 个百分点",
        ),
        evidence=_utilizations(view, replica.name),
        actions=(
            Text(
                "Find the layer: a scheduler that prefers low ranks, communication over PCIe, or a slow GPU.",
                "确认出在哪一层：调度器偏向前面的 rank、卡间走 PCIe，或有慢卡。",
            ),
        ),
        replica=replica.name,
    )


# ── Ranks of a replica ──────────────────────────────────────────────────────────────────────────────────────────


def _ranks(view: View, replica: ReplicaState) -> Iterator[Finding]:
    assert replica.reading is not None or not replica.rank_imbalance
    by_running, by_waiting = Quantity.REQUESTS_RUNNING, Quantity.REQUESTS_WAITING
    for quantity in (by_running, by_waiting):
        uneven, total = replica.rank_imbalance.get(quantity.value), requests(replica, quantity) or 0.0
        if uneven is None or uneven <= limit.RANK_IMBALANCE or total < limit.BALANCE_REQUESTS:
            continue
        ranks = replica.reading.ranks if replica.reading is not None else {}
        running = quantity is by_running
        loads = {rank: numbers.get(quantity, 0.0) for rank, numbers in ranks.items()}
        queued = {rank: numbers.get(by_waiting, 0.0) for rank, numbers in ranks.items() if running}
        first = max(loads, key=lambda rank: loads[rank])
        figures = window(replica)
        prompts = figures.rank_prompt_token_rates if figures is not None else EMPTY
        last = min(loads, key=lambda rank: loads[rank])
        state, state_zh, name = ("running", "运行", "running") if running else ("waiting", "排队", "waiting")
        yield Finding(
            id="RanksUneven",
            severity=Severity.WARNING,
            subject=replica_subject(replica),
            summary=Text(
                f"{replica.name}: the scheduler prefers rank {first} ({loads[first]:g} {state}, rank {last} has "
                f"{loads[last]:g})",
                f"{replica.name}：调度器偏向 rank {first}"
                f"（{loads[first]:g} 个{state_zh}，rank {last} 为 {loads[last]:g}）",
            ),
            evidence=(
                Evidence("max_to_mean", uneven, "ratio"),
                *(Evidence(f"{name}_rank_{rank}", load) for rank, load in sorted(loads.items())),
                *(Evidence(f"waiting_rank_{rank}", load) for rank, load in sorted(queued.items()) if load),
                *(Evidence(f"prompt_tokens_per_second_rank_{rank}", rate) for rank, rate in sorted(prompts.items())),
                *_utilizations(view, replica.name),
            ),
            actions=(_rank_action(first, prompts),),
            replica=replica.name,
        )
        return


def _rank_action(first: str, prompts: Mapping[str, float]) -> Text:
    """Return what to do about a preferred rank; ``prompts``: prompt tokens per second by rank, empty if not known."""
    mean = sum(prompts.values()) / len(prompts) if prompts else 0.0
    if not mean:
        return Text(
            "Compare prompt lengths by rank, and check how requests reach the ranks: the engine's data-parallel "
            "load balancing, or a gateway that addresses ranks itself.",
            "对比各 rank 的提示词长度，并检查请求如何到达各 rank：引擎的数据并行负载均衡，或网关直接指定 rank。",
        )
    times = prompts.get(first, 0.0) / mean
    if times > limit.RANK_IMBALANCE:
        return Text(
            f"Rank {first} gets {times:.1f} times the mean of prompt tokens: balance by tokens or KV cache, not by "
            "the number of requests, in the engine's data-parallel load balancing or in a gateway that addresses "
            "ranks.",
            f"rank {first} 的提示词 token 是均值的 {times:.1f} 倍：在引擎的数据并行负载均衡或直接指定 rank 的网关中，"
            "按 token 数或 KV 缓存而非请求数均衡。",
        )
    return Text(
        f"Prompts do not explain it: rank {first} gets {times:.1f} times the mean of prompt tokens. Compare the "
        "lengths of answers by rank, and look for a GPU that slows the rank down.",
        f"提示词不是原因：rank {first} 的提示词 token 是均值的 {times:.1f} 倍。请对比各 rank 的回答长度，"
        "并检查是否有 GPU 拖慢该 rank。",
    )


# ── Replicas of a model ─────────────────────────────────────────────────────────────────────────────────────────


def _siblings(past: Past, model: str, replicas: list[ReplicaState]) -> Iterator[Finding]:
    """Compare the mean inter-token latency of the replicas of one model that make progress."""
    found = [
        (replica, mean.seconds)
        for replica in replicas
        if not replica.frozen  # its last tokens were late because it stopped
        and (mean := past.of(replica.name).latency.get(Stage.INTER_TOKEN)) is not None
        and mean.observations >= limit.SIBLING_TOKENS
    ]
    # A canary with few requests has short steps: nothing to compare a replica with that carries the load.
    loads = {replica.name: past.of(replica.name).running or 0.0 for replica in replicas}
    floor = limit.CANARY_SHARE * sum(loads.values()) / len(loads)
    carrying = [pair for pair in found if loads[pair[0].name] >= floor]
    if len(found) < 2 or not carrying:
        return
    fastest, best = min(carrying, key=lambda pair: pair[1])
    for replica, seconds in found:
        if best <= 0 or seconds <= limit.SIBLING_SLOWDOWN * best:
            continue
        # Of two replicas with a queue, the one whose steps compute more prompts takes longer.
        if queues(replica) and queues(fastest):
            continue
        yield Finding(
            id="ReplicaSlowerThanSiblings",
            severity=Severity.WARNING,
            subject=replica_subject(replica),
            summary=Text(
                f"{replica.name} is slow: mean ITL {seconds * 1e3:.1f} ms, "
                f"{fastest.name} has {best * 1e3:.1f} ms on the same model",
                f"{replica.name} 偏慢：平均 ITL {seconds * 1e3:.1f} ms，"
                f"同模型的 {fastest.name} 为 {best * 1e3:.1f} ms",
            ),
            evidence=(
                Evidence("itl_mean", seconds, "seconds"),
                Evidence("itl_mean_of_fastest", best, "seconds"),
                Evidence("model", model),
            ),
            actions=(
                Text(
                    f"Compare its GPUs and its engine arguments with those of {fastest.name}.",
                    f"与 {fastest.name} 对比 GPU 与引擎参数。",
                ),
            ),
            relief=less_load(replica.name),
            replica=replica.name,
        )


def _replicas(past: Past, model: str, replicas: list[ReplicaState]) -> Iterator[Finding]:
    """Compare the mean loads of the window: at any instant, loads of some ten requests differ by chance."""
    loads = {replica.name: load for replica in replicas if (load := past.of(replica.name).running) is not None}
    if len(loads) < 2:
        return
    total = sum(loads.values())
    mean, busiest = total / len(loads), max(loads, key=lambda name: loads[name])
    if mean < limit.BALANCE_REQUESTS or loads[busiest] <= limit.REPLICA_IMBALANCE * mean:
        return
    # No weight of a gateway gives more to a replica that has a queue.
    if any(loads.get(replica.name, mean) < mean and queues(replica) for replica in replicas):
        return
    # Replicas with little load are canaries while at most half of the replicas are, and the others are even.
    rest = [load for load in loads.values() if not 0 < load < limit.CANARY_SHARE * mean]
    if 2 * len(rest) >= len(loads) and max(rest) <= limit.REPLICA_IMBALANCE * sum(rest) / len(rest):
        return
    yield Finding(
        id="ReplicasUneven",
        severity=Severity.WARNING,
        subject=Subject(SubjectKind.NODE, model, model),
        summary=Text(
            f"{busiest} runs {loads[busiest]:.0f} of {total:.0f} requests of {model} (mean of 5 min)",
            f"{model} 运行中的 {total:.0f} 个请求里有 {loads[busiest]:.0f} 个在 {busiest}（5 分钟均值）",
        ),
        evidence=(
            Evidence("max_to_mean", loads[busiest] / mean, "ratio"),
            *(Evidence(f"running_{replica}", load) for replica, load in sorted(loads.items())),
        ),
        actions=(Text("Check weights and balancing policy of the gateway.", "检查网关的权重与均衡策略。"),),
    )


def _not_receiving_traffic(view: View, past: Past, model: str, replicas: list[ReplicaState]) -> Iterator[Finding]:
    """Yield replicas that served before and get nothing, while the others of their model are busy."""
    loads = {replica.name: requests(replica, Quantity.REQUESTS_RUNNING) for replica in replicas}
    busy = [load for load in loads.values() if load]
    if not busy or sum(busy) / len(busy) < limit.BALANCE_REQUESTS:
        return
    for replica in replicas:
        known = past.of(replica.name)
        if loads[replica.name] != 0 or known.token_rate != 0 or not known.has_generated:
            continue
        shares = [
            Evidence(f"gateway_{sent.gateway}_share", sent.share, "ratio")
            for sent in view.gateway_shares(replica.name)
        ]
        yield Finding(
            id="ReplicaNotReceivingTraffic",
            severity=Severity.WARNING,
            subject=replica_subject(replica),
            summary=Text(
                f"{replica.name} receives no requests while other replicas of {model} are busy",
                f"{replica.name} 收不到请求，而 {model} 的其他副本正忙",
            ),
            evidence=(
                *(Evidence(f"running_{name}", load) for name, load in sorted(loads.items()) if load is not None),
                *shares,
            ),
            actions=(
                Text(
                    "Send it a request directly. If it answers, add it back to the gateway or fix the gateway's "
                    "health check.",
                    "直接向它发送请求；若有应答，将其加回网关，或修正网关的健康检查。",
                ),
            ),
            replica=replica.name,
        )
