"""Detect which engine a page belongs to, by the names of its samples."""

from __future__ import annotations

import re
from itertools import islice

from exporter.engines.engine import RELAY_PREFIX, Engine
from exporter.engines.tables import ENGINES

_SAMPLE = re.compile(rb"^([a-zA-Z_:][a-zA-Z0-9_:]*)(?=([{ ][^\n]*))", re.MULTILINE)
_LABEL = re.compile(rb'[{,][ \t]*([a-zA-Z_][a-zA-Z0-9_]*)[ \t]*="([^"]?)')
# What the libraries of Prometheus and of web servers add to every page.
_ANYBODYS = ("process_", "python_", "go_", "http_", "promhttp_", "scrape_", "target_info")
_MAX_FAMILIES, _MAX_NAME = 3, 60  # in messages
_NAMES = {engine.kind: engine.wanted_names() for engine in ENGINES}


def recognise(body: bytes) -> Engine | None:
    """Return the engine whose series are on a page, None if no known engine's are.

    Looks at samples whose name some table knows: a HELP text, a label value that mentions an engine, or a router's
    figures about its backends do not count.
    """
    engines = detect_all(body)
    return engines[0] if engines else None


def detect_all(body: bytes) -> tuple[Engine, ...]:
    """Return every engine that a page has series of, the one that is meant first."""
    kinds: set[str] = set()
    seen: set[bytes] = set()
    for match in _SAMPLE.finditer(body):
        if match[1] in seen:
            continue
        name = match[1].decode("ascii")
        owner = next((engine for engine in ENGINES if engine.matches(name)), None)
        if owner is None or owner.kind in kinds or owner.canonical(name) not in _NAMES[owner.kind]:
            seen.add(match[1])
        elif not (owner.is_router_series(_labels(match[2]))):
            kinds.add(owner.kind)
    if not kinds:  # names without a prefix are the engine's only where none is known by its own
        names = {name.decode("ascii") for name in seen}
        kinds.update([engine.kind for engine in ENGINES if engine.bare_marks and engine.bare_marks <= names][:1])
    return tuple(engine for engine in ENGINES if engine.kind in kinds)


def still_matches(engine: Engine, body: bytes) -> bool:
    """Return cheaply whether a page of this engine seems to be so still; a port may change hands.

    Not where a wrapper's page has begun to show the series of another engine: those say more.
    """
    if engine.wrapper and any(_shows(other, body) for other in ENGINES if not other.wrapper):
        return False
    return _shows(engine, body)


def _shows(engine: Engine, body: bytes) -> bool:
    for prefix in engine.prefixes:
        for spelling in (prefix, prefix[:-1] + "_"):
            for mark in (spelling.encode(), f"{RELAY_PREFIX}{spelling}".encode()):
                if b"\n" + mark in body or body.startswith(mark):
                    return True
    return bool(engine.bare_marks) and all(_has_sample(body, mark.encode()) for mark in engine.bare_marks)


def _has_sample(body: bytes, name: bytes) -> bool:
    return any(body.startswith(name + end) or b"\n" + name + end in body for end in (b"{", b" "))


def explain_missing(engine: Engine, body: bytes) -> str:
    """Return what to say of a page without metrics of the engine that it should be; "" if they are merely missing."""
    others = [other.title for other in detect_all(body)]
    seen = ", ".join(families(body))
    if others:
        return f"the page is of {others[0]}, and kind says {engine.kind}; set kind to auto"
    return f"the page has {seen}, and {engine.lacking}; is this the engine's URL?" if seen else ""


def families(body: bytes) -> list[str]:
    """Return the first names of samples on the page, without those that any program may have."""
    names = (match[1].decode("ascii") for match in _SAMPLE.finditer(body))
    own = (name[:_MAX_NAME] for name in names if not name.startswith(_ANYBODYS))
    return list(islice(dict.fromkeys(own), _MAX_FAMILIES))


def _labels(text: bytes) -> dict[str, str]:
    """Return the labels' names, each with at most the first letter of its value: enough to see which are set."""
    return {name.decode("ascii"): value.decode("latin-1") for name, value in _LABEL.findall(text)}
