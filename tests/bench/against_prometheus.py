"""Shardwatch's window figures against a real Prometheus that scrapes the same engine.

    python -m tests.bench.against_prometheus --engine http://127.0.0.1:8000/metrics [--minutes 5]

Starts the daemon and a Prometheus (on PATH) on loopback, both reading the engine once a second (Prometheus takes the
engine's own page and, for timing, ours), waits, and then compares at twenty instants:

    llm_latency_quantile_seconds   histogram_quantile(q, sum by (le) (increase(engine's buckets[window])))
    llm_kv_cache_hit_ratio         increase(hits) / increase(queries)
    llm_generation_token_rate      rate(generation tokens)
    llm_request_rate               rate(finished requests)
    llm_spec_decode_…              increase(accepted tokens) / increase(drafted tokens, and drafts)
    llm_external_cache_hit_ratio   increase(hits) / increase(queries) of the KV connector

for the names that the engine's table has for this version.

The two read the engine at different moments of a second, so the windows differ by up to one second at either end:
differences of that size are expected, larger ones are a fault.  A window is compared only where it is full: before
that, rate() divides by the whole window and Shardwatch by the time it has really seen.  Put load on the engine
meanwhile.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Callable
from typing import NamedTuple

from exporter.engines.detect import recognise
from exporter.engines.engine import Family
from exporter.model import LATENCIES, Detail, Quantity, Stage
from tests.bench.load import free_port

WINDOWS = ("1m", "5m")
QUANTILES = ("0.5", "0.95", "0.99", "0.999")
OBSERVATIONS = (20, 100, 1000)  # how many a quantile rests on: its differences are printed by these limits


def query(port: int, expression: str, at: float) -> float | None:
    """Evaluate an expression that gives one number; None when it gives none."""
    arguments = urllib.parse.urlencode({"query": expression, "time": f"{at:.3f}"})
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/query?{arguments}", timeout=10) as answer:
        result = json.load(answer)["data"]["result"]
    if not result or result[0]["value"][1] in ("NaN", "+Inf"):
        return None
    return float(result[0]["value"][1])


def families(page: str) -> dict[Quantity | Stage | Family | Detail, str]:
    """Return the name that each field of the engine's table has on its page; counters only where all series count."""
    names = {re.split(r"[{ ]", line, maxsplit=1)[0] for line in page.splitlines()}
    engine = recognise(page.encode())
    if engine is None:
        raise SystemExit("the page is of no engine that is known")
    found: dict[Quantity | Stage | Family | Detail, str] = {}
    for row in engine.fields:
        end = "_bucket" if isinstance(row.target, Stage) else ""
        name = next((name for name in row.names if name + end in names), None)
        if name is not None and (row.where is None or (end and row.where({}))):
            found.setdefault(row.target, name)
    return found


def of_engine(name: str) -> str:
    """Select the engine's own series; asked for OpenMetrics, as Prometheus does, SGLang writes _ for the colon."""
    return f'{{__name__=~"{name.replace(":", "[:_]")}",job="engine"}}'


class Pair(NamedTuple):
    """One figure: the window, its name, our expression, Prometheus' own, and how many observations it rests on."""

    window: str
    name: str
    ours: str
    theirs: str
    observations: str = ""


def pairs(named: dict[Quantity | Stage | Family | Detail, str]) -> list[Pair]:
    """Return everything that is compared."""
    found = []
    for window in WINDOWS:

        def sum_of(function: str, target: Quantity | Family, window: str = window) -> str:
            return f"sum({function}({of_engine(named[target])}[{window}]))" if target in named else ""

        for stage, family in named.items():
            if isinstance(stage, Stage) and stage in LATENCIES:
                count = f'llm_latency_observations{{stage="{stage.value}",window="{window}"}}'
                buckets = f"sum by (le) (increase({of_engine(family + '_bucket')}[{window}]))"
                for q in QUANTILES:
                    ours = f'llm_latency_quantile_seconds{{stage="{stage.value}",quantile="{q}",window="{window}"}}'
                    theirs = f"histogram_quantile({q}, {buckets})"
                    found.append(Pair(window, f"{stage.value} p{float(q) * 100:g} {window}", ours, theirs, count))

        def ratio_of(
            part: Quantity, whole: Quantity, sum_of: Callable[[str, Quantity | Family], str] = sum_of
        ) -> str:
            return f"{sum_of('increase', part)} / {sum_of('increase', whole)}" if part in named else ""

        accepted = Quantity.SPEC_ACCEPTED_TOKENS
        external = ratio_of(Quantity.EXTERNAL_CACHE_HITS, Quantity.EXTERNAL_CACHE_QUERIES)
        found += [
            Pair(window, f"{name} {window}", f'{metric}{{window="{window}"}}', theirs)
            for name, metric, theirs in (
                (
                    "hit ratio",
                    "llm_kv_cache_hit_ratio",
                    ratio_of(Quantity.PREFIX_CACHE_HITS, Quantity.PREFIX_CACHE_QUERIES),
                ),
                ("external hits", "llm_external_cache_hit_ratio", external),
                ("acceptance", "llm_spec_decode_acceptance_ratio", ratio_of(accepted, Quantity.SPEC_DRAFT_TOKENS)),
                (
                    "accepted length",
                    "llm_spec_decode_accepted_length_tokens",
                    ratio_of(accepted, Quantity.SPEC_DRAFTS),
                ),
                ("token rate", "llm_generation_token_rate", sum_of("rate", Quantity.GENERATION_TOKENS)),
                ("request rate", "llm_request_rate", sum_of("rate", Family.FINISHED)),
            )
            if theirs
        ]
    return found


def compare(port: int, begun: float, now: float, named: dict[Quantity | Stage | Family | Detail, str]) -> None:
    """Print the differences at twenty instants after each window was full, and of quantiles by observations."""
    print(f"{'figure':36} {'n':>4} {'median difference':>18} {'largest':>9}   (relative; newest: ours, theirs)")
    by_observations: dict[int | None, list[float]] = {}
    for pair in pairs(named):
        differences, last = [], ("", "")
        span = now - begun - 60.0 * int(pair.window[:-1])
        for step in range(20 if span > 0 else 0):
            at = now - span + span * step / 19
            a, b = query(port, pair.ours, at), query(port, pair.theirs, at)
            if a is not None and b:
                differences.append(abs(a - b) / abs(b))
                last = (f"{a:.5g}", f"{b:.5g}")
                count = query(port, pair.observations, at) if pair.observations else None
                if count is not None:
                    limit = next((limit for limit in OBSERVATIONS if count < limit), None)
                    by_observations.setdefault(limit, []).append(differences[-1])
        if differences:
            differences.sort()
            middle, max_difference = differences[len(differences) // 2], differences[-1]
            print(f"{pair.name:36} {len(differences):4} {middle:18.4%} {max_difference:9.3%}   {last[0]} {last[1]}")
    for limit in (*OBSERVATIONS, None):
        found = sorted(by_observations.get(limit, []))
        if found:
            words = f"quantiles, {'more' if limit is None else f'below {limit}'} observations"
            tail = found[int(len(found) * 0.95)]
            print(f"{words:36} {len(found):4} {found[len(found) // 2]:18.4%} {found[-1]:9.3%}   p95 {tail:.3%}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", required=True, help="URL of the engine's metrics page")
    parser.add_argument("--minutes", type=float, default=7.0, help="more than the longest window, 5")
    arguments = parser.parse_args()
    prometheus = shutil.which("prometheus")
    if prometheus is None:
        raise SystemExit("prometheus is not on PATH (Debian package: prometheus)")
    ours, theirs = free_port(), free_port()
    target = urllib.parse.urlsplit(arguments.engine)
    with tempfile.TemporaryDirectory() as folder:
        home = pathlib.Path(folder)
        (home / "shardwatch.yaml").write_text(
            f"listen: 127.0.0.1:{ours}\nseries: full\ngpu: {{enabled: false}}\n"
            f"engines:\n  - {{name: real, url: '{arguments.engine}', interval: 1s, timeout: 800ms}}\n"
        )
        (home / "prometheus.yml").write_text(
            "global: {scrape_interval: 1s, scrape_timeout: 1s}\nscrape_configs:\n"
            f"  - {{job_name: engine, metrics_path: '{target.path}', static_configs: [{{targets: ['{target.netloc}']}}]}}\n"
            f"  - {{job_name: shardwatch, static_configs: [{{targets: ['127.0.0.1:{ours}']}}]}}\n"
        )
        command = [prometheus, f"--config.file={home}/prometheus.yml", f"--storage.tsdb.path={home}/data"]
        command += [f"--web.listen-address=127.0.0.1:{theirs}", "--log.level=error"]
        processes = [
            subprocess.Popen([sys.executable, "-m", "exporter", "run", "--config", f"{home}/shardwatch.yaml"]),
            subprocess.Popen(command),
        ]
        try:
            begun = time.time() + 5
            time.sleep(60 * arguments.minutes)
            # Some engines show no series before a request has ended, so the names are those of the end.
            with urllib.request.urlopen(arguments.engine, timeout=30) as answer:
                named = families(answer.read().decode())
            compare(theirs, begun, time.time() - 2, named)
        finally:
            for process in processes:
                process.terminate()
                process.wait(10)


if __name__ == "__main__":
    main()
