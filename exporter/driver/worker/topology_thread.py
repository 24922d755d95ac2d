"""One more thread inside the worker: it reads how the GPUs are connected, when the worker starts and rarely after.

It has a thread of its own because a question about two GPUs can block for the sake of either, and no GPU may look
hung because of its neighbour.  It asks only about GPUs whose last answer was good.  Nothing waits for it; only a new
initialisation of the driver needs it to pause, and a pass that is interrupted is made again later.

Each pass runs in a thread made for it.  When one blocks, what it has found is sent, and another pass asks the rest
without the GPU whose question blocks; when that returns after all, everything is asked again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from exporter.driver import protocol
from exporter.driver.nvml.topology import Interrupted, TopologyReader
from exporter.driver.worker.driver_thread import DriverThread, Gpu
from exporter.driver.worker.frame_writer import Sender
from exporter.errors import DriverError
from exporter.model import EMPTY

EVERY = 600.0  # seconds between passes
RETRY = 30.0  # seconds to the next pass when some question had no final answer
CHECK = 1.0  # seconds between checks of which GPUs answer
FIRST_CHECK = 0.1  # the same until the first pass, so that a snapshot made once is soon complete
HANGS = 5.0  # seconds in one question until the others are asked without it
MAX_HANGING = 3  # passes that may hang at once; a driver that blocks so many blocks all
FIRST_ANSWERS = 10.0  # seconds that the first pass waits for GPUs that have not answered yet


class _Pass(DriverThread):
    """One pass, in a thread of its own.  ``busy`` until no call of it runs any more, whatever came of it."""

    def __init__(
        self,
        driver: Any,
        handles: Mapping[str, Any],
        *,
        paused: Callable[[], bool],
        suspects: frozenset[str],
        skipped_calls: Mapping[str, float],
        on_end: Callable[[], None],
    ) -> None:
        super().__init__("topology-pass")
        self.reader = TopologyReader(driver, lambda: not (self.hangs or paused()), skipped_calls)
        self.finished = False  # it was not interrupted
        self.hangs = False  # others ask in its place
        self.suspects = suspects
        self._handles, self._on_end = handles, on_end

    def call_started(self) -> float | None:
        """Return when the question now asked was put; None between two."""
        calls = self.reader.calls
        return calls.call_started if calls is not None else None

    def _run(self) -> None:
        try:
            self.reader.read(self._handles, suspects=self.suspects)
            self.finished = True
        except (Interrupted, DriverError):
            # The driver's end is noticed by the GPUs' own threads; here it is only too early.
            self.finished = False
        finally:
            self._busy = False
            self._on_end()


class TopologyThread(DriverThread):
    """Reads again when a GPU comes or goes, and every ten minutes; ``skipped_calls``: see ``is_disabled``."""

    def __init__(
        self, driver: Any, gpus: Sequence[Gpu], sender: Sender, skipped_calls: Mapping[str, float] = EMPTY
    ) -> None:
        super().__init__("topology")
        self._driver, self._gpus, self._sender, self._skipped_calls = driver, gpus, sender, skipped_calls
        self._started = time.monotonic()
        self._due = self._started
        self._known: frozenset[str] = frozenset()
        self._passes: tuple[_Pass, ...] = ()  # those that run; all but the last hang

    @property
    def busy(self) -> bool:
        """Whether a pass runs."""
        return any(pass_.busy for pass_ in self._passes)

    def call_started(self) -> float | None:
        """Return when the oldest question now asked was put; None where none is."""
        started = [at for pass_ in self._passes if (at := pass_.call_started()) is not None]
        return min(started, default=None)

    def _run(self) -> None:
        while not self._ending:
            self._sleep(CHECK if self._known or not self._is_early() else FIRST_CHECK)
            self._collect()
            if not self._ending:
                self._begin_pass()
        for pass_ in self._passes:
            pass_.join()

    def _collect(self) -> None:
        """Apply what ended and what hangs.  Only this thread sends it: a write may wait for the daemon."""
        now = time.monotonic()
        for pass_ in self._passes:
            hangs = pass_.call_seconds(now) > HANGS
            if not pass_.busy:
                self._passes = tuple(other for other in self._passes if other is not pass_)
                self._apply(pass_, now)
            elif hangs and not pass_.hangs:
                pass_.hangs = True
                self._due = now
                self._send(pass_)

    def _apply(self, pass_: _Pass, now: float) -> None:
        if pass_.hangs or not pass_.finished:
            # What hung can be asked now; what was interrupted is made again.
            self._due = now + (0.0 if pass_.hangs else CHECK)
            return
        # A GPU that was suspected may answer again: no other pass would ask in its name for ten minutes.
        recovered = pass_.suspects - self._suspects()
        self._due = now + (0.0 if recovered else EVERY if pass_.reader.complete else RETRY)
        self._send(pass_)

    def _send(self, pass_: _Pass) -> None:
        self._sender.send(protocol.TopologyRead(cards=dict(pass_.reader.found)))

    def _begin_pass(self) -> None:
        """Start a pass if it is time and none runs, but those that hang."""
        hanging = [pass_ for pass_ in self._passes if pass_.hangs]
        if self._paused or len(hanging) != len(self._passes) or len(hanging) >= MAX_HANGING:
            return
        handles, now = self._available(), time.monotonic()
        if handles is None or (now < self._due and frozenset(handles) == self._known):
            return
        self._known, self._due = frozenset(handles), now + RETRY
        new = _Pass(
            self._driver,
            handles,
            paused=lambda: self._paused,
            suspects=self._suspects(),
            skipped_calls=self._skipped_calls,
            on_end=self._wakeup.set,
        )
        self._passes = (*self._passes, new)
        new.start()

    def _suspects(self) -> frozenset[str]:
        """Return the GPUs whose question hangs."""
        return frozenset(pass_.reader.current for pass_ in self._passes if pass_.hangs)

    def _available(self) -> Mapping[str, Any] | None:
        """Return uuid → handle of the GPUs to ask about; None while it is too early to know."""
        if self._is_early() and any(gpu.unavailable is None for gpu in self._gpus):
            return None
        return dict(found for gpu in self._gpus if (found := gpu.available()) is not None)

    def _is_early(self) -> bool:
        return time.monotonic() - self._started < FIRST_ANSWERS
