"""One more thread inside the worker: it asks how the cards are joined, when the worker starts and rarely after that.

It has a thread of its own because a question about two cards can block for the sake of either, and no card may look
hung because of its neighbour.  It asks only about cards whose last answer was good.  Nothing waits for it; only a new
initialisation of the driver needs it to pause, and a pass that is interrupted is made again later.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from exporter.errors import DriverError
from exporter.sources.driver import pipe
from exporter.sources.driver.nvml_topology import Interrupted, TopologyReader

EVERY = 600.0  # seconds between passes
AGAIN = 30.0  # seconds to the next pass when some question had no final answer
LOOK = 1.0  # seconds between looks at which cards answer
FIRST_LOOK = 0.1  # the same until the first pass: a page made once is made soon
FIRST_ANSWERS = 10.0  # seconds that the first pass waits for cards that have not answered yet


class Place(Protocol):
    """A card of the worker: ``gone`` is None before its first answer."""

    gone: bool | None

    def standing(self) -> tuple[str, Any] | None:
        """Give uuid and handle while the card's last answer was good."""


class Speaker(Protocol):
    """The way to the daemon."""

    def send(self, message: pipe.Message) -> None:
        """Write one message."""


class TopologyThread:
    """Reads again when a card comes or goes, and every ten minutes.  ``working`` says whether a pass runs."""

    def __init__(self, driver: Any, cards: Sequence[Place], outlet: Speaker) -> None:
        self.working = False
        self._driver, self._cards, self._outlet = driver, cards, outlet
        self._paused = False
        self._ended = threading.Event()
        self._started = time.monotonic()
        self._due = self._started
        self._known: frozenset[str] = frozenset()
        self._reader: TopologyReader | None = None
        self.thread = threading.Thread(target=self._run, name="topology", daemon=True)
        self.thread.start()

    def pause(self) -> None:
        """Begin no pass, and leave the one that runs at its next question."""
        self._paused = True

    def resume(self) -> None:
        """Go on after ``pause``."""
        self._paused = False

    def end(self) -> None:
        """Let the thread end after the question that it asks now."""
        self._paused = True
        self._ended.set()

    def stuck(self, now: float) -> float:
        """Give the seconds that the question now asked has taken; 0 between two."""
        reader = self._reader
        since = reader.calls.since if reader is not None and reader.calls is not None else None
        return max(0.0, now - since) if since is not None else 0.0

    def _run(self) -> None:
        while not self._ended.wait(LOOK if self._known or not self._early() else FIRST_LOOK):
            cards = self._standing()
            now = time.monotonic()
            if cards is not None and (now >= self._due or frozenset(cards) != self._known):
                self._pass(cards, now)

    def _standing(self) -> Mapping[str, Any] | None:
        """Give uuid → handle of the cards to ask about; None while it is too early to say."""
        if self._early() and any(card.gone is None for card in self._cards):
            return None
        return dict(filter(None, (card.standing() for card in self._cards)))

    def _early(self) -> bool:
        return time.monotonic() - self._started < FIRST_ANSWERS

    def _pass(self, cards: Mapping[str, Any], now: float) -> None:
        found = None
        self.working = True
        try:
            if not self._paused:
                reader = self._reader = TopologyReader(self._driver, lambda: not self._paused)
                found = reader.read(cards)
                self._known, self._due = frozenset(cards), now + (EVERY if reader.whole else AGAIN)
        except (Interrupted, DriverError):
            # The driver's end is noticed by the cards' own threads; here it is only too early.
            self._due = now + LOOK
        finally:
            self._reader = None
            self.working = False
        if found is not None:
            # Not working any more: the write may wait for the daemon, and that is no question that hangs.
            self._outlet.send(pipe.TopologyRead(cards=found))
