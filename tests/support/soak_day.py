"""Simulated days through the daemon's own readers into a real Prometheus, and which alerts would have fired when.

``write`` lives a ``VirtualNode``, whose clock jumps from reading to reading.  Scenarios that must not meet have a
scrape job each: no rule aggregates over jobs.
"""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
import time
from collections import deque
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from alerts.tuning import Tuning
from exporter.catalog import CATALOG
from exporter.simulate.scenarios import find
from tests.support import week_plans
from tests.support.prometheus_replay import PART, Replay, lines, rules
from tests.support.virtual_node import UNIX_START, VirtualNode

JOB = Tuning().job
_NAME = re.compile(r"[a-z_]+(?=\{)")  # of a metric in a query of a description


def read_families():
    """Return the families that rules read; the day is written without the others."""
    recordings, alerts = rules()
    read = {PART.sub("", source) for rule in (*recordings, *alerts) for source in rule.expr.sources}
    queried = {name for alert in alerts for name in _NAME.findall(alert.description.en)}
    return read | {metric.name for metric in CATALOG if metric.name in queried}


@dataclass(frozen=True, kw_only=True)
class NodeDay:
    """Some hours of a node under a scrape job, read each ``read`` seconds.

    ``fault_at`` and ``fault_until`` are seconds after its start.  ``rate``: requests a second that each replica gets
    all the time, instead of the scenario's.  ``plan``: what is done to it when, one of ``week_plans``.
    """

    scenario: str
    hours: float
    job: str = JOB
    instance: str = "n1:9853"
    seed: int = 1
    node: int = 0
    fault_at: float | None = None
    fault_until: float | None = None
    read: int = 60
    rate: float | None = None
    plan: str = ""

    @property
    def file(self):
        return f"{self.job}-{self.instance}.om"

    @property
    def findings_file(self):
        return f"{self.job}-{self.instance}.findings.json"


def write(folder, node_day, *, day, scrape):
    """Write the samples of a node that is scraped each so many seconds.

    Traffic rises and falls once in ``day`` hours; the world takes long steps.
    """
    node = VirtualNode(
        _scenario(node_day), seed=node_day.seed, node=node_day.node, fault_at=node_day.fault_at,
        fault_until=node_day.fault_until, day=day * 3600.0, step=1.0, interval=float(node_day.read),
    )  # fmt: skip
    wanted, target = read_families(), f'job="{node_day.job}",instance="{node_day.instance}"'
    seconds = {}  # (id, label of the subject, replica, cause) → for how long it was a finding
    plan = deque(week_plans.plan(node_day.plan, day))
    _act(node, plan, 0.0)
    with open(Path(folder) / node_day.file, "w", encoding="utf-8") as file:
        for now in node.live(node_day.hours * 3600, every=node_day.read):
            _act(node, plan, now)
            if node.publisher.snapshot is None:  # a daemon that has just been started
                continue
            if now % scrape == 0:
                file.writelines(lines(node.page(), target, int(UNIX_START + now), wanted))
            for finding in _with_causes(node.publisher.snapshot.findings):
                key = (finding.id, finding.subject.label, finding.replica, finding.cause.en if finding.cause else "")
                seconds[key] = seconds.get(key, 0) + node_day.read
    (Path(folder) / node_day.findings_file).write_text(json.dumps([[*key, held] for key, held in seconds.items()]))


def _act(node, plan, now):
    """Carry out the steps of a plan that are due."""
    while plan and plan[0].at <= now:
        plan.popleft().act(node)


def _scenario(node_day):
    scenario = week_plans.SCENARIOS.get(node_day.scenario) or find(node_day.scenario)
    if node_day.rate is None:
        return scenario
    replicas = [
        replace(replica, traffic=replace(replica.traffic, rate=node_day.rate, daily=0.0))
        for replica in scenario.replicas
    ]
    return replace(scenario, replicas=tuple(replicas))


def _with_causes(findings):
    for finding in findings:
        yield finding
        yield from _with_causes(finding.causes)


@dataclass(frozen=True)
class Fired:
    """What fired while its node lived: by (alert, severity), (labels, seconds after the start) of each series."""

    by_alert: dict

    def names(self, job, *, instance=None):
        """Return the alerts of a job, or of one of its nodes."""
        return {
            name
            for (name, _), firings in self.by_alert.items()
            for labels, _ in firings
            if labels.get("job", job) == job and instance in (None, labels.get("instance"))
        }

    def of(self, job, alert, severity):
        """Return (labels, seconds) of an alert of a job."""
        return [(labels, at) for labels, at in self.by_alert.get((alert, severity), ()) if labels.get("job") == job]


def replayed(folder, node_days, *, day=24.0, scrape=60, lookback="5m", processes=2):
    """Live the nodes' hours and replay them; return what fired, and how long the parts took.

    ``lookback``: how long a series that has ended is still seen, since backfilled samples have no end.
    """
    begun = time.monotonic()
    _live(folder, node_days, {"day": day, "scrape": scrape}, processes)
    lived = time.monotonic()
    replay = Replay(folder, hours=max(node_day.hours for node_day in node_days), scrape=scrape, lookback=lookback)
    replay.load([Path(folder) / node_day.file for node_day in node_days])
    loaded = time.monotonic()
    ends = {node_day.job: node_day.hours * 3600 for node_day in node_days}
    fired = {
        alert: [(labels, at) for labels, at in firings if at <= ends.get(labels.get("job"), math.inf)]
        for alert, firings in replay.fired().items()
    }
    took = {"lived": lived - begun, "loaded": loaded - lived, "asked": time.monotonic() - loaded}
    return Fired({alert: firings for alert, firings in fired.items() if firings}), took


def _live(folder, node_days, options, processes):
    """Share the nodes out among processes, the longest first to whoever has least."""
    shares = [[] for _ in range(min(processes, len(node_days)))]
    for node_day in sorted(node_days, key=lambda node_day: -node_day.hours):
        min(shares, key=lambda share: sum(node_day.hours for node_day in share)).append(node_day)
    running = [
        subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.support.soak_day",
                str(folder),
                json.dumps([list(map(asdict, share)), options]),
            ],
            cwd=Path(__file__).parents[2],
        )
        for share in shares
    ]
    assert [process.wait(4 * 3600) for process in running] == [0] * len(running)


def main():
    folder, text = sys.argv[1:]
    node_days, options = json.loads(text)
    for node_day in node_days:
        write(folder, NodeDay(**node_day), **options)


if __name__ == "__main__":
    main()
