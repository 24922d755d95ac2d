"""The systemd unit: what systemd itself thinks of it, without installing anything."""

from __future__ import annotations

import ipaddress
import re
import subprocess

import pytest

from tests.support import stack_files
from tests.support.tools import tool

UNIT = stack_files.COMPOSE / "systemd" / "shardwatch.service"
DROP_IN = UNIT.with_name("no-capabilities.conf")
HIGHEST_EXPOSURE = 2.0


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


def exposure(unit):
    done = analyze("security", "--offline=true", "--no-pager", unit)
    return float(re.search(r"Overall exposure level for \S+: ([0-9.]+)", done.stdout)[1])


def test_the_daemon_is_hardly_exposed(installed):
    assert exposure(installed) <= HIGHEST_EXPOSURE


def test_the_drop_in_leaves_no_capability(installed):
    before = exposure(installed)
    installed.write_text(installed.read_text() + DROP_IN.read_text())
    done = analyze("verify", installed)
    assert (done.returncode, done.stderr) == (0, "")
    assert exposure(installed) < before
    lines = DROP_IN.read_text().splitlines()
    assert {"AmbientCapabilities=", "CapabilityBoundingSet="} <= set(lines)


def test_the_metadata_address_of_clouds_is_out_of_reach():
    settings = dict(line.split("=", 1) for line in UNIT.read_text().splitlines() if line.startswith("IPAddress"))
    assert settings["IPAddressDeny"] == "any"
    allowed = [ipaddress.ip_network(item) for item in settings["IPAddressAllow"].split() if item != "localhost"]
    metadata = [ipaddress.ip_address("169.254.169.254"), ipaddress.ip_address("fe80::1")]
    assert not [network for network in allowed for address in metadata if address in network]


def test_what_it_forbids_it_does_not_need():
    lines = UNIT.read_text().splitlines()
    assert "ProtectKernelLogs=yes" in lines
    assert not [
        line for line in lines if "CAP_SYSLOG" in line.partition("#")[0] or "/dev/kmsg" in line.partition("#")[0]
    ]


def test_the_offered_lines_are_understood(installed):
    text = installed.read_text()
    assert text.count("#LoadCredential=") == 1
    installed.write_text(text.replace("#LoadCredential=", "LoadCredential="))
    done = analyze("verify", installed)
    assert (done.returncode, done.stderr) == (0, "")


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
