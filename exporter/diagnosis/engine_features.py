"""Findings about features of engines that not every engine has: disaggregation, LoRA adapters."""

from __future__ import annotations

from collections.abc import Iterator

from exporter.diagnosis import thresholds as limit
from exporter.diagnosis.history import Past
from exporter.diagnosis.view import View, kv_cache_usage, measured, replica_subject, requests
from exporter.model import Detail, Quantity, ReplicaState, Stage
from exporter.model.finding import Evidence, Finding, Severity
from exporter.model.text import Text


def findings(view: View, past: Past) -> Iterator[Finding]:
    """Yield what is wrong with features of each replica of the snapshot."""
    for replica in view.snapshot.replicas:
        if replica.reading is not None:
            yield from _transfers(past, replica)
            yield from _adapters(past, replica)


def _transfers(past: Past, replica: ReplicaState) -> Iterator[Finding]:
    known = past.of(replica.name)
    failed, finished = known.transfers_failed, known.finished
    if failed is None or not finished or failed <= limit.TRANSFERS_FAILED:
        return
    if failed / finished <= limit.TRANSFER_FAILURES:
        return
    yield Finding(
        id="KvTransfersFail",
        severity=Severity.WARNING,
        subject=replica_subject(replica),
        summary=Text(
            f"{failed:.0f} transfers of KV caches of {replica.name} failed in 5 minutes; their prompts are computed "
            "again, or their requests fail",
            f"{replica.name} 在 5 分钟内有 {failed:.0f} 次 KV 缓存传输失败；对应的提示需重新计算，或请求失败",
        ),
        evidence=(
            Evidence("failed_transfers", failed),
            Evidence("requests", finished),
            Evidence("failures_to_requests", failed / finished, "ratio"),
        ),
        actions=(
            Text(
                "Check the network adapters and the path between prefill and decode, and whether the decode replicas "
                "take the caches in time.",
                "检查网卡以及预填充与解码之间的路径，以及解码副本是否及时取走缓存。",
            ),
        ),
        replica=replica.name,
    )


def _adapters(past: Past, replica: ReplicaState) -> Iterator[Finding]:
    slots = _lora(replica, "total")
    used, requested = _lora(replica, "used"), _lora(replica, "requested")
    waiting = requests(replica, Quantity.REQUESTS_WAITING)
    first_token = past.of(replica.name).latency.get(Stage.TIME_TO_FIRST_TOKEN)
    if not slots or used is None or used / slots < limit.LORA_SLOTS or not waiting or first_token is None:
        return
    # Slots stay taken by adapters that nobody uses; a full KV cache explains the queue without them.
    if first_token.seconds <= limit.TTFT_SLOW_SECONDS or (kv_cache_usage(replica) or 0.0) > limit.KV_CACHE_USE:
        return
    yield Finding(
        id="LoraSlotsExhausted",
        severity=Severity.WARNING,
        subject=replica_subject(replica),
        summary=Text(
            f"{replica.name}: {waiting:g} requests wait while all {slots:g} LoRA slots are in use, first tokens take "
            f"{first_token.seconds:.1f} s on average",
            f"{replica.name}：{slots:g} 个 LoRA 槽位已用完，{waiting:g} 个请求在排队，"
            f"首 token 平均 {first_token.seconds:.1f} 秒",
        ),
        evidence=(
            Evidence("lora_slots", slots),
            *measured("adapters_requested", requested),
            Evidence("requests_waiting", waiting),
            Evidence("ttft_mean", first_token.seconds, "seconds"),
        ),
        actions=(
            Text(
                "Raise the number of adapters per batch (--max-loras, --max-loras-per-batch), or give frequent "
                "adapters replicas of their own.",
                "提高每批适配器数（--max-loras、--max-loras-per-batch），或为常用适配器单设副本。",
            ),
        ),
        replica=replica.name,
    )


def _lora(replica: ReplicaState, state: str) -> float | None:
    """Return a number of slots or adapters summed over the ranks, None where the engine tells none."""
    assert replica.reading is not None
    by_rank = replica.reading.details.get(Detail.LORA_SLOTS, {}).values()
    values = [words[state] for words in by_rank if state in words]
    return sum(values) if values else None
