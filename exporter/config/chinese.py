"""The messages of ``check-config`` in Chinese, from the catalogue ``zh.po``; readers write English only."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from exporter.errors import Problem, SettingsError
from exporter.model.text import Language, Text

CATALOGUE = Path(__file__).with_name("zh.po")
_ENTRY = re.compile(r'^msgid "(.+)"\nmsgstr "(.+)"$', re.MULTILINE)
_FILLED = re.compile(r"\\\{(=?)\\\}")


class _Translation(NamedTuple):
    pattern: re.Pattern[str]
    verbatim: tuple[bool, ...]  # of each part that is filled in: whether it is a name, which has no translation
    chinese: str


@functools.lru_cache(maxsize=1024)
def translated(message: str) -> str:
    """Return a message in Chinese; what is not in the catalogue stays as it is."""
    for entry in _catalogue():
        found = entry.pattern.fullmatch(message)
        if found is not None:
            parts = zip(found.groups(), entry.verbatim, strict=True)
            return entry.chinese.format(*(part if as_it_is else translated(part) for part, as_it_is in parts))
    return message


@functools.cache
def _catalogue() -> tuple[_Translation, ...]:
    """Return the entries with most letters of their own first; last those that begin with what is filled in."""
    entries = [(english.replace(r"\"", '"'), chinese.replace(r"\"", '"')) for english, chinese in entries_of_file()]
    entries.sort(key=lambda entry: (entry[0].startswith("{"), -len(re.sub(r"\{=?\}", "", entry[0]))))
    return tuple(_entry(english, chinese) for english, chinese in entries)


def entries_of_file() -> list[tuple[str, str]]:
    """Return English and Chinese of every entry as it is written in the catalogue."""
    return _ENTRY.findall(CATALOGUE.read_text(encoding="utf-8"))


def _entry(english: str, chinese: str) -> _Translation:
    escaped = re.escape(english)
    pattern = re.compile(_FILLED.sub("(.+?)", escaped), re.DOTALL)
    return _Translation(pattern, tuple(mark == "=" for mark in _FILLED.findall(escaped)), chinese)


def refusal(error: SettingsError, language: Language) -> str:
    """Return everything that is wrong with a configuration, as ``str`` of the error is in English."""
    if language is Language.ENGLISH:
        return str(error)
    return "\n".join((f"{error.origin}：{len(error.problems)} 个问题", *map(_line, error.problems)))


def _line(problem: Problem) -> str:
    where = f"第 {problem.line} 行：" if problem.line is not None else ""
    path = f"{problem.path}：" if problem.path else ""
    return f"  {where}{path}{translated(problem.message)}"


def lines(origin: str, summary: str, hints: list[str], language: Language) -> Iterator[str]:
    """Yield what is printed of a valid configuration."""
    said = translated if language is Language.CHINESE else str
    hint = Text("hint: ", "提示：").in_(language)
    yield f"{origin}: {said(f'valid; {summary}')}"
    yield from (f"{origin}: {hint}{said(each)}" for each in hints)
