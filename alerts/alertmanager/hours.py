"""When people are notified: business hours, maintenance, and how soon and how often a message is sent."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from alerts.alertmanager.plan import DEFAULT_TIMINGS, NOTIFIED, NotificationTiming, Span, Times
from exporter.config import fields
from exporter.config.parsers import Invalid
from exporter.config.reader import Item, ListOf, Scalar
from exporter.config.section import Key, Section, SectionResult
from exporter.model.finding import Severity

_DURATION = re.compile(r"([1-9]\d{0,4})([smhd])\Z")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_CLOCK = re.compile(r"(?:[01]\d|2[0-3]):[0-5]\d\Z|24:00\Z")
_LOCATION = re.compile(r"UTC\Z|Local\Z|[A-Za-z_]+(?:/[A-Za-z0-9_+-]+){1,2}\Z")


def _matching(pattern: re.Pattern[str], what: str) -> Scalar:
    return fields.written_as(what, _check(pattern, what))


def _check(pattern: re.Pattern[str], what: str) -> Callable[[str], str]:
    def check(text: str) -> str:
        if not pattern.match(text):
            raise Invalid(f"expected {what}")
        return text

    return check


def _days(text: str) -> str:
    places = [_DAYS.index(day) if day in _DAYS else -1 for day in text.split(":")]
    if len(places) > 2 or -1 in places or places != sorted(places):
        raise Invalid("expected a day or a range within a week, such as monday:friday")
    return text


def _finish_span(found: SectionResult) -> None:
    begin, end = found.known("from", ""), found.known("to", "")
    if found.given("from") is not found.given("to") or not (found.given("from") or found.given("days")):
        found.refuse("", "needs days, or from and to, or both")
    if begin and end and begin >= end:
        found.refuse("", "ends before it begins; write the part after midnight as another entry")


_SPAN = Section(
    keys={
        "days": Key(reader=ListOf(item=fields.written_as("a day", _days), what="days")),
        "from": Key(reader=_matching(_CLOCK, "a time such as 09:00")),
        "to": Key(reader=_matching(_CLOCK, "a time such as 18:00")),
    },
    build=lambda values: Span(
        days=values.get("days", ()), begin=values.get("from", ""), end=values.get("to", "")
    ),
    finish=_finish_span,
)  # fmt: skip


def _severity(item: Item) -> Severity:
    if item.node.text == Severity.NONE.value:
        raise Invalid("the watchdog is never muted")
    return Severity(fields.choice(*(severity.value for severity in NOTIFIED)).convert(item))


_SEVERITIES = ListOf(item=Scalar(_severity), what="severities")


def _finish_times(found: SectionResult) -> None:
    only_then = found.known("only_then") or ()
    if only_then and not found.given("business_hours"):
        found.refuse("only_then", "needs business_hours")
    if Severity.CRITICAL in only_then:
        found.refuse("only_then", "critical alerts cannot wait: users are affected")
    if bool(found.known("maintenance")) is not bool(found.known("muted_then")):
        found.refuse("", "maintenance and muted_then need each other")


def _times(values: dict[str, Any]) -> Times:
    office = values.pop("business_hours", None)
    return Times(business_hours=(office,) if office else (), **values)


TIMES = Section(
    keys={
        "location": Key(reader=_matching(_LOCATION, "a name of the time zone database, such as Europe/Berlin")),
        "business_hours": Key(reader=_SPAN),
        "only_then": Key(reader=_SEVERITIES),
        "maintenance": Key(reader=ListOf(item=_SPAN, what="hours of days")),
        "muted_then": Key(reader=_SEVERITIES),
    },
    build=_times,
    finish=_finish_times,
)


def _timing(default: NotificationTiming) -> Section:
    duration = _matching(_DURATION, "a duration such as 30s, 5m, 4h or 1d")

    def finish(found: SectionResult) -> None:
        interval, repeat = found.known("interval", default.interval), found.known("repeat", default.repeat)
        if interval and repeat and _seconds(repeat) < _seconds(interval):
            found.refuse("", "repeats more often than it checks; repeat must not be shorter than interval")

    def build(values: dict[str, Any]) -> NotificationTiming:
        given = {"wait": default.wait, "interval": default.interval, "repeat": default.repeat, **values}
        return NotificationTiming(**given)

    return Section(
        keys={name: Key(reader=duration) for name in ("wait", "interval", "repeat")}, build=build, finish=finish
    )


def _seconds(text: str) -> int:
    return int(text[:-1]) * _UNITS[text[-1]]


# What is not named keeps its default.
TIMING = Section(
    keys={severity.value: Key(reader=_timing(default)) for severity, default in DEFAULT_TIMINGS.items()},
    build=lambda values: {
        severity: values.get(severity.value, default) for severity, default in DEFAULT_TIMINGS.items()
    },
)
