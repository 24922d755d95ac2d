"""The SLOs: per class of model, the share of requests that succeed and that are fast enough.

A latency target counts requests in a histogram bucket, so it must be a bound of the engine's own buckets; between
bounds the answer would be a guess, and a bound that does not exist gives no answer at all.  Bounds and default targets
are declared by each engine (``exporter.engines.tables``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from exporter.catalog import metrics as m
from exporter.catalog.spec import Metric
from exporter.engines.tables import ENGINES
from exporter.model import Stage

FASTEST_BURN = 14.4  # the steepest factor of the burn-rate alerts
_STAGES: Mapping[Stage, Metric] = {
    Stage.TIME_TO_FIRST_TOKEN: m.LLM_TIME_TO_FIRST_TOKEN_SECONDS,
    Stage.INTER_TOKEN: m.LLM_INTER_TOKEN_LATENCY_SECONDS,
    Stage.TIME_PER_OUTPUT_TOKEN: m.LLM_TIME_PER_OUTPUT_TOKEN_SECONDS,
    Stage.REQUEST: m.LLM_REQUEST_DURATION_SECONDS,
    Stage.QUEUE: m.LLM_QUEUE_DURATION_SECONDS,
    Stage.PREFILL: m.LLM_PREFILL_DURATION_SECONDS,
    Stage.DECODE: m.LLM_DECODE_DURATION_SECONDS,
}
# Seconds, by engine and name of the metric.
BOUNDS: Mapping[str, Mapping[str, tuple[float, ...]]] = {
    engine.kind: {_STAGES[stage].name: bounds for stage, bounds in engine.buckets.items()}
    for engine in ENGINES
    if engine.buckets
}


def engines_with_bound(metric: Metric, target: float) -> tuple[str, ...]:
    """Return the engines that one target is for: those that can count it, and the first of the list in any case."""
    measuring = [engine for engine, by_metric in BOUNDS.items() if metric.name in by_metric]
    counting = [engine for engine in measuring if not bucket_bound_problem(metric, engine, target)]
    return tuple(dict.fromkeys([*(measuring or BOUNDS)][:1] + counting))


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """An SLO of one histogram: at least ``objective`` of its observations within the target.

    ``targets``: seconds by engine, since engines have different bounds.  Engines that are not named are not judged: see ``Engine.not_judged``.
    """

    metric: Metric
    objective: float
    targets: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelClass:
    """Models with the same SLOs.  ``models``: anchored regular expressions over the label model.

    ``availability`` is None without an SLO.  ``latencies`` by what they are called: first_token, token and
    duration have alerts.
    """

    name: str
    models: tuple[str, ...]
    availability: float | None
    latencies: Mapping[str, Latency]

    def slo(self) -> Iterator[tuple[str, float]]:
        """Yield every objective by name, availability included."""
        if self.availability is not None:
            yield "availability", self.availability
        for name, latency in self.latencies.items():
            yield name, latency.objective


KINDS = {
    "first_token": Stage.TIME_TO_FIRST_TOKEN,
    "token": Stage.INTER_TOKEN,
    "duration": Stage.REQUEST,
}


def _class(name: str, *models: str, availability: float, **shares: float) -> ModelClass:
    """Return a class whose targets the engines declare; ``shares``: by the kind of latency."""
    targets = {engine.kind: engine.targets.of(name) for engine in ENGINES}
    return ModelClass(
        name=name,
        models=models,
        availability=availability,
        latencies={
            kind: Latency(
                metric=_STAGES[KINDS[kind]],
                objective=objective,
                targets={engine: found[KINDS[kind]] for engine, found in targets.items() if KINDS[kind] in found},
            )
            for kind, objective in shares.items()
        },
    )


# A model belongs to the first class of which one pattern matches.  Nobody but the user knows which models people
# talk to and which run overnight: until told otherwise, all are standard.
CLASSES: tuple[ModelClass, ...] = (
    _class("interactive", availability=0.995, first_token=0.99, token=0.99, duration=0.95),
    _class("batch", availability=0.99, duration=0.95),
    _class("standard", ".*", availability=0.99, first_token=0.95, token=0.95, duration=0.95),
)


def problems(classes: tuple[ModelClass, ...]) -> Iterator[tuple[str, str]]:
    """Yield everything wrong with the classes: where (dotted), and why."""
    for model_class in classes:
        path = f"classes.{model_class.name}"
        for position, pattern in enumerate(model_class.models):
            why = _no_pattern(pattern)
            if why:
                yield f"{path}.models[{position}]", why
        for name, objective in model_class.slo():
            where = f"{path}.availability" if name == "availability" else f"{path}.{name}.objective"
            yield from ((where, why) for why in _unreachable(objective))
        for name, latency in model_class.latencies.items():
            for engine, target in latency.targets.items():
                why = bucket_bound_problem(latency.metric, engine, target)
                if why:
                    yield f"{path}.{name}.target.{engine}", why


def _no_pattern(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        return f"is no regular expression: {error}"
    return ""


def _unreachable(objective: float) -> Iterator[str]:
    if not 0 < objective < 1:
        yield "an objective is a share below 100 %: at 100 % the first failure ever burns an infinite budget"
    elif FASTEST_BURN * (1 - objective) >= 1:
        lowest = 1 - 1 / FASTEST_BURN
        yield f"below {lowest:.1%} the page at {FASTEST_BURN} times the budget could never fire; set it higher"


def bucket_bound_problem(metric: Metric, engine: str, target: float) -> str:
    """Return why a target cannot be counted with an engine's buckets; empty when it can."""
    if engine not in BOUNDS:
        return f"unknown engine; bounds are known of {', '.join(BOUNDS)}"
    bounds = BOUNDS[engine].get(metric.name)
    if bounds is None:
        return f"{engine} has no {metric.name}; it has {', '.join(BOUNDS[engine])}"
    if any(abs(bound - target) <= 1e-9 * bound for bound in bounds):
        return ""
    below = max((bound for bound in bounds if bound < target), default=None)
    above = min((bound for bound in bounds if bound > target), default=None)
    nearest = " or ".join(f"{bound:.6g}s" for bound in (below, above) if bound is not None)
    return f"{target:.6g}s is no bucket bound of {engine}'s {metric.name}; write {nearest}"


def bucket_bound(engine: str, metric: Metric, target: float) -> str:
    """Return the label ``le`` as the metrics endpoint writes it."""
    bound = next(bound for bound in BOUNDS[engine][metric.name] if abs(bound - target) <= 1e-9 * bound)
    return repr(float(bound))
