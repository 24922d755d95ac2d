"""The loads that budgets are stated for, scrapers, and what an exporter's processes cost under a load."""

from __future__ import annotations

import contextlib
import http.client
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tests.bench.machine import cpu_seconds, memory_mib, percentile, tree

START_SECONDS = 60.0  # until an exporter must serve data
WARM_UP = 5.0
LATENCY_SCRAPES = 30  # two a second, after the CPU time was taken


@dataclass(frozen=True)
class Load:
    """Intervals in seconds; GPUs are read each second.  ``engines``: None for a node without."""

    name: str
    engines: float | None
    scrapers: int
    scrape: float

    @property
    def replicas(self) -> int:
        return 0 if self.engines is None else REPLICAS


W8 = Load("W8", engines=1.0, scrapers=2, scrape=1.0)
D8 = Load("D8", engines=5.0, scrapers=1, scrape=15.0)
G8 = Load("G8", engines=None, scrapers=1, scrape=15.0)
LOADS = {load.name: load for load in (W8, D8, G8)}
REPLICAS = 8


@dataclass(frozen=True)
class Figures:
    """Percent of one core and MiB over all processes; seconds from exec; milliseconds of a scrape."""

    cpu: float
    cpu_main: float
    pss: float
    pss_main: float
    p50: float
    p99: float
    max: float
    failures: int
    first_page: float
    first_data: float
    body: bytes

    @property
    def series(self) -> int:
        return sum(1 for line in self.body.splitlines() if line and not line.startswith(b"#"))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def get(port: int, path: str = "/metrics", *, packed: bool = False, timeout: float = 5.0) -> tuple[float, int, bytes]:
    """Scrape once on a fresh connection; return seconds, status and body."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    started = time.perf_counter()
    connection.request("GET", path, headers={"Accept-Encoding": "gzip" if packed else "identity"})
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return time.perf_counter() - started, answer.status, body


class Scraper(threading.Thread):
    """Scrapes each ``every`` seconds and keeps the latencies."""

    def __init__(self, port: int, *, packed: bool, phase: float, path: str = "/metrics", every: float = 1.0) -> None:
        super().__init__(daemon=True)
        self.port, self.packed, self.phase = port, packed, phase
        self.path, self.every = path, every
        self.seconds: list[float] = []
        self.failures = 0
        self._ending = threading.Event()

    def run(self) -> None:
        due = time.monotonic() + self.phase
        while not self._ending.wait(max(0.0, due - time.monotonic())):
            due += self.every
            try:
                seconds, status, _ = get(self.port, self.path, packed=self.packed)
                self.seconds.append(seconds)
                self.failures += status != 200
            except OSError:
                self.failures += 1

    def end(self) -> None:
        self._ending.set()
        self.join(6)


@contextlib.contextmanager
def engines() -> Iterator[int]:
    """Serve eight replicas' pages; give the port."""
    port = free_port()
    with running([sys.executable, "-m", "tests.bench.engines", str(port)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield port


@contextlib.contextmanager
def busy_processes(number: int) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for _ in range(number):
            stack.enter_context(running([sys.executable, "-c", "while True: pass"]))
        yield


@contextlib.contextmanager
def running(command: list[str], **options: object) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(command, **options)  # type: ignore[call-overload]
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def measure(
    process: subprocess.Popen[bytes],
    port: int,
    load: Load,
    seconds: float,
    *,
    started: float,
    has_data: Callable[[], bool],
    dcgm: bool = False,
) -> Figures:
    """Wait for data, scrape as the load says for so many seconds, then twice a second for the latencies."""
    first_page = first_data = 0.0
    while not first_data:
        with contextlib.suppress(OSError, http.client.HTTPException):
            if get(port)[1] == 200:
                first_page = first_page or time.perf_counter() - started
                first_data = time.perf_counter() - started if has_data() else 0.0
        if process.poll() is not None or time.perf_counter() - started > START_SECONDS:
            raise SystemExit(f"{process.args}: no data within {START_SECONDS:g} s")
        time.sleep(0.005)
    time.sleep(WARM_UP)
    scrapers = [
        Scraper(port, packed=bool(number % 2), phase=0.3 + 0.4 * number, every=load.scrape)
        for number in range(load.scrapers)
    ]
    if dcgm:
        path = "/metrics/dcgm?dialect=legacy&fields=all"
        scrapers.append(Scraper(port, packed=True, phase=0.0, path=path, every=15.0))
    cpu, cpu_main = _cpu_while(scrapers, process.pid, seconds)
    if load.scrape > 1.0:  # too few scrapes for a quantile
        scrapers = [Scraper(port, packed=False, phase=0.3, every=0.5)]
        _cpu_while(scrapers, process.pid, LATENCY_SCRAPES / 2)
    latencies = [value for scraper in scrapers for value in scraper.seconds]
    return Figures(
        cpu=cpu,
        cpu_main=cpu_main,
        pss=memory_mib(tree(process.pid)),
        pss_main=memory_mib([process.pid]),
        p50=1e3 * percentile(latencies, 0.5),
        p99=1e3 * percentile(latencies, 0.99),
        max=1e3 * max(latencies),
        failures=sum(scraper.failures for scraper in scrapers),
        first_page=first_page,
        first_data=first_data,
        body=get(port)[2],
    )


def _cpu_while(scrapers: list[Scraper], pid: int, seconds: float) -> tuple[float, float]:
    """Return percent of a core that the process tree, and the process itself, spend while scrapers run."""
    for scraper in scrapers:
        scraper.start()
    everybody = tree(pid)
    before = {pid: cpu_seconds([pid]) for pid in everybody}
    begun = time.perf_counter()
    time.sleep(seconds)
    elapsed = time.perf_counter() - begun
    spent = {pid: cpu_seconds([pid]) - before[pid] for pid in everybody}
    for scraper in scrapers:
        scraper.end()
    return 100 * sum(spent.values()) / elapsed, 100 * spent[pid] / elapsed


def hogs(*, stress: bool) -> contextlib.AbstractContextManager[None]:
    """Start two busy processes on every core where requested."""
    return busy_processes(2 * (os.cpu_count() or 1)) if stress else contextlib.nullcontext()
