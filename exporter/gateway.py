"""One gateway: fetch its page, understand it, derive, and publish the outcome as one immutable state.

Runs in a thread of its own, like a replica's poller, and like there nothing else writes what is kept here.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from exporter.derive import gateway as derive
from exporter.derive.replicas import Endpoint
from exporter.derive.windows import History
from exporter.errors import PageError, SourceError
from exporter.gateways import by_kind, recognise
from exporter.gateways.base import Interpreter
from exporter.model import EMPTY, GatewayReading, GatewayState
from exporter.polling import Fetched, Fetcher, Polling

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayPlan:
    """What is asked of a gateway's poller.  Times in seconds; ``windows``: label and length."""

    name: str
    kind: str
    interval: float
    windows: tuple[tuple[str, float], ...]


class GatewayPoller:
    """Polls one gateway until stopped."""

    def __init__(
        self,
        plan: GatewayPlan,
        fetcher: Fetcher,
        *,
        places: Callable[[], Sequence[Endpoint]] = tuple,
        on_update: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """``places``: where replicas are polled, to say which backend is which replica."""
        self.plan = plan
        self.oddities: Mapping[str, int] = EMPTY
        self.polling = Polling(f"gateway:{plan.name}", plan.interval, logger=logger, clock=clock, wall=wall)
        self._fetcher = fetcher
        self._places = places
        self._on_update = on_update
        self._clock = clock
        self._interpreter: Interpreter | None = None
        self._progress: derive.Progress | None = None
        self._history: History[derive.Totals] = History(plan.windows)
        self.state = GatewayState(
            name=plan.name,
            labels=(plan.name, "" if plan.kind == "auto" else plan.kind),
            status=self.polling.status,
            reading=None,
            last_read_at=None,
        )

    def poll(self) -> None:
        """Read the gateway once and replace ``state``; never raises for what the gateway does."""
        started = self.polling.begin()
        try:
            page = self._fetcher.fetch()
            reading = self._understand(page.body, self._clock())
        except SourceError as error:
            self._fail(error, started)
        else:
            self._take(reading, page)
        finally:
            self.polling.end()
        self._on_update()

    def _understand(self, body: bytes, at: float) -> GatewayReading:
        auto = self.plan.kind == "auto"
        if self._interpreter is None or (auto and not self._interpreter.knows(body)):
            kind = recognise(body) if auto else by_kind(self.plan.kind)
            if kind is None:
                message = "the page is of no gateway that is known; set its kind or mend the url"
                raise PageError("unknown_gateway", message)
            self._interpreter = Interpreter(kind)
            self._progress, self._history = None, History(self.plan.windows)
        return self._interpreter.read(body, at)

    def _take(self, reading: GatewayReading, page: Fetched) -> None:
        if reading.oddities:
            self.oddities = dict(Counter(self.oddities) + Counter(reading.oddities))
        before = self.state.restarts
        self._progress = derive.advance(self._progress, reading)
        if self._progress is not None:
            self._history.add(self._progress.totals)
        restarts = self._progress.restarts if self._progress is not None else 0
        if restarts > before:
            self.polling.restarted()
        self.state = GatewayState(
            name=self.plan.name,
            labels=(self.plan.name, reading.gateway),
            status=self.polling.succeeded(page.duration),
            reading=reading,
            last_read_at=reading.at,
            windows=derive.figures(self._history, reading),
            replicas=derive.match(list(reading.backends), self._places()),
            restarts=restarts,
        )

    def _fail(self, error: SourceError, started: float) -> None:
        status = self.polling.failed(error, started)
        self.state = replace(self.state, status=status, reading=None, windows=EMPTY, replicas=EMPTY)

    def view(self, now: float) -> GatewayState:
        """Give the state as it may be shown at ``now``: withdrawn when this thread itself has not come back."""
        state = self.state
        if state.reading is None or not self.polling.late(now):
            return state
        status = replace(state.status, up=False, reason="hung", hung=True)
        return replace(state, status=status, reading=None, windows=EMPTY, replicas=EMPTY)

    @property
    def loop_restarts(self) -> int:
        """Unexpected errors that the loop survived."""
        return self.polling.loop_restarts

    def start(self, first: float) -> None:
        """Poll from ``first`` (monotonic) on, in a thread of its own."""
        self.polling.start(first, self.poll, self._crashed, self._fetcher.close)

    def stop(self) -> None:
        """Ask the thread to end; it does so within one exchange, and closes its connection."""
        self.polling.stop()

    def join(self, timeout: float) -> None:
        """Wait for the thread, not for ever."""
        self.polling.join(timeout)

    def _crashed(self, error: SourceError) -> None:
        self._fail(error, self._clock())
