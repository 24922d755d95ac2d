"""At most one worker process: when to start it, how to end it, how long to wait before the next.

Nothing here waits: ``tend`` does what is due and returns.
"""

from __future__ import annotations

import signal
import time

from exporter.driver import protocol
from exporter.driver.daemon.cooldown import AT_ONCE, Cooldown, Restarts
from exporter.driver.daemon.crashes import Crashes
from exporter.driver.daemon.process import WorkerProcess

KILL_DEADLINE = 0.5  # after that, a killed worker counts as stuck in the kernel
LEAVE_DEADLINE = 1.2  # for a worker that was asked to leave, which takes a little more than one call of its longest
FAREWELL = 0.6  # the same at the end of the daemon, for which somebody waits
RECYCLED_CODE = 75  # exporter.driver.worker.main.RECYCLED, which the daemon does not import


class WorkerSupervisor:
    """The child, if there is one.  Times are monotonic seconds.

    ``reason``: why the last worker was ended or could not be started; ``words``: the same in a sentence.
    """

    def __init__(self, module: str, options: str) -> None:
        self._module, self._options = module, options
        self._restarts = Restarts()
        self._worker: WorkerProcess | None = None
        self._ending = False
        self._start_at = 0.0
        self._killed_at = 0.0
        self._leave_until: float | None = None  # it was asked to leave, and is killed then
        self._closed_at: float | None = None
        self._at_once = False
        self.held = False  # start none until told otherwise
        self.gentle = False  # further workers never initialise again for the sake of a card that is gone
        self.rests = Cooldown()  # cards that further workers leave alone in GPM for a while
        self.crashes = Crashes()  # calls that further workers leave out for a while
        self.learnt: protocol.CounterUnits | None = None  # what further workers need not find out again
        self.started_at = 0.0
        self.ready_at: float | None = None  # since when this worker's driver answers
        self.reason = ""
        self.words = ""

    def worker(self) -> WorkerProcess | None:
        """Give the worker that may be talked to; None while there is none or it is being ended."""
        return None if self._ending else self._worker

    def tend(self, now: float) -> bool:
        """Start, bury or notice the death of the worker, whichever is due; True when its end has just begun."""
        if self._worker is None:
            return not self.held and now >= self._start_at and not self._spawn(now)
        if self._ending:
            self._bury(self._worker, now)
            return False
        return self._worker.closed and self._died(self._worker, now)

    def _spawn(self, now: float) -> bool:
        self.started_at, self.ready_at = now, None
        self._closed_at = None
        resting = self.rests.left(now) | self.crashes.left(now)
        try:
            self._worker = WorkerProcess(self._module, self._options, gentle=self.gentle, resting=resting)
        except OSError as error:
            self.reason, self.words = "spawn", f"the worker process cannot be started: {error}"
            self._start_at = now + self._restarts.delay(self.reason, now, 0.0)
            return False
        if self.learnt is not None:
            self._worker.send(self.learnt)
        return True

    def _died(self, worker: WorkerProcess, now: float) -> bool:
        self._closed_at = now if self._closed_at is None else self._closed_at
        code = worker.exit_code()
        if code is None and now - self._closed_at < KILL_DEADLINE:
            return False  # its exit code says why, and arrives in a moment
        if code == RECYCLED_CODE:
            self.end("recycled", "the worker reached its memory cap", now)
        else:
            function = self.crashes.died(worker.crash_trace(), now)
            self.end("crashed", f"the worker ended with code {code}" + (f" in {function}" if function else ""), now)
        return True

    def end(self, reason: str, words: str, now: float, *, at_once: bool = False, orderly: bool = False) -> None:
        """Kill the worker; ``at_once``: start the next one as soon as it is gone, whatever came before.

        ``orderly``: let it give the driver back what it lent first, for as long as LEAVE_DEADLINE.
        """
        self.reason, self.words = reason, words
        self._at_once = at_once
        if self._worker is not None and not self._ending:
            self._ending, self._killed_at = True, now
            if orderly:
                self._leave_until = self._killed_at = now + LEAVE_DEADLINE
                self._worker.dismiss()
            else:
                self._worker.kill()
                self._bury(self._worker, now)

    def lingers(self, now: float) -> bool:
        """Say whether a worker is left that was killed and does not go."""
        return self._worker is not None and self._ending and now - self._killed_at > KILL_DEADLINE

    def hold(self, now: float, *, held: bool) -> None:
        """End the worker and start no other, or start one now."""
        self.held = held
        if held:
            self.end("released", "asked to let go of the cards", now, at_once=True, orderly=True)
        else:
            self.reason, self.words = "starting", "asked to take the cards up again"
            self._start_at = min(self._start_at, now)

    def _bury(self, worker: WorkerProcess, now: float) -> None:
        if worker.exit_code() is None:
            if self._leave_until is not None and now >= self._leave_until:
                self._leave_until = None
                worker.kill()
            return
        worker.close()
        self._leave_until = None
        worked = 0.0 if self.ready_at is None else self._killed_at - self.ready_at
        delay = AT_ONCE if self._at_once else self._restarts.delay(self.reason, now, worked)
        self._worker, self._ending = None, False
        self._start_at = now + delay

    def pause(self, now: float) -> float | None:
        """Give the seconds until ``tend`` has something to do; None when that depends on the worker."""
        if self._worker is None:
            return 1.0 if self.held else self._start_at - now
        if self._ending:
            # A worker that survives SIGKILL may take days to go; look for it rarely.
            return 0.02 if now - self._killed_at < KILL_DEADLINE else 0.5
        return 0.02 if self._worker.closed else None

    def shutdown(self) -> None:
        """End the worker for good, in order where it can and in little more than a second whatever state it is in."""
        worker, self._worker = self._worker, None
        if worker is None:
            return
        worker.dismiss()
        for number, patience in ((None, FAREWELL), (signal.SIGTERM, 0.1), (signal.SIGKILL, KILL_DEADLINE)):
            if number is not None:
                worker.kill(number)
            until = time.monotonic() + patience
            while worker.exit_code() is None and time.monotonic() < until:
                time.sleep(0.01)
        worker.close()
