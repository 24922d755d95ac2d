"""What the commands print: bytes whatever the locale, and one line where it cannot be written."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tests.support.fault_matrix import ROOT, bare_environment

NAME = "zähler-中"
ALONE = "gpu: {enabled: false}\nkernel_log: {enabled: false}\ndiscovery: {processes: false}\n"
ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii", "PYTHONCOERCECLOCALE": "0"}

pytestmark = pytest.mark.slow


@pytest.fixture
def config(tmp_path):
    path = tmp_path / f"{NAME}.yaml"
    text = f"{ALONE}engines:\n  - {{name: {NAME}, url: 'http://127.0.0.1:1/', interval: 30s}}\nwindows: [10s]\n"
    path.write_text(text, encoding="utf-8")
    return path


def shell(line, *arguments, **environ):
    return subprocess.run(
        ["/bin/bash", "-c", f"set -o pipefail; {line}", sys.executable, *arguments],
        capture_output=True, cwd=ROOT, timeout=60, env=bare_environment(**environ),
    )  # fmt: skip


def test_a_page_is_utf8_whatever_the_locale(config):
    done = shell('"$0" -m exporter once --config "$1"', config, **ASCII)
    assert done.returncode == 0, done.stderr.decode()
    assert f'llm_up{{replica="{NAME}"'.encode() in done.stdout
    assert b"Traceback" not in done.stderr


def test_a_verdict_names_the_file_whatever_the_locale(config):
    done = shell('"$0" -m exporter check-config "$1"', config, **ASCII)
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.count(f"{config}: ".encode()) == len(done.stdout.splitlines()) > 1
    config.write_text("nonsense: 1")
    done = shell('"$0" -m exporter check-config "$1"', config, **ASCII)
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"unknown key" in done.stderr and b"nonsense" not in done.stderr and b"Traceback" not in done.stderr


def test_a_name_that_is_no_text_is_printed_as_it_came(tmp_path):
    name = bytes(tmp_path) + b"/\xff.yaml"
    with open(name, "wb") as file:
        file.write(ALONE.encode())
    done = shell('"$0" -m exporter check-config "$1"', name)
    assert (done.returncode, done.stdout[: len(name)]) == (0, name), done.stderr


@pytest.mark.parametrize(
    "command", ["once --config '{config}'", "check-config '{config}'", "completion bash", "demo --list", "--help",
                "run --help", "--version"],
)  # fmt: skip
@pytest.mark.parametrize("where", [">/dev/full", ">&-"])
def test_what_cannot_be_written_is_one_line_and_exit_code_one(command, where, config):
    line = f'"$0" -m exporter {command.format(config=config)} {where}'
    done = shell(line, PYTHONUNBUFFERED="")
    assert done.returncode == 1, done
    lines = done.stderr.decode().splitlines()
    (error_line,) = [row for row in lines if re.match(r"shardwatch( [a-z-]+)?: ", row)]
    assert "standard output" in error_line
    assert not [row for row in lines if "Traceback" in row or "Exception" in row], lines


def test_dashboards_whose_summary_cannot_be_printed_are_written_and_that_is_said_in_one_line(tmp_path):
    done = shell('"$0" -m exporter dashboards --output "$1" >/dev/full', str(tmp_path), PYTHONUNBUFFERED="1")
    assert done.returncode == 1 and (tmp_path / "en").is_dir()
    (line,) = done.stderr.decode().splitlines()
    assert line == "shardwatch dashboards: standard output cannot be written: No space left on device"


@pytest.mark.parametrize(
    ("command", "code"),
    [("alerts --diff --output {missing}", 1), ("dashboards --diff --output {missing}", 1),
     ("check --user a --password-file {missing} 127.0.0.1:1", 3), ("once --config {config}", 1),
     ("check-config {config}", 1), ("completion bash", 1)],
)  # fmt: skip
def test_a_command_whose_reader_has_ended_prints_no_error(command, code, config, tmp_path):
    arguments = command.format(missing=tmp_path / "missing", config=config).split()
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "exporter", *arguments],
            stdout=writer, stderr=subprocess.PIPE, text=True, cwd=ROOT, env=bare_environment(), timeout=60,
        )  # fmt: skip
    finally:
        os.close(writer)
    rows = [row for row in done.stderr.splitlines() if re.match("shardwatch|Traceback|Exception|BrokenPipe", row)]
    assert (done.returncode, rows) == (code, []), done.stderr
