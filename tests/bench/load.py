"""The loads that budgets are stated for, scrapers, and what an exporter's processes cost under a load."""

from __future__ import annotations

import contextlib
import http.client
import os
import socket
import ssl
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


REPLICAS = 8


@dataclass(frozen=True)
class Load:
    """Intervals in seconds; GPUs are read each second.  ``ranks`` of a replica decide the lines of its page."""

    name: str
    engines: float
    scrapers: int
    scrape: float
    replicas: int = REPLICAS
    ranks: int = 4


W8 = Load("W8", engines=1.0, scrapers=2, scrape=1.0)
D8 = Load("D8", engines=5.0, scrapers=1, scrape=15.0)
W16 = Load("W16", engines=1.0, scrapers=2, scrape=1.0, replicas=16, ranks=9)
G8 = Load("G8", engines=5.0, scrapers=1, scrape=15.0, replicas=0)
LOADS = {load.name: load for load in (W8, D8, W16, G8)}


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


def connect(port: int, timeout: float = 5.0, tls: ssl.SSLContext | None = None) -> http.client.HTTPConnection:
    """Return a connection that is opened by its first request."""
    if tls is None:
        return http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    return http.client.HTTPSConnection("127.0.0.1", port, timeout=timeout, context=tls)


def ask(connection: http.client.HTTPConnection, path: str, *, packed: bool) -> tuple[float, int, bytes]:
    """Scrape once; return seconds, status and body."""
    started = time.perf_counter()
    connection.request("GET", path, headers={"Accept-Encoding": "gzip" if packed else "identity"})
    answer = connection.getresponse()
    body = answer.read()
    return time.perf_counter() - started, answer.status, body


def get(
    port: int,
    path: str = "/metrics",
    *,
    packed: bool = False,
    timeout: float = 5.0,
    tls: ssl.SSLContext | None = None,
) -> tuple[float, int, bytes]:
    """Scrape once on a fresh connection; return seconds, status and body."""
    with contextlib.closing(connect(port, timeout, tls)) as connection:
        return ask(connection, path, packed=packed)


class Scraper(threading.Thread):
    """Scrapes each ``every`` seconds and keeps the latencies; under TLS on one connection, as Prometheus does."""

    def __init__(
        self,
        port: int,
        *,
        packed: bool,
        phase: float,
        path: str = "/metrics",
        every: float = 1.0,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        super().__init__(daemon=True)
        self.port, self.packed, self.phase = port, packed, phase
        self.path, self.every, self.tls = path, every, tls
        self.seconds: list[float] = []
        self.failures = 0
        self._ending = threading.Event()

    def run(self) -> None:
        connection = connect(self.port, tls=self.tls)
        if self.tls is not None:
            connection.connect()
        due = time.monotonic() + self.phase
        while not self._ending.wait(max(0.0, due - time.monotonic())):
            due += self.every
            try:
                seconds, status, _ = ask(connection, self.path, packed=self.packed)
                self.seconds.append(seconds)
                self.failures += status != 200
            except (OSError, http.client.HTTPException):
                self.failures += 1
                connection.close()
            if self.tls is None:
                connection.close()  # which makes the next request open it anew
        connection.close()

    def end(self) -> None:
        self._ending.set()
        self.join(6)


@contextlib.contextmanager
def engines(ranks: int = 4) -> Iterator[int]:
    """Serve pages of replicas on every path; give the port."""
    port = free_port()
    command = [sys.executable, "-m", "tests.bench.engines", str(port), str(ranks)]
    with running(command, stdout=subprocess.PIPE) as process:
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
    tls: ssl.SSLContext | None = None,
) -> Figures:
    """Wait for data, scrape as the load says for so many seconds, then twice a second for the latencies."""
    first_page = first_data = 0.0
    while not first_data:
        with contextlib.suppress(OSError, http.client.HTTPException):
            if get(port, tls=tls)[1] == 200:
                first_page = first_page or time.perf_counter() - started
                first_data = time.perf_counter() - started if has_data() else 0.0
        if process.poll() is not None or time.perf_counter() - started > START_SECONDS:
            raise SystemExit(f"{process.args}: no data within {START_SECONDS:g} s")
        time.sleep(0.005)
    time.sleep(WARM_UP)
    scrapers = [
        Scraper(port, packed=bool(number % 2), phase=0.3 + 0.4 * number, every=load.scrape, tls=tls)
        for number in range(load.scrapers)
    ]
    if dcgm:
        path = "/metrics/dcgm?dialect=legacy&fields=all"
        scrapers.append(Scraper(port, packed=True, phase=0.0, path=path, every=15.0))
    cpu, cpu_main = _cpu_while(scrapers, process.pid, seconds)
    if load.scrape > 1.0:  # too few scrapes for a quantile
        scrapers = [Scraper(port, packed=False, phase=0.3, every=0.5, tls=tls)]
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
        body=get(port, tls=tls)[2],
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
