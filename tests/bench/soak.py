"""Memory over many polls: one replica polled as fast as it goes, with restarts, failures and derivations.

    python -m tests.bench.soak [--polls 100000]

Prints the resident memory at every tenth and its slope in KiB per million polls.
"""

from __future__ import annotations

import argparse
import gc
import os

from exporter.catalog.spec import SeriesSet
from exporter.errors import EndpointError
from exporter.model import Snapshot, Window
from exporter.render.exposition import ExpositionRenderer
from exporter.runtime.replica import ReplicaConfig, replica_poller
from exporter.sources.replay import ReplayedPage
from tests.bench.engines import pages
from tests.bench.machine import memory_mib


class Engine:
    """Gives page after page, begins anew after the last, and fails now and then."""

    def __init__(self) -> None:
        self.pages = pages(1)
        self.polls = 0

    def fetch(self, path: str | None = None) -> ReplayedPage:
        self.polls += 1
        if self.polls % 97 == 0:
            raise EndpointError("timeout", "now and then")
        return ReplayedPage(body=self.pages[self.polls % len(self.pages)])

    def close(self) -> None:
        pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--polls", type=int, default=100_000)
    polls = parser.parse_args().polls
    now = 0.0

    def clock() -> float:
        return now

    plan = ReplicaConfig(
        name="r",
        kind="auto",
        interval=1.0,
        windows=(Window("1m", 60.0), Window("5m", 300.0)),
        quantiles=(0.5, 0.95, 0.99, 0.999),
    )
    poller = replica_poller(plan, Engine(), clock=clock, unix_now=lambda: 1.7e9 + now)
    renderer = ExpositionRenderer(openmetrics=True, series=SeriesSet.FULL)
    sizes: list[float] = []
    for poll in range(polls):
        now += 1.0
        poller.poll()
        if poll % 10 == 0:
            renderer.render(
                Snapshot(at=now, unix_time=now, replicas=(poller.view(now),), sources=(poller.state.status,))
            )
        if poll % (polls // 10) == polls // 10 - 1:
            gc.collect()
            sizes.append(memory_mib([os.getpid()], "Rss"))
            print(f"{poll + 1:8} polls  {sizes[-1]:7.2f} MiB", flush=True)
    slope = (sizes[-1] - sizes[1]) * 1024 / (0.8 * polls) * 1e6
    print(f"slope {slope:.0f} KiB per million polls (first tenth left out)")


if __name__ == "__main__":
    main()
