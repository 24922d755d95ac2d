"""What is well on a node, in the lines of ``shardwatch check`` that stand below the findings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from exporter.cli.terminal import printable
from exporter.diagnosis import thresholds as limit
from exporter.diagnosis.verdict_names import VERDICT_NAMES
from exporter.model import Quantity, Signal
from exporter.model.finding import SubjectKind, VerdictState
from exporter.model.text import Language, Text
from exporter.render import api
from exporter.web import values

MAX_NAMES = 12  # of replicas or backends on one line
_XID_SOURCES = frozenset({"nvml_events", "kernel_log"})


def well(node: api.NodeDocument, language: Language) -> Iterator[str]:
    """Yield a line each for GPUs, replicas and every gateway, of what was read and is as it should be."""
    for parts in (_gpus(node), _verdicts(node), *(_gateway(node, gateway) for gateway in node.gateways)):
        if shown := [printable(part.in_(language)) for part in parts]:
            yield "  ".join(shown)


def _gpus(node: api.NodeDocument) -> Iterator[Text]:
    gpus = node.gpus
    if gpus and all(gpu.up for gpu in gpus):
        yield Text(f"GPUs {len(gpus)}/{len(gpus)} up", f"GPU {len(gpus)}/{len(gpus)} 正常")
    recent = any(
        xid.last is not None and node.time - xid.last <= limit.XID_RECENT_SECONDS for gpu in gpus for xid in gpu.xids
    )
    if gpus and not recent and any(source.up and source.source in _XID_SOURCES for source in node.sources):
        yield Text("XID none", "无 XID")
    name = Signal.ECC_UNCORRECTED_VOLATILE.value
    errors = [gpu.signals[name] for gpu in gpus if name in gpu.signals]
    if errors and not any(errors):
        yield Text("uncorrectable ECC errors 0", "不可纠正 ECC 错误 0")
    links = [(gpu.nvlinks_up, gpu.nvlinks) for gpu in gpus if gpu.nvlinks]
    if links and all(up == total for up, total in links):
        totals = sorted({total for _, total in links if total})
        yield _same(f"NVLink {' / '.join(f'{total}/{total}' for total in totals)}")
    usages = [(replica.replica, usage) for replica in node.replicas if (usage := _kv_cache(replica)) is not None]
    if usages:
        named = _listed([f"{name} {values.percent(usage)}" for name, usage in usages])
        yield Text("KV cache ", "KV 缓存 ") + named


def _kv_cache(replica: api.ReplicaDocument) -> float | None:
    """Return the KV cache usage of a replica's fullest rank."""
    name = Quantity.KV_CACHE_USAGE.value
    return max((rank[name] for rank in replica.ranks.values() if name in rank), default=None)


def _verdicts(node: api.NodeDocument) -> Iterator[Text]:
    serving = [replica.replica for replica in node.replicas if replica.verdict.state is VerdictState.SERVE]
    if serving:
        yield Text("verdict ", "判定为") + VERDICT_NAMES[VerdictState.SERVE] + Text(": ", "：") + _listed(serving)


def _gateway(node: api.NodeDocument, gateway: api.GatewayDocument) -> Iterator[Text]:
    """Yield shares, errors and queue of a gateway, unless it fails, feeds ejected replicas, or a finding names it."""
    errors = [backend.error_ratio for backend in gateway.backends if backend.error_ratio is not None]
    ejected = {replica.replica for replica in node.replicas if replica.verdict.state is VerdictState.EJECT}
    shares = [(backend.replica or backend.backend, backend.share) for backend in gateway.backends]
    if (
        not gateway.up
        or _is_named(node.findings, gateway.gateway)
        or max(errors, default=0.0) > limit.ERROR_RATIO_WARNING
        or any(name in ejected and (share or 0.0) > limit.GATEWAY_SHARE for name, share in shares)
    ):
        return
    yield Text(f"gateway {gateway.gateway}", f"网关 {gateway.gateway}")
    if known := [f"{name} {values.percent(share)}" for name, share in shares if share is not None]:
        yield _listed(known)
    if errors:
        highest = values.percent(max(errors))
        yield (
            Text(f"errors up to {highest}", f"错误率最高 {highest}")
            if any(errors)
            else Text("errors 0%", "错误率 0%")
        )
    queued = [backend.queued for backend in gateway.backends if backend.queued is not None]
    if queued:
        yield Text(f"queued {sum(queued):g}", f"排队 {sum(queued):g}")


def _is_named(findings: Sequence[api.FindingDocument], gateway: str, depth: int = 0) -> bool:
    return depth < 4 and any(
        (finding.subject_kind is SubjectKind.GATEWAY and finding.subject.partition("/")[0] == gateway)
        or _is_named(finding.causes, gateway, depth + 1)
        for finding in findings
    )


def _listed(names: Sequence[str]) -> Text:
    more = len(names) - MAX_NAMES
    shown = "  ".join(names[:MAX_NAMES])
    return _same(shown) + (Text(f"  and {more} more", f"  等共 {len(names)} 个") if more > 0 else _same(""))


def _same(text: str) -> Text:
    return Text(text, text)
