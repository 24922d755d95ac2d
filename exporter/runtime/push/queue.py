"""Editions that wait for their receiver, oldest first, bounded in bytes and age; the oldest are dropped whole."""

from __future__ import annotations

from collections import Counter, deque

from msgspec import Struct

from exporter.model.push import DropReason


class Batch(Struct, frozen=True, kw_only=True):
    """One edition as a request's body; ``at``: when it was read, monotonic seconds."""

    body: bytes
    samples: int
    at: float


class PushQueue:
    """The queue of one receiver.  Owned by its thread; ``bytes`` and ``dropped`` may be read by others."""

    def __init__(self, *, max_bytes: float, max_age: float) -> None:
        self._max_bytes, self._max_age = max_bytes, max_age
        self._batches: deque[Batch] = deque()
        self.bytes = 0
        self.dropped: Counter[DropReason] = Counter()  # samples

    def put(self, batch: Batch) -> None:
        """Append a batch; drop the oldest ones that no longer fit beside it."""
        self._batches.append(batch)
        self.bytes += len(batch.body)
        while self.bytes > self._max_bytes:
            self.drop("queue_full")

    def expire(self, now: float) -> None:
        """Drop what is too old."""
        while self.age(now) > self._max_age:
            self.drop("too_old")

    def age(self, now: float) -> float:
        """Return the age of the oldest batch in seconds, 0 if there is none."""
        oldest = self.oldest
        return 0.0 if oldest is None else now - oldest.at

    @property
    def oldest(self) -> Batch | None:
        """The batch that is sent next."""
        try:
            return self._batches[0]
        except IndexError:
            return None

    def pop(self) -> Batch:
        """Remove the oldest batch and return it."""
        batch = self._batches.popleft()
        self.bytes -= len(batch.body)
        return batch

    def drop(self, reason: DropReason) -> None:
        """Remove the oldest batch and count its samples as lost."""
        self.dropped[reason] += self.pop().samples
