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

from exporter.model import CardFacts
from exporter.sources.driver import pipe
from exporter.sources.driver.nvml import mig_enabled, open_card, read_facts
from exporter.sources.driver.nvml_card import CardReader, Shared
from exporter.sources.driver.nvml_errors import CardCalls, CardGone, DriverGone

FAILED = 3  # exit code: a DriverFailed frame says why

SLOW_EVERY = 10.0  # seconds between slow tiers
SLOW_EVERY_DEMOTED = 60.0  # where one read takes longer than SLOW_READ
SLOW_READ = 0.5
FACTS_EVERY = 600.0


class Outlet:
    """The pipe to the daemon; whole frames only, from any thread."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = threading.Lock()

    def send(self, message: pipe.Message) -> None:
        """Write one frame.  Ends the process when nobody reads any more: then it has no purpose left."""
        data = memoryview(pipe.encode(message))
        with self._lock:
            try:
                while data:
                    data = data[os.write(self._descriptor, data) :]
            except OSError:
                os._exit(0)

    def fail(self, reason: str, message: str) -> None:
        """Say why the driver is of no use and end the process."""
        self.send(pipe.DriverFailed(reason=reason, message=message))
        os._exit(FAILED)


class CardThread:
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
        outlet: Outlet,
        driver_gone: Callable[[DriverGone], None],
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
        self._calls: CardCalls | None = None
        self._reader: CardReader | None = None
        self._facts: CardFacts | None = None
        self._uuid = ""
        self._opening: float | None = None
        self._slow_at = self._facts_at = 0.0
        self._slow_every = SLOW_EVERY
        self.thread = threading.Thread(target=self._run, name=f"card-{index}", daemon=True)
        self.thread.start()

    def ask(self, cycle: int) -> None:
        """Start a read; the caller has seen that none is running."""
        self.working = True
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

    def _answers(self, cycle: int) -> list[pipe.Message]:
        started = time.monotonic()
        try:
            reader = self._opened(started)
            slow = started - self._slow_at >= self._slow_every
            # The instances first: the card's reading says why some of them could not be opened.
            parts = reader.instances.read(look=slow) if reader.instances is not None else None
            reading = reader.read(slow=slow)
        except CardGone as error:
            return [self._failed(cycle, error.reason, str(error))]
        except DriverGone as error:
            self._driver_gone(error)
            return [self._failed(cycle, error.reason, str(error))]
        except Exception as error:
            return [self._failed(cycle, "error", f"{type(error).__name__}: {error}")]
        self.gone = False
        duration = time.monotonic() - started
        if slow:
            self._slow_at = started
            self._slow_every = SLOW_EVERY_DEMOTED if duration > SLOW_READ else SLOW_EVERY
        answer = pipe.CardRead(index=self.index, uuid=self._uuid, cycle=cycle, duration=duration, reading=reading)
        return [answer] if parts is None else [pipe.Divided(uuid=self._uuid, instances=parts), answer]

    def _failed(self, cycle: int, reason: str, message: str) -> pipe.CardFailed:
        self.gone = True
        self._drop()
        return pipe.CardFailed(index=self.index, uuid=self._uuid, cycle=cycle, reason=reason, message=message)

    def _opened(self, now: float) -> CardReader:
        """Give the reader of the card, with a handle and facts that are not too old."""
        if self._reader is not None and self._calls is not None:
            if now - self._facts_at < FACTS_EVERY and not self._switched(now):
                return self._reader
            if read_facts(self._calls, self.index) == self._facts:
                self._facts_at = now
                return self._reader
            self._drop()  # MIG was switched, or the handle has become another card's
        self._opening = now
        calls, facts = open_card(self._driver, self.index)
        self._facts, self._uuid, self._facts_at = facts, facts.uuid, now
        # Said before the first read: from here on a call that does not return hangs, and does not merely open.
        self._outlet.send(pipe.CardFound(facts=facts))
        self._opening = time.monotonic()
        self._reader = CardReader(self._driver, calls, facts, self._driver_version, self._shared)
        self._calls, self._opening = calls, None
        self._slow_at = now
        return self._reader

    def _switched(self, now: float) -> bool:
        """Say whether MIG was switched, looking as often as at anything slow."""
        if now - self._slow_at < self._slow_every or self._calls is None or self._facts is None:
            return False
        return mig_enabled(self._calls) not in {None, self._facts.mig}
