"""Our quantiles, ratios and rates against a real PromQL engine over the same replayed pages.

The pages hold two ranks, a rank that restarts alone, a restart of the whole process, missed polls and an idle end.
Ranges are a millisecond longer than the window: Prometheus 3 leaves the left end of a range out and 2 does not,
and so both see a sample at exactly the window's start.  The millisecond scales all buckets alike and cancels.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
from collections.abc import Iterator
from itertools import accumulate

import pytest

from exporter.derive.delta import update
from exporter.derive.replica import window_figures
from exporter.derive.windows import History
from exporter.model import EngineReading, Histogram, Quantity, Stage, Window

PROMTOOL = shutil.which("promtool")
STEP, PAGES = 5, 145
WINDOWS = (Window("1m", 60.0), Window("5m", 300.0))
QUANTILES = (0.5, 0.95, 0.99, 0.999)
BOUNDS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
COUNTERS = (Quantity.GENERATION_TOKENS, Quantity.PREFIX_CACHE_QUERIES, Quantity.PREFIX_CACHE_HITS)
MISSED = {80, 81, 82, 83, 84, 101}
RANK_RESTART, PROCESS_RESTART, IDLE_FROM = 30, 62, 125

pytestmark = pytest.mark.skipif(
    PROMTOOL is None and os.environ.get("CI") != "true", reason="promtool is not installed"
)


class Engine:
    """Raw counters of one rank, with a life before the first page."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.start(1_000_000)

    def start(self, life: int) -> None:
        """Set every counter to something above 0, so that PromQL never suspects that a series began in between."""
        self.buckets = [float(life) if life > 1 else 1.0] * (len(BOUNDS) + 1)
        self.counters = {name: float(life) for name in COUNTERS}

    def work(self) -> None:
        for _ in range(self.rng.randrange(40)):
            seconds = self.rng.lognormvariate(-1.5, 2.0)
            self.buckets[sum(bound < seconds for bound in BOUNDS)] += 1
            self.counters[Quantity.GENERATION_TOKENS] += self.rng.randrange(500)
            self.counters[Quantity.PREFIX_CACHE_QUERIES] += 100
            self.counters[Quantity.PREFIX_CACHE_HITS] += self.rng.randrange(100)

    def histogram(self) -> Histogram:
        return Histogram(bounds=BOUNDS, counts=tuple(accumulate(self.buckets)))


def replay(seed: int) -> Iterator[EngineReading | None]:
    rng = random.Random(seed)
    ranks = {"0": Engine(rng), "1": Engine(rng)}
    for number in range(PAGES):
        for rank, engine in ranks.items():
            if number == PROCESS_RESTART or (number == RANK_RESTART and rank == "1"):
                engine.start(1)
            if number < IDLE_FROM:
                engine.work()
        if number in MISSED:
            yield None
            continue
        yield EngineReading(
            at=float(number * STEP),
            engine="vllm",
            ranks={rank: dict(engine.counters) for rank, engine in ranks.items()},
            histograms={Stage.REQUEST: {rank: engine.histogram() for rank, engine in ranks.items()}},
            process_start=1.0 if number < PROCESS_RESTART else 2.0,
        )


def series(readings: list[EngineReading | None]) -> list[dict[str, str]]:
    """Return the same pages in promtool's notation, where ``_`` is a missed scrape."""
    samples_by_series: dict[str, list[str]] = {}
    edges = [*map(str, BOUNDS), "+Inf"]
    for rank in "01":
        for position, le in enumerate(edges):
            samples_by_series[f'latency_bucket{{engine="{rank}",le="{le}"}}'] = [
                "_" if r is None else f"{r.histograms[Stage.REQUEST][rank].counts[position]:.0f}" for r in readings
            ]
        for name in COUNTERS:
            samples_by_series[f'{name.value}{{engine="{rank}"}}'] = [
                "_" if r is None else f"{r.ranks[rank][name]:.0f}" for r in readings
            ]
    return [{"series": name, "values": " ".join(values)} for name, values in samples_by_series.items()]


def close(expression: str, ours: float, relative: float = 1e-6) -> str:
    return f"abs({expression} - {ours!r}) <= bool {relative * abs(ours)!r} + 1e-12"


def questions(figures_by_window, label: str, length: float) -> Iterator[tuple[str, float]]:
    """Yield an expression and the value that it must have if PromQL agrees with us."""
    reach = f"[{int(length * 1000) + 1}ms]"
    buckets = f"sum by (le) (increase(latency_bucket{reach}))"
    answer = figures_by_window[label].latency[Stage.REQUEST]
    for quantile in QUANTILES:
        theirs = f"histogram_quantile({quantile}, {buckets})"
        if quantile in answer.quantiles:
            yield close(theirs, answer.quantiles[quantile]), 1.0
        else:
            yield f"count({theirs} == {theirs}) or vector(0)", 0.0  # NaN equals nothing
    total = f'sum(rate(latency_bucket{{le="+Inf"}}{reach}))'
    yield close(f"{total} * {length!r}", answer.observations), 1.0
    if answer.overflow_ratio is not None:
        below = f'sum(rate(latency_bucket{{le="{BOUNDS[-1]}"}}{reach}))'
        yield f"abs(1 - {below} / {total} - {answer.overflow_ratio!r}) <= bool 1e-9", 1.0
    hits, queries = (f"sum(rate({name.value}{reach}))" for name in (COUNTERS[2], COUNTERS[1]))
    if figures_by_window[label].hit_ratio is not None:
        yield close(f"{hits} / {queries}", figures_by_window[label].hit_ratio), 1.0
    else:
        yield f"count({queries} > 0) or vector(0)", 0.0
    yield close(f"sum(rate(generation_tokens{reach}))", figures_by_window[label].generation_token_rate), 1.0


def cases(readings: list[EngineReading | None]) -> list[dict[str, object]]:
    """Ask at every page whose window starts at a page: there both sides see the same first and last sample."""
    progress, history, asked = None, History(WINDOWS), []
    for number, reading in enumerate(readings):
        if reading is None:
            continue
        progress = update(progress, reading)
        history.add(progress.totals)
        figures = window_figures(history, QUANTILES)
        for label, length in WINDOWS:
            first = number - int(length / STEP)
            if first < 0 or readings[first] is None:
                continue
            asked += [
                {"expr": e, "eval_time": f"{number * STEP}s", "exp_samples": [{"labels": "{}", "value": value}]}
                for e, value in questions(figures, label, length)
            ]
    return asked


def promtool(folder, readings, asked) -> subprocess.CompletedProcess[str]:
    path = folder / "replay.json"  # JSON is YAML
    case = {"interval": f"{STEP}s", "input_series": series(readings), "promql_expr_test": asked}
    path.write_text(json.dumps({"evaluation_interval": f"{STEP}s", "tests": [case]}))
    assert PROMTOOL is not None, "CI must have promtool: install the prometheus package"
    return subprocess.run(
        [PROMTOOL, "test", "rules", str(path)], capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_windows_equal_promql_across_restarts_and_gaps(tmp_path, seed):
    readings = list(replay(seed))
    asked = cases(readings)
    result = promtool(tmp_path, readings, asked)
    assert len(asked) > 1200
    assert result.returncode == 0, (result.stdout + result.stderr)[:4000]


def test_the_replay_crosses_what_it_claims_to_cross():
    progress, history, empty, ratios = None, History(WINDOWS), 0, set()
    for reading in replay(1):
        if reading is not None:
            progress = update(progress, reading)
            history.add(progress.totals)
            for figures in window_figures(history, QUANTILES).values():
                empty += not figures.latency[Stage.REQUEST].quantiles
                ratios.add(figures.hit_ratio)
    assert progress.totals.restarts == 2
    assert empty > 0
    assert None in ratios
    assert len(ratios) > 100


def test_a_number_that_is_one_part_in_a_hundred_thousand_off_is_noticed(tmp_path):
    readings = list(replay(1))[:15]
    progress, history = None, History(WINDOWS)
    for reading in readings[:13]:
        progress = update(progress, reading)
        history.add(progress.totals)
    ours = window_figures(history, [0.5])["1m"].latency[Stage.REQUEST].quantiles[0.5]
    theirs = "histogram_quantile(0.5, sum by (le) (increase(latency_bucket[60001ms])))"

    def ask(value):
        expected = [{"labels": "{}", "value": 1}]
        return promtool(
            tmp_path, readings, [{"expr": close(theirs, value), "eval_time": "60s", "exp_samples": expected}]
        )

    assert ask(ours).returncode == 0
    assert ask(ours * 1.00001).returncode != 0
