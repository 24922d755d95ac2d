"""Functions, aggregations and gates over expressions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from exporter.catalog.spec import Unit
from exporter.errors import QueryError
from exporter.promql.expression import ATOM, Expr, binary, check, duration


def _range(expr: Expr, window: str, step: str = "") -> str:
    if expr.selector and not step:
        return f"{expr.body}[{duration(window)}]" + (f" offset {expr.shift}" if expr.shift else "")
    inner = str(expr) if expr.rank == ATOM else f"({expr})"
    return f"{inner}[{duration(window)}:{duration(step) if step else ''}]"


def _of_counter(function: str, expr: Expr, window: str, *, per_second: bool) -> Expr:
    if not (expr.counter and expr.selector):
        raise QueryError(f"{function} takes a counter straight from its selector, not {expr}")
    unit, each = expr.unit, per_second
    if per_second and unit in {Unit.JOULES, Unit.SECONDS}:  # joules per second are watts, seconds per second a share
        unit, each = (Unit.WATTS if unit is Unit.JOULES else Unit.RATIO), False
    return replace(
        expr,
        body=f"{function}({_range(expr, window)})",
        unit=unit, per_second=each, counter=False, selector=False, shift="", rank=ATOM,
    )  # fmt: skip


def rate(expr: Expr, window: str) -> Expr:
    """Return a counter's increase per second over a window."""
    return _of_counter("rate", expr, window, per_second=True)


def increase(expr: Expr, window: str) -> Expr:
    """Return a counter's increase over a window."""
    return _of_counter("increase", expr, window, per_second=False)


def over_time(function: str, expr: Expr, window: str, *, step: str = "") -> Expr:
    """Apply ``<function>_over_time`` (avg, min, max, sum, count, last, present, stddev) to a gauge.

    ``step`` makes a subquery, which anything but a selector needs anyway.
    """
    if expr.counter and function not in {"last", "present", "count", "max", "min"}:
        raise QueryError(f"{function}_over_time of the counter {expr}: take its rate first")
    unit = Unit.NONE if function in {"count", "present"} else expr.unit
    return _function(f"{function}_over_time({_range(expr, window, step)})", expr, unit=unit)


def resets(expr: Expr, window: str) -> Expr:
    """Return how often a counter was reset."""
    return replace(_of_counter("resets", expr, window, per_second=False), unit=Unit.NONE)


def changes(expr: Expr, window: str) -> Expr:
    """Return how often a gauge changed."""
    return _function(f"changes({_range(expr, window)})", expr, unit=Unit.NONE)


def delta(expr: Expr, window: str) -> Expr:
    """Return a gauge's difference between the ends of a window."""
    if expr.counter:
        raise QueryError(f"delta of the counter {expr}: use increase")
    return _function(f"delta({_range(expr, window)})", expr, unit=expr.unit)


def deriv(expr: Expr, window: str) -> Expr:
    """Return a gauge's slope per second, by least squares."""
    if expr.counter:
        raise QueryError(f"deriv of the counter {expr}: use rate")
    return replace(_function(f"deriv({_range(expr, window)})", expr, unit=expr.unit), per_second=True)


def _function(body: str, expr: Expr, *, unit: Unit | None) -> Expr:
    return replace(expr, body=body, unit=unit, counter=False, selector=False, shift="", rank=ATOM)


_AGGREGATIONS = frozenset({"sum", "avg", "min", "max", "count", "group", "stddev"})


def aggregate(
    operator: str, expr: Expr, *, by: Iterable[str] | None = None, without: Iterable[str] | None = None
) -> Expr:
    """Return an aggregation over the labels that ``by`` omits or ``without`` names; with neither, over all."""
    if operator not in _AGGREGATIONS:
        raise QueryError(f"{operator!r} is no aggregation; there are {', '.join(sorted(_AGGREGATIONS))}")
    if expr.counter and operator in {"sum", "avg", "stddev"}:
        raise QueryError(f"{operator} of the counter {expr}: take its rate first, or restarts look like load")
    if by is not None and without is not None:
        raise QueryError("either by or without")
    names = tuple(by if by is not None else without if without is not None else ())
    check(names, expr.labels, str(expr))
    clause = f" by ({', '.join(names)})" if by is not None else f" without ({', '.join(names)})" if names else ""
    labels = expr.labels - set(names) if without is not None else frozenset(names)
    unit = Unit.NONE if operator in {"count", "group"} else expr.unit
    return replace(_function(f"{operator}{clause} ({expr})", expr, unit=unit), labels=labels)


def sum_by(expr: Expr, *labels: str) -> Expr:
    """Return the sum by these labels."""
    return aggregate("sum", expr, by=labels)


def max_by(expr: Expr, *labels: str) -> Expr:
    """Return the maximum by these labels."""
    return aggregate("max", expr, by=labels)


def min_by(expr: Expr, *labels: str) -> Expr:
    """Return the minimum by these labels."""
    return aggregate("min", expr, by=labels)


def avg_by(expr: Expr, *labels: str) -> Expr:
    """Return the mean by these labels."""
    return aggregate("avg", expr, by=labels)


def count_by(expr: Expr, *labels: str) -> Expr:
    """Return the number of series by these labels."""
    return aggregate("count", expr, by=labels)


def topk(count: int, expr: Expr, *, by: Iterable[str] = ()) -> Expr:
    """Return the series with the largest values, of each group with equal labels in ``by``."""
    check(by, expr.labels, str(expr))
    clause = f" by ({', '.join(by)}) " if by else ""
    return _function(f"topk{clause}({count}, {expr})", expr, unit=expr.unit)


def bottomk(count: int, expr: Expr) -> Expr:
    """Return the series with the smallest values."""
    return _function(f"bottomk({count}, {expr})", expr, unit=expr.unit)


def histogram_quantile(quantile: float, expr: Expr, unit: Unit = Unit.SECONDS) -> Expr:
    """Return a quantile of bucket rates, which must have ``le``."""
    check(("le",), expr.labels, str(expr))
    result = _function(f"histogram_quantile({quantile:g}, {expr})", expr, unit=unit)
    return replace(result, labels=expr.labels - {"le"}, per_second=False)


def absent(expr: Expr) -> Expr:
    """Return 1 while there is no such series, with the labels matched by equality."""
    return replace(_function(f"absent({expr})", expr, unit=Unit.NONE), labels=expr.pinned)


def clamp_min(expr: Expr, min_value: float) -> Expr:
    """Return the value, at least ``min_value``."""
    return _function(f"clamp_min({expr}, {min_value:.12g})", expr, unit=expr.unit)


def clamp_max(expr: Expr, max_value: float) -> Expr:
    """Return the value, at most ``max_value``."""
    return _function(f"clamp_max({expr}, {max_value:.12g})", expr, unit=expr.unit)


def absolute(expr: Expr) -> Expr:
    """Return the absolute value."""
    return _function(f"abs({expr})", expr, unit=expr.unit)


def since(expr: Expr) -> Expr:
    """Return the seconds since a Unix time."""
    return binary("-", Expr(body="time()", labels=frozenset(), unit=Unit.SECONDS, scalar=True), expr)


def until(expr: Expr) -> Expr:
    """Return the seconds until a Unix time."""
    return binary("-", expr, Expr(body="time()", labels=frozenset(), unit=Unit.SECONDS, scalar=True))


def vector(value: float) -> Expr:
    """Return one series without labels."""
    return Expr(body=f"vector({value:.12g})", labels=frozenset(), unit=None)


def label_replace(expr: Expr, target: str, replacement: str, source: str, pattern: str) -> Expr:
    """Return the series with one label set from another by a regular expression."""
    check((source,), expr.labels, str(expr))
    quoted = ", ".join('"' + part.replace("\\", "\\\\") + '"' for part in (target, replacement, source, pattern))
    return replace(_function(f"label_replace({expr}, {quoted})", expr, unit=expr.unit), labels=expr.labels | {target})


def unless(left: Expr, right: Expr, *, on: Iterable[str] | None = None) -> Expr:
    """Return the left series without a match."""
    return binary("unless", left, right, on=on)


def and_on(left: Expr, right: Expr, *, on: Iterable[str]) -> Expr:
    """Return the left series with a match on these labels: a gate."""
    return binary("and", left, right, on=on)


def join(left: Expr, info: Expr, *, on: Iterable[str], group_left: Iterable[str]) -> Expr:
    """Return every series with labels of the info metric that matches it on ``on``."""
    return binary("*", left, info, on=on, group_left=group_left)
