"""What generated dashboards change about those that are in use, in words: for ``--diff``.

Panels are compared by title, which is unique in a dashboard.  Where a panel stands is not compared: a new panel moves
all that follow.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

from alerts.differences import UnreadableFileError, expression_changes, indented, read

Json = dict[str, Any]
_COMPARED = {"title", "type", "targets", "fieldConfig", "panels", "collapsed"}
_PLACE = {"id", "gridPos"}


def of_file(path: str, text: str) -> list[str]:
    """Return what writing ``text`` to ``path`` would change; empty if nothing.  Raise UnreadableFileError."""
    old = read(path)
    if old is None:
        return ["+ new file"]
    if old == text:
        return []
    folder, name = os.path.split(path)
    if not name.endswith(".json"):
        same_dashboards = name == "shardwatch-dashboards.yaml" and os.path.isfile(
            os.path.join(os.path.dirname(folder), "shardwatch-now.json")
        )
        return [] if same_dashboards else ["~ content"]
    return list(of_dashboard(_read_json(old, path), json.loads(text)))


def of_dashboard(old: Json, new: Json) -> Iterator[str]:
    """Yield what ``new`` changes about the dashboard ``old``."""
    for key in sorted({*old, *new} - {"panels", "templating", "annotations", "version", "id"}):
        if old.get(key) != new.get(key):
            yield f"~ {key}"
    for what, before, after in (
        ("variable", _named(old, "templating"), _named(new, "templating")),
        ("annotation", _named(old, "annotations"), _named(new, "annotations")),
        ("panel", _panels(old), _panels(new)),
    ):
        yield from (f"+ {what} {name}" for name in after if name not in before)
        yield from (f"- {what} {name}" for name in before if name not in after)
        for name, now in after.items():
            changes = list(_changes(before[name], now)) if name in before else []
            if changes:
                yield from (f"~ {what} {name}", *indented(changes))


def _read_json(text: str, path: str) -> Json:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise UnreadableFileError(f"{path} is not valid JSON") from None
    if not isinstance(found, dict):
        raise UnreadableFileError(f"{path} is not a dashboard")
    return found


def _named(dashboard: Json, key: str) -> dict[str, Json]:
    items = dashboard.get(key)
    return _by_name(items.get("list") if isinstance(items, dict) else None, "name")


def _by_name(items: Any, key: str) -> dict[str, Json]:
    listed = items if isinstance(items, list) else ()
    return {str(item.get(key)): item for item in listed if isinstance(item, dict)}


def _panels(dashboard: Json) -> dict[str, Json]:
    """Return the panels by title, those of collapsed rows included."""
    found: dict[str, Json] = {}
    for title, panel in _by_name(dashboard.get("panels"), "title").items():
        found |= _by_name(panel.get("panels"), "title")
        if panel.get("type") != "row":
            found[title] = panel
    return found


def _changes(old: Json, new: Json) -> Iterator[str]:
    """Yield what differs between two panels, two variables or two annotations."""
    if old.get("type") != new.get("type"):
        yield f"type {old.get('type')} -> {new.get('type')}"
    before, after = (_by_name(side.get("targets"), "refId") for side in (old, new))
    yield from (f"+ query {name}: {query.get('expr')}" for name, query in after.items() if name not in before)
    yield from (f"- query {name}: {query.get('expr')}" for name, query in before.items() if name not in after)
    for name in after:
        if name in before:
            yield from expression_changes(
                str(before[name].get("expr")), str(after[name].get("expr")), f"query {name}"
            )
    yield from _threshold_changes(old, new)
    others = [key for key in sorted({*old, *new} - _COMPARED - _PLACE) if old.get(key) != new.get(key)]
    if _without_thresholds(old) != _without_thresholds(new):
        others.append("fields")
    if others:
        yield ", ".join(others)


def _threshold_changes(old: Json, new: Json) -> Iterator[str]:
    before, after = (_steps(_defaults(side)) for side in (old, new))
    if before != after:
        yield f"thresholds {before} -> {after}"


def _defaults(panel: Json) -> Json:
    fields = panel.get("fieldConfig")
    defaults = fields.get("defaults") if isinstance(fields, dict) else None
    return defaults if isinstance(defaults, dict) else {}


def _steps(defaults: Mapping[str, Any]) -> str:
    thresholds = defaults.get("thresholds")
    steps = thresholds.get("steps") if isinstance(thresholds, dict) else None
    listed = steps if isinstance(steps, list) else ()
    values = [step.get("value") for step in listed if isinstance(step, dict)]
    return ", ".join(f"{value:g}" for value in values if isinstance(value, int | float)) or "none"


def _without_thresholds(panel: Json) -> Any:
    fields = panel.get("fieldConfig")
    return fields and {**fields, "defaults": {**_defaults(panel), "thresholds": None}}
