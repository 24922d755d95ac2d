"""All threads of the worker process.  The main thread never calls the driver: it answers requests.

One thread initialises the driver and watches the number of GPUs; each GPU has a thread of its own, and one thread
each waits for events and reads how GPUs are connected.
"""

from __future__ import annotations

import os
import resource
import threading
import time
from collections.abc import Callable
from typing import Any

from exporter.driver import protocol
from exporter.driver.nvml.errors import DriverUnavailable
from exporter.driver.nvml.library import card_count, initialise, load_driver, shut_down
from exporter.driver.nvml.shared import SharedState
from exporter.driver.worker.driver_thread import DriverThread
from exporter.driver.worker.event_thread import EventThread
from exporter.driver.worker.frame_writer import FrameWriter
from exporter.driver.worker.gpu_thread import GpuThread
from exporter.driver.worker.reinit_scheduler import ReinitScheduler
from exporter.driver.worker.topology_thread import TopologyThread
from exporter.errors import DriverError
from exporter.model import EMPTY
from exporter.threads import Thread

MEMORY_CAP = 128 * 1024 * 1024  # bytes resident
COUNT_EVERY = 10.0  # seconds between counts of the GPUs
HANGING = 0.5  # seconds in one call of a GPU that a new initialisation does not wait for
STUCK = 30.0  # seconds that one question about two GPUs may take
EXIT_TIMEOUT = 1.0  # seconds to release the driver at the end of the process, which ends in any case
_TICK = 0.5
_JOIN_TIMEOUT = 0.2  # for a GPU's thread, which ends at once unless the daemon does not read


class Worker:
    """All threads of the process; ``serve`` is the main one's."""

    def __init__(self, options: protocol.WorkerOptions, writer: FrameWriter) -> None:
        self._options, self._writer = options, writer
        self._lock = threading.Lock()  # over requests, so that no read starts while the driver is shut down
        self._driver_lock = threading.Lock()  # over initialising and counting, beside which nothing may be done
        self._driver: Any = None
        self._gpus: tuple[GpuThread, ...] = ()
        self._topology: TopologyThread | None = None
        self._events: EventThread | None = None
        self._accepting = False
        self._again = options.again  # the driver was initialised before
        self._shared = SharedState()
        self._driver_version = ""
        self._known_units: protocol.CounterUnits | None = None  # from an earlier worker
        self._sent_units: dict[str, float] = {}  # for the next one
        self._counting_since: float | None = None
        now = time.monotonic()
        for key, seconds in options.skipped_calls.items():
            who, _, function = key.rpartition("/")
            self._shared.skipped_calls.setdefault(who, {})[function] = now + seconds
        for uuid, seconds in options.gpm_cooldown.items():
            self._shared.gpm_lock.backed_off[uuid] = now + seconds
        self._reinit = ReinitScheduler(now, retry_lost=options.retry_lost)

    def serve(self, descriptor: int) -> None:
        """Answer requests until the pipe closes, then release the driver where that is quick."""
        Thread(self._watch, name="nvml-init").start()
        frames = protocol.FrameBuffer()
        while data := os.read(descriptor, 65536):
            for frame in frames.feed(data):
                message = protocol.decode(frame)
                if isinstance(message, protocol.Read):
                    self._on_read(message)
                elif isinstance(message, protocol.CounterUnits):
                    self._known_units = message
                    self._apply_known_units()
            if resident_bytes() > MEMORY_CAP:
                os._exit(protocol.EXIT_RECYCLED)
        release = Thread(self._release, name="nvml-release")
        release.start()
        release.join(EXIT_TIMEOUT)

    def _release(self) -> None:
        """Free what the driver has allocated and shut it down; may block for ever, like any call of it."""
        with self._lock:
            self._accepting = False
        for thread in self._auxiliary_threads():
            thread.pause()
        self._driver_lock.acquire()  # never released: no thread initialises or counts any more
        with self._lock:
            self._accepting = False
            gpus, auxiliary = self._gpus, self._auxiliary_threads()
        for thread in (*gpus, *auxiliary):
            thread.end()
        for gpu in gpus:
            gpu.join()
        if self._driver is not None:
            self._shared.release(self._driver)
        for thread in auxiliary:
            thread.join()
        if self._driver is not None:
            shut_down(self._driver)

    def _auxiliary_threads(self) -> list[DriverThread]:
        """Return the threads that call the driver beside the GPUs' own."""
        return [thread for thread in (self._topology, self._events) if thread is not None]

    # ------------------------------------------------------------------ requests

    def _on_read(self, message: protocol.Read) -> None:
        now = time.monotonic()
        busy = {}
        with self._lock:
            for gpu in self._gpus:
                if gpu.busy:
                    busy[gpu.index] = gpu.call_seconds(now)
                elif message.ask and self._accepting:
                    gpu.request(message.cycle, message.budget)
        since, topology = self._counting_since, self._topology
        self._writer.send(
            protocol.Heartbeat(
                cycle=message.cycle,
                ask=message.ask,
                busy=busy,
                counting=0.0 if since is None else now - since,
                joining=0.0 if topology is None else topology.call_seconds(now),
                profiling=self._shared.gpm_lock.holder(now),
            )
        )
        self._send_units()

    def _apply_known_units(self) -> None:
        """Use what an earlier worker has found out about this driver."""
        known = self._known_units
        if known is not None and known.driver_version == self._driver_version:
            for reason, unit in known.units.items():
                self._shared.units.setdefault(reason, unit)

    def _send_units(self) -> None:
        """Send what another worker need not find out again, whenever that changes."""
        units = self._shared.confirmed_units()
        if units != self._sent_units and self._driver_version:
            self._sent_units = units
            self._writer.send(protocol.CounterUnits(driver_version=self._driver_version, units=units))

    # ------------------------------------------------------------------ the driver's initialisation

    def on_driver_unavailable(self, error: DriverUnavailable) -> None:
        """Initialise the driver again, or end this process where only another one can."""
        if error.reason == "uninitialized":
            self._reinit.request()
        else:
            self._writer.fail(error.reason, str(error))

    def _watch(self) -> None:
        """Initialise the driver, and again whenever that is due; the only thread that does."""
        try:
            driver = load_driver(self._options.module, self._options.options)
            with self._driver_lock:
                self._start(driver)
            counted = time.monotonic()
            while True:
                time.sleep(_TICK)
                now = time.monotonic()
                if self._events is not None:
                    self._events.check_hang(now)
                with self._driver_lock:
                    if now - counted >= COUNT_EVERY:
                        counted = now
                        self._count(driver, now)
                    if self._has_duplicates():
                        self._reinit.request()
                    if self._reinit.due(now, [gpu.unavailable for gpu in self._gpus]):
                        self._initialise_again(driver)
        except DriverError as error:
            self._writer.fail(error.reason, str(error))
        except BaseException as error:
            self._writer.fail("crashed", f"{type(error).__name__}: {error}")

    def _count(self, driver: Any, now: float) -> None:
        self._counting_since = now
        count = card_count(driver)
        self._counting_since = None
        if count not in {None, len(self._gpus)}:
            self._reinit.request()

    def _has_duplicates(self) -> bool:
        """Return whether two threads read the same GPU: the driver's indices have changed."""
        uuids = [available.uuid for gpu in self._gpus if (available := gpu.available()) is not None]
        return len(set(uuids)) != len(uuids)

    def _start(self, driver: Any) -> None:
        self._writer.send(protocol.Initialising())
        facts, count = initialise(driver)
        self._driver = driver
        self._set_driver_version(facts.driver_version)
        self._writer.send(protocol.Initialised(facts=facts, cards=count))
        with self._lock:
            self._gpus = tuple(
                GpuThread(
                    driver,
                    index,
                    facts.driver_version,
                    sender=self._writer,
                    on_driver_unavailable=self.on_driver_unavailable,
                    shared=self._shared,
                )
                for index in range(count)
            )
            skipped = self._shared.skipped_calls.get("", EMPTY)
            self._topology = TopologyThread(driver, self._gpus, self._writer, skipped)
            self._events = EventThread(driver, self._gpus, self._writer, skipped, again=self._again)
            self._accepting = self._again = True
            for thread in (*self._gpus, self._topology, self._events):
                thread.start()

    def _set_driver_version(self, version: str) -> None:
        """Preserve what was learnt from counters while the driver is the same; an unknown one may be another."""
        if not version or version != self._driver_version:
            self._shared.reset_units()
        self._driver_version = version
        self._apply_known_units()

    def _initialise_again(self, driver: Any) -> None:
        gpus = self._gpus
        if self._quiesce():
            # Sent first, because a driver with a lost GPU may never return from the shutdown.
            self._writer.send(protocol.Initialising())
            for gpu in gpus:
                gpu.join(_JOIN_TIMEOUT)
            self._shared.release(driver)
            shut_down(driver)
            self._reinit.on_done(time.monotonic())
            self._start(driver)
        else:
            # A GPU hangs: the daemon replaces this process in time, and until then the others go on.
            now = time.monotonic()
            self._reinit.postpone(now)
            if any(thread.call_seconds(now) > STUCK for thread in self._auxiliary_threads()):
                # The daemon sees only GPUs; without this no lost GPU would ever be tried again.
                self._writer.fail("hung", "a question about two GPUs, or a wait for events, never returned")

    def _quiesce(self) -> bool:
        """Stop reading and return whether nothing is read; shutting the driver down under a call would crash."""
        auxiliary = self._auxiliary_threads()
        for thread in auxiliary:
            thread.pause()
        # A wait for events takes half a second to end, and the GPUs need not stand still for that.
        idle = _within(1.0, lambda: not any(thread.busy for thread in auxiliary))
        for _ in range(20 if idle else 0):
            now = time.monotonic()
            if any(gpu.call_seconds(now) > HANGING for gpu in self._gpus):
                break  # it will not return soon, and its neighbours need not stand still for it
            with self._lock:
                self._accepting = False
                threads: list[DriverThread] = [*self._gpus, *auxiliary]
                if not any(thread.busy for thread in threads):
                    for thread in threads:
                        thread.end()
                    self._gpus, self._topology, self._events = (), None, None
                    return True
            time.sleep(0.05)
        self._accepting = True
        for thread in auxiliary:
            thread.resume()
        return False


def _within(seconds: float, condition: Callable[[], bool]) -> bool:
    """Wait until a condition holds, at most so long, and return whether it does."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= end:
            return False
        time.sleep(0.05)
    return True


def resident_bytes() -> int:
    """Return the memory that this process holds; 0 where the kernel does not say."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read(128).split()[1]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        return 0
