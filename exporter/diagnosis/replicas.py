"""Findings about replicas, their ranks and the gateways before them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from exporter.diagnosis import thresholds as limit
from exporter.diagnosis.view import PRIMARY_WINDOW, View, measured, requests
from exporter.model import EMPTY, Quantity, ReplicaState, Signal, Stage
from exporter.model.engine import WindowFigures
from exporter.model.finding import Evidence, Finding, Severity, Subject, SubjectKind
from exporter.model.text import Text


def findings(view: View) -> Iterator[Finding]:
    """Yield what is wrong with each replica of the snapshot."""
    for replica in view.snapshot.replicas:
        yield from _down(view, replica)
        if replica.reading is not None:
            yield from _no_progress(view, replica)
            yield from _errors(replica)
            yield from _cache(replica)
            yield from _ranks(view, replica)
    yield from _paths(view)
    yield from _siblings(view)
    yield from _balance(view)
    yield from _versions(view)
    yield from _gateways(view)


def _subject(replica: ReplicaState) -> Subject:
    return Subject(SubjectKind.REPLICA, replica.name, replica.name)


def _window(replica: ReplicaState) -> WindowFigures | None:
    return replica.windows.get(PRIMARY_WINDOW) or next(
        (figures for label, figures in replica.windows.items() if label != "lifetime"), None
    )


def _traffic(view: View, name: str) -> tuple[Evidence, ...]:
    """Return what the gateways still send to a replica."""
    return tuple(Evidence(f"gateway_{sent.gateway}_share", sent.share, "ratio") for sent in view.gateway_shares(name))


def _still_sent(view: View, name: str) -> Text:
    """Return the clause about the gateway that still sends requests, empty where none does."""
    for sent in view.gateway_shares(name):
        return Text(
            f"; gateway {sent.gateway} still sends it {sent.share:.0%}",
            f"；网关 {sent.gateway} 仍向其分配 {sent.share:.0%} 的请求",
        )
    return Text("", "")


def _down(view: View, replica: ReplicaState) -> Iterator[Finding]:
    status = replica.status
    if status.up or status.reason == "starting" or replica.last_read_at is None:
        return
    model = replica.labels.model
    others = [other for other in view.snapshot.replicas if other.labels.model == model and other.status.up]
    sent = _still_sent(view, replica.name)
    yield Finding(
        id="EngineDown",
        severity=Severity.WARNING if others else Severity.CRITICAL,
        subject=_subject(replica),
        summary=Text(
            f"{replica.name} does not answer ({status.reason})"
            + (sent.en if others else f"; nothing else serves {model}"),
            f"{replica.name} 无响应（{status.reason}）" + (sent.zh if others else f"；没有其他副本提供 {model}"),
        ),
        evidence=(Evidence("reason", status.reason), *_traffic(view, replica.name)),
        actions=(
            Text("Read the engine's log for why it ended or hangs.", "查看引擎日志，确认退出或无响应的原因。"),
            Text(f"Restart {replica.name}.", f"重启 {replica.name}。"),
        ),
        relief=view.relief(replica.name) if sent.en else None,
        replica=replica.name,
    )


def _no_progress(view: View, replica: ReplicaState) -> Iterator[Finding]:
    if not replica.frozen:
        return
    running = requests(replica, Quantity.REQUESTS_RUNNING)
    waiting = requests(replica, Quantity.REQUESTS_WAITING)
    sent = _still_sent(view, replica.name)
    yield Finding(
        id="EngineFrozen",
        severity=Severity.CRITICAL,
        subject=_subject(replica),
        summary=_standstill(replica.name, running or 0.0, waiting or 0.0) + sent,
        evidence=(
            *measured("requests_running", running),
            *measured("requests_waiting", waiting),
            *_traffic(view, replica.name),
        ),
        actions=(
            Text(
                "Save the stacks of the engine's processes (py-spy dump --pid PID) for the bug report.",
                "保存引擎进程的调用栈（py-spy dump --pid PID）以便报告缺陷。",
            ),
            Text(
                f"End all processes of {replica.name} and start it again.",
                f"结束 {replica.name} 的全部进程并重新启动。",
            ),
        ),
        relief=view.relief(replica.name),
        replica=replica.name,
    )


def _standstill(name: str, running: float, waiting: float) -> Text:
    if not running:
        return Text(
            f"{name} makes no progress: {waiting:g} requests wait and none is admitted",
            f"{name} 没有进展：{waiting:g} 个请求在等待，但没有一个被调度",
        )
    return Text(
        f"{name} makes no progress: {running:g} running, {waiting:g} waiting, no tokens",
        f"{name} 没有进展：{running:g} 个运行中、{waiting:g} 个等待，不产出 token",
    )


def _errors(replica: ReplicaState) -> Iterator[Finding]:
    figures = _window(replica)
    if figures is None or figures.error_ratio is None or figures.error_ratio <= limit.ERROR_RATIO_WARNING:
        return
    finished = (figures.request_rate or 0.0) * figures.seconds
    if finished < limit.ERROR_REQUESTS:
        return
    yield Finding(
        id="HighErrorRatio",
        severity=Severity.CRITICAL if figures.error_ratio > limit.ERROR_RATIO_CRITICAL else Severity.WARNING,
        subject=_subject(replica),
        summary=Text(
            f"{figures.error_ratio:.1%} of the requests to {replica.name} fail",
            f"{replica.name} 有 {figures.error_ratio:.1%} 的请求失败",
        ),
        evidence=(Evidence("error_ratio", figures.error_ratio, "ratio"), Evidence("requests", finished)),
        actions=(
            Text("Read the engine's log for the errors of the failed requests.", "在引擎日志中查看失败请求的错误。"),
        ),
        replica=replica.name,
    )


def _cache(replica: ReplicaState) -> Iterator[Finding]:
    """Yield a full KV cache only where first tokens are late: with a queue it is normal at full throughput."""
    assert replica.reading is not None
    usage = [numbers.get(Quantity.KV_CACHE_USAGE, 0.0) for numbers in replica.reading.ranks.values()]
    waiting = requests(replica, Quantity.REQUESTS_WAITING)
    figures = _window(replica)
    latency = figures.latency.get(Stage.TIME_TO_FIRST_TOKEN) if figures is not None else None
    typical = latency.quantiles.get(0.5) if latency is not None else None
    if not usage or max(usage) < limit.KV_CACHE_USE or not waiting or typical is None:
        return
    if typical > limit.TTFT_SLOW_SECONDS:
        yield Finding(
            id="KvCachePressure",
            severity=Severity.WARNING,
            subject=_subject(replica),
            summary=Text(
                f"{replica.name}: {waiting:g} requests wait for the KV cache ({max(usage):.0%} used), "
                f"half of the first tokens take longer than {typical:.1f} s",
                f"{replica.name}：{waiting:g} 个请求在等待 KV 缓存（已用 {max(usage):.0%}），"
                f"半数首 token 超过 {typical:.1f} 秒",
            ),
            evidence=(
                Evidence("kv_cache_usage", max(usage), "ratio"),
                Evidence("requests_waiting", waiting),
                Evidence("ttft_p50", typical, "seconds"),
            ),
            actions=(
                Text("Add replicas of the model.", "增加该模型的副本。"),
                Text(
                    "Limit the context (--max-model-len) or quantise the cache (--kv-cache-dtype fp8).",
                    "限制上下文长度（--max-model-len）或量化缓存（--kv-cache-dtype fp8）。",
                ),
            ),
            replica=replica.name,
        )


def _ranks(view: View, replica: ReplicaState) -> Iterator[Finding]:
    assert replica.reading is not None
    running = requests(replica, Quantity.REQUESTS_RUNNING) or 0.0
    uneven = replica.rank_imbalance.get(Quantity.REQUESTS_RUNNING.value)
    if uneven is None or uneven <= limit.RANK_IMBALANCE or running < limit.BALANCE_REQUESTS:
        return
    loads = {rank: numbers.get(Quantity.REQUESTS_RUNNING, 0.0) for rank, numbers in replica.reading.ranks.items()}
    first = max(loads, key=lambda rank: loads[rank])
    last = min(loads, key=lambda rank: loads[rank])
    figures = _window(replica)
    prompts = figures.rank_prompt_token_rates if figures is not None else EMPTY
    yield Finding(
        id="RanksUneven",
        severity=Severity.WARNING,
        subject=_subject(replica),
        summary=Text(
            f"{replica.name}: the scheduler prefers rank {first} ({loads[first]:g} running, rank {last} has "
            f"{loads[last]:g})",
            f"{replica.name}：调度器偏向 rank {first}（{loads[first]:g} 个运行中，rank {last} 为 {loads[last]:g}）",
        ),
        evidence=(
            Evidence("max_to_mean", uneven, "ratio"),
            *(Evidence(f"running_rank_{rank}", load) for rank, load in sorted(loads.items())),
            *(Evidence(f"prompt_tokens_per_second_rank_{rank}", rate) for rank, rate in sorted(prompts.items())),
            *(
                Evidence(f"utilization_gpu_{card.labels.gpu}", card.reading.signals[Signal.UTILIZATION], "ratio")
                for card in view.gpus_of(replica.name)
                if card.reading is not None and Signal.UTILIZATION in card.reading.signals
            ),
        ),
        actions=(_rank_action(first, prompts),),
        replica=replica.name,
    )


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
            "the number of requests, in the engine's data-parallel load balancing or in a gateway that names ranks.",
            f"rank {first} 的提示词 token 是均值的 {times:.1f} 倍：在引擎的数据并行负载均衡或直接指定 rank 的网关中，"
            "按 token 数或 KV 缓存而非请求数均衡。",
        )
    return Text(
        f"Prompts do not explain it: rank {first} gets {times:.1f} times the mean of prompt tokens. Compare the "
        "lengths of answers by rank, and look for a GPU that slows the rank down.",
        f"提示词不是原因：rank {first} 的提示词 token 是均值的 {times:.1f} 倍。请对比各 rank 的回答长度，并检查"
        "是否有 GPU 拖慢该 rank。",
    )


def _paths(view: View) -> Iterator[Finding]:
    for group in view.snapshot.topology.groups:
        gpus = view.gpus_of(group.replica)
        if not group.over_pcie or len(gpus) < 2:
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
            evidence=(Evidence("slowest_path", group.worst), Evidence("gpus", float(len(gpus)))),
            actions=(
                Text(
                    "Use smaller groups inside one PCIe switch, or GPUs with NVLink.",
                    "改用同一 PCIe 交换机内的小组，或带 NVLink 的 GPU。",
                ),
            ),
            replica=group.replica,
        )


def _siblings(view: View) -> Iterator[Finding]:
    """Compare the inter-token latency of the replicas of one model."""
    models: dict[str, list[tuple[ReplicaState, float]]] = defaultdict(list)
    for replica in view.snapshot.replicas:
        figures = _window(replica)
        latency = figures.latency.get(Stage.INTER_TOKEN) if figures is not None else None
        if latency is not None and latency.observations >= limit.SIBLING_TOKENS and 0.5 in latency.quantiles:
            models[replica.labels.model].append((replica, latency.quantiles[0.5]))
    for model, found in models.items():
        fastest, best = min(found, key=lambda pair: pair[1])
        for replica, median in found:
            # Of two replicas with a queue, the one whose steps compute more prompts has the longer median.
            if _queues(replica) and _queues(fastest):
                continue
            if best > 0 and median > limit.SIBLING_SLOWDOWN * best:
                yield Finding(
                    id="ReplicaSlowerThanSiblings",
                    severity=Severity.WARNING,
                    subject=_subject(replica),
                    summary=Text(
                        f"{replica.name} is slow: ITL p50 {median * 1e3:.1f} ms, "
                        f"{fastest.name} has {best * 1e3:.1f} ms on the same model",
                        f"{replica.name} 偏慢：ITL p50 {median * 1e3:.1f} ms，"
                        f"同模型的 {fastest.name} 为 {best * 1e3:.1f} ms",
                    ),
                    evidence=(
                        Evidence("itl_p50", median, "seconds"),
                        Evidence("itl_p50_of_fastest", best, "seconds"),
                        Evidence("model", model),
                    ),
                    actions=(
                        Text(
                            f"Compare its GPUs and its engine arguments with those of {fastest.name}.",
                            f"与 {fastest.name} 对比 GPU 与引擎参数。",
                        ),
                    ),
                    relief=Text(f"Move load off {replica.name}.", f"减少发往 {replica.name} 的流量。"),
                    replica=replica.name,
                )


def _balance(view: View) -> Iterator[Finding]:
    for (model, name), uneven in view.snapshot.replica_imbalance.items():
        if name != Quantity.REQUESTS_RUNNING.value or uneven <= limit.REPLICA_IMBALANCE:
            continue
        loads = {
            replica.name: load
            for replica in view.snapshot.replicas
            if replica.labels.model == model and (load := requests(replica, Quantity.REQUESTS_RUNNING)) is not None
        }
        total = sum(loads.values())
        if total < limit.BALANCE_REQUESTS or len(loads) < 2:
            continue
        if _queues(view.replicas[min(loads, key=lambda replica: loads[replica])]):
            continue  # no weight of a gateway gives more to a replica that has a queue
        busiest = max(loads, key=lambda replica: loads[replica])
        yield Finding(
            id="ReplicasUneven",
            severity=Severity.WARNING,
            subject=Subject(SubjectKind.NODE, model, model),
            summary=Text(
                f"{busiest} has {loads[busiest]:g} of {total:g} running requests of {model}",
                f"{model} 的 {total:g} 个运行中请求里有 {loads[busiest]:g} 个在 {busiest}",
            ),
            evidence=(
                Evidence("max_to_mean", uneven, "ratio"),
                *(Evidence(f"running_{replica}", load) for replica, load in sorted(loads.items())),
            ),
            actions=(Text("Check weights and balancing policy of the gateway.", "检查网关的权重与均衡策略。"),),
        )


def _queues(replica: ReplicaState) -> bool:
    return bool(requests(replica, Quantity.REQUESTS_WAITING))


def _versions(view: View) -> Iterator[Finding]:
    models: dict[tuple[str, str], dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for replica in view.snapshot.replicas:
        if replica.reading is not None and replica.reading.version:
            models[replica.labels.engine, replica.labels.model][replica.reading.version].append(replica.name)
    for (engine, model), versions in models.items():
        if len(versions) > 1:
            listed = ", ".join(f"{version} ({', '.join(names)})" for version, names in sorted(versions.items()))
            yield Finding(
                id="EngineVersionsDiffer",
                severity=Severity.INFO,
                subject=Subject(SubjectKind.NODE, model, model),
                summary=Text(
                    f"Replicas of {model} run different {engine} versions: {listed}",
                    f"{model} 的副本运行不同的 {engine} 版本：{listed}",
                ),
                evidence=tuple(
                    Evidence("version", f"{version}: {', '.join(names)}") for version, names in versions.items()
                ),
                actions=(Text("Finish or roll back the rollout.", "完成或回滚发布。"),),
            )


def _gateways(view: View) -> Iterator[Finding]:
    """Yield gateways that cannot be read; what they send to broken replicas is those replicas' evidence."""
    for gateway in view.snapshot.gateways:
        status = gateway.status
        if status.up or status.reason == "starting" or gateway.last_read_at is None:
            continue
        yield Finding(
            id="GatewayUnreadable",
            severity=Severity.WARNING,
            subject=Subject(SubjectKind.GATEWAY, gateway.name, gateway.name),
            summary=Text(
                f"The metrics of gateway {gateway.name} cannot be read: {status.reason}",
                f"无法读取网关 {gateway.name} 的指标：{status.reason}",
            ),
            evidence=(Evidence("reason", status.reason),),
            actions=(
                Text(
                    "Check that the gateway runs and that its metrics URL is right.",
                    "确认网关在运行且指标 URL 正确。",
                ),
            ),
        )
