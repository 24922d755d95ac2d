"""One KV-cache store: its state from its pages, and its hit ratio over the windows."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace

from exporter.derive import store as derive
from exporter.derive.windows import History
from exporter.errors import EndpointError, PageError, SourceError
from exporter.model import EMPTY, SourceStatus, Window
from exporter.model.store import StoreLabels, StoreReading, StoreState
from exporter.runtime import unknown_pages
from exporter.runtime.poll.loop import Fetched, Fetcher, PollLoop
from exporter.runtime.poll.target_poller import TargetPoller
from exporter.stores.interpreter import StoreInterpreter
from exporter.stores.tables import by_kind, recognise

logger = logging.getLogger(__name__)


class StoreConfig(Struct, frozen=True, kw_only=True):
    """What is asked of a store's poller.  Times in seconds."""

    name: str
    kind: str
    interval: float
    windows: tuple[Window, ...]


class StoreHandler:
    """The state of one store between two polls.  Used by the thread that polls it."""

    def __init__(self, config: StoreConfig, poll_loop: PollLoop) -> None:
        self.config = config
        self._poll_loop = poll_loop
        self._interpreter: StoreInterpreter | None = None
        self._totals: derive.StoreTotals | None = None
        self._history: History[derive.StoreTotals] = History(config.windows)

    def initial_state(self) -> StoreState:
        """Return the state before the first poll."""
        labels = StoreLabels(self.config.name, "" if self.config.kind == "auto" else self.config.kind)
        return StoreState(
            name=self.config.name, labels=labels, status=self._poll_loop.status, reading=None, last_read_at=None
        )

    def reconfigure(self, config: StoreConfig, fetcher: Fetcher) -> None:  # noqa: ARG002 - its page says all
        """Compute what another config for the same page asks, out of the same past where it reaches."""
        old, self.config = self.config, config
        if config.windows != old.windows:
            self._history = self._history.with_windows(config.windows)

    def parse(self, body: bytes, at: float) -> StoreReading:
        """Parse a page; another kind of store than before starts with an empty history.  Raises PageError."""
        auto = self.config.kind == "auto"
        if self._interpreter is None or (auto and not self._interpreter.store.matches(body)):
            store = recognise(body) if auto else by_kind(self.config.kind)
            if store is None:
                raise PageError("unknown_store", unknown_pages.explain(body, unknown_pages.STORE))
            self._interpreter = StoreInterpreter(store)
            self._totals, self._history = None, History(self.config.windows)
        return self._interpreter.read(body, at)

    def apply(self, before: StoreState, reading: StoreReading, page: Fetched) -> StoreState:  # noqa: ARG002
        """Return the state after a page that was parsed."""
        self._totals = derive.update(self._totals, reading)
        if self._totals is not None:
            self._history.add(self._totals)
        return StoreState(
            name=self.config.name,
            labels=StoreLabels(self.config.name, reading.kind),
            status=self._poll_loop.succeeded(page.duration),
            reading=reading,
            last_read_at=reading.at,
            hit_ratio=derive.hit_ratios(self._history),
            usage=derive.usage_ratios(reading),
        )

    def explain(self, error: SourceError) -> SourceError:
        """Return the error with where this kind of store shows its metrics, if they are not there."""
        known = by_kind(self.config.kind)
        if error.reason != "http_404" or known is None:
            return error
        return EndpointError(error.reason, f"{error}; {known.hint}")

    def invalidated(self, state: StoreState, status: SourceStatus) -> StoreState:
        """Return the state without what only a fresh page may show."""
        return replace(state, status=status, reading=None, hit_ratio=EMPTY, usage=EMPTY)


StorePoller = TargetPoller[StoreConfig, StoreReading, StoreState]


def store_poller(
    config: StoreConfig,
    fetcher: Fetcher,
    *,
    on_update: Callable[[], None] = lambda: None,
    clock: Callable[[], float] = time.monotonic,
    unix_now: Callable[[], float] = time.time,
) -> StorePoller:
    """Return the poller of one store, not started."""
    poll_loop = PollLoop(f"store:{config.name}", config.interval, logger=logger, clock=clock, unix_now=unix_now)
    store = StoreHandler(config, poll_loop)
    return TargetPoller(store, store.initial_state(), fetcher, poll_loop, on_update=on_update, clock=clock)
