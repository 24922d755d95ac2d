"""The group about replicas: recordings first, so that its alerts about engines and imbalance read current values."""

from __future__ import annotations

from alerts import balance, engine_depth, engines, multi_node, stores
from alerts.recordings import recordings
from alerts.rule import Group, Rule
from alerts.tuning import Tuning


def groups(tuning: Tuning) -> tuple[Group, ...]:
    """Return the group about replicas."""
    rules: tuple[Rule, ...] = (
        *recordings(),
        *multi_node.recordings(),
        *engines.alerts(tuning),
        *engine_depth.alerts(tuning),
        *stores.alerts(tuning),
        *balance.alerts(tuning),
        *multi_node.alerts(tuning),
    )
    return (Group(name="shardwatch-replicas", rules=rules),)
