"""Configurations as texts: how tests read them, what a refusal says, and the examples."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from exporter.config import settings
from exporter.config.chinese import translated
from exporter.config.settings import Settings
from exporter.errors import SettingsError

CONFIGS = Path(__file__).parent / "configs"
GOOD = sorted((CONFIGS / "good").glob("*.yaml"))
BAD = sorted((CONFIGS / "bad").glob("*.yaml"))
FULL = (CONFIGS / "good" / "full.yaml").read_text()
GOOD_BASE = str(CONFIGS / "good")
HAN = re.compile("[\u4e00-\u9fff]")
CANARY = "s3cr3t:C4n4ry/0123456789"


def parse(text: str, **environ: str) -> Settings:
    """Read a text, with variables of the environment by their names without ``SHARDWATCH_``."""
    return settings.parse(text, "test.yaml", {f"SHARDWATCH_{name}": value for name, value in environ.items()})


def refused(text: str, **environ: str) -> list[tuple[int | None, str, str]]:
    """Return (line, path, message) of each problem; fails where there is none, or one has no Chinese message."""
    with pytest.raises(SettingsError) as caught:
        parse(text, **environ)
    in_chinese(caught.value.problems)
    return [(problem.line, problem.path, problem.message) for problem in caught.value.problems]


def in_chinese(problems) -> None:
    """Fail for a message that the Chinese catalogue lacks."""
    lacking = [problem.message for problem in problems if not HAN.search(translated(problem.message))]
    assert lacking == [], "exporter/config/chinese.py lacks them"


def engine(lines: str = "", url: str = "http://127.0.0.1:8000") -> str:
    """Return one engine with further keys, whose first stands on line 3."""
    return f"engines:\n  - url: {url}\n" + "".join(f"    {line}\n" for line in lines.splitlines())


def places(node, path=()):
    """Yield the path of every value, the whole included."""
    if isinstance(node, dict):
        for name, child in node.items():
            yield from places(child, (*path, name))
    elif isinstance(node, list):
        for position, child in enumerate(node):
            yield from places(child, (*path, position))
    yield path


def with_canary(path, value):
    """Return the full example with ``value`` in one place."""
    tree = {"root": yaml.safe_load(FULL)}
    node, last = tree, "root"
    for step in path:
        node, last = node[last], step
    node[last] = value
    return yaml.safe_dump(tree["root"], sort_keys=False)
