"""The agent-check port: its answers, what hostile clients get, and a real HAProxy that follows it."""

from __future__ import annotations

import contextlib
import http.server
import socket
import subprocess
import threading
import time

import pytest

from exporter.errors import ListenError
from exporter.http.server import agent_check
from exporter.http.server.agent_check import MAX_AGE, READY_TIME, AgentCheckServer
from exporter.model.finding import Verdict, Verdicts, VerdictState
from tests.support.builders import snapshot
from tests.support.records import replace
from tests.support.tools import tool
from tests.support.waiting import until

STATES = {
    "serve": (VerdictState.SERVE, b"up\n"),
    "unknown": (VerdictState.UNKNOWN, b""),
    "drain": (VerdictState.DRAIN, b"drain\n"),
    "eject": (VerdictState.EJECT, b"down #no_progress\n"),
}


def judged(**states):
    """Return a snapshot of this moment with these verdicts on its replicas."""
    verdicts = {
        name: Verdict(state, "" if state is VerdictState.SERVE else "no_progress") for name, state in states.items()
    }
    return replace(snapshot(), at=time.monotonic(), verdicts=Verdicts(replicas=verdicts))


@contextlib.contextmanager
def served(newest):
    server = AgentCheckServer("127.0.0.1", 0, newest)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def ask(server, data):
    with socket.create_connection(server.address, timeout=10) as connection:
        connection.sendall(data)
        return connection.makefile("rb").read()


@pytest.mark.parametrize("name", STATES)
def test_each_verdict_has_its_answer(name):
    newest = judged(**{name: state for name, (state, _) in STATES.items()})
    with served(lambda: newest) as server:
        assert ask(server, name.encode() + b"\n") == STATES[name][1]


@pytest.mark.parametrize(
    "newest", [None, replace(judged(eject=VerdictState.EJECT), at=time.monotonic() - MAX_AGE - 1)]
)
def test_nothing_is_answered_without_a_fresh_snapshot_or_for_an_unknown_name(newest):
    with served(lambda: newest) as server:
        assert ask(server, b"eject\n") == b""
    with served(lambda: judged(eject=VerdictState.EJECT)) as server:
        assert ask(server, b"nobody\n") == b""


def test_ready_follows_only_a_drain_of_our_own_and_for_a_time():
    now, newest = [1000.0], {}

    def say(state):
        newest[""] = replace(judged(**{"chat-a": state}), at=now[0])

    server = AgentCheckServer("127.0.0.1", 0, lambda: newest[""], lambda: now[0])
    try:
        say(VerdictState.SERVE)
        assert server.answer("chat-a") == b"up\n"
        say(VerdictState.DRAIN)
        assert server.answer("chat-a") == b"drain\n"
        say(VerdictState.EJECT)
        assert server.answer("chat-a") == b"down #no_progress\n"
        now[0] += 3600
        say(VerdictState.SERVE)
        assert server.answer("chat-a") == b"up ready\n"
        now[0] += READY_TIME - 1
        say(VerdictState.SERVE)
        assert server.answer("chat-a") == b"up ready\n"
        now[0] += 1
        say(VerdictState.SERVE)
        assert [server.answer("chat-a") for _ in range(2)] == [b"up\n"] * 2
    finally:
        server.stop()


def test_silent_and_flooding_clients_are_closed_and_others_are_answered(monkeypatch):
    monkeypatch.setattr(agent_check, "PATIENCE", 0.2)
    newest = judged(eject=VerdictState.EJECT)
    with served(lambda: newest) as server, contextlib.ExitStack() as stack:
        silent = [stack.enter_context(socket.create_connection(server.address, timeout=10)) for _ in range(100)]

        def answered():
            try:
                return ask(server, b"eject\n") == b"down #no_progress\n"
            except ConnectionError:  # refused as one too many
                return False

        until(answered)
        assert silent[0].makefile("rb").read() == b""
        assert ask(server, b"x" * 256) == b""


def test_beside_more_mute_clients_than_there_is_room_for_every_request_is_answered(monkeypatch):
    monkeypatch.setattr(agent_check, "PATIENCE", 600.0)  # none of them is closed for being late
    newest = judged(eject=VerdictState.EJECT)
    with served(lambda: newest) as server, contextlib.ExitStack() as stack:
        for _ in range(4):
            for _ in range(agent_check.MAX_CONNECTIONS):
                stack.enter_context(socket.create_connection(server.address, timeout=10))
            half = stack.enter_context(socket.create_connection(server.address, timeout=10))
            half.sendall(b"ejec")
            assert ask(server, b"eject\n") == b"down #no_progress\n"


def test_a_port_in_use_is_one_error_that_names_the_key():
    with (
        served(lambda: None) as server,
        pytest.raises(ListenError, match=r"^agent_check: cannot listen on 127\.0\.0\.1:"),
    ):
        AgentCheckServer("127.0.0.1", server.address[1], lambda: None)


CONFIG = """
global
    stats socket {socket} mode 600 level admin
defaults
    mode http
    timeout connect 1s
    timeout client 5s
    timeout server 5s
frontend edge
    bind 127.0.0.1:{port}
    default_backend chat
backend chat
    server chat-a 127.0.0.1:{engine} check inter 100ms agent-check agent-addr 127.0.0.1 agent-port {agent} agent-inter 100ms agent-send "chat-a\\n"
"""


class Engine(http.server.BaseHTTPRequestHandler):
    """An engine whose health is always 200."""

    def do_GET(self):
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture
def haproxy(tmp_path):
    """A HAProxy before one engine, with an agent-check server whose snapshot the test sets: (state of chat-a, set, server, command)."""
    program, current = tool("haproxy"), {"": judged(**{"chat-a": VerdictState.SERVE})}
    engine = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Engine)
    threading.Thread(target=engine.serve_forever, daemon=True).start()
    with served(lambda: current[""]) as server:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        control = tmp_path / "haproxy.sock"
        (tmp_path / "haproxy.cfg").write_text(
            CONFIG.format(socket=control, port=port, engine=engine.server_port, agent=server.address[1])
        )
        with subprocess.Popen([program, "-db", "-q", "-f", str(tmp_path / "haproxy.cfg")]) as process:

            def command(line):
                with socket.socket(socket.AF_UNIX) as connection:
                    connection.settimeout(10)
                    try:
                        connection.connect(str(control))
                    except OSError:
                        return ""
                    connection.sendall(line)
                    return connection.makefile().read()

            def status():
                rows = command(b"show stat\n").splitlines()
                if not rows:
                    return ""
                names = rows[0].lstrip("# ").split(",")
                return next(
                    (dict(zip(names, row.split(","), strict=False))["status"] for row in rows if ",chat-a," in row),
                    "",
                )

            def say(state):
                current[""] = judged(**{"chat-a": state})

            try:
                until(lambda: status() == "UP")
                yield status, say, server, command
            finally:
                process.terminate()
                engine.shutdown()
                engine.server_close()


def test_haproxy_ejects_drains_and_takes_back_an_engine_whose_own_health_is_always_well(haproxy):
    status, say, *_ = haproxy
    say(VerdictState.EJECT)
    until(lambda: status().startswith("DOWN"))
    say(VerdictState.SERVE)
    until(lambda: status() == "UP")
    say(VerdictState.DRAIN)
    until(lambda: status().startswith("DRAIN"))
    say(VerdictState.SERVE)
    until(lambda: status() == "UP")


def test_haproxy_keeps_what_the_operator_set_whatever_is_served_or_unknown(haproxy):
    status, say, server, command = haproxy
    command(b"set server chat/chat-a state drain\n")
    until(lambda: status().startswith("DRAIN"))
    for state in (VerdictState.SERVE, VerdictState.UNKNOWN):
        answered, answer = [], server.answer
        server.answer = lambda name, answer=answer, answered=answered: (answered.append(name), answer(name))[1]
        say(state)
        until(lambda answered=answered: len(answered) > 5)
        assert status().startswith("DRAIN"), state


def test_haproxy_keeps_an_ejected_server_ejected_while_its_verdict_is_unknown(haproxy):
    status, say, server, _ = haproxy
    say(VerdictState.EJECT)
    until(lambda: status().startswith("DOWN"))
    answered, answer = [], server.answer
    server.answer = lambda name: (answered.append(name), answer(name))[1]
    say(VerdictState.UNKNOWN)
    until(lambda: len(answered) > 5)
    assert status().startswith("DOWN")


def test_haproxy_keeps_its_servers_when_the_daemon_goes(haproxy):
    status, _, server, _ = haproxy
    server.stop()
    time.sleep(1.5)  # ten agent-checks of 100 ms that find nobody: there is no condition to wait for
    assert status() == "UP"
