"""Memory of the daemon at W8 with every hostile page polled beside the eight healthy replicas.

    python -m tests.bench.hostile [--seconds 30]

Prints the proportional memory before and its peak meanwhile, sampled every 50 ms, daemon and worker together.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time

from tests.bench.load import free_port, get
from tests.bench.machine import memory_mib, tree
from tests.bench.node import LAUNCH, configuration, driver_options
from tests.support import hostile_pages
from tests.support.hostile import FAULTS, Hostile


def peak(pid: int, seconds: float) -> float:
    highest, end = 0.0, time.monotonic() + seconds
    while time.monotonic() < end:
        highest = max(highest, memory_mib(tree(pid)))
        time.sleep(0.05)
    return highest


def launch(path: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", LAUNCH, path, driver_options()], stderr=subprocess.DEVNULL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30.0)
    arguments = parser.parse_args()
    assert hostile_pages.FAULTS is FAULTS
    engine_port = free_port()
    engines = subprocess.Popen(
        [sys.executable, "-m", "tests.bench.engines", str(engine_port)], stdout=subprocess.PIPE
    )
    assert engines.stdout is not None
    engines.stdout.readline()
    found = {}
    try:
        with Hostile() as server:
            bad = "".join(
                f"  - {{name: bad-{name}, kind: vllm, url: '{server.url(name)}', interval: 1s, timeout: 800ms}}\n"
                for name in sorted(set(FAULTS) - {"redirect_port", "redirect_host"})  # they need a second server
            )
            for case, extra in (("W8", ""), (f"W8 and {len(FAULTS)} hostile pages", bad)):
                port = free_port()
                with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
                    file.write(configuration(port, engine_port, "common", 8) + extra)
                    file.flush()
                    daemon = launch(file.name)
                    try:
                        time.sleep(3)
                        found[case] = peak(daemon.pid, arguments.seconds)
                        status, body = get(port)[1:]
                        up = body.count(b"\nllm_up{") and body.split(b"# TYPE llm_up")[1].split(b"# HELP")[0].count(
                            b"} 1.0"
                        )
                        print(f"{case:34} peak {found[case]:6.1f} MiB   page {status}, {up} replicas up")
                    finally:
                        daemon.terminate()
                        daemon.wait(10)
    finally:
        engines.kill()
        engines.wait()
    before, after = found.values()
    print(f"{'growth':34}      {after - before:6.1f} MiB")


if __name__ == "__main__":
    main()
