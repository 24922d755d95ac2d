"""What the rules record by model, for the board over all nodes: a few series where raw ones are tens of millions.

Recordings of a model have no label instance: they are of all its nodes, whichever are chosen.
"""

from __future__ import annotations

from alerts import fleet
from dashboards import active_tuning
from dashboards.errors import DashboardError
from dashboards.variables import selected
from exporter.catalog.spec import Metric
from exporter.promql import Expr


def quantile(metric: Metric, share: float) -> Expr:
    """Return a latency's quantile by model and engine, from summed buckets, in seconds; BoardError if none is recorded."""
    wanted = f"{share:g}"
    for group in fleet.groups(active_tuning.get()):
        for one in group.recordings():
            if one.noun == metric.name and one.labels.get("quantile") == wanted:
                return selected(one.known, quantile=wanted)
    raise DashboardError(f"no rule records the quantile {wanted} of {metric.name}")
