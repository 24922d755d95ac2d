"""Reads who is to be told from the YAML that a user edits; refused whole, with every problem and its line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from alerts.alertmanager import hours
from alerts.alertmanager.channels import CHANNELS, SECRETS, Made, fault
from alerts.alertmanager.plan import NOTIFIED, TAKEN, WATCHDOG, NotificationPlan, Team
from alerts.rule import Component, Severity
from alerts.yaml_reader import Reading, read_whole
from exporter.config.document import Node, key_path

DEFAULT = str(Path(__file__).parent.parent / "receivers.yaml")
MAX_RECEIVERS, MAX_TEAMS = 50, 200
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,40}\Z")
_LABEL = re.compile(r"[a-z_][a-z0-9_]*\Z")


def load(path: str) -> NotificationPlan:
    """Read a file; raises SettingsError with every problem, OSError when it cannot be read."""
    with open(path, encoding="utf-8") as file:
        return read(file.read(), path)


def read(text: str, origin: str = "receivers") -> NotificationPlan:
    """Read the YAML text; raises SettingsError with every problem at once."""
    return read_whole(text, origin, _plan)


def _plan(reading: Reading, root: Node) -> NotificationPlan:
    top = reading.keys(root, "", ("receivers", "routes", "teams", "times", "timing"))
    receivers = _receivers(reading, top.get("receivers"), root)
    routes, watchdog = _routes(reading, top.get("routes"), receivers, root)
    return NotificationPlan(
        receivers=receivers,
        routes=routes,
        watchdog=watchdog,
        teams=_teams(reading, top.get("teams"), receivers),
        times=hours.times(reading, top.get("times")),
        timings=hours.timings(reading, top.get("timing")),
    )


# ------------------------------------------------------------------ receivers


def _receivers(reading: Reading, node: Node | None, root: Node) -> Mapping[str, tuple[Made, ...]]:
    entries = reading.keys(node, "receivers")
    if not entries:
        reading.wrong("receivers", "names nobody; give at least one receiver with one channel", node or root)
    if len(entries) > MAX_RECEIVERS:
        reading.wrong("receivers", f"are more than {MAX_RECEIVERS}", node)
    return {name: _receiver(reading, name, child) for name, child in entries.items()}


def _receiver(reading: Reading, name: str, node: Node) -> tuple[Made, ...]:
    path = f"receivers.{name}"
    if not _NAME.match(name) or name in TAKEN:
        taken = " or ".join(TAKEN)
        reading.wrong(path, f"a receiver is named by letters, digits, _ and -, and not {taken}", node)
    channels = reading.items(node, path, "channels, such as - slack: {…}")
    if not channels and isinstance(node.value, tuple):
        reading.wrong(path, "has no channel", node)
    made = [_channel(reading, f"{path}[{number}]", channel) for number, channel in enumerate(channels)]
    return tuple(one for one in made if one is not None)


def _channel(reading: Reading, path: str, node: Node) -> Made | None:
    entries = reading.keys(node, path)
    if len(entries) != 1:
        reading.wrong(path, f"must be one channel; known kinds: {', '.join(CHANNELS)}", node)
        return None
    ((kind, inside),) = entries.items()
    if kind not in CHANNELS:
        reading.wrong(key_path(path, kind), f"unknown kind; known: {', '.join(CHANNELS)}", inside)
        return None
    return _given(reading, f"{path}.{kind}", kind, inside)


def _given(reading: Reading, path: str, kind: str, node: Node) -> Made | None:
    channel = CHANNELS[kind]
    before = len(reading.problems)
    values: dict[str, str] = {}
    resolved = True
    for key, child in reading.keys(node, path).items():
        where = key_path(path, key)
        if key == "resolved":
            resolved = child.value is True
            if not isinstance(child.value, bool):
                reading.wrong(where, "must be true or false", child)
        elif key not in channel.keys:
            reading.wrong(where, _unknown(key, channel.keys), child)
        else:
            values[key] = reading.text(child, where)
            why = fault(key, values[key]) if values[key] else ""
            if why:
                reading.wrong(where, why, child)
    begun = [way for way in channel.ways if way & set(values)]
    if len(begun) != 1 or not begun[0] <= set(values):
        ways = " or ".join(" and ".join(sorted(way)) for way in channel.ways)
        reading.wrong(path, f"needs {ways}", node)
    if len(reading.problems) > before:
        return None
    made = channel.make(values)
    return Made(made.section, {"send_resolved": resolved, **made.entry}, made.needs)


def _unknown(key: str, known: frozenset[str]) -> str:
    instead = SECRETS.get(key)
    if instead in known:
        return f"secrets stand in files: write it into one and give its path as {instead}"
    return f"unknown; known: {', '.join(sorted(known))}, resolved"


# ------------------------------------------------------------------ who is told


def _routes(
    reading: Reading, node: Node | None, receivers: Mapping[str, object], root: Node
) -> tuple[Mapping[Severity, str], str]:
    known = tuple(severity.value for severity in NOTIFIED)
    entries = reading.keys(node, "routes", (*known, WATCHDOG))
    for severity in known:
        if severity not in entries:
            reading.wrong(f"routes.{severity}", "is missing: nobody would be told", node or root)
    told = {key: _receiver_name(reading, child, f"routes.{key}", receivers) for key, child in entries.items()}
    watchdog = told.pop(WATCHDOG, "")
    return {Severity(key): name for key, name in told.items()}, watchdog


def _receiver_name(reading: Reading, node: Node, path: str, receivers: Mapping[str, object]) -> str:
    name = reading.text(node, path)
    if name and name not in receivers:
        reading.wrong(path, f"no receiver has this name; there are {', '.join(receivers) or 'none'}", node)
    return name


def _teams(reading: Reading, node: Node | None, receivers: Mapping[str, object]) -> tuple[Team, ...]:
    entries = reading.items(node, "teams", "teams, each with match and a receiver by severity")
    if len(entries) > MAX_TEAMS:
        reading.wrong("teams", f"are more than {MAX_TEAMS}", node)
    return tuple(_team(reading, f"teams[{number}]", child, receivers) for number, child in enumerate(entries))


def _team(reading: Reading, path: str, node: Node, receivers: Mapping[str, object]) -> Team:
    entries = reading.keys(node, path, ("match", *(severity.value for severity in NOTIFIED)))
    match = {
        label: _values(reading, label, child, f"{path}.match.{label}")
        for label, child in reading.keys(entries.get("match"), f"{path}.match").items()
    }
    if not match:
        reading.wrong(f"{path}.match", "is missing; name labels, such as {component: [gpu]}", node)
    told = {
        Severity(key): _receiver_name(reading, child, f"{path}.{key}", receivers)
        for key, child in entries.items()
        if key != "match"
    }
    if not told:
        reading.wrong(path, "tells nobody; name a receiver for critical, warning or info", node)
    return Team(match=match, told=told)


def _values(reading: Reading, label: str, node: Node, path: str) -> tuple[str, ...]:
    children = node.value if isinstance(node.value, tuple) else (node,)
    values = tuple(reading.text(child, path) for child in children)
    if not _LABEL.match(label):
        reading.wrong(path, "is no label name", node)
    if label in {"severity", "alertname"}:
        why = "teams are not chosen by it: severities stand beside match, and alerts have components"
        reading.wrong(path, why, node)
    if not values or not all(value and value.isprintable() for value in values):
        reading.wrong(path, "must be a value or a list of values", node)
    if label == "component":
        for child in children:
            reading.word(child, path, {component.value: component for component in Component})
    return values
