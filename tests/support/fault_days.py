"""One replay for all tests of alerts over time: a healthy day, and beside it each fault of the field under its own job.

It is lived once in a test run, by whichever worker comes first, and kept as JSON.
"""

from __future__ import annotations

import json
from typing import NamedTuple

from tests.support import soak_day
from tests.support.soak_day import JOB, Fired, NodeDay
from tests.support.tools import built_once

DAY = 3.0  # hours in which the traffic of a day rises and falls
FAULT_AT = 900.0  # seconds after the start
SATURATED = "saturated"  # job of a node whose queues are always full, but move
NODE_DAYS = [
    NodeDay(scenario="healthy", hours=DAY),
    NodeDay(scenario="mixed", hours=DAY, instance="n2:9853", seed=2),
    NodeDay(scenario="idle", hours=2.25, job="idle", seed=2),
    NodeDay(scenario="hang", hours=0.75, job="hang", fault_at=FAULT_AT, fault_until=FAULT_AT + 900),
    NodeDay(scenario="oom", hours=0.5, job="oom", fault_at=FAULT_AT),
    NodeDay(scenario="pcie", hours=0.4, job="pcie"),
    NodeDay(scenario="skew", hours=0.4, job="skew"),
    NodeDay(scenario="brake", hours=0.5, job="brake", fault_at=FAULT_AT, read=15),
    NodeDay(scenario="heat", hours=0.6, job="heat", fault_at=FAULT_AT, read=15),
    NodeDay(scenario="tenant", hours=0.5, job="tenant", fault_at=FAULT_AT, read=15),
    NodeDay(scenario="powercap", hours=0.5, job="powercap", fault_at=FAULT_AT, read=15),
    NodeDay(scenario="narrow", hours=0.5, job="narrow", fault_at=FAULT_AT, read=15),
    NodeDay(scenario="nic", hours=0.5, job="nic", fault_at=FAULT_AT, read=15),
    NodeDay(scenario="engines", hours=0.4, job="engines"),
    NodeDay(scenario="mig", hours=0.4, job="mig"),
    NodeDay(scenario="healthy", hours=0.4, job=SATURATED, rate=8.0),
    NodeDay(scenario="drift", hours=0.75, job="drift", instance="n1:9853", node=0),
    NodeDay(scenario="drift", hours=0.75, job="drift", instance="n2:9853", node=1),
]


def fault_days(factory) -> Fired:
    """Return what fired; ``factory`` is pytest's ``tmp_path_factory``."""
    folder = built_once(factory, "fault_days", _replay)
    rows = json.loads((folder / "fired.json").read_text())
    return Fired(
        {
            (name, severity): [tuple(labels_and_time) for labels_and_time in firings]
            for name, severity, firings in rows
        }
    )


class Found(NamedTuple):
    """A finding of a day, at the top or below another; ``seconds``: for how long it was one."""

    id: str
    subject: str
    replica: str
    cause: str
    seconds: float


def findings(factory, job):
    """Return what the daemons of the nodes of a job diagnosed themselves."""
    folder = built_once(factory, "fault_days", _replay)
    files = [folder / node_day.findings_file for node_day in NODE_DAYS if node_day.job == job]
    return [Found(*row) for file in files for row in json.loads(file.read_text())]


def _replay(folder):
    fired, _ = soak_day.replayed(folder, NODE_DAYS, day=DAY)
    rows = [(name, severity, firings) for (name, severity), firings in fired.by_alert.items()]
    (folder / "fired.json").write_text(json.dumps(rows))


__all__ = ["DAY", "FAULT_AT", "JOB", "NODE_DAYS", "SATURATED", "fault_days", "findings"]
