"""Chinese texts are typeset alike: a space stands between Chinese and Latin letters or digits."""

from __future__ import annotations

import ast
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[2]
HAN = "\u4e00-\u9fff"
WITHOUT_SPACE = re.compile(rf"[{HAN}][A-Za-z0-9`]|[A-Za-z0-9`%][{HAN}]")


def texts(path):
    """Yield the texts of a file: the strings of a module, the lines of any other."""
    written = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        yield from written.splitlines()
        return
    for node in ast.walk(ast.parse(written)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


SOURCES = [
    path
    for path in (
        ROOT / "alerts" / "runbook.zh.md",
        *sorted(path for folder in ("exporter", "alerts", "dashboards") for path in (ROOT / folder).rglob("*.py")),
    )
    if re.search(f"[{HAN}]", path.read_text(encoding="utf-8"))
]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_space_stands_between_chinese_and_latin_letters(path):
    lacking = [text for text in texts(path) if WITHOUT_SPACE.search(text)]
    assert lacking == []
