"""A simulated node, read by the daemon's own GPU readers, pollers and publisher on a clock that tests move.

Nothing sleeps and nothing runs in a thread: one ``VirtualNode`` at a time lives in a process, because the driver that
it plays is a module.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import weakref

from exporter.catalog.spec import SeriesSet
from exporter.config.settings import CostSettings
from exporter.derive.assignment import Assignment, Endpoint
from exporter.driver.daemon.registry import gpu_label
from exporter.driver.nvml.errors import DeviceUnavailable
from exporter.driver.nvml.gpu import GpuReader
from exporter.driver.nvml.library import initialise, open_card
from exporter.driver.nvml.topology import TopologyReader
from exporter.driver.protocol import EventSubscription, XidSeen
from exporter.errors import EndpointError
from exporter.model import CardState, GpuAssignment, GpuLabels, SourceStatus, Window
from exporter.model.owner import GpuOwner, Owner
from exporter.render.exposition import ExpositionRenderer
from exporter.runtime.costs import CostTracker
from exporter.runtime.diagnosis import Diagnosis
from exporter.runtime.gateway import GatewayConfig, gateway_poller
from exporter.runtime.gpu_events import GpuEvents
from exporter.runtime.nics import NicWatcher
from exporter.runtime.publisher import Publisher
from exporter.runtime.replica import ReplicaConfig, replica_poller
from exporter.runtime.stragglers import StragglerTracker
from exporter.simulate.engine import PAGE_WRITERS
from exporter.simulate.gateway import SimulatedGateway
from exporter.simulate.node_spec import NodeSpec
from exporter.simulate.owners import CONTAINER, JOB, pods
from exporter.simulate.sysfs import SysfsTree
from exporter.simulate.traffic import DAY
from exporter.simulate.vllm_page import ProcessStats
from exporter.simulate.world import STEP, World
from exporter.sources.replay import ReplayedPage
from tests.support.builders import Clock
from tests.support.engine_pages import poll
from tests.support.simulated_driver import simulated_driver

UNIX_START = 1_767_571_200  # Monday 2026-01-05, midnight UTC
WINDOWS = (Window("1m", 60.0), Window("5m", 300.0))
QUANTILES = (0.5, 0.95, 0.99)
SLOW_INTERVAL = 5.0  # seconds between two readings of what changes rarely, as in the worker
TENANT_MEMORY = 2.0**31  # bytes that the other tenant holds
PROCESS = ProcessStats(virtual_memory=1, resident_memory=1, cpu_seconds=1.0, open_files=1, max_files=1)


class Page:
    """Fetches the page that a simulated server would serve now."""

    def __init__(self, read, *, is_up=lambda: True, **facts):
        self._read, self._is_up, self._facts = read, is_up, facts

    def fetch(self, path=None):
        if not self._is_up():
            raise EndpointError("refused", "nobody listens")
        if path is not None:
            return ReplayedPage(body=json.dumps(self._facts).encode())
        return ReplayedPage(body=self._read())

    def close(self):
        pass


class Gpus:
    """The GPUs through the real reader, without the worker process around it."""

    def __init__(self, driver, world, clock, unix_now):
        self._clock, self._unix_now = clock, unix_now
        self.status = SourceStatus(source="driver", up=True)
        self.driver, count = initialise(driver)
        opened = [open_card(driver, index) for index in range(count)]
        self._readers = [
            (facts, GpuReader(driver, calls, facts, self.driver.driver_version)) for calls, facts in opened
        ]
        self._topology = TopologyReader(driver).read({facts.uuid: calls.handle for calls, facts in opened})
        self.uuids = [driver.nvmlDeviceGetUUID(gpu.index) for gpu in world.gpus]
        self.cards, self.removed = (), ()

    def state(self, now):
        return self

    def read(self, *, slow):
        self.cards = tuple(state for facts, reader in self._readers for state in self._read(facts, reader, slow))

    def _read(self, facts, reader, slow):
        try:
            for instance in reader.instances.read(refresh=slow, clock=self._clock) if reader.instances else ():
                yield self._state(instance.facts, instance.reading)
            yield self._state(facts, reader.read(slow=slow, clock=self._clock))
        except DeviceUnavailable:
            yield self._state(facts, None)

    def _state(self, facts, reading):
        at, lost = self._clock(), reading is None
        return CardState(
            facts=facts,
            status=SourceStatus(
                source=f"gpu:{facts.uuid}", up=not lost, reason="lost" if lost else "", last_success=at,
                last_success_unix_time=self._unix_now(),
            ),
            reading=reading,
            last_read_at=at,
            labels=GpuLabels(gpu_label(facts), facts.uuid),
            topology=self._topology.get(facts.uuid),
            pipes=frozenset(pipe for pipe, share in (reading.pipe_active if reading else {}).items() if share > 0),
        )  # fmt: skip


class VirtualNode:
    """A scenario, or its name, as the daemon sees it: GPUs at each step, engines each ``interval`` seconds.

    ``fault_at`` and ``fault_until`` are seconds after the start; ``day`` is how long a day's curve of traffic takes.
    """

    def __init__(
        self, scenario, *, seed=0, node=0, fault_at=None, fault_until=None, day=DAY, step=STEP, interval=5.0,
        costs=None, series=SeriesSet.FULL,
    ):  # fmt: skip
        self._interval = interval
        self.clock = Clock(0.0)
        self.world = World(
            scenario, seed=seed, node=node, fault_at=fault_at, fault_until=fault_until, day=day, step=step
        )
        self._driver = simulated_driver(self.clock, self.world, started_unix=float(UNIX_START))
        simulated = SimulatedGateway(
            NodeSpec(start=0.0, started_unix=float(UNIX_START)), clock=self.clock, world=self.world
        )
        self._gateway_page = Page(simulated.page)
        self._costs, self._series = costs or CostSettings(), series
        self.versions = {}  # of engines that are not of the node's software, by replica
        self.undiscovered = set()  # replicas that discovery does not list
        self._sysfs = None
        if self.world.nics:
            self._folder = tempfile.mkdtemp(prefix="shardwatch-sysfs-")
            weakref.finalize(self, shutil.rmtree, self._folder)
            self._sysfs = SysfsTree(self._folder, self.world)
        self.start_daemon()

    def start_daemon(self):
        """Start the daemon, or start it anew: what it counts itself begins at zero, and its windows are empty."""
        self.daemon_started = self.unix_now()
        self.gpus = Gpus(self._driver, self.world, self.clock, self.unix_now)
        self._pollers = {replica.spec.name: self._poller(replica, self._interval) for replica in self.world.replicas}
        self.gateway = gateway_poller(
            GatewayConfig(name="edge", kind="auto", interval=self._interval, windows=WINDOWS),
            self._gateway_page, endpoints=self._endpoints, clock=self.clock, unix_now=self.unix_now,
        )  # fmt: skip
        cost_tracker = CostTracker()
        self._events, self._xids_seen = GpuEvents(clock=self.clock, unix_now=self.unix_now), len(self.world.xids)
        self._events.on_driver_event(EventSubscription(cards=self.world.scenario.gpus))
        self._nics = None
        if self.world.nics:
            self._nics = NicWatcher(cards=lambda: self.gpus.cards, clock=self.clock, unix_now=self.unix_now)
        self._renderer = ExpositionRenderer(openmetrics=False, series=self._series)
        self.publisher = Publisher(
            cards=self.gpus,
            replicas=lambda: self.replicas,
            gateways=lambda: [self.gateway],
            assignment=lambda: Assignment(gpus=self.owners),
            xids=self._events.view,
            sxids=self._events.switches,
            nics=self._nics.states if self._nics else tuple,
            owners=lambda _: tuple(self._gpu_owners()),
            others=lambda: self._events.statuses,
            publish=lambda _: None,
            judge=Diagnosis().judge,
            economy=lambda *arguments: cost_tracker.update(*arguments, windows=WINDOWS, costs=self._costs),
            stragglers=StragglerTracker().update,
            clock=self.clock,
            unix_now=self.unix_now,
        )

    @property
    def replicas(self):
        """Return the pollers of the replicas that discovery lists."""
        return [poller for name, poller in self._pollers.items() if name not in self.undiscovered]

    @property
    def owners(self):
        """Return which replica each GPU is assigned to."""
        return tuple(owner for owner in self._owners() if owner.replica not in self.undiscovered)

    def discover(self, name):
        """List a replica again, as one that is read for the first time."""
        self.undiscovered.discard(name)
        self._pollers[name] = self._poller(self.world.replica(name), self._interval)

    def unix_now(self):
        return UNIX_START + self.clock.now

    def _owners(self):
        for replica in self.world.scenario.replicas:
            for number, group in enumerate(replica.ranks):
                rank = str(number) if len(replica.ranks) > 1 else ""
                for index in group:
                    yield GpuAssignment(uuid=self.gpus.uuids[index], replica=replica.name, rank=rank)

    def _gpu_owners(self):
        """Yield who holds which GPU: each replica is a pod, and the other tenant a Slurm job, as on a simulated node."""
        of_replica = {pod.workload: pod for pod in pods(spec.name for spec in self.world.scenario.replicas)}
        for gpu, uuid in zip(self.world.gpus, self.gpus.uuids, strict=True):
            for name, _ in self.world.owners(gpu.index):
                pod = of_replica[name]
                named = Owner(name=f"{pod.namespace}/{pod.name}/{CONTAINER}", namespace=pod.namespace, pod=pod.name)
                yield GpuOwner(uuid=uuid, owner=named, memory=gpu.process_memory, pids=(1,))
            if gpu.degradation.tenant_share:
                yield GpuOwner(
                    uuid=uuid, owner=Owner(name=f"job {JOB}", slurm_job=JOB), memory=TENANT_MEMORY, pids=(2,)
                )

    def _endpoints(self):
        names = [replica.name for replica in self.world.scenario.replicas]
        return [
            Endpoint(replica=name, host="127.0.0.1", port=8000 + port, gpus=None) for port, name in enumerate(names)
        ]

    def _poller(self, replica, interval):
        name, kind = replica.spec.name, replica.spec.engine
        _, render = PAGE_WRITERS[kind]
        facts = {"version": self.versions.get(name, self.world.software.engine), "model_id": replica.spec.model.name}
        page = Page(
            lambda: render(replica, PROCESS, float(UNIX_START)).encode(), is_up=lambda: not replica.stopped, **facts
        )
        plan = ReplicaConfig(name=name, kind=kind, interval=interval, windows=WINDOWS, quantiles=QUANTILES)
        return replica_poller(plan, page, clock=self.clock, unix_now=self.unix_now)

    def live(self, seconds, *, every=1):
        """Advance in steps of ``every`` seconds until so many after the start; yield the seconds lived so far."""
        while self.clock.now + every <= seconds:
            self.clock.tick(float(every))
            self.world.advance_to(self.clock.now)
            self.gpus.read(slow=self.clock.now % SLOW_INTERVAL < every)
            self._read_events()
            if self._nics and self.clock.now % SLOW_INTERVAL < every:
                self._sysfs.write(self.world)
                self._nics.refresh(self._folder)
            if self.clock.now % self._interval < every:
                for poller in self.replicas:
                    poll(poller)
                self.gateway.poll()
            self.publisher.publish_once()
            yield self.clock.now

    def _read_events(self):
        for gpu, xid in self.world.xids[self._xids_seen :]:
            message = XidSeen(uuid=self.gpus.uuids[gpu], xid=xid, times=1, at=self.clock.now)
            self._events.on_driver_event(message)
        self._xids_seen = len(self.world.xids)

    def live_until(self, seconds):
        """Read everything each second until so many after the start, and return the last snapshot."""
        for _ in self.live(seconds):
            pass
        return self.publisher.snapshot

    def page(self):
        """Return the metrics page of this moment, with families of a process that started with the node."""
        process = f"process_start_time_seconds {self.daemon_started}\nprocess_resident_memory_bytes 4e7\n"
        process += f"process_cpu_seconds_total {self.clock.now / 100}\nprocess_open_fds 30\nprocess_max_fds 1024\n"
        page = self._renderer.render(self.publisher.snapshot, process)
        assert page.dropped == 0
        return page.body.decode()
