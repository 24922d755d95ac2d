"""How many series of a page may be new: label values that change on every page cost the daemon and its Prometheus.

A page whose series are known is read at known offsets; one whose series are new is parsed, compiled and remembered.
Engines bring new series when they start, serve another model, or see a finish reason for the first time.
"""

from __future__ import annotations

from collections.abc import Sequence

from exporter.errors import PageError

NEW_PER_PAGE = 10  # series, for ever
BURST = 1_000  # series beside twice those of the page: all are new when an engine serves another model
MAX_PAGES = 64  # that must be alike; doubled from 1 at each refusal, or churn on every other page would pass


class SeriesChurn:
    """Counts the new series of a replica's pages, and refuses the pages while those are too many.

    It outlives the engine's reader: to be another engine on every page is churn as well.
    """

    def __init__(self) -> None:
        self._counted = 0
        self._is_first = True
        self._fingerprint: int | None = None  # of the series of the newest page, while pages are refused
        self._alike, self._needed = 0, 1  # pages in a row

    def admit(self, lines: Sequence[bytes]) -> None:
        """Raise PageError ``series_churn`` while pages are refused; they are read again once their series stay."""
        if self._fingerprint is None:
            return
        fingerprint = hash(tuple([_series(line) for line in lines]))
        self._alike = self._alike + 1 if fingerprint == self._fingerprint else 0
        self._fingerprint = fingerprint
        if self._alike < self._needed:
            raise _refusal()
        self._fingerprint, self._is_first = None, True
        self._needed = min(2 * self._needed, MAX_PAGES)

    def check(self, new: int, lines: Sequence[bytes], total: int) -> None:
        """Count the ``new`` series of a page that has ``total``; raise PageError ``series_churn`` for too many.

        The first page, also after a refusal, may have any number.
        """
        if self._is_first:
            self._is_first = False
            return
        limit = 2 * total + BURST
        counted = max(0, self._counted + new - NEW_PER_PAGE)
        self._counted = min(counted, limit)
        if counted > limit and new > NEW_PER_PAGE:
            self._fingerprint, self._alike = hash(tuple([_series(line) for line in lines])), 0
            raise _refusal()


def _series(line: bytes) -> bytes:
    return line.partition(b"} ")[0] if b"{" in line else line.partition(b" ")[0]


def _refusal() -> PageError:
    message = "too many of the page's series are new; label values must not change on every page"
    return PageError("series_churn", message)
