"""Who is notified, read from the receivers file that a user edits; refused whole, with every problem and its line."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from alerts.alertmanager import hours
from alerts.alertmanager.channels import CHANNELS, SECRETS, Channel, Made, fault
from alerts.alertmanager.plan import NOTIFIED, TAKEN, WATCHDOG, NotificationPlan, Team
from alerts.rule import Component
from exporter.config import fields, loader
from exporter.config.parsers import Invalid
from exporter.config.reader import INVALID, ListOf, OneOf, Scalar, Table
from exporter.config.section import Key, Section, SectionResult
from exporter.config.suggest import did_you_mean
from exporter.model.finding import Severity

DEFAULT = str(Path(__file__).parent.parent / "receivers.yaml")
MAX_RECEIVERS, MAX_TEAMS = 50, 200
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,40}")
_LABEL = re.compile(r"[a-z_][a-z0-9_]*")


def load(path: str) -> NotificationPlan:
    """Read a file; raises SettingsError with every problem."""
    found: NotificationPlan = loader.load(SECTION, path)
    return found


def read(text: str, origin: str = "receivers") -> NotificationPlan:
    """Read the YAML text; raises SettingsError with every problem."""
    found: NotificationPlan = loader.parse(SECTION, text, origin)
    return found


def _printable(text: str) -> str:
    if not text or not text.isprintable():
        raise Invalid("expected printable text")
    return text


_TEXT = fields.written_as("text", _printable)


# ------------------------------------------------------------------ receivers


def _channel(channel: Channel) -> Section:
    ways = " or ".join(" and ".join(sorted(way)) for way in channel.ways)

    def finish(found: SectionResult) -> None:
        begun = [way for way in channel.ways if any(found.given(key) for key in way)]
        if len(begun) != 1 or not all(found.given(key) for key in begun[0]):
            found.refuse("", f"needs {ways}")

    def build(values: dict[str, Any]) -> Made | object:
        resolved = values.pop("resolved", True)
        if not any(way <= set(values) for way in channel.ways):
            return INVALID
        made = channel.make(values)
        return Made(made.section, {"send_resolved": resolved, **made.entry}, made.needs)

    keys = {key: Key(reader=_channel_value(key)) for key in sorted(channel.keys)}
    return Section(keys={**keys, "resolved": Key(reader=fields.boolean())}, build=build, finish=finish, files=SECRETS)


def _channel_value(key: str) -> Scalar:
    def check(text: str) -> str:
        if why := fault(key, text):
            raise Invalid(why)
        return text

    return fields.written_as("text", check)


def _check_receiver(name: str) -> None:
    if not _NAME.fullmatch(name) or name in TAKEN:
        taken = " or ".join(TAKEN)
        raise Invalid(f"the name of a receiver has letters, digits, _ and -, and is not {taken}")


_RECEIVERS = Table(
    name=_check_receiver,
    value=ListOf(
        item=OneOf(
            variants={kind: _channel(channel) for kind, channel in CHANNELS.items()}, what="kind of channel"
        ),
        what="channels, such as - slack: {…}",
        min_items=1,
    ),
    what="a mapping of at least one receiver to its channels",
    harmless=_NAME.pattern,
    min_items=1,
    max_items=MAX_RECEIVERS,
)  # fmt: skip


# ------------------------------------------------------------------ who is notified


def _check_label(label: str) -> None:
    if not _LABEL.fullmatch(label):
        raise Invalid("is not the name of a label")
    if label in {"severity", "alertname"}:
        raise Invalid("teams are not selected by it: write severities beside match; alerts have components")


def _finish_team(found: SectionResult) -> None:
    if not any(found.given(severity.value) for severity in NOTIFIED):
        found.refuse("", "notifies nobody; name a receiver for critical, warning or info")
    known = [component.value for component in Component]
    for component in (found.known("match") or {}).get("component", ()):
        if component not in known:
            found.refuse("match.component", did_you_mean(component, known, "unknown component"))


_TEAM = Section(
    keys={
        "match": Key(
            reader=Table(
                name=_check_label,
                value=ListOf(item=_TEXT, what="values", min_items=1, single=True),
                what="a mapping of labels to values, such as {component: [gpu]}",
                harmless=_LABEL.pattern,
                min_items=1,
            ),
            required=True,
        ),
        **{severity.value: Key(reader=_TEXT) for severity in NOTIFIED},
    },
    build=lambda values: Team(
        match=values.pop("match"), receivers={Severity(key): name for key, name in values.items()}
    ),
    finish=_finish_team,
)


def _named(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield each receiver that is named, with the path where it is."""
    for key, name in values.get("routes", {}).items():
        yield f"routes.{key}", name
    for number, team in enumerate(values.get("teams", ())):
        for severity, name in team.receivers.items():
            yield f"teams[{number}].{severity.value}", name


def _finish(found: SectionResult) -> None:
    receivers = found.known("receivers") or {}
    for path, name in _named(found.values):
        if name not in receivers and name is not INVALID:
            found.refuse(path, f"no receiver has this name; there are {', '.join(receivers) or 'none'}")


def _plan(values: dict[str, Any]) -> NotificationPlan:
    routes = dict(values.pop("routes"))
    watchdog = routes.pop(WATCHDOG, "")
    return NotificationPlan(
        receivers=values["receivers"],
        routes={Severity(key): name for key, name in routes.items()},
        watchdog=watchdog,
        **{key: values[key] for key in ("teams", "times") if key in values},
        **({"timings": values["timing"]} if "timing" in values else {}),
    )


def _unless_invalid(build: Callable[[dict[str, Any]], Any]) -> Callable[[dict[str, Any]], Any]:
    return lambda values: INVALID if INVALID in values.values() else build(values)


SECTION = Section(
    keys={
        "receivers": Key(reader=_RECEIVERS, required=True),
        "routes": Key(
            reader=Section(
                keys={
                    **{severity.value: Key(reader=_TEXT, required=True) for severity in NOTIFIED},
                    WATCHDOG: Key(reader=_TEXT),
                },
                build=dict,
            ),
            required=True,
        ),
        "teams": Key(reader=ListOf(item=_TEAM, what="teams", max_items=MAX_TEAMS)),
        "times": Key(reader=hours.TIMES),
        "timing": Key(reader=hours.TIMING),
    },
    build=_unless_invalid(_plan),
    finish=_finish,
)
