"""One gateway: its state from its pages, and how it spread its requests over the windows."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from exporter.derive import gateway as derive
from exporter.derive.assignment import Endpoint
from exporter.derive.windows import History
from exporter.errors import EndpointError, PageError, SourceError
from exporter.gateways.detect import recognise
from exporter.gateways.interpreter import GatewayInterpreter
from exporter.gateways.tables import by_kind
from exporter.model import EMPTY, GatewayLabels, GatewayReading, GatewayState, SourceStatus, Window
from exporter.runtime import unknown_pages
from exporter.runtime.poll.loop import Fetched, Fetcher, PollLoop
from exporter.runtime.poll.target_poller import TargetPoller

logger = logging.getLogger(__name__)


class GatewayConfig(Struct, frozen=True, kw_only=True):
    """What is asked of a gateway's poller.  Times in seconds."""

    name: str
    kind: str
    interval: float
    windows: tuple[Window, ...]


class GatewayHandler:
    """The state of one gateway between two polls.  Used by the thread that polls it."""

    def __init__(
        self,
        config: GatewayConfig,
        poll_loop: PollLoop,
        endpoints: Callable[[], Sequence[Endpoint]],
        is_local: Callable[[str], bool],
    ) -> None:
        """``endpoints``, where replicas are polled, and ``is_local`` match backends to replicas."""
        self.config = config
        self._poll_loop = poll_loop
        self._endpoints, self._is_local = endpoints, is_local
        self._interpreter: GatewayInterpreter | None = None
        self._progress: derive.GatewayCounters | None = None
        self._history: History[derive.GatewayTotals] = History(config.windows)

    def initial_state(self) -> GatewayState:
        """Return the state before the first poll."""
        config = self.config
        labels = GatewayLabels(config.name, "" if config.kind == "auto" else config.kind)
        return GatewayState(
            name=config.name, labels=labels, status=self._poll_loop.status, reading=None, last_read_at=None
        )

    def reconfigure(self, config: GatewayConfig, fetcher: Fetcher) -> None:  # noqa: ARG002 - its page says all
        """Compute what another config for the same page asks, out of the same past where it reaches."""
        old, self.config = self.config, config
        if config.windows != old.windows:
            self._history = self._history.with_windows(config.windows)

    def parse(self, body: bytes, at: float) -> GatewayReading:
        """Parse a page; another kind of gateway than before starts with an empty history.  Raises PageError."""
        auto = self.config.kind == "auto"
        if self._interpreter is None or (auto and not self._interpreter.still_matches(body)):
            kind = recognise(body) if auto else by_kind(self.config.kind)
            if kind is None:
                raise PageError("unknown_gateway", unknown_pages.explain(body, unknown_pages.GATEWAY))
            self._interpreter = GatewayInterpreter(kind)
            self._progress, self._history = None, History(self.config.windows)
        return self._interpreter.read(body, at)

    def apply(self, before: GatewayState, reading: GatewayReading, page: Fetched) -> GatewayState:
        """Return the state after a page that was parsed."""
        self._progress = derive.update(self._progress, reading)
        if self._progress is not None:
            self._history.add(self._progress.totals)
        restarts = self._progress.restarts if self._progress is not None else 0
        if restarts > before.restarts:
            self._poll_loop.log_restart()
        return GatewayState(
            name=self.config.name,
            labels=GatewayLabels(self.config.name, reading.gateway),
            status=self._poll_loop.succeeded(page.duration),
            reading=reading,
            last_read_at=reading.at,
            windows=derive.window_figures(self._history, reading),
            replicas=derive.match_backends(list(reading.backends), self._endpoints(), self._is_local),
            restarts=restarts,
        )

    def explain(self, error: SourceError) -> SourceError:
        """Return the error with where this kind of gateway shows its metrics, if they are not there."""
        known = by_kind(self.config.kind)
        if error.reason != "http_404" or known is None or not known.hint:
            return error
        return EndpointError(error.reason, f"{error}; {known.hint}")

    def invalidated(self, state: GatewayState, status: SourceStatus) -> GatewayState:
        """Return the state without what only a fresh page may show."""
        return replace(state, status=status, reading=None, windows=EMPTY, replicas=EMPTY)


GatewayPoller = TargetPoller[GatewayConfig, GatewayReading, GatewayState]


def gateway_poller(
    config: GatewayConfig,
    fetcher: Fetcher,
    *,
    endpoints: Callable[[], Sequence[Endpoint]] = tuple,
    is_local: Callable[[str], bool] = lambda _: False,
    on_update: Callable[[], None] = lambda: None,
    clock: Callable[[], float] = time.monotonic,
    unix_now: Callable[[], float] = time.time,
) -> GatewayPoller:
    """Return the poller of one gateway, not started."""
    poll_loop = PollLoop(f"gateway:{config.name}", config.interval, logger=logger, clock=clock, unix_now=unix_now)
    gateway = GatewayHandler(config, poll_loop, endpoints, is_local)
    return TargetPoller(gateway, gateway.initial_state(), fetcher, poll_loop, on_update=on_update, clock=clock)
