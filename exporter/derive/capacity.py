"""What is left of a KV cache: tokens used and free, sequences that still fit, seconds until it is full.

Only from what the engine says; what it does not say is absent:

- Used tokens are the engine's usage ratio times its capacity, free ones the rest.  Engines count blocks that live
  requests hold, so cached blocks that could be evicted are free, and a block that is half full counts whole.
- The recent mean length of a sequence is prompt plus answer tokens over finished requests, of the longest window in
  which enough requests finished.  Tokens of clients that went away count and their requests mostly do not, and a
  prefix found in the cache takes no new room, so the true number that fits tends to be higher.  A limit on the
  number of sequences in a batch is not known here and may be reached first.
- Seconds until full extend the line of least squares through the usage of the shortest window.  Requests that wait
  begin to pile up when that point is reached.  A cache that grew by less than a hundredth of itself in the window is
  not called growing: that much is the coming and going of requests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import floor, fsum
from operator import mul

from msgspec import Struct

from exporter.derive.delta import FINISHED, ReplicaTotals
from exporter.model import EngineReading, KvCacheHeadroom, KvTokens, Quantity, WindowFigures

MIN_FINISHED = 10  # requests; a mean of fewer is an anecdote
MIN_SAMPLES = 5
MIN_GROWTH = 0.01  # of the cache, over the window
_REJECTED = "rejected"  # an outcome of requests that never held a token


class KvCacheUsage(Struct, frozen=True, kw_only=True):
    """How full the KV cache of each rank was at one time; ratios."""

    at: float
    ranks: Mapping[str, float]


def kv_cache_usage(reading: EngineReading) -> KvCacheUsage:
    """Take the usage out of a reading."""
    name = Quantity.KV_CACHE_USAGE
    return KvCacheUsage(
        at=reading.at, ranks={rank: said[name] for rank, said in reading.ranks.items() if name in said}
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
    ahead = times_ahead(recent)
    times = [full_in(recent, rank, window, ahead) for rank in (recent[-1].ranks if recent else ())]
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
    """Give the mean tokens of the requests that finished between the two, prompt and answer; None for too few.

    Rejected requests are none: they never held a token.
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
    """Choose the window that covers the most: counters move while requests run, and short windows feel it."""
    known = [figures for figures in windows.values() if figures.request_tokens is not None]
    return max(known, key=lambda figures: figures.seconds).request_tokens if known else None


def full_in(recent: Sequence[KvCacheUsage], rank: str, window: float, ahead: Sequence[float] = ()) -> float | None:
    """Give the seconds until the rank's cache is full at its present growth; 0 when it is full.

    None while it does not grow, and while the samples cover less than half of the window.  ``ahead``: what
    ``times_ahead`` gives for ``recent``, so that it need not be made for each rank.
    """
    if not recent or rank not in recent[-1].ranks:  # the newest page does not say it
        return None
    level = recent[-1].ranks[rank]
    if level >= 1:
        return 0.0
    levels = [ratio for sample in recent if (ratio := sample.ranks.get(rank)) is not None]
    if len(levels) < len(recent):
        recent, ahead = [sample for sample in recent if rank in sample.ranks], ()
    covered = recent[-1].at - recent[0].at
    if len(recent) < MIN_SAMPLES or covered < window / 2:
        return None
    # A line of least squares.  The times add up to 0, so the levels need not.
    ahead = ahead or times_ahead(recent)
    slope = fsum(map(mul, ahead, levels)) / fsum(map(mul, ahead, ahead))
    return (1 - level) / slope if slope * covered >= MIN_GROWTH else None


def times_ahead(recent: Sequence[KvCacheUsage]) -> Sequence[float]:
    """Give the seconds by which each sample is ahead of the mean of all; the times are distinct."""
    middle = fsum(sample.at for sample in recent) / len(recent) if recent else 0.0
    return [sample.at - middle for sample in recent]
