"""All rule groups, in the order of the files."""

from __future__ import annotations

from collections import Counter

from alerts import capacity, daemon, efficiency, fleet, gateways, gpu_health, gpu_load, meta, replicas, requests
from alerts.rule import Alert, Group, RuleError
from alerts.tuning import Tuning
from exporter.catalog import CATALOG
from exporter.catalog.spec import SeriesSet

SUBJECTS = (daemon, gpu_health, gpu_load, replicas, capacity, requests, gateways, efficiency, fleet, meta)


def groups(tuning: Tuning) -> tuple[Group, ...]:
    """Return all groups; raises RuleError when two rules collide or one does not declare that it needs the full set."""
    found = tuple(group for subject in SUBJECTS for group in subject.groups(tuning))
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


def full_series_metrics() -> frozenset[str]:
    """Return the names of the families that exist only with ``series: full``."""
    return frozenset(metric.name for metric in CATALOG if metric.series is SeriesSet.FULL)


def alerts(tuning: Tuning) -> tuple[Alert, ...]:
    """Return every alert."""
    return tuple(alert for group in groups(tuning) for alert in group.alerts())
