"""What generated files change about those that are in use, in words: for ``--diff``.

Rules are compared as Prometheus reads them, so a file that was formatted by another tool, or that lacks the comments,
is equal to ours.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import yaml

from exporter.config.output_files import read_text
from exporter.errors import ShardwatchError

MAX_BYTES = 16 << 20  # the shipped rules have 0.3 MB
MAX_DEPTH = 50
_TOKEN = re.compile(r'"(?:\\.|[^"\\])*"|[A-Za-z_:][\w:]*|(\d+(?:\.\d+)?(?:e[+-]?\d+)?[a-z]*)')
_PLACEHOLDER = re.compile(r"\{\{-? ?\$labels\.(\w+)[^}]*\}\}")
_WINDOW = re.compile(r"(?:\d+[a-z]+)+\Z")
_ABSENT = "none"
_MAX_LINES = 8  # of a file that is neither rules nor a configuration
Json = dict[str, Any]


class UnreadableFileError(ShardwatchError):
    """A file that is in use cannot be read, or is not what its name says."""


def read(path: str | os.PathLike[str]) -> str | None:
    """Return the text of a file that is in use, None if there is none; raise UnreadableFileError."""
    try:
        return read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        why = (isinstance(error, OSError) and error.strerror) or "is not UTF-8"
        raise UnreadableFileError(f"cannot read {os.fspath(path)}: {why}") from None


def lines_about(found: Mapping[str, list[str]]) -> Iterator[str]:
    """Yield a report: each file's path with its changes below it; a file without changes is left out."""
    for path, changes in found.items():
        if changes:
            counted = Counter(line[0] for line in changes if line[0] in "+-~")
            figures = [f"{counted[sign]} {word}" for sign, word in _SIGNS.items() if counted[sign]]
            yield f"{path}: {', '.join(figures)}"
            yield from (f"  {line}" for line in changes)


_SIGNS = {"+": "added", "-": "removed", "~": "changed"}


def rules(old: str, new: str, path: str) -> list[str]:
    """Return what ``new`` changes about the rule file ``old``; ``path`` is for messages.  Empty if nothing."""
    before, after = _read_rules(old, path), _read_rules(new, path)
    _pair_up_severities(before, after)
    after = dict(sorted(after.items(), key=lambda item: "alert" not in item[1]))  # alerts first
    return [
        *(f"+ {_title(after[key])}{_summary(after[key])}" for key in after if key not in before),
        *(f"- {_title(rule)}" for key, rule in before.items() if key not in after),
        *(
            line
            for key, rule in after.items()
            if key in before and before[key] != rule
            for line in (f"~ {_title(before[key])}", *indented(_rule_changes(before[key], rule)))
        ),
    ]


def alertmanager(old: str, new: str, path: str) -> list[str]:
    """Return what ``new`` changes about the Alertmanager configuration ``old``, section by section."""
    before, after = parsed(old, path), parsed(new, path)
    if not isinstance(before, dict) or not isinstance(after, dict):
        raise UnreadableFileError(f"{path} is not an Alertmanager configuration")
    found: list[str] = []
    for key in sorted({*before, *after}):
        ours, theirs = (side.get(key) for side in (after, before))
        if ours == theirs:
            continue
        if isinstance(ours, list) and isinstance(theirs, list):
            added, removed = (
                [item for item in items if item not in others] for items, others in ((ours, theirs), (theirs, ours))
            )
            changed = f"{len(added)} added, {len(removed)} removed" if added or removed else "the order"
            found.append(f"~ {key}: {changed}")
            found += indented(f"+ {json.dumps(item, ensure_ascii=False, default=str)}" for item in added)
            found += indented(f"- {json.dumps(item, ensure_ascii=False, default=str)}" for item in removed)
        else:
            found.append(f"~ {key}")
    return found


def text(old: str, new: str) -> list[str]:
    """Return how many lines ``new`` adds to and removes from ``old``, and the first of them."""
    lines = [
        line
        for line in difflib.unified_diff(old.splitlines(), new.splitlines(), lineterm="", n=0)
        if not line.startswith(("---", "+++", "@@"))
    ]
    added = sum(line.startswith("+") for line in lines)
    shown = [f"{line[0]} {line[1:].strip()}" for line in lines[:_MAX_LINES]]
    more = [f"and {len(lines) - _MAX_LINES} more"] if len(lines) > _MAX_LINES else []
    return [f"~ lines: {added} added, {len(lines) - added} removed", *indented([*shown, *more])]


def parsed(text: str, path: str) -> Any:
    """Return what a YAML text holds; raise UnreadableFileError for invalid YAML and for files that are too large."""
    if len(text) > MAX_BYTES:
        raise UnreadableFileError(f"{path} is larger than {MAX_BYTES >> 20} MiB")
    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        depth = 0
        for event in yaml.parse(text, loader):  # libyaml's constructor recurses in C, and would end the process
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > MAX_DEPTH:
                raise UnreadableFileError(f"{path} is nested more than {MAX_DEPTH} deep")
        return yaml.load(text, loader)  # noqa: S506 - a safe loader
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise UnreadableFileError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from None


def expression_changes(old: str, new: str, what: str) -> Iterator[str]:
    """Yield how two expressions differ: numbers alone as old -> new, anything else with both expressions."""
    if old == new:
        return
    before, after = (_TOKEN.sub(lambda found: "#" if found[1] else found[0], text) for text in (old, new))
    if before == after:
        pairs = zip(_numbers(old), _numbers(new), strict=True)
        for first, second in dict.fromkeys(pair for pair in pairs if pair[0] != pair[1]):
            yield f"{'window' if _WINDOW.match(first) else 'threshold'} {first} -> {second}"
        return
    yield f"{what}:"
    yield f"  old {old}"
    yield f"  new {new}"


def indented(lines: Iterable[str]) -> Iterator[str]:
    """Yield lines that belong to the change above them."""
    return (f"    {line}" for line in lines)


def _numbers(text: str) -> list[str]:
    return [found[1] for found in _TOKEN.finditer(text) if found[1]]


_Key = tuple[str, ...]


def _read_rules(text: str, path: str) -> dict[_Key, Json]:
    content = parsed(text, path)
    if isinstance(content, dict) and isinstance(content.get("spec"), dict):
        content = content["spec"]  # a PrometheusRule
    try:
        found: dict[_Key, Json] = {}
        for group in content["groups"]:
            for rule in group["rules"]:
                labels = {str(name): str(value) for name, value in rule.get("labels", {}).items()}
                identity = (f"{name}={value}" for name, value in sorted(labels.items()) if name != "component")
                key = (rule.get("alert") or rule["record"], *identity)
                found[key] = {**rule, "labels": labels, "interval": group.get("interval", _ABSENT)}
    except (KeyError, TypeError, AttributeError):
        raise UnreadableFileError(f"{path} is not a file of Prometheus rules") from None
    return found


def _pair_up_severities(before: dict[_Key, Json], after: dict[_Key, Json]) -> None:
    """Rename in ``before`` each alert that has one rule on each side and another severity now: the key of the new one."""

    def alone(rules: Mapping[_Key, Json]) -> dict[_Key, _Key]:
        bare = {key: tuple(part for part in key if not part.startswith("severity=")) for key in rules}
        counted = Counter(bare.values())
        return {name: key for key, name in bare.items() if counted[name] == 1}

    now = alone(after)
    for name, key in alone(before).items():
        if name in now and now[name] != key:
            before[now[name]] = before.pop(key)


def _title(rule: Json) -> str:
    what = "alert" if "alert" in rule else "recording rule"
    labels = rule["labels"]
    facts = [labels["severity"]] if "severity" in labels else []
    facts += [f"{name}={value}" for name, value in labels.items() if name not in {"severity", "component"}]
    name = f"{what} {rule.get('alert') or rule['record']}"
    return f"{name} ({', '.join(facts)})" if facts else name


def _summary(rule: Json) -> str:
    summary = str(rule.get("annotations", {}).get("summary", ""))
    return f": {_PLACEHOLDER.sub(lambda found: f'<{found[1]}>', summary)}" if summary else ""


def _rule_changes(old: Json, new: Json) -> Iterator[str]:
    yield from expression_changes(str(old["expr"]), str(new["expr"]), "expression")
    for key in ("for", "keep_firing_for", "interval"):
        if old.get(key) != new.get(key):
            yield f"{key} {old.get(key, _ABSENT)} -> {new.get(key, _ABSENT)}"
    yield from _mapping_changes(old["labels"], new["labels"], "label")
    texts = [
        key
        for key in ("summary", "description", "action", "runbook_url", "dashboard_url")
        if old.get("annotations", {}).get(key) != new.get("annotations", {}).get(key)
    ]
    if texts:
        yield f"annotations: {', '.join(texts)}"


def _mapping_changes(old: Mapping[str, Any], new: Mapping[str, Any], what: str) -> Iterator[str]:
    for key in sorted({*old, *new}):
        if old.get(key) != new.get(key):
            yield f"{what} {key} {old.get(key, _ABSENT)} -> {new.get(key, _ABSENT)}"
