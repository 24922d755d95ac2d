"""Follows the RDMA ports of this node in a thread of its own: a read of sysfs can wait for an adapter's firmware.

While nothing is found, sysfs is looked at once a minute and no health is shown: most nodes have no such adapter.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence

from exporter.derive.nics import NicTracker
from exporter.errors import SourceError
from exporter.logs import log_event
from exporter.model import CardState, SourceStatus, canonical_pci
from exporter.model.nic import NicState
from exporter.runtime.poll.loop import PollLoop
from exporter.sources.nics import MAX_PORTS, NicScan, read_nics

logger = logging.getLogger(__name__)

SOURCE = "nics"
PERIOD, PERIOD_WITHOUT = 5.0, 60.0  # seconds between two readings; where there is no adapter


class NicWatcher:
    """The newest state of every port.  ``states`` and ``statuses`` are the publisher's."""

    def __init__(
        self,
        *,
        cards: Callable[[], Sequence[CardState]],
        on_change: Callable[[], None] = lambda: None,
        read: Callable[[str, Sequence[str]], NicScan] = read_nics,
        clock: Callable[[], float] = time.monotonic,
        unix_now: Callable[[], float] = time.time,
    ) -> None:
        self._cards, self._on_change, self._read = cards, on_change, read
        self._clock, self._unix_now = clock, unix_now
        self._root: str | None = None
        self._poll_loop = self._new_loop()
        self._tracker = NicTracker()
        self._states: tuple[NicState, ...] = ()
        self._limit_logged = False

    def _new_loop(self) -> PollLoop:
        return PollLoop(SOURCE, PERIOD, logger=logger, clock=self._clock, unix_now=self._unix_now)

    def watch(self, *, enabled: bool, root: str) -> None:
        """Read the ports below ``root`` from now on, in a thread of its own, or none."""
        wanted = root if enabled else None
        if wanted == self._root:
            return
        self.stop()
        self._root, self._states, self._tracker = wanted, (), NicTracker()
        loop = self._poll_loop = (
            self._new_loop()
        )  # the old one's thread may be stuck, and ends when it is not any more
        if wanted is not None:
            loop.start(self._clock(), lambda: self.refresh(wanted, loop), lambda: None)

    def refresh(self, root: str, loop: PollLoop | None = None) -> None:
        """Read all ports once, for a ``loop`` that may have been replaced meanwhile."""
        loop = loop or self._poll_loop
        started = loop.begin()
        cards = self._cards()
        try:
            scan = self._read(root, sorted({canonical_pci(card.facts.pci_bus_id) for card in cards} - {""}))
        except OSError as error:
            loop.failed(SourceError("unreadable", f"{root} cannot be read: {error.strerror}"), started)
            return
        finally:
            loop.end()
        if self._poll_loop is not loop:
            return
        self._states = self._tracker.update(scan.ports, scan.gpus, cards)
        loop.succeeded(self._clock() - started)
        period = PERIOD if scan.ports else PERIOD_WITHOUT
        if period != loop.interval:
            loop.reschedule(period, self._clock() + period)
        if scan.limit_reached and not self._limit_logged:
            self._limit_logged = True
            msg = f"more than {MAX_PORTS} ports of adapters; the others are not read"
            log_event(logger, logging.WARNING, "port_limit_reached", msg, source=SOURCE)
        if scan.ports:
            self._on_change()

    def stop(self) -> None:
        """Signal the thread to end; it may be stuck in a read, so this does not wait."""
        self._poll_loop.stop()

    def states(self) -> tuple[NicState, ...]:
        """Return the state of every port; none while they cannot be read."""
        return self._states if self._poll_loop.status_at(self._clock()).up else ()

    def statuses(self) -> tuple[SourceStatus, ...]:
        """Return the health of the reading; nothing where there are no ports and nothing is wrong."""
        status = self._poll_loop.status_at(self._clock())
        is_absent = status.reason == "starting" or (status.up and not self._states)
        return () if is_absent else (status,)

    @property
    def loop_restarts(self) -> Mapping[str, int]:
        """Count the unexpected errors that the reading survived; nothing where there are no ports."""
        return {SOURCE: self._poll_loop.loop_restarts} if self._states else {}
