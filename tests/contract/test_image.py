"""The container image without a container: the Dockerfile linted, and its steps run in a folder."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from tests.support import stack_files

ROOT = stack_files.ROOT
DOCKERFILE = ROOT / "compose" / "Dockerfile"
LOCKS = ("requirements.lock", "build-requirements.lock")


def instructions():
    """Yield (instruction, argument) with continued lines joined."""
    text = re.sub(r"^#.*\n", "", DOCKERFILE.read_text(), flags=re.MULTILINE)
    for line in re.sub(r"\\\n\s*", "", text).splitlines():
        instruction, _, rest = line.strip().partition(" ")
        if instruction:
            yield instruction, rest


def test_hadolint_finds_nothing():
    hadolint = Path(sys.executable).parent / "hadolint"
    run = subprocess.run([str(hadolint), "--no-color", str(DOCKERFILE)], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stdout + run.stderr


def test_the_base_is_a_whole_version_and_no_service_runs_as_root():
    steps = list(instructions())
    assert ("ARG", "PYTHON_IMAGE=python:3.13.9-slim-bookworm") in steps
    assert [rest.split()[0] for instruction, rest in steps if instruction == "FROM"] == ["${PYTHON_IMAGE}"] * 2
    (user,) = (rest for instruction, rest in steps if instruction == "USER")
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", user)


def test_the_health_check_asks_where_the_daemon_listens():
    """Its line of Python is run against a server of the test's own."""
    import http.server
    import threading

    statuses = [200]

    class Healthy(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(statuses[0] if self.path == "/-/healthy" else 404)
            self.end_headers()

        def log_message(self, *arguments):
            pass

    (check,) = (rest for instruction, rest in instructions() if instruction == "HEALTHCHECK")
    command = re.search(r'CMD \["python", "-c", "(.*)"\]', check)[1]
    with http.server.HTTPServer(("127.0.0.1", 0), Healthy) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        for listen in (f"127.0.0.1:{server.server_port}", f"0.0.0.0:{server.server_port}"):
            environment = {**os.environ, "SHARDWATCH_LISTEN": listen}
            run = subprocess.run([sys.executable, "-c", command], env=environment, capture_output=True, timeout=60)
            assert run.returncode == 0, run.stderr
        for status, healthy in ((400, True), (401, True), (503, False)):  # TLS, users, and a loop that does not run
            statuses[0] = status
            run = subprocess.run([sys.executable, "-c", command], env=environment, capture_output=True, timeout=60)
            assert (run.returncode == 0) is healthy, status
        server.shutdown()
        thread.join(10)
    run = subprocess.run([sys.executable, "-c", command], env=environment, capture_output=True, timeout=60)
    assert run.returncode != 0


@pytest.mark.parametrize("name", LOCKS)
def test_every_package_is_pinned_with_hashes_and_comes_from_nowhere_in_particular(name):
    text = (ROOT / "compose" / name).read_text()
    for line in text.splitlines():
        assert not line.startswith(("--", "-i", "-f")), f"{line}: that is this machine's, not everybody's"
        assert "://" not in line
    requirements = re.sub(r"\\\n\s*", "", re.sub(r"^\s*#.*\n", "", text, flags=re.MULTILINE)).splitlines()
    assert len(requirements) >= 2
    for requirement in requirements:
        assert re.match(r"[a-z0-9-]+==[0-9][0-9.a-z]* +--hash=sha256:[0-9a-f]{64}", requirement), requirement


def test_the_lock_holds_what_the_daemon_requests():
    required = [
        requirement for requirement in importlib.metadata.requires("shardwatch") if "extra ==" not in requirement
    ]
    locked = set(re.findall(r"^([a-z0-9-]+)==", (ROOT / "compose/requirements.lock").read_text(), re.MULTILINE))
    wanted = {re.match(r"[A-Za-z0-9-]+", requirement)[0].lower() for requirement in required}
    assert wanted >= {"nvidia-ml-py", "pyyaml"}
    assert wanted | {"bcrypt"} <= locked, "users of the endpoint need bcrypt"
    assert {"cramjam", "opentelemetry-proto", "protobuf"} <= locked, "and push needs these"
    assert "hatchling" in (ROOT / "compose/build-requirements.lock").read_text()


def test_the_builder_is_sent_what_is_copied_and_nothing_else():
    lines = (ROOT / "compose/Dockerfile.dockerignore").read_text().splitlines()
    allowed = {line[1:] for line in lines if line.startswith("!")}
    copied = {
        source
        for instruction, rest in instructions()
        if instruction == "COPY" and "--from" not in rest
        for source in rest.split()[:-1]
    }
    assert copied == allowed
    assert [line for line in lines if not line.startswith("#")][0] == "*"


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(sys.version_info < (3, 11), reason="the lock is for the image's Python; 3.10 would need tomli")
def test_the_steps_of_the_dockerfile_make_a_daemon_that_answers(tmp_path):
    """RUN and COPY of the build stage, with the image's folders below a temporary one."""
    folders = {"/opt/shardwatch": tmp_path / "opt", "/wheels": tmp_path / "wheels", "/src": tmp_path / "src"}
    base = tmp_path / "base"  # the image's own Python: whatever a step installs there must not come from here
    subprocess.run([sys.executable, "-m", "venv", str(base)], check=True, timeout=300)
    environment = {
        "PATH": f"{base / 'bin'}:/usr/bin:/bin",
        "HOME": str(tmp_path),
        **{key: value for key, value in os.environ.items() if key.startswith("PIP_")},
        **_pip_configuration(),
        "SOURCE_DATE_EPOCH": "0",
    }
    folders["/src"].mkdir()
    stage = 0
    for instruction, rest in instructions():
        stage += instruction == "FROM"
        if stage != 1:
            continue
        if instruction == "COPY":
            *sources, target = rest.split()
            _copy(sources, folders["/src"] / target)
        elif instruction == "RUN":
            for inside, outside in folders.items():
                rest = rest.replace(inside, str(outside))  # noqa: PLW2901
            step = subprocess.run(
                ["/bin/sh", "-euc", rest], cwd=folders["/src"], env=environment, capture_output=True, text=True,
                timeout=500,
            )  # fmt: skip
            assert step.returncode == 0, f"{rest}\n{step.stdout[-3000:]}{step.stderr[-3000:]}"
    _answers(folders["/opt/shardwatch"] / "bin", tmp_path)


def _pip_configuration():
    """Keep the index that this machine's pip is told to use; the home folder of the steps is an empty one."""
    for place in (Path.home() / ".config/pip/pip.conf", Path.home() / ".pip/pip.conf"):
        if place.is_file() and "PIP_CONFIG_FILE" not in os.environ:
            return {"PIP_CONFIG_FILE": str(place)}
    return {}


def _copy(sources, target):
    for source in sources:
        place = ROOT / source
        if place.is_dir():
            shutil.copytree(place, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(place, target if len(sources) == 1 and not target.is_dir() else target / place.name)


def _answers(programs, folder):
    program = programs / "shardwatch"
    done = subprocess.run([str(program), "--version"], cwd=folder, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stdout.startswith("shardwatch ")
    assert not (programs / "pip").exists()
    # Nothing may be written in a running container, so what is not compiled here is compiled at every start.
    (package,) = programs.parent.glob("lib/python*/site-packages/exporter")
    assert list(package.glob("__pycache__/*.pyc"))
    command = [str(program), "demo", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as demo:
        try:
            address = shlex.split(demo.stdout.readline())[1]
            page, deadline = "", time.monotonic() + 60
            while not ("gpu_utilization_ratio{" in page and "llm_requests_running{" in page):
                assert time.monotonic() < deadline, page
                with urllib.request.urlopen(address, timeout=10) as answer:
                    page = answer.read().decode()
                time.sleep(0.1)
        finally:
            demo.terminate()
            assert demo.wait(30) == 0
