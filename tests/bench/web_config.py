"""The daemon at W8 with TLS and a user against the same daemon without, in turn in one run; only the ratios compare.

    python -m tests.bench.web_config [--seconds 20] [--rounds 3]

Two scrapers, each once a second on a kept connection, as Prometheus does.  Must: at most 1.6 times the CPU of the
daemon, and p99 of a scrape at most 8 ms.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import http.client
import pathlib
import ssl
import statistics
import sys
import tempfile
import threading
import time
from dataclasses import dataclass

from tests.bench.load import REPLICAS, WARM_UP, engines, free_port, running
from tests.bench.machine import cpu_seconds, percentile
from tests.bench.node import LAUNCH, configuration, driver_options
from tests.support.waiting import until
from tests.support.web_config import USERS, make_keys, tls

HEADERS = {"Authorization": "Basic " + base64.b64encode(b"prometheus:right").decode(), "Accept-Encoding": "gzip"}


@dataclass(frozen=True)
class Cost:
    """Percent of one core, and milliseconds of each scrape."""

    cpu: float
    latencies: list[float]


def cost(folder: pathlib.Path, web: str, context: ssl.SSLContext | None, engine_port: int, seconds: float) -> Cost:
    """Run the daemon under a web configuration, "" for none, and return what it costs."""
    port = free_port()
    text = configuration(port, engine_port, "common", REPLICAS)
    if web:
        (folder / "web.yml").write_text(web)
        text += f"web_config_file: {folder}/web.yml\n"
    config = folder / "shardwatch.yaml"
    config.write_text(text)
    latencies: list[float] = []
    ending = threading.Event()

    def connect() -> http.client.HTTPConnection:
        if context is None:
            return http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        return http.client.HTTPSConnection("127.0.0.1", port, timeout=10, context=context)

    def get(connection: http.client.HTTPConnection) -> bytes:
        connection.request("GET", "/metrics", headers=HEADERS)
        response = connection.getresponse()
        body = response.read()
        if response.status != 200:
            raise OSError(f"status {response.status}")
        return body

    def serves() -> bool:
        with contextlib.suppress(OSError, http.client.HTTPException), contextlib.closing(connect()) as connection:
            return len(get(connection)) > 10_000
        return False

    def scrape(phase: float) -> None:
        with contextlib.closing(connect()) as connection:
            get(connection)
            while not ending.wait(phase or 1.0):
                phase = 0.0
                began = time.perf_counter()
                get(connection)
                latencies.append(1e3 * (time.perf_counter() - began))

    with (
        open("/dev/null", "wb") as nowhere,
        running([sys.executable, "-c", LAUNCH, str(config), driver_options()], stderr=nowhere) as daemon,
    ):
        until(serves)
        time.sleep(WARM_UP)
        scrapers = [threading.Thread(target=scrape, args=(phase,)) for phase in (0.3, 0.7)]
        for scraper in scrapers:
            scraper.start()
        before = cpu_seconds([daemon.pid])
        began = time.perf_counter()
        time.sleep(seconds)
        cpu = 100 * (cpu_seconds([daemon.pid]) - before) / (time.perf_counter() - began)
        ending.set()
        for scraper in scrapers:
            scraper.join()
    return Cost(cpu, latencies)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary, engines() as engine_port:
        folder = pathlib.Path(temporary)
        keys = make_keys(folder)
        context = ssl.create_default_context(cafile=keys.path("ca.pem"))
        plain, secured = [], []
        for _ in range(given.rounds):
            plain.append(cost(folder, "", None, engine_port, given.seconds))
            secured.append(cost(folder, tls(keys) + USERS, context, engine_port, given.seconds))
    for name, costs in (("plain", plain), ("TLS and a user", secured)):
        latencies = [latency for each in costs for latency in each.latencies]
        cpu = statistics.median(each.cpu for each in costs)
        p50, p99 = percentile(latencies, 0.5), percentile(latencies, 0.99)
        print(f"{name:16} CPU {cpu:.2f} %   scrape p50 {p50:.2f} ms, p99 {p99:.2f} ms, {len(latencies)} scrapes")
    ratio = statistics.median(each.cpu for each in secured) / statistics.median(each.cpu for each in plain)
    print(f"CPU with TLS and a user: {ratio:.2f} times that without")


if __name__ == "__main__":
    main()
