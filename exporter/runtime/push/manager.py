"""The receivers of the settings: started, replaced and ended as a configuration names them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from exporter.config.push import PushSettings
from exporter.http.client.post import PostClient
from exporter.model import Snapshot, SourceStatus
from exporter.model.push import PushState
from exporter.runtime.poll.targets import target as http_target
from exporter.runtime.push.target import LAST_WORDS, PushFormat, PushTarget

MakeFormat = Callable[[PushSettings, str], PushFormat]


class _Wanted(Struct, frozen=True):
    settings: PushSettings
    series: str


class PushManager:
    """Starts and stops the targets; called by one thread at a time."""

    def __init__(
        self,
        make_format: MakeFormat,
        *,
        identity: Mapping[str, str],
        snapshot: Callable[[], Snapshot | None],
        clock: Callable[[], float],
        unix_now: Callable[[], float],
    ) -> None:
        """``make_format`` returns the format for a receiver and a set of series ("common" or "full").

        ``identity``: labels of every series that a receiver's settings do not set: job and instance.
        """
        self._identity = identity
        self._make_format, self._snapshot = make_format, snapshot
        self._clock, self._unix_now = clock, unix_now
        self._running: list[tuple[_Wanted, PushTarget]] = []

    def push(self, wanted: Sequence[PushSettings], series: str) -> None:
        """Push to these receivers from now on; those that are as before go on, the others end their series."""
        asked = [_Wanted(settings, series) for settings in wanted]
        kept = [(one, target) for one, target in self._running if one in asked]
        ended = [target for one, target in self._running if one not in asked]
        self._running = kept
        _end(ended)  # before others begin: they may push the same series
        before = [one for one, _ in kept]
        self._running = [*kept, *((one, self._started(one)) for one in asked if one not in before)]

    @property
    def _targets(self) -> list[PushTarget]:
        return [target for _, target in self._running]

    def _started(self, wanted: _Wanted) -> PushTarget:
        settings = replace(wanted.settings, labels={**self._identity, **wanted.settings.labels})
        target = PushTarget(
            settings,
            self._make_format(settings, wanted.series),
            PostClient(
                http_target(settings, settings.timeout, accept="*/*"),
                headers=settings.headers,
                header_files=settings.header_files,
            ),
            snapshot=self._snapshot,
            clock=self._clock,
            unix_now=self._unix_now,
        )
        target.start()
        return target

    def states(self) -> tuple[PushState, ...]:
        """Return what is known of each receiver."""
        return tuple(target.state() for target in self._targets)

    def statuses(self) -> list[SourceStatus]:
        """Return the health of each receiver that something was sent to; the others keep nobody waiting."""
        return [status for target in self._targets if (status := target.status()).reason != "starting"]

    @property
    def loop_restarts(self) -> int:
        """Unexpected errors that the threads survived."""
        return sum(target.loop_restarts for target in self._targets)

    def stop(self) -> None:
        """Have every receiver's series end; ``join`` waits for that, within a second."""
        for target in self._targets:
            target.stop()

    def join(self) -> None:
        """Wait for the end of all."""
        _end(self._targets)


def _end(targets: Sequence[PushTarget]) -> None:
    for target in targets:
        target.stop()
    until = time.monotonic() + LAST_WORDS
    for target in targets:
        target.join(max(0.0, until - time.monotonic()))
