"""Engines: a new kind is one file with a field table, and one word in ``ENGINES``."""

from __future__ import annotations

import re

from exporter.engines.base import Engine
from exporter.engines.vllm import VLLM

ENGINES: tuple[Engine, ...] = (VLLM,)

_SAMPLE_NAME = re.compile(rb"^([a-zA-Z_:][a-zA-Z0-9_:]*)(?=[{ ])", re.MULTILINE)


def by_kind(kind: str) -> Engine | None:
    """Give the engine of that kind, None when there is none."""
    return next((engine for engine in ENGINES if engine.kind == kind), None)


def recognise(body: bytes) -> Engine | None:
    """Name the engine whose series stand on a page, None when no known engine's do.

    Looks at sample names only: a HELP text or a label value that mentions an engine does not count.
    """
    seen: set[bytes] = set()
    for match in _SAMPLE_NAME.finditer(body):
        name = match[1]
        if name not in seen:
            seen.add(name)
            for engine in ENGINES:
                if engine.owns(name.decode("ascii")):
                    return engine
    return None
