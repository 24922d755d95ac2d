"""What the daemon has imported when it answers its first request: each module there delays the first response."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

# Needed later or never: TLS, requests and HTTP libraries (13 to 80 ms each), what only other commands use, and what
# the worker process imports for itself.
LATER = (
    "alerts", "asyncio", "compose", "concurrent.futures", "cramjam", "dashboards", "difflib", "email",
    "exporter.driver.nvml", "exporter.driver.worker", "exporter.gateways.interpreter", "exporter.http.client.post",
    "exporter.promql", "exporter.render.dcgm.query", "exporter.render.editions", "exporter.render.push",
    "exporter.runtime.push.manager", "exporter.simulate", "exporter.sources.discovery.file_sd",
    "exporter.sources.discovery.http_sd", "exporter.sources.discovery.kubernetes", "exporter.sources.discovery.ray",
    "google.protobuf", "grafanalib", "http.client", "importlib.metadata", "jsonschema", "opentelemetry",
    "prometheus_client", "pynvml", "requests", "rich", "ssl", "textual", "tomllib", "urllib.request", "urllib3",
)  # fmt: skip

START = """
import sys
import exporter.cli.main
from exporter.cli import daemon
from exporter.config import settings
from exporter.model import Snapshot
from exporter.runtime.app import App

app = App(settings.load(sys.argv[1], {}))
snapshot = app.publisher.compose()
app.pages.publish(snapshot)
assert app.pages.page(openmetrics=False, gzip=False)
app.listen()
print(*sys.modules)
app.stop()
"""


DATACLASSES = """
import dataclasses, importlib, sys
for name in sys.argv[1:]:
    for value in vars(importlib.import_module(name)).values():
        if isinstance(value, type) and value.__module__ == name and dataclasses.is_dataclass(value):
            print(f"{name}.{value.__name__}")
"""


@pytest.fixture(scope="module")
def imported(tmp_path_factory):
    """Names of the modules of a daemon with an engine, a gateway and GPUs at its first response."""
    config = tmp_path_factory.mktemp("start") / "shardwatch.yaml"
    config.write_text(
        "listen: 127.0.0.1:0\n"
        "engines: [{url: 'http://127.0.0.1:1'}]\n"
        "gateways: [{url: 'http://127.0.0.1:2'}]\n"
        "discovery: {processes: true}\n"
    )
    done = subprocess.run([sys.executable, "-c", START, str(config)], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize("name", LATER)
def test_the_first_response_waits_for_no_import_of(name, imported):
    assert "exporter.http.server.listener" in imported, "the list is that of a daemon"
    assert not name.startswith("exporter") or importlib.util.find_spec(name), "renamed?"
    assert name not in imported


def test_no_record_of_the_start_path_is_a_dataclass(imported):
    """A dataclass costs 1.2 ms of every start, a struct 0.1 ms."""
    names = sorted(name for name in imported if name.split(".")[0] == "exporter")
    done = subprocess.run([sys.executable, "-c", DATACLASSES, *names], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
