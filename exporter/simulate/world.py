"""The one world behind a simulated node: cards, replicas and ranks, stepped together and fully determined.

A world is a function of (scenario, seed, node, fault times) and of the number of steps taken, so the process that
plays the driver and the processes that play the engines agree without talking: each builds its own copy and calls
``at`` with the seconds since the start.  Steps are ``STEP`` seconds long.  How many steps a call takes changes
nothing but when a copy gets there: one that is late catches up piece by piece, within the budget of each call.
"""

from __future__ import annotations

import math
import time
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING

from exporter.simulate.card import Card, Load
from exporter.simulate.restraints import NONE, lateness, restraint
from exporter.simulate.scenarios import Fault, Scenario, Software, find
from exporter.simulate.scheduler import Rank
from exporter.simulate.traffic import Arrivals, Request

if TYPE_CHECKING:
    from exporter.simulate.scenarios import Replica

STEP = 0.25
OVERHEAD = 0.01  # of a card's memory: CUDA context, graphs, workspace
LINK_TROUBLE = 25.0  # how much longer a step takes while a link is being retried
FAILING = 0.08  # share of requests that fail while a card is full
NVLINK, OFF_THE_BUS = 74, 79  # XIDs
COLLECTIVE = 0.12  # share of a step that a card of a group spends in collectives over NVLink


class SimulatedReplica:
    """One engine server: its ranks, its arrivals, and since when it lives (``created``, seconds since the start)."""

    def __init__(self, spec: Replica, kind_memory: int, seed: str) -> None:
        self.spec = spec
        self.created = 0.0
        self.frozen = False
        self.refused_before = 0
        self._arrivals = Arrivals(spec, seed)
        model, group = spec.model, len(spec.ranks[0])
        room = kind_memory * spec.memory_fraction * group - model.weights
        if room < model.kv_bytes * model.max_model_len:
            raise ValueError(f"{spec.name}: {model.name} does not fit on {group} cards")
        blocks = int(room // (model.kv_bytes * spec.block))
        self.ranks = [Rank(spec, f"{seed}/{number}", blocks) for number in range(len(spec.ranks))]

    @property
    def refused(self) -> int:
        """HTTP requests refused with 400 in this life of the server."""
        return self._arrivals.malformed - self.refused_before

    def advance(self, until: float, pace: list[float]) -> None:
        """Let every rank live until ``until``; ``pace`` stretches the steps of each."""
        inboxes: list[deque[Request]] = [deque() for _ in self.ranks]
        for number, request in self._arrivals.until(until):
            inboxes[number].append(request)
        for rank, inbox, stretch in zip(self.ranks, inboxes, pace, strict=True):
            if self.frozen:
                rank.hold(inbox, until)
            else:
                rank.advance(inbox, until, stretch)

    def restart(self, now: float) -> None:
        """Begin a new life with all counters at zero."""
        self.frozen, self.created, self.refused_before = False, now, self._arrivals.malformed
        for rank in self.ranks:
            rank.restart(now)


class World:
    """The node.  ``fault_at`` and ``fault_until`` move the scenario's faults (seconds since the start)."""

    def __init__(
        self,
        scenario: str | Scenario,
        *,
        seed: int = 0,
        node: int = 0,
        fault_at: float | None = None,
        fault_until: float | None = None,
    ) -> None:
        self.scenario = find(scenario) if isinstance(scenario, str) else scenario
        self.node = node
        self.software: Software = self.scenario.software[node % len(self.scenario.software)]
        base = f"{seed}/{node}/{self.scenario.name}"
        kind = self.scenario.kind
        self.cards = [Card(kind, index, base) for index in range(self.scenario.cards)]
        self.cards += [
            Card(part.kind, index, base, part.card) for index, part in enumerate(self.scenario.parts, len(self.cards))
        ]
        self.replicas = [
            SimulatedReplica(spec, self.cards[spec.ranks[0][0]].kind.memory, base) for spec in self.scenario.replicas
        ]
        self.faults = tuple(_moved(fault, fault_at, fault_until) for fault in self.scenario.faults)
        self.steps = 0
        self.xids: list[tuple[int, int]] = []  # (card, code) in the order of their time
        self._pace = [[1.0] * len(replica.ranks) for replica in self.replicas]
        self._set_memory()

    @property
    def now(self) -> float:
        """Seconds since the start that this copy has lived."""
        return self.steps * STEP

    def at(self, seconds: float, *, budget: float = math.inf) -> World:
        """Live up to ``seconds`` after the start, or until ``budget`` real seconds are spent; never goes back."""
        goal = int(seconds / STEP)
        if self.steps < goal:
            end = time.monotonic() + budget
            while self.steps < goal and time.monotonic() < end:
                self._step()
        return self

    def replica(self, name: str) -> SimulatedReplica:
        """Give the replica of that name; KeyError when the scenario has none."""
        for replica in self.replicas:
            if replica.spec.name == name:
                return replica
        raise KeyError(name)

    def owners(self, card: int) -> list[tuple[str, int]]:
        """Give (replica, rank number) of everything that runs on the card."""
        return [
            (replica.spec.name, number)
            for replica in self.replicas
            for number, group in enumerate(replica.spec.ranks)
            if card in group
        ]

    def _step(self) -> None:
        end = (self.steps + 1) * STEP
        self._strike(self.now)
        loads = [Load() for _ in self.cards]
        for replica, pace in zip(self.replicas, self._pace, strict=True):
            clocks = [self._slowest(group) for group in replica.spec.ranks]
            stretch = [share * self.software.pace / clock for share, clock in zip(pace, clocks, strict=True)]
            replica.advance(end, stretch)
            for rank, group, slowest, late in zip(replica.ranks, replica.spec.ranks, clocks, pace, strict=True):
                alone = replica.spec.link_scale * late / (1.0 - COLLECTIVE if len(group) > 1 else 1.0)
                for index in group:
                    loads[index] = self._load(replica, rank, index, slowest)
                    loads[index].work /= alone
        self._join(loads)
        for card, load in zip(self.cards, loads, strict=True):
            card.advance(end, STEP, Load() if card.lost else load)
        self.steps += 1

    def _slowest(self, group: tuple[int, ...]) -> float:
        """Clock of the slowest card of a group over the highest clock; a group that idles is not slow."""
        return min(self._clock_factor(index) for index in group)

    def _clock_factor(self, index: int) -> float:
        card = self.cards[index]
        return 1.0 if card.clock <= card.kind.idle_clock else card.clock / card.kind.sm_clock

    def _join(self, loads: list[Load]) -> None:
        """Let a divided card do what its instances do."""
        for part, load in zip(self.scenario.parts, loads[self.scenario.cards :], strict=True):
            whole = loads[part.card]
            whole.utilization += load.utilization * part.share
            whole.work += load.work * part.share
            whole.prefill = max(whole.prefill, load.prefill)
            whole.host_bytes += load.host_bytes

    def _load(self, replica: SimulatedReplica, rank: Rank, index: int, slowest: float) -> Load:
        activity, model = rank.activity, replica.spec.model
        floor = model.launch_floor
        # kernels of a small batch leave gaps between launches
        resident = floor + (0.985 - floor) * min(1.0, activity.fill)
        own = self._clock_factor(index)
        if replica.frozen:
            return Load(utilization=1.0, pace=0.0)  # spinning in a collective: resident, and no work
        return Load(
            utilization=activity.busy * resident * self.scenario.busy[index],
            prefill=activity.prefill,
            pace=slowest / own,
            work=activity.busy * resident * slowest / own,
            peer_bytes=float(activity.tokens * model.link_bytes),
            host_bytes=activity.tokens * 2048.0,
        )

    def _set_memory(self) -> None:
        for replica in self.replicas:
            share = min(1.0, replica.spec.memory_fraction + OVERHEAD)
            for group in replica.spec.ranks:
                for index in group:
                    card = self.cards[index]
                    card.memory_used = card.own_memory = share * card.kind.memory
        for card in self.cards:
            card.memory_used = max(card.memory_used, 4.0 * 1024**2)
        for part in self.scenario.parts:
            used = (card.memory_used for card in self.cards if card.parent == part.card)
            self.cards[part.card].memory_used = sum(used)

    def _strike(self, now: float) -> None:
        for fault in self.faults:
            active = fault.at <= now and (fault.until is None or now < fault.until)
            strike = {"lost": self._lose, "memory": self._fill, "heat": self._choke}.get(fault.kind, self._restrain)
            strike(fault, now, active=active)

    def _lose(self, fault: Fault, now: float, *, active: bool) -> None:
        card = self.cards[fault.card]
        gone = active and now >= fault.at + fault.lead
        for replica, pace in zip(self.replicas, self._pace, strict=True):
            if not any(fault.card in group for group in replica.spec.ranks):
                continue
            pace[:] = [LINK_TROUBLE if active else 1.0] * len(pace)
            if gone:
                replica.frozen = True
            elif replica.frozen:
                replica.restart(now)
        if active and not gone:
            if card.dead_link is None and card.kind.nvlinks:
                self.xids.append((card.index, NVLINK))
            card.dead_link = card.fault_link = 4
            card.nvlink_replays += 40
            card.nvlink_crc += 15
            card.nvlink_recoveries += 1
        elif gone:
            if not card.lost:
                self.xids.append((card.index, OFF_THE_BUS))
            card.lost = True
        elif card.lost:
            card.restart()

    def _fill(self, fault: Fault, now: float, *, active: bool) -> None:
        card, kind = self.cards[fault.card], self.scenario.kind
        self._set_memory()
        grown = min(1.0, (now - fault.at) / fault.lead) if active else 0.0
        free = kind.memory - kind.reserved - card.memory_used
        card.memory_used += free * grown
        card.own_memory += free * grown
        for replica in self.replicas:
            for rank, group in zip(replica.ranks, replica.spec.ranks, strict=True):
                if fault.card in group:
                    rank.failing = FAILING if grown >= 1.0 else 0.0

    def _restrain(self, fault: Fault, now: float, *, active: bool) -> None:
        del now
        self.cards[fault.card].restraint = restraint(fault) if active else NONE
        for replica, pace in zip(self.replicas, self._pace, strict=True):
            for number, group in enumerate(replica.spec.ranks):
                if fault.card in group:
                    pace[number] = lateness(fault) if active else 1.0

    def _choke(self, fault: Fault, now: float, *, active: bool) -> None:
        del now
        self.cards[fault.card].cooling = fault.strength if active else 1.0


def _moved(fault: Fault, at: float | None, until: float | None) -> Fault:
    """Give the fault with its times replaced; an end before its beginning means it never comes."""
    return replace(fault, at=fault.at if at is None else at, until=fault.until if until is None else until)
