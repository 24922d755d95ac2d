"""Waiting for what another thread or process brings about: a condition, a generous ceiling, and the last value seen.

A ceiling says when something is broken, not how fast it must be: a test passes beside two busy processes a core.
"""

from __future__ import annotations

import ast
import inspect
import linecache
import time
from collections.abc import Callable

CEILING = 60.0  # seconds
LOOK = 0.01  # seconds between two looks


def wait_until(condition: Callable[[], object], seconds: float = CEILING) -> bool:
    """Return whether the condition came to hold in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(LOOK)
    return bool(condition())


def until(condition: Callable[[], object], seconds: float = CEILING) -> None:
    """Wait for the condition; where it does not come to hold, fail and say what its parts were last."""
    if not wait_until(condition, seconds):
        raise AssertionError(f"not so within {seconds:g} s: {describe(condition)}")


def describe(condition: Callable[[], object]) -> str:
    """Return a lambda's text and the value of each operand in it, or what the condition returns."""
    try:
        tree = ast.parse(_source(condition), mode="eval").body
        tree = tree.body if isinstance(tree, ast.Lambda) else tree
        defaults = {name: given.default for name, given in inspect.signature(condition).parameters.items()}
        names = {**condition.__globals__, **inspect.getclosurevars(condition).nonlocals, **defaults}
        values = [f"{ast.unparse(part)} = {_value(part, names)}" for part in _operands(tree)]
        return f"{ast.unparse(tree)}; last seen: {', '.join(values)}"
    except (AttributeError, OSError, SyntaxError, TypeError, ValueError):
        return f"{getattr(condition, '__name__', condition)}() = {condition()!r}"


def _source(condition: Callable[[], object]) -> str:
    """Return the text of a lambda, by the positions that Python 3.11 and newer keep of every instruction."""
    code = condition.__code__
    places = [place for place in code.co_positions() if None not in place and place[3]]
    begin = min((place[0], place[2]) for place in places)
    end = max((place[1], place[3]) for place in places)
    lines = linecache.getlines(code.co_filename)[begin[0] - 1 : end[0]]
    text = "\n".join([*(line.rstrip("\n") for line in lines[:-1]), lines[-1].encode()[: end[1]].decode()])
    return f"({text.encode()[begin[1] :].decode()})"


def _operands(tree: ast.expr) -> list[ast.expr]:
    if isinstance(tree, ast.BoolOp):
        return [part for value in tree.values for part in _operands(value)]
    if isinstance(tree, ast.UnaryOp):
        return _operands(tree.operand)
    if isinstance(tree, ast.Compare):
        return [part for part in (tree.left, *tree.comparators) if not isinstance(part, ast.Constant)]
    return [tree]


def _value(part: ast.expr, names: dict[str, object]) -> str:
    try:
        return repr(eval(compile(ast.Expression(part), "condition", "eval"), names))
    except Exception as error:
        return repr(error)
