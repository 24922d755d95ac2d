"""The newest snapshot under DCGM's names: rendered when it is requested, once for each snapshot and query.

Without requests no table is imported, and nothing is kept or computed; the first request waits some 10 ms for the
tables.  While requests come, each snapshot updates the byte counters that the rates need, and the XIDs of the window.
"""

from __future__ import annotations

import gzip as gzip_module
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping

from exporter.model import EMPTY, Snapshot
from exporter.render.dcgm.page_query import PageQuery
from exporter.render.dcgm.rates import LinkRates, LinkRateTracker, Rates, RateTracker
from exporter.render.dcgm.recent import ClockEventWindow, Recent, XidWindow
from exporter.render.pages import MAX_AGE

IDLE_TTL = 300.0  # seconds after the last request until rates are no longer followed


def hostname() -> str:
    """Return the node's name as DCGM's exporter does: NODE_NAME in a pod that has it, else the hostname."""
    return os.environ.get("NODE_NAME") or socket.gethostname()


class _Tracked:
    """What follows from several snapshots, while somebody looks."""

    def __init__(self) -> None:
        self._rate_tracker, self._link_rate_tracker = RateTracker(), LinkRateTracker()
        self._xid_window, self._clock_event_window = XidWindow(), ClockEventWindow()
        self.rates: Rates = EMPTY
        self.link_rates: LinkRates = EMPTY
        self.recent: Recent = EMPTY
        self.clock_events: Mapping[str, Mapping[str, int]] = EMPTY

    def update(self, snapshot: Snapshot) -> None:
        """Add a snapshot."""
        self.rates = self._rate_tracker.update(snapshot.cards)
        self.link_rates = self._link_rate_tracker.update(snapshot.cards)
        self.recent = self._xid_window.update(snapshot.xids, snapshot.at, snapshot.unix_time)
        self.clock_events = self._clock_event_window.update(snapshot.cards)


class DcgmPageStore:
    """Stores the newest snapshot.  ``publish`` and ``page`` may run in different threads."""

    def __init__(
        self,
        *,
        with_pods: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
        hostname: Callable[[], str] = hostname,
    ) -> None:
        """``with_pods``: whether the labels of pods are added."""
        self._with_pods = with_pods
        self._clock = clock
        self._hostname = hostname
        self._lock = threading.Lock()
        self._newest: tuple[Snapshot, float] | None = None
        self._requested_at = float("-inf")
        self._tracked: _Tracked | None = None
        self._bodies: dict[tuple[PageQuery, bool], bytes] = {}

    def publish(self, snapshot: Snapshot) -> None:
        """Create ``snapshot`` the newest."""
        now = self._clock()
        with self._lock:
            self._newest = (snapshot, now)
            self._bodies = {}
            if self._tracked is not None:
                self._track(now)

    def page(self, query: PageQuery, *, gzip: bool) -> bytes | None:
        """Return the newest exposition for a query; None before the first snapshot and when it is too old."""
        now = self._clock()
        with self._lock:
            if self._newest is None or now - self._newest[1] > MAX_AGE:
                return None
            self._requested_at = now
            if self._tracked is None:
                self._start_tracking()
            body = self._bodies.get((query, gzip))
            return self._render(query, gzip=gzip) if body is None else body

    def _start_tracking(self) -> None:
        self._tracked = _Tracked()
        self._track(self._requested_at)

    def _track(self, now: float) -> None:
        assert self._tracked is not None
        assert self._newest is not None
        if now - self._requested_at <= IDLE_TTL:
            self._tracked.update(self._newest[0])
        else:
            self._tracked = None

    def _render(self, query: PageQuery, *, gzip: bool) -> bytes:
        assert self._newest is not None
        body = self._bodies.get((query, False))
        if body is None:
            from exporter.render.dcgm.page import render  # noqa: PLC0415 - most nodes never need the tables

            tracked = self._tracked or _Tracked()
            text = render(
                self._newest[0],
                query,
                hostname=self._hostname(),
                rates=tracked.rates,
                recent=tracked.recent,
                clock_events=tracked.clock_events,
                link_rates=tracked.link_rates,
                with_pods=self._with_pods(),
            )
            body = self._bodies[query, False] = text.encode()
        if gzip:
            body = self._bodies[query, True] = gzip_module.compress(body, compresslevel=1, mtime=0)
        return body
