"""Recordings about replicas that several alerts and boards read: demand, work, and what their cards do.

One group with the alerts about engines and balance, records first, so that an alert reads what was just recorded.
"""

from __future__ import annotations

from alerts import balance, engines
from alerts.recordings import recordings
from alerts.rule import Group, Rule
from alerts.tuning import Tuning


def groups(tuning: Tuning) -> tuple[Group, ...]:
    """Give the group about replicas."""
    rules: tuple[Rule, ...] = (*recordings(), *engines.alerts(tuning), *balance.alerts(tuning))
    return (Group(name="shardwatch-replicas", rules=rules),)
