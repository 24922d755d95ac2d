"""Who is to be told about what, when and how often, as records; ``reader.py`` makes them of the user's YAML."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from alerts.alertmanager.channels import OLDEST, Made, Need, Version
from alerts.rule import Severity

NOTIFIED = (Severity.CRITICAL, Severity.WARNING, Severity.INFO)  # severities that reach people
WATCHDOG, NOBODY = "watchdog", "nobody"  # receivers that are made here
TAKEN = (WATCHDOG, NOBODY)


@dataclass(frozen=True, slots=True)
class NotificationTiming:
    """How long to wait for more of a group, between messages about changes, and before repeating; Go durations."""

    wait: str
    interval: str
    repeat: str


DEFAULT_TIMINGS: Mapping[Severity, NotificationTiming] = {
    Severity.CRITICAL: NotificationTiming("10s", "1m", "4h"),
    Severity.WARNING: NotificationTiming("30s", "5m", "12h"),
    Severity.INFO: NotificationTiming("5m", "1h", "24h"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Hours of some days, as Alertmanager writes them; no days are all days."""

    days: tuple[str, ...] = ()
    begin: str = ""
    end: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """When people want to hear: ``only_then`` names severities that wait for business hours."""

    location: str = "UTC"
    business_hours: tuple[Span, ...] = ()
    only_then: tuple[Severity, ...] = ()
    maintenance: tuple[Span, ...] = ()
    muted_then: tuple[Severity, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Team:
    """Whose labels match (each one of the values) is told instead of whom the severity names."""

    match: Mapping[str, tuple[str, ...]]
    told: Mapping[Severity, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class NotificationPlan:
    """Everything that the user decides about notifications."""

    receivers: Mapping[str, tuple[Made, ...]]
    routes: Mapping[Severity, str]
    watchdog: str = ""
    teams: tuple[Team, ...] = ()
    times: Times = field(default_factory=Times)
    timings: Mapping[Severity, NotificationTiming] = field(default_factory=lambda: dict(DEFAULT_TIMINGS))

    def needs(self) -> tuple[Need, ...]:
        """Give what needs more than the oldest Alertmanager, each once."""
        every = [need for channels in self.receivers.values() for made in channels for need in made.needs]
        return tuple(sorted(set(every), key=lambda need: (need.version, need.feature)))

    @property
    def floor(self) -> Version:
        """The oldest Alertmanager that loads this."""
        return max((need.version for need in self.needs()), default=OLDEST)
