"""Alerts about GPU memory errors: uncorrectable and corrected ECC errors, row remapping."""

from __future__ import annotations

from alerts import lookups
from alerts.panel_ids import GPU_ECC, GPU_REMAP, GPU_VERDICTS
from alerts.rule import Alert, Component
from alerts.tuning import Tuning
from exporter.catalog import metrics as m
from exporter.model.finding import Severity
from exporter.model.text import Text
from exporter.promql import increase, over_time, select


def alerts(tuning: Tuning) -> tuple[Alert, ...]:
    """Return the alerts about errors of memory."""
    return (_uncorrectable(), _corrected(tuning), _sram(), _remap_pending(), _remap_failed())


def _uncorrectable() -> Alert:
    errors = select(m.GPU_ECC_ERRORS_TOTAL, error="uncorrected", scope="volatile")
    # A level, not an increase: the counter is volatile, so anything above 0 happened since the last reset of the GPU,
    # and increase() would miss errors before the first scrape.
    return Alert(
        name="GpuEccUncorrectable",
        severity=Severity.WARNING,
        component=Component.GPU,
        expr=over_time("max", errors, "2m") > 0,
        for_="1m",
        panel=GPU_VERDICTS,
        summary=Text(
            "GPU {{ $labels.gpu }} on {{ $labels.instance }} has uncorrectable memory errors",
            "{{ $labels.instance }} 的 {{ $labels.gpu }} 号卡出现不可纠正的显存错误",
        ),
        description=Text(
            "{{ $value | humanize }} uncorrectable ECC errors since the last reset of the GPU ("
            "{{ $labels.uuid }}). The process that used the affected memory was ended.",
            "自上次复位以来该卡（{{ $labels.uuid }}）有 {{ $value | humanize }} 次不可纠正的 ECC 错误。使用受影响"
            "显存的进程已被终止。",
        )
        + lookups.XID,
        action=Text(
            "Drain the GPU's replicas and reset it, so that the row is remapped. If it recurs within a month, "
            "request service.",
            "排空该卡上的副本并复位，以重映射坏行；一个月内再次出现则报修。",
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
            "GPU {{ $labels.gpu }} on {{ $labels.instance }} corrects unusually many memory errors",
            "{{ $labels.instance }} 的 {{ $labels.gpu }} 号卡纠正的显存错误异常多",
        ),
        description=Text(
            "{{ $value | humanize }} corrected ECC errors in 1 day ({{ $labels.uuid }}). No data was lost.",
            "1 天内纠正 {{ $value | humanize }} 次 ECC 错误（{{ $labels.uuid }}）。没有数据丢失。",
        ),
        action=Text(
            "Schedule the vendor's field diagnostic at a quiet hour.",
            "择机运行厂商诊断程序。",
        ),
    )


def _sram() -> Alert:
    return Alert(
        name="GpuSramEccThreshold",
        severity=Severity.WARNING,
        component=Component.GPU,
        expr=select(m.GPU_SRAM_ECC_THRESHOLD_EXCEEDED).equals(1),
        for_="1m",
        panel=GPU_VERDICTS,
        summary=Text(
            "GPU {{ $labels.gpu }} on {{ $labels.instance }} exceeds its threshold of SRAM errors: it needs service",
            "{{ $labels.instance }} 的 {{ $labels.gpu }} 号卡 SRAM 错误超过阈值，需要报修",
        ),
        description=Text(
            "{{ $labels.uuid }} has had more uncorrectable ECC errors in SRAM than its manufacturer accepts. SRAM has "
            "no spare rows: a reset does not repair it.",
            "{{ $labels.uuid }} 的 SRAM 不可纠正 ECC 错误超过厂商允许的数量。SRAM 没有备用行，复位无法修复。",
        ),
        action=Text(
            "Take the GPU out of service and run the vendor's field diagnostic; it may qualify for replacement.",
            "将该卡下线并运行厂商诊断；可能符合更换条件。",
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
            "GPU {{ $labels.gpu }} on {{ $labels.instance }} needs a reset to remap a memory row",
            "{{ $labels.instance }} 的 {{ $labels.gpu }} 号卡需要复位以重映射显存行",
        ),
        description=Text(
            "A faulty row of {{ $labels.uuid }} is remapped at the next reset of the GPU; until then it may fail "
            "again.",
            "{{ $labels.uuid }} 的坏行在下次复位时才会重映射，在此之前可能再次出错。",
        ),
        action=Text(
            "Drain the GPU's replicas and reset it at a quiet hour.",
            "择机排空该卡上的副本并复位。",
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
            "Row remapping failed on GPU {{ $labels.gpu }} on {{ $labels.instance }}: it needs service",
            "{{ $labels.instance }} 的 {{ $labels.gpu }} 号卡显存行重映射失败，需要报修",
        ),
        description=Text(
            "{{ $labels.uuid }} has no spare rows left, or the remapping failed.",
            "{{ $labels.uuid }} 的备用行已用尽，或重映射失败。",
        ),
        action=Text(
            "Take the GPU out of service and run the vendor's field diagnostic; it qualifies for replacement.",
            "将该卡下线并运行厂商诊断；符合更换条件。",
        ),
    )
