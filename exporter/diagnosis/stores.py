"""Findings about KV-cache stores: unreadable, and operations that fail."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from exporter.diagnosis import thresholds as limit
from exporter.diagnosis.history import Past
from exporter.diagnosis.view import View, is_misread, why_down
from exporter.model import EMPTY
from exporter.model.finding import Evidence, Finding, Severity, Subject, SubjectKind
from exporter.model.store import StoreState
from exporter.model.text import Text


def findings(view: View, past: Past) -> Iterator[Finding]:
    """Yield what is wrong with each store."""
    for store in view.snapshot.stores:
        if store.reading is None:
            yield from _unreadable(store)
        else:
            yield from _errors(store, past.store_errors.get(store.name, EMPTY))


def _unreadable(store: StoreState) -> Iterator[Finding]:
    reason = store.status.reason
    if reason == "starting" or (store.last_read_at is None and not is_misread(store.status)):
        return
    yield Finding(
        id="KvStoreUnreadable",
        severity=Severity.WARNING,
        subject=Subject(SubjectKind.STORE, store.name, store.name),
        summary=Text(
            f"The metrics of KV-cache store {store.name} cannot be read: {reason}",
            f"无法读取 KV 缓存存储 {store.name} 的指标：{reason}",
        ),
        evidence=why_down(store.status),
        actions=(
            Text(
                "Start the store, or correct the address of its metrics endpoint.",
                "启动存储，或修正其指标端点的地址。",
            ),
        ),
    )


def _errors(store: StoreState, grown: Mapping[str, float]) -> Iterator[Finding]:
    failed = {operation: count for operation, count in grown.items() if count > limit.STORE_ERRORS}
    if not failed:
        return
    operations = ", ".join(failed)
    yield Finding(
        id="KvStoreErrors",
        severity=Severity.WARNING,
        subject=Subject(SubjectKind.STORE, store.name, store.name),
        summary=Text(
            f"Operations of KV-cache store {store.name} fail: {operations}",
            f"KV 缓存存储 {store.name} 的操作失败：{operations}",
        ),
        evidence=tuple(Evidence(f"errors_{operation}", count) for operation, count in failed.items()),
        actions=(
            Text(
                "Read the store's log. allocation: it is full, and nothing can be evicted; ping, mount, get, put: "
                "the network, or a node of the store.",
                "查看存储的日志。allocation：容量已满且无法淘汰；ping、mount、get、put：网络，或存储的某个节点。",
            ),
        ),
    )
