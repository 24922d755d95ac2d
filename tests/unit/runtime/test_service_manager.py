"""What systemd is told, read from a socket of the test's own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys

import pytest

from exporter.runtime.service_manager import ServiceManager
from tests.support.waiting import CEILING


@pytest.fixture
def manager_socket(tmp_path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        path = str(tmp_path / "notify")
        listener.bind(path)
        listener.settimeout(CEILING)
        yield path, listener


def test_it_says_ready_and_stopping(manager_socket):
    path, listener = manager_socket
    manager = ServiceManager({"NOTIFY_SOCKET": path})
    manager.ready("serving")
    assert listener.recv(4096) == b"READY=1\nSTATUS=serving"
    manager.stopping()
    assert listener.recv(4096) == b"STOPPING=1"


def test_a_reload_carries_the_time_that_systemd_compares(manager_socket):
    path, listener = manager_socket
    ServiceManager({"NOTIFY_SOCKET": path}).reloading()
    first, second = listener.recv(4096).decode().split("\n")
    assert first == "RELOADING=1"
    assert second.startswith("MONOTONIC_USEC=")
    assert int(second.partition("=")[2]) > 0


def test_the_watchdog_is_fed_four_times_as_often_as_it_bites_and_no_oftener(manager_socket):
    path, listener = manager_socket
    now = 100.0
    manager = ServiceManager({"NOTIFY_SOCKET": path, "WATCHDOG_USEC": "20000000"}, clock=lambda: now)
    for now in (100.0, 101.0, 104.9, 105.0, 109.0, 110.1):
        manager.alive()
    listener.setblocking(False)
    signs = 0
    while True:
        try:
            assert listener.recv(4096) == b"WATCHDOG=1"
        except BlockingIOError:
            break
        signs += 1
    assert signs == 3


def test_the_watchdog_is_off_unless_configured(manager_socket):
    path, listener = manager_socket
    ServiceManager({"NOTIFY_SOCKET": path}).alive()
    listener.setblocking(False)
    with pytest.raises(BlockingIOError):
        listener.recv(4096)


@pytest.mark.parametrize(
    "pid, fed",
    [(None, True), (os.getpid(), True), (1, False), ("", False), ("me", False)],
    ids=["unset", "own", "another", "empty", "no number"],  # the same in every worker of xdist
)
def test_the_watchdog_is_fed_by_the_process_it_watches_and_by_no_other(manager_socket, pid, fed):
    path, listener = manager_socket
    named = {} if pid is None else {"WATCHDOG_PID": str(pid)}
    ServiceManager({"NOTIFY_SOCKET": path, "WATCHDOG_USEC": "20000000", **named}).alive()
    listener.setblocking(False)
    if fed:
        assert listener.recv(4096) == b"WATCHDOG=1"
    else:
        with pytest.raises(BlockingIOError):
            listener.recv(4096)


@pytest.mark.parametrize("environment", [{}, {"NOTIFY_SOCKET": ""}, {"NOTIFY_SOCKET": "relative"}])
def test_without_a_manager_it_opens_no_socket(environment, monkeypatch):
    opened = []
    monkeypatch.setattr("exporter.runtime.service_manager.socket.socket", lambda *kinds: opened.append(kinds))
    manager = ServiceManager(environment | {"WATCHDOG_USEC": "nonsense"})
    manager.ready("x")
    manager.alive()
    manager.stopping()
    assert opened == []


def test_a_manager_that_is_gone_is_said_once_and_stops_nothing(tmp_path, caplog):
    manager = ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "nobody"), "WATCHDOG_USEC": "1"})
    for _ in range(3):
        manager.ready("x")
    assert len(caplog.records) == 1
    assert "event=sd_notify_failed" in caplog.text


@pytest.mark.slow
def test_the_daemon_logs_its_start_its_states_and_its_end(manager_socket, tmp_path):
    path, listener = manager_socket
    config = tmp_path / "shardwatch.yaml"
    config.write_text("listen: 127.0.0.1:0\ngpu: {enabled: false}\ndiscovery: {processes: false}\n")
    environment = {**os.environ, "NOTIFY_SOCKET": path, "WATCHDOG_USEC": "2000000"}
    command = [sys.executable, "-m", "exporter", "run", "--config", str(config)]
    with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) as daemon:
        assert wait_for("READY=1", listener).startswith("READY=1\nSTATUS=serving 127.0.0.1:")
        assert listener.recv(4096) == b"WATCHDOG=1"
        daemon.send_signal(signal.SIGHUP)
        wait_for("RELOADING=1", listener)
        wait_for("READY=1", listener)
        daemon.send_signal(signal.SIGTERM)
        assert wait_for("STOPPING=1", listener) == "STOPPING=1"
        assert daemon.wait(CEILING) == 0


def wait_for(beginning, listener):
    """Return the first message that begins so; before it only the watchdog may be fed."""
    while (message := listener.recv(4096).decode()) == "WATCHDOG=1":
        pass
    assert message.startswith(beginning)
    return message
