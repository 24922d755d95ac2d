"""How bad a node is, so that the worst stands first: what pages, and everything else that is wrong on it."""

from __future__ import annotations

from collections.abc import Iterable

from alerts.recordings import RECENT_SECONDS
from dashboards.thresholds import THRESHOLDS
from dashboards.variables import EXPORTER_WINDOW, selected, targets
from exporter.catalog import metrics as m
from exporter.model.sxid import FATAL_SEVERITY
from exporter.model.xid_catalog import FATAL
from exporter.promql import (
    ALERTS,
    Expr,
    count_by,
    max_by,
    over_time,
    regex,
    select,
    since,
    sum_by,
    without_value,
)


def pages() -> Expr:
    """Count what wakes somebody for a node: alerts that page, or what they would page for, whichever is more.

    Alerts know more (engines that run requests and make no token), but only after a while, and not without the rules.
    """
    felt = _felt()
    firing = count_by(
        select(ALERTS, alertstate="firing", severity="critical", job=regex("$job"), instance=regex("$instance")),
        "instance",
    )
    return (firing > felt) | felt


def problems() -> Expr:
    """Count what is wrong on a node, what pages included."""
    return _added(pages(), _causes())


def _felt() -> Expr:
    """Count what users feel; 0 where there is nothing of it."""
    dead = max_by(1 - targets(), "instance")
    switch = selected(m.GPU_NVSWITCH_SXID_LAST_TIMESTAMP_SECONDS, severity=FATAL_SEVERITY)
    parts = (
        sum_by(1 - selected(m.GPU_UP), "instance"),
        sum_by(1 - selected(m.LLM_UP), "instance"),
        sum_by(selected(m.LLM_FROZEN), "instance"),
        _count(selected(m.LLM_ERROR_RATIO, window=EXPORTER_WINDOW) > _critical(), "replica"),
        _count(since(switch) < RECENT_SECONDS, "pci_bus_id"),
    )
    return _added(dead, parts)


def _critical() -> float:
    threshold = THRESHOLDS.error_ratio
    return threshold.warning if threshold.critical is None else threshold.critical


def _causes() -> Iterable[Expr]:
    """Yield what makes them feel it, or will, by node."""
    lost = over_time("max", selected(m.GPU_ECC_ERRORS_TOTAL, error="uncorrected", scope="volatile"), "2m") > 0
    full = selected(m.GPU_MEMORY_USED_BYTES) / selected(m.GPU_MEMORY_TOTAL_BYTES) > THRESHOLDS.gpu_memory_used.warning
    hot = selected(m.GPU_TEMPERATURE_MARGIN_CELSIUS) < THRESHOLDS.temperature_margin.warning
    held = selected(m.GPU_CLOCK_EVENT_ACTIVE, reason=without_value("sw_power_cap")).equals(1)
    queries = selected(m.GPU_RECOVERY_ACTION, action=without_value("none")).equals(1)
    flags = (m.GPU_ROW_REMAP_FAILED, m.GPU_ROW_REMAP_PENDING, m.GPU_PCIE_LINK_DEGRADED, m.GPU_FABRIC_PROBLEM_INFO)
    useless = selected(m.GPU_XID_LAST_TIMESTAMP_SECONDS, xid=regex("|".join(str(code) for code in sorted(FATAL))))
    down, recent = selected(m.GPU_NVLINK_LINKS_DOWN) > 0, since(useless) < RECENT_SECONDS
    cards = (selected(m.GPU_STRAGGLER), full, hot, held, lost, queries, down, recent)
    for one in (*cards, *(selected(flag).equals(1) for flag in flags)):
        yield _count(one, "gpu")
    failing = selected(m.LLM_ERROR_RATIO, window=EXPORTER_WINDOW) > THRESHOLDS.error_ratio.warning
    yield _count(failing <= _critical(), "replica")  # beyond, it pages
    yield _count(
        selected(m.GPU_UTILIZATION_SPREAD_RATIO, scope="replica") > THRESHOLDS.utilization_spread.warning, "group"
    )


def _count(bad: Expr, *each: str) -> Expr:
    """Count by node, each card or replica once."""
    return count_by(max_by(bad, "instance", *each), "instance")


def _added(first: Expr, parts: Iterable[Expr]) -> Expr:
    """Add up; what a node has nothing of is 0 there, so that the sum is never absent."""
    for part in parts:
        first = first + (part | max_by(targets(), "instance") * 0)
    return first
