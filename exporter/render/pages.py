"""The metrics endpoint's response in every format, rendered once for each snapshot that somebody scrapes.

A format that is not requested costs nothing.  Scrapers come at regular times: where the next request for a format
is expected before the next snapshot, the format is rendered when the snapshot is published, so that the scrape waits
for nothing; any other request renders it, and all later ones are served the same bytes.  A snapshot that is too old
is not served: no answer, which every scraper notices, is better than old values that look current.
"""

from __future__ import annotations

import gzip as gzip_module
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable
from typing import NamedTuple

from msgspec import Struct, field

from exporter.catalog.spec import SeriesSet
from exporter.model import Snapshot
from exporter.render.exposition import ExpositionRenderer

MAX_AGE = 15.0  # seconds; a snapshot is published every few
_LATE = 0.5  # seconds that a scraper may come after its time


class PageFormat(NamedTuple):
    """A format of the page."""

    openmetrics: bool
    gzip: bool


class _RenderedSnapshot(Struct):
    """One snapshot, when it was published (monotonic seconds), and the formats that were asked for so far."""

    snapshot: Snapshot
    at: float
    bodies: dict[PageFormat, bytes] = field(default_factory=dict)


class PageStore:
    """Stores the newest snapshot and its rendered formats.  ``publish`` and ``page`` may run in different threads."""

    def __init__(
        self,
        *,
        series: SeriesSet = SeriesSet.COMMON,
        process_metrics: Callable[[bool], str] = lambda _: "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``process_metrics`` returns families about the daemon's own process, as OpenMetrics when passed True."""
        self._clock = clock
        self._process_metrics = process_metrics
        self._lock = threading.Lock()  # rendering; never needed to publish
        self._renderers = self._make(series)
        self._newest: _RenderedSnapshot | None = None
        self._asked: dict[PageFormat, deque[float]] = defaultdict(lambda: deque(maxlen=4))  # the newest last
        self.dropped = 0

    @staticmethod
    def _make(series: SeriesSet) -> dict[bool, ExpositionRenderer]:
        return {
            openmetrics: ExpositionRenderer(openmetrics=openmetrics, series=series) for openmetrics in (False, True)
        }

    def use(self, series: SeriesSet) -> None:
        """Change the set of series from the next snapshot on."""
        renderers = self._make(series)
        with self._lock:
            self._renderers = renderers

    def publish(self, snapshot: Snapshot) -> None:
        """Publish ``snapshot``, rendered in the formats that are about to be asked for."""
        now, before = self._clock(), self._newest
        newest = _RenderedSnapshot(snapshot, now)
        lifetime = now - before.at if before is not None else 0.0
        wanted = [form for form, asked in list(self._asked.items()) if _is_due(asked, now, lifetime)]
        if wanted:
            with self._lock:
                for form in wanted:
                    self._render(newest, form)
        self._newest = newest

    def page(self, *, openmetrics: bool, gzip: bool) -> bytes | None:
        """Return the newest snapshot in this format, None before the first or when it is too old."""
        newest, now = self._newest, self._clock()
        if newest is None or now - newest.at > MAX_AGE:
            return None
        wanted = PageFormat(openmetrics, gzip)
        self._asked[wanted].append(now)
        body = newest.bodies.get(wanted)
        if body is None:
            with self._lock:
                body = newest.bodies.get(wanted) or self._render(newest, wanted)
        return body

    def age(self) -> float | None:
        """Return the seconds since the newest snapshot, None before the first."""
        newest = self._newest
        return None if newest is None else self._clock() - newest.at

    def _render(self, newest: _RenderedSnapshot, wanted: PageFormat) -> bytes:
        plain_format = PageFormat(wanted.openmetrics, gzip=False)
        plain = newest.bodies.get(plain_format)
        if plain is None:
            process_metrics = self._process_metrics(wanted.openmetrics)
            page = self._renderers[wanted.openmetrics].render(newest.snapshot, process_metrics)
            self.dropped = page.dropped
            plain = newest.bodies[plain_format] = page.body
        if wanted.gzip:
            # Level 1: higher levels cost several times the CPU for a fifth fewer bytes.
            newest.bodies[wanted] = gzip_module.compress(plain, compresslevel=1, mtime=0)
        return newest.bodies[wanted]


def _is_due(asked: deque[float], now: float, lifetime: float) -> bool:
    """Return whether a request is expected before the next snapshot, from the times of the last four.

    With two scrapers of one period the last request but one and the one two before it are the same scraper's; with
    one scraper they are two periods apart, which leads to the same time.
    """
    if len(asked) < 4:
        return False
    expected = 2 * asked[2] - asked[0]
    return now - _LATE <= expected <= now + lifetime
