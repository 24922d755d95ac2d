"""The newest page in every form that somebody asks for, ready as bytes.

A form (text or OpenMetrics, plain or gzip) is rendered when a snapshot is published if it was asked for during the
last minutes; the first to ask for another form waits for it once.  A page that is too old is not shown at all:
better no answer, which every scraper notices, than old figures as if they were new.
"""

from __future__ import annotations

import gzip as gzip_module
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from exporter.catalog.spec import Series
from exporter.model import Snapshot
from exporter.render.collector import Collector

WANTED_FOR = 300.0  # seconds after the last request for a form
TOO_OLD = 15.0  # seconds; the publisher beats at least every few

Form = tuple[bool, bool]  # (OpenMetrics, gzip)


@dataclass(slots=True)
class _Edition:
    """One snapshot's renderings."""

    snapshot: Snapshot
    at: float
    extra: dict[bool, str]
    bodies: dict[Form, bytes] = field(default_factory=dict)


class PageStore:
    """Holds the newest edition.  ``publish`` is the publisher's, ``page`` is anybody's."""

    def __init__(self, *, series: Series = Series.COMMON, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._collectors = self._make(series)
        self._wanted: dict[Form, float] = {}
        self._edition: _Edition | None = None
        self.dropped = 0

    @staticmethod
    def _make(series: Series) -> dict[bool, Collector]:
        return {openmetrics: Collector(openmetrics=openmetrics, series=series) for openmetrics in (False, True)}

    def use(self, series: Series) -> None:
        """Change the set of series; the next edition shows it."""
        with self._lock:
            self._collectors = self._make(series)

    def publish(self, snapshot: Snapshot, extra: Callable[[bool], str] = lambda _: "") -> None:
        """Render the forms in demand and make them the newest edition.

        ``extra``: text of families from elsewhere, in OpenMetrics format when called with True.
        """
        now = self._clock()
        with self._lock:
            edition = _Edition(snapshot, now, {form: extra(form) for form in (False, True)})
            for form, asked in list(self._wanted.items()):
                if now - asked <= WANTED_FOR:
                    self._render(edition, form)
                else:
                    del self._wanted[form]
            self._edition = edition

    def page(self, *, openmetrics: bool, gzip: bool) -> bytes | None:
        """Give the newest page in this form; None when there is none yet or the newest is too old."""
        edition, now = self._edition, self._clock()
        if edition is None or now - edition.at > TOO_OLD:
            return None
        form = (openmetrics, gzip)
        self._wanted[form] = now
        body = edition.bodies.get(form)
        if body is None:
            with self._lock:
                body = edition.bodies.get(form) or self._render(edition, form)
        return body

    def age(self) -> float | None:
        """Seconds since the newest edition, None before the first."""
        return None if self._edition is None else self._clock() - self._edition.at

    def _render(self, edition: _Edition, form: Form) -> bytes:
        openmetrics, gzip = form
        plain = edition.bodies.get((openmetrics, False))
        if plain is None:
            page = self._collectors[openmetrics].render(edition.snapshot, edition.extra[openmetrics])
            self.dropped = page.dropped
            plain = edition.bodies[openmetrics, False] = page.body
        if gzip:
            # Level 1: higher levels cost several times the CPU for a fifth fewer bytes.
            edition.bodies[form] = gzip_module.compress(plain, compresslevel=1, mtime=0)
        return edition.bodies[form]
