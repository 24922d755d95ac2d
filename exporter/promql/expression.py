"""Expressions: text, labels and unit of the result, and binary operators."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from exporter.catalog.spec import Unit
from exporter.errors import QueryError

_DURATION = re.compile(r"(?:\d+(?:ms|[smhdwy]))+\Z|\$__\w+\Z")
_OR, _AND, _COMPARE, _ADD, _MULTIPLY, ATOM = range(6)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Expr:
    """A query and what is known of its result.

    ``labels``: those of its series.  ``unit``: None if not known; ``per_second``: the unit per second.  ``sources``:
    the families that it reads.  ``counter``: a raw counter, without ``rate``.
    """

    body: str
    labels: frozenset[str]
    unit: Unit | None = Unit.NONE
    per_second: bool = False
    sources: frozenset[str] = frozenset()
    counter: bool = False
    selector: bool = False
    scalar: bool = False
    pinned: frozenset[str] = frozenset()  # labels matched by equality, which absent() keeps
    shift: str = ""
    rank: int = field(default=ATOM)

    def __str__(self) -> str:
        """Return the query as PromQL."""
        return self.body + (f" offset {self.shift}" if self.shift else "")

    def offset(self, earlier: str) -> Expr:
        """Return the expression with an offset."""
        if not self.selector:
            raise QueryError(f"offset belongs to a selector, not to {self}")
        return replace(self, shift=duration(earlier))

    def as_unit(self, unit: Unit, *, per_second: bool = False) -> Expr:
        """Return the expression with a unit that cannot be inferred."""
        return replace(self, unit=unit, per_second=per_second)

    def __add__(self, other: Expr | float) -> Expr:
        """Add; units must agree."""
        return binary("+", self, other)

    def __sub__(self, other: Expr | float) -> Expr:
        """Subtract; units must agree."""
        return binary("-", self, other)

    def __mul__(self, other: Expr | float) -> Expr:
        """Multiply."""
        return binary("*", self, other)

    def __truediv__(self, other: Expr | float) -> Expr:
        """Divide; the same units give a ratio."""
        return binary("/", self, other)

    def __rsub__(self, other: float) -> Expr:
        """Subtract from a number."""
        return binary("-", number(other), self)

    def __rtruediv__(self, other: float) -> Expr:
        """Divide a number."""
        return binary("/", number(other), self)

    def __gt__(self, other: Expr | float) -> Expr:
        """Return ``>``: the series with a greater value."""
        return binary(">", self, other)

    def __ge__(self, other: Expr | float) -> Expr:
        """Return ``>=``: the series with a value at least as great."""
        return binary(">=", self, other)

    def __lt__(self, other: Expr | float) -> Expr:
        """Return ``<``: the series with a smaller value."""
        return binary("<", self, other)

    def __le__(self, other: Expr | float) -> Expr:
        """Return ``<=``: the series with a value at most as great."""
        return binary("<=", self, other)

    def __and__(self, other: Expr) -> Expr:
        """Return ``and``: the series that the other side has, too."""
        return binary("and", self, other)

    def __or__(self, other: Expr) -> Expr:
        """Add what has no partner on the left."""
        return binary("or", self, other)

    def equals(self, other: Expr | float) -> Expr:
        """Return ``==``: the series with that value."""
        return binary("==", self, other)

    def differs(self, other: Expr | float) -> Expr:
        """Return ``!=``: the series with another value."""
        return binary("!=", self, other)


def number(value: float) -> Expr:
    """Return a scalar."""
    return Expr(body=f"{value:.12g}", labels=frozenset(), unit=None, scalar=True)


def duration(text: str) -> str:
    """Return the text, or raise QueryError if it is no duration of Prometheus or Grafana."""
    if not _DURATION.match(text):
        raise QueryError(f"{text!r} is no duration; write 5m, 1h30m or a Grafana interval")
    return text


def check(wanted: Iterable[str], labels: frozenset[str], of: str) -> None:
    """Raise QueryError for a label that is not there."""
    for label in wanted:
        if label not in labels:
            raise QueryError(f"{of} has no label {label!r}; it has {', '.join(sorted(labels)) or 'none'}")


_RANKS = {
    "or": _OR, "and": _AND, "unless": _AND,
    "==": _COMPARE, "!=": _COMPARE, ">": _COMPARE, ">=": _COMPARE, "<": _COMPARE, "<=": _COMPARE,
    "+": _ADD, "-": _ADD, "*": _MULTIPLY, "/": _MULTIPLY,
}  # fmt: skip
_SETS = frozenset({"and", "or", "unless"})


def binary(
    operator: str,
    left: Expr,
    right: Expr | float,
    *,
    on: Iterable[str] | None = None,
    ignoring: Iterable[str] | None = None,
    group_left: Iterable[str] | None = None,
    boolean: bool = False,
) -> Expr:
    """Return a binary operation.  Raises QueryError as the package describes."""
    if not isinstance(right, Expr):
        right = number(right)
    rank = _RANKS[operator]
    clause, labels = _matching(operator, left, right, on=on, ignoring=ignoring, group_left=group_left)
    unit, per_second = _unit(operator, left, right)
    if boolean:
        operator, unit, per_second = f"{operator} bool", Unit.NONE, False
    shown_left = str(left) if left.rank >= rank else f"({left})"
    shown_right = str(right) if right.rank > rank else f"({right})"
    return Expr(
        body=f"{shown_left} {operator}{clause} {shown_right}",
        labels=labels,
        unit=unit,
        per_second=per_second,
        sources=left.sources | right.sources,
        scalar=left.scalar and right.scalar,
        rank=rank,
    )


def _matching(
    operator: str,
    left: Expr,
    right: Expr,
    *,
    on: Iterable[str] | None,
    ignoring: Iterable[str] | None,
    group_left: Iterable[str] | None,
) -> tuple[str, frozenset[str]]:
    if left.scalar or right.scalar:
        if on is not None or ignoring is not None or operator in _SETS:
            raise QueryError(f"{left} {operator} {right}: a number has no labels to match")
        return "", right.labels if left.scalar else left.labels
    if on is None and ignoring is None:
        if operator != "or" and left.labels != right.labels:
            only = ", ".join(sorted(left.labels ^ right.labels))
            raise QueryError(f"{left} {operator} {right}: can never match, only one side has {only}; use on")
        return "", left.labels | right.labels
    names = tuple(on if on is not None else ignoring or ())
    check(names, left.labels if on is not None else left.labels | right.labels, str(left))
    if on is not None:
        check(names, right.labels, str(right))
    clause = f" {'on' if on is not None else 'ignoring'} ({', '.join(names)})"
    kept = left.labels
    if group_left is not None:
        brought = tuple(group_left)
        check(brought, right.labels, str(right))
        clause += f" group_left ({', '.join(brought)})" if brought else " group_left ()"
        kept = left.labels | set(brought)
    elif operator not in _SETS:
        kept = frozenset(names) if on is not None else left.labels - set(names)
    return clause, kept


def _unit(operator: str, left: Expr, right: Expr) -> tuple[Unit | None, bool]:
    mine, theirs = (left.unit, left.per_second), (right.unit, right.per_second)
    if operator in _SETS or (right.scalar and right.unit is None):
        return mine
    if left.scalar and left.unit is None:
        return theirs if operator != "/" else (None, False)
    if operator in {"*", "/"}:
        if operator == "/" and mine == theirs:
            return Unit.RATIO, False
        return mine if right.unit in {Unit.NONE, Unit.RATIO} and not right.per_second else (None, False)
    if None not in {left.unit, right.unit} and mine != theirs:
        raise QueryError(f"{left} {operator} {right}: {_name(*mine)} against {_name(*theirs)}")
    return mine


def _name(unit: Unit | None, per_second: bool) -> str:  # noqa: FBT001 - the pair of one expression
    return ((unit.value if unit else "") or "a number") + (" per second" if per_second else "")
