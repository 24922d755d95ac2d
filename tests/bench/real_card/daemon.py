"""The real daemon on this node: started with a configuration of its own, looked at once a second, ended."""

from __future__ import annotations

import http.client
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from types import TracebackType

from prometheus_client.parser import text_string_to_metric_families

from tests.bench.machine import cpu_seconds, memory_mib, tree

START = 90.0  # seconds: without persistence mode a driver takes its time
INTERVAL = 1.0
_ROOT = pathlib.Path(__file__).resolve().parents[3]
_LISTENING = re.compile(r"event=listening address=\S+?:(\d+) ")


class DaemonError(Exception):
    """The daemon does not do what it must, with its own words."""


class Page:
    """One answer of /metrics, and when it came."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = time.monotonic()
        self.samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]

    def all(self, name: str, **labels: str) -> list[tuple[Mapping[str, str], float]]:
        """Return labels and value of the samples that have at least these labels."""
        wanted = labels.items()
        return [
            (sample.labels, sample.value)
            for sample in self.samples
            if sample.name == name and wanted <= sample.labels.items()
        ]

    def get(self, name: str, **labels: str) -> float | None:
        """Return the value of the one sample that has these labels, if there is one."""
        samples = self.all(name, **labels)
        return samples[0][1] if samples else None

    def cards(self) -> dict[str, str]:
        """Return uuid → index of all cards and instances."""
        return {labels["uuid"]: labels["gpu"] for labels, _ in self.all("gpu_info")}


class Daemon:
    """``shardwatch run`` in a folder of its own, as a context.  Raises DaemonError."""

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder = folder
        self._log = folder / "log"
        self._settle("full")
        environment = {key: value for key, value in os.environ.items() if not key.startswith("SHARDWATCH_")}
        environment |= {"PYTHONPATH": str(_ROOT), "NODE_NAME": "node"}
        with open(self._log, "ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "exporter", "run", "--config", "c.yaml"],
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self._port = 0

    def _settle(self, series: str) -> None:
        """Write the configuration: only cards, and nothing of what else runs on this machine."""
        (self._folder / "c.yaml").write_text(
            json.dumps(
                {
                    "listen": "127.0.0.1:0",
                    "series": series,
                    "gpu": {"interval": f"{INTERVAL:g}s"},
                    "discovery": {"processes": False},
                    "kernel_log": {"enabled": False},
                }
            )
        )

    def __enter__(self) -> Daemon:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def log(self) -> str:
        """Return what it has said so far."""
        return self._log.read_text(errors="replace")

    def get(self, path: str) -> tuple[int, str]:
        """Return status and text of a path."""
        if not self._port:
            match = _LISTENING.search(self.log())
            if match is None:
                return 0, ""
            self._port = int(match[1])
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=10)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        except (OSError, http.client.HTTPException) as error:
            return 0, str(error)
        finally:
            connection.close()

    def page(self) -> Page:
        """Return the page.  Raises DaemonError where there is none, or none that can be parsed."""
        status, text = self.get("/metrics")
        if status != 200:
            raise DaemonError(f"/metrics answers {status or 'nothing'}: {text[:200]}")
        try:
            return Page(text)
        except ValueError as error:
            raise DaemonError(f"/metrics cannot be parsed: {error}") from error

    def until(self, condition: Callable[[Page], bool], what: str, seconds: float = START) -> Page:
        """Read pages until ``condition`` holds.  Raises DaemonError, with its log, where it does not."""
        end, why = time.monotonic() + seconds, "it does not listen"
        while time.monotonic() < end and self._process.poll() is None:
            try:
                page = self.page()
                if condition(page):
                    return page
                why = what
            except DaemonError as error:
                why = str(error)
            time.sleep(0.2)
        raise DaemonError(f"the daemon: {why} after {seconds:g} s; it said:\n{self.log()[-2000:]}")

    def fresh(self) -> Page:
        """Return a page whose cards, but for those that are down, were all read after this call."""
        # Ages were true when the page was made, which may be one interval ago.
        begun = time.monotonic() + 1.1 * INTERVAL

        def read_since(page: Page) -> bool:
            alive = up(page)
            ages = [value for labels, value in page.all("gpu_data_age_seconds") if labels["uuid"] in alive]
            return bool(ages) and page.at - max(ages) > begun

        return self.until(read_since, "cards are not read again", 30.0)

    def use(self, series: str) -> Page:
        """Reload the daemon with a smaller set of series and return the page after that."""
        before = len(self.page().samples)
        self._settle(series)
        self._process.send_signal(signal.SIGHUP)
        return self.until(lambda page: len(page.samples) < 0.9 * before, f"series: {series} is not taken up", 30.0)

    def cost(self) -> dict[str, float]:
        """Return CPU seconds and PSS (MiB) so far, of the daemon and of its worker."""
        pid = self._process.pid
        workers = tree(pid)[1:]
        return {
            "daemon": cpu_seconds([pid]),
            "worker": cpu_seconds(workers),
            "mib": memory_mib([pid, *workers]),
            "at": time.monotonic(),
        }


def up(page: Page) -> set[str]:
    """Return the UUIDs of the cards that answer, without instances."""
    return {labels["uuid"] for labels, value in page.all("gpu_up") if value == 1 and ":" not in labels["gpu"]}


def complaints(page: Page, cards: int) -> list[str]:
    """Return what must not be on the page of a healthy node; ``cards`` without instances."""
    problems = []
    shown = [labels for labels, _ in page.all("gpu_up") if ":" not in labels["gpu"]]
    if len(shown) != cards:
        problems.append(f"{len(shown)} cards on the page, {cards} on the node")
    problems += [f"gpu_up of card {labels['gpu']} is {value:g}" for labels, value in page.all("gpu_up") if value != 1]
    for labels, value in page.all("shardwatch_source_up"):
        if value != 1 and labels["source"].startswith(("driver", "gpu:")):
            why = [
                down_labels["reason"]
                for down_labels, _ in page.all("shardwatch_source_down_info", source=labels["source"])
            ]
            problems.append(f"source {labels['source']} is down: {', '.join(why) or 'no reason given'}")
    return problems
