"""The one world behind a simulated node: GPUs, replicas and ranks, stepped together and fully determined.

A world is a function of (scenario, seed, node, fault times) and of the number of steps taken, so the process that
simulates the driver and the processes that simulate the engines agree without talking: each builds its own copy and
calls ``advance_to`` with the seconds since the start.  Steps are ``STEP`` seconds long.  How many steps a call takes
changes nothing but when a copy gets there: a late one catches up piece by piece, within the budget of each call.
"""

from __future__ import annotations

import math
import time
from collections import deque
from dataclasses import replace

from exporter.simulate.degradation import UNDEGRADED, degradation, step_slowdown
from exporter.simulate.gpu import SimulatedGpu
from exporter.simulate.load import Load
from exporter.simulate.nic import SimulatedNic
from exporter.simulate.records import Fault, ReplicaSpec, Scenario, Software
from exporter.simulate.scenarios import find
from exporter.simulate.scheduler import Rank
from exporter.simulate.traffic import DAY, Arrivals, SimulatedRequest

STEP = 0.25
OVERHEAD = 0.01  # of a GPU's memory: CUDA context, graphs, workspace
NIC_TROUBLE = 2.0  # the same while a network adapter flaps
LINK_TROUBLE = 25.0  # how much longer a step takes while a link is being retried
FAILING = 0.08  # share of requests that fail while a GPU is full
NVLINK, OFF_THE_BUS = 74, 79  # XIDs
NIC_SHARE = 0.05  # of what a GPU sends to its peers, also to the replica's half on another node
COLLECTIVE = 0.12  # share of a step that a GPU of a group spends in collectives over NVLink


class SimulatedReplica:
    """One engine server: its ranks, its arrivals, and since when it lives (``created``, seconds since the start)."""

    def __init__(self, spec: ReplicaSpec, gpu_memory: int, seed: str, day: float) -> None:
        self.spec = spec
        self.created = 0.0
        self.frozen = False
        self.stopped = False  # nobody listens, and its GPUs are free
        self.drained = False  # its requests go elsewhere
        self.refused_before = 0
        self._arrivals = Arrivals(spec, seed, day)
        model, group = spec.model, len(spec.ranks[0])
        room = gpu_memory * spec.memory_fraction * group - model.weights
        if room < model.kv_bytes * model.max_model_len:
            raise ValueError(f"{spec.name}: {model.name} does not fit on {group} GPUs")
        blocks = int(room // (model.kv_bytes * spec.block))
        self.ranks = [Rank(spec, f"{seed}/{number}", blocks) for number in range(len(spec.ranks))]

    @property
    def refused(self) -> int:
        """HTTP requests refused with 400 in this life of the server."""
        return self._arrivals.bad_requests - self.refused_before

    def advance(self, until: float, pace: list[float]) -> None:
        """Advance every rank to ``until``; ``pace`` stretches the steps of each."""
        inboxes: list[deque[SimulatedRequest]] = [deque() for _ in self.ranks]
        refused = self._arrivals.bad_requests
        for number, request in self._arrivals.until(until):
            if not self.drained:
                inboxes[number].append(request)
        if self.drained:
            self._arrivals.bad_requests = refused
        for rank, inbox, stretch in zip(self.ranks, inboxes, pace, strict=True):
            if self.frozen:
                rank.stall(inbox, until)
            else:
                rank.advance(inbox, until, stretch)

    def weigh(self, weight: float) -> None:
        """Send the replica so many times its usual requests from the next one on."""
        self._arrivals.weight = weight

    def stop(self, now: float) -> None:
        """End the server; requests in it are lost, those that follow go elsewhere."""
        self.restart(now)
        self.stopped = self.drained = True

    def restart(self, now: float) -> None:
        """Start again with all counters at zero."""
        self.stopped = self.drained = False
        self.frozen, self.created, self.refused_before = False, now, self._arrivals.bad_requests
        for rank in self.ranks:
            rank.restart(now)


class World:
    """The node.  ``fault_at`` and ``fault_until`` move the scenario's faults (seconds since the start).

    ``day``: seconds in which traffic rises and falls once.  ``step``: seconds of a step; copies that must agree take
    the same, and a world that is lived for hours takes a longer one.
    """

    def __init__(
        self,
        scenario: str | Scenario,
        *,
        seed: int = 0,
        node: int = 0,
        fault_at: float | None = None,
        fault_until: float | None = None,
        day: float = DAY,
        step: float = STEP,
    ) -> None:
        self.scenario = find(scenario) if isinstance(scenario, str) else scenario
        self.node = node
        self.software: Software = self.scenario.software[node % len(self.scenario.software)]
        base = f"{seed}/{node}/{self.scenario.name}"
        product = self.scenario.product
        self.gpus = [SimulatedGpu(product, index, base) for index in range(self.scenario.gpus)]
        self.gpus += [
            SimulatedGpu(mig_slice.product, index, base, mig_slice.parent)
            for index, mig_slice in enumerate(self.scenario.mig_slices, len(self.gpus))
        ]
        count = len(self.gpus) + 1 if self.scenario.has_nics else 0
        self.nics = [SimulatedNic(index, is_ethernet=index == count - 1) for index in range(count)]
        self.replicas = [
            SimulatedReplica(spec, self.gpus[spec.ranks[0][0]].product.memory, base, day)
            for spec in self.scenario.replicas
        ]
        self.faults = tuple(_rescheduled(fault, fault_at, fault_until) for fault in self.scenario.faults)
        self.steps, self._step_seconds = 0, step
        self.xids: list[tuple[int, int]] = []  # (GPU, code) in the order of their time
        self._pace = [[1.0] * len(replica.ranks) for replica in self.replicas]
        self._set_memory()

    @property
    def now(self) -> float:
        """Seconds since the start that this copy has lived."""
        return self.steps * self._step_seconds

    def advance_to(self, seconds: float, *, budget: float = math.inf) -> World:
        """Advance to ``seconds`` after the start, as far as ``budget`` real seconds allow; never goes back."""
        goal = int(seconds / self._step_seconds)
        if self.steps < goal:
            end = time.monotonic() + budget
            while self.steps < goal and time.monotonic() < end:
                self._step()
        return self

    def replica(self, name: str) -> SimulatedReplica:
        """Return the replica of that name; KeyError when the scenario has none."""
        for replica in self.replicas:
            if replica.spec.name == name:
                return replica
        raise KeyError(name)

    def stop(self, name: str) -> None:
        """End a replica's server, which frees its GPUs' memory."""
        self.replica(name).stop(self.now)
        self._set_memory()

    def start(self, name: str) -> None:
        """Start a replica's server again, with all counters at zero."""
        self.replica(name).restart(self.now)
        self._set_memory()

    def owners(self, gpu: int) -> list[tuple[str, int]]:
        """Return (replica, rank number) of everything that runs on the GPU."""
        return [
            (replica.spec.name, number)
            for replica in self.replicas
            for number, group in enumerate(replica.spec.ranks)
            if gpu in group
        ]

    def _step(self) -> None:
        end = (self.steps + 1) * self._step_seconds
        self._apply_faults(self.now)
        loads = [Load() for _ in self.gpus]
        for replica, pace in zip(self.replicas, self._pace, strict=True):
            clocks = [self._slowest(group) for group in replica.spec.ranks]
            stretch = [share * self.software.pace / clock for share, clock in zip(pace, clocks, strict=True)]
            replica.advance(end, stretch)
            for rank, group, slowest, late in zip(replica.ranks, replica.spec.ranks, clocks, pace, strict=True):
                alone = replica.spec.step_scale * late / (1.0 - COLLECTIVE if len(group) > 1 else 1.0)
                for index in group:
                    loads[index] = self._load(replica, rank, index, slowest)
                    loads[index].compute /= alone
        self._add_mig_load(loads)
        for gpu, load in zip(self.gpus, loads, strict=True):
            gpu.advance(end, self._step_seconds, Load() if gpu.lost else load)
        for nic in self.nics:
            traffic = 0.0 if nic.is_ethernet else NIC_SHARE * loads[nic.index].peer_bytes
            nic.advance(end, self._step_seconds, traffic)
        self.steps += 1

    def _slowest(self, group: tuple[int, ...]) -> float:
        """Clock of the slowest GPU of a group over the highest clock; a group that idles is not slow."""
        return min(self._clock_factor(index) for index in group)

    def _clock_factor(self, index: int) -> float:
        gpu = self.gpus[index]
        return 1.0 if gpu.clock <= gpu.product.idle_clock else gpu.clock / gpu.product.sm_clock

    def _add_mig_load(self, loads: list[Load]) -> None:
        """Add the load of MIG instances to the GPU they belong to."""
        for mig_slice, load in zip(self.scenario.mig_slices, loads[self.scenario.gpus :], strict=True):
            parent = loads[mig_slice.parent]
            parent.utilization += load.utilization * mig_slice.share
            parent.compute += load.compute * mig_slice.share
            parent.prefill = max(parent.prefill, load.prefill)
            parent.host_bytes += load.host_bytes

    def _load(self, replica: SimulatedReplica, rank: Rank, index: int, slowest: float) -> Load:
        activity, model = rank.activity, replica.spec.model
        floor = model.launch_floor
        # kernels of a small batch leave gaps between launches
        resident = floor + (0.985 - floor) * min(1.0, activity.fill)
        own = self._clock_factor(index)
        if replica.frozen:
            return Load(utilization=1.0, pace=0.0)  # spinning in a collective: resident, and no work
        return Load(
            utilization=activity.busy * resident * self.scenario.busy_ratio[index],
            prefill=activity.prefill,
            pace=slowest / own,
            compute=activity.busy * resident * slowest / own,
            peer_bytes=float(activity.tokens * model.link_bytes),
            host_bytes=activity.tokens * 2048.0,
        )

    def _set_memory(self) -> None:
        for replica in self.replicas:
            share = 0.0 if replica.stopped else min(1.0, replica.spec.memory_fraction + OVERHEAD)
            for group in replica.spec.ranks:
                for index in group:
                    gpu = self.gpus[index]
                    gpu.memory_used = gpu.process_memory = share * gpu.product.memory
        for gpu in self.gpus:
            gpu.memory_used = max(gpu.memory_used, 4.0 * 1024**2)
        for mig_slice in self.scenario.mig_slices:
            used = (gpu.memory_used for gpu in self.gpus if gpu.parent == mig_slice.parent)
            self.gpus[mig_slice.parent].memory_used = sum(used)

    def _apply_faults(self, now: float) -> None:
        for fault in self.faults:
            active = fault.at <= now and (fault.until is None or now < fault.until)
            apply = {
                "lost": self._apply_lost,
                "memory": self._apply_memory,
                "heat": self._apply_heat,
                "nic": self._apply_nic,
            }.get(fault.kind, self._apply_degradation)
            apply(fault, now, active=active)

    def _apply_nic(self, fault: Fault, now: float, *, active: bool) -> None:
        gone = active and now >= fault.at + fault.ramp
        self._freeze_group(fault, now, active=active, gone=gone, trouble=NIC_TROUBLE)
        if active:
            self.nics[fault.gpu].fail(down=gone)
        else:
            self.nics[fault.gpu].repair()

    def _apply_lost(self, fault: Fault, now: float, *, active: bool) -> None:
        gpu = self.gpus[fault.gpu]
        gone = active and now >= fault.at + fault.ramp
        self._freeze_group(fault, now, active=active, gone=gone, trouble=LINK_TROUBLE)
        if active and not gone:
            if gpu.dead_link is None and gpu.product.nvlinks:
                self.xids.append((gpu.index, NVLINK))
            gpu.dead_link = gpu.fault_link = 4
            gpu.nvlink_replays += 40
            gpu.nvlink_crc += 15
            gpu.nvlink_recoveries += 1
        elif gone:
            if not gpu.lost:
                self.xids.append((gpu.index, OFF_THE_BUS))
            gpu.lost = True
        elif gpu.lost:
            gpu.restart()

    def _freeze_group(self, fault: Fault, now: float, *, active: bool, gone: bool, trouble: float) -> None:
        """Make the replicas on the fault's GPU slow while it is active, and freeze them once something is gone."""
        for replica, pace in zip(self.replicas, self._pace, strict=True):
            if not any(fault.gpu in group for group in replica.spec.ranks):
                continue
            pace[:] = [trouble if active else 1.0] * len(pace)
            if gone:
                replica.frozen = True
            elif replica.frozen:
                replica.restart(now)

    def _apply_memory(self, fault: Fault, now: float, *, active: bool) -> None:
        gpu, kind = self.gpus[fault.gpu], self.scenario.product
        self._set_memory()
        grown = min(1.0, (now - fault.at) / fault.ramp) if active else 0.0
        free = kind.memory - kind.reserved - gpu.memory_used
        gpu.memory_used += free * grown
        gpu.process_memory += free * grown
        for replica in self.replicas:
            for rank, group in zip(replica.ranks, replica.spec.ranks, strict=True):
                if fault.gpu in group:
                    rank.failing = FAILING if grown >= 1.0 else 0.0

    def _apply_degradation(self, fault: Fault, now: float, *, active: bool) -> None:
        del now
        self.gpus[fault.gpu].degradation = degradation(fault) if active else UNDEGRADED
        for replica, pace in zip(self.replicas, self._pace, strict=True):
            for number, group in enumerate(replica.spec.ranks):
                if fault.gpu in group:
                    pace[number] = step_slowdown(fault) if active else 1.0

    def _apply_heat(self, fault: Fault, now: float, *, active: bool) -> None:
        del now
        self.gpus[fault.gpu].cooling = fault.strength if active else 1.0


def _rescheduled(fault: Fault, at: float | None, until: float | None) -> Fault:
    """Return the fault with its times replaced; an end before its beginning means it never comes."""
    return replace(fault, at=fault.at if at is None else at, until=fault.until if until is None else until)
