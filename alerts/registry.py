"""All rule groups, in the order of the files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from alerts import capacity, daemon, efficiency, fleet, gateways, gpu_health, gpu_load, meta, replicas, requests
from alerts.rule import Alert, Group, Rule, RuleError
from alerts.tuning import Tuning
from exporter.catalog import CATALOG
from exporter.catalog.spec import SeriesSet
from exporter.config.suggest import did_you_mean
from exporter.errors import Problem, SettingsError
from exporter.model.finding import Severity

SUBJECTS = (daemon, gpu_health, gpu_load, replicas, capacity, requests, gateways, efficiency, fleet, meta)

_RANK = {Severity.NONE: 0, Severity.INFO: 1, Severity.WARNING: 2, Severity.CRITICAL: 3}


def groups(tuning: Tuning) -> tuple[Group, ...]:
    """Return all groups; raises RuleError when two rules collide or one does not declare that it needs the full set."""
    shipped = tuple(group for subject in SUBJECTS for group in subject.groups(tuning))
    _reject_unknown(tuning, {alert.name for group in shipped for alert in group.alerts()})
    found = tuple(tuned for group in shipped if (tuned := _tuned(group, tuning)).rules)
    for name, count in Counter(group.name for group in found).items():
        if count > 1:
            raise RuleError(f"{name}: two groups have this name")
    alerts = [alert for group in found for alert in group.alerts()]
    for identity, count in Counter(alert.identity for alert in alerts).items():
        if count > 1:
            raise RuleError(f"{' '.join(identity)}: two alerts cannot be told apart")
    recorded = Counter(
        (recording.name, *sorted(recording.labels.items())) for group in found for recording in group.recordings()
    )
    for key, count in recorded.items():
        if count > 1:
            raise RuleError(f"{key}: recorded twice")
    full = full_series_metrics()
    for alert in alerts:
        recorded_first = any(":" in source for source in alert.expr.sources)  # a recording may hide what it reads
        if bool(alert.full_series) is not bool(alert.expr.sources & full) and not (
            recorded_first and alert.full_series
        ):
            needs = ", ".join(sorted(alert.expr.sources & full)) or "no row of the full set of series"
            raise RuleError(f"{alert.name}: reads {needs}; full_series must say so, and only then")
    return found


def _reject_unknown(tuning: Tuning, known: set[str]) -> None:
    """Raise SettingsError for tuned alerts that do not exist."""
    unknown = [name for name in tuning.rules if name not in known]
    if unknown:
        raise SettingsError(
            [Problem(f"rules.{name}", did_you_mean(name, sorted(known), "no such alert")) for name in unknown],
            "thresholds",
        )


def _tuned(group: Group, tuning: Tuning) -> Group:
    """Return the group without the alerts that are switched off, the others with their own severity and ``for``."""
    return replace(group, rules=tuple(_tuned_rules(group, tuning)))


def _tuned_rules(group: Group, tuning: Tuning) -> Iterator[Rule]:
    for rule in group.rules:
        change = tuning.rules.get(rule.name) if isinstance(rule, Alert) else None
        if change is None or not isinstance(rule, Alert):
            yield rule
        elif change.enabled:
            severity = rule.severity
            if change.max_severity is not None and _RANK[severity] > _RANK[change.max_severity]:
                severity = change.max_severity
                if any(other.name == rule.name and other.severity is severity for other in group.alerts()):
                    continue
            yield replace(rule, severity=severity, for_=change.for_ or rule.for_)


def full_series_metrics() -> frozenset[str]:
    """Return the names of the families that exist only with ``series: full``."""
    return frozenset(metric.name for metric in CATALOG if metric.series is SeriesSet.FULL)


def alerts(tuning: Tuning) -> tuple[Alert, ...]:
    """Return every alert."""
    return tuple(alert for group in groups(tuning) for alert in group.alerts())
