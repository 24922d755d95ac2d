"""What findings need of a replica's past beyond its windows: recent restarts, and its earlier hit rate."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from msgspec import Struct, field

from exporter.diagnosis import thresholds as limit
from exporter.diagnosis.view import longest_window
from exporter.model import EMPTY, ReplicaState, Snapshot
from exporter.model.median import median

SAMPLE_SECONDS = 60.0
PAST_FROM, PAST_TO = 3600.0, 1800.0  # seconds ago: long enough not to follow a slow decline
MIN_SAMPLES = 10  # of the past


class ReplicaPast(Struct, frozen=True, kw_only=True):
    """What is known of one replica's past."""

    restarts: int = 0  # in the last RESTART_SECONDS
    hit_ratio: float | None = None  # median of the half hour that ended half an hour ago


class _Record(Struct):
    counted: int  # restarts when it was seen last
    restarted_at: deque[float]
    samples: deque[tuple[float, float]] = field(default_factory=deque)  # (at, hit ratio)


class DiagnosisHistory:
    """Follows every replica of successive snapshots.  Bounded by the replicas that there are."""

    def __init__(self) -> None:
        self._records: dict[str, _Record] = {}

    def update(self, snapshot: Snapshot) -> Mapping[str, ReplicaPast]:
        """Return the past of each replica by its name."""
        if not snapshot.replicas:
            self._records = {}
            return EMPTY
        records = {
            replica.name: self._records.get(replica.name) or _Record(replica.restarts, deque(maxlen=16))
            for replica in snapshot.replicas
        }
        self._records = records
        return {replica.name: _past(records[replica.name], replica, snapshot.at) for replica in snapshot.replicas}


def _past(record: _Record, replica: ReplicaState, now: float) -> ReplicaPast:
    if replica.restarts > record.counted:
        record.restarted_at.extend([now] * min(replica.restarts - record.counted, 16))
    record.counted = replica.restarts
    figures = longest_window(replica)
    if figures is not None and figures.hit_ratio is not None and _is_due(record, now):
        record.samples.append((now, figures.hit_ratio))
    while record.samples and now - record.samples[0][0] > PAST_FROM:
        record.samples.popleft()
    past = [ratio for at, ratio in record.samples if now - at >= PAST_TO]
    return ReplicaPast(
        restarts=sum(now - at <= limit.RESTART_SECONDS for at in record.restarted_at),
        hit_ratio=median(past) if len(past) >= MIN_SAMPLES else None,
    )


def _is_due(record: _Record, now: float) -> bool:
    return not record.samples or now - record.samples[-1][0] >= SAMPLE_SECONDS
