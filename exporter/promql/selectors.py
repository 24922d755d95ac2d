"""Selectors of families: rows of the catalogue, recording rules, and metrics of Prometheus itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from exporter.catalog.spec import Metric, MetricKind, Unit
from exporter.errors import QueryError
from exporter.promql.expression import Expr, check

TARGET = frozenset({"job", "instance"})  # Prometheus adds them to every series that it scrapes


@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalMetric:
    """A family that the catalogue does not declare: a recording rule, or a metric of Prometheus itself.

    ``labels`` are all labels, with ``job`` and ``instance`` where the series have them.
    """

    name: str
    labels: frozenset[str]
    kind: MetricKind = MetricKind.GAUGE
    unit: Unit | None = Unit.NONE
    per_second: bool = False


UP = ExternalMetric(name="up", labels=TARGET)
ALERTS = ExternalMetric(name="ALERTS", labels=TARGET | {"alertname", "alertstate", "severity", "component"})


@dataclass(frozen=True, slots=True)
class Match:
    """A label matcher other than equality."""

    operator: str
    value: str


def regex(value: str) -> Match:
    """Return a matcher of an anchored regular expression."""
    return Match("=~", value)


def without_value(value: str) -> Match:
    """Return a matcher of every value but this one."""
    return Match("!=", value)


def no_regex(value: str) -> Match:
    """Return a matcher of what an anchored regular expression does not match."""
    return Match("!~", value)


Matcher = str | Match | tuple["str | Match", ...]  # several: all must hold


def select(metric: Metric | ExternalMetric, **matchers: Matcher) -> Expr:
    """Return a selector of the family; a string matches by equality, a tuple has several matchers.

    Raises QueryError for a label that the family does not have, and for histograms: use ``buckets``, ``observations``
    or ``total``.
    """
    if metric.kind is MetricKind.HISTOGRAM:
        raise QueryError(f"{metric.name} is a histogram: select its buckets, observations or total")
    return _selector(metric, metric.name, frozenset(), metric.unit, matchers)


def buckets(metric: Metric | ExternalMetric, **matchers: Matcher) -> Expr:
    """Return a selector of a histogram's bucket counters, with ``le``."""
    return _selector(_histogram(metric), f"{metric.name}_bucket", frozenset({"le"}), Unit.NONE, matchers)


def observations(metric: Metric | ExternalMetric, **matchers: Matcher) -> Expr:
    """Return a selector of a histogram's counter of observations."""
    return _selector(_histogram(metric), f"{metric.name}_count", frozenset(), Unit.NONE, matchers)


def total(metric: Metric | ExternalMetric, **matchers: Matcher) -> Expr:
    """Return a selector of a histogram's sum, a counter in the histogram's unit."""
    return _selector(_histogram(metric), f"{metric.name}_sum", frozenset(), metric.unit, matchers)


def _histogram(metric: Metric | ExternalMetric) -> Metric | ExternalMetric:
    if metric.kind is not MetricKind.HISTOGRAM:
        raise QueryError(f"{metric.name} is no histogram")
    return metric


def labels_of(metric: Metric | ExternalMetric) -> frozenset[str]:
    """Return every label that the family's series have in Prometheus."""
    return metric.labels if isinstance(metric, ExternalMetric) else frozenset(metric.all_labels) | TARGET


def _selector(
    metric: Metric | ExternalMetric,
    name: str,
    more: frozenset[str],
    unit: Unit | None,
    matchers: Mapping[str, Matcher],
) -> Expr:
    labels = labels_of(metric) | more
    check(matchers, labels, name)
    shown = []
    for label, value in matchers.items():
        for matched in value if isinstance(value, tuple) else (value,):
            match = matched if isinstance(matched, Match) else Match("=", matched)
            quoted = match.value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
            shown.append(f'{label}{match.operator}"{quoted}"')
    return Expr(
        body=name + ("{" + ",".join(shown) + "}" if shown else ""),
        labels=labels,
        unit=unit,
        per_second=isinstance(metric, ExternalMetric) and metric.per_second,
        sources=frozenset({metric.name}),
        counter=metric.kind in {MetricKind.COUNTER, MetricKind.HISTOGRAM},
        selector=True,
        pinned=frozenset(label for label, value in matchers.items() if isinstance(value, str)),
    )
