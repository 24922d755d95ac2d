"""Reads when people are told: office hours, maintenance, and how soon and how often a message comes."""

from __future__ import annotations

import re
from collections.abc import Mapping

from alerts.alertmanager.plan import DEFAULT_TIMINGS, NOTIFIED, NotificationTiming, Span, Times
from alerts.rule import Severity
from alerts.yaml_reader import Reading
from exporter.config.document import Node

_DURATION = re.compile(r"([1-9]\d{0,4})([smhd])\Z")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_CLOCK = re.compile(r"(?:[01]\d|2[0-3]):[0-5]\d\Z|24:00\Z")
_LOCATION = re.compile(r"UTC\Z|Local\Z|[A-Za-z_]+(?:/[A-Za-z0-9_+-]+){1,2}\Z")


def times(reading: Reading, node: Node | None) -> Times:
    """Read ``times``: hours in which some severities are told at all, and hours in which some are not."""
    entries = reading.keys(node, "times", ("location", "business_hours", "only_then", "maintenance", "muted_then"))
    office = entries.get("business_hours")
    breaks = reading.items(entries.get("maintenance"), "times.maintenance", "hours of days")
    found = Times(
        location=_location(reading, entries.get("location")),
        business_hours=(_span(reading, office, "times.business_hours"),) if office is not None else (),
        only_then=_severities(reading, entries.get("only_then"), "times.only_then"),
        maintenance=tuple(
            _span(reading, child, f"times.maintenance[{number}]") for number, child in enumerate(breaks)
        ),
        muted_then=_severities(reading, entries.get("muted_then"), "times.muted_then"),
    )
    if found.only_then and not found.business_hours:
        reading.wrong("times.only_then", "needs business_hours", entries["only_then"])
    if Severity.CRITICAL in found.only_then:
        reading.wrong("times.only_then", "critical does not wait: users feel it", entries["only_then"])
    if bool(found.maintenance) is not bool(found.muted_then):
        reading.wrong("times", "maintenance and muted_then need each other", node)
    return found


def _location(reading: Reading, node: Node | None) -> str:
    if node is None:
        return "UTC"
    found = reading.text(node, "times.location")
    if found and not _LOCATION.match(found):
        reading.wrong("times.location", "is no place of the time zone database, such as Europe/Berlin", node)
    return found


def _severities(reading: Reading, node: Node | None, path: str) -> tuple[Severity, ...]:
    found = [_severity(reading, child, path) for child in reading.items(node, path, "severities")]
    return tuple(severity for severity in found if severity is not None)


def _severity(reading: Reading, node: Node, path: str) -> Severity | None:
    if node.text == Severity.NONE.value:
        reading.wrong(path, "the watchdog never rests", node)
        return Severity.NONE
    return reading.word(node, path, {severity.value: severity for severity in NOTIFIED})


def _span(reading: Reading, node: Node, path: str) -> Span:
    entries = reading.keys(node, path, ("days", "from", "to"))
    listed = reading.items(entries.get("days"), f"{path}.days", "days")
    days = tuple(_days(reading, child, f"{path}.days") for child in listed)
    ends = {key: reading.text(entries[key], f"{path}.{key}") for key in ("from", "to") if key in entries}
    for key, clock in ends.items():
        if clock and not _CLOCK.match(clock):
            reading.wrong(f"{path}.{key}", "must be a time such as 09:00", entries[key])
    if len(ends) == 1 or not (ends or days):
        reading.wrong(path, "needs days, or from and to, or both", node)
    if len(ends) == 2 and ends["from"] >= ends["to"]:
        reading.wrong(path, "ends before it begins; write the part after midnight as another entry", node)
    return Span(days=days, begin=ends.get("from", ""), end=ends.get("to", ""))


def _days(reading: Reading, node: Node, path: str) -> str:
    found = reading.text(node, path)
    places = [_DAYS.index(day) if day in _DAYS else -1 for day in found.split(":")]
    if len(places) > 2 or -1 in places or places != sorted(places):
        reading.wrong(path, "must be a day or a range within a week, such as monday:friday", node)
    return found


def timings(reading: Reading, node: Node | None) -> Mapping[Severity, NotificationTiming]:
    """Read ``timing``: what is not named keeps its default."""
    entries = reading.keys(node, "timing", tuple(severity.value for severity in NOTIFIED))
    return {
        severity: _pace(reading, entries[severity.value], f"timing.{severity.value}", default)
        if severity.value in entries
        else default
        for severity, default in DEFAULT_TIMINGS.items()
    }


def _pace(reading: Reading, node: Node, path: str, default: NotificationTiming) -> NotificationTiming:
    entries = reading.keys(node, path, ("wait", "interval", "repeat"))
    given = {key: reading.text(child, f"{path}.{key}") for key, child in entries.items()}
    seconds = {"wait": 0, "interval": 0, "repeat": 0}
    for key in seconds:
        match = _DURATION.match(given.get(key, getattr(default, key)))
        if match is None:
            reading.wrong(f"{path}.{key}", "is no duration; write 30s, 5m, 4h or 1d", entries.get(key, node))
        else:
            seconds[key] = int(match[1]) * _UNITS[match[2]]
    if seconds["repeat"] < seconds["interval"]:
        reading.wrong(path, "repeats more often than it looks; repeat must not be shorter than interval", node)
    return NotificationTiming(
        given.get("wait", default.wait),
        given.get("interval", default.interval),
        given.get("repeat", default.repeat),
    )
