"""A simulated day through the daemon's own readers into a real Prometheus, and which alerts would have fired when.

``write`` lives a ``VirtualNode``, whose clock jumps from reading to reading.  ``Replay`` backfills the pages into
Prometheus, lets promtool backfill the recording rules level by level, asks every alert's expression over the day and
applies its ``for``.  Scenarios that must not meet have a scrape job each: no rule aggregates over jobs.
"""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import yaml

from alerts.registry import groups
from alerts.rule import Alert, Recording, seconds
from alerts.tuning import Tuning
from tests.support import servers
from tests.support.tools import tool
from tests.support.virtual_node import UNIX_START, VirtualNode

JOB = Tuning().job
_SAMPLE = re.compile(r"([a-z_:][a-z0-9_:]*)(?:\{(.*)\})? (\S+)\Z", re.IGNORECASE)
_PART = re.compile(r"_(bucket|count|sum)\Z")


def rules():
    """Return (recordings, alerts) of what ships."""
    every = [rule for group in groups(Tuning()) for rule in group.rules]
    return [r for r in every if isinstance(r, Recording)], [r for r in every if isinstance(r, Alert)]


def read_families():
    """Return the families that rules read; the day is written without the others."""
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


@dataclass(frozen=True, kw_only=True)
class NodeDay:
    """Some hours of a node under a scrape job, read each ``read`` seconds.

    ``fault_at`` and ``fault_until`` are seconds after its start.
    """

    scenario: str
    hours: float
    job: str = JOB
    instance: str = "n1:9853"
    seed: int = 1
    node: int = 0
    fault_at: float | None = None
    fault_until: float | None = None
    read: int = 60

    @property
    def file(self):
        return f"{self.job}-{self.instance}.om"


def write(folder, node_day, *, day, scrape):
    """Write the samples of a node that is scraped each so many seconds.

    Traffic rises and falls once in ``day`` hours; the world takes long steps.
    """
    node = VirtualNode(
        node_day.scenario, seed=node_day.seed, node=node_day.node, fault_at=node_day.fault_at,
        fault_until=node_day.fault_until, day=day * 3600.0, step=1.0, interval=float(node_day.read),
    )  # fmt: skip
    wanted, target = read_families(), f'job="{node_day.job}",instance="{node_day.instance}"'
    with open(Path(folder) / node_day.file, "w", encoding="utf-8") as file:
        for now in node.live(node_day.hours * 3600, every=node_day.read):
            if now % scrape == 0:
                file.writelines(lines(node.page(), target, int(UNIX_START + now), wanted))


# ------------------------------------------------------------------ the replay


class Replay:
    """Days in a Prometheus; ``fired`` says what would have fired."""

    def __init__(self, folder, *, hours, scrape=60):
        self.folder, self.hours, self.step = Path(folder), hours, scrape
        self.begin, self.end = UNIX_START + scrape, UNIX_START + int(hours * 3600)

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
        """Return by alert's name (and severity) the labels of those that fired, and when first."""
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
                    yield series["metric"], at - UNIX_START
                    break

    def _levels(self):
        """Yield the recording rules that alerts need, those first that the next ones read."""
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


@dataclass(frozen=True)
class Fired:
    """What fired while its node lived: by (alert, severity), (labels, seconds after the start) of each series."""

    by_alert: dict

    def names(self, job, *, instance=None):
        """Return the alerts of a job, or of one of its nodes."""
        return {
            name
            for (name, _), found in self.by_alert.items()
            for labels, _ in found
            if labels.get("job", job) == job and instance in (None, labels.get("instance"))
        }

    def of(self, job, alert, severity):
        """Return (labels, seconds) of an alert of a job."""
        return [(labels, at) for labels, at in self.by_alert.get((alert, severity), ()) if labels.get("job") == job]


def replayed(folder, node_days, *, day=24.0, scrape=60, processes=2):
    """Live the nodes' hours and replay them; return what fired, and how long the parts took."""
    begun = time.monotonic()
    _live(folder, node_days, {"day": day, "scrape": scrape}, processes)
    lived = time.monotonic()
    replay = Replay(folder, hours=max(node_day.hours for node_day in node_days), scrape=scrape)
    replay.load([Path(folder) / node_day.file for node_day in node_days])
    loaded = time.monotonic()
    ends = {node_day.job: node_day.hours * 3600 for node_day in node_days}
    fired = {
        alert: [(labels, at) for labels, at in found if at <= ends.get(labels.get("job"), math.inf)]
        for alert, found in replay.fired().items()
    }
    took = {"lived": lived - begun, "loaded": loaded - lived, "asked": time.monotonic() - loaded}
    return Fired({alert: found for alert, found in fired.items() if found}), took


def _live(folder, node_days, options, processes):
    """Share the nodes out among processes, the longest first to whoever has least."""
    shares = [[] for _ in range(min(processes, len(node_days)))]
    for node_day in sorted(node_days, key=lambda node_day: -node_day.hours):
        min(shares, key=lambda share: sum(node_day.hours for node_day in share)).append(node_day)
    running = [
        subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.support.soak_day",
                str(folder),
                json.dumps([list(map(asdict, share)), options]),
            ],
            cwd=Path(__file__).parents[2],
        )
        for share in shares
    ]
    assert [process.wait(1200) for process in running] == [0] * len(running)


def main():
    folder, text = sys.argv[1:]
    node_days, options = json.loads(text)
    for node_day in node_days:
        write(folder, NodeDay(**node_day), **options)


if __name__ == "__main__":
    main()
