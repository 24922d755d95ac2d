"""Recordings of scenarios for the preview of the dashboards, made from virtual nodes in seconds instead of live minutes.

``python -m tests.support.recorded_scenarios FOLDER SCENARIO...`` writes what ``dashboards.preview --store FOLDER`` and
the tests draw: the blocks of a Prometheus with the nodes' samples, the recording rules, and the alerts that fire.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

from alerts.rule import seconds
from dashboards.preview import recording
from exporter.catalog.spec import SeriesSet
from tests.support.dashboard_days import COSTS
from tests.support.prometheus_replay import Replay, lines, rules
from tests.support.virtual_node import UNIX_START, VirtualNode

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "tests" / "captures" / "dashboards"  # the recording that CI draws
SCRAPE = 5  # seconds
LOOKBACK = "12s"  # promtool writes no staleness markers
FAULT_AT = 120.0
MINUTES = 12.0


def record(folder, scenarios, *, minutes=MINUTES, series=SeriesSet.COMMON):
    """Write a recording of the scenarios' nodes, whose faults begin after two minutes."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    nodes = tuple(node for name in scenarios for node in recording.nodes_of(name))
    command = [sys.executable, "-m", "tests.support.recorded_scenarios", str(folder)]
    options = ["--minutes", str(minutes), "--series", series.value]
    for at_once in zip(nodes[::2], (*nodes[1::2], None), strict=False):
        running = [
            subprocess.Popen(
                [*command, node.scenario, *options, "--node", str(node.number)], cwd=ROOT
            )
            for node in at_once if node is not None
        ]  # fmt: skip
        assert not any(process.wait() for process in running)
    replay = Replay(folder, hours=minutes / 60, scrape=SCRAPE, lookback=LOOKBACK)
    replay.load([folder / _file(node) for node in nodes], every_rule=True)
    replay.backfill([_as_recording(alert) for alert in rules()[1]], "alerts")
    _merge(replay)
    made = recording.NodeRecording(
        folder=str(folder), nodes=nodes, start=float(UNIX_START), fault=UNIX_START + FAULT_AT,
        end=UNIX_START + minutes * 60, scrape=SCRAPE, lookback=LOOKBACK,
    )  # fmt: skip
    (folder / "recording.json").write_text(json.dumps(asdict(made)))


def _merge(replay):
    """Make one small block of many, and remove what was needed on the way."""
    with replay.serve() as prometheus:
        every = f"{replay.end - replay.begin + SCRAPE}s"
        answer = prometheus.get("/api/v1/query", query=f'{{__name__=~".+"}}[{every}]', time=replay.end)
    for leftover in replay.folder.iterdir():
        shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
    merged = replay.folder / "merged.om"
    with merged.open("w", encoding="utf-8") as file:
        for series in answer["data"]["result"]:
            labels = ",".join(
                f"{key}={json.dumps(value, ensure_ascii=False)}"
                for key, value in series["metric"].items()
                if key != "__name__"
            )
            file.writelines(
                f"{series['metric']['__name__']}{{{labels}}} {value} {at}\n" for at, value in series["values"]
            )
        file.write("# EOF\n")
    replay.create_blocks("openmetrics", str(merged), str(replay.folder / "data"))
    merged.unlink()


def _file(node):
    return f"{node.scenario}-{node.number}.om"


def _as_recording(alert):
    """Return the rule that records an alert while it fires: promtool backfills no alerts."""
    held = max(seconds(alert.for_), SCRAPE)
    expr = f"({alert.expr}) and count_over_time(({alert.expr})[{held}s:{SCRAPE}s]) >= {held // SCRAPE}"
    labels = {"alertname": alert.name, "alertstate": "firing", "severity": alert.severity.value}
    return {"record": "ALERTS", "expr": f"({expr}) * 0 + 1", "labels": labels}


def _live(folder, name, number, minutes, series):
    node = VirtualNode(name, node=number, fault_at=FAULT_AT, interval=float(SCRAPE), costs=COSTS, series=series)
    recorded = recording.RecordedNode(scenario=name, number=number)
    target = f'job="{recording.JOB}",instance="{recorded.instance}"'
    with open(Path(folder) / _file(recorded), "w", encoding="utf-8") as file:
        for now in node.live(minutes * 60):
            if now % SCRAPE == 0:
                at = int(UNIX_START + now)
                samples = list(lines(node.page(), target, at))
                file.writelines(samples)
                file.write(f"scrape_duration_seconds{{{target}}} 0.01 {at}\n")
                file.write(f"scrape_samples_scraped{{{target}}} {len(samples)} {at}\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", default=str(KEPT))
    parser.add_argument("scenario", nargs="*", default=["hang"])
    parser.add_argument("--minutes", type=float, default=MINUTES)
    parser.add_argument("--series", type=SeriesSet, default=SeriesSet.COMMON)
    parser.add_argument("--node", type=int, help="write the samples of this node of the scenario alone")
    given = parser.parse_args()
    if given.node is not None:
        _live(given.folder, given.scenario[0], given.node, given.minutes, given.series)
    else:
        record(given.folder, given.scenario, minutes=given.minutes, series=given.series)


if __name__ == "__main__":
    main()
