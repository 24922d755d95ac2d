"""PromQL built from metric objects, so that a query for a metric that does not exist cannot be written.

An ``Expr`` has its text, the labels of its result, and its unit.  Selecting by a label that the metric does not have,
aggregating by a label that is gone, matching vectors whose labels can never be equal, adding watts to bytes, or
summing a counter without ``rate``: each raises ``QueryError`` where the query is written, instead of a panel without
data.  What is not known here (values, duplicates, the number of series) is left to tests that run the query.

Operators are Python's: ``+ - * /`` and ``< <= > >=`` build queries; ``==`` remains Python's, so use ``equals``.
Matching is one to one on all labels unless ``on`` or ``ignoring`` is given; ``group_left`` copies labels of the right
side to the left.
"""

from __future__ import annotations

from exporter.promql.expression import Expr, binary, number
from exporter.promql.functions import (
    absent,
    absolute,
    aggregate,
    and_on,
    avg_by,
    bottomk,
    changes,
    clamp_max,
    clamp_min,
    count_by,
    delta,
    deriv,
    histogram_quantile,
    increase,
    join,
    label_replace,
    max_by,
    min_by,
    over_time,
    rate,
    resets,
    since,
    sum_by,
    topk,
    unless,
    until,
    vector,
)
from exporter.promql.selectors import (
    ALERTS,
    TARGET,
    UP,
    ExternalMetric,
    Match,
    Matcher,
    buckets,
    labels_of,
    no_regex,
    observations,
    regex,
    select,
    total,
    without_value,
)

__all__ = [
    "ALERTS",
    "TARGET",
    "UP",
    "Expr",
    "ExternalMetric",
    "Match",
    "Matcher",
    "absent",
    "absolute",
    "aggregate",
    "and_on",
    "avg_by",
    "binary",
    "bottomk",
    "buckets",
    "changes",
    "clamp_max",
    "clamp_min",
    "count_by",
    "delta",
    "deriv",
    "histogram_quantile",
    "increase",
    "join",
    "label_replace",
    "labels_of",
    "max_by",
    "min_by",
    "no_regex",
    "number",
    "observations",
    "over_time",
    "rate",
    "regex",
    "resets",
    "select",
    "since",
    "sum_by",
    "topk",
    "total",
    "unless",
    "until",
    "vector",
    "without_value",
]
