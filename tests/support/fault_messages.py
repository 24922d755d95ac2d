"""What reaches people when a fault of the simulator happens: alerts over time, inhibition, and the messages sent.

Each scenario lives under its own scrape job on a virtual clock, in a real Prometheus.  An alert fires where its
expression has held for its ``for``, and ends ``keep_firing_for`` after it.  It is notified when it fires at the end
of its severity's ``group_wait`` and no alert inhibits it.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from alerts.alertmanager import reader
from alerts.alertmanager.inhibition import Inhibition, inhibitions
from alerts.registry import groups
from alerts.render import RULES, files
from alerts.rule import Alert, seconds
from alerts.tuning import Tuning
from exporter.model.finding import Severity
from exporter.model.text import Language
from tests.support import servers, soak_day, virtual_node
from tests.support.prometheus_replay import Replay
from tests.support.soak_day import NodeDay
from tests.support.tools import built_once
from tests.support.waiting import until

FAULT_AT = 600.0  # seconds after the start
MINUTES = 26
READ = 15  # seconds
LOOKBACK_OF_PROMETHEUS = 300  # seconds
LOOKBACK = f"{READ * 3 // 2}s"  # promtool writes no staleness markers
FAULTS = ("hang", "oom", "pcie", "skew", "heat", "powercap", "brake", "tenant", "narrow", "nic")
FROM_THE_START = ("pcie", "skew", "drift")  # their faults are how the node is built
NODE_DAYS = [
    *(NodeDay(scenario=name, hours=MINUTES / 60, job=name, fault_at=FAULT_AT, read=READ) for name in FAULTS),
    *(
        NodeDay(scenario="drift", hours=0.75, job="drift", instance=f"n{node + 1}:9853", node=node, read=READ)
        for node in (0, 1)
    ),
]


@dataclass(frozen=True, kw_only=True)
class Firing:
    """One alert while it fires: seconds after the start of the node; ``end`` is None while it fires."""

    name: str
    severity: str
    labels: Mapping[str, str]
    begin: float
    end: float

    @property
    def of(self) -> Mapping[str, str]:
        """Return all labels that Alertmanager has."""
        return {**self.labels, "alertname": self.name, "severity": self.severity}


def firings(replay: Replay, begin_unix: float) -> list[Firing]:
    """Return every alert that fires in a replay, by time."""
    fired = []
    with replay.serve() as prometheus:
        for group, alert in ((group, alert) for group in groups(Tuning()) for alert in group.alerts()):
            step = min(replay.step, seconds(group.interval))
            answer = prometheus.get(
                "/api/v1/query_range", query=str(alert.expr), start=replay.begin, end=replay.end, step=step
            )
            for series in answer["data"]["result"]:
                labels = {k: v for k, v in {**series["metric"], **alert.labels}.items() if k != "__name__"}
                labels["component"] = alert.component.value
                for begin, end in _held(alert, [at for at, _ in series["values"]], step):
                    fired.append(
                        Firing(
                            name=alert.name, severity=alert.severity.value, labels=labels,
                            begin=begin - begin_unix, end=end - begin_unix,
                        )
                    )  # fmt: skip
    return sorted(fired, key=lambda firing: (firing.begin, firing.name, sorted(firing.labels.items())))


def _held(alert: Alert, times: list[float], step: float) -> Iterator[tuple[float, float]]:
    """Yield begin and end of each time that the alert fires."""
    held, keep = seconds(alert.for_), seconds(alert.keep_firing_for) if alert.keep_firing_for else 0
    since = last = firing = None
    for at in [*times, float("inf")]:
        if last is not None and at - last > step:
            if firing is not None and at - last > step + keep:
                yield firing, last + step + keep
                firing = None
            since = None
        if at == float("inf"):
            return
        since = at if since is None else since
        last = at
        if firing is None and at - since >= held:
            firing = at


def notified(firings_sent: list[Firing]) -> list[tuple[float, Firing]]:
    """Return the alerts that are sent to people, each with the time of its first message."""
    every = [alert for group in groups(Tuning()) for alert in group.alerts()]
    rules = inhibitions(every)
    timings = reader.load(reader.DEFAULT).timings
    sent = []
    for firing in firings_sent:
        timing = timings.get(Severity(firing.severity)) if firing.severity != "none" else None
        if timing is None:
            continue
        at, interval = firing.begin + seconds(timing.wait), seconds(timing.interval)
        while at < firing.end:
            if not any(
                inhibited(firing, source, rules) for source in firings_sent if source.begin <= at < source.end
            ):
                sent.append((at, firing))
                break
            at += interval
    return sorted(sent, key=lambda item: item[0])


_MATCHES = {
    "=": lambda value, found: found == value,
    "=~": lambda value, found: re.fullmatch(value, found) is not None,
    "!~": lambda value, found: re.fullmatch(value, found) is None,
}


def inhibited(target: Firing, source: Firing, rules: tuple[Inhibition, ...]) -> bool:
    """Return whether one alert inhibits another, as Alertmanager decides."""
    return target is not source and any(
        source.name in rule.sources
        and target.name in rule.targets
        and all(_MATCHES[operator](value, source.of.get(label, "")) for label, operator, value in rule.where)
        and (rule.above is None or source.severity == rule.above.value)
        and (not rule.below or target.severity in {severity.value for severity in rule.below})
        and all(source.of.get(label, "") == target.of.get(label, "") for label in rule.equal)
        and not (target.name in rule.sources and source.name in rule.targets and rule.above is None)
        for rule in rules
    )


def lived(factory) -> Path:
    """Return the folder with the nodes' samples, and what was notified; once in a test run."""
    return built_once(factory, "fault_messages", _live)


def _live(folder: Path) -> None:
    soak_day.replayed(folder, NODE_DAYS, scrape=READ, lookback=LOOKBACK)
    replay = Replay(folder, hours=max(node_day.hours for node_day in NODE_DAYS), scrape=READ, lookback=LOOKBACK)
    fired = firings(replay, virtual_node.UNIX_START)
    (folder / "firings.json").write_text(json.dumps([asdict(firing) for firing in fired]))


def sent(folder: Path, job: str) -> list[tuple[float, Firing]]:
    """Return what was notified of a job while its node lived."""
    fired = [Firing(**item) for item in json.loads((folder / "firings.json").read_text())]
    end = max(node_day.hours for node_day in NODE_DAYS if node_day.job == job) * 3600
    mine = [firing for firing in fired if firing.labels.get("job") == job and firing.begin <= end]
    return [(at, firing) for at, firing in notified(mine) if at <= end]


@dataclass(frozen=True, kw_only=True)
class Copy:
    """A notification whose node's samples end when it is sent; ``job`` names the copy of the samples."""

    job: str
    at: float
    firing: Firing


def annotated(folder: Path, place: Path, language: Language) -> list[tuple[Copy, Mapping[str, str]]]:
    """Return each notification with its annotations, expanded by a real Prometheus when it is sent.

    Every notification has a copy of its node's samples, moved so that the moment is now; Prometheus evaluates the
    alert's own rule there, without its ``for``.
    """
    copies = [
        Copy(job=f"{job}.{number}", at=at, firing=firing)
        for job in dict.fromkeys(node_day.job for node_day in NODE_DAYS)
        for number, (at, firing) in enumerate(sent(folder, job))
    ]
    now = int(time.time()) + 30
    place.mkdir(parents=True, exist_ok=True)
    files_ = [_moved(folder, place, copy, now) for copy in copies]
    replay = Replay(place, hours=1, scrape=READ)
    replay.begin, replay.end = now - 2700, now - 1
    replay.load(files_)
    rules = {"groups": [{"name": "sent", "interval": "1s", "rules": [_rule(copy, language) for copy in copies]}]}
    (place / "rules.yaml").write_text(yaml.safe_dump(rules, allow_unicode=True))
    until(lambda: time.time() > now, 60)
    config = {"global": {"evaluation_interval": "1s"}, "rule_files": [str(place / "rules.yaml")]}
    with servers.prometheus(config, folder=place) as prometheus:
        until(lambda: _missing(prometheus, copies) == [], 60)
        known = _known(prometheus, copies)
    return [(copy, known[copy.job]) for copy in copies]


def _missing(prometheus, copies: list[Copy]) -> list[tuple[str, str, float]]:
    """Return the job, alert and second of every copy that does not fire yet."""
    known = _known(prometheus, copies)
    return [(copy.job, copy.firing.name, copy.at) for copy in copies if copy.job not in known]


def _known(prometheus, copies: list[Copy]) -> Mapping[str, Mapping[str, str]]:
    """Return the annotations of every copy that fires."""
    alerts = prometheus.get("/api/v1/alerts")["data"]["alerts"]
    return {
        copy.job: alert["annotations"]
        for copy in copies
        for alert in alerts
        if alert["labels"].get("job") == copy.job
        and all(alert["labels"].get(name) == value for name, value in copy.firing.of.items() if name != "job")
    }


def _rule(copy: Copy, language: Language) -> Mapping[str, Any]:
    tree = yaml.safe_load(files(groups(Tuning()), Tuning(), language)[RULES])
    wanted = {"severity": copy.firing.severity}
    rule = next(
        rule
        for group in tree["groups"]
        for rule in group["rules"]
        if rule.get("alert") == copy.firing.name and wanted.items() <= rule["labels"].items()
    )
    return {key: value for key, value in rule.items() if key not in {"for", "keep_firing_for"}}


_TIME_VALUE = re.compile(r"\w+_timestamp_seconds\{")


def _moved(folder: Path, place: Path, copy: Copy, now: int) -> Path:
    """Write a copy of the node's samples until the notification, which is sent now."""
    shift = now - 1 - int(virtual_node.UNIX_START + copy.at)
    path = place / f"{copy.job}.om"
    job = copy.job.partition(".")[0]
    with path.open("w") as out:
        for node_day in (node_day for node_day in NODE_DAYS if node_day.job == job):
            for series, value, at in _samples(folder / node_day.file, virtual_node.UNIX_START + copy.at):
                moved = repr(float(value) + shift) if _TIME_VALUE.match(series) else value
                of_copy = series.replace(f'job="{job}"', f'job="{copy.job}"', 1)
                out.write(f"{of_copy} {moved} {at + shift}\n")
    return path


def _samples(path: Path, end: float) -> Iterator[tuple[str, str, int]]:
    """Yield series, value and time until ``end``, of a series that has ended without its last minutes.

    Prometheus marks the end of a series, and promtool does not: it would be seen for another five minutes.
    """
    rows = [
        (series, value, int(at))
        for series, value, at in (line.rsplit(" ", 2) for line in path.read_text().splitlines())
    ]
    rows = [row for row in rows if row[2] <= end]
    last = {series: at for series, _, at in rows}
    newest = max(last.values())
    for series, value, at in rows:
        if last[series] == newest or at < newest - LOOKBACK_OF_PROMETHEUS:
            yield series, value, at
