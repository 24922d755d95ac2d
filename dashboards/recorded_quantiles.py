"""Latency quantiles by model, read from recording rules instead of millions of raw series.

These recordings have no label ``instance``: they cover all nodes, whichever are selected.
"""

from __future__ import annotations

from alerts import fleet
from dashboards import active_tuning
from dashboards.errors import DashboardError
from dashboards.variables import selected
from exporter.catalog.spec import Metric
from exporter.promql import Expr


def quantile(metric: Metric, share: float) -> Expr:
    """Return the recorded quantile of a latency by model and engine, in seconds; DashboardError if there is none."""
    wanted = f"{share:g}"
    for group in fleet.groups(active_tuning.get()):
        for recording in group.recordings():
            if recording.noun == metric.name and recording.labels.get("quantile") == wanted:
                return selected(recording.known, quantile=wanted)
    raise DashboardError(f"no rule records the quantile {wanted} of {metric.name}")
