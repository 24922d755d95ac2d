"""The few colours that no alert has a number for; all other thresholds are the alerts' own.

Counts of what must not be there: one is too many.  Attainment: warning below the promise, critical where the alerts
page, at ``FASTEST_BURN`` times the budget.
"""

from __future__ import annotations

from alerts.objectives import CLASSES, FASTEST_BURN, bound_text
from alerts.requests import LEVEL, WINDOWS
from alerts.thresholds import DEFAULTS, Threshold
from dashboards.errors import BoardError
from dashboards.scope import WINDOW, seen_buckets, seen_count
from exporter.catalog.spec import Metric, Unit
from exporter.promql import Expr, Known, rate, regex, sum_by

LIMITS = DEFAULTS
NONE_LOST = Threshold(reason="One that is gone is one too many.", warning=0.5, critical=1)
NONE_ODD = Threshold(reason="One is worth a look.", warning=1)
BEHIND = Threshold(
    reason="A card at nine tenths of the others' clock makes a step a tenth longer.", unit=Unit.RATIO, above=False,
    warning=0.97, critical=0.9,
)  # fmt: skip
NONE_WASTED = Threshold(reason="A card in ten spinning is worth a look.", unit=Unit.RATIO, warning=0.5, critical=0.8)
BURN = Threshold(
    reason="1 uses the budget up exactly; the alerts page at the steepest factor.", unit=Unit.RATIO, warning=1,
    critical=FASTEST_BURN,
)  # fmt: skip


def burn(window: str) -> Known:
    """Give the recording rule that says how fast an error budget is burnt over a window, 1 being allowed."""
    if window not in WINDOWS:
        raise BoardError(f"no rule records the burn over {window}; there are {', '.join(WINDOWS)}")
    name = f"{'_'.join(LEVEL)}:llm_error_budget_burn:ratio_rate{window}"
    return Known(name=name, labels=frozenset(LEVEL), unit=Unit.RATIO)


def promise(kind: str) -> Threshold:
    """Give the attainment that the class for everybody else was promised, as a threshold."""
    objective = CLASSES[-1].availability if kind == "availability" else CLASSES[-1].latencies[kind].objective
    if objective is None:
        raise BoardError(f"the class {CLASSES[-1].name} has no promise of {kind}")
    worst = max(0.0, 1 - FASTEST_BURN * (1 - objective))
    return Threshold(
        reason="The promise; and the share at which the alerts page.", unit=Unit.RATIO, above=False,
        warning=objective, critical=round(worst, 6),
    )  # fmt: skip


def attainment(kind: str, *labels: str, window: str = WINDOW) -> Expr:
    """Give the share of requests within their class' target, from the bucket at the target.

    A bucket bound that an engine does not have counts nothing; ``alerts.objectives`` refuses such targets.
    """
    good: Expr | None = None
    metric = _metric(kind)
    for models, bounds in _asked(kind):
        for bound, engines in bounds.items():
            chosen = rate(
                seen_buckets(metric, engine=regex("|".join(engines)), le=bound, model=regex(models)), window
            )
            good = chosen if good is None else good | chosen
    assert good is not None  # every class has at least one engine
    share = sum_by(good, *labels) / sum_by(rate(seen_count(metric), window), *labels)
    return share >= 0  # nothing over nothing is absent, not NaN


def _metric(kind: str) -> Metric:
    return next(one.latencies[kind].metric for one in CLASSES if kind in one.latencies)


def _asked(kind: str) -> list[tuple[str, dict[str, list[str]]]]:
    found = []
    for one in CLASSES:
        if kind in one.latencies and one.models:
            bounds: dict[str, list[str]] = {}
            for engine, target in one.latencies[kind].targets.items():
                bounds.setdefault(bound_text(engine, _metric(kind), target), []).append(engine)
            found.append(("|".join(one.models), bounds))
    return found
