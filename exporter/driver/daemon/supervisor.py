"""At most one worker process: when to start it, how to end it, how long to wait before the next.

Nothing here waits: ``poll`` does what is due and returns.
"""

from __future__ import annotations

import signal
import time

from exporter.driver import protocol
from exporter.driver.cooldown import Cooldown
from exporter.driver.daemon.crashes import Crashes
from exporter.driver.daemon.process import WorkerProcess
from exporter.driver.daemon.restarts import IMMEDIATELY, RestartPolicy

KILL_DEADLINE = 0.5  # after that, a killed worker counts as stuck in the kernel
EXIT_DEADLINE = 1.2  # for a worker that was asked to exit, which takes a little more than one call of its longest
SHUTDOWN_DEADLINE = 0.6  # the same at the end of the daemon, which a service manager waits for
TERM_DEADLINE = 0.1
GPM_FIRST, GPM_LAST = 120.0, 600.0  # seconds for which a GPU that hung in GPM is not asked for its work


class WorkerSupervisor:
    """The child, if there is one.  Times are monotonic seconds.

    ``reason``: why the last worker was ended or could not be started; ``detail``: the same in a sentence.
    """

    def __init__(self, module: str, options: str) -> None:
        self._module, self._options = module, options
        self._restarts = RestartPolicy()
        self._worker: WorkerProcess | None = None
        self._ending = self._spawned = False
        self._start_at = 0.0
        self._killed_at = 0.0
        self._exit_until: float | None = None  # it was asked to exit, and is killed then
        self._closed_at: float | None = None
        self._restart_immediately = False
        self.released = False  # while True, no worker is started
        self.retry_lost = True  # workers may initialise again for the sake of a GPU that is lost
        self.gpm_cooldown = Cooldown(GPM_FIRST, GPM_LAST)
        self.crashes = Crashes()
        self.counter_units: protocol.CounterUnits | None = None  # what further workers need not find out again
        self.started_at = 0.0
        self.ready_at: float | None = None  # since when this worker's driver answers
        self.reason = ""
        self.detail = ""

    def worker(self) -> WorkerProcess | None:
        """Return the worker that requests may be sent to; None while there is none or it is being ended."""
        return None if self._ending else self._worker

    def poll(self, now: float) -> bool:
        """Start or reap the worker or notice its death, whichever is due; True when its end has just begun."""
        if self._worker is None:
            return not self.released and now >= self._start_at and not self._spawn(now)
        if self._ending:
            self._reap(self._worker, now)
            return False
        return self._worker.closed and self._on_closed(self._worker, now)

    def _spawn(self, now: float) -> bool:
        self.started_at, self.ready_at = now, None
        self._closed_at = None
        options = protocol.WorkerOptions(
            module=self._module,
            options=self._options,
            again=self._spawned,
            retry_lost=self.retry_lost,
            gpm_cooldown=self.gpm_cooldown.remaining(now),
            skipped_calls=self.crashes.remaining(now),
        )
        try:
            self._worker = WorkerProcess(options)
            self._spawned = True
        except OSError as error:
            self.reason, self.detail = "spawn", f"the worker process cannot be started: {error}"
            self._start_at = now + self._restarts.delay(self.reason, now, 0.0)
            return False
        if self.counter_units is not None:
            self._worker.send(self.counter_units)
        return True

    def _on_closed(self, worker: WorkerProcess, now: float) -> bool:
        self._closed_at = now if self._closed_at is None else self._closed_at
        code = worker.exit_code()
        if code is None and now - self._closed_at < KILL_DEADLINE:
            return False  # its exit code says why, and arrives in a moment
        if code == protocol.EXIT_RECYCLED:
            self.end("recycled", "the worker reached its memory cap", now)
        else:
            function = self.crashes.on_death(worker.crash_trace(), now)
            self.end("crashed", f"the worker ended with code {code}" + (f" in {function}" if function else ""), now)
        return True

    def end(
        self, reason: str, detail: str, now: float, *, restart_immediately: bool = False, graceful: bool = False
    ) -> None:
        """Kill the worker; ``restart_immediately``: start the next one as soon as it is gone.

        ``graceful``: let it release the driver first, for as long as EXIT_DEADLINE.
        """
        self.reason, self.detail = reason, detail
        self._restart_immediately = restart_immediately
        if self._worker is not None and not self._ending:
            self._ending, self._killed_at = True, now
            if graceful:
                self._exit_until = self._killed_at = now + EXIT_DEADLINE
                self._worker.request_exit()
            else:
                self._worker.kill()
                self._reap(self._worker, now)

    def unkillable(self, now: float) -> bool:
        """Return whether a worker was killed and does not end."""
        return self._worker is not None and self._ending and now - self._killed_at > KILL_DEADLINE

    def release(self, now: float, *, released: bool) -> None:
        """End the worker and start no other, or start one now."""
        self.released = released
        if released:
            self.end("released", "asked to release the GPUs", now, restart_immediately=True, graceful=True)
        else:
            self.reason, self.detail = "starting", "asked to read the GPUs again"
            self._start_at = min(self._start_at, now)

    def _reap(self, worker: WorkerProcess, now: float) -> None:
        if worker.exit_code() is None:
            if self._exit_until is not None and now >= self._exit_until:
                self._exit_until = None
                worker.kill()
            return
        worker.close()
        self._exit_until = None
        worked = 0.0 if self.ready_at is None else self._killed_at - self.ready_at
        delay = IMMEDIATELY if self._restart_immediately else self._restarts.delay(self.reason, now, worked)
        self._worker, self._ending = None, False
        self._start_at = now + delay

    def next_poll_in(self, now: float) -> float | None:
        """Return the seconds until ``poll`` has something to do; None when that depends on the worker."""
        if self._worker is None:
            return 1.0 if self.released else self._start_at - now
        if self._ending:
            # A worker that survives SIGKILL may take days to end; look for it rarely.
            return 0.02 if now - self._killed_at < KILL_DEADLINE else 0.5
        return 0.02 if self._worker.closed else None

    def shutdown(self) -> None:
        """End the worker for good, gracefully where it can, in little more than a second whatever state it is in."""
        worker, self._worker = self._worker, None
        if worker is None:
            return
        worker.request_exit()
        if not _exits(worker, SHUTDOWN_DEADLINE):
            worker.kill(signal.SIGTERM)
            if not _exits(worker, TERM_DEADLINE):
                worker.kill()
                _exits(worker, KILL_DEADLINE)
        worker.close()


def _exits(worker: WorkerProcess, seconds: float) -> bool:
    """Return whether a worker ends within some time."""
    until = time.monotonic() + seconds
    while worker.exit_code() is None and time.monotonic() < until:
        time.sleep(0.01)
    return worker.exit_code() is not None
