"""What the daemon asks of the process that it runs in."""

from __future__ import annotations

import resource
import subprocess
import sys

from exporter.config.settings import parse
from exporter.runtime import memory
from exporter.runtime.app import App

RAISE = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
from exporter.runtime.memory import raise_descriptor_limit
raise_descriptor_limit()
print(resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def test_the_soft_limit_of_descriptors_is_raised_to_the_hard_one():
    printed = subprocess.run([sys.executable, "-c", RAISE], capture_output=True, text=True, check=True, timeout=60)
    soft, hard = eval(printed.stdout)
    assert soft == min(hard, 65_536) if hard > 0 else soft == 65_536


def test_mute_clients_leave_most_descriptors_to_the_rest_of_the_daemon(monkeypatch):
    for soft, connections in ((64, 16), (8, 4), (1024, 64), (resource.RLIM_INFINITY, 64)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, soft=soft: (soft, soft))
        assert memory.max_connections(64) == connections


def test_connections_that_could_not_be_accepted_are_in_the_snapshot():
    app = App(parse("gpu: {enabled: false}\nlisten: 127.0.0.1:0\ndiscovery: {processes: false}", "test", {}))
    app.listen()
    try:
        app.listener.exhausted = 3
        assert app.publisher.compose().daemon.access.accept_failures == 3
    finally:
        app.listener.stop(0.5)
