"""Histograms of a replica as quantiles and as heatmaps.

Without requests these queries return nothing, rather than NaN or zero, so that the panel shows its no-data text.
"""

from __future__ import annotations

from dashboards.panels import series
from dashboards.panels.factories import Query
from dashboards.variables import RATE_INTERVAL, selected_buckets, selected_count, selected_sum
from exporter.catalog.spec import Metric
from exporter.model.text import Text
from exporter.promql import Expr, and_on, histogram_quantile, rate, sum_by

WHOSE = ("instance", "replica")
REPLICA_NAME = "{{replica}} {{instance}}"  # replicas of several nodes may share a name


def curves(metric: Metric) -> tuple[Query, ...]:
    """Return p50, p95, p99 and mean of a histogram by replica, from summed buckets."""
    return (
        series(lambda: _quantile(metric, 0.5), f"{REPLICA_NAME} p50"),
        series(lambda: _quantile(metric, 0.95), f"{REPLICA_NAME} p95"),
        series(lambda: _quantile(metric, 0.99), f"{REPLICA_NAME} p99"),
        series(lambda: _mean(metric), Text(f"{REPLICA_NAME} mean", f"{REPLICA_NAME} 平均"), dashed=True),
    )


def spread_out(metric: Metric) -> Expr:
    """Return the buckets of all selected replicas, while they contain observations."""
    some = sum_by(rate(selected_count(metric), RATE_INTERVAL)) > 0
    return and_on(sum_by(rate(selected_buckets(metric), RATE_INTERVAL), "le"), some, on=())


def _quantile(metric: Metric, share: float) -> Expr:
    buckets = sum_by(rate(selected_buckets(metric), RATE_INTERVAL), "le", *WHOSE)
    return histogram_quantile(share, buckets).as_unit(metric.unit) >= 0


def _mean(metric: Metric) -> Expr:
    each = sum_by(rate(selected_sum(metric), RATE_INTERVAL), *WHOSE).as_unit(metric.unit)
    return (each / sum_by(rate(selected_count(metric), RATE_INTERVAL), *WHOSE)).as_unit(metric.unit) >= 0
