"""Metrics pages of virtual nodes in a real Prometheus: backfilled with the recording rules, and asked.

promtool backfills the pages, then the recording rules level by level; an alert fires where its expression holds for
its ``for``.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import yaml

from alerts.registry import groups
from alerts.rule import Alert, Recording, seconds
from alerts.tuning import Tuning
from tests.support import servers
from tests.support.tools import tool
from tests.support.virtual_node import UNIX_START

_SAMPLE = re.compile(r"([a-z_:][a-z0-9_:]*)(?:\{(.*)\})? (\S+)\Z", re.IGNORECASE)
BLOCK = 7200  # seconds of samples in a block of Prometheus
PART = re.compile(r"_(bucket|count|sum)\Z")


def rules():
    """Return (recordings, alerts) of what ships."""
    every = [rule for group in groups(Tuning()) for rule in group.rules]
    return [r for r in every if isinstance(r, Recording)], [r for r in every if isinstance(r, Alert)]


def lines(page, target, at, wanted=None):
    """Turn a page into OpenMetrics samples with a target's labels and a time, as a scrape would have stored them.

    ``wanted``: the families that are kept, all of them where it is None.
    """
    for line in page.splitlines():
        if line.startswith("#"):
            continue
        name, labels, value = _SAMPLE.match(line).groups()
        if wanted is None or name in wanted or PART.sub("", name) in wanted:
            yield f"{name}{{{target}{',' + labels if labels else ''}}} {value} {at}\n"
    yield f"up{{{target}}} 1 {at}\n"


class Replay:
    """Days in a Prometheus; ``fired`` says what would have fired."""

    def __init__(self, folder, *, hours, scrape=60, lookback="5m"):
        self.folder, self.hours, self.step, self._lookback = Path(folder), hours, scrape, lookback
        self.begin, self.end = UNIX_START + scrape, UNIX_START + int(hours * 3600)

    def load(self, days, *, every_rule=False):
        """Backfill the nodes' days and the recording rules, all of them or those that alerts read."""
        for part in self._blocks(days):
            self.create_blocks("openmetrics", str(part), str(self.folder / "data"))
            part.unlink()
        for number, level in enumerate(_levels(every_rule=every_rule)):
            self.backfill(level, f"level{number}")

    def backfill(self, level, name):
        """Add the series of recording rules that do not read each other."""
        place, made = self.folder / f"{name}.yaml", self.folder / f"made-{name}"
        place.write_text(yaml.safe_dump({"groups": [{"name": "level", "interval": f"{self.step}s", "rules": level}]}))
        with self.serve() as prometheus:
            self.create_blocks(
                "rules", f"--url={prometheus.url}", f"--start={self.begin}", f"--end={self.end}",
                f"--eval-interval={self.step}s", f"--output-dir={made}", str(place),
            )  # fmt: skip
        for block in made.iterdir():
            if block.is_dir() and len(block.name) == 26:
                block.rename(self.folder / "data" / block.name)

    def _blocks(self, days):
        """Yield the samples of all nodes in a file for each block, because promtool reads a file once per block."""
        files = [Path(day).open("rb") for day in days]
        pending = [next(file, b"") for file in files]
        first = self.begin - (self.begin - UNIX_START) % BLOCK  # samples may begin long after UNIX_START
        for end in range(first + BLOCK, self.end + BLOCK + 1, BLOCK):
            part = self.folder / "block.om"
            with part.open("wb") as out:
                for number, file in enumerate(files):
                    line = pending[number]
                    while line and int(line.rsplit(b" ", 1)[1]) < end:
                        out.write(line)
                        line = next(file, b"")
                    pending[number] = line
                out.write(b"# EOF\n")
            yield part
        for file in files:
            file.close()

    def serve(self):
        """Run a Prometheus over what is there."""
        arguments = ("--storage.tsdb.retention.time=50y", f"--query.lookback-delta={self._lookback}")
        return servers.prometheus({}, folder=self.folder, arguments=arguments)

    def fired(self):
        """Return by alert's name (and severity) the labels of those that fired, and when first."""
        firings = {}
        with self.serve() as prometheus:
            for alert in rules()[1]:
                for labels, at in self._of(prometheus, alert):
                    firings.setdefault((alert.name, alert.severity.value), []).append((labels, at))
        return firings

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

    def create_blocks(self, *arguments):
        """Run ``promtool tsdb create-blocks-from``."""
        command = [tool("promtool"), "tsdb", "create-blocks-from", "--quiet", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


def _levels(*, every_rule):
    """Yield the recording rules, or those that alerts need, those first that the next ones read."""
    recordings, alerts = rules()
    by_name = {}
    for recording in recordings:
        by_name.setdefault(recording.name, []).append(recording)
    needed, todo = set(), [source for alert in alerts for source in alert.expr.sources]
    while todo:
        name = todo.pop()
        if name in by_name and name not in needed:
            needed.add(name)
            todo += [source for recording in by_name[name] for source in recording.expr.sources]
    if every_rule:
        needed = set(by_name)
    done = set()
    while needed - done:
        ready = {
            name for name in needed - done
            if all(source in done or source not in by_name for recording in by_name[name] for source in recording.expr.sources)
        }  # fmt: skip
        assert ready, f"recordings read each other: {needed - done}"
        yield [
            {"record": recording.name, "expr": str(recording.expr), "labels": dict(recording.labels)}
            for name in sorted(ready) for recording in by_name[name]
        ]  # fmt: skip
        done |= ready
