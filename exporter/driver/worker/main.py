"""The process that talks to the GPU driver, so that a driver call that never returns stops nothing else.

It is started by ``driver.cards``, speaks ``driver.pipe`` over its standard input and output, and ends when that
pipe closes.  The main thread never calls the driver: it reads requests and answers each with a
Heartbeat.  One thread initialises the driver and watches the number of cards; each card has a thread of its own.
"""

from __future__ import annotations

import faulthandler
import fcntl
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from exporter.driver import protocol
from exporter.driver.nvml.errors import DriverUnavailable
from exporter.driver.nvml.gpu import Shared
from exporter.driver.nvml.library import card_count, initialise, load_driver, shut_down
from exporter.driver.worker.event_thread import EventThread
from exporter.driver.worker.gpu_thread import FrameWriter, GpuThread
from exporter.driver.worker.topology_thread import TopologyThread
from exporter.errors import DriverError
from exporter.model import EMPTY

RECYCLED = 75  # exit code: the memory cap was reached and a fresh process should go on

MEMORY_CAP = 128 * 1024 * 1024  # bytes resident
COUNT_EVERY = 10.0  # seconds between counts of the cards
RETRY_FIRST, RETRY_LAST = 2.0, 600.0  # seconds between initialisations for the sake of a card that is gone
SPACING_FIRST, SPACING_LAST = 1.0, 60.0  # seconds between initialisations for whatever reason
HANGING = 0.5  # seconds in one call of a card that a new initialisation does not wait for
STUCK = 30.0  # seconds that one question about two cards may take
_TICK = 0.5
_FAREWELL = 0.2  # seconds that a card's thread has to leave, which it does at once unless the daemon does not read
LEAVING = 1.0  # seconds to give the driver back what it lent at the end of the process, which comes in any case


class ReinitScheduler:
    """Decides when the driver is initialised once more: on request, or for the sake of a card that is gone.

    Each time interrupts all cards, and without persistence mode resets their counters: hence the long back-off.
    ``gentle``: never for the sake of a card that is gone, because an attempt has hung.
    """

    def __init__(self, now: float, *, gentle: bool = False) -> None:
        self._wanted = threading.Event()
        self._gone_since: float | None = None
        self._gentle = gentle
        self._retry = RETRY_FIRST
        self._spacing = SPACING_FIRST
        self._not_before = now

    def request(self) -> None:
        """Ask for it, from any thread."""
        self._wanted.set()

    def due(self, now: float, gone: list[bool | None]) -> bool:
        """Say whether it is time; ``gone`` holds what each card last answered."""
        if True in gone and not self._gentle:
            self._gone_since = now if self._gone_since is None else self._gone_since
            if now - self._gone_since >= self._retry:
                self._wanted.set()
        elif None not in gone:
            self._gone_since, self._retry = None, RETRY_FIRST
        return self._wanted.is_set() and now >= self._not_before

    def postpone(self, now: float) -> None:
        """Try later: some card is in a call."""
        self._not_before = now + SPACING_LAST

    def done(self, now: float) -> None:
        """Start counting anew; what happens often happens less often."""
        calm = now - self._not_before > SPACING_LAST
        self._spacing = SPACING_FIRST if calm else min(self._spacing * 2, SPACING_LAST)
        self._not_before = now + self._spacing
        if self._gone_since is not None:
            self._gone_since, self._retry = now, min(self._retry * 2, RETRY_LAST)
        self._wanted.clear()


class Worker:
    """All threads of the process; ``serve`` is the main one's.  ``resting``: what is left alone, as in main."""

    def __init__(
        self,
        module: str,
        options: str,
        outlet: FrameWriter,
        *,
        gentle: bool = False,
        resting: Mapping[str, float] = EMPTY,
    ) -> None:
        self.outlet = outlet
        self._module = module
        self._options = options
        self._lock = threading.Lock()  # over asking, so that no read starts while the driver is shut down
        self._driving = threading.Lock()  # over initialising and counting, which nothing may be done beside
        self._cards: tuple[GpuThread, ...] = ()
        self._driver: Any = None
        self._topology: tuple[TopologyThread, ...] = ()  # one, once the driver is initialised
        self._events: tuple[EventThread, ...] = ()  # likewise
        self._accepting = False
        self._shared = Shared()
        self._driver_version = ""
        self._taught: protocol.CounterUnits | None = None  # by an earlier worker
        self._told: dict[str, float] = {}  # to the next one
        self._counting_since: float | None = None
        now = time.monotonic()
        for key, seconds in resting.items():
            who, crashed, function = key.rpartition("/")
            if crashed:
                self._shared.left.setdefault(who, {})[function] = now + seconds
            else:
                self._shared.room.resting[key] = now + seconds
        self._again = ReinitScheduler(now, gentle=gentle)

    def driver_gone(self, error: DriverUnavailable) -> None:
        """Act on an error that ends the initialisation: another one here, or another process."""
        if error.reason == "uninitialized":
            self._again.request()
        else:
            self.outlet.fail(error.reason, str(error))

    def serve(self, inlet: int) -> None:
        """Answer requests until the pipe closes; never calls the driver.  Leaves it in order where that is quick."""
        threading.Thread(target=self._watch, name="driver", daemon=True).start()
        frames = protocol.FrameBuffer()
        while data := os.read(inlet, 65536):
            for frame in frames.feed(data):
                message = protocol.decode(frame)
                if isinstance(message, protocol.Read):
                    self._read(message)
                elif isinstance(message, protocol.CounterUnits):
                    self._taught = message
                    self._recall()
                elif isinstance(message, protocol.Initialise):
                    self._again.request()
            if resident_bytes() > MEMORY_CAP:
                os._exit(RECYCLED)
        leaving = threading.Thread(target=self._leave, name="leaving", daemon=True)
        leaving.start()
        leaving.join(LEAVING)

    def _leave(self) -> None:
        """Give the driver back what it lent and shut it down; may block for ever, like any call of it."""
        with self._lock:
            self._accepting = False
        for one in self._beside():
            one.pause()
        self._driving.acquire()  # for good: nobody initialises or counts any more
        with self._lock:
            self._accepting = False
            cards, beside = self._cards, self._beside()
        for card in cards:
            card.end()
        for one in beside:
            one.end()
        for card in cards:
            card.thread.join()
        if self._driver is not None:
            self._shared.clear(self._driver)
        for one in beside:
            one.thread.join()
        if self._driver is not None:
            shut_down(self._driver)

    def _read(self, message: protocol.Read) -> None:
        now = time.monotonic()
        busy = {}
        with self._lock:
            for card in self._cards:
                if card.working:
                    busy[card.index] = card.stuck(now)
                elif message.ask and self._accepting:
                    card.ask(message.cycle, message.budget)
        since = self._counting_since
        counting = 0.0 if since is None else now - since
        inside = self._shared.room.inside(now)
        joining = max((one.stuck(now) for one in self._topology), default=0.0)
        self.outlet.send(
            protocol.Heartbeat(
                cycle=message.cycle,
                ask=message.ask,
                busy=busy,
                counting=counting,
                joining=joining,
                profiling=inside,
            )
        )
        self._tell()

    def _doubled(self) -> bool:
        """Say whether two threads read the same card: the driver's indices have moved under our feet."""
        standing = [card.standing() for card in self._cards]
        uuids = [one[0] for one in standing if one is not None]
        return len(set(uuids)) != len(uuids)

    def _watch(self) -> None:
        """Initialise the driver, and again whenever that is due; the only thread that does."""
        try:
            driver = load_driver(self._module, self._options)
            with self._driving:
                self._start(driver)
            counted = time.monotonic()
            while True:
                time.sleep(_TICK)
                now = time.monotonic()
                for one in self._events:
                    one.stuck(now)
                with self._driving:
                    if now - counted >= COUNT_EVERY:
                        counted = now
                        self._count(driver, now)
                    if self._doubled():
                        self._again.request()
                    if self._again.due(now, [card.gone for card in self._cards]):
                        self._initialise_again(driver)
        except DriverError as error:
            self.outlet.fail(error.reason, str(error))
        except BaseException as error:
            self.outlet.fail("crashed", f"{type(error).__name__}: {error}")

    def _count(self, driver: Any, now: float) -> None:
        self._counting_since = now
        count = card_count(driver)
        self._counting_since = None
        if count not in {None, len(self._cards)}:
            self._again.request()

    def _start(self, driver: Any) -> None:
        self.outlet.send(protocol.Initialising())
        facts, count = initialise(driver)
        self._driver = driver
        self._driven_by(facts.driver_version)
        self.outlet.send(protocol.Initialised(facts=facts, cards=count))
        with self._lock:
            self._cards = tuple(
                GpuThread(
                    driver,
                    index,
                    facts.driver_version,
                    outlet=self.outlet,
                    driver_gone=self.driver_gone,
                    shared=self._shared,
                )
                for index in range(count)
            )
            left = self._shared.left.get("", EMPTY)
            self._topology = (TopologyThread(driver, self._cards, self.outlet, left),)
            self._events = (EventThread(driver, self._cards, self.outlet.send, left),)
            self._accepting = True

    def _driven_by(self, version: str) -> None:
        """Keep what counters have shown for as long as the driver is the same; of an unknown one nobody can say."""
        if not version or version != self._driver_version:
            self._shared.unlearn()
        self._driver_version = version
        self._recall()

    def _recall(self) -> None:
        """Use what an earlier worker has found out about this driver."""
        taught = self._taught
        if taught is not None and taught.driver_version == self._driver_version:
            for reason, unit in taught.units.items():
                self._shared.units.setdefault(reason, unit)

    def _tell(self) -> None:
        """Say what another worker need not find out again, whenever that changes."""
        units = self._shared.sound_units()
        if units != self._told and self._driver_version:
            self._told = units
            self.outlet.send(protocol.CounterUnits(driver_version=self._driver_version, units=units))

    def _initialise_again(self, driver: Any) -> None:
        cards = self._cards
        if self._quiet():
            # Said first, because a driver with a lost card may never come back from the shutdown.
            self.outlet.send(protocol.Initialising())
            for card in cards:
                card.thread.join(_FAREWELL)
            self._shared.clear(driver)
            shut_down(driver)
            self._again.done(time.monotonic())
            self._start(driver)
        else:
            # A card hangs: the daemon replaces this process in time, and until then the other cards go on.
            now = time.monotonic()
            self._again.postpone(now)
            if any(one.stuck(now) > STUCK for one in self._beside()):
                # The daemon sees only cards; without this no lost card would ever be tried again.
                self.outlet.fail("hung", "a question about two cards, or a wait for events, never returned")

    def _beside(self) -> list[TopologyThread | EventThread]:
        """Give the threads that call the driver beside the cards' own."""
        return [*self._topology, *self._events]

    def _quiet(self) -> bool:
        """Stop asking and say whether nothing is being read; shutting the driver down under a call would crash."""
        beside = self._beside()
        for one in beside:
            one.pause()
        # A wait for events takes half a second to end, and the cards need not stand still for that.
        calm = _within(1.0, lambda: not any(one.working for one in beside))
        for _ in range(20 if calm else 0):
            now = time.monotonic()
            if any(card.stuck(now) > HANGING for card in self._cards):
                break  # it will not return soon, and its neighbours need not stand still for it
            with self._lock:
                self._accepting = False
                threads: list[GpuThread | TopologyThread | EventThread] = [*self._cards, *beside]
                if not any(thread.working for thread in threads):
                    for thread in threads:
                        thread.end()
                    self._cards, self._topology, self._events = (), (), ()
                    return True
            time.sleep(0.05)
        self._accepting = True
        for one in beside:
            one.resume()
        return False


def _within(seconds: float, done: Callable[[], bool]) -> bool:
    """Wait until ``done``, at most so long; say whether it is."""
    end = time.monotonic() + seconds
    while not done():
        if time.monotonic() >= end:
            return False
        time.sleep(0.05)
    return True


def resident_bytes() -> int:
    """Give the memory that this process holds; 0 where the kernel does not say."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read(128).split()[1]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        return 0


def _take_pipes() -> tuple[int, int]:
    """Move the protocol away from descriptors 0 to 2: vendor libraries print to those whenever they like.

    What was standard error carries the last words alone: should the library crash, in which call.
    """
    dying = fcntl.fcntl(2, fcntl.F_DUPFD_CLOEXEC, 3)
    os.set_blocking(dying, False)  # lest a worker that nobody listens to be unable to die
    faulthandler.enable(file=dying, all_threads=False)  # the stacks of running threads cannot be read safely
    inlet = fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, 3)
    outlet = fcntl.fcntl(1, fcntl.F_DUPFD_CLOEXEC, 3)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)
    return inlet, outlet


def _prepare() -> None:
    """Set what the parent's terminal, signal masks and limits must not decide."""
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    # The default action works even while a driver call holds the interpreter; a handler would not.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    # A driver that aborts on each start would fill the disk with core files.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def main(arguments: list[str] | None = None) -> None:
    """Run the worker until its pipe closes.

    ``arguments``: the driver module's name, its options, the word "gentle" where that is wanted, UUID=seconds for
    each card that is to be left alone in GPM, and WHO/FUNCTION=seconds for each call that is left out (see crashes).
    """
    module, options, *more = sys.argv[1:] if arguments is None else arguments
    inlet, outlet = _take_pipes()
    _prepare()
    speaker = FrameWriter(outlet)
    try:
        resting = {uuid: float(seconds) for uuid, given, seconds in (one.rpartition("=") for one in more) if given}
        Worker(module, options, speaker, gentle="gentle" in more, resting=resting).serve(inlet)
    except BaseException as error:
        speaker.fail("crashed", f"{type(error).__name__}: {error}")
    os._exit(0)
