"""One more thread inside the worker: it asks how the cards are joined, when the worker starts and rarely after that.

It has a thread of its own because a question about two cards can block for the sake of either, and no card may look
hung because of its neighbour.  It asks only about cards whose last answer was good.  Nothing waits for it; only a new
initialisation of the driver needs it to pause, and a pass that is interrupted is made again later.

Each pass runs in a thread made for it.  When one blocks, what it has found is told, and another pass asks the rest
without the card whose question blocks; when that returns after all, everything is asked again.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

from exporter.driver import protocol
from exporter.driver.nvml.topology import Interrupted, TopologyReader
from exporter.errors import DriverError
from exporter.model import EMPTY

EVERY = 600.0  # seconds between passes
AGAIN = 30.0  # seconds to the next pass when some question had no final answer
LOOK = 1.0  # seconds between looks at which cards answer
FIRST_LOOK = 0.1  # the same until the first pass: a page made once is made soon
HANGS = 5.0  # seconds in one question until the others are asked without it
MOST_HANGING = 3  # passes that may hang at once; a driver that holds up so many holds up all
FIRST_ANSWERS = 10.0  # seconds that the first pass waits for cards that have not answered yet


class Place(Protocol):
    """A card of the worker: ``gone`` is None before its first answer."""

    gone: bool | None

    def standing(self) -> tuple[str, Any] | None:
        """Give uuid and handle while the card's last answer was good."""


class Sender(Protocol):
    """The way to the daemon."""

    def send(self, message: protocol.Message) -> None:
        """Write one message."""


class _Pass:
    """One pass in a thread of its own.  ``over`` once no call of it runs any more, whatever came of it."""

    def __init__(
        self,
        driver: Any,
        paused: Callable[[], bool],
        cards: Mapping[str, Any],
        suspects: frozenset[str],
        left: Mapping[str, float],
    ) -> None:
        self.reader = TopologyReader(driver, lambda: not (self.told or paused()), left)
        self.over = self.done = False
        self.told = False  # it hangs, and others ask in its place
        self.on_end: Callable[[], None] = lambda: None
        self._cards, self.suspects = cards, suspects
        self.thread = threading.Thread(target=self._run, name="topology-pass", daemon=True)

    def stuck(self, now: float) -> float:
        """Give the seconds that the question now asked has taken; 0 between two."""
        calls = self.reader.calls
        since = calls.since if calls is not None else None
        return max(0.0, now - since) if since is not None else 0.0

    def _run(self) -> None:
        try:
            self.reader.read(self._cards, suspects=self.suspects)
            self.done = True
        except (Interrupted, DriverError):
            # The driver's end is noticed by the cards' own threads; here it is only too early.
            self.done = False
        finally:
            self.over = True
            self.on_end()


class TopologyThread:
    """Reads again when a card comes or goes, and every ten minutes; ``left``: calls that are left out."""

    def __init__(
        self, driver: Any, cards: Sequence[Place], outlet: Sender, left: Mapping[str, float] = EMPTY
    ) -> None:
        self._driver, self._cards, self._outlet, self._left = driver, cards, outlet, left
        self._paused = False
        self._ending = False
        self._news: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._started = time.monotonic()
        self._due = self._started
        self._known: frozenset[str] = frozenset()
        self._passes: tuple[_Pass, ...] = ()  # those that run; all but the last hang
        self.thread = threading.Thread(target=self._run, name="topology", daemon=True)
        self.thread.start()

    @property
    def working(self) -> bool:
        """Say whether a pass runs."""
        return not all(one.over for one in self._passes)

    def pause(self) -> None:
        """Begin no pass, and leave the one that runs at its next question."""
        self._paused = True

    def resume(self) -> None:
        """Go on after ``pause``."""
        self._paused = False

    def end(self) -> None:
        """Let the thread end after the question that it asks now."""
        self._paused = self._ending = True
        self._news.put(None)

    def stuck(self, now: float) -> float:
        """Give the seconds that the longest question now asked has taken; 0 between two."""
        return max((one.stuck(now) for one in self._passes), default=0.0)

    def _run(self) -> None:
        while not self._ending:
            with suppress(queue.Empty):
                self._news.get(timeout=LOOK if self._known or not self._early() else FIRST_LOOK)
            self._settle()
            if not self._ending:
                self._begin()
        for one in self._passes:
            one.thread.join()

    def _settle(self) -> None:
        """Take in what ended and what hangs.  Only this thread tells it: a write may wait for the daemon."""
        now = time.monotonic()
        for one in self._passes:
            hangs = one.stuck(now) > HANGS
            if one.over:
                self._passes = tuple(other for other in self._passes if other is not one)
                self._take(one, now)
            elif hangs and not one.told:
                one.told = True
                self._due = now
                self._tell(one)

    def _take(self, one: _Pass, now: float) -> None:
        if one.told or not one.done:
            # What hung can be asked now; what was interrupted is made again.
            self._due = now + (0.0 if one.told else LOOK)
            return
        # A card that was left out may have come back meanwhile: nobody else would ask in its name for ten minutes.
        back = one.suspects - self._suspects()
        self._due = now + (0.0 if back else EVERY if one.reader.whole else AGAIN)
        self._tell(one)

    def _tell(self, one: _Pass) -> None:
        self._outlet.send(protocol.TopologyRead(cards=dict(one.reader.found)))

    def _begin(self) -> None:
        """Start a pass if it is time and none runs, but those that hang."""
        hanging = [one for one in self._passes if one.told]
        if self._paused or len(hanging) != len(self._passes) or len(hanging) >= MOST_HANGING:
            return
        cards, now = self._standing(), time.monotonic()
        if cards is None or (now < self._due and frozenset(cards) == self._known):
            return
        self._known, self._due = frozenset(cards), now + AGAIN
        one = _Pass(self._driver, lambda: self._paused, cards, self._suspects(), self._left)
        one.on_end = lambda: self._news.put(None)
        self._passes = (*self._passes, one)
        one.thread.start()

    def _suspects(self) -> frozenset[str]:
        """Give the cards whose question hangs."""
        return frozenset(one.reader.asked for one in self._passes if one.told)

    def _standing(self) -> Mapping[str, Any] | None:
        """Give uuid → handle of the cards to ask about; None while it is too early to say."""
        if self._early() and any(card.gone is None for card in self._cards):
            return None
        return dict(filter(None, (card.standing() for card in self._cards)))

    def _early(self) -> bool:
        return time.monotonic() - self._started < FIRST_ANSWERS
