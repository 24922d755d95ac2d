"""What a replica did during each window, whether it is frozen, and how uneven its ranks and its siblings are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import fsum, isfinite

from exporter.derive.capacity import mean_length
from exporter.derive.delta import FINISHED, RESPONSES, ReplicaTotals
from exporter.derive.kv_cache import hit_ratio, lifetime_hit_ratio
from exporter.derive.latency import summarize
from exporter.derive.windows import History
from exporter.model import (
    EngineReading,
    LatencySummary,
    ModelSignal,
    Quantity,
    ReplicaState,
    Stage,
    TokenCount,
    WindowFigures,
)

LIFETIME = "lifetime"

_GAUGES = (Quantity.REQUESTS_RUNNING, Quantity.REQUESTS_WAITING, Quantity.KV_CACHE_USAGE)
_TOKEN_RATE = "generation_token_rate"  # noqa: S105 - a rate, no secret
_REQUEST_RATE = "request_rate"

_REJECTED = "rejected"
_OF_CLIENTS = frozenset({"invalid", "abort", _REJECTED})


def window_figures(
    history: History[ReplicaTotals], quantiles: Sequence[float], reading: EngineReading | None = None
) -> Mapping[str, WindowFigures]:
    """Give the figures by window label; a window that covers no time yet is left out.

    What the newest page does not show is absent, although the window may still hold increases of it.  With
    ``reading``, an engine that has only the average of its life gets it under the label ``LIFETIME``, whose
    ``seconds`` are 0 because nobody knows them.
    """
    found: dict[str, WindowFigures] = {}
    latest = history.latest
    for label in history.labels:
        base = history.base(label)
        if latest is not None and base is not None and latest.at > base.at:
            found[label] = _window(history, label, base, latest, quantiles)
    ratio = None if reading is None else lifetime_hit_ratio(reading)
    if ratio is not None:
        found[LIFETIME] = WindowFigures(seconds=0.0, hit_ratio=ratio)
    return found


def _window(
    history: History[ReplicaTotals],
    label: str,
    base: ReplicaTotals,
    latest: ReplicaTotals,
    quantiles: Sequence[float],
) -> WindowFigures:
    seconds = latest.at - base.at
    queries = _increase(base, latest, Quantity.PREFIX_CACHE_QUERIES)
    hits = _increase(base, latest, Quantity.PREFIX_CACHE_HITS)
    tokens = _increase(base, latest, Quantity.GENERATION_TOKENS)
    finished = _increases(base.finished, latest.finished)
    known = bool(latest.finished) and FINISHED not in latest.withdrawn
    return WindowFigures(
        seconds=seconds,
        hit_ratio=None if queries is None or hits is None else hit_ratio(queries, hits),
        latency=_latencies(history, label, latest, quantiles),
        error_ratio=_error_ratio(base, latest),
        request_rate=(sum(finished.values()) - finished.get(_REJECTED, 0.0)) / seconds if known else None,
        rejected_rate=finished[_REJECTED] / seconds if known and _REJECTED in finished else None,
        generation_token_rate=None if tokens is None else tokens / seconds,
        rank_token_rates={
            rank: increase / seconds
            for rank, increase in _increases(base.rank_generation, latest.rank_generation).items()
            if rank not in latest.withdrawn_ranks
        },
        request_tokens=mean_length(base, latest),
    )


def _increase(base: ReplicaTotals, latest: ReplicaTotals, name: Quantity) -> float | None:
    if name not in latest.quantities or name.value in latest.withdrawn:
        return None
    return latest.quantities[name] - base.quantities.get(name, 0.0)


def _increases(base: Mapping[str, float], latest: Mapping[str, float]) -> dict[str, float]:
    return {name: total - base.get(name, 0.0) for name, total in latest.items()}


def _latencies(
    history: History[ReplicaTotals], label: str, latest: ReplicaTotals, quantiles: Sequence[float]
) -> dict[Stage, LatencySummary]:
    """Return the latency of each stage whose two states can be compared."""
    found: dict[Stage, LatencySummary] = {}
    for stage, histogram in latest.histograms.items():
        if stage.value in latest.withdrawn:
            continue
        base = history.base(label, latest.begun.get(stage, latest.first_at))
        if base is None or base.at >= latest.at:
            continue  # new bounds, and nothing to subtract yet
        summary = summarize(base.histograms.get(stage), histogram, quantiles)
        if summary is not None:
            found[stage] = summary
    return found


def _error_ratio(base: ReplicaTotals, latest: ReplicaTotals) -> float | None:
    """Divide the failures that either side saw by the requests that either side saw.

    The HTTP side misses streams that failed after their headers, the engine's side misses requests that never
    reached it.  4xx, invalid requests and clients that went away are the client's doing, rejections are load that was
    shed on purpose: both are in neither number.
    """
    finished = {} if FINISHED in latest.withdrawn else _increases(base.finished, latest.finished)
    responses = {} if RESPONSES in latest.withdrawn else _increases(base.responses, latest.responses)
    if not responses and "error" not in finished:
        return None  # an engine that counts no failures has not shown that there are none
    # Engines that have an HTTP side answer shed load with 503.
    failed = max(0.0, responses.get("5xx", 0.0) - finished.get(_REJECTED, 0.0))
    served = sum(count for outcome, count in finished.items() if outcome not in _OF_CLIENTS)
    total = max(responses.get("2xx", 0.0) + failed, served)
    return max(failed, finished.get("error", 0.0)) / total if total > 0 else None


def generated_tokens(totals: ReplicaTotals | None) -> TokenCount | None:
    """Give when, and how many tokens had been generated since the first reading; None when the page does not say."""
    name = Quantity.GENERATION_TOKENS
    if totals is None or name not in totals.quantities or name.value in totals.withdrawn:
        return None
    return TokenCount(totals.at, totals.quantities[name])


def is_frozen(reading: EngineReading, totals: ReplicaTotals | None, now: float) -> bool | None:
    """Say whether requests are running while no counter has moved for ``reading.frozen_after`` seconds.

    Where several ranks count for themselves, one that runs requests and stands still is enough: its requests wait
    for ever, whatever the others do.

    None when it cannot be known: no gauge of running requests, an engine that counts only at the end of requests,
    not watched for long enough, or no complete page for as long.
    """
    after = reading.frozen_after
    running = [
        values[Quantity.REQUESTS_RUNNING] for values in reading.ranks.values() if Quantity.REQUESTS_RUNNING in values
    ]
    if not running or after is None:
        return None
    if not any(number > 0 for number in running):
        return False
    if totals is None or now - totals.at >= after:
        return None
    if totals.at - min(totals.moved_at, totals.rank_moved_at) >= after:
        return True
    # Until the first movement, "still" and "not watched for long enough" look the same.
    return None if totals.moved_at <= totals.first_at else False


def rank_imbalance(reading: EngineReading, token_rates: Mapping[str, float]) -> Mapping[str, float]:
    """Give maximum ÷ mean over the data-parallel ranks by signal; needs two ranks that say it, and a mean above 0.

    ``token_rates``: generated tokens per second by rank, from the shortest window.
    """
    found: dict[str, float] = {}
    for name in _GAUGES:
        ratio = max_to_mean(values[name] for values in reading.ranks.values() if name in values)
        if ratio is not None:
            found[name.value] = ratio
    ratio = max_to_mean(token_rates.values())
    if ratio is not None:
        found[_TOKEN_RATE] = ratio
    return found


def replica_imbalance(replicas: Sequence[ReplicaState]) -> Mapping[ModelSignal, float]:
    """Give maximum ÷ mean between replicas of one model, by (model, signal); needs two with readings.

    Requests are summed over a replica's ranks, cache use is averaged; rates are taken from the first window that
    at least two replicas have.  Replicas whose model is not known are compared with nobody.
    """
    models: dict[str, list[ReplicaState]] = {}
    for replica in replicas:
        if replica.reading is not None and replica.labels.model:
            models.setdefault(replica.labels.model, []).append(replica)
    found: dict[ModelSignal, float] = {}
    for model, members in models.items():
        for name in _GAUGES:
            levels = [_level(member.reading, name) for member in members if member.reading is not None]
            ratio = max_to_mean(level for level in levels if level is not None)
            if ratio is not None:
                found[ModelSignal(model, name.value)] = ratio
        for signal in (_TOKEN_RATE, _REQUEST_RATE):
            ratio = max_to_mean(_rates(members, signal))
            if ratio is not None:
                found[ModelSignal(model, signal)] = ratio
    return found


def _level(reading: EngineReading, name: Quantity) -> float | None:
    levels = [values[name] for values in reading.ranks.values() if name in values]
    if not levels:
        return None
    return fsum(levels) / len(levels) if name is Quantity.KV_CACHE_USAGE else fsum(levels)


def _rates(members: Sequence[ReplicaState], signal: str) -> list[float]:
    for label in dict.fromkeys(label for member in members for label in member.windows):
        rates = [getattr(member.windows[label], signal) for member in members if label in member.windows]
        known = [rate for rate in rates if rate is not None]
        if len(known) >= 2:
            return known
    return []


def max_to_mean(values: Iterable[float]) -> float | None:
    """Divide the highest by the mean; None without two values, or with a mean of 0."""
    sound = [value for value in values if isfinite(value) and value >= 0]
    if len(sound) < 2:
        return None
    highest, mean = max(sound), fsum(sound) / len(sound)
    if not mean > 0:
        return None
    return 1.0 if min(sound) == highest else highest / mean
