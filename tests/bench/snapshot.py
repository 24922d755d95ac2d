"""CPU time of one second of W8 behind the sockets: parse and derive, compose, render.

    python -m tests.bench.snapshot [--series common|full] [--seconds 120]

Eight GPUs and eight replicas of 1,500 lines polled once a second, in one thread and without I/O.  Prints milliseconds
of CPU for each stage: the median over the seconds after the first minute, when the windows are filled.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time

from exporter.catalog.spec import SeriesSet
from exporter.derive.assignment import Assignment
from exporter.model import COMMON_STAGES, LATENCIES, DriverFacts, GpuAssignment, SourceStatus, Window
from exporter.render.exposition import ExpositionRenderer
from exporter.runtime.publisher import Publisher
from exporter.runtime.replica import ReplicaConfig, replica_poller
from exporter.runtime.stragglers import StragglerTracker
from exporter.sources.replay import ReplayedPage
from tests.bench.engines import pages
from tests.support.builders import Clock, card

WARM_UP = 60  # seconds
QUANTILES = (0.5, 0.9, 0.95, 0.99, 0.999)
WINDOWS = (Window("1m", 60.0), Window("5m", 300.0))


class Engine:
    """Serves the next recorded page at each request."""

    def __init__(self, bodies: list[bytes], offset: int) -> None:
        self.bodies = itertools.islice(itertools.cycle(bodies), offset, None)

    def fetch(self, path: str | None = None) -> ReplayedPage:
        return ReplayedPage(body=b'{"version": "0.20.2"}' if path is not None else next(self.bodies))

    def close(self) -> None:
        pass


class Cards:
    """Eight GPUs with the signals that the derivations read."""

    status = SourceStatus(source="driver", up=True)
    removed = ()
    driver = DriverFacts(driver_version="580", nvml_version="13", cuda_version="13.0")

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def state(self, _now: float) -> Cards:
        return self

    @property
    def cards(self):
        second = self.clock.now
        return tuple(
            card(
                index, at=second, utilization=0.9, memory_activity=0.5, memory_total=80e9, memory_used=70e9,
                power=500.0 + second % 7 + index, power_limit=700.0, energy=500.0 * second, temperature_gpu=60.0,
                temperature_margin=25.0, clock_sm=1.9e9, clock_max_sm=1.98e9, sm_active=0.8, dram_active=0.4,
                tensor_active=0.3,
            )
            for index in range(8)
        )  # fmt: skip


def node(series: SeriesSet, clock: Clock) -> tuple[Publisher, list]:
    """Return the publisher of the node and the pollers of its replicas."""
    stages = LATENCIES if series is SeriesSet.FULL else COMMON_STAGES
    bodies = pages()
    pollers = [
        replica_poller(
            ReplicaConfig(
                name=f"r{number}", kind="auto", interval=1.0, windows=WINDOWS, quantiles=QUANTILES, stages=stages
            ),
            Engine(bodies, 30 * number),
            clock=clock,
            unix_now=lambda: 1.7e9,
        )
        for number in range(8)
    ]
    assignment = Assignment(gpus=tuple(GpuAssignment(uuid=f"GPU-{i:04d}", replica=f"r{i // 2}") for i in range(8)))
    publisher = Publisher(
        cards=Cards(clock),
        replicas=lambda: pollers,
        assignment=lambda: assignment,
        publish=lambda _: None,
        stragglers=StragglerTracker().update,
        clock=clock,
        unix_now=lambda: 1.7e9,
    )
    return publisher, pollers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--series", choices=("common", "full"), default="common")
    parser.add_argument("--seconds", type=int, default=120)
    given = parser.parse_args()
    series, clock = SeriesSet(given.series), Clock()
    publisher, pollers = node(series, clock)
    renderer = ExpositionRenderer(openmetrics=True, series=series)
    spent: dict[str, list[float]] = {"parse and derive": [], "compose": [], "render": []}

    def timed(stage: str, work) -> None:
        started = time.process_time()
        result = work()
        spent[stage].append((time.process_time() - started) * 1e3)
        return result

    for _ in range(given.seconds):
        clock.tick(1.0)
        timed("parse and derive", lambda: [poller.poll() for poller in pollers])
        snapshot = timed("compose", publisher.compose)
        page = timed("render", lambda snapshot=snapshot: renderer.render(snapshot))
    medians = {stage: statistics.median(values[WARM_UP:]) for stage, values in spent.items()}
    for stage, median in medians.items():
        print(f"{stage:18} {median:7.2f} ms")
    print(f"{'all':18} {sum(medians.values()):7.2f} ms   {page.series} series, set {series.value}")


if __name__ == "__main__":
    main()
