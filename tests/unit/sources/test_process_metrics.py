"""The daemon's own process on the metrics endpoint."""

from __future__ import annotations

import subprocess
import sys

import pytest
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector, exposition
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from exporter.sources import process_metrics

CONSTANT = {"process_start_time_seconds", "process_max_fds", "python_info"}


def families(text, parse):
    """Return family → its type, and the values by series."""
    return {
        family.name: (family.type, {(s.name, *sorted(s.labels.items())): s.value for s in family.samples})
        for family in parse(text)
    }


@pytest.mark.parametrize("strict", [False, True])
def test_the_families_are_those_of_the_client_library(strict):
    registry = CollectorRegistry()
    for collector in (ProcessCollector, PlatformCollector, GCCollector):
        collector(registry=registry)
    write = openmetrics.generate_latest if strict else exposition.generate_latest
    parse = parse_openmetrics if strict else parse_text
    theirs = families(write(registry).decode(), parse)
    ours = families(process_metrics.exposition(strict) + ("# EOF\n" if strict else ""), parse)
    assert {name: (kind, set(values)) for name, (kind, values) in ours.items()} == {
        name: (kind, set(values)) for name, (kind, values) in theirs.items()
    }
    for name in CONSTANT:
        assert ours[name] == theirs[name]
    for name in ("process_cpu_seconds", "process_resident_memory_bytes", "process_virtual_memory_bytes"):
        (mine,), (other,) = ours[name][1].values(), theirs[name][1].values()
        assert 0.5 * other < mine < 2.0 * other


def test_what_cannot_be_read_is_absent(monkeypatch):
    def unreadable(*_):
        raise PermissionError

    monkeypatch.setattr("builtins.open", unreadable)
    monkeypatch.setattr(process_metrics.os, "listdir", unreadable)
    found = families(process_metrics.exposition(False), parse_text)
    assert "python_info" in found and not [name for name in found if name.startswith("process_")]


def test_the_daemon_renders_them_without_client_libraries_and_without_tls():
    code = (
        "import sys, exporter.runtime.app; from exporter.sources import process_metrics\n"
        "assert 'process_cpu' in process_metrics.exposition(True); print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    loaded = set(done.stdout.split())
    assert "exporter.sources.process_metrics" in loaded
    assert not loaded & {"hashlib", "prometheus_client", "http.server", "requests", "urllib3", "ssl"}
