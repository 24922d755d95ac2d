"""The variables of every dashboard, and selectors that obey them.

``selected`` adds a matcher for each variable whose label the metric has, so that no panel can forget one.
"""

from __future__ import annotations

from alerts import recordings
from exporter.catalog import metrics as m
from exporter.catalog.spec import Metric
from exporter.promql import (
    UP,
    Expr,
    ExternalMetric,
    Matcher,
    and_on,
    binary,
    buckets,
    labels_of,
    max_by,
    observations,
    over_time,
    regex,
    select,
    total,
    unless,
)

VARIABLES = ("job", "instance", "model", "replica", "gpu")
RATE_INTERVAL = "$__rate_interval"
RANGE = "$__range"
EXPORTER_WINDOW = recordings.WINDOW  # the daemon's window that the rules read as well
NODE = recordings.NODE
# The start of the selected range, in milliseconds since 1970; the lengths of the range and of WINDOW.
RANGE_START = Expr(body="$__from", labels=frozenset(), unit=None, scalar=True)
RANGE_SECONDS = Expr(body="$__range_s", labels=frozenset(), unit=None, scalar=True)
RATE_INTERVAL_MILLISECONDS = Expr(body="$__rate_interval_ms", labels=frozenset(), unit=None, scalar=True)
DATA_SOURCE = {"type": "prometheus", "uid": "${datasource}"}


def _matchers(metric: Metric | ExternalMetric, more: dict[str, Matcher]) -> dict[str, Matcher]:
    """Return the matchers of the variables, and the given ones beside them: none takes a variable's place."""
    own = labels_of(metric)
    chosen: dict[str, Matcher] = {name: regex(f"${name}") for name in VARIABLES if name in own}
    for name, given in more.items():
        mine = given if isinstance(given, tuple) else (given,)
        chosen[name] = (regex(f"${name}"), *mine) if name in chosen else given
    return chosen


def selected(metric: Metric | ExternalMetric, **more: Matcher) -> Expr:
    """Select what the variables choose, and the given matchers."""
    return select(metric, **_matchers(metric, more))


def selected_buckets(metric: Metric, **more: Matcher) -> Expr:
    """Select a histogram's buckets."""
    return buckets(metric, **_matchers(metric, more))


def selected_count(metric: Metric, **more: Matcher) -> Expr:
    """Select a histogram's number of observations."""
    return observations(metric, **_matchers(metric, more))


def selected_sum(metric: Metric, **more: Matcher) -> Expr:
    """Select the sum of a histogram's observations."""
    return total(metric, **_matchers(metric, more))


def targets() -> Expr:
    """Return ``up`` of the exporters.

    With the job variable on All, ``up`` alone would be that of every job: kept are targets that exposed Shardwatch's
    metrics within the last day.
    """
    known = over_time("present", selected(m.SHARDWATCH_BUILD_INFO), "1d")
    return and_on(selected(UP), known, on=NODE)


def exporter_down(*figures: Expr) -> Expr:
    """Return 0, the value of ``up``, while every selected exporter is down and none of the figures has data."""
    down = max_by(targets()).equals(0)
    for figure in figures:
        down = unless(down, figure, on=())
    return down


def by_recent_replica(expr: Expr) -> Expr:
    """Return a GPU's value by each replica that used it within 15 minutes, since a lost GPU belongs to none now."""
    joined = binary(
        "*", over_time("max", selected(m.GPU_REPLICA_INFO), "15m"), expr, on=(*NODE, "uuid"), group_left=()
    )
    return joined.as_unit(expr.unit, per_second=expr.per_second) if expr.unit is not None else joined


def by_replica(expr: Expr) -> Expr:
    """Return a GPU's value for each replica that uses it, with the replica's labels.

    ``expr`` must have one series per GPU. The info metric stands on the left of ``group_left``, so that a GPU of
    several replicas is no many-to-many error.
    """
    joined = binary("*", selected(m.GPU_REPLICA_INFO), expr, on=(*NODE, "uuid"), group_left=())
    return joined.as_unit(expr.unit, per_second=expr.per_second) if expr.unit is not None else joined
