"""What goes wrong when a stack is started: each time the daemon ends at once, and says what to do.

As a container would start it: the same commands, on this machine.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

from tests.support import stack_files

FAILED, BAD_USAGE = 1, 2
COMMANDS = {name: service.get("command") for name, service in stack_files.compose()["services"].items()}


def start(*arguments, **more):
    environment = {**os.environ, "PYTHONPATH": str(stack_files.ROOT), **more.pop("environment", {})}
    command = [sys.executable, "-m", "exporter", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment, **more)


def refused(run, code, *words):
    assert run.returncode == code, run.stderr
    assert "Traceback" not in run.stderr
    for fragment in words:
        assert fragment in run.stderr, run.stderr


def test_the_node_is_started_as_it_is_here():
    assert COMMANDS["node"][:2] == ["run", "--config"]
    assert COMMANDS["demo"][0] == "demo"


@pytest.mark.parametrize(
    "wrong, words",
    [
        ("prometheus/prometheus.yaml", ("scrape_configs", "unknown key")),
        ("compose.yaml", ("services", "unknown key")),
        ("systemd/shardwatch.service", ("expected",)),
    ],
)
def test_a_file_of_another_program_is_refused_by_its_keys(wrong, words):
    refused(start("run", "--config", stack_files.COMPOSE / wrong), BAD_USAGE, wrong, *words)


def test_a_folder_that_docker_made_in_the_place_of_a_file_is_said(tmp_path):
    folder = tmp_path / "shardwatch.yaml"
    folder.mkdir()
    refused(start("run", "--config", folder), BAD_USAGE, str(folder), "Docker creates a directory")


def test_a_configuration_that_is_not_mounted_is_said(tmp_path):
    place = tmp_path / "shardwatch.yaml"
    refused(start("run", "--config", place), BAD_USAGE, str(place), "only mounted files exist")


def test_a_configuration_that_may_not_be_read_is_said_with_who_must(tmp_path):
    place = tmp_path / "shardwatch.yaml"
    place.write_text("{}")
    place.chmod(0)
    code = (
        "import os, runpy, sys\n"
        "import exporter.cli.daemon, exporter.cli.main, exporter.config.fields, shutil\n"  # while all folders may be entered
        f"os.chdir({str(tmp_path)!r}); os.geteuid() or os.seteuid(65534)\n"  # no file mode stops root
        "sys.exit(exporter.cli.main.main(['run', '--config', 'shardwatch.yaml']))\n"
    )
    tmp_path.chmod(0o755)
    environment = {**os.environ, "PYTHONPATH": str(stack_files.ROOT)}
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=environment)
    refused(run, BAD_USAGE, "needs read access")


def test_a_secret_that_is_not_mounted_is_named_with_its_key_and_line(tmp_path):
    place = tmp_path / "shardwatch.yaml"
    place.write_text(
        'engines:\n  - url: "http://127.0.0.1:8000/metrics"\n    bearer_token_file: /run/secrets/nothing\n'
    )
    refused(start("run", "--config", place), BAD_USAGE, "line 3", "bearer_token_file", "only mounted files exist")


@pytest.mark.slow
def test_an_occupied_port_is_said_with_the_command_that_names_its_owner(tmp_path):
    place = tmp_path / "shardwatch.yaml"
    place.write_text("gpu: {enabled: false}\ndiscovery: {processes: false}\nkernel_log: {enabled: false}\n")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        run = start("run", "--config", place, environment={"SHARDWATCH_LISTEN": listen})
    refused(run, FAILED, listen, "port is taken", "ss -ltnp")


@pytest.mark.slow
def test_an_address_of_a_bridge_that_is_not_there_is_said(tmp_path):
    place = tmp_path / "shardwatch.yaml"
    place.write_text("gpu: {enabled: false}\ndiscovery: {processes: false}\nkernel_log: {enabled: false}\n")
    run = start("run", "--config", place, environment={"SHARDWATCH_LISTEN": "192.0.2.1:9853"})
    refused(run, FAILED, "192.0.2.1:9853", "ip address")


@pytest.mark.parametrize(
    "listen, why", [("9853", "HOST:PORT"), ("node1", "HOST:PORT"), ("127.0.0.1:99999", "above 65535")]
)
def test_an_address_that_is_none_is_said(listen, why):
    refused(start("run", environment={"SHARDWATCH_LISTEN": listen}), BAD_USAGE, "SHARDWATCH_LISTEN", why)


def test_a_scenario_that_is_not_there_names_those_that_are():
    refused(start("demo", "--scenario", "nothing"), BAD_USAGE, "healthy", "pcie")
