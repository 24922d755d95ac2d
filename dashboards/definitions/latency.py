"""Histograms of a replica as curves and as heat maps.

Without requests they are not NaN or zero, which draw an empty axis, but absent: then words say why.
"""

from __future__ import annotations

from alerts.text import Text
from dashboards.panels import series
from dashboards.panels.factories import Query
from dashboards.variables import RATE_INTERVAL, selected_buckets, selected_count, selected_sum
from exporter.catalog.spec import Metric, Unit
from exporter.promql import Expr, and_on, histogram_quantile, rate, sum_by

WHOSE = ("instance", "replica")
WHICH = "{{replica}} {{instance}}"  # many nodes call a replica alike


def curves(metric: Metric) -> tuple[Query, ...]:
    """Return p50, p95, p99 and the mean of a histogram, by replica, from summed buckets."""
    return (
        series(lambda: _quantile(metric, 0.5), f"{WHICH} p50"),
        series(lambda: _quantile(metric, 0.95), f"{WHICH} p95"),
        series(lambda: _quantile(metric, 0.99), f"{WHICH} p99"),
        series(lambda: _mean(metric), Text(f"{WHICH} mean", f"{WHICH} 平均"), dashed=True),
    )


def spread_out(metric: Metric) -> Expr:
    """Return all buckets of all chosen replicas, while there is anything in them."""
    some = sum_by(rate(selected_count(metric), RATE_INTERVAL)) > 0
    return and_on(sum_by(rate(selected_buckets(metric), RATE_INTERVAL), "le"), some, on=())


def _quantile(metric: Metric, share: float) -> Expr:
    return histogram_quantile(share, sum_by(rate(selected_buckets(metric), RATE_INTERVAL), "le", *WHOSE)) >= 0


def _mean(metric: Metric) -> Expr:
    each = sum_by(rate(selected_sum(metric), RATE_INTERVAL), *WHOSE).as_unit(Unit.SECONDS)
    return (each / sum_by(rate(selected_count(metric), RATE_INTERVAL), *WHOSE)).as_unit(Unit.SECONDS) >= 0
