"""From a file, a text or the environment alone to the value of a section, or one error with every problem."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from exporter.config.document import Node, read_document
from exporter.config.environment import overrides
from exporter.config.files import read_text
from exporter.config.parsers import Invalid
from exporter.config.reader import INVALID, Item, Report
from exporter.config.section import Section
from exporter.errors import Problem, SettingsError

_EMPTY = Node(value={})


def load(section: Section, path: str, environ: Mapping[str, str] | None = None) -> Any:
    """Read a YAML file; relative file names in it start from its directory.  Raises SettingsError."""
    try:
        text = read_text(path)
    except Invalid as invalid:
        return _read(section, Item(path="", node=_EMPTY), [Problem("", str(invalid))], path or "''", environ)
    return parse(section, text, path, environ, base=os.path.dirname(os.path.abspath(path)))


def parse(
    section: Section, text: str, origin: str, environ: Mapping[str, str] | None = None, *, base: str = ""
) -> Any:
    """Read a YAML text; ``origin`` names it in messages.  Raises SettingsError with every problem.

    ``environ`` overrides scalars; None where the file has no variables.  ``base``: where relative file names start.
    """
    root, problems = read_document(text)
    return _read(section, Item(path="", node=root, base=base), problems, origin, environ)


def from_environment(section: Section, environ: Mapping[str, str]) -> Any:
    """Return the defaults, overridden by the environment.  Raises SettingsError."""
    return _read(section, Item(path="", node=_EMPTY), [], "environment", environ)


def _read(
    section: Section, item: Item, problems: list[Problem], origin: str, environ: Mapping[str, str] | None
) -> Any:
    report = Report(problems=list(problems))
    if environ is not None:
        report.environment = overrides(section, environ, report)
    value = section.read(item, report)
    if report.problems or value is INVALID:
        in_order = sorted(report.problems, key=lambda problem: (problem.path.startswith("$"), problem.line or 0))
        raise SettingsError(in_order, origin)
    return value
