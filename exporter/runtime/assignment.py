"""Which replica sits on which card, and which engines run on this node: has_refreshed up slowly, beside the polling.

The process table is read in a thread of its own, because such a read can wait for a process that is stuck in the
driver.  Should that happen, polling and serving go on; after a while what was found that way is withdrawn, and a
source ``placement`` says that it is_hung.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from exporter.derive.assignment import Assignment, Endpoint, assign_gpus
from exporter.derive.gpu_processes import GpuProcesses, gpu_processes
from exporter.engines.tables import SERVERS
from exporter.errors import SourceError
from exporter.http.client.deadline import Deadline
from exporter.http.client.resolver import default_resolver
from exporter.logs import log_event, log_exception
from exporter.model import EMPTY, CardState, SourceStatus
from exporter.model.process import ListeningEngine, ProcessTable
from exporter.runtime.poll.state_logger import StateLogger
from exporter.sources.processes.classifier import ServerClassifier
from exporter.sources.processes.table import listening_engines, read_processes
from exporter.threads import Thread

logger = logging.getLogger(__name__)

PERIOD = 10.0  # seconds
HUNG_AFTER = (
    25.0  # seconds in one look; it takes a few hundredths, and on a node with thousands of processes a second
)
RESOLVE_SECONDS = 1.0
SOURCE = "placement"
_CLASSIFIER = ServerClassifier(SERVERS)


class AssignmentWatcher:
    """Looks every ten seconds, and at once when the set of processes on the cards changes."""

    def __init__(
        self,
        *,
        cards: Callable[[], Sequence[CardState]],
        endpoints: Callable[[], Sequence[Endpoint]],
        on_engines: Callable[[Sequence[ListeningEngine]], None] | None = None,
        on_change: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``on_engines`` is told the engines of this node, when they are to be discovered at all."""
        self.loop_restarts = 0
        self.has_refreshed = False  # once
        self._cards = cards
        self._endpoints = endpoints
        self._on_engines = on_engines
        self._on_change = on_change
        self._clock = clock
        self._assignment = Assignment()
        self._scan_began: float | None = None  # since when
        self._state_logger = StateLogger(logger, SOURCE, clock)
        self._seats: GpuProcesses = EMPTY  # written by ``notice`` alone, which another thread calls
        self._missing_pids: frozenset[int] = frozenset()  # pids that the last look did not find
        self._wake = threading.Event()
        self._stopping = False
        self._thread: Thread | None = None

    def discover(self, on_engines: Callable[[Sequence[ListeningEngine]], None] | None) -> None:
        """Switch discovery on or off, from the next look on."""
        self._on_engines = on_engines

    @property
    def is_hung(self) -> bool:
        """Say whether a look does not come back."""
        since = self._scan_began
        return since is not None and self._clock() - since > HUNG_AFTER

    @property
    def assignment(self) -> Assignment:
        """Give who sits where; while a look is_hung, what the configuration says and nothing else."""
        if not self.is_hung:
            return self._assignment
        known = {endpoint.replica for endpoint in self._endpoints() if endpoint.gpus is not None}
        found = {endpoint.replica for endpoint in self._endpoints()} - known
        kept = self._assignment.among(known)
        return replace(kept, unassigned={**kept.unassigned, **dict.fromkeys(found, "hung")})

    def statuses(self) -> tuple[SourceStatus, ...]:
        """Give the health while a look is_hung; nothing while all is well.  One thread asks, for every page."""
        if self.is_hung:
            self._state_logger.down("hung", "/proc scan is blocked: a process is stuck in the kernel")
            return (SourceStatus(source=SOURCE, up=False, reason="hung", hung=True),)
        if self.has_refreshed:
            self._state_logger.up()
        return ()

    def refresh(self) -> None:
        """Look once, and replace ``assignment``."""
        self._scan_began = self._clock()
        try:
            self._refresh()
        finally:
            self._scan_began = None

    def _refresh(self) -> None:
        if self._on_engines is not None:
            self._on_engines(listening_engines(classifier=_CLASSIFIER))
        cards, endpoints = self._cards(), [_resolved(endpoint) for endpoint in self._endpoints()]
        processes = gpu_processes(cards, self._seats, self._missing_pids)
        # Configured replicas are has_refreshed up as well: their cards are known, their cards' ranks are not.
        table = self._read_table(processes, endpoints) if endpoints else None
        assignment = assign_gpus(cards, endpoints, table, processes)
        self.has_refreshed = True
        if assignment != self._assignment:
            self._assignment = assignment
            unassigned = ",".join(f"{name}:{reason}" for name, reason in assignment.unassigned.items()) or "none"
            log_event(
                logger, logging.INFO, "assignment_on_change", assigned=len(assignment.gpus), unassigned=unassigned
            )
            self._on_change()

    def _read_table(self, processes: GpuProcesses, endpoints: Sequence[Endpoint]) -> ProcessTable:
        pids = frozenset[int]().union(*processes.values())
        table = read_processes(pids, {endpoint.port for endpoint in endpoints}, classifier=_CLASSIFIER)
        self._missing_pids = pids - table.processes.keys()
        return table

    def on_cards(self, cards: Sequence[CardState]) -> None:
        """Look at once if other processes sit on the cards than last time, or the same ones on other cards."""
        processes = gpu_processes(cards, self._seats, self._missing_pids)
        if processes != self._seats:
            self._seats = processes
            self._wake.set()

    def refresh_now(self) -> None:
        """Look at once: the replicas changed."""
        self._wake.set()

    def start(self) -> None:
        """Look from now on, in a thread of its own."""
        self._thread = Thread(self._run, name="placement")
        self._thread.start()

    def stop(self) -> None:
        """Ask the thread to end; it may be stuck in a read, so nobody waits for it."""
        self._stopping = True
        self._wake.set()

    def _run(self) -> None:
        while not self._stopping:
            self._wake.clear()
            try:
                self.refresh()
            except Exception:
                self.loop_restarts += 1
                msg = "assigning GPUs to replicas failed; it is tried again"
                log_exception(logger, "internal_error", msg, source=SOURCE)
            self._wake.wait(PERIOD)


def _resolved(endpoint: Endpoint) -> Endpoint:
    """Replace a host's name by its address: a name says nothing about being on this node."""
    try:
        addresses = default_resolver.addresses(endpoint.host, Deadline(RESOLVE_SECONDS))
    except (SourceError, OSError):
        return endpoint
    return replace(endpoint, host=str(addresses[0][1][0])) if addresses else endpoint
