"""Findings about replicas that compare with the past or look ahead: restarts, hit rates, certificates."""

from __future__ import annotations

from collections.abc import Iterator

from exporter.diagnosis import thresholds as limit
from exporter.diagnosis.history import Past, ReplicaPast
from exporter.diagnosis.view import View, accepted_length, accepted_ratio, longest_window, replica_subject
from exporter.model import ReplicaState
from exporter.model.finding import Evidence, Finding, Severity
from exporter.model.text import Text

_DAY = 86_400.0


def findings(view: View, past: Past) -> Iterator[Finding]:
    """Yield what has become worse with each replica, or will."""
    for replica in view.snapshot.replicas:
        known = past.of(replica.name)
        yield from _restarting(view, replica, known.restarts)
        yield from _hit_rate(replica, known)
        yield from _acceptance(replica, known)
        yield from _certificate(view, replica)


def _restarting(view: View, replica: ReplicaState, restarts: int) -> Iterator[Finding]:
    if restarts <= limit.ENGINE_RESTARTS:
        return
    name, minutes = replica.name, limit.RESTART_SECONDS / 60
    yield Finding(
        id="EngineRestarting",
        severity=Severity.WARNING,
        subject=replica_subject(replica),
        summary=Text(
            f"{name} restarted {restarts} times in {minutes:.0f} minutes",
            f"{name} 在 {minutes:.0f} 分钟内重启了 {restarts} 次",
        ),
        evidence=(Evidence("restarts", float(restarts)),),
        actions=(
            Text(
                "Read the engine's log for why it ended: out of memory, a lost worker, a failed liveness probe.",
                "查看引擎日志中的退出原因：内存不足、worker 丢失、存活探针失败。",
            ),
        ),
        relief=view.relief(name),
        replica=name,
    )


def _hit_rate(replica: ReplicaState, known: ReplicaPast) -> Iterator[Finding]:
    before, lookups, figures = known.hit_ratio, known.lookup_rate, longest_window(replica)
    if before is None or before <= limit.HIT_RATIO_PAST or figures is None or figures.hit_ratio is None:
        return
    if figures.hit_ratio >= limit.HIT_RATIO_OF_PAST * before or lookups is None or lookups <= limit.HIT_LOOKUPS:
        return
    yield Finding(
        id="PrefixCacheHitRateDropped",
        severity=Severity.WARNING,
        subject=replica_subject(replica),
        summary=Text(
            f"The prefix-cache hit rate of {replica.name} dropped from {before:.0%} to {figures.hit_ratio:.0%}",
            f"{replica.name} 的前缀缓存命中率从 {before:.0%} 降至 {figures.hit_ratio:.0%}",
        ),
        evidence=(
            Evidence("hit_ratio", figures.hit_ratio, "ratio"),
            Evidence("hit_ratio_before", before, "ratio"),
            Evidence("lookups_per_second", lookups),
        ),
        actions=(
            Text(
                "Check whether prompts changed (a timestamp at the start?) and whether prefix routing changed.",
                "检查提示词是否改变（开头加了时间戳？）以及前缀路由是否改变。",
            ),
            Text("Check the room for cached blocks (KV cache used).", "检查缓存块的空间（KV 缓存使用率）。"),
        ),
        replica=replica.name,
    )


def _acceptance(replica: ReplicaState, known: ReplicaPast) -> Iterator[Finding]:
    for now, before, floor, unit in (
        (accepted_ratio(replica), known.accepted_ratio, limit.ACCEPTANCE_PAST, "ratio"),
        (accepted_length(replica), known.accepted_length, limit.ACCEPTED_LENGTH_PAST, "tokens"),
    ):
        rate = known.generation_rate
        if now is None or before is None or before <= floor or rate is None or rate <= limit.ACCEPTANCE_TOKENS:
            continue
        if now >= limit.ACCEPTANCE_OF_PAST * before:
            continue
        was, fell = (f"{value:.0%}" if unit == "ratio" else f"{value:.1f} a draft" for value in (before, now))
        was_zh, fell_zh = (text.replace(" a draft", " 个/草稿") for text in (was, fell))
        yield Finding(
            id="SpeculationAcceptanceDropped",
            severity=Severity.WARNING,
            subject=replica_subject(replica),
            summary=Text(
                f"The speculated tokens that {replica.name} accepts dropped from {was} to {fell}",
                f"{replica.name} 接受的投机 token 从 {was_zh} 降至 {fell_zh}",
            ),
            evidence=(
                Evidence("accepted", now, unit),
                Evidence("accepted_before", before, unit),
                Evidence("generated_tokens_per_second", rate),
            ),
            actions=(
                Text(
                    "Check whether the model or its draft model was exchanged alone, and whether prompts or sampling "
                    "changed.",
                    "检查是否只更换了模型或草稿模型之一，以及提示词或采样是否改变。",
                ),
                Text("Draft fewer tokens, or switch speculation off.", "减少草稿 token 数，或关闭投机解码。"),
            ),
            replica=replica.name,
        )


def _certificate(view: View, replica: ReplicaState) -> Iterator[Finding]:
    if replica.certificate_expires is None:
        return
    remaining = replica.certificate_expires - view.snapshot.unix_time
    if remaining >= limit.CERTIFICATE_REMAINING:
        return
    days = max(0.0, remaining) / _DAY
    yield Finding(
        id="CertificateExpires",
        severity=Severity.WARNING,
        subject=replica_subject(replica),
        summary=Text(
            f"The TLS certificate of {replica.name} "
            + (f"expires in {days:.1f} days" if remaining > 0 else "has expired"),
            f"{replica.name} 的 TLS 证书" + (f"将在 {days:.1f} 天后过期" if remaining > 0 else "已过期"),
        ),
        evidence=(Evidence("remaining", max(0.0, remaining), "seconds"),),
        actions=(Text("Renew the certificate and restart the engine.", "更新证书并重启引擎。"),),
        replica=replica.name,
    )
