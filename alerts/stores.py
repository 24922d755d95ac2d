"""Alerts about KV-cache stores: unreadable, and operations that fail."""

from __future__ import annotations

from alerts.panel_ids import REPLICA_STORE_ERRORS, REPLICA_STORES
from alerts.rule import Alert, Component
from alerts.tuning import Tuning
from exporter.catalog import metrics as m
from exporter.diagnosis.thresholds import WINDOW
from exporter.model.finding import Severity
from exporter.model.text import Text
from exporter.promql import increase, select


def alerts(tuning: Tuning) -> tuple[Alert, ...]:
    """Return the alerts about stores."""
    return (_unreadable(), _errors(tuning))


def _unreadable() -> Alert:
    return Alert(
        name="KvStoreUnreadable",
        severity=Severity.WARNING,
        component=Component.ENGINE,
        expr=select(m.KV_STORE_UP).equals(0),
        for_="5m",
        panel=REPLICA_STORES,
        summary=Text(
            "KV-cache store {{ $labels.store }} cannot be scraped from {{ $labels.instance }}",
            "无法从 {{ $labels.instance }} 读取 KV 缓存存储 {{ $labels.store }}",
        ),
        description=Text(
            "Its metrics endpoint has not been read for 5 minutes. If the store is down, engines compute every prompt "
            "again that it held.",
            "已有 5 分钟无法读取其指标端点。若存储已停止，引擎须重新计算它所保存的全部提示词。",
        ),
        action=Text(
            "Start the store, or correct the address of its metrics endpoint.",
            "启动存储，或修正其指标端点的地址。",
        ),
    )


def _errors(tuning: Tuning) -> Alert:
    limit = tuning.thresholds.store_errors
    return Alert(
        name="KvStoreErrors",
        severity=Severity.WARNING,
        component=Component.ENGINE,
        expr=increase(select(m.KV_STORE_ERRORS_TOTAL), WINDOW) > limit.warning,
        for_=limit.for_,
        keep_firing_for="10m",
        panel=REPLICA_STORE_ERRORS,
        summary=Text(
            "{{ $labels.operation }} operations of KV-cache store {{ $labels.store }} fail",
            "KV 缓存存储 {{ $labels.store }} 的 {{ $labels.operation }} 操作失败",
        ),
        description=Text(
            "{{ $value | humanize }} failed in 5 minutes (seen from {{ $labels.instance }}). What is not stored or not "
            "fetched is computed again: first tokens come later.",
            "5 分钟内失败 {{ $value | humanize }} 次（观测自 {{ $labels.instance }}）。未能存入或取回的内容须重新计算："
            "首 token 变慢。",
        ),
        action=Text(
            "Read the store's log. allocation: it is full, and nothing can be evicted; ping, mount, get, put: the "
            "network, or a node of the store.",
            "查看存储的日志。allocation：容量已满且无法淘汰；ping、mount、get、put：网络，或存储的某个节点。",
        ),
    )
