"""One thread for each GPU inside the worker, so that a GPU that is lost or hangs stops no other."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from exporter.driver import protocol
from exporter.driver.calls import THREAD_FUNCTION
from exporter.driver.nvml.call_scheduler import BUDGET
from exporter.driver.nvml.errors import DeviceCalls, DeviceUnavailable, DriverUnavailable
from exporter.driver.nvml.gpu import GpuReader
from exporter.driver.nvml.library import mig_enabled, open_card, read_facts
from exporter.driver.nvml.shared import SharedState
from exporter.driver.worker.driver_thread import AvailableGpu, DriverThread
from exporter.driver.worker.frame_writer import Sender
from exporter.model import CardFacts

SLOW_EVERY = 10.0  # seconds between slow tiers
SLOW_EVERY_DEMOTED = 60.0  # where one read takes longer than SLOW_READ
SLOW_READ = 0.5
FACTS_EVERY, FACTS_SOON = 600.0, 10.0  # the latter after one that the driver failed to answer


def _named(run: Callable[[], None], name: str) -> Callable[[], None]:
    """Return a function of that name that runs another: a stack that is written at a crash shows it."""

    def function() -> None:
        run()

    function.__code__ = function.__code__.replace(co_name=name)
    return function


class GpuThread(DriverThread):
    """Reads one GPU whenever asked; while a read runs it is not asked again.

    ``unavailable``: whether the last answer was that the GPU cannot be read; None before the first answer.  A GPU
    that is unavailable gets a new handle at each try.
    """

    def __init__(
        self,
        driver: Any,
        index: int,
        driver_version: str,
        *,
        sender: Sender,
        on_driver_unavailable: Callable[[DriverUnavailable], None],
        shared: SharedState,
    ) -> None:
        super().__init__(f"gpu-{index}", _named(self._run, f"{THREAD_FUNCTION}{index}"))
        self.index = index
        self.unavailable: bool | None = None
        self._driver = driver
        self._driver_version = driver_version
        self._sender, self._on_driver_unavailable = sender, on_driver_unavailable
        self._shared = shared
        self._requested: int | None = None  # the cycle of the next read
        self._calls: DeviceCalls | None = None
        self._reader: GpuReader | None = None
        self._facts: CardFacts | None = None
        self._uuid = ""
        self._opening: float | None = None
        self._slow_at = self._facts_at = 0.0
        self._facts_incomplete = False
        self._slow_every = SLOW_EVERY
        self._budget = BUDGET

    def request(self, cycle: int, budget: float = BUDGET) -> None:
        """Start a read that may take ``budget`` seconds; the caller has seen that none is running."""
        self._busy, self._budget = True, budget
        self._requested = cycle
        self._wakeup.set()

    def available(self) -> AvailableGpu | None:
        """Return UUID and handle while the GPU's last answer was good."""
        calls = self._calls
        return AvailableGpu(self._uuid, calls.handle) if calls is not None and self.unavailable is False else None

    def call_started(self) -> float | None:
        """Return when the driver call now running began; None between two calls."""
        reader = self._reader
        return self._opening if reader is None else reader.call_started()

    def _run(self) -> None:
        cycle: int | None = 0
        while cycle is not None:
            answers = self._answers(cycle)
            # Not busy from here on: the writes below may wait for the daemon, and that is no hanging GPU.
            self._busy = False
            for answer in answers:
                self._sender.send(answer)
            cycle = self._next_request()
        self._drop()

    def _next_request(self) -> int | None:
        """Return the cycle to read next; None when the thread is to end."""
        while self._requested is None and not self._ending:
            self._sleep()
        cycle, self._requested = self._requested, None
        return cycle

    def _drop(self) -> None:
        """Release handle and reader."""
        if self._reader is not None:
            self._reader.close()
        self._calls = self._reader = self._opening = None

    def _answers(self, cycle: int) -> list[protocol.Message]:
        started = time.monotonic()
        try:
            reader = self._opened(started)
            slow = started - self._slow_at >= self._slow_every
            readings = reader.read_all(slow=slow, budget=self._budget)
        except DeviceUnavailable as error:
            return [self._failed(cycle, error.reason, str(error))]
        except DriverUnavailable as error:
            self._on_driver_unavailable(error)
            return [self._failed(cycle, error.reason, str(error))]
        except Exception as error:
            return [self._failed(cycle, "error", f"{type(error).__name__}: {error}")]
        self.unavailable = False
        duration = time.monotonic() - started
        if slow:
            self._slow_at = started
            self._slow_every = SLOW_EVERY_DEMOTED if duration > SLOW_READ else SLOW_EVERY
        answer = protocol.CardRead(
            index=self.index, uuid=self._uuid, cycle=cycle, duration=duration, reading=readings.reading
        )
        if readings.instances is None:
            return [answer]
        return [protocol.InstancesRead(uuid=self._uuid, instances=readings.instances), answer]

    def _failed(self, cycle: int, reason: str, message: str) -> protocol.CardFailed:
        self.unavailable = True
        self._drop()
        return protocol.CardFailed(index=self.index, uuid=self._uuid, cycle=cycle, reason=reason, message=message)

    def _opened(self, now: float) -> GpuReader:
        """Return the reader of the GPU, with a handle and facts that are not too old."""
        if self._reader is not None and self._facts is not None and self._is_same(now, self._facts):
            return self._reader
        self._drop()
        self._opening = now
        calls, facts = open_card(self._driver, self.index, self._shared.skipped_calls)
        self._facts, self._uuid, self._facts_at = facts, facts.uuid, now
        self._facts_incomplete = calls.failures > 0
        # Sent before the first read: from here on a call that does not return hangs, and does not merely open.
        self._sender.send(protocol.CardFound(facts=facts))
        self._opening = time.monotonic()
        self._reader = GpuReader(self._driver, calls, facts, self._driver_version, self._shared)
        self._calls, self._opening = calls, None
        self._slow_at = now
        return self._reader

    def _is_same(self, now: float, known: CardFacts) -> bool:
        """Return whether the handle is still good for the GPU that it was, with MIG as it was."""
        calls = self._calls
        every = FACTS_SOON if self._facts_incomplete else FACTS_EVERY
        if calls is None or (now - self._facts_at < every and not self._mig_switched(now)):
            return calls is not None
        failures = calls.failures
        facts = read_facts(calls, self.index, known)
        self._facts_at, self._facts_incomplete = now, calls.failures > failures
        if facts == known:
            return True
        if facts.uuid != known.uuid or facts.mig or known.mig:
            return False  # MIG was switched, or the handle has become another GPU's
        self._facts = facts
        self._sender.send(protocol.CardFound(facts=facts))
        return True

    def _mig_switched(self, now: float) -> bool:
        """Return whether MIG was switched, checked as often as anything slow."""
        if now - self._slow_at < self._slow_every or self._calls is None or self._facts is None:
            return False
        return mig_enabled(self._calls) not in {None, self._facts.mig}
