"""A real Prometheus over daemons on simulated nodes: start, wait until they have been scraped for a while, ask."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

HERE = Path(__file__).parent
RULES = HERE.parent / "alerts" / "generated" / "en" / "rules.yaml"


class Prometheus:
    """Ask it; times are its own."""

    def __init__(self, url):
        self.url = url

    def get(self, path, **parameters):
        body = urllib.parse.urlencode(parameters).encode()
        try:
            with urllib.request.urlopen(f"{self.url}/api/v1/{path}", data=body, timeout=20) as answer:
                data = json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                raise AssertionError(f"{parameters}: {error.read().decode()}") from error
        return data["data"]

    def wait(self, seconds=30):
        """Wait until it answers; it listens before it is ready."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                with urllib.request.urlopen(f"{self.url}/-/ready", timeout=5):
                    return self
            except urllib.error.HTTPError as error:
                error.close()
            assert time.monotonic() < deadline, "Prometheus did not get ready"
            time.sleep(0.1)

    def now(self, expr):
        """Give (labels, value) of each series now."""
        found = self.get("query", query=expr)["result"]
        return [(one["metric"], [one["value"][1]]) for one in found]

    def lately(self, expr, seconds=30, step=5):
        """Give (labels, values) of each series over the last seconds."""
        end = time.time()
        found = self.get("query_range", query=expr, start=end - seconds, end=end, step=step)["result"]
        return [(one["metric"], [value for _, value in one["values"]]) for one in found]


@contextlib.contextmanager
def scraping(program, targets, *, dead=()):
    """Run daemons ({job: (scenario, set of series)}) and a Prometheus that scrapes each every second.

    ``dead`` are jobs whose daemon the test may end by ``kill``; gives the Prometheus and ``kill``.
    """
    folder = tempfile.TemporaryDirectory(prefix="boards-")
    running = {}
    try:
        urls = {}
        for job, (scenario, series) in targets.items():
            running[job] = _spawn([sys.executable, str(HERE / "live_node.py"), scenario, series])
        for job in targets:
            urls[job] = _url_of(running[job])
        running["prometheus"], prometheus = _prometheus(program, folder.name, urls)

        def kill(job):
            _end(running.pop(job))

        yield prometheus, kill
    finally:
        for process in running.values():
            process.send_signal(signal.SIGTERM)
        for process in running.values():
            _end(process)
        folder.cleanup()


def _spawn(command, **more):
    environment = dict(os.environ, PYTHONPATH=str(HERE.parent))
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment, **more
    )


def _end(process):
    process.terminate()
    try:
        process.wait(15)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    process.stdout.close()


def _url_of(process):
    for line in process.stdout:
        if line.startswith("metrics"):
            return line.split()[1].removeprefix("http://").removesuffix("/metrics")
    raise AssertionError(f"the daemon ended with {process.wait()}")


def _prometheus(program, folder, urls):
    config = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": ["rules.yml"],
        "scrape_configs": [
            {"job_name": job, "static_configs": [{"targets": [url]}]} for job, url in urls.items()
        ],
    }  # fmt: skip
    place = Path(folder)
    (place / "rules.yml").write_text(re.sub(r"interval: \w+", "interval: 2s", RULES.read_text(encoding="utf-8")))
    (place / "prometheus.yml").write_text(json.dumps(config))
    log = (place / "log").open("w+")
    process = subprocess.Popen(
        [program, "--config.file", str(place / "prometheus.yml"), "--storage.tsdb.path", str(place / "data"),
         "--web.listen-address", "127.0.0.1:0", "--log.level", "info"],
        stdout=subprocess.PIPE, stderr=log, text=True,
    )  # fmt: skip
    log.close()
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        found = _address((place / "log").read_text())
        if found:
            return process, Prometheus(f"http://{found}").wait()
        time.sleep(0.1)
    _end(process)
    raise AssertionError((place / "log").read_text())


def _address(log):
    for line in log.splitlines():
        if "Listening on" in line and "address=" in line:
            return line.split("address=")[1].split()[0]
    return None
