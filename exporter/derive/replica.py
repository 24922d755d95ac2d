"""What a replica did during each window, and whether it is frozen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf

from exporter.derive.capacity import mean_length
from exporter.derive.delta import FINISHED, RESPONSES, ReplicaTotals, levels
from exporter.derive.kv_cache import hit_ratio, lifetime_hit_ratio
from exporter.derive.latency import summarize
from exporter.derive.windows import History
from exporter.model import (
    EngineReading,
    LatencySummary,
    Quantity,
    Stage,
    TokenCount,
    WindowFigures,
)
from exporter.model.outcome import CLIENT_OUTCOMES, RequestOutcome

LIFETIME = "lifetime"
POLL_JITTER = 0.5  # seconds: a poll that comes that much early does not leave the answer to the next one

_ERROR, _REJECTED = RequestOutcome.ERROR.value, RequestOutcome.REJECTED.value
_NOT_SERVED = CLIENT_OUTCOMES | {_REJECTED}


def window_figures(
    history: History[ReplicaTotals], quantiles: Sequence[float], reading: EngineReading | None = None
) -> Mapping[str, WindowFigures]:
    """Return the figures by window label; a window that covers no time yet is left out.

    What the newest page lacks is absent, although the window may still have increases of it.  With ``reading``, an
    engine that reports only a lifetime average has it under the label ``LIFETIME``, with ``seconds`` 0 because they
    are not known.
    """
    windows: dict[str, WindowFigures] = {}
    latest = history.latest
    for label in history.labels:
        base = history.base(label)
        if latest is not None and base is not None and latest.at > base.at:
            windows[label] = _window(history, label, base, latest, quantiles)
    ratio = None if reading is None else lifetime_hit_ratio(reading)
    if ratio is not None:
        windows[LIFETIME] = WindowFigures(seconds=0.0, hit_ratio=ratio)
    return windows


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
    prompts = _increase(base, latest, Quantity.PROMPT_TOKENS)
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
        prompt_token_rate=None if prompts is None else prompts / seconds,
        generation_token_rate=None if tokens is None else tokens / seconds,
        rank_token_rates=_rank_rates(base, latest, "rank_generation"),
        rank_prompt_token_rates=_rank_rates(base, latest, "rank_prompts"),
        request_tokens=mean_length(base, latest),
        spec_acceptance_ratio=_ratio(base, latest, Quantity.SPEC_ACCEPTED_TOKENS, Quantity.SPEC_DRAFT_TOKENS),
        spec_accepted_length=_ratio(base, latest, Quantity.SPEC_ACCEPTED_TOKENS, Quantity.SPEC_DRAFTS),
        external_hit_ratio=_ratio(base, latest, Quantity.EXTERNAL_CACHE_HITS, Quantity.EXTERNAL_CACHE_QUERIES),
        expert_balance=_ratio(base, latest, Quantity.EXPERT_BALANCE, Quantity.EXPERT_PASSES),
    )


def _rank_rates(base: ReplicaTotals, latest: ReplicaTotals, counter: str) -> Mapping[str, float]:
    """Return what a counter of each rank grows by per second; without ranks that the newest page lacks."""
    before: Mapping[str, float] = getattr(base, counter)
    totals: Mapping[str, float] = getattr(latest, counter)
    return {
        rank: increase / (latest.at - base.at)
        for rank, increase in _increases(before, totals).items()
        if rank not in latest.withdrawn_ranks
    }


def _ratio(base: ReplicaTotals, latest: ReplicaTotals, part: Quantity, whole: Quantity) -> float | None:
    """Return what one counter grew by over what another did; None if that did not grow."""
    parts, wholes = _increase(base, latest, part), _increase(base, latest, whole)
    return None if parts is None or not wholes else parts / wholes


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
    latencies: dict[Stage, LatencySummary] = {}
    for stage, histogram in latest.histograms.items():
        if stage.value in latest.withdrawn:
            continue
        base = history.base(label, latest.begun.get(stage, latest.first_at))
        if base is None or base.at >= latest.at:
            continue  # new bounds, and nothing to subtract yet
        summary = summarize(base.histograms.get(stage), histogram, quantiles)
        if summary is not None:
            latencies[stage] = summary
    return latencies


def _error_ratio(base: ReplicaTotals, latest: ReplicaTotals) -> float | None:
    """Return failures over requests, each the larger count of the HTTP side and the engine.

    The HTTP side misses streams that failed after their headers, the engine misses requests that never reached it.
    4xx, invalid and aborted requests are caused by clients, rejections shed load on purpose: none of them counts.
    """
    finished = {} if FINISHED in latest.withdrawn else _increases(base.finished, latest.finished)
    responses = {} if RESPONSES in latest.withdrawn else _increases(base.responses, latest.responses)
    if not responses and _ERROR not in finished:
        return None  # an engine that counts no failures does not show that there are none
    # Engines that have an HTTP side answer shed load with 503.
    failed = max(0.0, responses.get("5xx", 0.0) - finished.get(_REJECTED, 0.0))
    served = sum(count for outcome, count in finished.items() if outcome not in _NOT_SERVED)
    total = max(responses.get("2xx", 0.0) + failed, served)
    return max(failed, finished.get(_ERROR, 0.0)) / total if total > 0 else None


def generated_tokens(totals: ReplicaTotals | None) -> TokenCount | None:
    """Return the tokens generated since the first reading; None if the page lacks the counter."""
    name = Quantity.GENERATION_TOKENS
    if totals is None or name not in totals.quantities or name.value in totals.withdrawn:
        return None
    return TokenCount(totals.at, totals.quantities[name])


def is_frozen(reading: EngineReading, totals: ReplicaTotals | None, now: float) -> bool | None:
    """Return whether requests are running while no counter has moved for ``reading.frozen_after`` seconds.

    Also where requests wait, none runs, and no counter has moved for ``reading.stalled_after`` seconds.
    Where several ranks count separately, one that runs requests without progress is enough.  None when it is not
    known: no gauge of running requests, an engine that counts only at the end of requests, not observed for long
    enough, or no complete page for as long.  An engine that is asleep is not frozen.
    """
    if reading.is_asleep:
        return False
    after = reading.frozen_after
    running = levels(reading, Quantity.REQUESTS_RUNNING)
    if not running or after is None:
        return None
    moved_at = inf if totals is None else min(totals.moved_at, totals.rank_moved_at)
    if not any(number > 0 for number in running):
        if reading.stalled_after is None or not any(levels(reading, Quantity.REQUESTS_WAITING)):
            return False
        after, moved_at = reading.stalled_after, inf if totals is None else totals.moved_at
    if totals is None or now - totals.at >= after:
        return None
    if totals.at - moved_at >= after - POLL_JITTER:
        return True
    # Until the first movement, "frozen" and "not observed for long enough" look the same.
    return None if totals.moved_at <= totals.first_at else False
