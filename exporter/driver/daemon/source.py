"""The daemon's side of the GPU driver: keeps one worker process reading, and never waits for it.

A supervisor thread starts the worker, asks it once an interval, and replaces it when it dies, hangs or speaks
nonsense.  Two workers never live at once: one that survives SIGKILL (a call stuck in the kernel) is waited for, and
until it is gone the cards are down with reason "hung".  No GPU at all is an ordinary state: reason "library" or
"driver", no process left running between attempts.
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
from dataclasses import dataclass

from exporter.driver import protocol
from exporter.driver.daemon.auxiliary_calls import AuxiliaryCallMonitor
from exporter.driver.daemon.cooldown import HangPatience
from exporter.driver.daemon.process import WorkerProcess
from exporter.driver.daemon.registry import CardRegistry
from exporter.driver.daemon.supervisor import WorkerSupervisor
from exporter.errors import DriverError
from exporter.logs import log_down, log_event, log_exception, log_up
from exporter.model import CardState, DriverFacts, SourceStatus
from exporter.threads import Thread

_log = logging.getLogger(__name__)

INIT_DEADLINE = 30.0
NO_GPU = ("library", "driver")  # reasons that a node without GPUs has for ever
NO_GPU_HINT = "set gpu: {enabled: false} on a node without GPUs"
DRIVER_DOWN = "driver"  # why no events come while there is no driver
SECOND_READ = 0.3  # seconds after the driver was initialised
_GATHER = 0.05  # cards answer within milliseconds of each other: one update for all of them
_TOGETHER = 0.004  # seconds; cards answer within milliseconds, and waking for each costs more than waiting
_GRACE = 0.5  # a card about to be found hanging is not logged as slow a moment before
_BUDGET = 0.75  # of the deadline; what a card takes longer than that for is asked in turn, see nvml_turns
_STOLEN = 1.0  # a turn this much late: the machine or the daemon stood still, and so may have the worker


@dataclass(frozen=True, slots=True, kw_only=True)
class CardsView:
    """All cards and the driver at one instant; cards sorted by index."""

    driver: DriverFacts | None
    status: SourceStatus
    cards: tuple[CardState, ...]


class CardSource:
    """Cards of this node.  ``start`` once, ``state`` at any time from any thread, ``stop`` at the end.

    ``module``: the driver binding by name; ``options`` is handed to its ``configure``.  ``interval`` and
    ``deadline`` in seconds.  ``on_update`` is called from the supervisor thread after each cycle and each change of
    health; it must be quick and may raise (logged).  ``on_event`` is told of XIDs, with a lock held: it must not call
    back.
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
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.loop_restarts = 0
        self._on_event = on_event
        self._interval, self._deadline = interval, deadline
        self._on_update, self._clock, self._wall = on_update, clock, wall
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._wakers = (-1, -1)
        self._thread = Thread(self._supervise, name="cards")
        self._keeper = WorkerSupervisor(module, options)
        self._book = CardRegistry()
        self._patience = HangPatience()
        self._facts: DriverFacts | None = None
        self._down: str = "starting"  # why the driver does not answer; empty when it does
        self._down_since = clock()
        self._failures: Counter[str] = Counter()
        self._success: tuple[float, float] | None = None  # monotonic, wall
        self._said = "starting"
        self._release = False
        self._beside = AuxiliaryCallMonitor(self._failures)
        self._profiling: dict[str, float] = {}  # who had the turn at GPM in the last Heartbeat: uuid → since
        self._cycle = 0
        self._next_read = self._turn_at = self._beat_at = 0.0
        self._initialising = False
        self._asked_at: float | None = None  # a Heartbeat is owed since
        self._fresh_until = (0.0, 0.0)  # until when a reading of that age is not withdrawn, see reconfigure
        self._fresh_at: float | None = None  # readings not announced yet arrived since
        self._changed = False

    def start(self) -> None:
        """Start the supervisor; returns at once, and nothing is read yet."""
        self._wakers = os.pipe()
        for end in self._wakers:
            os.set_blocking(end, False)
        self._turn_at = self._down_since = self._clock()
        self._thread.start()

    def reconfigure(self, interval: float, deadline: float) -> None:
        """Change how often is asked and how long a call may take, in seconds, without a restart."""
        with self._lock:
            now, before = self._clock(), self._freshness(self._clock())
            sooner = interval + deadline < before
            # What was fresh a moment ago is so until the cards, asked at once, have had the time to answer.
            self._fresh_until = (now + deadline, before) if sooner else (0.0, 0.0)
            self._interval, self._deadline = interval, deadline
            self._next_read = min(self._next_read, now if sooner else now + interval)
        self._wake()

    def _freshness(self, now: float) -> float:
        """Give the seconds after which a reading is withdrawn."""
        until, before = self._fresh_until
        freshness = self._interval + self._deadline
        return max(freshness, before) if now <= until else freshness

    def stop(self, timeout: float = 1.0) -> None:
        """End the worker and the supervisor; gives up after ``timeout`` seconds, as either may be stuck for ever."""
        self._stopping.set()
        self._wake()
        if self._thread.is_alive():
            self._thread.join(timeout)

    def release(self, *, released: bool) -> None:
        """Let go of every card until called again with False: the worker ends, and with it all that it holds open."""
        self._release = released
        self._wake()

    def state(self, now: float) -> CardsView:
        """Give what is known at ``now`` (monotonic seconds); never waits for the driver."""
        with self._lock:
            freshness = self._freshness(now)
            known = not self._down or now - self._down_since <= freshness
            status = SourceStatus(
                source="driver",
                up=not self._down,
                reason=self._down,
                hung=self._down == "hung" or self._beside.any(self._deadline) or self._lingers(now),
                last_success=self._success[0] if self._success else None,
                last_success_unix_time=self._success[1] if self._success else None,
                failures=dict(self._failures),
            )
            cards = self._book.view(now, freshness, self._down)
            return CardsView(driver=self._facts if known else None, status=status, cards=cards)

    def _lingers(self, now: float) -> bool:
        """Say whether the cards were to be let go of, and a worker that cannot be killed still holds them."""
        return self._down == "released" and self._keeper.lingers(now)

    def _wake(self) -> None:
        with suppress(OSError):  # not started, stopped, or woken often enough
            os.write(self._wakers[1], b"!")

    def _supervise(self) -> None:
        try:
            while not self._stopping.is_set():
                self._guarded_turn()
        finally:
            self._keeper.shutdown()
            wakers, self._wakers = self._wakers, (-1, -1)
            for end in wakers:
                os.close(end)

    def _guarded_turn(self) -> None:
        try:
            self._wait(self._turn())
        except Exception:
            # A mistake of ours must not leave the cards unwatched without a word.
            self.loop_restarts += 1
            msg = "the supervisor of the driver's worker failed; a new worker is started"
            log_exception(_log, "internal_error", msg, source="driver")
            self._end("crashed", "the supervisor failed", self._clock())
            self._stopping.wait(1.0)

    def _wait(self, seconds: float) -> None:
        if self._fresh_at is not None:
            self._stopping.wait(_TOGETHER)
        poller = select.poll()
        poller.register(self._wakers[0], select.POLLIN)
        worker = self._keeper.worker()
        if worker is not None and not worker.closed:
            poller.register(worker.fileno(), select.POLLIN)
        poller.poll(int(seconds * 1000) + 1)
        with suppress(BlockingIOError):
            os.read(self._wakers[0], 4096)

    def _turn(self) -> float:
        """Do what is due now and give the seconds until something is due again, at most one."""
        now = self._clock()
        stolen = now - self._turn_at > _STOLEN
        if self._release != self._keeper.held:
            self._keeper.hold(now, held=self._release)
            self._begin_down(now)
        if self._keeper.tend(now):
            self._begin_down(now)
        worker = self._keeper.worker()
        if worker is not None and not worker.closed:
            self._listen(worker)
            worker = self._keeper.worker()
        if worker is not None and not worker.closed:
            self._watch(worker, now, stolen=stolen)
        self._announce(now)
        pause = self._pause(now)
        self._turn_at = now + pause
        return pause

    def _pause(self, now: float) -> float:
        pause = self._keeper.pause(now)
        if pause is None:
            pause = 1.0 if self._down or self._initialising else self._calm(now)
        if self._fresh_at is not None:
            pause = min(pause, self._fresh_at + _GATHER - now)
        old = self._book.next_old(now, self._freshness(now))
        pause = pause if old is None else min(pause, old)
        return min(max(pause, 0.0), 1.0)

    def _calm(self, now: float) -> float:
        """Give the seconds until a working worker is due for something."""
        hang = self._book.next_hang(now, self._deadline)
        pause = min(self._next_read - now, self._deadline / 2)
        return pause if hang is None else min(pause, hang)

    def _listen(self, worker: WorkerProcess) -> None:
        try:
            messages = worker.receive()
        except DriverError as error:
            self._end(error.reason, str(error), self._clock())
            return
        for message in messages:
            with self._lock:
                self._take(message, self._clock(), self._wall())

    def _take(self, message: protocol.Message, now: float, wall: float) -> None:
        if isinstance(message, protocol.CardRead):
            self._book.read(message, wall)
            self._success = max(self._success or (0.0, 0.0), (message.reading.at, wall))
            self._fresh_at = now if self._fresh_at is None else self._fresh_at
        elif isinstance(message, protocol.Heartbeat):
            self._asked_at, self._beat_at = None, now
            self._beside.take(message.counting, message.joining, self._deadline)
            self._profiling = {uuid: now - seconds for uuid, seconds in message.profiling.items()}
            self._book.beat(message, now)
        elif isinstance(message, protocol.CardFailed):
            self._book.failed(message, now)
            self._fresh_at = now if self._fresh_at is None else self._fresh_at
        elif isinstance(message, protocol.CardFound):
            self._keeper.crashes.found(message.facts)
            self._book.found(message.facts, now)
        elif isinstance(message, protocol.InstancesRead):
            self._book.divided(message, wall)
        elif isinstance(message, protocol.TopologyRead):
            self._book.joined(message)
        elif isinstance(message, protocol.CounterUnits):
            self._keeper.learnt = message
        elif isinstance(message, protocol.XidSeen | protocol.EventSubscription):
            self._on_event(message)
        else:
            self._take_driver(message, now, wall)

    def _take_driver(self, message: protocol.Message, now: float, wall: float) -> None:
        if isinstance(message, protocol.Initialising):
            self._keeper.started_at = now
            self._keeper.crashes.begin()
            self._book.end()
            # Not down for that: cards whose figures grow old meanwhile are withdrawn one by one.
            self._initialising, self._asked_at = True, None
        elif isinstance(message, protocol.Initialised):
            if self._keeper.ready_at is None:
                self._keeper.ready_at = now
            self._initialising = False
            self._down, self._facts, self._changed = "", message.facts, True
            self._success = (now, wall)
            # A card reads once by itself as soon as it is open; what is measured between two reads waits for another.
            self._next_read = now + min(self._interval, SECOND_READ)
            self._book.begin(message.cards)
        elif isinstance(message, protocol.DriverFailed):
            self._keeper.end(message.reason, message.message, now)
            self._take_down(now)

    def _end(self, reason: str, words: str, now: float, *, at_once: bool = False) -> None:
        self._keeper.end(reason, words, now, at_once=at_once)
        if reason == "hung":
            self._rest_profiling(now)
        self._begin_down(now)

    def _rest_profiling(self, now: float) -> None:
        """See to it that a card that hangs in GPM does not at once take that from its neighbours again."""
        for uuid, since in self._profiling.items():
            if now - since > self._deadline:
                seconds = self._keeper.rests.begin(uuid, now)
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
        self._down = self._keeper.reason
        if self._down not in {"released", "starting"}:
            self._failures[self._down] += 1
        self._asked_at = None
        self._beside.end()
        self._on_event(protocol.EventSubscription(cards=0, reason=DRIVER_DOWN))
        self._book.end()
        self._changed = True

    def _watch(self, worker: WorkerProcess, now: float, *, stolen: bool) -> None:
        """Judge the living worker and ask it what is due."""
        if stolen and self._asked_at is not None:
            self._asked_at = now
        if self._down or self._initialising:
            if now - self._keeper.started_at > INIT_DEADLINE:
                # After a good start this was for the sake of a lost card, and would hang again and again.
                again = not self._down
                self._keeper.gentle = self._keeper.gentle or again
                self._end("hung", f"the driver did not start in {INIT_DEADLINE:g} s", now, at_once=again)
            return
        if self._asked_at is not None and now - self._asked_at > self._deadline:
            self._end("hung", f"the worker did not react in {self._deadline:g} s", now)
            return
        with self._lock:
            verdict = self._book.judge(now, self._deadline)
        if verdict.hung and not verdict.answering:
            self._end("hung", f"no card answered in {self._deadline:g} s", now)
        elif self._patience.due(now, hung=verdict.hung > 0, settled=verdict.settled):
            self._end("hung", "a card hangs: trying a new worker for its sake", now, at_once=True)
        else:
            self._ask(worker, now)

    def _ask(self, worker: WorkerProcess, now: float) -> None:
        due = now >= self._next_read
        if due:
            with self._lock:
                self._cycle += 1
                self._next_read += self._interval
                if self._next_read <= now:  # never a burst to catch up
                    self._next_read = now + self._interval
        elif self._asked_at is not None or not self._book.waiting() or now - self._beat_at < self._deadline / 2:
            return
        worker.send(protocol.Read(cycle=self._cycle, ask=due, budget=self._deadline * _BUDGET))
        self._asked_at = now if self._asked_at is None else self._asked_at

    def _announce(self, now: float) -> None:
        """Log what changed, and tell the owner once for all cards of a cycle."""
        with self._lock:
            freshness = self._freshness(now)
            changed = self._book.log_changes(now, freshness + _GRACE, self._down) or self._changed
            # A page that nobody makes anew would go on showing what has grown old.
            changed = self._book.came_or_went(now, freshness) or changed
            gathered = self._fresh_at is not None and (self._book.complete() or now - self._fresh_at >= _GATHER)
            self._changed = False
            if gathered:
                self._fresh_at = None
        self._log_driver()
        if changed or gathered:
            try:
                self._on_update()
            except Exception:
                msg = "an update of the GPUs could not be passed on"
                log_exception(_log, "internal_error", msg, source="driver")

    def _log_driver(self) -> None:
        if self._down == self._said:
            return
        self._said = self._down
        if self._down:
            hint = NO_GPU_HINT if self._down in NO_GPU else None
            log_down(_log, "driver", self._down, self._keeper.words or "initialising", hint=hint)
        elif self._facts is not None:
            log_up(_log, "driver", version=self._facts.driver_version)
