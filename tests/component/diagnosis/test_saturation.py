"""An hour with a queue that is always full, on a virtual clock: requests move, so nothing is ejected or found."""

from __future__ import annotations

from dataclasses import replace

from exporter.model import Quantity
from exporter.model.finding import VerdictState
from exporter.simulate.scenarios import SCENARIOS
from tests.support.virtual_node import VirtualNode

HOUR = 3600
FILLED = 120  # seconds until the queue never empties again
TICK = 10  # seconds; 1 s would take minutes of CPU
STARTED = 20.0  # seconds after which the progress of every replica was judged
HEALTHY = next(scenario for scenario in SCENARIOS if scenario.name == "healthy")


def saturated(rate):
    """Return two replicas, each asked for ``rate`` requests a second; it can serve about 5."""
    replicas = (
        replace(replica, traffic=replace(replica.traffic, rate=rate, daily=0.0)) for replica in HEALTHY.replicas
    )
    return replace(HEALTHY, name="saturated", replicas=tuple(replicas))


class Hour:
    """What an hour of a scenario showed."""

    def __init__(self, scenario):
        node = VirtualNode(scenario, step=1.0)
        self.findings, self.states, self.min_waiting, self.max_pause = set(), set(), float("inf"), 0.0
        moved = {}  # replica → (second, generated tokens)
        for second in node.live(HOUR, every=TICK):
            snapshot = node.publisher.snapshot
            self.findings |= {(finding.id, finding.subject.label) for finding in snapshot.findings}
            verdicts = (
                *snapshot.verdicts.replicas.values(),
                *snapshot.verdicts.gpus.values(),
                snapshot.verdicts.node,
            )
            if second >= STARTED:
                self.states |= {verdict.state for verdict in verdicts}
            for replica in snapshot.replicas:
                ranks = replica.reading.ranks.values()
                tokens = sum(rank[Quantity.GENERATION_TOKENS] for rank in ranks)
                at, before = moved.setdefault(replica.name, (second, tokens))
                self.max_pause = max(self.max_pause, second - at)
                if tokens != before:
                    moved[replica.name] = (second, tokens)
                if second >= FILLED:
                    self.min_waiting = min(self.min_waiting, sum(rank[Quantity.REQUESTS_WAITING] for rank in ranks))


def test_an_hour_of_saturation_ejects_nothing_and_has_no_finding():
    hour = Hour(saturated(rate=8.0))
    assert hour.min_waiting > 50
    assert hour.states == {VerdictState.SERVE}
    assert hour.findings == set()
    assert hour.max_pause <= 2 * TICK
