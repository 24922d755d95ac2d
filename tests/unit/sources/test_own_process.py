"""What the daemon says of its own process, against prometheus_client."""

from __future__ import annotations

import builtins
import subprocess
import sys

import pytest
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from exporter.sources import own_process

CLOSE = {"process_cpu_seconds": 0.5, "process_start_time_seconds": 1.0, "process_open_fds": 4.0}


@pytest.mark.parametrize(("openmetrics", "parse"), [(False, parse_text), (True, parse_openmetrics)])
def test_the_families_kinds_and_values_are_those_of_prometheus_client(openmetrics, parse):
    text = own_process.exposition()[openmetrics] + "# EOF\n" * openmetrics
    ours = {family.name: family for family in parse(text)}
    theirs = {family.name: family for family in ProcessCollector(registry=CollectorRegistry()).collect()}
    assert ours.keys() == theirs.keys()
    for name, family in theirs.items():
        (sample,), (expected,) = ours[name].samples, family.samples
        assert (ours[name].type, sample.name, sample.labels) == (family.type, expected.name, expected.labels)
        assert sample.value == pytest.approx(expected.value, rel=0.05, abs=CLOSE.get(name, 0.0)), name


def test_what_cannot_be_read_is_absent_and_the_rest_is_there(monkeypatch):
    def refusing(path, *rest, **named):
        if str(path) == "/proc/self/stat":
            raise PermissionError(path)
        return real(path, *rest, **named)

    real = builtins.open
    monkeypatch.setattr(builtins, "open", refusing)
    families = {family.name for family in parse_text(own_process.exposition()[False])}
    assert families == {"process_open_fds", "process_max_fds"}


def test_the_daemon_starts_without_client_libraries_and_without_tls():
    code = "import sys, exporter.runtime.app; from exporter.sources import own_process; own_process.exposition(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    loaded = set(done.stdout.split())
    assert "exporter.sources.own_process" in loaded
    assert not loaded & {"prometheus_client", "http.server", "requests", "urllib3", "ssl"}
