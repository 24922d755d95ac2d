"""The daemon's side of the GPU driver: keeps one worker process reading, and never waits for it.

A supervisor thread starts the worker, sends it a request once an interval, and replaces it when it dies, hangs or
breaks the protocol.  Two workers never live at once: one that survives SIGKILL (a call stuck in the kernel) is waited
for, and until it has ended the GPUs are down with reason "hung".  No GPU at all is an ordinary state: reason
"library" or "driver", no process left running between attempts.
"""

from __future__ import annotations

import logging
import os
import select
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

from msgspec import Struct

from exporter.driver import protocol
from exporter.driver.daemon.auxiliary_calls import AuxiliaryCallMonitor
from exporter.driver.daemon.freshness import Freshness
from exporter.driver.daemon.process import WorkerProcess
from exporter.driver.daemon.registry import ACCEPT_ACQUIRED, ACCEPT_OTHERS, RELEASED, CardRegistry
from exporter.driver.daemon.restarts import ReplacementPolicy
from exporter.driver.daemon.supervisor import WorkerSupervisor
from exporter.errors import DriverError
from exporter.logs import log_down, log_event, log_exception, log_up
from exporter.model import CardFacts, CardState, DriverFacts, SourceStatus
from exporter.threads import Thread

_log = logging.getLogger(__name__)

INIT_DEADLINE = 30.0
NO_GPU = ("library", "driver")  # reasons that a node without GPUs has for ever
NO_GPU_HINT = "set gpu: {enabled: false} on a node without GPUs"
_ABSENT_DRIVER = frozenset({"library", "driver", "mismatch"})  # reasons after which a driver was loaded anew
DRIVER_DOWN = "driver"  # why no events come while there is no driver
SECOND_READ = 0.3  # seconds after the driver was initialised
_GATHER = 0.05  # GPUs answer within milliseconds of each other: one update for all of them
_TOGETHER = 0.004  # seconds; GPUs answer within milliseconds, and waking for each costs more than waiting
_GRACE = 0.5  # a GPU about to be found hanging is not logged as slow a moment before
_BUDGET = 0.75  # of the deadline; what a GPU takes longer than that for is asked in turn, see nvml.call_scheduler
_SUSPENDED = 1.0  # a cycle this late: the machine or the daemon stood still, and so may have the worker


class CardsView(Struct, frozen=True, kw_only=True):
    """All GPUs and the driver at one instant; GPUs sorted by index."""

    driver: DriverFacts | None
    status: SourceStatus
    cards: tuple[CardState, ...]
    removed: tuple[CardFacts, ...] = ()  # GPUs that were removed on purpose, by index


class _Success(Struct, frozen=True):
    at: float  # monotonic
    unix_time: float


class CardSource:
    """GPUs of this node.  ``start`` once, ``state`` at any time from any thread, ``stop`` at the end.

    ``module``: the driver binding by name; ``options`` is handed to its ``configure``.  ``interval`` and
    ``deadline`` in seconds.  ``on_update`` is called from the supervisor thread after each cycle and each change of
    health; it must be quick and may raise (logged).  ``on_event`` is called with XIDs, with a lock held: it must not
    call back.
    """

    def __init__(
        self,
        *,
        module: str = "pynvml",
        options: str = "",
        interval: float = 1.0,
        deadline: float = 2.0,
        on_update: Callable[[], None] = lambda: None,
        on_event: Callable[[protocol.XidSeen | protocol.EventSubscription], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
        unix_now: Callable[[], float] = time.time,
    ) -> None:
        self.loop_restarts = 0
        self._on_event = on_event
        self._freshness = Freshness(interval, deadline)
        self._on_update, self._clock, self._unix_now = on_update, clock, unix_now
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._wake_pipe = (-1, -1)
        self._thread = Thread(self._run, name="nvml-supervisor")
        self._supervisor = WorkerSupervisor(module, options)
        self._registry = CardRegistry()
        self._replacement = ReplacementPolicy()
        self._facts: DriverFacts | None = None
        self._down: str = "starting"  # why the driver does not answer; empty when it does
        self._down_since = clock()
        self._logged_down = "starting"
        self._failures: Counter[str] = Counter()
        self._success: _Success | None = None
        self._released = self._acquiring = False
        self._auxiliary = AuxiliaryCallMonitor(self._failures)
        self._profiling: dict[str, float] = {}  # who held the GPM lock at the last Heartbeat: uuid → since
        self._cycle = 0
        self._next_read = self._expected_at = self._heartbeat_at = 0.0
        self._initialising = False
        self._requested_at: float | None = None  # a Heartbeat is owed since
        self._unannounced_since: float | None = None  # readings arrived, and the owner was not notified yet
        self._changed = False

    def start(self) -> None:
        """Start the supervisor; returns at once, and nothing is read yet."""
        self._wake_pipe = os.pipe()
        for end in self._wake_pipe:
            os.set_blocking(end, False)
        self._expected_at = self._down_since = self._clock()
        self._thread.start()

    def reconfigure(self, interval: float, deadline: float) -> None:
        """Change how often GPUs are read and how long a call may take, in seconds, without a restart."""
        with self._lock:
            now = self._clock()
            sooner = self._freshness.reconfigure(interval, deadline, now)
            self._registry.accept_absent(ACCEPT_OTHERS)
            self._next_read = min(self._next_read, now if sooner else now + interval)
        self._wake()

    def stop(self, timeout: float = 1.0) -> None:
        """End the worker and the supervisor; gives up after ``timeout`` seconds, as either may be stuck for ever."""
        self._stopping.set()
        self._wake()
        if self._thread.is_alive():
            self._thread.join(timeout)

    def release(self, *, released: bool) -> None:
        """Release every GPU until called again with False: the worker ends, and with it all that it holds open."""
        self._released = released
        self._wake()

    def state(self, now: float) -> CardsView:
        """Return what is known at ``now`` (monotonic seconds); never waits for the driver."""
        with self._lock:
            freshness = self._freshness.seconds(now)
            down = RELEASED if self._released else self._down
            known = not down or (down != RELEASED and now - self._down_since <= freshness)
            # Or the GPUs were to be released, and a worker that cannot be killed still holds them.
            unkillable = down == RELEASED and self._supervisor.unkillable(now)
            status = SourceStatus(
                source="driver",
                up=not down,
                reason=down,
                hung=down == "hung" or self._auxiliary.any_hung() or unkillable,
                last_success=self._success.at if self._success else None,
                last_success_unix_time=self._success.unix_time if self._success else None,
                failures=dict(self._failures),
            )
            cards = self._registry.view(now, freshness, down)
            facts = self._facts if known else None
            return CardsView(driver=facts, status=status, cards=cards, removed=self._registry.removed())

    # ------------------------------------------------------------------ the supervisor thread

    def _wake(self) -> None:
        with suppress(OSError):  # not started, stopped, or woken often enough
            os.write(self._wake_pipe[1], b"!")

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                self._guarded_cycle()
        finally:
            self._supervisor.shutdown()
            wake_pipe, self._wake_pipe = self._wake_pipe, (-1, -1)
            for end in wake_pipe:
                os.close(end)

    def _guarded_cycle(self) -> None:
        try:
            self._wait(self._run_cycle())
        except Exception:
            # A bug of ours must not leave the GPUs unwatched without a word.
            self.loop_restarts += 1
            msg = "the supervisor of the driver's worker failed; a new worker is started"
            log_exception(_log, "internal_error", msg, source="driver")
            self._end_worker("crashed", "the supervisor failed", self._clock())
            self._stopping.wait(1.0)

    def _wait(self, seconds: float) -> None:
        if self._unannounced_since is not None:
            self._stopping.wait(_TOGETHER)
        poller = select.poll()
        poller.register(self._wake_pipe[0], select.POLLIN)
        worker = self._supervisor.worker()
        if worker is not None and not worker.closed:
            poller.register(worker.fileno(), select.POLLIN)
        poller.poll(int(seconds * 1000) + 1)
        with suppress(BlockingIOError):
            os.read(self._wake_pipe[0], 4096)

    def _run_cycle(self) -> float:
        """Do what is due now and return the seconds until something is due again, at most one."""
        now = self._clock()
        suspended = now - self._expected_at > _SUSPENDED
        if self._released != self._supervisor.released:
            self._acquiring = not self._released
            self._supervisor.release(now, released=self._released)
            self._begin_down(now)
        if self._supervisor.poll(now):
            self._begin_down(now)
        worker = self._supervisor.worker()
        if worker is not None and not worker.closed:
            self._receive(worker)
            worker = self._supervisor.worker()
        if worker is not None and not worker.closed:
            self._watch(worker, now, suspended=suspended)
        self._announce(now)
        seconds = self._next_cycle_in(now)
        self._expected_at = now + seconds
        return seconds

    def _next_cycle_in(self, now: float) -> float:
        seconds = self._supervisor.next_poll_in(now)
        if seconds is None:
            seconds = 1.0 if self._down or self._initialising else self._next_request_in(now)
        if self._unannounced_since is not None:
            seconds = min(seconds, self._unannounced_since + _GATHER - now)
        stale = self._registry.next_stale(now, self._freshness.seconds(now))
        seconds = seconds if stale is None else min(seconds, stale)
        return min(max(seconds, 0.0), 1.0)

    def _next_request_in(self, now: float) -> float:
        """Return the seconds until a working worker is due for something."""
        hang = self._registry.next_hang(now, self._freshness.deadline)
        seconds = min(self._next_read - now, self._freshness.deadline / 2)
        return seconds if hang is None else min(seconds, hang)

    # ------------------------------------------------------------------ what the worker sends

    def _receive(self, worker: WorkerProcess) -> None:
        try:
            messages = worker.receive()
        except DriverError as error:
            self._end_worker(error.reason, str(error), self._clock())
            return
        for message in messages:
            with self._lock:
                self._apply(message, self._clock(), self._unix_now())

    def _apply(self, message: protocol.AnyMessage, now: float, unix_now: float) -> None:
        if isinstance(message, protocol.CardRead):
            self._registry.on_read(message, unix_now)
            at = message.reading.at
            if self._success is None or at >= self._success.at:
                self._success = _Success(at, unix_now)
            self._unannounced_since = now if self._unannounced_since is None else self._unannounced_since
        elif isinstance(message, protocol.Heartbeat):
            self._requested_at, self._heartbeat_at = None, now
            self._auxiliary.update(message.counting, message.joining, self._freshness.deadline)
            self._profiling = {uuid: now - seconds for uuid, seconds in message.profiling.items()}
            self._registry.on_heartbeat(message, now)
        elif isinstance(message, protocol.CardFailed):
            self._registry.on_failed(message, now)
            self._unannounced_since = now if self._unannounced_since is None else self._unannounced_since
        elif isinstance(message, protocol.CardFound):
            self._supervisor.crashes.on_found(message.facts)
            self._registry.on_found(message.facts, now)
        elif isinstance(message, protocol.InstancesRead):
            self._registry.on_instances(message, unix_now)
        elif isinstance(message, protocol.TopologyRead):
            self._registry.on_topology(message)
        elif isinstance(message, protocol.CounterUnits):
            self._supervisor.counter_units = message
        elif isinstance(message, protocol.XidSeen | protocol.EventSubscription):
            self._on_event(message)
        else:
            self._apply_driver(message, now, unix_now)

    def _apply_driver(self, message: protocol.AnyMessage, now: float, unix_now: float) -> None:
        if isinstance(message, protocol.Initialising):
            self._supervisor.started_at = now
            self._supervisor.crashes.on_initialising()
            self._registry.on_driver_down()
            # Not down for that: GPUs whose figures grow old meanwhile are withdrawn one by one.
            self._initialising, self._requested_at = True, None
        elif isinstance(message, protocol.Initialised):
            if self._supervisor.ready_at is None:
                self._supervisor.ready_at = now
            self._initialising = False
            if self._down in _ABSENT_DRIVER or self._acquiring:
                self._registry.accept_absent(ACCEPT_ACQUIRED if self._acquiring else ACCEPT_OTHERS)
            self._acquiring = False
            self._down, self._facts, self._changed = "", message.facts, True
            self._success = _Success(now, unix_now)
            # A GPU is read once by itself as soon as it is open; what is measured between two reads needs another.
            self._next_read = now + min(self._freshness.interval, SECOND_READ)
            self._registry.on_initialised(message.cards)
        elif isinstance(message, protocol.DriverFailed):
            self._supervisor.end(message.reason, message.message, now)
            self._take_down(now)

    # ------------------------------------------------------------------ whether the worker still works

    def _end_worker(self, reason: str, detail: str, now: float, *, restart_immediately: bool = False) -> None:
        self._supervisor.end(reason, detail, now, restart_immediately=restart_immediately)
        if reason == "hung":
            self._cool_down_profiling(now)
        self._begin_down(now)

    def _cool_down_profiling(self, now: float) -> None:
        """Stop GPM calls for a GPU that hangs in one, which would block those of other GPUs again at once."""
        for uuid, since in self._profiling.items():
            if now - since > self._freshness.deadline:
                seconds = self._supervisor.gpm_cooldown.begin(uuid, now)
                log_event(
                    _log, logging.WARNING, "profiling_hung", "its work signals are not read for a while",
                    source=f"gpu:{uuid}", seconds=round(seconds),
                )  # fmt: skip
        self._profiling = {}

    def _begin_down(self, now: float) -> None:
        with self._lock:
            self._take_down(now)

    def _take_down(self, now: float) -> None:
        if not self._down:
            self._down_since = now
        self._down = self._supervisor.reason
        if self._down not in {RELEASED, "starting"}:
            self._failures[self._down] += 1
        self._requested_at = None
        self._auxiliary.reset()
        self._on_event(protocol.EventSubscription(cards=0, reason=DRIVER_DOWN))
        self._registry.on_driver_down()
        self._changed = True

    def _watch(self, worker: WorkerProcess, now: float, *, suspended: bool) -> None:
        """Replace the worker if it hangs, else send it what is due."""
        if suspended and self._requested_at is not None:
            self._requested_at = now
        if self._down or self._initialising:
            self._watch_initialisation(now)
            return
        if self._requested_at is not None and now - self._requested_at > self._freshness.deadline:
            self._end_worker("hung", f"the worker did not react in {self._freshness.deadline:g} s", now)
            return
        with self._lock:
            summary = self._registry.check_hangs(now, self._freshness.deadline)
        if summary.hung and not summary.answering:
            self._end_worker("hung", f"no GPU answered in {self._freshness.deadline:g} s", now)
        elif self._replacement.due(now, hung=summary.hung > 0, settled=summary.settled):
            self._end_worker("hung", "a GPU hangs: trying a new worker for its sake", now, restart_immediately=True)
        else:
            self._request(worker, now)

    def _watch_initialisation(self, now: float) -> None:
        if now - self._supervisor.started_at > INIT_DEADLINE:
            # After a good start this was for the sake of a lost GPU, and would hang again and again.
            again = not self._down
            self._supervisor.retry_lost = self._supervisor.retry_lost and not again
            detail = f"the driver did not start in {INIT_DEADLINE:g} s"
            self._end_worker("hung", detail, now, restart_immediately=again)

    def _request(self, worker: WorkerProcess, now: float) -> None:
        due = now >= self._next_read
        if due:
            with self._lock:
                self._cycle += 1
                self._next_read += self._freshness.interval
                if self._next_read <= now:  # never a burst to catch up
                    self._next_read = now + self._freshness.interval
        else:
            waited = now - self._heartbeat_at >= self._freshness.deadline / 2
            if self._requested_at is not None or not self._registry.waiting() or not waited:
                return
        worker.send(protocol.Read(cycle=self._cycle, ask=due, budget=self._freshness.deadline * _BUDGET))
        self._requested_at = now if self._requested_at is None else self._requested_at

    # ------------------------------------------------------------------ who is notified

    def _announce(self, now: float) -> None:
        """Log what changed, and notify the owner once for all GPUs of a cycle."""
        with self._lock:
            freshness = self._freshness.seconds(now)
            changed = self._registry.log_changes(now, freshness + _GRACE, self._down) or self._changed
            # Without a new snapshot the old one would go on showing readings that have become stale.
            changed = self._registry.visibility_changed(now, freshness) or changed
            since = self._unannounced_since
            gathered = since is not None and (self._registry.complete() or now - since >= _GATHER)
            self._changed = False
            if gathered:
                self._unannounced_since = None
        self._log_driver()
        if changed or gathered:
            try:
                self._on_update()
            except Exception:
                log_exception(_log, "internal_error", "an update of the GPUs could not be passed on", source="driver")

    def _log_driver(self) -> None:
        if self._down == self._logged_down:
            return
        self._logged_down = self._down
        if self._down:
            hint = NO_GPU_HINT if self._down in NO_GPU else None
            log_down(_log, "driver", self._down, self._supervisor.detail or "initialising", hint=hint)
        elif self._facts is not None:
            log_up(_log, "driver", version=self._facts.driver_version)
