"""Thresholds that only dashboards use; all others are the alerts' own, as tuned by the thresholds file.

SLO attainment turns amber below the objective, and red where the alerts page: at ``FASTEST_BURN`` times the budget.
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
TOP_N = 20  # series per panel of Fleet, of up to a thousand nodes
ANY_CRITICAL = Threshold(reason="Any loss is critical.", warning=0.5, critical=1)
ANY_WARNING = Threshold(reason="Any is a warning.", warning=1)
CLOCK_LAG = Threshold(
    reason="A GPU at 90 % of its peers' clock makes every step 11 % longer.", unit=Unit.RATIO, above=False,
    warning=0.97, critical=0.9,
)  # fmt: skip
BUSY_WAITING = Threshold(
    reason="Half of the busy time without useful work is a warning, 80 % is critical.",
    unit=Unit.RATIO,
    warning=0.5,
    critical=0.8,
)
BURN_RATE = Threshold(
    reason="1 uses up the budget exactly; the alerts page at the highest factor.", unit=Unit.RATIO, warning=1,
    critical=FASTEST_BURN,
)  # fmt: skip


def burn_rate(window: str) -> ExternalMetric:
    """Return the recording rule of the error budget's burn rate over a window; DashboardError if there is none."""
    if window not in WINDOWS:
        raise DashboardError(f"no rule records the burn over {window}; there are {', '.join(WINDOWS)}")
    name = f"{'_'.join(LEVEL)}:llm_error_budget_burn:ratio_rate{window}"
    return ExternalMetric(name=name, labels=frozenset(LEVEL), unit=Unit.RATIO)


def has_slo(kind: str) -> bool:
    """Return whether any model class has an objective for this latency."""
    return any(True for _ in _classes(kind))


def slo_threshold(kind: str) -> Threshold:
    """Return the objective for this latency as a threshold: that of the last class, which covers all other models."""
    *_, (_, latency) = _classes(kind)
    worst = max(0.0, 1 - FASTEST_BURN * (1 - latency.objective))
    return Threshold(
        reason="The objective, and the attainment at which the alerts page.", unit=Unit.RATIO, above=False,
        warning=latency.objective, critical=round(worst, 6),
    )  # fmt: skip


def attainment(kind: str, *labels: str, window: str = RATE_INTERVAL) -> Expr:
    """Return the share of requests within the target of their class, from the histogram bucket at the target.

    Computed as the alerts do: each model counts in the first class that names it, and only replicas whose engine has a
    bucket at the target count.
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
        raise DashboardError(f"no class of models has an objective for {kind}")
    # At a histogram's first scrapes the two rates are extrapolated differently, and the ratio can exceed 1.
    share = clamp_max(sum_by(within, *labels) / sum_by(every, *labels), 1)
    return share >= 0  # 0/0 is absent, not NaN


def _classes(kind: str) -> Iterator[tuple[tuple[Match, ...], Latency]]:
    """Yield each class with an objective for this latency: matchers of its models, without those of earlier classes."""
    earlier: list[str] = []
    for model_class in active_tuning.get().classes:
        if model_class.models and kind in model_class.latencies:
            yield _models(model_class, earlier), model_class.latencies[kind]
        earlier += model_class.models


def _models(model_class: ModelClass, earlier: list[str]) -> tuple[Match, ...]:
    own = regex("|".join(model_class.models))
    return (own, no_regex("|".join(earlier))) if earlier else (own,)


def _bounds(latency: Latency) -> dict[str, list[str]]:
    """Return the engines by the bucket bound that they use for this latency's target."""
    found: dict[str, list[str]] = {}
    for engine, target in latency.targets.items():
        found.setdefault(bucket_bound(engine, latency.metric, target), []).append(engine)
    return found
