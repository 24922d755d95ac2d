"""One thread for each card inside the worker, so that a card that is lost or hangs stops no other.

Any call here can block for ever; nothing waits for these threads.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

from exporter.driver import protocol
from exporter.driver.call_names import THREAD
from exporter.driver.nvml.call_scheduler import BUDGET
from exporter.driver.nvml.errors import DeviceCalls, DeviceUnavailable, DriverUnavailable
from exporter.driver.nvml.gpu import GpuReader, Shared
from exporter.driver.nvml.library import mig_enabled, open_card, read_facts
from exporter.model import CardFacts

FAILED = 3  # exit code: a DriverFailed frame says why

SLOW_EVERY = 10.0  # seconds between slow tiers
SLOW_EVERY_DEMOTED = 60.0  # where one read takes longer than SLOW_READ
SLOW_READ = 0.5
FACTS_EVERY, FACTS_SOON = 600.0, 10.0  # the latter after one that the driver failed to answer


class FrameWriter:
    """The pipe to the daemon; whole frames only, from any thread."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = threading.Lock()

    def send(self, message: protocol.Message) -> None:
        """Write one frame.  Ends the process when nobody reads any more: then it has no purpose left."""
        data = memoryview(protocol.encode(message))
        with self._lock:
            try:
                while data:
                    data = data[os.write(self._descriptor, data) :]
            except OSError:
                os._exit(0)

    def fail(self, reason: str, message: str) -> None:
        """Say why the driver is of no use and end the process."""
        self.send(protocol.DriverFailed(reason=reason, message=message))
        os._exit(FAILED)


def _named(run: Callable[[], None], name: str) -> Callable[[], None]:
    """Give a function of that name that runs another: a stack that is written at a crash shows it."""

    def function() -> None:
        run()

    function.__code__ = function.__code__.replace(co_name=name)
    return function


class GpuThread:
    """Reads one card whenever asked; while a read runs it is not asked again.

    ``gone`` says whether the last answer was that the card is gone; None before the first answer.  A card that is
    gone gets a new handle at each try.
    """

    def __init__(
        self,
        driver: Any,
        index: int,
        driver_version: str,
        *,
        outlet: FrameWriter,
        driver_gone: Callable[[DriverUnavailable], None],
        shared: Shared,
    ) -> None:
        self.index = index
        self.gone: bool | None = None
        self.working = True
        self._driver = driver
        self._driver_version = driver_version
        self._outlet, self._driver_gone = outlet, driver_gone
        self._shared = shared
        self._inbox: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._calls: DeviceCalls | None = None
        self._reader: GpuReader | None = None
        self._facts: CardFacts | None = None
        self._uuid = ""
        self._opening: float | None = None
        self._slow_at = self._facts_at = 0.0
        self._facts_fail = False  # some of them, the last time
        self._slow_every = SLOW_EVERY
        self._budget = BUDGET
        self.thread = threading.Thread(
            target=_named(self._run, f"{THREAD}{index}"), name=f"card-{index}", daemon=True
        )
        self.thread.start()

    def ask(self, cycle: int, budget: float = BUDGET) -> None:
        """Start a read that may take ``budget`` seconds; the caller has seen that none is running."""
        self.working, self._budget = True, budget
        self._inbox.put(cycle)

    def end(self) -> None:
        """Let the thread end after what it does now."""
        self._inbox.put(None)

    def standing(self) -> tuple[str, Any] | None:
        """Give uuid and handle while the card's last answer was good; for questions about several cards."""
        calls = self._calls
        return (self._uuid, calls.handle) if calls is not None and self.gone is False else None

    def stuck(self, now: float) -> float:
        """Give the seconds that the driver call now running has taken; 0 between two calls."""
        reader = self._reader
        since = self._opening if reader is None else reader.since()
        return max(0.0, now - since) if since is not None else 0.0

    def _run(self) -> None:
        cycle: int | None = 0
        while cycle is not None:
            answers = self._answers(cycle)
            # Not working from here on: the writes below may wait for the daemon, and that is no hanging card.
            self.working = False
            for answer in answers:
                self._outlet.send(answer)
            cycle = self._inbox.get()
        self._drop()

    def _drop(self) -> None:
        """Forget handle and reader."""
        if self._reader is not None:
            self._reader.close()
        self._calls = self._reader = self._opening = None

    def _answers(self, cycle: int) -> list[protocol.Message]:
        started = time.monotonic()
        try:
            reader = self._opened(started)
            slow = started - self._slow_at >= self._slow_every
            parts, reading = reader.read_all(slow=slow, budget=self._budget)
        except DeviceUnavailable as error:
            return [self._failed(cycle, error.reason, str(error))]
        except DriverUnavailable as error:
            self._driver_gone(error)
            return [self._failed(cycle, error.reason, str(error))]
        except Exception as error:
            return [self._failed(cycle, "error", f"{type(error).__name__}: {error}")]
        self.gone = False
        duration = time.monotonic() - started
        if slow:
            self._slow_at = started
            self._slow_every = SLOW_EVERY_DEMOTED if duration > SLOW_READ else SLOW_EVERY
        answer = protocol.CardRead(index=self.index, uuid=self._uuid, cycle=cycle, duration=duration, reading=reading)
        return [answer] if parts is None else [protocol.InstancesRead(uuid=self._uuid, instances=parts), answer]

    def _failed(self, cycle: int, reason: str, message: str) -> protocol.CardFailed:
        self.gone = True
        self._drop()
        return protocol.CardFailed(index=self.index, uuid=self._uuid, cycle=cycle, reason=reason, message=message)

    def _opened(self, now: float) -> GpuReader:
        """Give the reader of the card, with a handle and facts that are not too old."""
        if self._reader is not None and self._facts is not None and self._same_card(now, self._facts):
            return self._reader
        self._drop()
        self._opening = now
        calls, facts = open_card(self._driver, self.index, self._shared.left)
        self._facts, self._uuid, self._facts_at = facts, facts.uuid, now
        self._facts_fail = calls.failures > 0
        # Said before the first read: from here on a call that does not return hangs, and does not merely open.
        self._outlet.send(protocol.CardFound(facts=facts))
        self._opening = time.monotonic()
        self._reader = GpuReader(self._driver, calls, facts, self._driver_version, self._shared)
        self._calls, self._opening = calls, None
        self._slow_at = now
        return self._reader

    def _same_card(self, now: float, known: CardFacts) -> bool:
        """Say whether the handle is still good for the card that it was, divided or whole as it was."""
        calls = self._calls
        every = FACTS_SOON if self._facts_fail else FACTS_EVERY
        if calls is None or (now - self._facts_at < every and not self._switched(now)):
            return calls is not None
        failures = calls.failures
        facts = read_facts(calls, self.index, known)
        self._facts_at, self._facts_fail = now, calls.failures > failures
        if facts == known:
            return True
        if facts.uuid != known.uuid or facts.mig or known.mig:
            return False  # MIG was switched, or the handle has become another card's
        self._facts = facts
        self._outlet.send(protocol.CardFound(facts=facts))
        return True

    def _switched(self, now: float) -> bool:
        """Say whether MIG was switched, looking as often as at anything slow."""
        if now - self._slow_at < self._slow_every or self._calls is None or self._facts is None:
            return False
        return mig_enabled(self._calls) not in {None, self._facts.mig}
