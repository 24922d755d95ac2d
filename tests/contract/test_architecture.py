"""The architecture that is drawn in docs/ is the one of the code: layers, and which package imports which."""

from __future__ import annotations

import ast
import pathlib
import re
from collections import defaultdict

import grimp
import pytest
from importlinter.api import read_configuration

ROOT = pathlib.Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "architecture.md").read_text()
EVERYWHERE = {"errors", "log_writer", "logs", "model", "threads"}
DIVIDED = ("driver", "http")  # their parts have rows of their own


def package(module: str) -> str:
    """Return the row that a module belongs to, "" for the top of the daemon."""
    root, *rest = module.split(".")
    if root != "exporter":
        return root
    return "/".join(rest[: 2 if rest and rest[0] in DIVIDED else 1])


def drawn() -> dict[str, set[str]]:
    rows = re.findall(r"^\| (`[^|]*) \|[^|]*\|([^|]*)\|$", TEXT, re.MULTILINE)
    return {
        name.removeprefix("exporter/"): set(re.findall(r"`([^`]+)`", imports))
        for names, imports in rows
        for name in re.findall(r"`([^`]+)`", names)
    }


@pytest.fixture(scope="module")
def imported() -> dict[str, set[str]]:
    graph = grimp.build_graph("exporter", "alerts", "dashboards", cache_dir=None)
    imports_by_package: dict[str, set[str]] = defaultdict(set)
    for module in graph.modules:
        others = {package(other) for other in graph.find_modules_directly_imported_by(module)}
        imports_by_package[package(module)] |= others - EVERYWHERE - {package(module), ""}
    return {
        name: imports_by_package[name] for name in imports_by_package.keys() - EVERYWHERE - {"", "__main__", *DIVIDED}
    }


def test_each_package_imports_what_is_drawn_and_no_other(imported):
    assert drawn() == imported


def test_the_layers_are_those_that_the_linter_enforces():
    (block,) = re.findall(r"^```layers\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)
    contracts = read_configuration(str(ROOT / "pyproject.toml"))["contracts_options"]
    (layers,) = (contract["layers"] for contract in contracts if contract["name"] == "layers of the daemon")
    assert [line.split() for line in block.splitlines()] == [layer.split(" | ") for layer in layers]


def test_imports_for_types_count_as_imports():
    options = read_configuration(str(ROOT / "pyproject.toml"))["session_options"]
    assert "exclude_type_checking_imports" not in options


def test_no_class_name_stands_twice():
    places = defaultdict(list)
    for root in ("exporter", "alerts", "dashboards"):
        for path in (ROOT / root).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef):
                    places[node.name].append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert {name: found for name, found in places.items() if len(found) > 1} == {}
