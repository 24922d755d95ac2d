"""Alerts about a card's memory that errs: what was lost, what is corrected often, rows that must be replaced."""

from __future__ import annotations

from alerts.panel_ids import GPU_ECC, GPU_REMAP, GPU_VERDICTS
from alerts.rule import Alert, Component, Severity
from alerts.text import Text
from alerts.tuning import Tuning
from exporter.catalog import metrics as m
from exporter.promql import increase, over_time, select


def alerts(tuning: Tuning) -> tuple[Alert, ...]:
    """Give the alerts about errors of memory."""
    return (_uncorrectable(), _corrected(tuning), _remap_pending(), _remap_failed())


def _uncorrectable() -> Alert:
    errors = select(m.GPU_ECC_ERRORS_TOTAL, error="uncorrected", scope="volatile")
    # A level, not an increase: the counter is volatile, so anything above 0 happened since the last reset of the
    # card, and an increase would miss what happened before the first scrape.
    return Alert(
        name="GpuEccUncorrectable",
        severity=Severity.WARNING,
        component=Component.GPU,
        expr=over_time("max", errors, "2m") > 0,
        for_="1m",
        panel=GPU_VERDICTS,
        summary=Text(
            "Card {{ $labels.gpu }} of {{ $labels.instance }} has uncorrectable memory errors",
            "{{ $labels.instance }} 的 {{ $labels.gpu }} 号卡出现不可纠正的显存错误",
        ),
        description=Text(
            "{{ $value | humanize }} uncorrectable errors since the card was last reset ({{ $labels.uuid }}). "
            "Whatever stood in those cells is lost; the process that held them was ended.",
            "自该卡（{{ $labels.uuid }}）上次复位以来有 {{ $value | humanize }} 次不可纠正错误。"
            "相应单元中的数据已丢失，占用它们的进程已被终止。",
        ),
    )


def _corrected(tuning: Tuning) -> Alert:
    limit = tuning.thresholds.corrected_ecc
    errors = select(m.GPU_ECC_ERRORS_TOTAL, error="corrected", scope="volatile")
    return Alert(
        name="GpuEccCorrectedOften",
        severity=Severity.INFO,
        component=Component.GPU,
        expr=increase(errors, "1d") > limit.warning,
        for_=limit.for_,
        panel=GPU_ECC,
        summary=Text(
            "Card {{ $labels.gpu }} of {{ $labels.instance }} corrects unusually many memory errors",
            "{{ $labels.instance }} 的 {{ $labels.gpu }} 号卡纠正的显存错误异常多",
        ),
        description=Text(
            "{{ $value | humanize }} corrected errors in a day ({{ $labels.uuid }}). Nothing is lost yet; plan a "
            "field diagnostic.",
            "一天内纠正了 {{ $value | humanize }} 次错误（{{ $labels.uuid }}）。目前没有数据丢失，请安排诊断。",
        ),
    )


def _remap_pending() -> Alert:
    return Alert(
        name="GpuRowRemapPending",
        severity=Severity.WARNING,
        component=Component.GPU,
        expr=select(m.GPU_ROW_REMAP_PENDING).equals(1),
        for_="5m",
        panel=GPU_REMAP,
        summary=Text(
            "Card {{ $labels.gpu }} of {{ $labels.instance }} needs a reset to replace a memory row",
            "{{ $labels.instance }} 的 {{ $labels.gpu }} 号卡需要复位以替换显存行",
        ),
        description=Text(
            "A bad row of {{ $labels.uuid }} is replaced at the next reset of the card; until then it may fail "
            "again. Drain and reset when it suits.",
            "{{ $labels.uuid }} 的坏行要到下次复位才会被替换，在此之前可能再次出错。请择机迁走负载并复位。",
        ),
    )


def _remap_failed() -> Alert:
    return Alert(
        name="GpuRowRemapFailed",
        severity=Severity.WARNING,
        component=Component.GPU,
        expr=select(m.GPU_ROW_REMAP_FAILED).equals(1),
        for_="1m",
        panel=GPU_VERDICTS,
        summary=Text(
            "Card {{ $labels.gpu }} of {{ $labels.instance }} could not replace a memory row: it needs service",
            "{{ $labels.instance }} 的 {{ $labels.gpu }} 号卡无法替换显存行，需要送修",
        ),
        description=Text(
            "{{ $labels.uuid }} has run out of spare rows, or the replacement failed. Take it out of service and "
            "run the vendor's field diagnostic.",
            "{{ $labels.uuid }} 的备用行已用尽或替换失败。请将其下线并运行厂商诊断。",
        ),
    )
