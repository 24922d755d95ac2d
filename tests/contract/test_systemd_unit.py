"""The systemd unit: what systemd itself thinks of it, without installing anything."""

from __future__ import annotations

import re
import subprocess

import pytest

from tests.support import stack_files
from tests.support.tools import tool

UNIT = stack_files.COMPOSE / "systemd" / "shardwatch.service"
HIGHEST_EXPOSURE = 3.0


@pytest.fixture
def installed(tmp_path):
    """Return the unit as if it were installed: the program that it starts exists."""
    place = tmp_path / "shardwatch.service"
    place.write_text(UNIT.read_text().replace("/opt/shardwatch/bin/shardwatch", "/bin/true"))
    return place


def analyze(*arguments):
    command = [tool("systemd-analyze"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_systemd_understands_every_line(installed):
    done = analyze("verify", installed)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_line_that_it_does_not_understand_would_be_seen(installed):
    installed.write_text(installed.read_text() + "\n[Service]\nProtectSytem=strict\n")
    assert "ProtectSytem" in analyze("verify", installed).stderr


def test_the_daemon_is_hardly_exposed(installed):
    done = analyze("security", "--offline=true", "--no-pager", installed)
    level = float(re.search(r"Overall exposure level for \S+: ([0-9.]+)", done.stdout)[1])
    assert level < HIGHEST_EXPOSURE, done.stdout


def test_a_refused_configuration_is_not_tried_again():
    lines = UNIT.read_text().splitlines()
    assert "RestartPreventExitStatus=2" in lines  # `shardwatch run` ends with 2 for a bad configuration
    assert not [line for line in lines if line.startswith("ExecStartPre")]  # its status would not count


def test_what_it_needs_nothing_of_is_closed_to_it():
    closed = {
        "ProtectSystem=strict", "ProtectHome=yes", "PrivateTmp=yes", "ProtectKernelModules=yes", "NoNewPrivileges=yes",
        "ProtectKernelTunables=yes", "ProtectControlGroups=yes", "RestrictNamespaces=yes", "DevicePolicy=closed",
    }  # fmt: skip
    assert closed <= set(UNIT.read_text().splitlines())


def test_the_watchdog_has_a_receiver():
    lines = UNIT.read_text().splitlines()
    assert {"Type=notify", "WatchdogSec=60s", "Restart=on-failure", "DynamicUser=yes"} <= set(lines)
