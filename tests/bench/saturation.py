"""An hour of each kind of load on a simulated node, every second judged: nothing may be ejected.

    python -m tests.bench.saturation [--seconds 3600] [--only NAME]

First, of a replica whose collective does not end: seconds from its last step to ``eject``, and to ``llm_frozen``, which the
counters alone support, over five phases of the poll.  Then the loads: two replicas over four GPUs each, engines polled every 5 s.  Every snapshot is judged twice: with the work signals of GPM
(Hopper and newer) and without.  Prints for each load the shortest queue once it is full, the longest time in which no
counter moved while requests ran, the longest in which no GPU of such a replica computed, and the ejections.
"""

from __future__ import annotations

import argparse
import logging
import sys
from dataclasses import replace
from typing import NamedTuple

from exporter.diagnosis.idle_gpus import is_computing
from exporter.model import Quantity, Signal
from exporter.model.finding import VerdictState
from exporter.runtime.diagnosis import Diagnosis
from exporter.simulate.records import Scenario, Traffic
from exporter.simulate.scenarios import find
from tests.support import records
from tests.support.virtual_node import VirtualNode

FILLED = 300  # seconds until the queue of a saturated replica never empties again
GPM = frozenset({Signal.SM_ACTIVE, Signal.SM_OCCUPANCY, Signal.TENSOR_ACTIVE, Signal.DRAM_ACTIVE})
LOADS = {
    "idle": Traffic(rate=1e-6),
    "one request a minute": Traffic(rate=1 / 60),
    "a request every 5 s": Traffic(rate=0.2),
    "steady": Traffic(rate=2.4),
    "queue always full": Traffic(rate=8.0),
    "queue always full, long prompts": Traffic(rate=4.0, prompt=24_000, output=60),
    "long prompts, one at a time": Traffic(rate=0.05, prompt=100_000, prompt_spread=0.2, output=20),
    "impatient clients": Traffic(rate=8.0, client_timeout=10.0, cancel_ratio=0.5),
}


class Result(NamedTuple):
    """What an hour showed; seconds, requests, ejections with GPM and without."""

    waiting: float
    still: float
    idle: float
    ejections: tuple[int, int]


def scenario(traffic: Traffic) -> Scenario:
    healthy = find("healthy")
    return replace(healthy, replicas=tuple(replace(replica, traffic=traffic) for replica in healthy.replicas))


def without_gpm(snapshot):
    """Return the snapshot as of a node without GPM."""
    cards = (
        records.replace(
            card,
            reading=records.replace(
                card.reading, signals={k: v for k, v in card.reading.signals.items() if k not in GPM}
            ),
        )
        for card in snapshot.cards
    )
    return records.replace(snapshot, cards=tuple(cards))


class Hour:
    """Follows one node."""

    def __init__(self) -> None:
        self._other = Diagnosis()
        self._idle_since: dict[str, float] = {}
        self._states: dict[tuple[str, bool], VerdictState] = {}
        self.waiting, self.still, self.idle, self.ejections = float("inf"), 0.0, 0.0, [0, 0]

    def update(self, snapshot) -> None:
        self._count(snapshot, gpm=True)
        self._count(self._other.judge(without_gpm(snapshot)), gpm=False)
        for number, replica in enumerate(snapshot.replicas):
            if replica.reading is None:
                continue
            (rank,) = replica.reading.ranks.values()
            if snapshot.at > FILLED:
                self.waiting = min(self.waiting, rank[Quantity.REQUESTS_WAITING])
            computes = any(is_computing(card) for card in snapshot.cards[4 * number : 4 * number + 4])
            if not rank[Quantity.REQUESTS_RUNNING] or computes:
                self._idle_since[replica.name] = snapshot.at
            if rank[Quantity.REQUESTS_RUNNING]:
                self.still = max(self.still, replica.reading.at - replica.moved_at)
                self.idle = max(self.idle, snapshot.at - self._idle_since.get(replica.name, snapshot.at))

    def _count(self, snapshot, *, gpm: bool) -> None:
        for name, verdict in snapshot.verdicts.replicas.items():
            before = self._states.get((name, gpm))
            self._states[name, gpm] = verdict.state
            if verdict.state is VerdictState.EJECT and before is not VerdictState.EJECT:
                self.ejections[0 if gpm else 1] += 1


def run(traffic: Traffic, seconds: int) -> Result:
    """Return what one load showed."""
    node, hour = VirtualNode(scenario(traffic)), Hour()
    for _ in node.live(seconds):
        hour.update(node.publisher.snapshot)
    return Result(hour.waiting, hour.still, hour.idle, (hour.ejections[0], hour.ejections[1]))


def standstill(interval: float, phase: int) -> tuple[float, float]:
    """Return the seconds from the last step of a replica to its ejection, and to ``llm_frozen``."""
    node = VirtualNode("nic", interval=interval, fault_at=20 + phase)
    stopped = ejected = None
    for second in node.live(200):
        snapshot = node.publisher.snapshot
        if stopped is None and node.world.replica("chat-b").frozen:
            stopped = second
        if ejected is None and snapshot.verdicts.replicas["chat-b"].state is VerdictState.EJECT:
            ejected = second
        if any(replica.frozen for replica in snapshot.replicas):
            return ejected - stopped, second - stopped
    raise AssertionError("no standstill was found")


def print_standstills() -> None:
    print("| engines polled every | last step to eject | to llm_frozen |\n|---|---|---|")
    for interval in (1.0, 5.0):
        found = [standstill(interval, phase) for phase in range(5)]
        ejected, frozen = zip(*found, strict=True)
        print(
            f"| {interval:g} s | {min(ejected):g} to {max(ejected):g} s | {min(frozen):g} to {max(frozen):g} s |",
            flush=True,
        )


def main() -> int:
    """Print a row for each load; 1 if anything was ejected."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=3600)
    parser.add_argument("--only", default="", help="loads whose name contains this")
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)
    print_standstills()
    print(
        "\n| load | waiting, at least | counters still, at most | GPUs idle with requests, at most | ejections with GPM | without |"
    )
    print("|---|---|---|---|---|---|")
    ejected = 0
    for name, traffic in LOADS.items():
        if given.only in name:
            found = run(traffic, given.seconds)
            ejected += sum(found.ejections)
            print(
                f"| {name} | {found.waiting:.0f} | {found.still:.0f} s | {found.idle:.0f} s | {found.ejections[0]} | "
                f"{found.ejections[1]} |",
                flush=True,
            )
    return 1 if ejected else 0


if __name__ == "__main__":
    sys.exit(main())
