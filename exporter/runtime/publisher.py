"""Joins what the sources last read into one snapshot, and publishes it.

Sources run in threads of their own and keep their newest state; this one thread composes them.  It publishes when
something is new, at most once per shortest interval, and every few seconds even when nothing is, because ages move.
``snapshot`` is the one reference that changes; what it points to never does.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar

from exporter.derive.assignment import Assignment
from exporter.derive.economics import without_replicas
from exporter.derive.gpu_pages import all_cards, driver_of, xid_cards
from exporter.derive.imbalance import group_imbalances, replica_imbalance
from exporter.derive.links import TopologyTracker
from exporter.derive.variance import variance_breakdowns
from exporter.driver.daemon.source import CardsView
from exporter.logs import log_exception
from exporter.model import (
    AccessState,
    CardState,
    DaemonState,
    Economics,
    GatewayState,
    GpuAssignment,
    GpuOwner,
    Outcome,
    ReplicaState,
    Snapshot,
    SourceReason,
    SourceStatus,
    Stragglers,
    SxidCount,
    XidCount,
)
from exporter.model.gpu_page import GpuPageState
from exporter.model.nic import NicEventCount, NicState
from exporter.model.push import PushState
from exporter.model.software import NodeSoftware
from exporter.model.store import StoreState
from exporter.threads import Thread

logger = logging.getLogger(__name__)

Economy = Callable[[Sequence[CardState], Sequence[ReplicaState], Sequence[GpuAssignment]], Economics]

MAX_PERIOD = 5.0  # seconds between snapshots when nothing is new
GATHER_SECONDS = 0.02  # that the first update waits for those of the other sources
GAP = MAX_PERIOD + 2.0  # seconds between two cycles, above which the daemon itself was stopped
SETTLE_SECONDS = 1.0  # after a gap, for the sources to be read anew
DEAD_AFTER = 30.0  # seconds without a cycle: the loop is dead, not slow
STARTUP_GRACE = 5.0  # seconds that readiness waits for sources that have not answered once


class Cards(Protocol):
    """Where GPUs come from."""

    def state(self, now: float) -> CardsView: ...  # noqa: D102


StateT_co = TypeVar("StateT_co", covariant=True)


class PolledTarget(Protocol[StateT_co]):
    """Where a replica's or a gateway's state comes from."""

    @property
    def parse_warnings(self) -> Mapping[str, int]: ...  # noqa: D102

    @property
    def loop_restarts(self) -> int: ...  # noqa: D102

    def view(self, now: float) -> StateT_co: ...  # noqa: D102


class Publisher:
    """Composes and publishes snapshots until stopped."""

    def __init__(
        self,
        *,
        cards: Cards | None,
        replicas: Callable[[], Sequence[PolledTarget[ReplicaState]]],
        assignment: Callable[[], Assignment],
        gateways: Callable[[], Sequence[PolledTarget[GatewayState]]] = tuple,
        stores: Callable[[], Sequence[PolledTarget[StoreState]]] = tuple,
        gpu_pages: Callable[[], Sequence[PolledTarget[GpuPageState]]] = tuple,
        others: Callable[[], Sequence[SourceStatus]] = tuple,
        xids: Callable[[Sequence[CardState]], tuple[XidCount, ...]] = lambda _: (),
        sxids: Callable[[], tuple[SxidCount, ...]] = tuple,
        nics: Callable[[], tuple[NicState, ...]] = tuple,
        nic_events: Callable[[], tuple[NicEventCount, ...]] = tuple,
        software: Callable[[], NodeSoftware] = NodeSoftware,
        publish: Callable[[Snapshot], None],
        judge: Callable[[Snapshot], Snapshot] = lambda snapshot: snapshot,
        on_cards: Callable[[Sequence[CardState]], None] = lambda _: None,
        owners: Callable[[Sequence[CardState]], tuple[GpuOwner, ...]] = lambda _: (),
        economy: Economy = lambda *_: Economics(),
        stragglers: Callable[[Sequence[CardState], Sequence[GpuAssignment]], Stragglers] = lambda *_: Stragglers(),
        loop_restarts: Callable[[], Mapping[str, int]] = dict,
        dropped_series: Callable[[], int] = lambda: 0,
        dropped_log_lines: Callable[[], int] = lambda: 0,
        discovery_limits: Callable[[], frozenset[str]] = frozenset,
        access: Callable[[], AccessState] = AccessState,
        pushes: Callable[[], tuple[PushState, ...]] = tuple,
        clock: Callable[[], float] = time.monotonic,
        unix_now: Callable[[], float] = time.time,
    ) -> None:
        """Create a publisher; nothing runs before ``start``.

        ``judge`` adds findings and verdicts to a snapshot.  ``publish`` is called with every snapshot, ``on_cards``
        with its GPUs, to follow their processes.  ``others``: the health of what only leads to engines, and of the
        sources of ``xids``.  ``economy`` and ``stragglers`` keep a history: they are called once for each snapshot,
        in its order.
        """
        self.snapshot: Snapshot | None = None
        self.interval = 1.0
        self.reload_successful = True
        self.reload_unix_time: float | None = unix_now()
        self._cards, self._replicas, self._gateways, self._others = cards, replicas, gateways, others
        self._stores, self._gpu_pages = stores, gpu_pages
        self._assignment, self._economy, self._stragglers = assignment, economy, stragglers
        self._xids, self._sxids, self._owners = xids, sxids, owners
        self._nics, self._nic_events, self._software = nics, nic_events, software
        self._publish, self._judge, self._on_cards = publish, judge, on_cards
        self._loop_restarts = loop_restarts
        self._dropped_series, self._dropped_log_lines = dropped_series, dropped_log_lines
        self._discovery_limits = discovery_limits
        self._access, self._pushes = access, pushes
        self._links = TopologyTracker()
        self._clock, self._unix_now = clock, unix_now
        self._wake, self._hurry, self._stopping = threading.Event(), threading.Event(), threading.Event()
        self._thread: Thread | None = None
        self._restarts = 0
        self._started_at = self._cycle_began = clock()

    def notify(self, *, at_once: bool = False) -> None:
        """Publish soon: a source has something new; ``at_once`` does not keep the interval.  For any thread."""
        if at_once:
            self._hurry.set()
        self._wake.set()

    def compose(self) -> Snapshot:
        """Return a snapshot of what every source last read."""
        now = self._clock()
        view = self._cards.state(now) if self._cards is not None else None
        exporters = self._gpu_pages()
        pages = tuple(exporter.view(now) for exporter in exporters)
        cards = all_cards(view.cards if view is not None else (), pages)
        others = self._others()  # before the replicas: a provider that is up has handed over its engines
        sources = self._replicas()
        replicas = tuple(source.view(now) for source in sources)
        watched = self._gateways()
        gateways = tuple(gateway.view(now) for gateway in watched)
        kept = self._stores()
        stores = tuple(store.view(now) for store in kept)
        states: tuple[ReplicaState | GatewayState | StoreState | GpuPageState, ...]
        states = (*replicas, *gateways, *stores, *pages)
        polled = [state.status for state in states]
        assignment = self._assignment()
        statuses = [*([view.status] if view is not None else []), *[card.status for card in cards]]
        return Snapshot(
            at=now,
            unix_time=self._unix_now(),
            driver=driver_of(view.driver if view is not None else None, pages),
            cards=cards,
            removed=view.removed if view is not None else (),
            replicas=replicas,
            gateways=gateways,
            stores=stores,
            assignments=assignment.gpus,
            multi_node=assignment.multi_node,
            disputed=assignment.disputed,
            parallel_sizes=assignment.parallel_sizes,
            owners=self._owners(cards),
            imbalance=group_imbalances(cards, assignment.gpus),
            replica_imbalance=replica_imbalance(replicas),
            variance_breakdowns=variance_breakdowns(cards, replicas, assignment.gpus),
            # The GPUs of this node did a part of the work alone; what a token took of them is no price.
            economics=without_replicas(
                self._economy(cards, replicas, assignment.gpus), {gpu.replica for gpu in assignment.multi_node}
            ),
            stragglers=self._stragglers(cards, assignment.gpus),
            topology=self._links.update(cards, assignment.gpus),
            xids=self._xids(xid_cards(cards, pages)),
            sxids=self._sxids(),
            nics=self._nics(),
            nic_events=self._nic_events(),
            software=self._software(),
            pushes=self._pushes(),
            sources=(*statuses, *polled, *others),
            daemon=self._daemon(
                {"engines": sources, "gateways": watched, "stores": kept, "gpu_pages": exporters}, polled, assignment
            ),
        )

    def _daemon(
        self,
        targets: Mapping[str, Sequence[PolledTarget[object]]],
        polled: Sequence[SourceStatus],
        assignment: Assignment,
    ) -> DaemonState:
        """Return the daemon's own state; ``polled``: the health of all ``targets`` in their order."""
        parse_warnings = [source.parse_warnings for sources in targets.values() for source in sources]
        restarts = dict(self._loop_restarts())
        restarts["publisher"] = self._restarts
        restarts |= {name: sum(source.loop_restarts for source in sources) for name, sources in targets.items()}
        access = self._access()
        return DaemonState(
            config_reload_successful=self.reload_successful and access.last_load_successful,
            config_reload_unix_time=self.reload_unix_time,
            loop_restarts=restarts,
            dropped_series=self._dropped_series(),
            dropped_log_lines=self._dropped_log_lines(),
            parse_warnings={
                SourceReason(status.source, reason): count
                for status, warnings in zip(polled, parse_warnings, strict=True)
                for reason, count in warnings.items()
            },
            discovery_limits=self._discovery_limits(),
            unassigned=assignment.unassigned,
            access=access,
        )

    def publish_once(self) -> None:
        """Publish one snapshot."""
        snapshot = self._judge(self.compose())
        self.snapshot = snapshot
        self._publish(snapshot)
        self._on_cards(snapshot.cards)

    # ------------------------------------------------------------------ health

    def healthy(self) -> Outcome:
        """Return whether the poll loop runs, whatever the state of GPUs and engines."""
        age = self._clock() - self._cycle_began
        if self._thread is not None and self._thread.is_alive() and age < DEAD_AFTER:
            return Outcome(True, f"poll loop running, last cycle {age:.1f} s ago")
        return Outcome(False, f"poll loop not running, last cycle {age:.1f} s ago; restart the daemon")

    def ready(self) -> Outcome:
        """Return whether the first cycle is done and at least one source gives fresh data."""
        snapshot = self.snapshot
        if snapshot is None:
            return Outcome(False, "no snapshot yet")
        if self._is_starting(snapshot) and self._clock() - self._started_at < STARTUP_GRACE:
            return Outcome(False, "the first cycle is not done yet")
        age = self._clock() - snapshot.at
        if age > DEAD_AFTER:
            return Outcome(False, f"the newest snapshot is {age:.1f} s old")
        cards = sum(card.reading is not None for card in snapshot.cards)
        replicas = sum(replica.reading is not None for replica in snapshot.replicas)
        gateways = sum(gateway.reading is not None for gateway in snapshot.gateways)
        sentence = f"{cards} of {len(snapshot.cards)} GPUs and {replicas} of {len(snapshot.replicas)} replicas"
        if snapshot.gateways:
            sentence += f" and {gateways} of {len(snapshot.gateways)} gateways"
        stores = sum(store.reading is not None for store in snapshot.stores)
        if snapshot.stores:
            sentence += f" and {stores} of {len(snapshot.stores)} KV-cache stores"
        return Outcome(cards + replicas + gateways + stores > 0, f"{sentence} answer")

    @staticmethod
    def _is_starting(snapshot: Snapshot) -> bool:
        return any(status.reason == "starting" for status in snapshot.sources)

    # ------------------------------------------------------------------ the loop

    def start(self) -> None:
        """Publish from now on, in a thread of its own."""
        self._thread = Thread(self._run, name="publisher")
        self._thread.start()

    def stop(self, timeout: float = 0.5) -> None:
        """End the loop."""
        self._stopping.set()
        self.notify(at_once=True)
        if self._thread is not None:
            self._thread.join(timeout)

    def _run(self) -> None:
        while not self._stopping.is_set():
            begun = self._clock()
            if (
                self.snapshot is not None and begun - self._cycle_began > GAP
            ):  # else sources would look as if they had not answered
                self._stopping.wait(SETTLE_SECONDS)
                begun = self._clock()
            self._cycle_began = begun
            self._wake.clear()
            self._hurry.clear()
            if self._stopping.is_set():  # since the last look, and its signal was just cleared
                return
            try:
                self.publish_once()
            except Exception:
                self._restarts += 1
                msg = "snapshot build failed"
                log_exception(logger, "internal_error", msg, source="publisher")
            self._pause(begun)

    def _pause(self, begun: float) -> None:
        """Wait for an update, but keep the interval; while sources are starting every update is published."""
        starting = self.snapshot is None or self._is_starting(self.snapshot)
        self._wake.wait(MAX_PERIOD)
        gap = GATHER_SECONDS if starting else max(GATHER_SECONDS, begun + self.interval - self._clock())
        self._hurry.wait(gap)
