"""The metrics endpoint's response in every format, rendered when it is asked for.

Publishing a snapshot costs one assignment.  The first request for a format renders it, once per snapshot; all other
requests are served the same bytes.  A snapshot that is too old is not served: no answer, which every scraper
notices, is better than old values that look current.
"""

from __future__ import annotations

import gzip as gzip_module
import threading
import time
from collections.abc import Callable

from msgspec import Struct, field

from exporter.catalog.spec import SeriesSet
from exporter.model import Snapshot
from exporter.render.exposition import ExpositionRenderer

MAX_AGE = 15.0  # seconds; a snapshot is published every few

PageFormat = tuple[bool, bool]  # (OpenMetrics, gzip)


class _RenderedSnapshot(Struct):
    """One snapshot, when it was published (monotonic seconds), and the formats that were asked for so far."""

    snapshot: Snapshot
    at: float
    bodies: dict[PageFormat, bytes] = field(default_factory=dict)


class PageStore:
    """Holds the newest snapshot and its rendered formats.  ``publish`` and ``page`` may run in different threads."""

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
        """Make ``snapshot`` the newest."""
        self._newest = _RenderedSnapshot(snapshot, self._clock())

    def page(self, *, openmetrics: bool, gzip: bool) -> bytes | None:
        """Return the newest snapshot in this format, None before the first or when it is too old."""
        newest = self._newest
        if newest is None or self._clock() - newest.at > MAX_AGE:
            return None
        body = newest.bodies.get((openmetrics, gzip))
        if body is None:
            with self._lock:
                body = newest.bodies.get((openmetrics, gzip)) or self._render(newest, (openmetrics, gzip))
        return body

    def age(self) -> float | None:
        """Return the seconds since the newest snapshot, None before the first."""
        newest = self._newest
        return None if newest is None else self._clock() - newest.at

    def _render(self, newest: _RenderedSnapshot, wanted: PageFormat) -> bytes:
        openmetrics, gzip = wanted
        plain = newest.bodies.get((openmetrics, False))
        if plain is None:
            page = self._renderers[openmetrics].render(newest.snapshot, self._process_metrics(openmetrics))
            self.dropped = page.dropped
            plain = newest.bodies[openmetrics, False] = page.body
        if gzip:
            # Level 1: higher levels cost several times the CPU for a fifth fewer bytes.
            newest.bodies[wanted] = gzip_module.compress(plain, compresslevel=1, mtime=0)
        return newest.bodies[wanted]
