"""``shardwatch check`` against a daemon on a simulated node whose GPU is lost, and without one."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import pytest

from tests.support.waiting import until

ROOT = pathlib.Path(__file__).parents[2]
NOBODY = "127.0.0.1:1"


def run(*arguments, timeout=60):
    command = [sys.executable, "-m", "exporter", "check", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout)


@pytest.fixture(scope="module")
def node():
    """The address of a daemon whose GPU 6 is lost and whose replica is ejected."""
    command = [sys.executable, "-m", "exporter", "demo", "--scenario", "hang", "--fault-at", "2", "--listen"]
    with subprocess.Popen(
        [*command, "127.0.0.1:0"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as demo:
        try:
            address = next(line for line in demo.stdout if "/metrics" in line).split("//")[1].split("/")[0]
            until(lambda: "GPU 6 is lost" in run(address).stdout, 120)
            yield address
        finally:
            demo.terminate()


def test_a_fault_is_an_exit_code_and_json(node):
    done = run("--json", "--fail-on", "critical", node)
    (document,) = json.loads(done.stdout)
    assert (done.returncode, document["exit"]) == (2, 2)
    lost = [gpu for gpu in document["node"]["gpus"] if not gpu["up"]]
    assert [gpu["gpu"] for gpu in lost] == ["6"]
    assert lost[0]["verdict"]["state"] != "serve"


def test_many_nodes_have_a_line_each_and_one_that_is_away_is_unknown(node):
    done = run(NOBODY, node)
    heads, _, findings = done.stdout.partition("\n\n")
    assert [line.split()[:2] for line in heads.splitlines()] == [["CRITICAL", node], ["UNKNOWN", NOBODY]]
    assert "GPU 6 is lost" in findings
    assert (done.returncode, done.stderr, run(NOBODY).returncode) == (2, "", 3)
    assert "\x1b" not in done.stdout  # no terminal, no colours


def test_a_scheduler_gets_the_verdict_of_the_node(node):
    until(lambda: run("--fail-on", "verdict", node).returncode == 2)
    assert "\n  verdict drain: GPU 6 is lost (gpu_lost)\n" in run("--fail-on", "verdict", node).stdout


def test_chinese_has_no_english_sentence_of_ours(node):
    text = run("--language", "zh", node).stdout
    assert "6 号卡掉卡" in text
    assert "is lost" not in text


def test_without_a_daemon_the_node_is_read():
    done = run(timeout=120)
    assert done.returncode in (0, 1, 2, 3)
    assert "Traceback" not in done.stderr
    assert done.stdout.split()[0] in ("OK", "WARNING", "CRITICAL", "UNKNOWN")
    assert "the node was read for" in done.stdout


def test_a_server_that_is_no_shardwatch_is_said(tmp_path):
    code = "import http.server as h; s = h.HTTPServer(('127.0.0.1', 0), h.SimpleHTTPRequestHandler); print(s.server_port, flush=True); s.serve_forever()"
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as other:
        try:
            done = run(f"127.0.0.1:{other.stdout.readline().strip()}")
        finally:
            other.terminate()
    assert (done.returncode, done.stderr) == (3, "")
