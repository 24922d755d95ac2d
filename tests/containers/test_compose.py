"""The profiles of compose.yaml with real containers, without Grafana where no registry has its image."""

from __future__ import annotations

import json
import random
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator

import pytest
import yaml

from tests.containers.engine import ROOT, Docker
from tests.support.nvml_node import build
from tests.support.stack_files import compose
from tests.support.tools import tool
from tests.support.waiting import until

RULES = ROOT / "alerts/generated/en/rules.yaml"
PORTS = ("SHARDWATCH_PORT", "PROMETHEUS_PORT", "ALERTMANAGER_PORT", "RECEIVER_PORT", "VICTORIA_METRICS_PORT")


def free_ports(count: int) -> list[int]:
    servers = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [server.getsockname()[1] for server in servers]
    for server in servers:
        server.close()
    return ports


class Stack:
    """Services of compose.yaml, on ports and a subnet of their own."""

    def __init__(self, docker: Docker, env_file: str, services: tuple[str, ...], *files: str, **more: str) -> None:
        self._docker, self._services = docker, services
        octet = random.randint(0, 255)
        network = {"SHARDWATCH_SUBNET": f"10.213.{octet}.0/24", "SHARDWATCH_GATEWAY": f"10.213.{octet}.1"}
        self.gateway = network["SHARDWATCH_GATEWAY"]
        self.ports = dict(zip(PORTS, free_ports(len(PORTS)), strict=True))
        self._environment = {**network, **{name: str(port) for name, port in self.ports.items()}, **more}
        chosen = [item for file in ("compose.yaml", *files) for item in ("--file", file)]
        self._command = ("compose", "--project-name", f"test-{octet}", "--env-file", env_file, *chosen)

    def __call__(self, *arguments: str, check: bool = True) -> str:
        return self._docker(*self._command, *arguments, check=check, **self._environment)

    def __enter__(self) -> Stack:
        self("up", "--detach", "--no-deps", *self._services)
        return self

    def __exit__(self, *_: object) -> None:
        self("down", "--volumes", "--timeout", "5")

    def states(self) -> dict[str, str]:
        """Return the health of each service."""
        lines = self("ps", "--all", "--format", "json").splitlines()
        return {line["Service"]: line["Health"] or line["State"] for line in map(json.loads, lines)}

    def healthy(self) -> bool:
        return self.states() == dict.fromkeys(self._services, "healthy")

    def ask(self, port: str, path: str, host: str = "127.0.0.1") -> str:
        """Return the answer of a service, "" if it does not answer."""
        try:
            with urllib.request.urlopen(f"http://{host}:{self.ports[port]}{path}", timeout=10) as response:
                return response.read().decode()
        except OSError:
            return ""

    def query(self, expression: str, port: str = "PROMETHEUS_PORT") -> list[float]:
        """Return the values of an instant query, by Prometheus or VictoriaMetrics."""
        answer = self.ask(port, f"/api/v1/query?query={urllib.request.quote(expression)}")
        return [float(each["value"][1]) for each in json.loads(answer)["data"]["result"]] if answer else []


@pytest.fixture(scope="module")
def demo(docker) -> Iterator[Stack]:
    services = ("demo", "prometheus", "receiver", "alertmanager")
    with Stack(docker, "demo.env", services, SHARDWATCH_SCENARIO="hang") as stack:
        until(stack.healthy, 300)
        yield stack


def test_the_demo_comes_up_on_other_ports_and_another_subnet_and_is_scraped(demo):
    until(lambda: demo.query('up{job="shardwatch"}') == [1.0], 120)
    until(lambda: demo.query("count(gpu_up)") == [8.0], 120)


def test_prometheus_loads_every_rule_and_none_fails(demo):
    count = sum(len(group["rules"]) for group in yaml.safe_load(RULES.read_text())["groups"])

    def rules():
        groups = json.loads(demo.ask("PROMETHEUS_PORT", "/api/v1/rules"))["data"]["groups"]
        return [rule["health"] for group in groups for rule in group["rules"]]

    until(lambda: set(rules()) == {"ok"}, 300)
    assert len(rules()) == count


def test_the_page_about_the_lost_gpu_reaches_the_receiver(demo):
    until(lambda: "GpuLost" in demo.ask("RECEIVER_PORT", "/"), 600)
    assert "EngineFrozen" not in demo.ask("RECEIVER_PORT", "/"), "one fault, one page"


def test_services_are_as_confined_as_the_file_says(docker, demo):
    for name, service in compose("demo.env")["services"].items():
        if name not in demo.states():
            continue
        container = demo("ps", "--quiet", name)
        config = json.loads(docker.inspect(container, "{{json .HostConfig}}"))
        assert config["ReadonlyRootfs"] and config["CapDrop"] == ["ALL"] and not config["Privileged"], name
        memory = service["deploy"]["resources"]["limits"]["memory"]
        assert config["Memory"] == int(memory[:-1]) << {"M": 20, "G": 30}[memory[-1]], name
        uids = docker("exec", container, "sed", "-n", "s/^Uid:.//p", "/proc/1/status")
        assert "0" not in uids.split(), (name, uids)


def test_services_come_back_after_a_restart(demo):
    demo("restart", "prometheus", "receiver", "alertmanager", "demo")
    until(demo.healthy, 300)
    until(lambda: demo.query('up{job="shardwatch"}') == [1.0], 120)


def test_a_fleet_keeps_its_nodes_in_victoria_metrics(docker, tmp_path):
    (tmp_path / "fleet.yaml").write_text('- targets: ["demo:9853"]\n  labels: {cluster: lab}\n')
    services = ("demo", "prometheus", "receiver", "alertmanager", "victoria-metrics")
    more = {"COMPOSE_PROFILES": "fleet,demo", "SHARDWATCH_TARGETS": str(tmp_path / "fleet.yaml")}
    with Stack(docker, "fleet.env", services, **more) as stack:
        until(stack.healthy, 300)
        until(lambda: stack.query('count(gpu_up{cluster="lab"})', "VICTORIA_METRICS_PORT") == [8.0], 300)


# What Docker does where the NVIDIA runtime is installed is done by hand here: the driver's library is mounted.
NODE = """
services:
  node:
    devices: !reset []
    deploy: !reset {}
    environment: {FAKE_NVML_CONTROL: /driver/plan}
    volumes:
      - {type: bind, source: DRIVER, target: /driver, read_only: true}
      - {type: bind, source: DRIVER/libnvidia-ml.so.1, target: /usr/lib/libnvidia-ml.so.1, read_only: true}
"""


# A process of the host with the command line of an engine, which answers with a recorded page.
SERVER = """
import http.server, pathlib, sys
page = pathlib.Path(sys.argv[-1]).read_bytes()
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(page)
    def log_message(self, *arguments):
        pass
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), Handler).serve_forever()
"""


@pytest.fixture
def engine(tmp_path):
    (port,) = free_ports(1)
    module = tmp_path / "vllm/entrypoints/openai/api_server.py"
    module.parent.mkdir(parents=True)
    module.write_text(SERVER)
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--port", str(port)]
    page = ROOT / "tests/captures/vllm-0.32.0-real-cpu-load.prom"
    with subprocess.Popen([*command, str(page)], cwd=tmp_path) as process:
        yield f"engine:127.0.0.1:{port}"
        process.kill()


def test_a_node_reads_gpus_and_engines_of_the_host_and_is_reached_through_the_gateway(docker, engine, tmp_path):
    build(tool("cc"), tmp_path)
    (tmp_path / "plan").write_text("")
    tmp_path.chmod(0o755)
    (tmp_path / "node.yaml").write_text(NODE.replace("DRIVER", str(tmp_path)))
    services = ("node", "prometheus", "receiver", "alertmanager")
    with Stack(docker, "node.env", services, str(tmp_path / "node.yaml")) as stack:
        until(stack.healthy, 300)
        until(lambda: stack.query('up{job="shardwatch"}') == [1.0], 120)
        until(lambda: min(stack.query("gpu_up"), default=0.0) == 1.0, 120)
        until(lambda: stack.query(f'shardwatch_source_up{{source="{engine}"}}') == [1.0], 120)
