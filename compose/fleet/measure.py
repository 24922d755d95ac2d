"""Lets a real Prometheus (and VictoriaMetrics behind it) scrape simulated nodes, and says what each node costs.

CPU time is the servers' own, so other work on the machine distorts it little; durations of rule evaluations are wall
time and grow on a busy machine.  The simulation runs in a process of its own and is not counted.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from compose.fleet import targets
from compose.fleet.usage import cpu_seconds, files_mib, get, own_figures, resident_mib, total, values
from compose.native import configuration, servers
from compose.native.child import Child, running

ORIGINALS = ("healthy", "mixed", "engines")  # scenarios: one, two and several replicas on eight GPUs


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a step measured; per second and as totals, not yet divided by nodes."""

    nodes: int
    interval: str
    rules: bool
    seconds: float
    up: int
    head_series: float
    samples_per_second: float
    scraped_per_node: float
    recorded_series: float
    prometheus_cpu: float  # of one core
    prometheus_rss_mib: float
    rules_seconds: float  # sum over groups of the newest evaluation, wall time; groups run side by side
    slowest_group_seconds: float  # must stay below the groups' interval
    rule_failures: float
    page_bytes: int
    page_gzip_bytes: int
    victoria_cpu: float = 0.0
    victoria_rss_mib: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """What runs: the pages' server, Prometheus, and VictoriaMetrics where asked for."""

    address: str
    prometheus: Child
    victoria: Child | None
    folder: Path


@contextlib.contextmanager
def pages(folder: Path, nodes: int) -> Iterator[str]:
    """Serve the pages of so many nodes from another process; give its host:port."""
    with contextlib.ExitStack() as daemons:
        urls = []
        for scenario in ORIGINALS:
            place = folder / scenario
            place.mkdir()
            child = daemons.enter_context(servers.demo(place, arguments=("--scenario", scenario)))
            urls.append(f"{child.url}/metrics")
        command = [sys.executable, "-m", "compose.fleet", "serve", "--nodes", str(nodes), *urls]
        with running("nodes", command, folder, {"PYTHONPATH": str(configuration.ROOT)}) as child:
            yield child.wait_for(r"serving http://(\S+)/node")


@contextlib.contextmanager
def fleet(folder: Path, nodes: int, *, interval: str, rules: bool, victoria: bool) -> Iterator[Fleet]:
    """Run nodes and what scrapes them."""
    with contextlib.ExitStack() as all_of_it:
        address = all_of_it.enter_context(pages(folder, nodes))
        settings: dict[str, Any] = {
            "global": {"scrape_interval": interval},
            "scrape_configs": [targets.scrape(address, nodes, interval=interval)],
        }
        if rules:
            settings["rule_files"] = [str(configuration.rules("en"))]
        store = all_of_it.enter_context(servers.victoria_metrics(folder)) if victoria else None
        if store:
            settings["remote_write"] = [{"url": f"{store.url}/api/v1/write"}]
        prometheus = all_of_it.enter_context(
            servers.prometheus(folder, settings, arguments=("--web.enable-admin-api",))
        )
        yield Fleet(address=address, prometheus=prometheus, victoria=store, folder=folder)


def measure(running_fleet: Fleet, nodes: int, *, interval: str, rules: bool, warm_up: float, seconds: float) -> Cost:
    """Wait for ``warm_up`` seconds, then measure over ``seconds``."""
    time.sleep(warm_up)
    children = [running_fleet.prometheus, *filter(None, [running_fleet.victoria])]
    before, started = own_figures(running_fleet.prometheus.url), time.monotonic()
    used = [cpu_seconds(child.process.pid) for child in children]
    time.sleep(seconds)
    passed = time.monotonic() - started
    cpu = [(cpu_seconds(child.process.pid) - at) / passed for child, at in zip(children, used, strict=True)]
    after = own_figures(running_fleet.prometheus.url)
    appended = "prometheus_tsdb_head_samples_appended_total"
    page = get(f"http://{running_fleet.address}/node/{min(1, nodes - 1)}/metrics")
    durations = values(after, "prometheus_rule_group_last_duration_seconds")
    return Cost(
        nodes=nodes,
        interval=interval,
        rules=rules,
        seconds=passed,
        up=int(ask(running_fleet.prometheus, "sum(up)")),
        head_series=total(after, "prometheus_tsdb_head_series"),
        samples_per_second=(total(after, appended) - total(before, appended)) / passed,
        scraped_per_node=ask(running_fleet.prometheus, "avg(scrape_samples_scraped)"),
        recorded_series=ask(running_fleet.prometheus, 'count({__name__=~".+:.+:.+"})') if rules else 0,
        prometheus_cpu=cpu[0],
        prometheus_rss_mib=resident_mib(running_fleet.prometheus.process.pid),
        rules_seconds=sum(durations),
        slowest_group_seconds=max(durations, default=0.0),
        rule_failures=total(after, "prometheus_rule_evaluation_failures_total"),
        page_bytes=len(page),
        page_gzip_bytes=len(gzip.compress(page, compresslevel=1)),
        victoria_cpu=cpu[1] if running_fleet.victoria else 0.0,
        victoria_rss_mib=resident_mib(running_fleet.victoria.process.pid) if running_fleet.victoria else 0.0,
    )


def ask(prometheus: Child, query: str) -> float:
    """Return the one value of an instant query; 0 where there is none."""
    answer = json.loads(get(f"{prometheus.url}/api/v1/query?query={quote(query)}"))
    samples = answer["data"]["result"]
    return float(samples[0]["value"][1]) if samples else 0.0


def stored(running_fleet: Fleet) -> dict[str, float]:
    """Write a block of what Prometheus has in memory; give bytes on disk by what they hold, and samples."""
    name = json.loads(get(f"{running_fleet.prometheus.url}/api/v1/admin/tsdb/snapshot", posted=True))["data"]["name"]
    snapshot = running_fleet.folder / "prometheus" / "snapshots" / name
    samples = series = 0.0
    for meta in snapshot.glob("*/meta.json"):
        stats = json.loads(meta.read_text())["stats"]
        samples += stats["numSamples"]
        series += stats["numSeries"]
    chunks, index = files_mib(snapshot, "chunks/*"), files_mib(snapshot, "index")
    result = {"samples": samples, "series": series, "chunk_mib": chunks, "index_mib": index}
    if running_fleet.victoria:
        figures = own_figures(running_fleet.victoria.url)
        result["victoria_rows"] = total(figures, "vm_rows")
        result["victoria_mib"] = total(figures, "vm_data_size_bytes") / 2**20
    return result


def as_json(cost: Cost) -> str:
    """Return a cost as one line."""
    return json.dumps(
        {name: round(value, 4) if isinstance(value, float) else value for name, value in asdict(cost).items()}
    )
