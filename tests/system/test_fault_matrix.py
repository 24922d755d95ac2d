"""The table in FAULTS.md: every row of the matrix stands there once, and every test it names exists."""

from __future__ import annotations

import ast
import pathlib
import re

TESTS = pathlib.Path(__file__).parents[1]
ROWS = {"D": 25, "E": 46, "S": 15, "P": 22}


def table() -> dict[str, tuple[list[str], str]]:
    rows: dict[str, tuple[list[str], str]] = {}
    for line in (TESTS / "FAULTS.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if re.fullmatch(r"[DESP]\d+", cells[0]):
            assert len(cells) == 4, line
            assert cells[0] not in rows, f"{cells[0]} stands there twice"
            rows[cells[0]] = (re.findall(r"`([\w/]+\.py::\w+)`", cells[2]), cells[3])
    return rows


def functions(name: str) -> set[str]:
    tree = ast.parse((TESTS / name).read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_every_row_stands_in_the_table_once():
    assert set(table()) == {f"{letter}{number + 1}" for letter, count in ROWS.items() for number in range(count)}


def test_every_row_names_a_test_and_what_it_asserts():
    for row, (tests, asserted) in table().items():
        assert tests and asserted, row


def test_every_named_test_exists():
    named = {test for tests, _ in table().values() for test in tests}
    files = {test.partition("::")[0] for test in named}
    existing = {f"{name}::{function}" for name in files for function in functions(name)}
    assert named - existing == set()


def test_every_test_of_a_row_is_named_in_the_table():
    named = {test.partition("::")[2] for tests, _ in table().values() for test in tests}
    files = sorted(TESTS.glob("system/test_faults_*.py"))
    assert len(files) >= 6
    for path in files:
        of_rows = {name for name in functions(f"system/{path.name}") if re.match(r"test_[desp]\d+_", name)}
        assert of_rows - named == set(), path.name
