"""Findings about replicas, their ranks and the gateways before them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from exporter.diagnosis import thresholds as limit
from exporter.diagnosis.history import Past
from exporter.diagnosis.idle_gpus import is_computing
from exporter.diagnosis.view import (
    View,
    kv_cache_usage,
    less_load,
    measured,
    replica_subject,
    requests,
    signal,
    why_down,
    window,
)
from exporter.model import CardState, Quantity, ReplicaState, Signal, Stage
from exporter.model.finding import Evidence, Finding, Severity, Subject, SubjectKind
from exporter.model.text import Text

_WAIT = Text("busy without computing, as in a collective that does not end", "繁忙但没有计算，如同集合通信不结束")
_SILENT, _CUT_OFF = Text("does not answer", "无响应"), Text("does not finish its answer", "未完成应答")
_NO_WORK = Text("idle: the engine gives them no work", "空闲：引擎没有下发任务")


def findings(view: View, past: Past) -> Iterator[Finding]:
    """Yield what is wrong with each replica of the snapshot."""
    for replica in view.snapshot.replicas:
        yield from _down(view, past, replica)
        if replica.reading is not None:
            yield from _no_progress(view, replica)
            yield from _stale_ranks(replica)
            yield from _idle_with_queue(view, replica)
            yield from _queue_growing(view, past, replica)
            yield from _errors(view, replica)
            yield from _cache(past, replica)
            yield from _preemptions(past, replica)
    yield from _versions(view)


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


def _down(view: View, past: Past, replica: ReplicaState) -> Iterator[Finding]:
    status = replica.status
    if status.up or status.reason == "starting" or replica.last_read_at is None:
        return
    model, others = replica.labels.model, view.siblings_of(replica)
    sent = _still_sent(view, replica.name)
    known, fault = past.of(replica.name), _CUT_OFF if status.reason == "closed" else _SILENT
    is_loading = known.down_for < limit.LOADING_SECONDS or not known.served_last
    yield Finding(
        id="EngineDown",
        severity=Severity.WARNING if others and is_loading else Severity.CRITICAL,
        subject=replica_subject(replica),
        summary=Text(
            f"{replica.name} {fault.en} ({status.reason})"
            + (sent.en if others else f"; nothing else serves {model}"),
            f"{replica.name} {fault.zh}（{status.reason}）" + (sent.zh if others else f"；没有其他副本提供 {model}"),
        ),
        evidence=(*why_down(status), *_traffic(view, replica.name)),
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
        subject=replica_subject(replica),
        summary=_standstill(replica.name, running or 0.0, waiting or 0.0) + sent,
        evidence=(
            *measured("requests_running", running),
            *measured("requests_waiting", waiting),
            *_traffic(view, replica.name),
            *_elsewhere(view, replica.name),
            *_of_gpus(view, replica.name),
        ),
        actions=(
            *_other_nodes(view, replica.name),
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


def _elsewhere(view: View, name: str) -> tuple[Evidence, ...]:
    """Return under which key, and on how many nodes, a replica has GPUs on other nodes too."""
    place = next((gpu for gpu in view.snapshot.multi_node if gpu.replica == name), None)
    if place is None:
        return ()
    return Evidence("replica_key", place.key), *measured("nodes", place.nodes)


def _other_nodes(view: View, name: str) -> tuple[Text, ...]:
    """Return the step that looks at the other nodes of a replica that spans nodes."""
    if not _elsewhere(view, name):
        return ()
    return (
        Text(
            "Part of its GPUs are on other nodes: look at all of its nodes (shardwatch check URL URL).",
            "它的部分卡在其他节点上：一并检查其所有节点（shardwatch check URL URL）。",
        ),
    )


def _of_gpus(view: View, name: str) -> Iterator[Evidence]:
    """Yield what a replica's GPUs do: whether they wait for each other, get no work, or compute a long step."""
    gpus = [card for card in view.gpus_of(name) if card.reading is not None]
    computing = [is_computing(card) for card in gpus]
    utilization = _mean(gpus, Signal.UTILIZATION)
    if any(computing):
        yield Evidence("gpu_work", Text("still compute", "仍在计算"))
    elif utilization is not None and None not in computing:
        yield Evidence("gpu_work", _WAIT if utilization >= limit.BUSY_UTILIZATION else _NO_WORK)
    yield from measured("utilization_of_gpus", utilization, "ratio")
    yield from measured("sm_active_of_gpus", _mean(gpus, Signal.SM_ACTIVE), "ratio")
    yield from measured("power_of_gpus", _mean(gpus, Signal.POWER), "watts")


def _standstill(name: str, running: float, waiting: float) -> Text:
    if not running:
        return Text(
            f"{name} makes no progress: {waiting:g} requests wait and none is admitted",
            f"{name} 没有进展：{waiting:g} 个请求在排队，但没有一个被调度",
        )
    return Text(
        f"{name} makes no progress: {running:g} running, {waiting:g} waiting, no tokens",
        f"{name} 没有进展：{running:g} 个请求运行、{waiting:g} 个排队，不产出 token",
    )


def _fails(replica: ReplicaState) -> bool:
    figures = window(replica)
    return figures is not None and (figures.error_ratio or 0.0) > limit.ERROR_RATIO_WARNING


def _errors(view: View, replica: ReplicaState) -> Iterator[Finding]:
    figures = window(replica)
    if figures is None or figures.error_ratio is None or not _fails(replica):
        return
    finished = (figures.request_rate or 0.0) * figures.seconds
    if finished < limit.ERROR_REQUESTS:
        return
    yield Finding(
        id="HighErrorRatio",
        severity=Severity.CRITICAL if figures.error_ratio > limit.ERROR_RATIO_CRITICAL else Severity.WARNING,
        subject=replica_subject(replica),
        summary=Text(
            f"{figures.error_ratio:.1%} of the requests to {replica.name} fail",
            f"{replica.name} 有 {figures.error_ratio:.1%} 的请求失败",
        ),
        evidence=(Evidence("error_ratio", figures.error_ratio, "ratio"), Evidence("requests", finished)),
        relief=less_load(replica.name) if any(not _fails(other) for other in view.siblings_of(replica)) else None,
        actions=(
            Text("Read the engine's log for the errors of the failed requests.", "在引擎日志中查看失败请求的错误。"),
        ),
        replica=replica.name,
    )


def _cache(past: Past, replica: ReplicaState) -> Iterator[Finding]:
    """Yield a full KV cache only where first tokens are late: with a queue it is normal at full throughput."""
    usage = kv_cache_usage(replica)
    waiting = requests(replica, Quantity.REQUESTS_WAITING)
    mean = past.of(replica.name).latency.get(Stage.TIME_TO_FIRST_TOKEN)
    if usage is None or usage <= limit.KV_CACHE_USE or not waiting or mean is None:
        return
    if mean.seconds > limit.TTFT_SLOW_SECONDS:
        yield Finding(
            id="KvCachePressure",
            severity=Severity.WARNING,
            subject=replica_subject(replica),
            summary=Text(
                f"{replica.name}: {waiting:g} requests wait for the KV cache ({usage:.0%} used), "
                f"first tokens take {mean.seconds:.1f} s on average",
                f"{replica.name}：{waiting:g} 个请求在排队等待 KV 缓存（已用 {usage:.0%}），"
                f"首 token 平均 {mean.seconds:.1f} 秒",
            ),
            evidence=(
                Evidence("kv_cache_usage", usage, "ratio"),
                Evidence("requests_waiting", waiting),
                Evidence("ttft_mean", mean.seconds, "seconds"),
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


def _queue_growing(view: View, past: Past, replica: ReplicaState) -> Iterator[Finding]:
    """Yield a queue that grew in two steps in a row while the GPUs are busy; a long one that is steady is none."""
    queue, running = past.of(replica.name).queue, requests(replica, Quantity.REQUESTS_RUNNING)
    utilization = _utilization(view, replica.name)
    if not queue or running is None or utilization is None or replica.frozen:
        return
    now, earlier, before = queue
    step = limit.QUEUE_GROWTH * running
    if not (now - earlier > step and earlier - before > step and now >= limit.BALANCE_REQUESTS):
        return
    if utilization < limit.IDLE_WITH_QUEUE_WARNING:
        return
    minutes = limit.QUEUE_STEP_SECONDS / 60
    yield Finding(
        id="QueueGrowing",
        severity=Severity.WARNING,
        subject=replica_subject(replica),
        summary=Text(
            f"The queue of {replica.name} grew by {now - earlier:.0f} to {now:.0f} requests in {minutes:.0f} min; "
            f"its GPUs are {utilization:.0%} utilized",
            f"{replica.name} 的排队在 {minutes:.0f} 分钟内增加 {now - earlier:.0f}，达到 {now:.0f} 个请求；"
            f"GPU 利用率 {utilization:.0%}",
        ),
        evidence=(
            Evidence("requests_waiting", now),
            Evidence("requests_waiting_earlier", earlier),
            Evidence("requests_running", running),
            Evidence("utilization", utilization, "ratio"),
            *_traffic(view, replica.name),
        ),
        actions=(Text("Add replicas of the model, or shed load at the gateway.", "为该模型扩容，或在网关限流。"),),
        replica=replica.name,
    )


def _utilization(view: View, name: str) -> float | None:
    """Return the mean utilization of a replica's GPUs, None where none is known."""
    return _mean(view.gpus_of(name), Signal.UTILIZATION)


def _mean(gpus: Sequence[CardState], name: Signal) -> float | None:
    known = [value for card in gpus if (value := signal(card, name)) is not None]
    return sum(known) / len(known) if known else None


def _asleep_with_queue(replica: ReplicaState, waiting: float) -> Finding:
    return Finding(
        id="EngineIdleWithQueue",
        severity=Severity.WARNING,
        subject=replica_subject(replica),
        summary=Text(
            f"{replica.name} is asleep while {waiting:g} requests wait",
            f"{replica.name} 处于休眠，{waiting:g} 个请求在排队",
        ),
        evidence=(Evidence("requests_waiting", waiting),),
        actions=(Text("Wake it up: POST /wake_up.", "唤醒该副本：POST /wake_up。"),),
        replica=replica.name,
    )


def _idle_with_queue(view: View, replica: ReplicaState) -> Iterator[Finding]:
    waiting, utilization = requests(replica, Quantity.REQUESTS_WAITING), _utilization(view, replica.name)
    if not waiting or utilization is None or utilization >= limit.IDLE_WITH_QUEUE_WARNING or replica.frozen:
        return  # a standstill explains it
    if replica.reading is not None and replica.reading.is_asleep:
        yield _asleep_with_queue(replica, waiting)
        return
    critical = utilization < limit.IDLE_WITH_QUEUE_CRITICAL
    yield Finding(
        id="EngineIdleWithQueue",
        severity=Severity.CRITICAL if critical else Severity.WARNING,
        subject=replica_subject(replica),
        summary=Text(
            f"{replica.name}: {waiting:g} requests wait while its GPUs are {utilization:.0%} utilized",
            f"{replica.name}：{waiting:g} 个请求在排队，而 GPU 利用率仅 {utilization:.0%}",
        ),
        evidence=(
            *measured("requests_running", requests(replica, Quantity.REQUESTS_RUNNING)),
            Evidence("requests_waiting", waiting),
            Evidence("utilization", utilization, "ratio"),
        ),
        actions=(
            Text(
                "Compare running requests with the engine's limits (--max-num-seqs); check for a CPU thread at 100 % "
                "(top -H).",
                "比较运行请求数与引擎上限（--max-num-seqs）；检查是否有 CPU 线程达到 100 %（top -H）。",
            ),
            Text("Restart the engine if its scheduler is stuck.", "若调度器卡住则重启引擎。"),
        ),
        replica=replica.name,
    )


def _preemptions(past: Past, replica: ReplicaState) -> Iterator[Finding]:
    rate = past.of(replica.name).preemption_rate
    if rate is None or rate <= limit.PREEMPTIONS:
        return
    yield Finding(
        id="PreemptionStorm",
        severity=Severity.WARNING,
        subject=replica_subject(replica),
        summary=Text(
            f"{replica.name} preempts {rate:.1f} running requests per second, which are computed again",
            f"{replica.name} 每秒抢占 {rate:.1f} 个运行中的请求，它们需要重新计算",
        ),
        evidence=(Evidence("preemptions_per_second", rate),),
        actions=(
            Text(
                "Lower --max-num-seqs, add replicas, or give the KV cache more memory.",
                "降低 --max-num-seqs、增加副本，或加大 KV 缓存。",
            ),
        ),
        replica=replica.name,
    )


def _stale_ranks(replica: ReplicaState) -> Iterator[Finding]:
    assert replica.reading is not None
    for rank in sorted(replica.reading.stale_ranks):
        yield Finding(
            id="RankStale",
            severity=Severity.WARNING,
            subject=Subject(SubjectKind.REPLICA, f"{replica.name}/{rank}", f"{replica.name}, rank {rank}"),
            summary=Text(
                f"The metrics of rank {rank} of {replica.name} do not change while those of other ranks do",
                f"{replica.name} 的 rank {rank} 的指标不再变化，而其他 rank 的在变化",
            ),
            evidence=(Evidence("rank", rank),),
            actions=(Text("Restart the worker (ray list actors).", "重启该 worker（ray list actors）。"),),
            replica=replica.name,
        )


def _versions(view: View) -> Iterator[Finding]:
    models: dict[tuple[str, str], dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    canaries = _canaries(view)
    for replica in view.snapshot.replicas:
        if replica.reading is not None and replica.reading.version and replica.name not in canaries:
            models[replica.labels.engine, replica.labels.model][replica.reading.version].append(replica.name)
    for (engine, model), versions in models.items():
        if len(versions) > 1:
            listed = ", ".join(f"{version} ({', '.join(names)})" for version, names in sorted(versions.items()))
            yield Finding(
                id="EngineVersionsDiffer",
                severity=Severity.WARNING,
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


def _canaries(view: View) -> frozenset[str]:
    """Return the replicas that run few requests beside the others of their model; one without any is none."""
    models: dict[str, dict[str, float]] = defaultdict(dict)
    for replica in view.snapshot.replicas:
        load = requests(replica, Quantity.REQUESTS_RUNNING)
        if load is not None:
            models[replica.labels.model][replica.name] = load
    return frozenset(
        name
        for loads in models.values()
        for name, load in loads.items()
        if 0 < load < limit.CANARY_SHARE * sum(loads.values()) / len(loads)
    )
