"""Headroom of a KV cache: tokens used and free, sequences that still fit, seconds until it is full.

Computed only from what the engine reports; the rest is absent:

- Used tokens are the engine's usage ratio times its capacity, free tokens the rest.  Engines count blocks held by
  live requests, so cached blocks that can be evicted are free, and a half-full block counts as used.
- The recent mean length of a sequence is prompt plus answer tokens over finished requests, of the longest window in
  which enough requests finished.  Tokens of aborted requests count although these requests mostly do not, and a
  cached prefix needs no new blocks, so the number that really fits tends to be higher.  The engine's limit on
  sequences in a batch is not known here and may be reached first.
- Seconds until full extrapolate the least-squares line through the usage of the shortest window.  From then on
  requests queue.  A cache that grew by less than a hundredth of itself in the window is not called growing: that
  much is noise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import floor, fsum
from operator import mul

from msgspec import Struct

from exporter.derive.delta import FINISHED, ReplicaTotals
from exporter.model import EngineReading, KvCacheHeadroom, KvTokens, Quantity, WindowFigures
from exporter.model.outcome import RequestOutcome

MIN_FINISHED = 10  # requests; a mean of fewer means little
MIN_SAMPLES = 5
MIN_GROWTH = 0.01  # of the cache, over the window
_REJECTED = RequestOutcome.REJECTED.value  # the outcome of requests that never held a token


class KvCacheUsage(Struct, frozen=True, kw_only=True):
    """The usage ratio of each rank's KV cache at one instant."""

    at: float
    ranks: Mapping[str, float]


def kv_cache_usage(reading: EngineReading) -> KvCacheUsage:
    """Return the usage that a reading reports."""
    name = Quantity.KV_CACHE_USAGE
    return KvCacheUsage(
        at=reading.at, ranks={rank: numbers[name] for rank, numbers in reading.ranks.items() if name in numbers}
    )


def headroom(
    reading: EngineReading, windows: Mapping[str, WindowFigures], recent: Sequence[KvCacheUsage], window: float
) -> KvCacheHeadroom:
    """Return what is left of the KV cache.

    ``recent``: usage during the last ``window`` seconds, oldest first, this reading's last.
    """
    length = _recent_length(windows)
    ranks: dict[str, KvTokens] = {}
    for rank, numbers in reading.ranks.items():
        usage, capacity = numbers.get(Quantity.KV_CACHE_USAGE), numbers.get(Quantity.KV_CACHE_CAPACITY, 0.0)
        if usage is not None and capacity > 0:  # an engine that has not measured its cache yet reports 0
            used = usage * capacity
            free = capacity - used
            sequences = None if length is None else float(floor(free / length))
            ranks[rank] = KvTokens(used=used, free=free, sequences=sequences)
    centred = centred_times(recent)
    times = [seconds_to_full(recent, rank, window, centred) for rank in (recent[-1].ranks if recent else ())]
    known = [seconds for seconds in times if seconds is not None]
    return KvCacheHeadroom(ranks=ranks, total=_total(ranks), seconds_to_full=min(known, default=None))


def _total(ranks: Mapping[str, KvTokens]) -> KvTokens | None:
    if not ranks:
        return None
    fit = [rank.sequences for rank in ranks.values() if rank.sequences is not None]
    return KvTokens(
        used=sum(rank.used for rank in ranks.values()),
        free=sum(rank.free for rank in ranks.values()),
        sequences=sum(fit) if fit else None,
    )


def mean_length(base: ReplicaTotals, latest: ReplicaTotals) -> float | None:
    """Return the mean tokens, prompt and answer, of the requests that finished in between; None for too few.

    Rejected requests do not count: they never held a token.
    """
    names = (Quantity.PROMPT_TOKENS, Quantity.GENERATION_TOKENS)
    if FINISHED in latest.withdrawn or any(
        name not in latest.quantities or name.value in latest.withdrawn for name in names
    ):
        return None
    finished = sum(
        total - base.finished.get(outcome, 0.0) for outcome, total in latest.finished.items() if outcome != _REJECTED
    )
    tokens = sum(latest.quantities[name] - base.quantities.get(name, 0.0) for name in names)
    if finished < MIN_FINISHED or tokens <= 0:
        return None
    return max(1.0, tokens / finished)


def _recent_length(windows: Mapping[str, WindowFigures]) -> float | None:
    """Return the mean length of the window that covers most time; short ones are biased by running requests."""
    known = [figures for figures in windows.values() if figures.request_tokens is not None]
    return max(known, key=lambda figures: figures.seconds).request_tokens if known else None


def seconds_to_full(
    recent: Sequence[KvCacheUsage], rank: str, window: float, centred: Sequence[float] = ()
) -> float | None:
    """Return the seconds until the rank's cache is full at its present growth; 0 when it is full.

    None while it does not grow, and while the samples cover less than half of the window.  ``centred``: the result
    of ``centred_times`` for ``recent``, computed once for all ranks.
    """
    if not recent or rank not in recent[-1].ranks:  # not on the newest page
        return None
    level = recent[-1].ranks[rank]
    if level >= 1:
        return 0.0
    levels = [ratio for sample in recent if (ratio := sample.ranks.get(rank)) is not None]
    if len(levels) < len(recent):
        recent, centred = [sample for sample in recent if rank in sample.ranks], ()
    covered = recent[-1].at - recent[0].at
    if len(recent) < MIN_SAMPLES or covered < window / 2:
        return None
    # Least squares.  The times sum to 0, so the levels need not.
    centred = centred or centred_times(recent)
    slope = fsum(map(mul, centred, levels)) / fsum(map(mul, centred, centred))
    return (1 - level) / slope if slope * covered >= MIN_GROWTH else None


def centred_times(recent: Sequence[KvCacheUsage]) -> Sequence[float]:
    """Return the samples' instants relative to their mean, in seconds."""
    middle = fsum(sample.at for sample in recent) / len(recent) if recent else 0.0
    return [sample.at - middle for sample in recent]
