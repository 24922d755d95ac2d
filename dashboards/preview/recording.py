"""Daemons on simulated nodes and a Prometheus that scrapes them; the recording can be drawn again later.

A recording is Prometheus' data directory and ``recording.json``: the nodes, start, end, and the times of the faults.
Every process that was started has ended when ``record`` or ``serving`` returns.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

from dashboards.preview.programs import PreviewError, program
from exporter.model.text import Language

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
JOB = "shardwatch"  # the alert rules know the daemons by it
PORT = 9853  # only in the names: a real node's label looks so
SCRAPE_SECONDS = 2
PATIENCE = 60.0
DEAD_SECONDS = 40.0  # until nothing of a daemon that ended is left in any rate
Process = subprocess.Popen[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedNode:
    """A simulated node."""

    scenario: str
    number: int = 0

    @property
    def instance(self) -> str:
        """Return the node's label ``instance``."""
        return f"{self.scenario}-{self.number}:{PORT}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRecording:
    """A recording; times are seconds since 1970."""

    folder: str
    nodes: tuple[RecordedNode, ...]
    start: float
    fault: float
    end: float
    scrape: float = SCRAPE_SECONDS
    lookback: str = "5m"  # shorter where the blocks do not say when a series ended


def nodes_of(scenario: str) -> tuple[RecordedNode, ...]:
    """Return a scenario's nodes: as many as it has kinds of software."""
    from exporter.simulate.scenarios import find  # noqa: PLC0415 - only who records needs it

    try:
        kinds = len(find(scenario).software)
    except KeyError as error:
        raise PreviewError(str(error.args[0])) from error
    return tuple(RecordedNode(scenario=scenario, number=number) for number in range(max(1, kinds)))


def record(
    folder: str,
    scenarios: Sequence[str],
    *,
    seconds: float,
    fault_at: float,
    language: Language,
    dead: Sequence[str] = (),
) -> NodeRecording:
    """Run the scenarios' nodes for ``seconds``; faults begin ``fault_at`` seconds after the start.

    The daemons of the scenarios in ``dead`` end ``DEAD_SECONDS`` before the end, to show dashboards of a down exporter.
    """
    nodes = tuple(node for name in scenarios for node in nodes_of(name))
    program("haproxy")
    start = time.time()
    with contextlib.ExitStack() as running:
        started = [running.enter_context(_child(_node_command(node, fault_at), f"{node.instance}")) for node in nodes]
        targets = {node.instance: _address_of(process, node) for node, process in zip(nodes, started, strict=True)}
        config = _config(targets, language)
        url = running.enter_context(_prometheus(folder, config))
        print(f"preview: {len(nodes)} nodes for {seconds:.0f} s; Prometheus at {url}", flush=True)
        alive = dict(zip(nodes, started, strict=True))
        _live(alive, start + seconds - DEAD_SECONDS)
        for node in [node for node in alive if node.scenario in dead]:
            alive.pop(node).send_signal(signal.SIGTERM)
        _live(alive, start + seconds)
        end = time.time()  # before anything is told to end: what has ended has no data
    made = NodeRecording(folder=folder, nodes=nodes, start=start, fault=start + fault_at, end=end)
    with open(os.path.join(folder, "recording.json"), "w", encoding="utf-8") as file:
        json.dump(asdict(made), file)
    return made


def _live(daemons: Mapping[RecordedNode, Process], until: float) -> None:
    """Wait until a moment; raise PreviewError as soon as a daemon has ended."""
    while True:
        for node, process in daemons.items():
            if process.poll() is not None:
                raise PreviewError(
                    f"the daemon of {node.instance} ended with {process.returncode} while it was recorded"
                )
        left = until - time.time()
        if left <= 0:
            return
        time.sleep(min(left, 1.0))


def load(folder: str) -> NodeRecording | None:
    """Return the recording in a directory, None if there is none."""
    try:
        with open(os.path.join(folder, "recording.json"), encoding="utf-8") as file:
            data = json.load(file)
    except FileNotFoundError:
        return None
    nodes = tuple(RecordedNode(**item) for item in data.pop("nodes"))
    return NodeRecording(**{**data, "folder": folder, "nodes": nodes})


@contextlib.contextmanager
def serving(recording: NodeRecording) -> Iterator[str]:
    """Run a Prometheus over a recording, without scraping or evaluating; yield its URL."""
    with _prometheus(recording.folder, {}, lookback=recording.lookback) as url:
        yield url


def _node_command(node: RecordedNode, fault_at: float) -> list[str]:
    return [sys.executable, "-m", "dashboards.preview.node", node.scenario, str(node.number), str(fault_at)]


def _config(targets: dict[str, str], language: Language) -> dict[str, object]:
    rules = os.path.join(ROOT, "alerts", "generated", language.value, "rules.yaml")
    every = f"{SCRAPE_SECONDS}s"
    static = [{"targets": [address], "labels": {"instance": name}} for name, address in targets.items()]
    return {
        "global": {"scrape_interval": every, "scrape_timeout": every},
        "rule_files": [rules],
        "scrape_configs": [{"job_name": JOB, "static_configs": static}],
    }


@contextlib.contextmanager
def _child(command: Sequence[str], name: str, *, log: str | None = None) -> Iterator[Process]:
    """Run a process until the block ends; its stderr goes to a file if one is named."""
    with open(log or os.devnull, "w", encoding="utf-8") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=ROOT)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            print(f"preview: {name} does not end; killed", file=sys.stderr)
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()


def _address_of(process: Process, node: RecordedNode) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("metrics"):
            return line.split()[1].removeprefix("http://").removesuffix("/metrics")
    raise PreviewError(f"the daemon of {node.instance} ended with {process.wait()}")


@contextlib.contextmanager
def _prometheus(folder: str, config: dict[str, object], *, lookback: str = "5m") -> Iterator[str]:
    os.makedirs(folder, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="preview-") as own:
        path, log = os.path.join(own, "prometheus.yml"), os.path.join(own, "prometheus.log")
        with open(path, "w", encoding="utf-8") as file:
            json.dump(config, file)  # JSON is YAML
        command = [
            program("prometheus"), "--config.file", path, "--storage.tsdb.path", os.path.join(folder, "data"),
            "--web.listen-address", "127.0.0.1:0", "--log.level", "info", "--storage.tsdb.retention.time", "10y",
            "--query.lookback-delta", lookback,
        ]  # fmt: skip
        with _child(command, "Prometheus", log=log) as process:
            yield _ready(process, log)


def _ready(process: Process, log: str) -> str:
    """Wait until Prometheus is ready; return its URL, as logged by it."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline and process.poll() is None:
        url = _listening(log)
        if url is not None and _answers(url):
            return url
        time.sleep(0.1)
    with open(log, encoding="utf-8") as file:
        raise PreviewError(f"Prometheus did not start:\n{file.read()[-2000:]}")


def _listening(log: str) -> str | None:
    with open(log, encoding="utf-8") as file:
        for line in file:
            if "Listening on" in line and "address=" in line:
                return f"http://{line.split('address=')[1].split()[0]}"
    return None


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/-/ready", timeout=5):  # noqa: S310 - loopback, and http
            return True
    except (urllib.error.URLError, ConnectionError):
        return False
