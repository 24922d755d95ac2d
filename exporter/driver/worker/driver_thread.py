"""What all threads that call the driver have in common: how they start, pause and end, and how a hang is measured.

Any call of the driver may block for ever, so nothing waits for these threads without a limit.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from exporter.threads import Thread


class AvailableGpu(NamedTuple):
    """A GPU whose last answer was good, for calls that are not its own thread's."""

    uuid: str
    handle: Any


class Gpu(Protocol):
    """What other threads need of a GPU's thread."""

    @property
    def unavailable(self) -> bool | None:
        """Whether its last answer was that it cannot be read; None before the first answer."""

    def available(self) -> AvailableGpu | None:
        """Return UUID and handle while its last answer was good."""


class DriverThread(ABC):
    """A thread that calls the driver.  ``pause``, ``resume``, ``end`` and ``call_seconds`` are for other threads."""

    def __init__(self, name: str, target: Callable[[], None] | None = None) -> None:
        self._thread = Thread(target or self._run, name=name)
        self._state_lock = threading.Lock()
        self._wakeup = threading.Event()
        self._busy = True
        self._paused = self._ending = False

    @property
    def busy(self) -> bool:
        """Whether a call may be running or the driver holds something for it, so that it must not be shut down."""
        return self._busy

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def pause(self) -> None:
        """Stop calling the driver after the call that runs now; it is then not ``busy`` any more."""
        with self._state_lock:
            self._paused = True
        self._wakeup.set()

    def resume(self) -> None:
        """Go on after ``pause``."""
        with self._state_lock:
            self._paused, self._busy = False, True
        self._wakeup.set()

    def end(self) -> None:
        """End the thread after the call that runs now."""
        with self._state_lock:
            self._paused = self._ending = True
        self._wakeup.set()

    def join(self, timeout: float | None = None) -> bool:
        """Wait for the thread's end and return whether it has ended."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def call_seconds(self, now: float) -> float:
        """Return the seconds that the driver call now running has taken; 0 between two calls."""
        started = self.call_started()
        return max(0.0, now - started) if started is not None else 0.0

    @abstractmethod
    def call_started(self) -> float | None:
        """Return when the driver call now running began (monotonic); None between two calls."""

    @abstractmethod
    def _run(self) -> None:
        """Run until ``_ending``."""

    def _set_idle(self) -> None:
        """Stop being busy, unless the thread was resumed meanwhile."""
        with self._state_lock:
            if self._paused:
                self._busy = False

    def _sleep(self, seconds: float | None = None) -> None:
        """Wait some time, or until woken: by ``pause``, ``resume`` or ``end``, or for something to do."""
        self._wakeup.wait(seconds)
        self._wakeup.clear()
