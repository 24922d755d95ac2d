"""A simulated day through the daemon's own readers into a real Prometheus, and which alerts would have fired when.

``write`` lives the day in this process: the real card reader, engine and gateway pollers, derivations and collector
over one simulated world, on a clock that jumps from reading to reading.  ``Replay`` backfills the pages into
Prometheus, lets promtool backfill the recording rules level by level, asks every alert's expression over the day and
applies its ``for``.  ``python tests/quiet_day.py SCENARIO …`` writes one node's day: processes share the cores.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import subprocess
import sys
import time
from pathlib import Path

import yaml

from alerts.registry import groups
from alerts.rule import Alert, Recording, seconds
from alerts.tuning import Tuning
from tests.support import servers, simulated
from tests.support.builders import Clock

BEGIN = 1_767_571_200  # Unix time of the day's start: Monday 2026-01-05, midnight UTC
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


class Node:
    """A simulated node that this process reads as the daemon does."""

    def __init__(self, scenario, *, seed, fault_at=None, fault_until=None):
        from exporter.catalog.spec import Series
        from exporter.config.settings import CostSettings
        from exporter.derive.replicas import Assignment
        from exporter.render.exposition import ExpositionRenderer
        from exporter.runtime.costs import Ledger
        from exporter.runtime.gateway import GatewayPlan, gateway_poller
        from exporter.runtime.gpu_events import Events
        from exporter.runtime.publisher import Publisher
        from exporter.runtime.stragglers import StragglerWatch
        from exporter.simulate import cards as simulated_cards
        from exporter.simulate import playing
        from exporter.simulate.gateway import Gateway
        from exporter.simulate.plan import Plan

        self.clock = Clock(0.0)
        Plan.now = lambda _: self.clock.now  # the only clock that the simulation has
        playing.CATCH_UP = 600.0
        plan = Plan(
            scenario=scenario, seed=seed, start=0.0, wall=float(BEGIN), fault_at=fault_at, fault_until=fault_until
        )
        self.cards = Cards(plan, self.clock)
        self.world = simulated_cards._node[0].world
        owners = self._owners()
        self.replicas = [self._poller(spec) for spec in self.world.scenario.replicas]
        gateway = Gateway(plan)
        gateway._world = self.world
        self.gateway = gateway_poller(
            GatewayPlan(name="edge", kind="auto", interval=30.0, windows=simulated.WINDOWS),
            Answers(gateway.page), clock=self.clock, wall=self.wall,
        )  # fmt: skip
        ledger, costs = Ledger(), CostSettings()
        self.renderer = ExpositionRenderer(openmetrics=False, series=Series.FULL)
        self.publisher = Publisher(
            cards=self.cards,
            replicas=lambda: self.replicas,
            gateways=lambda: [self.gateway],
            assignment=lambda: Assignment(owners=owners),
            xids=Events(clock=self.clock, wall=self.wall).view,
            publish=lambda _: None,
            economy=lambda *said: ledger.account(*said, windows=simulated.WINDOWS, costs=costs),
            stragglers=StragglerWatch().look,
            clock=self.clock,
            wall=self.wall,
        )

    def wall(self):
        return BEGIN + self.clock.now

    def _owners(self):
        from exporter.model import Ownership

        return tuple(
            Ownership(uuid=self.cards.uuids[index], replica=spec.name, rank=str(rank) if len(spec.ranks) > 1 else "")
            for spec in self.world.scenario.replicas
            for rank, group in enumerate(spec.ranks)
            for index in group
        )

    def _poller(self, spec):
        from exporter.runtime.replica import ReplicaPlan, replica_poller

        plan = ReplicaPlan(
            name=spec.name, kind="vllm", interval=30.0, windows=simulated.WINDOWS, quantiles=(0.5, 0.95, 0.99)
        )
        page = simulated.Page(self.world, spec.name)
        return replica_poller(plan, page, clock=self.clock, wall=self.wall)

    def live(self, hours, *, read, scrape):
        """Read every ``read`` seconds; yield (Unix time, page) every ``scrape``."""
        for now in range(read, int(hours * 3600) + 1, read):
            self.clock.now = float(now)
            self.world.at(self.clock.now)
            self.cards.read(slow=True)
            for poller in self.replicas:
                poller.turn()
            self.gateway.poll()
            self.publisher.turn()
            if now % scrape == 0:
                page = self.renderer.render(self.publisher.snapshot)
                assert page.dropped == 0
                yield BEGIN + now, page.body.decode()


class Answers:
    """A fetcher of something in this process."""

    def __init__(self, page):
        self.page = page

    def fetch(self, path=None):
        from exporter.sources.replay import ReplayedPage

        return ReplayedPage(body=self.page())

    def close(self):
        pass


class Cards:
    """The cards through the real reader, without the worker process around it."""

    def __init__(self, plan, clock):
        from exporter.driver.nvml.gpu import CardReader
        from exporter.driver.nvml.library import initialise, load_driver, open_card
        from exporter.driver.nvml.topology import TopologyReader
        from exporter.model import SourceStatus

        self.clock = clock
        self.status = SourceStatus(source="driver", up=True)
        driver = load_driver("exporter.simulate.cards", plan.dumps())
        self.driver, count = initialise(driver)
        opened = [open_card(driver, index) for index in range(count)]
        self._readers = [
            (facts, CardReader(driver, calls, facts, self.driver.driver_version)) for calls, facts in opened
        ]
        self.uuids = [facts.uuid for _, facts in opened]
        self._topology = TopologyReader(driver).read({facts.uuid: calls.handle for calls, facts in opened})
        self.cards = ()

    def state(self, now):
        return self

    def read(self, *, slow):
        self.cards = tuple(self._read(facts, reader, slow=slow) for facts, reader in self._readers)

    def _read(self, facts, reader, *, slow):
        from exporter.driver.nvml.errors import CardGone
        from exporter.model import CardState, SourceStatus

        reading = None
        with contextlib.suppress(CardGone):
            reading = reader.read(slow=slow, clock=self.clock)
        at, lost = self.clock(), reading is None
        return CardState(
            facts=facts,
            status=SourceStatus(
                source=f"gpu:{facts.uuid}", up=not lost, reason="lost" if lost else "", last_success=at,
                last_success_wall=BEGIN + at,
            ),
            reading=reading,
            last_read_at=at,
            labels=(str(facts.index), facts.uuid),
            topology=self._topology[facts.uuid],
        )  # fmt: skip


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
    from exporter.simulate import traffic

    traffic.DAY = day * 3600.0
    node = Node(scenario, seed=seed, fault_at=fault_at, fault_until=fault_until)
    wanted, target = read_families(), f'job="{JOB}",instance="{instance}"'
    with open(path, "w", encoding="utf-8") as file:
        for at, page in node.live(hours, read=read, scrape=scrape):
            file.writelines(lines(page, target, at, wanted))


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
        held = seconds(alert.lasting)
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
        command = [servers.program("promtool"), "tsdb", "create-blocks-from", "--quiet", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


def spawn(scenario, path, **options):
    """Write a node's day in a process of its own."""
    given = [f"--{key.replace('_', '-')}={value}" for key, value in options.items()]
    return subprocess.Popen([sys.executable, __file__, scenario, str(path), *given])


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
    sys.path.insert(0, str(Path(__file__).parents[2]))
    main()
