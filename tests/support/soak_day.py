"""A simulated day through the daemon's own readers into a real Prometheus, and which alerts would have fired when.

``write`` lives the day in this process: a ``VirtualNode``, whose clock jumps from reading to reading.  ``Replay``
backfills the pages into Prometheus, lets promtool backfill the recording rules level by level, asks every alert's
expression over the day and applies its ``for``.  ``python -m tests.support.soak_day SCENARIO PATH …`` writes one
node's day: processes share the cores.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from pathlib import Path

import yaml

from alerts.registry import groups
from alerts.rule import Alert, Recording, seconds
from alerts.tuning import Tuning
from tests.support import servers
from tests.support.tools import tool
from tests.support.virtual_node import UNIX_START as BEGIN
from tests.support.virtual_node import VirtualNode

JOB = Tuning().job
_SAMPLE = re.compile(r"([a-z_:][a-z0-9_:]*)(?:\{(.*)\})? (\S+)\Z", re.IGNORECASE)
_PART = re.compile(r"_(bucket|count|sum)\Z")


def rules():
    """Give (recordings, alerts) of what ships."""
    every = [rule for group in groups(Tuning()) for rule in group.rules]
    return [r for r in every if isinstance(r, Recording)], [r for r in every if isinstance(r, Alert)]


def read_families():
    """Name the families that rules read; the day is written without the others."""
    recordings, alerts = rules()
    return {_PART.sub("", source) for rule in (*recordings, *alerts) for source in rule.expr.sources}


# ------------------------------------------------------------------ one node's day


def lines(page, target, at, wanted):
    """Turn a page into OpenMetrics samples with a target's labels and a time, as a scrape would have stored them."""
    for line in page.splitlines():
        if line.startswith("#"):
            continue
        name, labels, value = _SAMPLE.match(line).groups()
        if name in wanted or _PART.sub("", name) in wanted:
            yield f"{name}{{{target}{',' + labels if labels else ''}}} {value} {at}\n"
    yield f"up{{{target}}} 1 {at}\n"


def write(
    scenario,
    path,
    *,
    hours,
    day=24.0,
    read=30,
    scrape=60,
    instance="n1:9853",
    seed=1,
    fault_at=None,
    fault_until=None,
):
    """Live so many hours of a node and write its samples; traffic rises and falls once in ``day`` hours."""
    node = VirtualNode(scenario, seed=seed, fault_at=fault_at, fault_until=fault_until, day=day * 3600.0)
    wanted, target = read_families(), f'job="{JOB}",instance="{instance}"'
    with open(path, "w", encoding="utf-8") as file:
        for now in node.live(hours * 3600, every=read):
            if now % scrape == 0:
                file.writelines(lines(node.page(), target, int(BEGIN + now), wanted))


# ------------------------------------------------------------------ the replay


class Replay:
    """Days in a Prometheus; ``fired`` says what would have fired."""

    def __init__(self, folder, *, hours, scrape=60):
        self.folder, self.hours, self.step = Path(folder), hours, scrape
        self.begin, self.end = BEGIN + scrape, BEGIN + int(hours * 3600)

    def load(self, days):
        """Backfill the nodes' days and the recording rules that alerts read."""
        whole = self.folder / "day.om"
        with whole.open("wb") as out:
            for day in days:
                out.write(Path(day).read_bytes())
            out.write(b"# EOF\n")
        self._promtool("openmetrics", str(whole), str(self.folder / "data"))
        for number, level in enumerate(self._levels()):
            place = self.folder / f"level{number}.yaml"
            place.write_text(
                yaml.safe_dump({"groups": [{"name": "level", "interval": f"{self.step}s", "rules": level}]})
            )
            with self.serve() as prometheus:
                self._promtool(
                    "rules", f"--url={prometheus.url}", f"--start={self.begin}", f"--end={self.end}",
                    f"--eval-interval={self.step}s", f"--output-dir={self.folder}/made{number}", str(place),
                )  # fmt: skip
            for block in (self.folder / f"made{number}").iterdir():
                if block.is_dir() and len(block.name) == 26:
                    block.rename(self.folder / "data" / block.name)

    def serve(self):
        """Run a Prometheus over what is there."""
        return servers.prometheus({}, folder=self.folder, arguments=("--storage.tsdb.retention.time=50y",))

    def fired(self):
        """Give by alert's name (and severity) the labels of those that fired, and when first."""
        found = {}
        with self.serve() as prometheus:
            for alert in rules()[1]:
                for labels, at in self._of(prometheus, alert):
                    found.setdefault((alert.name, alert.severity.value), []).append((labels, at))
        return found

    def _of(self, prometheus, alert):
        answer = prometheus.get(
            "/api/v1/query_range", query=str(alert.expr), start=self.begin, end=self.end, step=self.step
        )  # fmt: skip
        held = seconds(alert.for_)
        for series in answer["data"]["result"]:
            since = last = None
            for at, _ in series["values"]:
                since = at if last is None or at - last > self.step else since
                last = at
                if at - since >= held:
                    yield series["metric"], at - BEGIN
                    break

    def _levels(self):
        """Give the recording rules that alerts need, those first that the next ones read."""
        recordings, alerts = rules()
        by_name = {}
        for one in recordings:
            by_name.setdefault(one.name, []).append(one)
        needed, todo = set(), [source for alert in alerts for source in alert.expr.sources]
        while todo:
            name = todo.pop()
            if name in by_name and name not in needed:
                needed.add(name)
                todo += [source for one in by_name[name] for source in one.expr.sources]
        done = set()
        while needed - done:
            ready = {
                name for name in needed - done
                if all(source in done or source not in by_name for one in by_name[name] for source in one.expr.sources)
            }  # fmt: skip
            assert ready, f"recordings read each other: {needed - done}"
            yield [
                {"record": one.name, "expr": str(one.expr), "labels": dict(one.labels)}
                for name in sorted(ready) for one in by_name[name]
            ]  # fmt: skip
            done |= ready

    def _promtool(self, *arguments):
        command = [tool("promtool"), "tsdb", "create-blocks-from", "--quiet", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


def spawn(scenario, path, **options):
    """Write a node's day in a process of its own."""
    given = [f"--{key.replace('_', '-')}={value}" for key, value in options.items()]
    command = [sys.executable, "-m", "tests.support.soak_day", scenario, str(path), *given]
    return subprocess.Popen(command, cwd=Path(__file__).parents[2])


def replayed(folder, days, *, hours, day=24.0, read=30, scrape=60):
    """Live the days at once ({instance: (scenario, more options)}), replay them; gives what fired and the seconds."""
    begun = time.monotonic()
    processes = {
        f"{folder}/{instance}.om": spawn(
            scenario,
            f"{folder}/{instance}.om",
            **{"hours": hours, "day": day, "read": read, "scrape": scrape, "instance": instance, **more},
        )  # fmt: skip
        for instance, (scenario, more) in days.items()
    }
    assert [process.wait(1200) for process in processes.values()] == [0] * len(processes)
    lived = time.monotonic()
    replay = Replay(folder, hours=hours, scrape=scrape)
    replay.load(processes)
    loaded = time.monotonic()
    fired = replay.fired()
    return fired, {"lived": lived - begun, "loaded": loaded - lived, "asked": time.monotonic() - loaded}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("scenario")
    parser.add_argument("path")
    parser.add_argument("--hours", type=float, required=True)
    for name, kind in (
        ("--day", float),
        ("--read", int),
        ("--scrape", int),
        ("--seed", int),
        ("--fault-at", float),
        ("--fault-until", float),
    ):
        parser.add_argument(name, type=kind, default=argparse.SUPPRESS)
    parser.add_argument("--instance", default="n1:9853")
    given = vars(parser.parse_args())
    write(given.pop("scenario"), given.pop("path"), **given)


if __name__ == "__main__":
    main()
