"""Shardwatch's window figures against a real Prometheus that scrapes the same engine.

    python -m tests.bench.against_prometheus --engine http://127.0.0.1:8000/metrics [--minutes 5]

Starts the daemon and a Prometheus (on PATH) on loopback, both reading the engine once a second (Prometheus takes the
engine's own page and, for timing, ours), waits, and then compares at twenty instants:

    llm_latency_quantile_seconds   histogram_quantile(q, sum by (le) (increase(engine's buckets[window])))
    llm_kv_cache_hit_ratio         increase(hits) / increase(queries)
    llm_generation_token_rate      rate(generation tokens)
    llm_request_rate               rate(finished requests)

The two read the engine at different moments of a second, so the windows differ by up to one second at either end:
differences of that size are expected, larger ones are a fault.  A window is compared only where it is full: before
that, rate() divides by the whole window and Shardwatch by the time it has really seen.  Put load on the engine meanwhile.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request

from tests.bench.load import free_port

WINDOWS = ("1m", "5m")
QUANTILES = ("0.5", "0.95", "0.99", "0.999")
STAGES = {
    "time_to_first_token": "vllm:time_to_first_token_seconds",
    "inter_token": "vllm:inter_token_latency_seconds",
    "request": "vllm:e2e_request_latency_seconds",
    "queue": "vllm:request_queue_time_seconds",
    "prefill": "vllm:request_prefill_time_seconds",
    "decode": "vllm:request_decode_time_seconds",
    "time_per_output_token": "vllm:request_time_per_output_token_seconds",
}


def query(port: int, expression: str, at: float) -> float | None:
    """Evaluate an expression that gives one number; None when it gives none."""
    arguments = urllib.parse.urlencode({"query": expression, "time": f"{at:.3f}"})
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/query?{arguments}", timeout=10) as answer:
        result = json.load(answer)["data"]["result"]
    if not result or result[0]["value"][1] in ("NaN", "+Inf"):
        return None
    return float(result[0]["value"][1])


def pairs() -> list[tuple[str, str, str, str]]:
    """Return window, name, our expression and Prometheus' own, for everything that is compared."""
    pairs_found = []
    for window in WINDOWS:
        for stage, family in STAGES.items():
            for q in QUANTILES:
                pairs_found.append(
                    (
                        window,
                        f"{stage} p{float(q) * 100:g} {window}",
                        f'llm_latency_quantile_seconds{{stage="{stage}",quantile="{q}",window="{window}"}}',
                        f'histogram_quantile({q}, sum by (le) (increase({family}_bucket{{job="engine"}}[{window}])))',
                    )
                )
        hits, queries = (
            f"sum(increase(vllm:prefix_cache_{which}_total{{job='engine'}}[{window}]))"
            for which in ("hits", "queries")
        )
        pairs_found.append(
            (window, f"hit ratio {window}", f'llm_kv_cache_hit_ratio{{window="{window}"}}', f"{hits} / {queries}")
        )
        tokens = f"sum(rate(vllm:generation_tokens_total{{job='engine'}}[{window}]))"
        pairs_found.append(
            (window, f"token rate {window}", f'llm_generation_token_rate{{window="{window}"}}', tokens)
        )
        requests = f"sum(rate(vllm:request_success_total{{job='engine'}}[{window}]))"
        pairs_found.append((window, f"request rate {window}", f'llm_request_rate{{window="{window}"}}', requests))
    return pairs_found


def compare(port: int, begun: float, now: float) -> None:
    """Print the differences at twenty instants after each window was full."""
    print(f"{'figure':36} {'n':>4} {'median difference':>18} {'largest':>9}   (relative; newest: ours, theirs)")
    for window, name, ours, theirs in pairs():
        differences, last = [], ("", "")
        span = now - begun - 60.0 * int(window[:-1])
        for step in range(20 if span > 0 else 0):
            at = now - span + span * step / 19
            a, b = query(port, ours, at), query(port, theirs, at)
            if a is not None and b:
                differences.append(abs(a - b) / abs(b))
                last = (f"{a:.5g}", f"{b:.5g}")
        if differences:
            differences.sort()
            middle, max_difference = differences[len(differences) // 2], differences[-1]
            print(f"{name:36} {len(differences):4} {middle:18.4%} {max_difference:9.3%}   {last[0]} {last[1]}")
        else:
            print(f"{name:36}    0")


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
            compare(theirs, begun, time.time() - 2)
        finally:
            for process in processes:
                process.terminate()
                process.wait(10)


if __name__ == "__main__":
    main()
