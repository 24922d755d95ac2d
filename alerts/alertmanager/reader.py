"""Reads who is to be told from the YAML that a user edits; refused whole, with every problem and its line."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from alerts.alertmanager.channels import CHANNELS, SECRETS, Made, fault
from alerts.alertmanager.plan import PACES, TAKEN, TOLD, WATCHDOG, Pace, Plan, Span, Team, Times
from alerts.rule import Component, Severity
from exporter.config.document import Node, read_document
from exporter.errors import Problem, SettingsError

DEFAULT = str(Path(__file__).parent.parent / "receivers.yaml")
MAX_RECEIVERS, MAX_TEAMS = 50, 200
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,40}\Z")
_LABEL = re.compile(r"[a-z_][a-z0-9_]*\Z")
_DURATION = re.compile(r"([1-9]\d{0,4})([smhd])\Z")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_CLOCK = re.compile(r"(?:[01]\d|2[0-3]):[0-5]\d\Z|24:00\Z")
_LOCATION = re.compile(r"UTC\Z|Local\Z|[A-Za-z_]+(?:/[A-Za-z0-9_+-]+){1,2}\Z")
_Word = TypeVar("_Word", Severity, Component)


def load(path: str) -> Plan:
    """Read a file; raises SettingsError with every problem, OSError when it cannot be read."""
    with open(path, encoding="utf-8") as file:
        return read(file.read(), path)


def read(text: str, origin: str = "receivers") -> Plan:
    """Read the YAML text; raises SettingsError with every problem at once."""
    root, problems = read_document(text)
    reader = _Reader(problems)
    plan = reader.plan(root)
    if reader.problems:
        raise SettingsError(reader.problems, origin)
    return plan


class _Reader:
    """Walks the tree and collects what is wrong; its values count only when nothing was."""

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = list(problems)

    def wrong(self, path: str, message: str, node: Node | None = None) -> None:
        self.problems.append(Problem(path, message, node.line if node is not None else None))

    def keys(self, node: Node | None, path: str, known: tuple[str, ...] = ()) -> Mapping[str, Node]:
        """Give a mapping's children; without ``known`` any key will do."""
        if node is None:
            return {}
        if not isinstance(node.value, Mapping):
            self.wrong(path, f"must be a mapping{' with ' + ', '.join(known) if known else ''}", node)
            return {}
        for key, child in node.value.items():
            if known and key not in known:
                self.wrong(f"{path}.{key}" if path else key, f"unknown; known: {', '.join(known)}", child)
        return {key: child for key, child in node.value.items() if not known or key in known}

    def items(self, node: Node | None, path: str, what: str) -> tuple[Node, ...]:
        if node is None:
            return ()
        if not isinstance(node.value, tuple):
            self.wrong(path, f"must be a list of {what}", node)
            return ()
        return node.value

    def text(self, node: Node, path: str) -> str:
        if isinstance(node.value, (tuple, Mapping)) or node.value is None:
            self.wrong(path, "must be text", node)
            return ""
        return node.text

    # ------------------------------------------------------------------ the whole

    def plan(self, root: Node) -> Plan:
        top = self.keys(root, "", ("receivers", "routes", "teams", "times", "timing"))
        receivers = self.receivers(top.get("receivers"), root)
        routes, watchdog = self.routes(top.get("routes"), receivers, root)
        return Plan(
            receivers=receivers,
            routes=routes,
            watchdog=watchdog,
            teams=self.teams(top.get("teams"), receivers),
            times=self.times(top.get("times")),
            paces=self.paces(top.get("timing")),
        )

    def receivers(self, node: Node | None, root: Node) -> Mapping[str, tuple[Made, ...]]:
        entries = self.keys(node, "receivers")
        if not entries:
            self.wrong("receivers", "names nobody; give at least one receiver with one channel", node or root)
        if len(entries) > MAX_RECEIVERS:
            self.wrong("receivers", f"are more than {MAX_RECEIVERS}", node)
        return {name: self.receiver(name, child) for name, child in entries.items()}

    def receiver(self, name: str, node: Node) -> tuple[Made, ...]:
        path = f"receivers.{name}"
        if not _NAME.match(name) or name in TAKEN:
            taken = " or ".join(TAKEN)
            self.wrong(path, f"a receiver is named by letters, digits, _ and -, and not {taken}", node)
        channels = self.items(node, path, "channels, such as - slack: {…}")
        if not channels and isinstance(node.value, tuple):
            self.wrong(path, "has no channel", node)
        made = [self.channel(f"{path}[{number}]", channel) for number, channel in enumerate(channels)]
        return tuple(one for one in made if one is not None)

    def channel(self, path: str, node: Node) -> Made | None:
        entries = self.keys(node, path)
        if len(entries) != 1:
            self.wrong(path, f"must be one channel; known kinds: {', '.join(CHANNELS)}", node)
            return None
        ((kind, inside),) = entries.items()
        if kind not in CHANNELS:
            self.wrong(f"{path}.{kind}", f"unknown kind; known: {', '.join(CHANNELS)}", inside)
            return None
        return self.given(f"{path}.{kind}", kind, inside)

    def given(self, path: str, kind: str, node: Node) -> Made | None:
        channel = CHANNELS[kind]
        before = len(self.problems)
        values: dict[str, str] = {}
        resolved = True
        for key, child in self.keys(node, path).items():
            where = f"{path}.{key}"
            if key == "resolved":
                resolved = child.value is True
                if not isinstance(child.value, bool):
                    self.wrong(where, "must be true or false", child)
            elif key not in channel.keys:
                self.wrong(where, _unknown(key, channel.keys), child)
            else:
                values[key] = self.text(child, where)
                why = fault(key, values[key]) if values[key] else ""
                if why:
                    self.wrong(where, why, child)
        begun = [way for way in channel.ways if way & set(values)]
        if len(begun) != 1 or not begun[0] <= set(values):
            ways = " or ".join(" and ".join(sorted(way)) for way in channel.ways)
            self.wrong(path, f"needs {ways}", node)
        if len(self.problems) > before:
            return None
        made = channel.make(values)
        return Made(made.section, {"send_resolved": resolved, **made.entry}, made.needs)

    # ------------------------------------------------------------------ who is told

    def routes(
        self, node: Node | None, receivers: Mapping[str, object], root: Node
    ) -> tuple[Mapping[Severity, str], str]:
        known = tuple(severity.value for severity in TOLD)
        entries = self.keys(node, "routes", (*known, WATCHDOG))
        for severity in known:
            if severity not in entries:
                self.wrong(f"routes.{severity}", "is missing: nobody would be told", node or root)
        told = {key: self.receiver_name(child, f"routes.{key}", receivers) for key, child in entries.items()}
        watchdog = told.pop(WATCHDOG, "")
        return {Severity(key): name for key, name in told.items()}, watchdog

    def receiver_name(self, node: Node, path: str, receivers: Mapping[str, object]) -> str:
        name = self.text(node, path)
        if name and name not in receivers:
            self.wrong(path, f"no receiver has this name; there are {', '.join(receivers) or 'none'}", node)
        return name

    def teams(self, node: Node | None, receivers: Mapping[str, object]) -> tuple[Team, ...]:
        entries = self.items(node, "teams", "teams, each with match and a receiver by severity")
        if len(entries) > MAX_TEAMS:
            self.wrong("teams", f"are more than {MAX_TEAMS}", node)
        return tuple(self.team(f"teams[{number}]", child, receivers) for number, child in enumerate(entries))

    def team(self, path: str, node: Node, receivers: Mapping[str, object]) -> Team:
        entries = self.keys(node, path, ("match", *(severity.value for severity in TOLD)))
        match = {
            label: self.values(label, child, f"{path}.match.{label}")
            for label, child in self.keys(entries.get("match"), f"{path}.match").items()
        }
        if not match:
            self.wrong(f"{path}.match", "is missing; name labels, such as {component: [gpu]}", node)
        told = {
            Severity(key): self.receiver_name(child, f"{path}.{key}", receivers)
            for key, child in entries.items()
            if key != "match"
        }
        if not told:
            self.wrong(path, "tells nobody; name a receiver for critical, warning or info", node)
        return Team(match=match, told=told)

    def values(self, label: str, node: Node, path: str) -> tuple[str, ...]:
        children = node.value if isinstance(node.value, tuple) else (node,)
        values = tuple(self.text(child, path) for child in children)
        if not _LABEL.match(label):
            self.wrong(path, "is no label name", node)
        if label in {"severity", "alertname"}:
            self.wrong(
                path, "teams are not chosen by it: severities stand beside match, and alerts have components", node
            )
        if not values or not all(value and value.isprintable() for value in values):
            self.wrong(path, "must be a value or a list of values", node)
        if label == "component":
            for child in children:
                self.word(child, path, Component)
        return values

    def word(self, node: Node, path: str, kind: Callable[[str], _Word]) -> _Word | None:
        try:
            return kind(node.text)
        except ValueError:
            known = Component if kind is Component else TOLD
            self.wrong(path, f"unknown; known: {', '.join(one.value for one in known)}", node)
            return None

    # ------------------------------------------------------------------ when

    def times(self, node: Node | None) -> Times:
        entries = self.keys(
            node, "times", ("location", "business_hours", "only_then", "maintenance", "muted_then")
        )  # fmt: skip
        hours = (self.span(entries["business_hours"], "times.business_hours"),) if "business_hours" in entries else ()
        breaks = self.items(entries.get("maintenance"), "times.maintenance", "hours of days")
        times = Times(
            location=self.location(entries.get("location")),
            business_hours=hours,
            only_then=self.severities(entries.get("only_then"), "times.only_then"),
            maintenance=tuple(
                self.span(child, f"times.maintenance[{number}]") for number, child in enumerate(breaks)
            ),
            muted_then=self.severities(entries.get("muted_then"), "times.muted_then"),
        )
        if times.only_then and not hours:
            self.wrong("times.only_then", "needs business_hours", entries["only_then"])
        if Severity.CRITICAL in times.only_then:
            self.wrong("times.only_then", "critical does not wait: users feel it", entries["only_then"])
        if bool(times.maintenance) is not bool(times.muted_then):
            self.wrong("times", "maintenance and muted_then need each other", node)
        return times

    def location(self, node: Node | None) -> str:
        if node is None:
            return "UTC"
        found = self.text(node, "times.location")
        if found and not _LOCATION.match(found):
            self.wrong("times.location", "is no place of the time zone database, such as Europe/Berlin", node)
        return found

    def severities(self, node: Node | None, path: str) -> tuple[Severity, ...]:
        found = [self.word(child, path, Severity) for child in self.items(node, path, "severities")]
        if Severity.NONE in found:
            self.wrong(path, "the watchdog never rests", node)
        return tuple(severity for severity in found if severity is not None)

    def span(self, node: Node, path: str) -> Span:
        entries = self.keys(node, path, ("days", "from", "to"))
        days = tuple(
            self.days(child, f"{path}.days") for child in self.items(entries.get("days"), f"{path}.days", "days")
        )
        ends = {key: self.text(entries[key], f"{path}.{key}") for key in ("from", "to") if key in entries}
        for key, clock in ends.items():
            if clock and not _CLOCK.match(clock):
                self.wrong(f"{path}.{key}", "must be a time such as 09:00", entries[key])
        if len(ends) == 1 or not (ends or days):
            self.wrong(path, "needs days, or from and to, or both", node)
        if len(ends) == 2 and ends["from"] >= ends["to"]:
            self.wrong(path, "ends before it begins; write the part after midnight as another entry", node)
        return Span(days=days, begin=ends.get("from", ""), end=ends.get("to", ""))

    def days(self, node: Node, path: str) -> str:
        found = self.text(node, path)
        places = [_DAYS.index(day) if day in _DAYS else -1 for day in found.split(":")]
        if len(places) > 2 or -1 in places or places != sorted(places):
            self.wrong(path, "must be a day or a range within a week, such as monday:friday", node)
        return found

    def paces(self, node: Node | None) -> Mapping[Severity, Pace]:
        entries = self.keys(node, "timing", tuple(severity.value for severity in TOLD))
        return {
            severity: self.pace(entries[severity.value], f"timing.{severity.value}", default)
            if severity.value in entries
            else default
            for severity, default in PACES.items()
        }

    def pace(self, node: Node, path: str, default: Pace) -> Pace:
        entries = self.keys(node, path, ("wait", "interval", "repeat"))
        given = {key: self.text(child, f"{path}.{key}") for key, child in entries.items()}
        seconds = {"wait": 0, "interval": 0, "repeat": 0}
        for key in seconds:
            match = _DURATION.match(given.get(key, getattr(default, key)))
            if match is None:
                self.wrong(f"{path}.{key}", "is no duration; write 30s, 5m, 4h or 1d", entries.get(key, node))
            else:
                seconds[key] = int(match[1]) * _UNITS[match[2]]
        if seconds["repeat"] < seconds["interval"]:
            self.wrong(path, "repeats more often than it looks; repeat must not be shorter than interval", node)
        return Pace(
            given.get("wait", default.wait),
            given.get("interval", default.interval),
            given.get("repeat", default.repeat),
        )


def _unknown(key: str, known: frozenset[str]) -> str:
    instead = SECRETS.get(key)
    if instead in known:
        return f"secrets stand in files: write it into one and give its path as {instead}"
    return f"unknown; known: {', '.join(sorted(known))}, resolved"
