"""Two hundred scrapes at once, and the page while a driver call never returns.

python -m tests.bench.burst
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time

from tests.bench.load import free_port, get
from tests.bench.machine import memory_mib, percentile, tree
from tests.bench.node import LAUNCH, configuration, driver_options

SCRAPES = 200

# The clients run in a process of their own: two hundred threads beside the measured server would measure themselves.
CLIENTS = f"""
import json, sys, threading, time
from tests.bench.load import get
port, found = int(sys.argv[1]), []
barrier = threading.Barrier({SCRAPES})
def scrape():
    barrier.wait()
    try:
        found.append(get(port, packed=True, timeout=30)[:2])
    except OSError as error:
        found.append((30.0, type(error).__name__))
threads = [threading.Thread(target=scrape) for _ in range({SCRAPES})]
begun = time.perf_counter()
[t.start() for t in threads]
[t.join() for t in threads]
print(json.dumps(found))
"""


def burst(port: int, pid: int) -> None:
    before = memory_mib(tree(pid))
    result = subprocess.run([sys.executable, "-c", CLIENTS, str(port)], capture_output=True, text=True, check=True)
    answers = json.loads(result.stdout)
    statuses: dict[str, int] = {}
    for _, status in answers:
        statuses[str(status)] = statuses.get(str(status), 0) + 1
    slowest = max(seconds for seconds, _ in answers)
    growth = memory_mib(tree(pid)) - before
    print(f"{SCRAPES} scrapes at once: slowest {slowest * 1e3:.0f} ms, statuses {statuses}, memory {growth:+.1f} MiB")


def hang(port: int, daemon: subprocess.Popen[bytes]) -> None:
    """Stop the worker with SIGSTOP: to the daemon that is a driver call that does not return."""
    (worker,) = [pid for pid in tree(daemon.pid) if pid != daemon.pid]
    seconds: list[float] = []
    withdrawn = 0.0
    os.kill(worker, signal.SIGSTOP)
    begun = time.monotonic()
    while time.monotonic() - begun < 8:
        spent, _, body = get(port)
        seconds.append(spent)
        if not withdrawn and b"\ngpu_power_watts{" not in body:
            withdrawn = time.monotonic() - begun
        time.sleep(0.05)
    print(
        f"worker stopped: {len(seconds)} scrapes, p99 {percentile(seconds, 0.99) * 1e3:.1f} ms, "
        f"cards withdrawn after {withdrawn:.1f} s"
    )
    begun = time.monotonic()
    daemon.terminate()
    code = daemon.wait(10)
    print(f"SIGTERM then: ended after {time.monotonic() - begun:.2f} s with {code}")


def main() -> None:
    port, engine_port = free_port(), free_port()
    engines = subprocess.Popen(
        [sys.executable, "-m", "tests.bench.engines", str(engine_port)], stdout=subprocess.PIPE
    )
    assert engines.stdout is not None
    engines.stdout.readline()
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(configuration(port, engine_port, "common", 8))
        file.flush()
        daemon = subprocess.Popen(
            [sys.executable, "-c", LAUNCH, file.name, driver_options()], stderr=subprocess.DEVNULL
        )
        try:
            time.sleep(6)
            for _ in range(3):
                burst(port, daemon.pid)
                time.sleep(1)
            hang(port, daemon)
        finally:
            daemon.kill()
            daemon.wait()
            engines.kill()
            engines.wait()


if __name__ == "__main__":
    threading.stack_size(256 * 1024)
    main()
