"""Memory of the daemon at W8 with every hostile page polled beside the eight healthy replicas.

    python -m tests.bench.malicious [--seconds 30] [--churn 32 [--padding 2200]]

Prints the proportional memory before and its peak meanwhile, sampled every 50 ms, daemon and worker together, the
daemon's CPU time, and the 99th percentile of scrapes.  With --churn the hostile engines are so many that have 2,000
other bucket bounds on every page, polled at the default interval; with --padding 1,000 of them, each with a label of
so many bytes.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from functools import partial

from tests.bench.load import free_port, get
from tests.bench.machine import cpu_seconds, memory_mib, tree
from tests.bench.node import LAUNCH, configuration, driver_options
from tests.support import malicious_pages
from tests.support.malicious_server import FAULTS, MaliciousServer
from tests.support.waiting import until


def peak(pid: int, port: int, seconds: float) -> tuple[float, float]:
    """Return the highest memory in MiB, and the 99th percentile of scrapes in milliseconds."""
    highest, end = 0.0, time.monotonic() + seconds
    took = []
    while time.monotonic() < end:
        highest = max(highest, memory_mib(tree(pid)))
        started = time.monotonic()
        get(port)
        took.append(time.monotonic() - started)
        time.sleep(0.05)
    return highest, 1000 * sorted(took)[int(0.99 * len(took))]


def churning(peer, padding: int = 0) -> None:
    """Reply with bucket bounds that no page had before, each with a label of ``padding`` bytes."""
    number = time.monotonic_ns()
    label = f',x="{"a" * padding}"' if padding else ""
    rows = [
        f'vllm:time_to_first_token_seconds_bucket{{engine="0",le="{number + i}",model_name="m"{label}}} {i}'
        for i in range(1_000 if padding else 2_000)
    ]
    rows.append('vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf",model_name="m"} 2000')
    rows.append('vllm:num_requests_running{engine="0",model_name="m"} 1')
    peer.reply(("\n".join(rows) + "\n").encode())


def answers(port: int) -> bool:
    try:
        return get(port)[1] == 200
    except OSError:
        return False


def launch(path: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", LAUNCH, path, driver_options()], stderr=subprocess.DEVNULL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--churn", type=int, default=0, metavar="ENGINES")
    parser.add_argument("--padding", type=int, default=0, metavar="BYTES")
    arguments = parser.parse_args()
    assert malicious_pages.FAULTS is FAULTS
    engine_port = free_port()
    engines = subprocess.Popen(
        [sys.executable, "-m", "tests.bench.engines", str(engine_port)], stdout=subprocess.PIPE
    )
    assert engines.stdout is not None
    engines.stdout.readline()
    peaks = {}
    try:
        with MaliciousServer() as server:
            bad = "".join(
                f"  - {{name: bad-{name}, kind: vllm, url: '{server.url(name)}', interval: 1s, timeout: 800ms}}\n"
                for name in sorted(set(FAULTS) - {"redirect_port", "redirect_host"})  # they need a second server
            )
            cases = [("W8", ""), (f"W8 and {len(FAULTS)} hostile pages", bad)]
            if arguments.churn:
                FAULTS["churning"] = partial(churning, padding=arguments.padding)
                rows = [
                    f"  - {{name: bad-{i}, kind: vllm, url: '{server.url('churning')}?{i}'}}\n"
                    for i in range(arguments.churn)
                ]
                cases[1] = (f"W8 and {arguments.churn} that churn", "".join(rows))
            for case, extra in cases:
                port = free_port()
                with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
                    file.write(configuration(port, engine_port, "common", 8) + extra)
                    file.flush()
                    daemon = launch(file.name)
                    try:
                        until(lambda port=port: answers(port), 30)
                        before = cpu_seconds(tree(daemon.pid))
                        peaks[case], p99 = peak(daemon.pid, port, arguments.seconds)
                        cpu = (cpu_seconds(tree(daemon.pid)) - before) / arguments.seconds
                        status, body = get(port)[1:]
                        up = body.count(b"\nllm_up{") and body.split(b"# TYPE llm_up")[1].split(b"# HELP")[0].count(
                            b"} 1.0"
                        )
                        print(
                            f"{case:34} peak {peaks[case]:6.1f} MiB   CPU {cpu:5.1%}   p99 {p99:5.1f} ms   page {status}, {up} replicas up"
                        )
                    finally:
                        daemon.terminate()
                        daemon.wait(10)
    finally:
        engines.kill()
        engines.wait()
    before, after = peaks.values()
    print(f"{'growth':34}      {after - before:6.1f} MiB")


if __name__ == "__main__":
    main()
