"""Two minutes of virtual nodes in a real Prometheus for the queries of dashboards: well, in trouble, idle, and dead.

``python -m tests.support.dashboard_days FOLDER JOB SCENARIO SERIES`` writes those of one node.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

from exporter.catalog.spec import SeriesSet
from exporter.config.settings import CostSettings
from tests.support.prometheus_replay import Replay, lines
from tests.support.virtual_node import UNIX_START, VirtualNode

SCRAPE = 5  # seconds
ALIVE = 90  # seconds after the start, when the living are asked
DEAD = 120  # when those are asked that ended at ``ALIVE``
FAULT_AT = 3.0
COSTS = CostSettings(currency="USD", gpu_hour={"NVIDIA H100 80GB HBM3": 2.5, "NVIDIA H100 PCIe": 2.0})


class Asked:
    """A Prometheus asked as of a time, in seconds after the nodes' start."""

    def __init__(self, server, at):
        self._server, self._at = server, UNIX_START + at

    def now(self, expr):
        """Return (labels, value) of each series."""
        answer = self._server.get("/api/v1/query", query=expr, time=self._at)["data"]["result"]
        return [(series["metric"], [series["value"][1]]) for series in answer]

    def lately(self, expr, seconds=30, step=5):
        """Return (labels, values) of each series over the last seconds."""
        asked = {"query": expr, "start": self._at - seconds, "end": self._at, "step": step}
        answer = self._server.get("/api/v1/query_range", **asked)["data"]["result"]
        return [(series["metric"], [value for _, value in series["values"]]) for series in answer]


@contextlib.contextmanager
def prometheus_over(folder, targets, *, dead):
    """Record live nodes ({job: (scenario, set of series)}); return a Prometheus over them, and one when ``dead`` is."""
    command = [sys.executable, "-m", "tests.support.dashboard_days", str(folder)]
    shares = [list(targets.items())[place::2] for place in range(2)]
    running = [
        subprocess.Popen([*command, *(argument for job, target in share for argument in (job, *target))], cwd=ROOT)
        for share in shares
    ]
    assert [process.wait(300) for process in running] == [0, 0]
    for job in targets:
        with open(_file(folder, job), "a", encoding="utf-8") as file:
            file.writelines(
                f"up{{{_target(job)}}} {int(job != dead)} {UNIX_START + at}\n"
                for at in range(ALIVE + SCRAPE, DEAD + 1, SCRAPE)
            )
    with open(_file(folder, "alerts"), "w", encoding="utf-8") as file:
        file.writelines(
            f'ALERTS{{alertname="Watchdog",alertstate="firing",severity="none"}} 1 {UNIX_START + at}\n'
            for at in range(SCRAPE, DEAD + 1, SCRAPE)
        )
    replay = Replay(Path(folder), hours=DEAD / 3600, scrape=SCRAPE, lookback="12s")
    replay.load([_file(folder, job) for job in ("alerts", *targets)], every_rule=True)
    with replay.serve() as server:
        yield Asked(server, ALIVE), Asked(server, DEAD)


ROOT = Path(__file__).parents[2]


def _file(folder, job):
    return Path(folder) / f"{job}.om"


def _target(job):
    return f'job="{job}",instance="{job}:9853"'


def write(folder, job, scenario, series):
    """Live a node and write what each scrape of it would have stored."""
    node = VirtualNode(scenario, fault_at=FAULT_AT, interval=1.0, costs=COSTS, series=SeriesSet(series))
    with open(_file(folder, job), "w", encoding="utf-8") as file:
        for now in node.live(ALIVE):
            if now % SCRAPE == 0:
                at = int(UNIX_START + now)
                samples = list(lines(node.page(), _target(job), at))
                file.writelines(samples)
                file.write(f"scrape_duration_seconds{{{_target(job)}}} 0.01 {at}\n")
                file.write(f"scrape_samples_scraped{{{_target(job)}}} {len(samples)} {at}\n")


def main():
    folder, *words = sys.argv[1:]
    for place in range(0, len(words), 3):
        write(folder, *words[place : place + 3])


if __name__ == "__main__":
    main()
