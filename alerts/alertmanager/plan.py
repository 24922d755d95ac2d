"""The receivers file as records: who is notified about what, when and how often."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from alerts.alertmanager.channels import OLDEST, Made, Need, Version
from exporter.model.finding import Severity

NOTIFIED = (Severity.CRITICAL, Severity.WARNING, Severity.INFO)  # severities that notify people
WATCHDOG, NO_RECEIVER = "watchdog", "nobody"  # generated receivers
TAKEN = (WATCHDOG, NO_RECEIVER)


@dataclass(frozen=True, slots=True)
class NotificationTiming:
    """Group wait, group interval and repeat interval; Go durations."""

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
    """Hours of some days in Alertmanager's notation; no days means every day."""

    days: tuple[str, ...] = ()
    begin: str = ""
    end: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """When notifications are sent: ``only_then`` names severities that wait for business hours."""

    location: str = "UTC"
    business_hours: tuple[Span, ...] = ()
    only_then: tuple[Severity, ...] = ()
    maintenance: tuple[Span, ...] = ()
    muted_then: tuple[Severity, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Team:
    """Receivers for alerts whose labels match (one of the values each), instead of those of the severity."""

    match: Mapping[str, tuple[str, ...]]
    receivers: Mapping[Severity, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class NotificationPlan:
    """The receivers file."""

    receivers: Mapping[str, tuple[Made, ...]]
    routes: Mapping[Severity, str]
    watchdog: str = ""
    teams: tuple[Team, ...] = ()
    times: Times = field(default_factory=Times)
    timings: Mapping[Severity, NotificationTiming] = field(default_factory=lambda: dict(DEFAULT_TIMINGS))

    def needs(self) -> tuple[Need, ...]:
        """Return the features that need more than the oldest Alertmanager."""
        every = [need for channels in self.receivers.values() for made in channels for need in made.needs]
        return tuple(sorted(set(every), key=lambda need: (need.version, need.feature)))

    @property
    def floor(self) -> Version:
        """Return the oldest Alertmanager that loads the configuration."""
        return max((need.version for need in self.needs()), default=OLDEST)
