"""What is particular to an engine or a gateway stands in its declaration alone."""

from __future__ import annotations

import ast
import pathlib

from exporter.engines.tables import ENGINES
from exporter.gateways.tables import GATEWAYS

ROOT = pathlib.Path(__file__).parents[2]
# The preview starts real gateways.
DECLARATIONS = ("exporter/engines/tables/", "exporter/gateways/tables/", "exporter/simulate/", "dashboards/preview/")
KINDS = {item.kind for item in (*ENGINES, *GATEWAYS)}
PREFIXES = tuple(prefix for engine in ENGINES for prefix in engine.prefixes)


def _texts(path: pathlib.Path) -> list[str]:
    tree = ast.parse(path.read_text())
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    return [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings
    ]


MODULES = [
    path
    for package in ("exporter", "alerts", "dashboards")
    for path in sorted((ROOT / package).rglob("*.py"))
    if not str(path.relative_to(ROOT)).startswith(DECLARATIONS)
]


def _is_particular(text: str) -> bool:
    return text in KINDS or text.startswith(PREFIXES)


def test_no_module_but_its_declaration_has_data_of_an_engine_or_a_gateway():
    named = {(str(path.relative_to(ROOT)), text) for path in MODULES for text in _texts(path) if _is_particular(text)}
    assert named == set()
