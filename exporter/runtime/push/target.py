"""One receiver: a thread that reads an edition each interval, queues it, and sends the queue in its order.

Whatever the receiver does, an edition is read in time (an exchange takes no longer than the interval), and what
cannot be sent waits in a bounded queue.  No poll and no scrape waits for any of it.
"""

from __future__ import annotations

import logging
import random
import threading
import zlib
from collections.abc import Callable, Mapping
from typing import Protocol

from exporter.config.push import PushSettings
from exporter.errors import EndpointError
from exporter.http.client.client import status_error
from exporter.logs import log_exception
from exporter.model import Snapshot, SourceStatus
from exporter.model.push import PushAnswer, PushState, PushVerdict
from exporter.runtime.poll.loop import PollLoop
from exporter.runtime.poll.ticker import Ticker
from exporter.runtime.push.queue import Batch, PushQueue
from exporter.threads import Thread

logger = logging.getLogger(__name__)

STALE_AFTER = 15.0  # seconds; an older snapshot is not pushed, as the endpoint does not serve it
_FIRST_DELAY, _MAX_DELAY = 1.0, 30.0  # seconds between two attempts, before the jitter
_MAX_RETRY_AFTER = 300.0  # seconds that a receiver may ask for
LAST_WORDS = 0.8  # seconds for the end of a series at a clean stop


class Poster(Protocol):
    """One bounded exchange; raises EndpointError and nothing else."""

    def post(self, body: bytes, headers: Mapping[str, str]) -> PushAnswer: ...  # noqa: D102

    def close(self) -> None: ...  # noqa: D102


class PushFormat(Protocol):
    """How a protocol writes an edition and reads an answer.  Used by one thread."""

    @property
    def headers(self) -> Mapping[str, str]: ...  # noqa: D102

    def read(self, snapshot: Snapshot | None, at: int) -> tuple[bytes, int]:
        """Return the body of the next edition and its samples; of None, that every series has ended."""

    def wire(self, body: bytes) -> bytes:
        """Return a body as the receiver takes it now."""

    def judge(self, answer: PushAnswer, samples: int, /) -> tuple[PushVerdict, int]:
        """Return what an answer to so many samples means, and how many of an accepted body were still refused."""


class PushTarget:
    """The thread and the state of one receiver."""

    def __init__(
        self,
        settings: PushSettings,
        form: PushFormat,
        poster: Poster,
        *,
        snapshot: Callable[[], Snapshot | None],
        clock: Callable[[], float],
        unix_now: Callable[[], float],
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """``jitter`` returns numbers from 0 to 1."""
        self.name = settings.name
        self._form, self._poster, self._snapshot = form, poster, snapshot
        self._clock, self._unix_now, self._jitter = clock, unix_now, jitter
        self._health = PollLoop(
            f"push:{settings.name}", settings.interval, logger=logger, clock=clock, unix_now=unix_now
        )
        self._queue = PushQueue(max_bytes=settings.queue.max_bytes, max_age=settings.queue.max_age)
        # Nodes that start together do not push together.
        offset = zlib.crc32(settings.labels["instance"].encode()) % 1000 / 1000 * settings.interval
        self._ticker = Ticker(settings.interval, clock() + offset)
        self._attempts, self._retry_at = 0, clock()
        self._samples = self._sent_bytes = 0
        self._failing_since: float | None = None
        self._wake = threading.Event()
        self._stopping = False
        self._thread: Thread | None = None

    @property
    def loop_restarts(self) -> int:
        """Unexpected errors that the thread survived."""
        return self._health.loop_restarts

    def status(self) -> SourceStatus:
        """Return the health of the receiver."""
        return self._health.status_at(self._clock())

    def state(self) -> PushState:
        """Return what is known of the receiver."""
        return PushState(
            target=self.name,
            samples=self._samples,
            sent_bytes=self._sent_bytes,
            dropped=dict(self._queue.dropped),
            queue_bytes=self._queue.bytes,
            queue_age=self._queue.age(self._clock()),
            failing_since=self._failing_since,
        )

    # ------------------------------------------------------------------ the thread

    def start(self) -> None:
        """Push from now on."""
        self._thread = Thread(self._run, name=f"push:{self.name}")
        self._thread.start()

    def stop(self) -> None:
        """Have the thread end its series and itself; ``join`` waits for that."""
        self._stopping = True
        self._wake.set()

    def join(self, timeout: float) -> None:
        """Wait for the thread; a receiver that has not answered by then is given up."""
        if self._thread is not None:
            self._thread.join(timeout)
            self._poster.close()

    def _run(self) -> None:
        while not self._stopping:
            try:
                pause = self.turn()
            except Exception:
                self._health.loop_restarts += 1
                msg = "a push failed unexpectedly; the loop goes on"
                log_exception(logger, "internal_error", msg, source=self._health.source)
                pause = _MAX_DELAY
            self._wake.wait(pause)
            self._wake.clear()
        self.end()
        self._poster.close()

    def turn(self) -> float:
        """Read what is due, send what waits, and return the seconds until there is more to do."""
        now = self._clock()
        if self._ticker.wait(now) == 0:
            self._ticker.advance(now)
            self._read(now)
        self._queue.expire(now)
        oldest = self._queue.oldest
        if oldest is not None and now >= self._retry_at:
            self._send(oldest)
        now = self._clock()
        due = self._ticker.wait(now)
        return due if self._queue.oldest is None else min(due, max(0.0, self._retry_at - now))

    def end(self) -> None:
        """Send what waits and the end of every series, until the receiver fails once or time is up."""
        started, failures = self._clock(), self._attempts
        self._enqueue(None, started)
        while (oldest := self._queue.oldest) is not None and self._clock() - started < LAST_WORDS:
            self._send(oldest)
            if self._attempts > failures:
                return

    def _read(self, now: float) -> None:
        snapshot = self._snapshot()
        self._enqueue(snapshot if snapshot is not None and now - snapshot.at <= STALE_AFTER else None, now)

    def _enqueue(self, snapshot: Snapshot | None, now: float) -> None:
        body, samples = self._form.read(snapshot, round(self._unix_now() * 1000))
        if samples:
            self._queue.put(Batch(body=body, samples=samples, at=now))

    # ------------------------------------------------------------------ one exchange

    def _send(self, batch: Batch) -> None:
        started = self._health.begin()
        try:
            body = self._form.wire(batch.body)
            answer = self._poster.post(body, self._form.headers)
            verdict, refused = self._form.judge(answer, batch.samples)
        except EndpointError as error:
            self._failed(error, started, _backoff(self._attempts, self._jitter()))
            return
        except Exception:
            self._queue.drop("internal")
            raise
        finally:
            self._health.end()
        self._sent_bytes += len(body)
        if verdict is PushVerdict.ACCEPTED:
            self._accepted(refused, started)
        elif verdict is PushVerdict.REFUSED:
            self._queue.drop("refused")
            self._failed(status_error(answer.status), started, 0.0)
        elif verdict is PushVerdict.RETRY:
            asked = retry_after(answer.headers.get("retry-after", ""), self._unix_now())
            self._failed(status_error(answer.status), started, max(asked, _backoff(self._attempts, self._jitter())))

    def _accepted(self, refused: int, started: float) -> None:
        batch = self._queue.pop()
        self._samples += batch.samples - refused
        if refused:
            self._queue.dropped["refused"] += refused
        self._attempts, self._retry_at, self._failing_since = 0, 0.0, None
        if not self._stopping:  # its successor may have the same name in the log
            self._health.succeeded(self._clock() - started)

    def _failed(self, error: EndpointError, started: float, delay: float) -> None:
        self._attempts += 1
        self._retry_at = self._clock() + delay
        if self._failing_since is None:
            self._failing_since = self._unix_now()
        if not self._stopping:
            self._health.failed(error, started)


def _backoff(attempts: int, jitter: float) -> float:
    """Return the seconds until the next attempt after so many failures in a row."""
    return min(_MAX_DELAY, _FIRST_DELAY * 2.0 ** min(attempts, 10)) * (0.5 + jitter / 2)


def retry_after(value: str, unix_now: float) -> float:
    """Return the seconds that a Retry-After field asks for, at most five minutes; 0 where it says nothing."""
    if value.isascii() and value.isdigit():
        return min(_MAX_RETRY_AFTER, float(value[:9]))
    from email.utils import parsedate_to_datetime  # noqa: PLC0415 - 15 ms, and a date is rare

    try:
        seconds = parsedate_to_datetime(value).timestamp() - unix_now
    except (TypeError, ValueError, OverflowError):
        return 0.0
    return min(_MAX_RETRY_AFTER, max(0.0, seconds))
