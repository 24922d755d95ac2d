"""Signals from the first moment of the daemon's life, and standard streams that are closed."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time

import pytest

from tests.support.fault_matrix import ROOT, alive, bare_environment
from tests.support.waiting import CEILING, until

QUIET = "gpu: {enabled: false}\nkernel_log: {enabled: false}\ndiscovery: {processes: false}\nlisten: 127.0.0.1:0\n"

# A signal at a chosen moment of the start: when the module of that name is looked for, which is once.
AT_IMPORT = """\
import os, sys

class Now:
    def find_spec(self, name, path=None, target=None):
        global MOMENT
        if name == MOMENT:
            MOMENT = ""
            os.kill(os.getpid(), int(NUMBER))

sys.meta_path.insert(0, Now())
sys.argv[1:], MOMENT, NUMBER = sys.argv[3:], *sys.argv[1:3]
from exporter.__main__ import main
sys.exit(main())
"""
MOMENTS = (
    "exporter.cli.main",
    "argparse",
    "exporter.config.settings",
    "yaml",
    "exporter.runtime.app",
    "exporter.runtime.service_manager",
)


@contextlib.contextmanager
def started(*command, **more):
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=ROOT, env=bare_environment(), **more)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(10)
        process.stderr.close()


def config(folder):
    path = folder / "c.yaml"
    path.write_text(QUIET)
    return str(path)


def signalled(moment, number, folder):
    return started(sys.executable, "-c", AT_IMPORT, moment, str(int(number)), "run", "--config", config(folder))


def until_listening(process):
    lines = []
    for line in process.stderr:
        lines.append(line)
        if "event=listening" in line:
            return lines
    raise AssertionError("".join(lines))


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_daemon_that_is_stopped_while_it_is_still_loaded_ends_with_zero(number, tmp_path):
    for moment in MOMENTS:
        with signalled(moment, number, tmp_path) as process:
            _, output = process.communicate(timeout=CEILING)
            assert process.returncode == 0, (moment, output)
            assert "Traceback" not in output and "event=listening" not in output, (moment, output)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_demo_that_is_stopped_while_its_engines_start_ends_them_in_order(number):
    with started(sys.executable, "-m", "exporter", "demo", "--listen", "127.0.0.1:0") as process:
        until(lambda: children(process.pid))
        engines = children(process.pid)
        process.send_signal(number)
        _, output = process.communicate(timeout=CEILING)  # until the engines have closed it, too
    assert process.returncode == 0 and "Traceback" not in output, output
    assert engines and not [pid for pid in engines if alive(pid)]


def children(pid):
    try:
        with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
            return [int(pid) for pid in file.read().split()]
    except OSError:
        return []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "message"),
    [(signal.SIGHUP, "event=reloaded"), (signal.SIGUSR1, ""), (signal.SIGUSR2, "")],
)
def test_a_signal_that_requests_something_is_kept_until_the_daemon_can_do_it(number, message, tmp_path):
    for moment in ("exporter.cli.main", "exporter.config.settings", "exporter.runtime.app"):
        with signalled(moment, number, tmp_path) as process:
            until_listening(process)
            deadline = time.monotonic() + CEILING
            while message and time.monotonic() < deadline and message not in process.stderr.readline():
                pass
            process.terminate()
            process.communicate(timeout=CEILING)
            assert process.returncode == 0, moment
            assert time.monotonic() < deadline


@pytest.mark.slow
@pytest.mark.parametrize(
    "redirection", [">&-", "2>&-", ">&- 2>&-", "<&-", "<&- >&- 2>&-", ">/dev/full", "2>/dev/full"]
)
def test_the_daemon_ends_with_zero_whatever_its_standard_streams_are(redirection, tmp_path):
    command = f'exec "$0" -m exporter run --config "$1" {redirection}'
    with started("/bin/sh", "-c", command, sys.executable, config(tmp_path), stdout=subprocess.DEVNULL) as process:
        until(lambda: has_a_listening_socket(process.pid))
        for number in (0, 1, 2):
            kind = os.readlink(f"/proc/{process.pid}/fd/{number}")
            assert not re.match("socket:|anon_inode:", kind), "what writes to a standard stream would write into this"
        process.terminate()
        _, output = process.communicate(timeout=CEILING)
        assert process.returncode == 0, output
        assert "Traceback" not in output


def has_a_listening_socket(pid):
    try:
        ours = {os.readlink(f"/proc/{pid}/fd/{descriptor}") for descriptor in os.listdir(f"/proc/{pid}/fd")}
    except OSError:
        return False
    with open("/proc/net/tcp", encoding="ascii") as table:
        rows = [line.split() for line in table]
    return any(row[3] == "0A" and f"socket:[{row[9]}]" in ours for row in rows)


@pytest.fixture
def interrupts():
    """Let programs that are started be interrupted, also where the tests run in the background and are not."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.slow
@pytest.mark.usefixtures("interrupts")
def test_a_command_that_is_interrupted_before_its_page_has_failed(tmp_path):
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        url = f"http://127.0.0.1:{mute.getsockname()[1]}/"
        (tmp_path / "c.yaml").write_text(f"gpu: {{enabled: false}}\nengines: [{{url: '{url}', timeout: 5s}}]\n")
        command = [sys.executable, "-m", "exporter", "once", "--config", str(tmp_path / "c.yaml")]
        mute.settimeout(CEILING)
        with started(*command, stdout=subprocess.PIPE) as process:
            with mute.accept()[0]:
                process.send_signal(signal.SIGINT)
                page, output = process.communicate(timeout=CEILING)
    assert (process.returncode, page) == (1, "")
    assert "Traceback" not in output and "interrupted" in output
