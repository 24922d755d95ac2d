"""A simulated world read by the daemon's own pollers and publisher, in one thread and on a clock that tests move."""

from __future__ import annotations

import json
from dataclasses import dataclass

from exporter.config.settings import CostSettings
from exporter.derive.assignment import Assignment
from exporter.model import CardFacts, CardReading, CardState, DriverFacts, GpuAssignment, Signal, SourceStatus, Window
from exporter.runtime.costs import CostTracker
from exporter.runtime.publisher import Publisher
from exporter.runtime.replica import ReplicaConfig, replica_poller
from exporter.simulate.vllm_page import ProcessFacts, render
from exporter.simulate.world import World
from exporter.sources.replay import ReplayedPage
from tests.support.builders import Clock
from tests.support.engine_pages import poll

BEGIN = 1000.0  # the clock at the world's start
WINDOWS = (Window("1m", 60.0), Window("5m", 300.0))
PROCESS = ProcessFacts(virtual_memory=1, resident_memory=1, cpu_seconds=1.0, open_files=1, most_files=1)


@dataclass
class Page:
    """Fetches a simulated server's page as of now; ``down`` makes it fail."""

    world: World
    name: str

    def fetch(self, path=None):
        if path is not None:
            return ReplayedPage(body=json.dumps({"version": self.world.software.engine}).encode())
        return ReplayedPage(body=render(self.world.replica(self.name), PROCESS, 1.7e9).encode())

    def close(self):
        pass


class Cards:
    """What the card source would show."""

    status = SourceStatus(source="driver", up=True)

    def __init__(self, world, clock):
        self.world, self.clock = world, clock
        software = world.software
        cuda = f"{software.cuda // 1000}.{software.cuda % 1000 // 10}"
        self.driver = DriverFacts(driver_version=software.driver, nvml_version=software.nvml, cuda_version=cuda)

    def state(self, now):
        return self

    @property
    def cards(self):
        return tuple(self._card(card) for card in self.world.cards)

    def _card(self, card):
        at = self.clock()
        recent = [sample[1] for sample in card.samples][-4:]
        signals = {
            Signal.UTILIZATION: sum(recent) / len(recent) if recent else 0.0,
            Signal.MEMORY_USED: card.memory_used,
            Signal.POWER: card.power,
            Signal.ENERGY: card.energy,
            Signal.TEMPERATURE_GPU: card.temperature,
            Signal.CLOCK_SM: card.clock * 1e6,
        }
        return CardState(
            facts=CardFacts(index=card.index, uuid=uuid(card.index), name=card.kind.name),
            status=SourceStatus(source=f"gpu:{uuid(card.index)}", up=not card.lost),
            reading=None if card.lost else CardReading(at=at, signals=signals),
            last_read_at=at,
            labels=(str(card.index), uuid(card.index)),
        )


def uuid(index):
    return f"GPU-{index:04d}"


class Lab:
    """A node: cards read once a second, engines every five seconds, a snapshot each second."""

    def __init__(self, scenario, *, seed=1, node=0, costs=None, cards=True):
        self.world = World(scenario, seed=seed, node=node)
        self.clock = Clock(BEGIN)
        self.cost_tracker = CostTracker()
        self.costs = costs or CostSettings()
        self.assignments = tuple(self._assignments())
        self.pollers = [self._poller(replica.spec.name) for replica in self.world.replicas]
        self.snapshot = None
        self.publisher = Publisher(
            cards=Cards(self.world, self.clock) if cards else None,
            replicas=lambda: self.pollers,
            assignment=lambda: Assignment(gpus=self.assignments),
            publish=lambda snapshot: setattr(self, "snapshot", snapshot),
            economy=lambda *said: self.cost_tracker.update(*said, windows=WINDOWS, costs=self.costs),
            clock=self.clock,
            unix_now=lambda: 1.7e9,
        )

    def _assignments(self):
        for replica in self.world.scenario.replicas:
            several = len(replica.ranks) > 1
            for number, group in enumerate(replica.ranks):
                for index in group:
                    yield GpuAssignment(uuid=uuid(index), replica=replica.name, rank=str(number) if several else "")

    def _poller(self, name):
        plan = ReplicaConfig(name=name, kind="vllm", interval=5.0, windows=WINDOWS, quantiles=(0.5,))
        return replica_poller(plan, Page(self.world, name), clock=self.clock, unix_now=lambda: 1.7e9)

    def live(self, until, *, step=1.0):
        """Go on until that many seconds after the start, and give the last snapshot."""
        while self.clock.now - BEGIN < until:
            self.clock.tick(step)
            elapsed = self.clock.now - BEGIN
            self.world.at(elapsed)
            if elapsed % 5 < step:
                for poller in self.pollers:
                    poll(poller)
            self.publisher.publish_once()
        return self.snapshot
