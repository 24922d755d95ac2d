"""Histograms of a replica as curves and as heat maps.

Without requests they are not NaN or zero, which draw an empty axis, but absent: then words say why.
"""

from __future__ import annotations

from alerts.text import Text
from dashboards.panels import series
from dashboards.panels.factories import Asked
from dashboards.variables import WINDOW, seen_buckets, seen_count, seen_sum
from exporter.catalog.spec import Metric, Unit
from exporter.promql import Expr, both, histogram_quantile, rate, sum_by

WHOSE = ("instance", "replica")
WHICH = "{{replica}} {{instance}}"  # many nodes call a replica alike


def curves(metric: Metric) -> tuple[Asked, ...]:
    """Give p50, p95, p99 and the mean of a histogram, by replica, from summed buckets."""
    return (
        series(lambda: _quantile(metric, 0.5), f"{WHICH} p50"),
        series(lambda: _quantile(metric, 0.95), f"{WHICH} p95"),
        series(lambda: _quantile(metric, 0.99), f"{WHICH} p99"),
        series(lambda: _mean(metric), Text(f"{WHICH} mean", f"{WHICH} 平均"), dashed=True),
    )


def spread_out(metric: Metric) -> Expr:
    """Give all buckets of all chosen replicas, while there is anything in them."""
    some = sum_by(rate(seen_count(metric), WINDOW)) > 0
    return both(sum_by(rate(seen_buckets(metric), WINDOW), "le"), some, on=())


def _quantile(metric: Metric, share: float) -> Expr:
    return histogram_quantile(share, sum_by(rate(seen_buckets(metric), WINDOW), "le", *WHOSE)) >= 0


def _mean(metric: Metric) -> Expr:
    each = sum_by(rate(seen_sum(metric), WINDOW), *WHOSE).as_unit(Unit.SECONDS)
    return (each / sum_by(rate(seen_count(metric), WINDOW), *WHOSE)).as_unit(Unit.SECONDS) >= 0
