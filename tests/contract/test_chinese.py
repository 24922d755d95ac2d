"""Chinese texts are typeset alike, and are Chinese: no English sentence is left in them."""

from __future__ import annotations

import ast
import pathlib
import re

import pytest
import yaml

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


PAGES = [ROOT / "alerts" / "runbook.zh.md", *sorted((ROOT / "docs" / "zh").glob("*.md"))]
SOURCES = [
    path
    for path in (
        *PAGES,
        ROOT / "exporter" / "config" / "zh.po",
        *sorted(path for folder in ("exporter", "alerts", "dashboards") for path in (ROOT / folder).rglob("*.py")),
    )
    if re.search(f"[{HAN}]", path.read_text(encoding="utf-8"))
]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_space_stands_between_chinese_and_latin_letters(path):
    lacking = [text for text in texts(path) if WITHOUT_SPACE.search(text)]
    assert lacking == []


ENGLISH_SENTENCE = re.compile(r"(?:\b[A-Za-z]+[ ,;]+){5}[A-Za-z]+")
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_english_sentence_is_left_on_a_chinese_page(path):
    prose = re.sub(r"`[^`]*`", "", FENCE.sub("", path.read_text(encoding="utf-8")))
    assert ENGLISH_SENTENCE.findall(prose) == []


TEXTS = {"summary", "description", "action", "title", "noValue"}


def shown(tree):
    """Yield what people read of a generated file: the texts of alerts and panels."""
    for key, value in tree.items() if isinstance(tree, dict) else ():
        if key in TEXTS and isinstance(value, str):
            yield value
    for value in tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ():
        yield from shown(value)


GENERATED = [
    ROOT / "alerts" / "generated" / "zh" / "rules.yaml",
    *sorted((ROOT / "dashboards" / "generated" / "zh").glob("*.json")),
]


@pytest.mark.parametrize("path", GENERATED, ids=lambda path: path.name)
def test_no_english_sentence_is_left_in_a_chinese_alert_or_dashboard(path):
    found = list(shown(yaml.load(path.read_text(encoding="utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader))))
    assert found
    assert [text for text in found if ENGLISH_SENTENCE.search(re.sub(r"\{\{.*?\}\}", "", text))] == []


@pytest.mark.parametrize(
    "name",
    [
        "alerts.md",
        "dashboards.md",
        "deployment.md",
        "detection.md",
        "diagnosis.md",
        "metrics.md",
        "troubleshooting.md",
    ],
)
def test_a_translated_page_has_the_blocks_and_the_rows_of_the_original(name):
    original, translated = ((ROOT / "docs" / place / name).read_text(encoding="utf-8") for place in (".", "zh"))
    assert FENCE.findall(translated) == FENCE.findall(original)
    rows = [sum(line.startswith("|") for line in text.splitlines()) for text in (original, translated)]
    assert rows[0] == rows[1]
