"""The unit, started by systemd: installed as its first lines say, in a container whose PID 1 is systemd."""

from __future__ import annotations

import pathlib
import re

import pytest

from tests.containers.engine import COMPOSE, ROOT
from tests.containers.images import SYSTEMD
from tests.support.nvml_node import build
from tests.support.tools import tool
from tests.support.waiting import until

UNIT = COMPOSE / "systemd" / "shardwatch.service"
# systemd mounts and traces; a host whose cgroups are v1 has the unified hierarchy beside them.
POWERS = (
    "--cap-add",
    "SYS_ADMIN",
    "--cap-add",
    "NET_ADMIN",
    "--cap-add",
    "SYS_PTRACE",
    "--cap-add",
    "DAC_READ_SEARCH",
)
OPEN = ("--security-opt", "seccomp=unconfined", "--security-opt", "apparmor=unconfined")
CGROUPS = "/sys/fs/cgroup"


class Machine:
    """A container that runs systemd."""

    def __init__(self, docker, container):
        self._docker, self._container = docker, container

    def __call__(self, command, check=True):
        return self._docker("exec", self._container, "bash", "-c", command, check=check)

    def property(self, name):
        return self(f"systemctl show shardwatch --property {name} --value")

    def status(self):
        return self("systemctl is-active shardwatch", check=False)


def installation():
    """Return the commands of the unit's first lines, up to the one that starts it."""
    lines = UNIT.read_text().partition("\n[Unit]")[0].splitlines()
    commands = [line.removeprefix("#   ") for line in lines if line.startswith("#   ")]
    return commands[: next(i for i, line in enumerate(commands) if "enable --now" in line) + 1]


def fetch(path):
    return (
        f"python3 -c \"import urllib.request as r; print(r.urlopen('http://127.0.0.1:19853{path}').read().decode())\""
    )


@pytest.fixture(scope="module")
def machine(docker, systemd_image, tmp_path_factory):
    driver = build(tool("cc"), tmp_path_factory.mktemp("driver"))
    unified = f"{CGROUPS}/unified" if pathlib.Path(CGROUPS, "unified").exists() else CGROUPS
    mounts = (
        "--volume",
        f"{unified}:{CGROUPS}",
        "--volume",
        f"{ROOT}:/source:ro",
        "--volume",
        f"{driver}:/driver:ro",
    )
    options = ("--cgroupns", "host", "--tmpfs", "/run:exec", "--tmpfs", "/tmp:exec", "--network", "host")
    with docker.running(*POWERS, *OPEN, *options, *mounts, SYSTEMD) as container:
        machine = Machine(docker, container)
        until(lambda: machine("systemctl is-system-running", check=False) in ("running", "degraded"), 120)
        machine("install -D -m 0755 /driver/libnvidia-ml.so.1 /usr/lib/libnvidia-ml.so.1")
        machine(
            "mkdir /copy && tar -C /source --exclude .venv --exclude .git --exclude .cache -c . | tar -C /copy -x"
        )
        machine("cd /copy && " + " && ".join(installation()[:-1]))
        # Host's network, so that pip reaches its index: the unit listens on a port of its own.
        machine("echo 'listen: 127.0.0.1:19853' >> /etc/shardwatch/shardwatch.yaml")
        machine(installation()[-1])
        yield machine


def test_the_unit_starts_and_reports_ready(machine):
    until(lambda: machine.status() == "active", 120)
    assert "serving" in machine.property("StatusText")
    until(lambda: "gpu_up{" in machine(fetch("/metrics")), 60)


def test_its_hardening_is_in_effect(machine):
    pid = machine.property("MainPID")
    status = machine(f"cat /proc/{pid}/status")
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert "0" not in fields["Uid"].split() and fields["NoNewPrivs"] == "1" and fields["Seccomp"] == "2"
    assert int(fields["CapBnd"], 16) == (1 << 2) | (1 << 19), "DAC_READ_SEARCH and SYS_PTRACE"
    inside = f"nsenter --target {pid} --mount --"
    assert "Read-only file system" in machine(f"{inside} touch /usr/x", check=False)
    assert re.search(r"OK|SAFE", machine("systemd-analyze security --no-pager shardwatch | tail -1"))


def test_reload_follows_the_configuration_and_keeps_the_process(machine):
    pid = machine.property("MainPID")
    machine("echo 'gpu: {interval: 2s}' >> /etc/shardwatch/shardwatch.yaml && systemctl reload shardwatch")
    until(lambda: "event=reloaded" in machine("journalctl --no-pager --unit shardwatch"), 60)
    assert machine.property("MainPID") == pid


def test_the_watchdog_restarts_a_daemon_that_stands_still(machine):
    pid = machine.property("MainPID")
    machine(f"kill -STOP {pid}")
    until(lambda: machine.status() == "active" and machine.property("MainPID") not in (pid, "0"), 180)
    assert "watchdog" in machine("journalctl --no-pager --unit shardwatch").lower()


def test_it_stops_in_time_and_a_rejected_configuration_is_not_restarted(machine):
    machine("systemctl stop shardwatch")
    assert machine.property("Result") == "success"
    machine("echo 'intervall: 2s' >> /etc/shardwatch/shardwatch.yaml; systemctl start shardwatch", check=False)
    until(lambda: machine.status() == "failed", 60)
    assert machine.property("NRestarts") in ("0", "1") and machine.property("ExecMainStatus") == "2"
