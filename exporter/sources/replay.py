"""Recorded pages played back in place of an engine; for tests and to reproduce bug reports."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from exporter.errors import EndpointError


class ReplayedPage(Struct, frozen=True, kw_only=True):
    """A recorded page; it took no time."""

    body: bytes
    duration: float = 0.0
    certificate_expires: float | None = None


class Replay:
    """Returns one page after the other, and then always the last one.  None stands for a poll that failed."""

    def __init__(self, pages: Iterable[bytes | None]) -> None:
        self._pages = list(pages)
        self._next = 0

    @classmethod
    def of_files(cls, paths: Iterable[str]) -> Replay:
        """Play back files in the order given."""
        pages = []
        for path in paths:
            with open(path, "rb") as file:
                pages.append(file.read())
        return cls(pages)

    def fetch(self, path: str | None = None) -> ReplayedPage:
        """Return the next page; raise EndpointError for a recorded failure and for any other path."""
        if path is not None:
            raise EndpointError("http_404", "a recording has the metrics page only")
        page = self._pages[min(self._next, len(self._pages) - 1)]
        self._next += 1
        if page is None:
            raise EndpointError("refused", "recorded as a failure")
        return ReplayedPage(body=page)

    def close(self) -> None:
        """Nothing is open."""
