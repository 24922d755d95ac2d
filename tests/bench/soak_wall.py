"""The daemon itself for hours of real time, with engines and GPUs that fail and heal, and two scrapers.

    python -m tests.bench.soak_wall [--hours 1]

Each minute half of eight engines and one of two GPUs are broken in one way of ``FAULTS`` and ``DRIVER``, and healed;
when all are up again, private memory, descriptors, threads and processes of daemon and worker are read.  Exits with 1
where memory grew by more than 2 MiB after the first quarter, something was left behind, a scrape failed, or an error
was not handled.
"""

from __future__ import annotations

import argparse
import pathlib
import sys
import time

import tests.support.living_engines  # noqa: F401 - whose faults are served by name
from tests.bench.load import Scraper
from tests.bench.machine import memory_mib, tree
from tests.bench.soak import Usage
from tests.support import servers
from tests.support.fault_matrix import Program, cards, configure, programs
from tests.support.malicious_server import MaliciousServer
from tests.support.page_figures import Figures

REPLICAS = 8
FAULTS = ("no_answer", "silent", "gzip_bomb", "status_500", "explosion", "html", "drip_body", "endless_body")
DRIVER: tuple[dict[str, object], ...] = (
    {"at": {"GPU-a": {"*": {"error": 15}}}},  # lost
    {"calls": {"nvmlDeviceGetTemperatureV": {"block": True}}},
    {"calls": {"nvmlDeviceGetTemperatureV": {"abort": True}}},  # the worker dies
)
BROKEN, ROUND = 20.0, 60.0  # seconds
HEALED = 120.0  # seconds; a worker is started anew after at most a minute
GROWTH = 2.0  # MiB


def usage(program: Program) -> Usage:
    """Return what the daemon and its worker hold; memory without that shared with other processes."""
    pids = tree(program.pid)
    return Usage(
        resident=memory_mib(pids, "Private_Dirty"),  # of no other process, as a share of libraries would be
        descriptors=program.descriptors,
        threads=program.threads,
        processes=len(pids),
    )


def well(page: Figures) -> bool:
    return page.all("llm_up") == [1.0] * REPLICAS and page.all("gpu_up") == [1.0, 1.0]


def minute(program: Program, server: MaliciousServer, folder: pathlib.Path, number: int) -> Usage:
    """Break half of the node and heal it; return what is held afterwards."""
    begun = time.monotonic()
    cards(folder, **DRIVER[number % len(DRIVER)])
    for engine in range(number % 2, REPLICAS, 2):
        server.state[f"r{engine}"] = 1
    time.sleep(BROKEN)
    server.state.clear()
    cards(folder)
    program.wait_for(well, HEALED)
    time.sleep(max(0.0, begun + ROUND - time.monotonic()))
    program.wait_for(well, HEALED)
    return usage(program)


def breaches(samples: list[Usage], scrapers: list[Scraper], program: Program) -> list[str]:
    """Return what was not as it must be; the first quarter, in which caches fill, is left out."""
    quarter = len(samples) // 4
    first, last = samples[quarter], samples[-1]
    found = [f"{scraper.failures} scrapes failed" for scraper in scrapers if scraper.failures]
    if last.resident - first.resident > GROWTH:
        found.append(f"memory grew by {last.resident - first.resident:.2f} MiB")
    for what, open_now in (("descriptors", 2), ("threads", 0), ("processes", 0)):  # a connection is no leak
        before = max(getattr(sample, what) for sample in samples[: quarter + 1])
        after = min(getattr(sample, what) for sample in samples[-quarter:])
        found += [f"{what}: at most {before} became at least {after}"] if after > before + open_now else []
    if "Traceback" in program.text():
        found.append("an error was not handled: " + program.text()[program.text().index("Traceback") :][:2000])
    code, _ = program.end()
    return [*found, *([f"the daemon ended with {code}"] if code else [])]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=float, default=1.0)
    hours = parser.parse_args().hours
    with servers.scratch() as scratch, MaliciousServer() as server, programs() as start:
        folder = pathlib.Path(scratch)
        engines = [(f"r{i}", server.url(f"turned/r{i}/{fault}")) for i, fault in enumerate(FAULTS)]
        program = start(configure(folder, engines, extra="gpu: {deadline: 500ms}\n"), cards(folder))
        program.wait_for(well)
        scrapers = [Scraper(program.port, packed=packed, phase=0.3) for packed in (False, True)]
        for scraper in scrapers:
            scraper.start()
        samples: list[Usage] = []
        end = time.monotonic() + 3600 * hours
        while time.monotonic() < end or len(samples) < 4:
            samples.append(minute(program, server, folder, len(samples)))
            print(f"{len(samples):4} min  {samples[-1]}", flush=True)
        for scraper in scrapers:
            scraper.end()
        found = breaches(samples, scrapers, program)
    print("\n".join(found) or "nothing grew and nothing failed")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
