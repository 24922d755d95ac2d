"""The few colours that no alert has a number for; all other thresholds are the alerts' own, a user's file included.

Counts of what must not be there: one is too many.  Attainment: warning below the promise, critical where the alerts
page, at ``FASTEST_BURN`` times the budget.
"""

from __future__ import annotations

from collections.abc import Iterator

from alerts.recordings import REPLICA
from alerts.requests import LEVEL, WINDOWS
from alerts.slo import FASTEST_BURN, Latency, ModelClass, bucket_bound
from alerts.thresholds import Threshold
from dashboards import active_tuning
from dashboards.errors import DashboardError
from dashboards.variables import RATE_INTERVAL, selected_buckets, selected_count
from exporter.catalog.spec import Unit
from exporter.promql import Expr, ExternalMetric, Match, and_on, clamp_max, no_regex, rate, regex, sum_by

THRESHOLDS = active_tuning.get().thresholds
TOP_N = 20  # curves or bars of the fleet's nodes and replicas at once: of a thousand nobody reads any
ANY_CRITICAL = Threshold(reason="One that is gone is one too many.", warning=0.5, critical=1)
ANY_WARNING = Threshold(reason="One is worth a look.", warning=1)
CLOCK_LAG = Threshold(
    reason="A card at nine tenths of the others' clock makes a step a tenth longer.", unit=Unit.RATIO, above=False,
    warning=0.97, critical=0.9,
)  # fmt: skip
BUSY_WAITING = Threshold(reason="A card in ten spinning is worth a look.", unit=Unit.RATIO, warning=0.5, critical=0.8)
BURN_RATE = Threshold(
    reason="1 uses the budget up exactly; the alerts page at the steepest factor.", unit=Unit.RATIO, warning=1,
    critical=FASTEST_BURN,
)  # fmt: skip


def burn_rate(window: str) -> ExternalMetric:
    """Return the recording rule that says how fast an error budget is burnt over a window, 1 being allowed."""
    if window not in WINDOWS:
        raise DashboardError(f"no rule records the burn over {window}; there are {', '.join(WINDOWS)}")
    name = f"{'_'.join(LEVEL)}:llm_error_budget_burn:ratio_rate{window}"
    return ExternalMetric(name=name, labels=frozenset(LEVEL), unit=Unit.RATIO)


def has_slo(kind: str) -> bool:
    """Return whether any class of models was promised this latency: without one there is nothing to keep."""
    return any(True for _ in _classes(kind))


def slo_threshold(kind: str) -> Threshold:
    """Return the attainment that was promised, as a threshold: of the last class, which is that for everybody else."""
    *_, (_, latency) = _classes(kind)
    worst = max(0.0, 1 - FASTEST_BURN * (1 - latency.objective))
    return Threshold(
        reason="The promise; and the share at which the alerts page.", unit=Unit.RATIO, above=False,
        warning=latency.objective, critical=round(worst, 6),
    )  # fmt: skip


def attainment(kind: str, *labels: str, window: str = RATE_INTERVAL) -> Expr:
    """Return the share of requests within their class' target, from the bucket at the target.

    Counted as the alerts count: each model in the first class that names it, and only replicas whose engine has a
    bucket at the target; else a target of another engine would look like a promise broken.
    """
    within: Expr | None = None
    every: Expr | None = None
    for models, latency in _classes(kind):
        for bound, engines in _bounds(latency).items():
            these = regex("|".join(engines))
            good = rate(selected_buckets(latency.metric, engine=these, le=bound, model=models), window)
            selected = rate(selected_count(latency.metric, engine=these, model=models), window)
            judged = and_on(selected, good, on=REPLICA)
            within = good if within is None else within | good
            every = judged if every is None else every | judged
    if within is None or every is None:
        raise DashboardError(f"no class of models was promised {kind}")
    # At the first scrapes of a histogram its two rates are extrapolated differently, and a little beyond the whole.
    share = clamp_max(sum_by(within, *labels) / sum_by(every, *labels), 1)
    return share >= 0  # nothing over nothing is absent, not NaN


def _classes(kind: str) -> Iterator[tuple[tuple[Match, ...], Latency]]:
    """Yield the models of each class that was promised this, less those of the classes before it."""
    earlier: list[str] = []
    for one in active_tuning.get().classes:
        if one.models and kind in one.latencies:
            yield _models(one, earlier), one.latencies[kind]
        earlier += one.models


def _models(one: ModelClass, earlier: list[str]) -> tuple[Match, ...]:
    mine = regex("|".join(one.models))
    return (mine, no_regex("|".join(earlier))) if earlier else (mine,)


def _bounds(latency: Latency) -> dict[str, list[str]]:
    """Return the engines that share each bound, by the bound."""
    found: dict[str, list[str]] = {}
    for engine, target in latency.targets.items():
        found.setdefault(bucket_bound(engine, latency.metric, target), []).append(engine)
    return found
