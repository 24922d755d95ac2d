"""The newest snapshot under DCGM's names: rendered when somebody asks, once for each snapshot and form.

DCGM's scrapers come every 15 or 30 seconds, so a page that were rendered at each publication would mostly be thrown
away.  Where nobody asks nothing is loaded, kept or computed: the very first question waits some 10 ms for the tables.
While somebody asks, each publication notes the byte counters that the rates need, and the XIDs of the window.
"""

from __future__ import annotations

import gzip as gzip_module
import os
import socket
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from exporter.model import EMPTY, Snapshot
from exporter.render.pages import MAX_AGE

if TYPE_CHECKING:
    from exporter.render.dcgm.query import PageQuery
    from exporter.render.dcgm.rates import Rates, RateTracker
    from exporter.render.dcgm.recent import Recent, XidWindow


IDLE_TTL = 300.0  # seconds after the last request until rates are no longer followed


def hostname() -> str:
    """Give the node's name as DCGM's exporter does: NODE_NAME where a pod is told it, else the host's own."""
    return os.environ.get("NODE_NAME") or socket.gethostname()


class DcgmPages:
    """Holds the newest snapshot.  ``publish`` is the publisher's, ``page`` is anybody's."""

    def __init__(
        self, *, clock: Callable[[], float] = time.monotonic, hostname: Callable[[], str] = hostname
    ) -> None:
        self._clock = clock
        self._hostname = hostname
        self._lock = threading.Lock()
        self._newest: tuple[Snapshot, float] | None = None
        self._asked_at = float("-inf")
        self._book: RateTracker | None = None
        self._rates: Rates = EMPTY
        self._window: XidWindow | None = None
        self._recent: Recent = EMPTY
        self._bodies: dict[tuple[PageQuery, bool], bytes] = {}

    def publish(self, snapshot: Snapshot) -> None:
        """Make a snapshot the newest one."""
        now = self._clock()
        with self._lock:
            self._newest = (snapshot, now)
            self._bodies = {}
            if self._book is not None:
                self._follow(now)

    def page(self, wanted: PageQuery, *, gzip: bool) -> bytes | None:
        """Give the newest page in this form; None when there is none yet or the newest is too old to be shown."""
        now = self._clock()
        with self._lock:
            if self._newest is None or now - self._newest[1] > MAX_AGE:
                return None
            self._asked_at = now
            if self._book is None:
                self._begin()
            body = self._bodies.get((wanted, gzip))
            return self._render(wanted, gzip=gzip) if body is None else body

    def _begin(self) -> None:
        from exporter.render.dcgm.rates import RateTracker  # noqa: PLC0415 - most nodes have no dashboard of DCGM
        from exporter.render.dcgm.recent import XidWindow  # noqa: PLC0415

        self._book, self._window = RateTracker(), XidWindow()
        self._follow(self._asked_at)

    def _follow(self, now: float) -> None:
        assert self._book is not None
        assert self._window is not None
        assert self._newest is not None
        if now - self._asked_at <= IDLE_TTL:
            self._rates = self._book.take(self._newest[0].cards)
            newest = self._newest[0]
            self._recent = self._window.take(newest.xids, newest.at, newest.unix_time)
        else:
            self._book, self._rates = None, EMPTY
            self._window, self._recent = None, EMPTY

    def _render(self, wanted: PageQuery, *, gzip: bool) -> bytes:
        assert self._newest is not None
        body = self._bodies.get((wanted, False))
        if body is None:
            from exporter.render.dcgm.page import render  # noqa: PLC0415

            text = render(self._newest[0], wanted, hostname=self._hostname(), rates=self._rates, recent=self._recent)
            body = self._bodies[wanted, False] = text.encode()
        if gzip:
            body = self._bodies[wanted, True] = gzip_module.compress(body, compresslevel=1, mtime=0)
        return body
