"""The daemon's own process on the metrics endpoint."""

from __future__ import annotations

import subprocess
import sys

from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from exporter.sources import process_metrics


def test_process_platform_and_gc_are_shown_in_both_formats():
    process_metrics.load()
    text = {family.name: family for family in parse_text(process_metrics.exposition(False))}
    strict = {family.name: family for family in parse_openmetrics(process_metrics.exposition(True) + "# EOF\n")}
    assert text.keys() == strict.keys()
    assert {"process_cpu_seconds", "process_resident_memory_bytes", "process_open_fds", "python_info"} <= text.keys()
    assert "python_gc_collections" in text
    assert text["process_cpu_seconds"].samples[0].value > 0


def test_the_daemon_starts_without_client_libraries_and_without_tls():
    code = "import sys, exporter.runtime.app; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    loaded = set(done.stdout.split())
    assert "exporter.sources.process_metrics" in loaded
    assert not loaded & {"prometheus_client", "http.server", "requests", "urllib3", "ssl"}
