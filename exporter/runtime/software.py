"""Follows what the processes on the GPUs have loaded: rarely, and each process in a thread that may be left behind.

A file system of a process, FUSE say, can block whoever looks into it.  So a read has some seconds; one that takes
longer is left behind and its process not read again, and with too many of them no other is read either.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

from exporter.derive.gpu_processes import gpu_processes
from exporter.derive.software import node_software
from exporter.engines.tables import DISTRIBUTIONS
from exporter.errors import ThreadLimitError
from exporter.logs import log_event
from exporter.model import CardState, SourceStatus
from exporter.model.software import NodeSoftware, ProcessSoftware
from exporter.runtime.poll.loop import PollLoop
from exporter.sources.software import fabric_manager_runs, read_software
from exporter.threads import Thread

logger = logging.getLogger(__name__)

SOURCE = "software"
PERIOD, FIRST_AFTER = 60.0, 3.0  # seconds; GPUs and their processes are known by then
READ_SECONDS = 2.0  # for one process
MAX_PROCESSES = 64  # of one refresh
MAX_BLOCKED = 4  # threads that are left behind

_read = partial(read_software, engines=DISTRIBUTIONS)


class SoftwareWatcher:
    """The newest software of the node.  ``software`` and ``statuses`` are the publisher's."""

    def __init__(
        self,
        *,
        cards: Callable[[], Sequence[CardState]],
        on_change: Callable[[], None] = lambda: None,
        root: str = "/proc",
        read: Callable[[str, int], ProcessSoftware] = _read,
        clock: Callable[[], float] = time.monotonic,
        unix_now: Callable[[], float] = time.time,
    ) -> None:
        self._cards, self._on_change, self._root, self._read = cards, on_change, root, read
        self._clock = clock
        self._blocked: dict[int, threading.Thread] = {}
        self._poll_loop = PollLoop(SOURCE, PERIOD, logger=logger, clock=clock, unix_now=unix_now)
        self.software = NodeSoftware()

    def start(self) -> None:
        """Read from now on, in a thread of its own."""
        self._poll_loop.start(self._clock() + FIRST_AFTER, self.refresh, lambda: None)

    def stop(self) -> None:
        """Signal the thread to end."""
        self._poll_loop.stop()

    def refresh(self) -> None:
        """Read every process on the GPUs."""
        started = self._poll_loop.begin()
        self._blocked = {pid: thread for pid, thread in self._blocked.items() if thread.is_alive()}
        processes = gpu_processes(self._cards())
        pids = sorted(frozenset[int]().union(*processes.values()))[:MAX_PROCESSES]
        found = {pid: loaded for pid in pids if (loaded := self._bounded(pid)) is not None}
        fabric_manager = fabric_manager_runs(self._root) if processes else None
        software = node_software(processes, found, fabric_manager=fabric_manager)
        self._poll_loop.succeeded(self._clock() - started)
        self._poll_loop.end()
        if software != self.software:
            self.software = software
            self._on_change()

    def _bounded(self, pid: int) -> ProcessSoftware | None:
        """Return what a process has loaded, None if that cannot be read in time."""
        if pid in self._blocked or len(self._blocked) >= MAX_BLOCKED:
            return None
        found: list[ProcessSoftware] = []
        thread = Thread(lambda: found.append(self._read(self._root, pid)), name=f"info-{pid}")
        try:
            thread.start()
        except ThreadLimitError:
            return None
        thread.join(READ_SECONDS)
        if thread.is_alive():
            self._blocked[pid] = thread
            msg = "a file system of the process does not answer; its software is not read"
            log_event(logger, logging.WARNING, "process_blocked", msg, source=SOURCE, pid=pid)
        return found[0] if found else None

    def statuses(self) -> tuple[SourceStatus, ...]:
        """Return the health while the reading hangs, nothing while all is well."""
        status = self._poll_loop.status_at(self._clock())
        return (status,) if status.hung else ()
