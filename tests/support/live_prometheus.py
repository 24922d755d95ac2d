"""A real Prometheus over daemons on simulated nodes: start, wait until they have been scraped for a while, ask."""

from __future__ import annotations

import contextlib
import re
import sys
import time
from pathlib import Path

from compose.native.child import running
from compose.native.servers import ROOT, SERVES
from tests.support import servers
from tests.support.tools import tool

NODE = Path(__file__).parent / "live_node.py"
RULES = ROOT / "alerts" / "generated" / "en" / "rules.yaml"


class Prometheus:
    """Ask it; times are its own."""

    def __init__(self, server):
        self._server = server

    def now(self, expr):
        """Give (labels, value) of each series now."""
        found = self._server.get("/api/v1/query", query=expr)["data"]["result"]
        return [(one["metric"], [one["value"][1]]) for one in found]

    def lately(self, expr, seconds=30, step=5):
        """Give (labels, values) of each series over the last seconds."""
        end = time.time()
        asked = {"query": expr, "start": end - seconds, "end": end, "step": step}
        found = self._server.get("/api/v1/query_range", **asked)["data"]["result"]
        return [(one["metric"], [value for _, value in one["values"]]) for one in found]


@contextlib.contextmanager
def scraping(targets):
    """Run daemons ({job: (scenario, set of series)}) and a Prometheus that scrapes each every second.

    Gives the Prometheus, and a function that ends the daemon of a job.
    """
    tool("prometheus")
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(servers.scratch()))
        daemons = {job: stack.enter_context(_daemon(job, *each, folder)) for job, each in targets.items()}
        for daemon in daemons.values():  # only when all are starting, so that they start side by side
            daemon.url = daemon.wait_for(SERVES)
        rules = re.sub(r"interval: \w+", "interval: 2s", RULES.read_text(encoding="utf-8"))
        (folder / "rules.yml").write_text(rules, encoding="utf-8")
        server = stack.enter_context(servers.prometheus(_configuration(daemons), folder=folder))
        yield Prometheus(server), lambda job: daemons[job].stop()


def _daemon(job, scenario, series, folder):
    command = [sys.executable, str(NODE), scenario, series]
    return running(f"daemon-{job}", command, folder, {"PYTHONPATH": str(ROOT)})


def _configuration(daemons):
    return {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": ["rules.yml"],
        "scrape_configs": [
            {"job_name": job, "static_configs": [{"targets": [daemon.address]}]} for job, daemon in daemons.items()
        ],
    }
