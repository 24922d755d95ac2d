"""check-config in Chinese: every message has its translation, and no translation is of a message that is gone."""

from __future__ import annotations

import ast
import re

import pytest

from exporter.cli.main import main
from exporter.config import chinese
from exporter.config.lint import WINDOW_USERS, config_lint
from tests.contract.test_chinese import ENGLISH_SENTENCE, HAN, ROOT
from tests.support.settings_texts import BAD, CONFIGS, GOOD, in_chinese, parse

SOURCES = [
    *sorted((ROOT / "exporter" / "config").glob("*.py")),
    ROOT / "exporter" / "cli" / "config.py",
    ROOT / "exporter" / "http" / "server" / "web_config.py",
]


# Texts that are put together: a number and its noun, a bound and its value.
COMPOSED = re.compile(
    r"must be at most|expected a number with a unit|is not a regular file; Docker|SHARDWATCH_ is followed|"
    r"\{\} engines? and|panels of the shipped dashboard"
)


def constants():
    """Return every text of the modules that write messages."""
    return "\n".join(
        node.value
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def elsewhere():
    """Return the texts under the headings of the operating system and the YAML library."""
    text = chinese.CATALOGUE.read_text(encoding="utf-8")
    sections = re.split(r"^# (.+)$", text, flags=re.MULTILINE)
    named = dict(zip(sections[1::2], sections[2::2], strict=True))
    return {
        english for name, part in named.items() if "not ours" in name for english in re.findall(r'msgid "(.+)"', part)
    }


def test_every_entry_is_of_a_message_that_is_still_written():
    written, others = constants(), elsewhere()
    assert others
    gone = [
        english
        for english, _ in chinese.entries_of_file()
        if english not in others and not COMPOSED.search(english)
        for part in re.split(r"\{=?\}", english.replace(r"\"", '"'))
        if len(part) > 3 and part.strip("; ,") not in written
    ]
    assert gone == []


def test_an_entry_fills_in_what_the_english_text_fills_in():
    for english, translation in chinese.entries_of_file():
        given = len(re.findall(r"\{=?\}", english))
        assert len(re.findall(r"\{\d?\}", translation)) == given, english
        assert translation != english


def test_a_value_keeps_its_place_and_a_name_is_not_translated():
    assert chinese.translated("repeats the url of engines[0]") == "与 engines[0] 的 url 重复"
    assert (
        chinese.translated("unknown value; expected one of: engines, GPUs") == "未知的值；应为以下之一：engines, GPUs"
    )
    assert chinese.translated("expected a list of engines, found a number") == "应为引擎的列表，实际为数字"
    assert chinese.translated("something that nobody wrote") == "something that nobody wrote"


@pytest.mark.parametrize("path", BAD, ids=lambda path: path.name)
def test_a_bad_configuration_is_refused_in_chinese(path, capsys):
    assert main(["check-config", "--language", "zh", str(path)]) == 2
    refusal = capsys.readouterr().err
    assert re.search(r"：\d+ 个问题\n  \S", refusal)
    for line in refusal.replace(str(path), "").splitlines()[1:]:
        assert re.search(f"[{HAN}]", line) and not ENGLISH_SENTENCE.search(re.sub("以下之一：.*", "", line)), line


@pytest.mark.parametrize(
    "path", [path for path in GOOD if path.parent == CONFIGS / "good"], ids=lambda path: path.name
)
def test_a_good_configuration_is_summed_up_in_chinese(path, capsys):
    assert main(["check-config", "--language", "zh", str(path)]) == 0
    for line in capsys.readouterr().out.splitlines():
        assert not ENGLISH_SENTENCE.search(line.replace(str(path), "")), line


@pytest.mark.parametrize(
    "text",
    [
        *(f"windows: [{label}]" for label in ("30s", *WINDOW_USERS)),
        "windows: [1m, 5m, 15m]\nseries: full",
        "windows: [1m, 5m]\nengines: [{url: http://h:1/, interval: 2m}, {url: http://h:2/, interval: 2m}]",
        "gateways: [{url: http://edge:1/, interval: 4m}]\nstores: [{url: http://store:1/, interval: 4m}]",
    ],
)
def test_every_hint_has_its_chinese_text(text):
    hints = config_lint(parse(text))
    assert hints
    for hint in hints:
        assert not ENGLISH_SENTENCE.search(chinese.translated(hint)), chinese.translated(hint)


def test_a_problem_without_a_translation_is_found():
    from exporter.errors import Problem  # noqa: PLC0415

    with pytest.raises(AssertionError):
        in_chinese([Problem("listen", "something that nobody wrote")])
