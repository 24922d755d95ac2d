"""One gateway: what its page means, and how it spread its requests over the windows."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from exporter.derive import gateway as derive
from exporter.derive.assignment import Endpoint
from exporter.derive.windows import History
from exporter.errors import PageError
from exporter.gateways.detect import recognise
from exporter.gateways.interpreter import GatewayInterpreter
from exporter.gateways.tables import by_kind
from exporter.model import EMPTY, GatewayReading, GatewayState, SourceStatus
from exporter.runtime.poll.loop import Fetched, Fetcher, Polling
from exporter.runtime.poll.target_poller import PagePoller

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayPlan:
    """What is asked of a gateway's poller.  Times in seconds; ``windows``: label and length."""

    name: str
    kind: str
    interval: float
    windows: tuple[tuple[str, float], ...]


class Gateway:
    """What is known of one gateway.  Used by the thread that polls it."""

    def __init__(
        self,
        plan: GatewayPlan,
        polling: Polling,
        places: Callable[[], Sequence[Endpoint]],
        here: Callable[[str], bool],
    ) -> None:
        """``places`` where replicas are polled, and ``here``, which hosts are this machine, say who a backend is."""
        self.plan = plan
        self._polling = polling
        self._places, self._here = places, here
        self._interpreter: GatewayInterpreter | None = None
        self._progress: derive.GatewayCounters | None = None
        self._history: History[derive.GatewayTotals] = History(plan.windows)

    def unread(self) -> GatewayState:
        """Give the state before the first poll."""
        plan = self.plan
        labels = (plan.name, "" if plan.kind == "auto" else plan.kind)
        return GatewayState(
            name=plan.name, labels=labels, status=self._polling.status, reading=None, last_read_at=None
        )

    def follow(self, plan: GatewayPlan, fetcher: Fetcher) -> None:  # noqa: ARG002 - its page says all
        """Compute what another plan for the same page asks, out of the same past where it reaches."""
        old, self.plan = self.plan, plan
        if plan.windows != old.windows:
            self._history = self._history.over(plan.windows)

    def understand(self, body: bytes, at: float) -> GatewayReading:
        """Read a page; another kind of gateway than before begins anew.  Raises PageError."""
        auto = self.plan.kind == "auto"
        if self._interpreter is None or (auto and not self._interpreter.still_matches(body)):
            kind = recognise(body) if auto else by_kind(self.plan.kind)
            if kind is None:
                message = "the page is of no gateway that is known; set its kind or mend the url"
                raise PageError("unknown_gateway", message)
            self._interpreter = GatewayInterpreter(kind)
            self._progress, self._history = None, History(self.plan.windows)
        return self._interpreter.read(body, at)

    def take(self, before: GatewayState, reading: GatewayReading, page: Fetched) -> GatewayState:
        """Give the state after a page that was understood."""
        self._progress = derive.update(self._progress, reading)
        if self._progress is not None:
            self._history.add(self._progress.totals)
        restarts = self._progress.restarts if self._progress is not None else 0
        if restarts > before.restarts:
            self._polling.restarted()
        return GatewayState(
            name=self.plan.name,
            labels=(self.plan.name, reading.gateway),
            status=self._polling.succeeded(page.duration),
            reading=reading,
            last_read_at=reading.at,
            windows=derive.window_figures(self._history, reading),
            replicas=derive.match_backends(list(reading.backends), self._places(), self._here),
            restarts=restarts,
        )

    def withdrawn(self, state: GatewayState, status: SourceStatus) -> GatewayState:
        """Give the state without what only a fresh page may show."""
        return replace(state, status=status, reading=None, windows=EMPTY, replicas=EMPTY)

    def afterwards(self, state: GatewayState) -> None:
        """Do nothing: a gateway's page says all that is asked of it."""


GatewayPoller = PagePoller[GatewayPlan, GatewayReading, GatewayState]


def gateway_poller(
    plan: GatewayPlan,
    fetcher: Fetcher,
    *,
    places: Callable[[], Sequence[Endpoint]] = tuple,
    here: Callable[[str], bool] = lambda _: False,
    on_update: Callable[[], None] = lambda: None,
    clock: Callable[[], float] = time.monotonic,
    wall: Callable[[], float] = time.time,
) -> GatewayPoller:
    """Make what polls one gateway, not started."""
    polling = Polling(f"gateway:{plan.name}", plan.interval, logger=logger, clock=clock, wall=wall)
    gateway = Gateway(plan, polling, places, here)
    return PagePoller(gateway, gateway.unread(), fetcher, polling, on_update=on_update, clock=clock)
