"""Benchmarks are not run by the suite; each of their modules can at least be imported."""

from __future__ import annotations

import importlib
import pathlib

import pytest

BENCH = pathlib.Path(__file__).parents[2] / "bench"
MODULES = sorted(
    f"tests.bench.{path.relative_to(BENCH).with_suffix('').as_posix().replace('/', '.')}"
    for path in BENCH.rglob("*.py")
    if path.name not in {"__init__.py", "__main__.py"}
)


@pytest.mark.parametrize("module", MODULES)
def test_a_benchmark_follows_what_it_imports(module):
    assert callable(getattr(importlib.import_module(module), "main", callable))
