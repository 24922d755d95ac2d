"""The whole daemon at W8: 8 simulated cards, 8 replicas of 1,485 lines polled once a second, two scrapers.

    python -m tests.bench.node [--seconds 60] [--interval 5s] [--dcgm] [--stress] [--series full] [--json FILE]

--interval sets how often engines are polled; --dcgm adds a third scraper, of /metrics/dcgm every 15 s.

Prints CPU of one core (daemon and worker apart: the worker's includes the simulated cards, which a real driver would
not cost), proportional memory, scrape latency, series, and the times from exec to the first page and first data.
--stress puts two busy processes on every core meanwhile.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time

from tests.bench.machine import cpu_seconds, memory_mib, percentile, tree


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def get(port: int, path: str = "/metrics", *, packed: bool = False, timeout: float = 5.0) -> tuple[float, int, bytes]:
    """Scrape once on a fresh connection; give seconds, status and body."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    started = time.perf_counter()
    connection.request("GET", path, headers={"Accept-Encoding": "gzip" if packed else "identity"})
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return time.perf_counter() - started, answer.status, body


def configuration(port: int, engine_port: int, series: str, replicas: int, interval: str = "1s") -> str:
    engines = "".join(
        f"  - {{name: r{i}, url: 'http://127.0.0.1:{engine_port}/r{i}/metrics', interval: {interval}, gpus: [{i % 8}]}}\n"
        for i in range(replicas)
    )
    return f"listen: 127.0.0.1:{port}\nseries: {series}\nengines:\n{engines}"


LAUNCH = """
import gc, sys
gc.disable()  # as cli.main does
from exporter.runtime.app import App, Driver
from exporter.cli.daemon import serve
from exporter.cli.setup import log_to_stderr
from exporter.config import settings
found = settings.load(sys.argv[1], {})
log_to_stderr(found.log)
options = sys.argv[2]
sys.exit(serve(App(found, driver=Driver(module="exporter.simulate.nvml", options=options))))
"""


def driver_options() -> str:
    """Return the options of simulated GPUs without engines of their own."""
    from exporter.simulate.node_spec import NodeSpec  # noqa: PLC0415

    return NodeSpec(scenario="healthy", seed=0, start=time.monotonic()).dumps()


class Scraper(threading.Thread):
    """Scrapes once a second and keeps the latencies."""

    def __init__(self, port: int, *, packed: bool, phase: float, path: str = "/metrics", every: float = 1.0) -> None:
        super().__init__(daemon=True)
        self.port, self.packed, self.phase = port, packed, phase
        self.path, self.every = path, every
        self.seconds: list[float] = []
        self.failures = 0
        self.end = False

    def run(self) -> None:
        due = time.monotonic() + self.phase
        while not self.end:
            time.sleep(min(0.5, max(0.0, due - time.monotonic())))
            if time.monotonic() < due:
                continue
            due += self.every
            try:
                seconds, status, _ = get(self.port, self.path, packed=self.packed)
                self.seconds.append(seconds)
                self.failures += status != 200
            except OSError:
                self.failures += 1


def measure(
    seconds: float, *, stress: bool, series: str, replicas: int = 8, interval: str = "1s", dcgm: bool = False
) -> dict[str, float]:
    """Run the daemon and give its figures."""
    port, engine_port = free_port(), free_port()
    hogs: list[subprocess.Popen[bytes]] = []
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(configuration(port, engine_port, series, replicas, interval))
        file.flush()
        engines = subprocess.Popen(
            [sys.executable, "-m", "tests.bench.engines", str(engine_port)], stdout=subprocess.PIPE
        )
        assert engines.stdout is not None
        engines.stdout.readline()
        if stress:
            for _ in range(2 * (os.cpu_count() or 1)):
                hogs.append(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
        started = time.perf_counter()
        daemon = subprocess.Popen(
            [sys.executable, "-c", LAUNCH, file.name, driver_options()], stderr=subprocess.DEVNULL
        )
        try:
            return figures(daemon, port, started, seconds, dcgm=dcgm)
        finally:
            for process in (daemon, engines, *hogs):
                process.terminate()
            for process in (daemon, engines, *hogs):
                process.wait(10)


def figures(
    daemon: subprocess.Popen[bytes], port: int, started: float, seconds: float, *, dcgm: bool = False
) -> dict[str, float]:
    first_page = first_data = 0.0
    while not first_data:
        try:
            _, status, body = get(port)
            if status == 200:
                first_page = first_page or time.perf_counter() - started
                if body.count(b"\nllm_up{") == 8 == body.count(b"\ngpu_up{") and b"} 0.0" not in b"".join(
                    line for line in body.splitlines() if line.startswith((b"llm_up{", b"gpu_up{"))
                ):
                    first_data = time.perf_counter() - started
        except OSError:
            pass
        if daemon.poll() is not None or time.perf_counter() - started > 60:
            raise SystemExit("the daemon did not come up")
        time.sleep(0.005)
    time.sleep(5)
    scrapers = [Scraper(port, packed=packed, phase=0.3 + 0.4 * packed) for packed in (False, True)]
    if dcgm:
        path = "/metrics/dcgm?dialect=legacy&fields=all"
        scrapers.append(Scraper(port, packed=True, phase=0.0, path=path, every=15.0))
    for scraper in scrapers:
        scraper.start()
    everybody = tree(daemon.pid)
    before = {pid: cpu_seconds([pid]) for pid in everybody}
    begun = time.perf_counter()
    time.sleep(seconds)
    wall = time.perf_counter() - begun
    spent = {pid: cpu_seconds([pid]) - before[pid] for pid in everybody}
    for scraper in scrapers:
        scraper.end = True
    for scraper in scrapers:
        scraper.join(3)
    latencies = [value for scraper in scrapers for value in scraper.seconds]
    _, _, body = get(port)
    return {
        "first_page_s": first_page,
        "first_data_s": first_data,
        "cpu_percent_all": 100 * sum(spent.values()) / wall,
        "cpu_percent_daemon": 100 * spent[daemon.pid] / wall,
        "cpu_percent_worker_and_simulated_driver": 100 * (sum(spent.values()) - spent[daemon.pid]) / wall,
        "pss_mib": memory_mib(tree(daemon.pid)),
        "pss_mib_daemon": memory_mib([daemon.pid]),
        "scrape_p50_ms": 1e3 * percentile(latencies, 0.5),
        "scrape_p99_ms": 1e3 * percentile(latencies, 0.99),
        "scrape_max_ms": 1e3 * max(latencies),
        "scrape_failures": sum(scraper.failures for scraper in scrapers),
        "series": sum(1 for line in body.splitlines() if line and not line.startswith(b"#")),
        "page_bytes": len(body),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--stress", action="store_true")
    parser.add_argument("--series", default="common", choices=["common", "full"])
    parser.add_argument("--interval", default="1s", help="between two polls of an engine, as in the configuration")
    parser.add_argument("--dcgm", action="store_true")
    parser.add_argument("--json")
    arguments = parser.parse_args()
    found = measure(
        arguments.seconds,
        stress=arguments.stress,
        series=arguments.series,
        interval=arguments.interval,
        dcgm=arguments.dcgm,
    )
    for name, value in found.items():
        print(f"{name:42} {value:10.3f}")
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(found, file, indent=1)


if __name__ == "__main__":
    main()
