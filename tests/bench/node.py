"""The whole daemon on 8 simulated GPUs and 8 replicas of 1,485 lines.

    python -m tests.bench.node [--load W8|D8|W16|G8] [--seconds 60] [--dcgm] [--stress] [--series full] [--json FILE]

W8: engines polled and two scrapers, each once a second.  D8: the defaults, engines each 5 s and one scraper each 15 s.
W16: W8 with 16 replicas of 3,110 lines.  G8: D8 without engines.
--dcgm adds a third scraper, of /metrics/dcgm every 15 s; --stress puts two busy processes on every core meanwhile.

Prints CPU of one core (daemon and worker apart: the worker's includes the simulated GPUs, which a real driver would
not cost), proportional memory, scrape latency, series, and the times from exec to the first page and first data.
"""

from __future__ import annotations

import argparse
import json
import ssl
import sys
import tempfile
import time

from tests.bench.load import LOADS, REPLICAS, Load, engines, free_port, get, hogs, measure, running

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


def configuration(port: int, engine_port: int, series: str, replicas: int, interval: str = "1s") -> str:
    rows = "".join(
        f"  - {{name: r{i}, url: 'http://127.0.0.1:{engine_port}/r{i}/metrics', interval: {interval}, gpus: [{i % 8}]}}\n"
        for i in range(replicas)
    )
    return f"listen: 127.0.0.1:{port}\nseries: {series}\n" + (f"engines:\n{rows}" if rows else "")


def driver_options() -> str:
    """Return the options of simulated GPUs without engines of their own."""
    from exporter.simulate.node_spec import NodeSpec  # noqa: PLC0415

    return NodeSpec(scenario="healthy", seed=0, start=time.monotonic()).dumps()


def has_data(port: int, replicas: int = REPLICAS, tls: ssl.SSLContext | None = None) -> bool:
    """Return whether the page shows every GPU and every replica, and all of them up."""
    lines = get(port, tls=tls)[2].splitlines()
    up = [line for line in lines if line.startswith((b"llm_up{", b"gpu_up{"))]
    return len(up) == 8 + replicas and all(line.endswith(b" 1.0") for line in up)


def figures(
    load: Load, seconds: float, *, series: str = "common", stress: bool = False, dcgm: bool = False
) -> dict[str, float]:
    """Run the daemon under a load and return its figures."""
    port = free_port()
    with (
        tempfile.NamedTemporaryFile("w", suffix=".yaml") as file,
        engines(load.ranks) as engine_port,
        hogs(stress=stress),
    ):
        file.write(configuration(port, engine_port, series, load.replicas, f"{load.engines:g}s"))
        file.flush()
        started = time.perf_counter()
        with (
            open("/dev/null", "wb") as nowhere,
            running([sys.executable, "-c", LAUNCH, file.name, driver_options()], stderr=nowhere) as daemon,
        ):
            measured = measure(
                daemon,
                port,
                load,
                seconds,
                started=started,
                has_data=lambda: has_data(port, load.replicas),
                dcgm=dcgm,
            )
    return {
        "first_page_s": measured.first_page,
        "first_data_s": measured.first_data,
        "cpu_percent_all": measured.cpu,
        "cpu_percent_daemon": measured.cpu_main,
        "cpu_percent_worker_and_simulated_driver": measured.cpu - measured.cpu_main,
        "pss_mib": measured.pss,
        "pss_mib_daemon": measured.pss_main,
        "scrape_p50_ms": measured.p50,
        "scrape_p99_ms": measured.p99,
        "scrape_max_ms": measured.max,
        "scrape_failures": measured.failures,
        "series": measured.series,
        "page_bytes": len(measured.body),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--load", default="W8", choices=sorted(LOADS))
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--stress", action="store_true")
    parser.add_argument("--series", default="common", choices=["common", "full"])
    parser.add_argument("--dcgm", action="store_true")
    parser.add_argument("--json")
    given = parser.parse_args()
    measured = figures(LOADS[given.load], given.seconds, series=given.series, stress=given.stress, dcgm=given.dcgm)
    for name, value in measured.items():
        print(f"{name:42} {value:10.3f}")
    if given.json:
        with open(given.json, "w") as file:
            json.dump(measured, file, indent=1)


if __name__ == "__main__":
    main()
