"""The order of nodes by trouble: first what pages, then all other problems."""

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
    """Return the number of conditions that page, by node: firing critical alerts or their conditions, the larger one.

    Alerts cover more (an engine with requests that generates no tokens), but fire later, and need the rules.
    """
    noticed = _noticed_by_users()
    firing = count_by(
        select(ALERTS, alertstate="firing", severity="critical", job=regex("$job"), instance=regex("$instance")),
        "instance",
    )
    return (firing > noticed) | noticed


def problems() -> Expr:
    """Return the number of all problems by node, those that page included."""
    return _sum(pages(), _causes())


def _noticed_by_users() -> Expr:
    """Return the number of conditions that users notice, by node; 0 where there are none."""
    dead = max_by(1 - targets(), "instance")
    switch = selected(m.GPU_NVSWITCH_SXID_LAST_TIMESTAMP_SECONDS, severity=FATAL_SEVERITY)
    parts = (
        sum_by(1 - selected(m.GPU_UP), "instance"),
        sum_by(1 - selected(m.LLM_UP), "instance"),
        sum_by(selected(m.LLM_FROZEN), "instance"),
        _count(selected(m.LLM_ERROR_RATIO, window=EXPORTER_WINDOW) > _critical(), "replica"),
        _count(since(switch) < RECENT_SECONDS, "pci_bus_id"),
    )
    return _sum(dead, parts)


def _critical() -> float:
    threshold = THRESHOLDS.error_ratio
    return threshold.warning if threshold.critical is None else threshold.critical


def _causes() -> Iterable[Expr]:
    """Yield the numbers of causes by node."""
    lost = over_time("max", selected(m.GPU_ECC_ERRORS_TOTAL, error="uncorrected", scope="volatile"), "2m") > 0
    full = selected(m.GPU_MEMORY_USED_BYTES) / selected(m.GPU_MEMORY_TOTAL_BYTES) > THRESHOLDS.gpu_memory_used.warning
    hot = selected(m.GPU_TEMPERATURE_MARGIN_CELSIUS) < THRESHOLDS.temperature_margin.warning
    held = selected(m.GPU_CLOCK_EVENT_ACTIVE, reason=without_value("sw_power_cap")).equals(1)
    queries = selected(m.GPU_RECOVERY_ACTION, action=without_value("none")).equals(1)
    flags = (m.GPU_ROW_REMAP_FAILED, m.GPU_ROW_REMAP_PENDING, m.GPU_PCIE_LINK_DEGRADED, m.GPU_FABRIC_PROBLEM_INFO)
    useless = selected(m.GPU_XID_LAST_TIMESTAMP_SECONDS, xid=regex("|".join(str(code) for code in sorted(FATAL))))
    down, recent = selected(m.GPU_NVLINK_LINKS_DOWN) > 0, since(useless) < RECENT_SECONDS
    gpu_problems = (selected(m.GPU_STRAGGLER), full, hot, held, lost, queries, down, recent)
    for problem in (*gpu_problems, *(selected(flag).equals(1) for flag in flags)):
        yield _count(problem, "gpu")
    failing = selected(m.LLM_ERROR_RATIO, window=EXPORTER_WINDOW) > THRESHOLDS.error_ratio.warning
    yield _count(failing <= _critical(), "replica")  # above, it pages
    yield _count(
        selected(m.GPU_UTILIZATION_SPREAD_RATIO, scope="replica") > THRESHOLDS.utilization_spread.warning, "group"
    )


def _count(bad: Expr, *each: str) -> Expr:
    """Return the number by node, each GPU or replica counted once."""
    return count_by(max_by(bad, "instance", *each), "instance")


def _sum(first: Expr, parts: Iterable[Expr]) -> Expr:
    """Return the sum; a part without data counts as 0, so that the sum is never absent."""
    for part in parts:
        first = first + (part | max_by(targets(), "instance") * 0)
    return first
