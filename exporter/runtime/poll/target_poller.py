"""One polled page: fetched, understood, and its outcome kept as one immutable state that others read.

What a page means, and what is left to show without one, is its handler's: a replica's or a gateway's.  The poller
runs in a thread of its own and nothing else writes what is kept here; ``state`` and ``parse_warnings`` are replaced
whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Generic, Protocol, TypeVar

from exporter.errors import SourceError
from exporter.model import EMPTY, SourceStatus
from exporter.runtime.poll.loop import Fetched, Fetcher, PollLoop, as_hung


class PollConfig(Protocol):
    """What is asked of a poller; ``interval`` in seconds."""

    @property
    def interval(self) -> float: ...  # noqa: D102


class Reading(Protocol):
    """What stood on a page; ``parse_warnings``: reason → how much of it could not be used."""

    @property
    def parse_warnings(self) -> Mapping[str, int]: ...  # noqa: D102


class State(Protocol):
    """What is shown; ``reading`` None: no fresh page."""

    @property
    def status(self) -> SourceStatus: ...  # noqa: D102

    @property
    def reading(self) -> object | None: ...  # noqa: D102


ConfigT = TypeVar("ConfigT", bound=PollConfig)
ReadingT = TypeVar("ReadingT", bound=Reading)
StateT = TypeVar("StateT", bound=State)


class PageHandler(Protocol[ConfigT, ReadingT, StateT]):
    """Whom the pages are about.  Only the thread that polls calls it, but for ``withdrawn``, which any thread may."""

    @property
    def config(self) -> ConfigT:
        """What it was made for, or followed last."""

    def reconfigure(self, config: ConfigT, fetcher: Fetcher) -> None:
        """Compute what another config for the same page asks, from the next page on, without forgetting the past."""

    def parse(self, body: bytes, at: float) -> ReadingT:
        """Read a page that came at ``at`` (monotonic seconds).  Raises SourceError and nothing else."""

    def apply(self, before: StateT, reading: ReadingT, page: Fetched) -> StateT:
        """Give the state that follows ``before``; notes the success in the health that it shows."""

    def explain(self, error: SourceError) -> SourceError:
        """Return the error with what is known about its cause; the reason stays."""

    def invalidated(self, state: StateT, status: SourceStatus) -> StateT:
        """Give the state without all that only a fresh page may show.  Pure."""


class TargetPoller(Generic[ConfigT, ReadingT, StateT]):
    """Polls one page until stopped."""

    def __init__(
        self,
        handler: PageHandler[ConfigT, ReadingT, StateT],
        state: StateT,
        fetcher: Fetcher,
        poll_loop: PollLoop,
        *,
        on_update: Callable[[], None],
        clock: Callable[[], float],
    ) -> None:
        """``state``: before the first poll.  ``on_update`` is called after each poll, in its thread."""
        self.handler = handler
        self.state = state
        self.parse_warnings: Mapping[str, int] = EMPTY
        self.poll_loop = poll_loop
        self._fetcher = fetcher
        self._requested = self._applied = (handler.config, fetcher)
        self._on_update = on_update
        self._clock = clock

    @property
    def config(self) -> ConfigT:
        """What is asked of it, from the next poll on at the latest."""
        return self._requested[0]

    def reconfigure(self, config: ConfigT, fetcher: Fetcher | None, first: float) -> None:
        """Do as another config asks from ``first`` (monotonic) on; what was read stands meanwhile, and is built on.

        ``fetcher``: another one for the same page, None: as before.  Callable by one thread at a time, whatever the
        poller does; an exchange under way ends as it began.
        """
        self._requested = (config, fetcher or self._requested[1])
        self.poll_loop.reschedule(config.interval, first)

    def _reconfigure(self) -> None:
        """Heed what was asked since the last poll."""
        asked = self._requested
        if asked is self._applied:
            return
        self._applied = asked
        config, fetcher = asked
        self.handler.reconfigure(config, fetcher)
        if fetcher is not self._fetcher:
            self._fetcher.close()
            self._fetcher = fetcher

    def poll(self) -> None:
        """Fetch the page once and replace ``state``; never raises for what the other side does."""
        self._reconfigure()
        started = self.poll_loop.begin()
        try:
            page = self._fetcher.fetch()
            reading = self.handler.parse(page.body, self._clock())
        except SourceError as error:
            self._invalidate(self.poll_loop.failed(self.handler.explain(error), started))
        else:
            if reading.parse_warnings:
                self.parse_warnings = dict(Counter(self.parse_warnings) + Counter(reading.parse_warnings))
            self.state = self.handler.apply(self.state, reading, page)
        finally:
            self.poll_loop.end()
        self._on_update()

    def view(self, now: float) -> StateT:
        """Give the state as it may be shown at ``now``: withdrawn when this thread itself has not come back.

        An exchange keeps its own deadline; should that ever fail, stale figures must not stay on the page.
        """
        state = self.state
        if state.reading is None or not self.poll_loop.is_overdue(now):
            return state
        return self.handler.invalidated(state, as_hung(state.status))

    def _invalidate(self, status: SourceStatus) -> None:
        self.state = self.handler.invalidated(self.state, status)

    def _crashed(self, status: SourceStatus) -> None:
        self._invalidate(status)
        self._on_update()

    @property
    def loop_restarts(self) -> int:
        """Unexpected errors that the loop survived."""
        return self.poll_loop.loop_restarts

    def start(self, first: float) -> None:
        """Poll from ``first`` (monotonic) on, in a thread of its own."""
        # The fetcher may be another one by the time that it is closed.
        self.poll_loop.start(first, self.poll, lambda: self._fetcher.close(), crashed=self._crashed)  # noqa: PLW0108

    def stop(self) -> None:
        """Ask the thread to end; it does so within one exchange, and closes its connection."""
        self.poll_loop.stop()

    def join(self, timeout: float) -> None:
        """Wait for the thread, not for ever."""
        self.poll_loop.join(timeout)
