"""What users were promised: per class of model, the share of requests that succeed and that are fast enough.

A latency target counts requests in a histogram bucket, so it must be a bound of the engine's own buckets; between
bounds the answer would be a guess, and a bound that does not exist gives no answer at all.  Bounds by engine: vLLM
since 0.8.4 (Ray Serve and TensorRT-LLM use the same), SGLang since 0.5.2, TGI's powers of 1.5.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from exporter.catalog import metrics as m
from exporter.catalog.spec import Metric

FASTEST_BURN = 14.4  # the steepest factor of the burn-rate alerts
_OTEL_FIRST_TOKEN = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
_VLLM_TOKEN = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
_VLLM_SPAN = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
_VLLM: Mapping[str, tuple[float, ...]] = {
    m.LLM_TIME_TO_FIRST_TOKEN_SECONDS.name: (*_OTEL_FIRST_TOKEN, 20, 40, 80, 160, 640, 2560),
    m.LLM_INTER_TOKEN_LATENCY_SECONDS.name: _VLLM_TOKEN,
    m.LLM_TIME_PER_OUTPUT_TOKEN_SECONDS.name: _VLLM_TOKEN,
    **{
        metric.name: _VLLM_SPAN
        for metric in (
            m.LLM_REQUEST_DURATION_SECONDS,
            m.LLM_QUEUE_DURATION_SECONDS,
            m.LLM_PREFILL_DURATION_SECONDS,
            m.LLM_DECODE_DURATION_SECONDS,
        )
    },
}
_SGLANG_TOKEN = (
    0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.025, 0.03, 0.035, 0.04, 0.06, 0.08, 0.1, 0.2, 0.4, 0.6, 0.8,
    1, 2, 4, 6, 8,
)  # fmt: skip
_SGLANG_FIRST_TOKEN = (0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8, 10, 20, 40, 60, 80, 100, 200, 400)
_TGI_SPAN = tuple(0.00015 * 1.5**step for step in range(35))
LIKE_VLLM = ("vllm", "ray_serve", "tensorrt_llm")  # engines with vLLM's bounds
BOUNDS: Mapping[str, Mapping[str, tuple[float, ...]]] = {
    **dict.fromkeys(LIKE_VLLM, _VLLM),
    "sglang": {
        m.LLM_TIME_TO_FIRST_TOKEN_SECONDS.name: _SGLANG_FIRST_TOKEN,
        m.LLM_INTER_TOKEN_LATENCY_SECONDS.name: _SGLANG_TOKEN,
        m.LLM_REQUEST_DURATION_SECONDS.name: (*_SGLANG_FIRST_TOKEN, 600, 1200, 1800, 2400),
    },
    "tgi": {
        metric.name: _TGI_SPAN
        for metric in (
            m.LLM_TIME_PER_OUTPUT_TOKEN_SECONDS,
            m.LLM_REQUEST_DURATION_SECONDS,
            m.LLM_QUEUE_DURATION_SECONDS,
        )
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """A promise about one histogram: at least ``objective`` of its observations within the target.

    ``targets``: seconds by engine, since engines have different bounds.  Engines that are not named are not judged.
    """

    metric: Metric
    objective: float
    targets: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelClass:
    """Models that were promised the same.  ``models``: anchored regular expressions over the label model.

    ``availability`` is None when nothing was promised.  ``latencies`` by what they are called: first_token, token and
    duration have alerts.
    """

    name: str
    models: tuple[str, ...]
    availability: float | None
    latencies: Mapping[str, Latency]

    def slo(self) -> Iterator[tuple[str, float]]:
        """Give every promise by name, availability included."""
        if self.availability is not None:
            yield "availability", self.availability
        for name, latency in self.latencies.items():
            yield name, latency.objective


KINDS = ("first_token", "token", "duration")


def _latency(metric: Metric, objective: float, *, vllm: float, sglang: float) -> Latency:
    targets = {**dict.fromkeys(LIKE_VLLM, vllm), "sglang": sglang}
    return Latency(metric=metric, objective=objective, targets=targets)


def _class(
    name: str,
    *models: str,
    availability: float,
    first_token: Latency | None = None,
    token: Latency | None = None,
    duration: Latency | None = None,
) -> ModelClass:
    given = {"first_token": first_token, "token": token, "duration": duration}
    latencies = {kind: latency for kind, latency in given.items() if latency is not None}
    return ModelClass(name=name, models=models, availability=availability, latencies=latencies)


_FIRST, _TOKEN, _WHOLE = (
    m.LLM_TIME_TO_FIRST_TOKEN_SECONDS,
    m.LLM_INTER_TOKEN_LATENCY_SECONDS,
    m.LLM_REQUEST_DURATION_SECONDS,
)

# A model belongs to the first class of which one pattern matches.  Nobody but the user knows which models people
# talk to and which run overnight: until told otherwise, all are standard.
CLASSES: tuple[ModelClass, ...] = (
    _class(
        "interactive",
        availability=0.995,
        first_token=_latency(_FIRST, 0.99, vllm=1.0, sglang=1.0),
        token=_latency(_TOKEN, 0.99, vllm=0.05, sglang=0.06),
        duration=_latency(_WHOLE, 0.95, vllm=30, sglang=40),
    ),
    _class("batch", availability=0.99, duration=_latency(_WHOLE, 0.95, vllm=480, sglang=600)),
    _class(
        "standard",
        ".*",
        availability=0.99,
        first_token=_latency(_FIRST, 0.95, vllm=2.5, sglang=2.0),
        token=_latency(_TOKEN, 0.95, vllm=0.1, sglang=0.1),
        duration=_latency(_WHOLE, 0.95, vllm=60, sglang=60),
    ),
)


def problems(classes: tuple[ModelClass, ...]) -> Iterator[tuple[str, str]]:
    """Give everything wrong with the classes: where (dotted), and why."""
    for one in classes:
        path = f"classes.{one.name}"
        for position, pattern in enumerate(one.models):
            why = _no_pattern(pattern)
            if why:
                yield f"{path}.models[{position}]", why
        for name, objective in one.slo():
            where = f"{path}.availability" if name == "availability" else f"{path}.{name}.objective"
            yield from ((where, why) for why in _unreachable(objective))
        for name, latency in one.latencies.items():
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
        yield f"below {lowest:.1%} the page at {FASTEST_BURN} times the budget could never fire; promise more"


def bucket_bound_problem(metric: Metric, engine: str, target: float) -> str:
    """Say why a target cannot be counted with an engine's buckets; empty when it can."""
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
    """Give the label ``le`` as the daemon's page writes it."""
    bound = next(bound for bound in BOUNDS[engine][metric.name] if abs(bound - target) <= 1e-9 * bound)
    return repr(float(bound))
