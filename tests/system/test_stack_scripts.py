"""The small programs that stand around engines: the entry check, and the wait before a pod stops."""

from __future__ import annotations

import http.server
import os
import subprocess
import sys
import threading
import time

import pytest

from tests.support import stack_files

ENTRY = stack_files.COMPOSE / "engines" / "entry.sh"
DRAIN = stack_files.COMPOSE / "kubernetes" / "examples" / "vllm" / "drain.py"


@pytest.fixture
def image(tmp_path):
    """A folder that stands for the image's programs: an engine that says its token and arguments, and nvidia-smi."""
    programs = tmp_path / "bin"
    programs.mkdir()
    _program(programs / "engine", 'echo "token=${HF_TOKEN-none} arguments=$*"')
    _program(programs / "nvidia-smi", "echo 'GPU 0: a card'")
    for needed in ("sh", "cat", "id", "sleep"):
        (programs / needed).symlink_to(f"/bin/{needed}")
    return programs


def _program(place, line):
    place.write_text(f"#!/bin/sh\n{line}\n")
    place.chmod(0o755)


def enter(image, *command, **environment):
    return subprocess.run(
        ["/bin/sh", str(ENTRY), *command], env={"PATH": str(image), **environment}, capture_output=True, text=True,
        timeout=60,
    )  # fmt: skip


def test_an_engine_starts_with_its_arguments_and_token(image, tmp_path):
    token = tmp_path / "token"
    token.write_text("hf_secret\n")
    run = enter(image, "engine", "a b", "--c", HF_TOKEN_FILE=str(token))
    assert (run.returncode, run.stdout, run.stderr) == (0, "token=hf_secret arguments=a b --c\n", "")


@pytest.mark.parametrize("environment", [{}, {"HF_TOKEN_FILE": ""}, {"HF_TOKEN_FILE": "/dev/null"}])
def test_no_token_is_no_token(image, environment):
    assert enter(image, "engine", **environment).stdout == "token=none arguments=\n"


def test_a_token_that_is_not_there_is_said(image, tmp_path):
    run = enter(image, "engine", HF_TOKEN_FILE=str(tmp_path / "nothing"))
    assert run.returncode == 2 and "HF_TOKEN_FILE" in run.stderr and "existing file" in run.stderr


def test_a_token_that_cannot_be_read_is_said_with_the_cure(image, tmp_path):
    token = tmp_path / "token"
    token.write_text("hf_secret")
    token.chmod(0)
    for place in (tmp_path, *tmp_path.parents[:-2]):
        place.chmod(place.stat().st_mode | 0o055)
    user = {"user": 65534, "group": 65534} if os.geteuid() == 0 else {}
    run = subprocess.run(
        ["/bin/sh", str(ENTRY), "engine"], env={"PATH": str(image), "HF_TOKEN_FILE": str(token)}, capture_output=True,
        text=True, timeout=60, cwd="/", stdin=subprocess.DEVNULL, **user,
    )  # fmt: skip
    assert run.returncode == 2 and "chmod" in run.stderr
    assert "hf_secret" not in run.stdout + run.stderr


def test_a_folder_in_the_place_of_a_token_is_said(image, tmp_path):
    run = enter(image, "engine", HF_TOKEN_FILE=str(tmp_path))
    assert run.returncode == 2 and "not a folder" in run.stderr


def test_without_the_nvidia_runtime_nothing_is_fetched(image):
    (image / "nvidia-smi").unlink()
    run = enter(image, "engine")
    assert run.returncode == 2 and "nvidia-ctk runtime configure" in run.stderr and run.stdout == ""


def test_a_driver_that_shows_no_gpu_is_said(image):
    _program(image / "nvidia-smi", "exit 9")
    run = enter(image, "engine")
    assert run.returncode == 2 and "device_ids" in run.stderr


def test_an_image_without_the_engine_is_said(image):
    run = enter(image, "vllm", "serve")
    assert run.returncode == 2 and "no vllm" in run.stderr


# ---------------------------------------------------------------------- drain


class Engine(http.server.ThreadingHTTPServer):
    """Answers with a page of its own; ``running`` may be changed."""

    daemon_threads = True
    running = 3.0
    asked = 0

    def page(self):
        self.asked += 1
        return (
            "# HELP vllm:num_requests_running x\n"
            f'vllm:num_requests_running{{engine="0",model_name="chat"}} {self.running}\n'
            'vllm:num_requests_waiting{engine="0",model_name="chat"} 0.0\n'
            'vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 7.0\n'
        ).encode()


class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.server.page())

    def log_message(self, *arguments):
        pass


@pytest.fixture
def engine():
    with Engine(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join(10)


def drain(port, patience):
    environment = {
        **os.environ, "DRAIN_URL": f"http://127.0.0.1:{port}/metrics", "DRAIN_HEARD_AFTER": "0", "DRAIN_PAUSE": "0.02",
        "DRAIN_PATIENCE": str(patience),
    }  # fmt: skip
    return subprocess.Popen([sys.executable, str(DRAIN)], env=environment)


def _asked(engine, process):
    while not engine.asked:
        assert process.poll() is None
        time.sleep(0.01)


def test_a_pod_waits_for_its_running_requests(engine):
    with drain(engine.server_address[1], 100) as waiting:
        _asked(engine, waiting)
        with pytest.raises(subprocess.TimeoutExpired):
            waiting.wait(0.5)
        engine.running = 0.0
        assert waiting.wait(30) == 0


def test_a_pod_asks_its_own_engine_and_no_proxy(engine, monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    with drain(engine.server_address[1], 100) as waiting:
        _asked(engine, waiting)
        engine.running = 0.0
        assert waiting.wait(30) == 0


def test_a_pod_does_not_wait_for_ever(engine):
    with drain(engine.server_address[1], 0.3) as waiting:
        assert waiting.wait(30) == 0
    assert engine.running


def test_a_pod_whose_engine_is_gone_goes_too():
    with drain(1, 100) as waiting:
        assert waiting.wait(30) == 0
