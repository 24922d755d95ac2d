"""CPU time of the diagnosis: of a snapshot, of a verdict's response, of the node's document, of an agent-check.

    python -m tests.bench.diagnosis [--scenario hang] [--repeat 2000]

The snapshots are those of a simulated node of eight GPUs two minutes after its start: two replicas without and with a
fault, and eight replicas of one GPU each, as at W8.
Prints microseconds of CPU: the median of the repetitions.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import replace

from exporter.http.server.agent_check import AgentCheckServer
from exporter.http.server.api import Api
from exporter.http.server.request import Request
from exporter.render import api_documents
from exporter.runtime.diagnosis import Diagnosis
from exporter.simulate.records import Scenario
from exporter.simulate.scenarios import SCENARIOS
from tests.support.virtual_node import VirtualNode

SECONDS = 120


def eight() -> Scenario:
    """Return a node that is well, with a replica on each of its GPUs."""
    mixed = next(scenario for scenario in SCENARIOS if scenario.name == "mixed")
    replicas = (replace(mixed.replicas[1], name=f"r{number}", ranks=((number,),)) for number in range(8))
    return replace(mixed, name="eight", replicas=tuple(replicas))


def microseconds(call: Callable[[], object], repeat: int) -> float:
    """Return the median CPU time of a call."""
    times = []
    for _ in range(repeat):
        begun = time.thread_time_ns()
        call()
        times.append(time.thread_time_ns() - begun)
    return statistics.median(times) / 1000


def main() -> None:
    """Print one row for each scenario."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenario", default="hang")
    parser.add_argument("--repeat", type=int, default=2000)
    arguments = parser.parse_args()
    print(
        f"{'scenario':10} {'judge':>8} {'verdict':>8} {'agent':>8} {'node':>8}  µs of CPU; node: rendered once a snapshot"
    )
    for scenario in ("healthy", arguments.scenario, eight()):
        snapshot = VirtualNode(scenario).live_until(SECONDS)
        diagnosis, documents = (
            Diagnosis(),
            Api(lambda published=snapshot: published, lambda published=snapshot: published.at),
        )
        name = snapshot.replicas[0].name
        request = Request(method="GET", path=f"/api/v1/verdicts/replica/{name}", query="", headers={})
        agent = AgentCheckServer(
            "127.0.0.1", 0, lambda published=snapshot: published, lambda published=snapshot: published.at
        )
        calls = (
            lambda: diagnosis.judge(snapshot),  # noqa: B023 - called at once
            lambda: documents.answer(request),  # noqa: B023
            lambda: agent.answer(name),  # noqa: B023
            lambda: api_documents.node(snapshot),  # noqa: B023
        )
        figures = [microseconds(call, arguments.repeat) for call in calls]
        agent.stop()
        print(f"{getattr(scenario, 'name', scenario):10} " + " ".join(f"{figure:8.1f}" for figure in figures))


if __name__ == "__main__":
    main()
