"""Engines in real network namespaces: which of their addresses the daemon requests."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.processes import listening_engines

LISTENER = """
import socket, sys, time
server = socket.socket()
server.setsockopt(socket.IPPROTO_IP, 15, 1)  # IP_FREEBIND: no privilege needed
server.bind((sys.argv[2], 0))
server.listen()
print("ready", flush=True)
time.sleep(600)
"""
# Takes an address on the loopback interface of its namespace, as root of it may, and listens on another or the same.
SERVER = """
import fcntl, socket, struct, sys, time
own, bound = sys.argv[2:4]
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
    address = struct.pack("HH4s8x", socket.AF_INET, 0, socket.inet_aton(own))
    fcntl.ioctl(control, 0x8916, struct.pack("16s16s", b"lo", address))  # SIOCSIFADDR
    fcntl.ioctl(control, 0x8914, struct.pack("16sh14x", b"lo", 1))  # SIOCSIFFLAGS, up
server = socket.socket()
server.setsockopt(socket.IPPROTO_IP, 15, 1)  # IP_FREEBIND: no privilege needed
server.bind((bound, 8000))
server.listen()
print("ready", flush=True)
time.sleep(600)
"""


@contextmanager
def engine(folder: Path, unshare: Sequence[str], own: str, bound: str) -> Iterator[int]:
    """Run a server with an engine's command line in a network namespace of its own; give its pid."""
    script = folder / "vllm"
    script.write_text(SERVER)
    command = ["unshare", *unshare, sys.executable, str(script), "serve", own, bound]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None and process.stderr is not None
        if process.stdout.readline() != "ready\n":
            process.kill()
            pytest.skip(f"no network namespaces here: {process.stderr.read().strip()[-100:]}")
        yield process.pid
    finally:
        process.kill()
        process.communicate()


def addresses(pid: int) -> list[str]:
    return [engine.host for engine in listening_engines() if engine.pid == pid]


def test_a_network_namespace_that_an_unprivileged_user_created_names_no_address(tmp_path: Path) -> None:
    with engine(tmp_path, ["--user", "--map-root-user", "--net"], "198.51.100.7", "198.51.100.7") as pid:
        assert addresses(pid) == []


def test_a_network_namespace_that_root_created_names_the_addresses_it_has(tmp_path: Path) -> None:
    with engine(tmp_path, ["--net"], "198.51.100.7", "198.51.100.7") as pid:
        assert addresses(pid) == ["198.51.100.7"]
    with engine(tmp_path, ["--net"], "198.51.100.7", "203.0.113.9") as pid:
        assert addresses(pid) == []


@pytest.mark.parametrize(("bound", "hosts"), [("198.51.100.7", []), ("127.0.0.1", ["127.0.0.1"])])
def test_in_the_daemons_network_namespace_a_foreign_address_is_not_requested(
    tmp_path: Path, bound: str, hosts: list[str]
) -> None:
    script = tmp_path / "vllm"
    script.write_text(LISTENER)
    command = [sys.executable, str(script), "serve", bound]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            assert addresses(process.pid) == hosts
        finally:
            process.kill()
