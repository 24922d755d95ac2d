"""Which replica sits on which card, and which engines run on this node: looked up slowly, beside the polling.

The process table is read in a thread of its own, because such a read can wait for a process that is stuck in the
driver.  Should that happen, polling and serving go on; after a while what was found that way is withdrawn, and a
source ``placement`` says that it hangs.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from exporter.derive.assignment import Assignment, Endpoint, assign_gpus
from exporter.derive.gpu_processes import GpuProcesses, gpu_processes
from exporter.errors import SourceError
from exporter.http.client.deadline import Deadline
from exporter.http.client.resolver import default_resolver
from exporter.logs import log_event, log_exception
from exporter.model import EMPTY, CardState, SourceStatus
from exporter.model.process import ListeningEngine, ProcessTable
from exporter.runtime.poll.state_logger import Transitions
from exporter.sources.processes.table import listening_engines, read_processes

logger = logging.getLogger(__name__)

EVERY = 10.0  # seconds
HANGS = 25.0  # seconds in one look; it takes a few hundredths, and on a node with thousands of processes a second
RESOLVE_SECONDS = 1.0
SOURCE = "placement"


class Placement:
    """Looks every ten seconds, and at once when the set of processes on the cards changes."""

    def __init__(
        self,
        *,
        cards: Callable[[], Sequence[CardState]],
        endpoints: Callable[[], Sequence[Endpoint]],
        found: Callable[[Sequence[ListeningEngine]], None] | None = None,
        changed: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``found`` is told the engines of this node, when they are to be discovered at all."""
        self.loop_restarts = 0
        self.looked = False  # once
        self._cards = cards
        self._endpoints = endpoints
        self._found = found
        self._changed = changed
        self._clock = clock
        self._assignment = Assignment()
        self._under_way: float | None = None  # since when
        self._voice = Transitions(logger, SOURCE, clock)
        self._seats: GpuProcesses = EMPTY  # written by ``notice`` alone, which another thread calls
        self._gone: frozenset[int] = frozenset()  # pids that the last look did not find
        self._nudge = threading.Event()
        self._stopping = False
        self._thread: threading.Thread | None = None

    def discover(self, found: Callable[[Sequence[ListeningEngine]], None] | None) -> None:
        """Switch discovery on or off, from the next look on."""
        self._found = found

    @property
    def hangs(self) -> bool:
        """Say whether a look does not come back."""
        since = self._under_way
        return since is not None and self._clock() - since > HANGS

    @property
    def assignment(self) -> Assignment:
        """Give who sits where; while a look hangs, what the configuration says and nothing else."""
        if not self.hangs:
            return self._assignment
        known = {endpoint.replica for endpoint in self._endpoints() if endpoint.gpus is not None}
        found = {endpoint.replica for endpoint in self._endpoints()} - known
        kept = self._assignment.among(known)
        return replace(kept, unassigned={**kept.unassigned, **dict.fromkeys(found, "hung")})

    def statuses(self) -> tuple[SourceStatus, ...]:
        """Give the health while a look hangs; nothing while all is well.  One thread asks, for every page."""
        if self.hangs:
            self._voice.down("hung", "/proc scan is blocked: a process is stuck in the kernel")
            return (SourceStatus(source=SOURCE, up=False, reason="hung", hung=True),)
        if self.looked:
            self._voice.up()
        return ()

    def look(self) -> None:
        """Look once, and replace ``assignment``."""
        self._under_way = self._clock()
        try:
            self._look()
        finally:
            self._under_way = None

    def _look(self) -> None:
        if self._found is not None:
            self._found(listening_engines())
        cards, endpoints = self._cards(), [_resolved(endpoint) for endpoint in self._endpoints()]
        sitting = gpu_processes(cards, self._seats, self._gone)
        # Configured replicas are looked up as well: their cards are known, their cards' ranks are not.
        table = self._read_table(sitting, endpoints) if endpoints else None
        assignment = assign_gpus(cards, endpoints, table, sitting)
        self.looked = True
        if assignment != self._assignment:
            self._assignment = assignment
            unassigned = ",".join(f"{name}:{reason}" for name, reason in assignment.unassigned.items()) or "none"
            log_event(
                logger, logging.INFO, "assignment_changed", assigned=len(assignment.gpus), unassigned=unassigned
            )
            self._changed()

    def _read_table(self, sitting: GpuProcesses, endpoints: Sequence[Endpoint]) -> ProcessTable:
        pids = frozenset[int]().union(*sitting.values())
        table = read_processes(pids, {endpoint.port for endpoint in endpoints})
        self._gone = pids - table.processes.keys()
        return table

    def notice(self, cards: Sequence[CardState]) -> None:
        """Look at once if other processes sit on the cards than last time, or the same ones on other cards."""
        sitting = gpu_processes(cards, self._seats, self._gone)
        if sitting != self._seats:
            self._seats = sitting
            self._nudge.set()

    def look_now(self) -> None:
        """Look at once: the replicas changed."""
        self._nudge.set()

    def start(self) -> None:
        """Look from now on, in a thread of its own."""
        self._thread = threading.Thread(target=self._run, name="placement", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ask the thread to end; it may be stuck in a read, so nobody waits for it."""
        self._stopping = True
        self._nudge.set()

    def _run(self) -> None:
        while not self._stopping:
            self._nudge.clear()
            try:
                self.look()
            except Exception:
                self.loop_restarts += 1
                msg = "assigning GPUs to replicas failed; it is tried again"
                log_exception(logger, "internal_error", msg, source=SOURCE)
            self._nudge.wait(EVERY)


def _resolved(endpoint: Endpoint) -> Endpoint:
    """Replace a host's name by its address: a name says nothing about being on this node."""
    try:
        addresses = default_resolver.addresses(endpoint.host, Deadline(RESOLVE_SECONDS))
    except (SourceError, OSError):
        return endpoint
    return replace(endpoint, host=str(addresses[0][1][0])) if addresses else endpoint
