"""The recipe of docs/dcgm.md, run: Prometheus scrapes DCGM's names from a demonstration, and dashboards find their data."""

from __future__ import annotations

import contextlib
import json
import pathlib
import re
import subprocess
import time
import urllib.parse
import urllib.request

import pytest
import yaml

from tests.support import dcgm_contract as contract
from tests.support.tools import tool
from tests.system.test_end_to_end import Daemon

pytestmark = pytest.mark.slow

README = pathlib.Path(__file__).parents[2] / "docs" / "dcgm.md"


def recipe(port):
    """Return the README's scrape configuration, aimed at ``port`` and hurried."""
    blocks = re.findall(r"```yaml\n(.*?)```", README.read_text(), re.DOTALL)
    (block,) = [yaml.safe_load(block) for block in blocks if "metrics_path: /metrics/dcgm" in block]
    (job,) = block["scrape_configs"]
    assert job["static_configs"] == [{"targets": ["node1:9853"]}]
    job["static_configs"] = [{"targets": [f"127.0.0.1:{port}"]}]
    job["scrape_interval"] = "1s"
    return block


class Prometheus:
    """A Prometheus of our own on a port of its choice."""

    def __init__(self, program, folder, configuration):
        (folder / "prometheus.yml").write_text(json.dumps(configuration))  # JSON is YAML
        command = [program, f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
        command += ["--web.listen-address=127.0.0.1:0"]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        self.port = self._port()

    def _port(self):
        lines = []
        for line in self.process.stderr:
            lines.append(line)
            match = re.search(r'msg="Listening on" address=127\.0\.0\.1:([1-9]\d*)', line)
            if match:
                return int(match[1])
        raise AssertionError("".join(lines))

    def ask(self, expression):
        query = urllib.parse.urlencode({"query": expression})
        url = f"http://127.0.0.1:{self.port}/api/v1/query?{query}"
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(url, timeout=10) as answer:
            return json.load(answer)["data"]["result"]

    def wait_for(self, expression, rows, seconds=30.0):
        deadline = time.monotonic() + seconds
        while True:
            with contextlib.suppress(OSError):
                samples = self.ask(expression)
                if len(samples) == rows:
                    return samples
            assert time.monotonic() < deadline, (expression, samples)
            time.sleep(0.3)

    def close(self):
        self.process.terminate()
        self.process.communicate(timeout=20)


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory):
    program = tool("prometheus")
    daemon = Daemon("demo", "--listen", "127.0.0.1:0", environ={"NODE_NAME": "demo-node"})
    started = None
    try:
        started = Prometheus(program, tmp_path_factory.mktemp("prometheus"), recipe(daemon.port))
        # The last row that comes: it needs two readings after the first scrape.
        started.wait_for("DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", 8)
        yield started
    finally:
        if started is not None:
            started.close()
        daemon.stop()


@pytest.mark.parametrize("dashboard", contract.DASHBOARDS)
def test_every_query_of_a_known_dashboard_gives_a_row_a_gpu(prometheus, dashboard):
    for selector in contract.DASHBOARDS[dashboard]:
        rows = prometheus.wait_for(selector, 8)
        assert {row["metric"]["job"] for row in rows} == {"dcgm-exporter"}
        assert {row["metric"]["gpu"] for row in rows} == {str(card) for card in range(8)}
        assert {row["metric"]["Hostname"] for row in rows} == {"demo-node"}
        assert {row["metric"]["hostname"] for row in rows} == {"demo-node"}


@pytest.mark.parametrize(
    ("expression", "low", "high"),
    [
        ("avg(DCGM_FI_DEV_GPU_TEMP)", 20, 95),  # °C
        ("sum(DCGM_FI_DEV_POWER_USAGE)", 500, 8000),  # W
        ("avg(DCGM_FI_DEV_SM_CLOCK * 1000000)", 2e8, 2.2e9),  # Hz
        ("max(DCGM_FI_DEV_GPU_UTIL)", 1, 100),  # %
        ("max(DCGM_FI_DEV_FB_USED / (DCGM_FI_DEV_FB_USED + DCGM_FI_DEV_FB_FREE))", 0.1, 1),
        ("sum(DCGM_FI_DEV_FB_TOTAL)", 8 * 80_000, 8 * 82_000),  # MiB
        ("count(DCGM_FI_DEV_XID_ERRORS == 0)", 8, 8),
        ("count(DCGM_FI_DEV_VGPU_LICENSE_STATUS == 0)", 8, 8),
        ("sum(DCGM_FI_DEV_BAR1_TOTAL)", 8 * 131_072, 8 * 131_072),  # MiB
        ("max(DCGM_FI_DEV_POWER_USAGE / DCGM_FI_DEV_POWER_MGMT_LIMIT)", 0.1, 1.01),
        ("count(rate(DCGM_FI_DEV_THERMAL_VIOLATION[1m]) == 0)", 8, 8),
    ],
)
def test_common_panels_and_alerts_show_figures_in_dcgms_units(prometheus, expression, low, high):
    (row,) = prometheus.wait_for(expression, 1)
    assert low <= float(row["value"][1]) <= high


@pytest.mark.parametrize("rule", contract.ALERTS)
def test_no_common_alert_rule_fails_on_a_healthy_node(prometheus, rule):
    """Join errors and misread labels would be errors of the query."""
    samples = prometheus.ask(rule)
    if rule == "DCGM_FI_DEV_VGPU_LICENSE_STATUS == 0":
        assert len(samples) == 8, "as with DCGM, no card of metal is licensed"
    else:
        assert samples == []


def test_the_scrape_is_whole(prometheus):
    (row,) = prometheus.wait_for('up{job="dcgm-exporter"} == 1', 1)
    assert row["metric"]["instance"].startswith("127.0.0.1:")
