"""The stack without Docker: what keeps it from starting is said at once, and what it starts it also ends."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request

import pytest

from compose.native import configuration, ports, servers
from compose.native.errors import StackError
from compose.native.programs import ALERTMANAGER, Program
from compose.native.stack import StackSettings, problems, stack
from tests.support.tools import tool

ROOT = pathlib.Path(__file__).parents[2]


def all_programs():
    for name in ("prometheus", "promtool", "amtool"):
        tool(name)
    if ALERTMANAGER.path() is None:
        tool("prometheus-alertmanager")


@pytest.fixture
def taken():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def children():
    """Return every process below this one as "pid command line"."""
    parents, commands = {}, {}
    for place in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parents[int(place.name)] = int((place / "stat").read_text().rpartition(") ")[2].split()[1])
            commands[int(place.name)] = (place / "cmdline").read_text().replace("\0", " ")
    mine = {os.getpid()}
    for _ in range(4):
        mine |= {pid for pid, parent in parents.items() if parent in mine}
    return {f"{pid} {commands.get(pid)}" for pid in mine - {os.getpid()}}


def test_everything_that_is_wrong_is_said_at_once(taken, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    refusals = problems(
        StackSettings(scenario="hot", prometheus_port=taken, demo_port=70000, rules=tmp_path / "none.yaml")
    )
    text = "\n".join(refusals)
    assert "prometheus, promtool, prometheus-alertmanager, amtool" in text
    assert "apt-get install --no-install-recommends prometheus prometheus-alertmanager" in text
    assert re.search(rf"port {taken} on 127.0.0.1 is taken .* --prometheus-port \d+", text)
    assert "--demo-port 70000: a port is a number" in text
    assert "--scenario hot: there is none of this name; there are healthy, " in text
    assert f"{tmp_path}/none.yaml: no such file" in text


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ({"fault_at": float("nan")}, "--fault-at nan"),
        ({"fault_at": -1.0}, "--fault-at -1"),
        ({"fault_at": 50.0, "fault_until": 20.0}, "before it begins"),
    ],
)
def test_times_that_cannot_be_are_refused_before_anything_runs(times, expected):
    (problem,) = problems(StackSettings(**times))
    assert expected in problem


def test_two_servers_on_one_port_are_refused(tmp_path):
    free = ports.any_free()
    refusals = list(ports.problems({"--demo-port": free, "--receiver-port": free}))
    assert refusals == [f"--receiver-port {free}: --demo-port wants the same port; give one of them another"]


def test_any_number_of_servers_may_choose_their_port():
    assert list(ports.problems({"--demo-port": 0, "--receiver-port": 0})) == []


def test_the_proposed_port_is_free_and_unassigned(taken):
    proposed = ports.another(taken, [taken, taken + 10000])
    assert proposed not in {taken, taken + 10000}
    with socket.create_server(("127.0.0.1", proposed)):
        pass


def test_rules_that_promtool_refuses_are_not_loaded(tmp_path):
    all_programs()
    rules = tmp_path / "rules.yaml"
    rules.write_text("groups: [{name: a, rules: [{alert: A, expr: 'up =='}]}]\n")
    (problem,) = problems(StackSettings(rules=rules))
    assert "promtool check rules" in problem
    assert "unexpected end of input" in problem


def test_a_configuration_that_amtool_refuses_is_not_loaded(tmp_path):
    all_programs()
    config = tmp_path / "alertmanager.yaml"
    config.write_text("route: {receiver: nobody}\nreceivers: []\n")
    (problem,) = problems(StackSettings(alertmanager_config=config))
    assert "amtool check-config" in problem
    assert "undefined receiver" in problem


def test_what_is_generated_is_accepted():
    all_programs()
    for language in ("en", "zh"):
        assert problems(StackSettings(language=language)) == []


def test_a_simulated_fault_notifies_no_external_receiver(tmp_path):
    written = tmp_path / "alertmanager.yaml"
    written.write_text(
        "route: {receiver: a}\ntemplates: [x.tmpl]\n"
        "receivers:\n- {name: a, pagerduty_configs: [{routing_key_file: /k}]}\n- {name: b, email_configs: [{to: x@y.z}]}\n"
    )
    config = configuration.alertmanager(written, receiver="http://127.0.0.1:1/")
    assert [sorted(receiver) for receiver in config["receivers"]] == [["name", "webhook_configs"]] * 2
    assert {hook["url"] for receiver in config["receivers"] for hook in receiver["webhook_configs"]} == {
        "http://127.0.0.1:1/"
    }
    assert config["templates"] == [str(tmp_path / "x.tmpl")]


def test_a_program_goes_by_any_of_its_names(tmp_path, monkeypatch):
    (tmp_path / "second").write_text("#!/bin/sh\n")
    (tmp_path / "second").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert Program(names=("first", "second"), package="p").required() == str(tmp_path / "second")
    with pytest.raises(StackError, match="not installed: third; .* apt-get install .* p$"):
        Program(names=("third",), package="p").required()


def test_a_server_that_ends_while_it_starts_says_its_last_words(tmp_path):
    command = [sys.executable, "-c", "print('the disk is full'); raise SystemExit(3)"]
    with servers.running("broken", command, tmp_path) as child, pytest.raises(StackError) as error:
        child.wait_for("never said")
    assert "broken ended with code 3" in str(error.value)
    assert "the disk is full" in str(error.value)


def test_a_server_that_ignores_sigterm_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr("compose.native.child.STOP_SECONDS", 0.3)
    code = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(99)"
    )
    with servers.running("stubborn", [sys.executable, "-c", code], tmp_path) as child:
        assert child.wait_for("(up)") == "up"
    assert child.process.returncode == -signal.SIGKILL


def test_a_refused_configuration_ends_what_already_runs(tmp_path, monkeypatch):
    all_programs()
    monkeypatch.setattr(configuration, "prometheus", lambda **_: {"scrape_configs": [{"job_name": 1, "nonsense": 2}]})
    with pytest.raises(StackError, match="nonsense"), stack(StackSettings(), tmp_path):
        pass
    assert (tmp_path / "demo.log").exists()
    assert children() == set()


def test_prometheus_scrapes_itself_where_its_port_is_known(tmp_path):
    def scraped(**given):
        config = configuration.prometheus(rules=tmp_path, daemon="127.0.0.1:1", alertmanager="127.0.0.1:2", **given)
        return {job["job_name"]: job["static_configs"][0]["targets"] for job in config["scrape_configs"]}

    others = {"shardwatch": ["127.0.0.1:1"], "alertmanager": ["127.0.0.1:2"]}
    assert scraped() == others
    assert scraped(own="127.0.0.1:9090") == {**others, "prometheus": ["127.0.0.1:9090"]}


@pytest.mark.slow
def test_what_prometheus_notices_reaches_the_page_of_notifications(tmp_path):
    all_programs()
    with stack(StackSettings(scenario="heat", fault_at=2.0), tmp_path) as running:
        deadline = time.monotonic() + 60
        page = ""
        while "Watchdog" not in page and time.monotonic() < deadline:
            time.sleep(0.5)
            page = _get(f"{running.receiver.url}/")
        rules = json.loads(_get(f"{running.prometheus.url}/api/v1/rules"))["data"]["groups"]
        up = []
        while len(up) < 2 and time.monotonic() < deadline:
            time.sleep(0.5)
            up = json.loads(_get(f"{running.prometheus.url}/api/v1/query?query=up==1"))["data"]["result"]
    assert "Watchdog" in page
    assert len(rules) >= 5
    assert {(series["metric"]["job"], series["value"][1]) for series in up} == {
        ("shardwatch", "1"),
        ("alertmanager", "1"),
    }
    assert children() == set()


def _get(url):
    with urllib.request.urlopen(url, timeout=10) as answer:
        return answer.read().decode()


def launched(*arguments):
    return subprocess.Popen(
        [sys.executable, "-m", "compose.native", *arguments],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


ANY_PORTS = ("--demo-port", "0", "--prometheus-port", "0", "--alertmanager-port", "0", "--receiver-port", "0")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_command_says_where_everything_is_and_ends_it_all(number, tmp_path):
    all_programs()
    with launched(*ANY_PORTS, "--data", str(tmp_path / "kept")) as process:
        output = [process.stdout.readline() for _ in range(6)]
        process.send_signal(number)
        rest, wrong = process.communicate(timeout=40)
    text = "".join(output)
    urls = re.findall(r"^(\w+) +(http://127\.0\.0\.1:\d+)", text, re.MULTILINE)
    assert [name for name, _ in urls] == ["Shardwatch", "Prometheus", "Alertmanager", "Notifications"]
    assert (process.returncode, wrong, rest) == (0, "", "ending the stack\n")
    for _, url in urls:
        with pytest.raises(OSError):
            _get(url)
    assert children() == set()
    assert (tmp_path / "kept" / "prometheus" / "wal").is_dir()


@pytest.mark.slow
def test_a_server_that_exits_ends_the_stack_and_is_named(tmp_path):
    all_programs()
    with launched(*ANY_PORTS, "--data", str(tmp_path)) as process:
        output = "".join(process.stdout.readline() for _ in range(6))
        killed = _kill(f"--storage.tsdb.path={tmp_path}")
        _, wrong = process.communicate(timeout=40)
    assert "Prometheus" in output
    assert killed == 1
    assert process.returncode == 1
    assert "prometheus ended with code -9" in wrong
    assert children() == set()


def _kill(argument):
    matching = [line for line in children() if argument in line]
    for line in matching:
        os.kill(int(line.split()[0]), signal.SIGKILL)
    return len(matching)


@pytest.mark.slow
def test_a_taken_port_stops_the_command_before_anything_runs(taken):
    with launched(*ANY_PORTS[2:], "--demo-port", str(taken)) as process:
        out, wrong = process.communicate(timeout=40)
    assert (process.returncode, out) == (2, "")
    assert "the stack cannot start:" in wrong
    assert f"port {taken}" in wrong and "--demo-port" in wrong


@pytest.mark.parametrize(
    "line",
    [
        'caller=tls_config.go:232 level=info component=web msg="Listening on" address=127.0.0.1:41057',
        'time=2026-01-01T00:00:00.000Z level=INFO source=tls_config.go:347 msg="Listening on" component=web address=127.0.0.1:41057',
    ],
)
def test_old_and_new_servers_are_understood_when_they_say_where_they_listen(line):
    text = f'msg="Start listening for connections" address=127.0.0.1:0\n{line}\nmsg="TLS is disabled." address=x'
    assert re.search(servers.LISTENS, text)[1] == "127.0.0.1:41057"
