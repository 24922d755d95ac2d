"""Assigns GPUs to replicas and finds the engines of this node: slowly, beside the polling.

The process table is read in a thread of its own, because such a read can wait for a process that is stuck in the
driver.  Should that happen, polling and serving go on; after a while what was found that way is withdrawn, and the
source ``placement`` is down with reason ``hung``.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager

from msgspec.structs import replace

from exporter.derive.assignment import Assignment, Endpoint, assign_gpus
from exporter.derive.gpu_processes import GpuProcesses, gpu_processes
from exporter.derive.owners import gpu_owners, process_owners
from exporter.engines.tables import SERVERS
from exporter.errors import SourceError
from exporter.http.client.deadline import Deadline
from exporter.http.client.resolver import default_resolver
from exporter.logs import log_event, log_exception
from exporter.model import EMPTY, CardState, DisputedPlace, GpuOwner, OwnedProcess, Pod, SourceStatus
from exporter.model.process import ListeningEngine, ProcessTable
from exporter.runtime.poll.state_logger import LOG_PERIOD_SECONDS, StateLogger
from exporter.sources.processes.classifier import ServerClassifier
from exporter.sources.processes.listening import listening_engines
from exporter.sources.processes.owners import OwnerReader
from exporter.sources.processes.table import read_processes
from exporter.threads import Thread

logger = logging.getLogger(__name__)

PERIOD = 10.0  # seconds
# Seconds in one scan of /proc; it takes a few hundredths, and on a node with thousands of processes a second.
HUNG_AFTER = 25.0
RESOLVE_SECONDS, RESOLVE_SECONDS_IN_ALL = 1.0, 3.0  # for one name, and for those of one refresh
SOURCE = "placement"
_CLASSIFIER = ServerClassifier(SERVERS)


class AssignmentWatcher:
    """Assigns GPUs to replicas every ten seconds, and at once when the set of processes on the GPUs changes."""

    def __init__(
        self,
        *,
        cards: Callable[[], Sequence[CardState]],
        endpoints: Callable[[], Sequence[Endpoint]],
        on_engines: Callable[[Sequence[ListeningEngine]], None] | None = None,
        on_change: Callable[[], None] = lambda: None,
        names_owners: Callable[[], bool] = lambda: True,
        pods: Callable[[], Collection[Pod]] = tuple,
        owner_reader: OwnerReader | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``on_engines`` is called with the engines of this node; None: they are not to be discovered.

        ``names_owners``: whether the owners of the GPUs' processes are read; ``pods``: those of this node.
        """
        self.loop_restarts = 0
        self.has_refreshed = False
        self._cards = cards
        self._endpoints = endpoints
        self._on_engines = on_engines
        self._on_change = on_change
        self._names_owners = names_owners
        self._pods = pods
        self._clock = clock
        self._assignment = Assignment()
        self._owner_reader = owner_reader or OwnerReader()
        self._owned: Mapping[int, OwnedProcess] = EMPTY
        self.limits: frozenset[str] = frozenset()  # that the last scans reached: processes, descriptors, sockets
        self._scan_limits: frozenset[str] = frozenset()
        self._limits_logged_at = self._disputes_logged_at = float("-inf")
        self._scan_began: float | None = None  # of the scan of /proc under way
        self._state_logger = StateLogger(logger, SOURCE, clock)
        self._processes: GpuProcesses = EMPTY  # written by ``on_cards`` alone, which another thread calls
        self._missing_pids: frozenset[int] = frozenset()  # that the last scan did not find
        self._addresses: dict[str, str] = {}  # host → the address that it had when it was last resolved
        self._wake = threading.Event()
        self._stopping = False
        self._thread: Thread | None = None

    def discover(self, on_engines: Callable[[Sequence[ListeningEngine]], None] | None) -> None:
        """Switch discovery on or off, from the next refresh on."""
        self._on_engines = on_engines

    @property
    def is_hung(self) -> bool:
        """Whether a scan of /proc does not return."""
        since = self._scan_began
        return since is not None and self._clock() - since > HUNG_AFTER

    @property
    def assignment(self) -> Assignment:
        """Which GPU belongs to which replica; while a scan hangs, as far as the configuration says it."""
        if not self.is_hung:
            return self._assignment
        configured = {endpoint.replica for endpoint in self._endpoints() if endpoint.gpus is not None}
        others = {endpoint.replica for endpoint in self._endpoints()} - configured
        kept = replace(self._assignment, multi_node=()).among(configured)
        return replace(kept, unassigned={**kept.unassigned, **dict.fromkeys(others, "hung")})

    def owners(self, cards: Sequence[CardState]) -> tuple[GpuOwner, ...]:
        """Return who holds the GPUs as they are now; nobody while a scan hangs."""
        if self.is_hung or not self._names_owners():
            return ()
        return gpu_owners(cards, self._owned, self._pods())

    def statuses(self) -> tuple[SourceStatus, ...]:
        """Return the health while a scan hangs, nothing while all is well.  For one thread, at every snapshot."""
        if self.is_hung:
            self._state_logger.down("hung", "/proc scan is blocked: a process is stuck in the kernel")
            return (SourceStatus(source=SOURCE, up=False, reason="hung", hung=True),)
        if self.has_refreshed:
            self._state_logger.up()
        return ()

    def refresh(self) -> None:
        """Replace ``assignment``, and hand over the engines that run on this node."""
        self._scan_limits = frozenset()
        if self._on_engines is not None:
            with self._scan():
                scan = listening_engines(classifier=_CLASSIFIER, gpu_pids=_pids(self._processes))
            self._scan_limits = scan.limits
            self._on_engines(scan.engines)  # which may wait for pages that do not answer
        cards, endpoints = self._cards(), self._resolved(self._endpoints())
        processes = gpu_processes(cards, self._processes, self._missing_pids)
        # For configured replicas as well: their GPUs are known, the ranks on them are not.
        names_owners = bool(processes) and self._names_owners()
        reader = self._owner_reader if names_owners else None
        # Without an endpoint too: the GPUs may belong to a replica whose endpoint is on another node.
        has_work = endpoints or names_owners or (processes and self._on_engines is not None)
        table = self._read_table(processes, endpoints, reader) if has_work else None
        pods = self._pods()
        self._on_owners(process_owners(_pids(processes), table, pods) if table and names_owners else EMPTY)
        self._on_limits(self._scan_limits | table.limits if table is not None else self._scan_limits)
        assignment = assign_gpus(cards, endpoints, table, processes, pods)
        self.has_refreshed = True
        if assignment != self._assignment:
            # Before the driver has started there is nothing to assign; its own state is in the log already.
            is_waiting = not self._assignment.gpus and set(assignment.unassigned.values()) == {"no_driver"}
            level = logging.DEBUG if is_waiting else logging.INFO
            if assignment.disputed != self._assignment.disputed:
                self._log_disputes(assignment.disputed)
            self._assignment = assignment
            unassigned = ",".join(f"{name}:{reason}" for name, reason in assignment.unassigned.items()) or "none"
            log_event(logger, level, "assignment_changed", assigned=len(assignment.gpus), unassigned=unassigned)
            self._on_change()

    def _log_disputes(self, disputed: Collection[DisputedPlace]) -> None:
        if disputed and self._clock() - self._disputes_logged_at >= LOG_PERIOD_SECONDS:
            self._disputes_logged_at = self._clock()
            msg = "processes of several owners claim one place in a replica that spans nodes: none of them has it"
            named = "; ".join(map(str, disputed))
            log_event(logger, logging.WARNING, "replica_place_disputed", msg, source=SOURCE, places=named)

    def _on_limits(self, limits: frozenset[str]) -> None:
        if limits - self.limits and self._clock() - self._limits_logged_at >= LOG_PERIOD_SECONDS:
            self._limits_logged_at = self._clock()
            msg = "engines may not be found or assigned: the process table is larger than what is read of it"
            log_event(
                logger, logging.WARNING, "scan_limit_reached", msg, source=SOURCE, limits=",".join(sorted(limits))
            )
        self.limits = limits

    @contextmanager
    def _scan(self) -> Iterator[None]:
        self._scan_began = self._clock()
        try:
            yield
        finally:
            self._scan_began = None

    def _on_owners(self, owned: Mapping[int, OwnedProcess]) -> None:
        if owned != self._owned:
            self._owned = owned
            self._on_change()

    def _read_table(
        self, processes: GpuProcesses, endpoints: Sequence[Endpoint], owners: OwnerReader | None
    ) -> ProcessTable:
        pids = _pids(processes)
        ports = {endpoint.port for endpoint in endpoints}
        with self._scan():
            table = read_processes(pids, ports, classifier=_CLASSIFIER, owners=owners)
        self._missing_pids = pids - table.processes.keys()
        return table

    def _resolved(self, endpoints: Sequence[Endpoint]) -> list[Endpoint]:
        """Replace names by addresses: a name says nothing about being on this node.

        A name that cannot be resolved now keeps the address that it had: the kept connections to it go on, too.
        """
        end = time.monotonic() + RESOLVE_SECONDS_IN_ALL
        addresses = {}
        for host in {endpoint.host for endpoint in endpoints}:
            address = _address_of(host, min(RESOLVE_SECONDS, end - time.monotonic())) or self._addresses.get(host)
            if address:
                addresses[host] = address
        self._addresses = addresses
        return [replace(endpoint, host=addresses.get(endpoint.host, endpoint.host)) for endpoint in endpoints]

    def on_cards(self, cards: Sequence[CardState]) -> None:
        """Refresh at once if other processes are on the GPUs than before, or the same ones on other GPUs."""
        processes = gpu_processes(cards, self._processes, self._missing_pids)
        if processes != self._processes:
            self._processes = processes
            self._wake.set()

    def refresh_now(self) -> None:
        """Refresh at once: the replicas changed."""
        self._wake.set()

    def start(self) -> None:
        """Refresh from now on, in a thread of its own."""
        self._thread = Thread(self._run, name="assignment")
        self._thread.start()

    def stop(self) -> None:
        """Signal the thread to end; it may be stuck in a read, so this does not wait."""
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


def _pids(processes: GpuProcesses) -> frozenset[int]:
    return frozenset[int]().union(*processes.values())


def _address_of(host: str, seconds: float) -> str | None:
    """Return an address of ``host``, asking for at most ``seconds``; None where there is none."""
    try:
        if seconds > 0:
            addresses = default_resolver.addresses(host, Deadline(seconds))
        else:
            addresses = tuple(default_resolver.cached(host))
    except (SourceError, OSError):
        return None
    return str(addresses[0][1][0]) if addresses else None
