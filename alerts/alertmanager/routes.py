"""The routing tree: the watchdog, then one route per severity with the routes of teams below it.

Time intervals are repeated on every team's route, because Alertmanager does not inherit them.  Alerts of other sources,
without one of our severities, go to the receiver of warnings.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from alerts.alertmanager.inhibition import Inhibition
from alerts.alertmanager.plan import NO_RECEIVER, NOTIFIED, WATCHDOG, NotificationPlan, NotificationTiming, Span, Team
from exporter.model.finding import Severity

CLUSTER = "cluster"
BUSINESS_HOURS, MAINTENANCE = "business-hours", "maintenance"
# A page is about one node; a ticket lists all nodes with the same problem.  Labels that an alert lacks are empty;
# ``cluster`` is the external label of setups with several Prometheus servers.
_GROUPS: Mapping[Severity, tuple[str, ...]] = {
    Severity.CRITICAL: ("alertname", "cluster", "job", "instance", "model"),
    Severity.WARNING: ("alertname", "cluster", "job", "model"),
    Severity.INFO: ("alertname", "cluster", "job"),
}
# Every 50 s: Alertmanager looks once an interval and repeats only when ``repeat`` is over by then, so that both at a
# minute would be every other minute.
_HEARTBEAT = NotificationTiming("0s", "50s", "45s")


def routing(plan: NotificationPlan) -> dict[str, Any]:
    """Return Alertmanager's ``route``."""
    root = plan.routes[Severity.WARNING]
    routes = [_watchdog(plan), *(_severity(plan, severity) for severity in NOTIFIED)]
    return {
        "receiver": root,
        **_pace(plan.timings[Severity.WARNING]),
        "group_by": ["alertname", "cluster", "job"],
        "routes": routes,
    }


def _watchdog(plan: NotificationPlan) -> dict[str, Any]:
    return {
        "receiver": WATCHDOG if plan.watchdog else NO_RECEIVER,
        "matchers": ['alertname="Watchdog"', f'severity="{Severity.NONE.value}"'],
        "group_by": ["alertname", "cluster"],
        **_pace(_HEARTBEAT),
    }


def _severity(plan: NotificationPlan, severity: Severity) -> dict[str, Any]:
    times = _times(plan, severity)
    teams = [_team(team, severity, times) for team in plan.teams if severity in team.receivers]
    return {
        "receiver": plan.routes[severity],
        "matchers": [f'severity="{severity.value}"'],
        "group_by": list(_GROUPS[severity]),
        **_pace(plan.timings[severity]),
        **times,
        **({"routes": teams} if teams else {}),
    }


def _team(team: Team, severity: Severity, times: Mapping[str, Any]) -> dict[str, Any]:
    matchers = [_one_of(label, values) for label, values in team.match.items()]
    return {"receiver": team.receivers[severity], "matchers": matchers, **times}


def _one_of(label: str, values: tuple[str, ...]) -> str:
    if len(values) == 1:
        return f"{label}={quoted(values[0])}"
    return f"{label}=~{quoted('|'.join(_literal(value) for value in values))}"


def _literal(value: str) -> str:
    return "".join(f"\\{character}" if character in r"\.+*?()|[]{}^$" else character for character in value)


def quoted(value: str) -> str:
    """Write a matcher's value as Alertmanager reads it."""
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _pace(pace: NotificationTiming) -> dict[str, str]:
    return {"group_wait": pace.wait, "group_interval": pace.interval, "repeat_interval": pace.repeat}


def _times(plan: NotificationPlan, severity: Severity) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    if severity in plan.times.muted_then:
        found["mute_time_intervals"] = [MAINTENANCE]
    if severity in plan.times.only_then:
        found["active_time_intervals"] = [BUSINESS_HOURS]
    return found


def intervals(plan: NotificationPlan) -> Iterator[dict[str, Any]]:
    """Yield Alertmanager's ``time_intervals``."""
    for name, spans in ((BUSINESS_HOURS, plan.times.business_hours), (MAINTENANCE, plan.times.maintenance)):
        if spans:
            yield {"name": name, "time_intervals": [_span(span, plan.times.location) for span in spans]}


def _span(span: Span, location: str) -> dict[str, Any]:
    hours = {"times": [{"start_time": span.begin, "end_time": span.end}]} if span.begin else {}
    days = {"weekdays": list(span.days)} if span.days else {}
    return {**hours, **days, "location": location}


def inhibit_rule(inhibition: Inhibition) -> dict[str, Any]:
    """Write an inhibition as Alertmanager reads it."""
    return {
        "source_matchers": [
            _names(inhibition.sources),
            *(f"{label}{operator}{quoted(value)}" for label, operator, value in inhibition.where),
            *([f'severity="{inhibition.above.value}"'] if inhibition.above else []),
        ],
        "target_matchers": [
            _names(inhibition.targets),
            *(
                [f'severity=~"{"|".join(severity.value for severity in inhibition.below)}"']
                if inhibition.below
                else []
            ),
        ],
        "equal": [CLUSTER, *inhibition.equal],  # two clusters may have nodes of one name
    }


def _names(names: tuple[str, ...]) -> str:
    return _one_of("alertname", names)
