"""One polled target: its page is fetched and parsed, and the outcome is kept as one immutable state.

What a page means, and what remains to be shown without one, is up to the handler: a replica's or a gateway's.  The
poller runs in a thread of its own, the only one that writes; ``state`` and ``parse_warnings`` are replaced whole.
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
    """The content of a page; ``parse_warnings``: reason → how much of it could not be used."""

    @property
    def parse_warnings(self) -> Mapping[str, int]: ...  # noqa: D102


class TargetState(Protocol):
    """What is published of a target; ``reading`` is None without a fresh page."""

    @property
    def status(self) -> SourceStatus: ...  # noqa: D102

    @property
    def reading(self) -> object | None: ...  # noqa: D102


ConfigT = TypeVar("ConfigT", bound=PollConfig)
ReadingT = TypeVar("ReadingT", bound=Reading)
StateT = TypeVar("StateT", bound=TargetState)


class PageHandler(Protocol[ConfigT, ReadingT, StateT]):
    """What a target's pages mean.  For the thread that polls, but for ``invalidated``, which any thread may call."""

    @property
    def config(self) -> ConfigT:
        """The config that it follows."""

    def reconfigure(self, config: ConfigT, fetcher: Fetcher) -> None:
        """Follow another config for the same target from the next page on, and keep the history."""

    def parse(self, body: bytes, at: float) -> ReadingT:
        """Parse a page that came at ``at`` (monotonic seconds).  Raises SourceError and nothing else."""

    def apply(self, before: StateT, reading: ReadingT, page: Fetched) -> StateT:
        """Return the state that follows ``before``, with the success recorded in its health."""

    def explain(self, error: SourceError) -> SourceError:
        """Return the error with what is known about its cause; the reason stays."""

    def invalidated(self, state: StateT, status: SourceStatus) -> StateT:
        """Return the state without what only a fresh page may show.  Pure."""


class TargetPoller(Generic[ConfigT, ReadingT, StateT]):
    """Polls one target until stopped."""

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
        """The config that it follows, from the next poll on at the latest."""
        return self._requested[0]

    def reconfigure(self, config: ConfigT, fetcher: Fetcher | None, first: float) -> None:
        """Follow another config from ``first`` (monotonic) on; what was read stands meanwhile, and is built on.

        ``fetcher``: another one for the same target, None: as before.  Callable by one thread at a time, whatever the
        poller does; an exchange under way ends as it began.
        """
        self._requested = (config, fetcher or self._requested[1])
        self.poll_loop.reschedule(config.interval, first)

    def _reconfigure(self) -> None:
        """Apply a config that was requested since the last poll."""
        requested = self._requested
        if requested is self._applied:
            return
        self._applied = requested
        config, fetcher = requested
        self.handler.reconfigure(config, fetcher)
        if fetcher is not self._fetcher:
            self._fetcher.close()
            self._fetcher = fetcher

    def poll(self) -> None:
        """Fetch the page once and replace ``state``; raises nothing for what the server does."""
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
        """Return the state as it may be shown at ``now``: invalidated when the exchange under way does not return.

        An exchange keeps its own deadline; should that ever fail, no stale figure is exposed.
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
        """Signal the thread to end; it does so within one exchange, and closes its connection."""
        self.poll_loop.stop()

    def join(self, timeout: float) -> None:
        """Wait for the thread, not for ever."""
        self.poll_loop.join(timeout)
