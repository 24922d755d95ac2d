"""Counters and histograms of one rank, with the bucket bounds that vLLM has used since 0.8.4."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

TTFT_BOUNDS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
TOKEN_BOUNDS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
REQUEST_BOUNDS = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0),
    *(40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
STEP_BOUNDS = (1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0)
PREEMPTION_BOUNDS = (1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0)
CHOICE_BOUNDS = (1.0, 2.0, 5.0, 10.0, 20.0)
HTTP_BOUNDS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5),
    *(3.0, 3.5, 4.0, 4.5, 5.0, 7.5, 10.0, 30.0, 60.0),
)
HTTP_COARSE_BOUNDS = (0.1, 0.5, 1.0)
REASONS = ("stop", "length", "abort", "error", "repetition")


def length_bounds(longest: int) -> tuple[float, ...]:
    """Return 1, 2, 5, 10, … up to and including ``longest``."""
    bounds = []
    for exponent in range(len(str(longest))):
        bounds += [float(digit * 10**exponent) for digit in (1, 2, 5) if digit * 10**exponent <= longest]
    return tuple(bounds)


@dataclass(slots=True)
class HistogramState:
    """A histogram: ``counts`` are per bucket (not cumulative), the last one is beyond every bound."""

    bounds: tuple[float, ...]
    counts: list[int] = field(init=False)
    sum: float = 0.0
    count: int = 0

    def __post_init__(self) -> None:
        """Start empty."""
        self.counts = [0] * (len(self.bounds) + 1)

    def observe(self, value: float, times: int = 1) -> None:
        """Record ``value`` ``times`` times; a value on a bound belongs below it, as in Prometheus."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times
        self.count += times


@dataclass(slots=True)
class RankMetrics:
    """Everything that one rank has counted since it started.  Histograms of whole requests wait for their end."""

    longest: int
    arrived: int = 0
    aborted: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0  # of prompts whose prefill is complete
    generation_tokens: int = 0
    preemptions: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    http_answered: int = 0  # 2xx: a client that leaves while it reads has had its status line
    finished: dict[str, int] = field(default_factory=lambda: dict.fromkeys(REASONS, 0))
    prompt_length: HistogramState = field(init=False)
    generation_length: HistogramState = field(init=False)
    longest_generation: HistogramState = field(init=False)
    max_tokens: HistogramState = field(init=False)
    computed_length: HistogramState = field(init=False)
    step_tokens: HistogramState = field(default_factory=lambda: HistogramState(STEP_BOUNDS))
    choices: HistogramState = field(default_factory=lambda: HistogramState(CHOICE_BOUNDS))
    time_to_first_token: HistogramState = field(default_factory=lambda: HistogramState(TTFT_BOUNDS))
    inter_token: HistogramState = field(default_factory=lambda: HistogramState(TOKEN_BOUNDS))
    time_per_token: HistogramState = field(default_factory=lambda: HistogramState(TOKEN_BOUNDS))
    request: HistogramState = field(default_factory=lambda: HistogramState(REQUEST_BOUNDS))
    queue: HistogramState = field(default_factory=lambda: HistogramState(REQUEST_BOUNDS))
    inference: HistogramState = field(default_factory=lambda: HistogramState(REQUEST_BOUNDS))
    prefill: HistogramState = field(default_factory=lambda: HistogramState(REQUEST_BOUNDS))
    decode: HistogramState = field(default_factory=lambda: HistogramState(REQUEST_BOUNDS))
    request_preemptions: HistogramState = field(default_factory=lambda: HistogramState(PREEMPTION_BOUNDS))

    http_fine: HistogramState = field(default_factory=lambda: HistogramState(HTTP_BOUNDS))
    http_coarse: HistogramState = field(default_factory=lambda: HistogramState(HTTP_COARSE_BOUNDS))

    def __post_init__(self) -> None:
        """Create the histograms whose bounds depend on the longest sequence."""
        bounds = length_bounds(self.longest)
        self.prompt_length = HistogramState(bounds)
        self.generation_length = HistogramState(bounds)
        self.longest_generation = HistogramState(bounds)
        self.max_tokens = HistogramState(bounds)
        self.computed_length = HistogramState(bounds)

    def observe_http(self, seconds: float, *, failed: bool = False) -> None:
        """Record one HTTP exchange with the client."""
        self.http_answered += not failed
        self.http_fine.observe(seconds)
        self.http_coarse.observe(seconds)

    @property
    def total_finished(self) -> int:
        """Requests that ended by themselves, whatever the reason."""
        return sum(self.finished.values())
