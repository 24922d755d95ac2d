"""The listener when clients vanish, the machine runs out, its own code fails, and at start and stop."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import selectors
import socket
import struct
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from exporter.errors import ListenError
from exporter.http.server.listener import DeferredResponse, HttpServer, Request, Response
from tests.support.raw_http import (
    GET,
    GET_CLOSE,
    PAGE,
    ask,
    connect,
    descriptors,
    one_answer,
    page,
    serving,
    to_the_end,
)
from tests.support.waiting import until

# -- clients that vanish, descriptors, inheritance


def test_a_client_that_vanishes_in_the_middle_of_its_answer_leaves_nothing_behind(caplog):
    caplog.set_level(logging.DEBUG)
    big = Response(status=200, content_type="text/plain", body=bytes(16 << 20))
    with serving(lambda _: big) as listener:
        before = descriptors()
        for _ in range(20):
            sock = connect(listener)
            sock.sendall(GET)
            sock.recv(100)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            sock.close()
        until(lambda: descriptors() == before)
        assert listener.errors == listener.timed_out == 0
    assert caplog.records == []


def test_scrapes_leave_no_descriptor_behind():
    with serving() as listener:
        before = descriptors()
        for _ in range(200):
            assert ask(listener, GET_CLOSE)[0] == 200
        until(lambda: descriptors() == before)


def test_no_child_inherits_a_socket():
    before = set(os.listdir("/proc/self/fd"))
    with serving() as listener, connect(listener) as sock:
        sock.sendall(GET)
        one_answer(sock)
        ours = set(os.listdir("/proc/self/fd")) - before
        inheritable = [fd for fd in ours if os.path.exists(f"/proc/self/fd/{fd}") and os.get_inheritable(int(fd))]
        assert len(ours) >= 6  # two sockets, two ends of the pipe, the selector, the client
        assert inheritable == []


EXHAUSTED = """
import os, resource, sys
from exporter.http.server.listener import HttpServer, Response
listener = HttpServer("127.0.0.1", 0, lambda _: Response(status=200, content_type="text/plain", body=b"here"))
listener.start()
print(listener.address[1], flush=True)
sys.stdin.readline()
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
eaten = []
try:
    while True:
        eaten.append(os.open("/dev/null", os.O_RDONLY))
except OSError:
    print("full", flush=True)
sys.stdin.readline()
while eaten:
    os.close(eaten.pop())
print("free", flush=True)
sys.stdin.readline()
print(listener.exhausted, listener.alive, listener.loop_restarts, flush=True)
listener.stop()
"""


def test_without_descriptors_known_clients_are_answered_and_new_ones_wait():
    child = subprocess.Popen(
        [sys.executable, "-c", EXHAUSTED],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )

    def tell() -> str:
        child.stdin.write("\n")
        child.stdin.flush()
        return child.stdout.readline().strip()

    with child, contextlib.ExitStack() as stack:
        stack.callback(child.kill)
        address = ("127.0.0.1", int(child.stdout.readline()))
        known = stack.enter_context(socket.create_connection(address, timeout=10))
        known.sendall(GET)
        assert one_answer(known)[0] == 200
        assert tell() == "full"
        new = stack.enter_context(socket.create_connection(address, timeout=10))
        new.sendall(GET)
        for _ in range(10):
            time.sleep(0.05)
            known.sendall(GET)
            assert one_answer(known)[2] == b"here"
        new.settimeout(0.05)
        with pytest.raises(TimeoutError):
            new.recv(1)
        new.settimeout(10)
        assert tell() == "free"
        assert one_answer(new)[2] == b"here"
        exhausted, alive, restarts = tell().split()
        assert 1 <= int(exhausted) < 100, "counted, and not by a loop that spins"
        assert (alive, restarts) == ("True", "0")
        _, log = child.communicate(timeout=10)
        assert log.count("event=accept_paused") == 1
    assert child.returncode == 0


MUTE = """
import resource, sys
from exporter.http.server.listener import HttpServer, Response
listener = HttpServer("127.0.0.1", 0, lambda _: Response(status=200, content_type="text/plain", body=b"here"))
listener.start()
resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))
print(listener.address[1], flush=True)
sys.stdin.readline()
listener.stop()
"""


def test_mute_clients_that_take_all_descriptors_give_way_to_a_scrape():
    child = subprocess.Popen(
        [sys.executable, "-c", MUTE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with child, contextlib.ExitStack() as stack:
        stack.callback(child.kill)
        address = ("127.0.0.1", int(child.stdout.readline()))
        for _ in range(60):
            stack.enter_context(socket.create_connection(address, timeout=10))
        started = time.monotonic()
        scrape = stack.enter_context(socket.create_connection(address, timeout=10))
        scrape.sendall(GET)
        assert one_answer(scrape)[2] == b"here"
        assert time.monotonic() - started < 2.0, "long before the mute clients' deadline of 5 s"
        _, log = child.communicate("\n", timeout=10)
        assert "Traceback" not in log
    assert child.returncode == 0


# -- faults of our own


def test_a_handler_that_raises_gives_a_500_without_a_traceback_and_one_log_line(caplog):
    def handler(request: Request) -> Response:
        if request.path == "/bad":
            raise RuntimeError("canary")
        return page(request)

    with serving(handler) as listener, connect(listener) as sock:
        for _ in range(5):
            sock.sendall(b"GET /bad HTTP/1.1\r\nHost: x\r\n\r\n")
            status, headers, body = one_answer(sock)
            assert status == 500
            assert b"canary" not in body
            assert b"Traceback" not in body
        sock.sendall(GET)
        assert one_answer(sock)[0] == 200
        assert listener.errors == 5
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "event=handler_failed path=/bad" in caplog.text
    assert "canary" in caplog.text


def test_an_answer_that_cannot_be_written_costs_its_own_client_only(caplog):
    with serving(lambda r: "nonsense" if r.path == "/bad" else page(r)) as listener, connect(listener) as other:
        with connect(listener) as sock:
            sock.sendall(b"GET /bad HTTP/1.1\r\nHost: x\r\n\r\n")
            assert to_the_end(sock) == b""
        other.sendall(GET)
        assert one_answer(other)[0] == 200
        assert (listener.errors, listener.loop_restarts) == (1, 0)
    assert "event=connection_failed" in caplog.text


def test_a_loop_that_fails_starts_again_and_says_so(caplog):
    with serving(pause_seconds=0.05) as listener, connect(listener) as lost:
        turn, failing = listener._run_once, threading.Event()

        def flaky(selector: selectors.BaseSelector) -> None:
            turn(selector)
            if failing.is_set():
                raise RuntimeError("injected")

        listener._run_once = flaky
        lost.sendall(GET)
        assert one_answer(lost)[0] == 200
        failing.set()
        lost.sendall(GET)
        assert one_answer(lost)[0] == 200
        assert to_the_end(lost) == b""
        until(lambda: listener.loop_restarts >= 2)
        assert not listener.alive, "it restarts, but does not turn"
        failing.clear()
        until(lambda: listener.alive)
        assert ask(listener, GET_CLOSE)[0] == 200
        assert listener.errors == 0
    assert caplog.text.count("event=listener_restarted") == 1
    assert "injected" in caplog.text


# -- starting and stopping


def test_it_is_healthy_from_start_to_stop():
    listener = HttpServer("127.0.0.1", 0, page)
    assert not listener.alive
    listener.start()
    assert listener.alive
    listener.stop()
    assert not listener.alive
    listener.stop()


def test_it_can_be_stopped_without_having_been_started():
    before = descriptors()
    listener = HttpServer("127.0.0.1", 0, page)
    listener.stop()
    assert descriptors() == before


def test_the_port_is_free_right_after_stop():
    with serving() as listener, connect(listener) as sock:
        sock.sendall(GET)
        one_answer(sock)
        listener.stop()  # our side closes first and keeps TIME_WAIT
        again = HttpServer("127.0.0.1", listener.address[1], page)
        again.start()
        try:
            assert again.address == listener.address
            assert ask(again, GET_CLOSE)[0] == 200
        finally:
            again.stop()


def test_an_answer_in_progress_is_finished_while_stopping():
    big = Response(status=200, content_type="text/plain", body=bytes(16 << 20))
    with (
        serving(lambda _: big) as listener,
        connect(listener, receive_buffer=4096) as sock,
        connect(listener) as idle,
    ):
        sock.sendall(GET)
        start = sock.recv(1)
        stopper = threading.Thread(target=listener.stop, args=(20,))
        stopper.start()
        assert to_the_end(idle) == b""
        assert len((start + to_the_end(sock)).partition(b"\r\n\r\n")[2]) == 16 << 20
        sock.close()
        stopper.join(10)
        assert not stopper.is_alive()


def test_stopping_waits_for_no_slow_reader():
    big = Response(status=200, content_type="text/plain", body=bytes(16 << 20))
    with serving(lambda _: big) as listener, connect(listener, receive_buffer=4096) as sock:
        sock.sendall(GET)
        assert sock.recv(1) == b"H"
        listener.stop(0.5)
        assert not listener.alive, "the client reads on, and very slowly"
        with socket.socket() as late, pytest.raises(ConnectionRefusedError):
            late.connect(listener.address)


def test_stopping_waits_for_no_hung_handler_and_frees_the_port():
    entered, release = threading.Event(), threading.Event()

    def hung(request: Request) -> Response:
        entered.set()
        release.wait(60)
        return page(request)

    listener = HttpServer("127.0.0.1", 0, hung)
    listener.start()
    try:
        with connect(listener) as sock:
            sock.sendall(GET)
            assert entered.wait(15)
            listener.stop(0.2)
            assert not release.is_set() and listener.alive, "the handler hangs still"
            HttpServer("127.0.0.1", listener.address[1], page).stop()
    finally:
        release.set()
        listener._thread.join(10)
        listener._wake.close()
        listener._waker.close()


# -- answers that another thread makes


def test_a_thread_that_waits_for_another_threads_answer_blocks_none_and_gets_it():
    given: list[DeferredResponse] = []

    def later(request: Request) -> Response | DeferredResponse:
        if request.path != "/later":
            return page(request)
        given.append(DeferredResponse())
        return given[-1]

    slow = GET.replace(b"/metrics", b"/later")
    with serving(later) as listener, connect(listener) as sock, connect(listener) as closed:
        sock.sendall(slow + GET)  # the second one waits behind the first
        closed.sendall(slow)
        until(lambda: len(given) == 2)
        before = descriptors()
        assert ask(listener, GET_CLOSE)[2] == PAGE
        closed.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        closed.close()
        for answer in given:
            answer.set_response(Response(status=200, content_type="text/plain", body=b"at last"))
        assert one_answer(sock)[2] == b"at last"
        assert one_answer(sock)[2] == PAGE
        until(lambda: descriptors() == before - 2)  # the client's end, and ours
        assert listener.errors == listener.timed_out == 0


def test_an_answer_that_does_not_come_ends_in_a_sentence():
    with serving(lambda _: DeferredResponse(), deferred_seconds=0.2) as listener:
        status, headers, body = ask(listener, GET)
        assert (status, headers["connection"]) == (504, "close") and b"no response yet" in body


def test_stopping_waits_for_no_answer_of_another_threads():
    given: list[DeferredResponse] = []
    with serving(lambda _: given.append(DeferredResponse()) or given[-1]) as listener, connect(listener) as sock:
        sock.sendall(GET)
        until(lambda: bool(given))
        listener.stop()
        assert to_the_end(sock) == b""
        given[0].set_response(page(None))  # nobody is there any more


# -- addresses


def refusal(host: str, port: int) -> str:
    before = descriptors()
    with pytest.raises(ListenError) as caught:
        HttpServer(host, port, page)
    assert descriptors() == before
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith("cannot listen on ")
    return message


def test_a_taken_port_is_refused_in_one_clear_line():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert refusal("127.0.0.1", port) == (
            f"cannot listen on 127.0.0.1:{port}: the port is taken; `ss -ltnp sport = :{port}` shows by whom; "
            "stop that, or set --listen"
        )


def test_a_privileged_port_is_refused_in_one_clear_line(monkeypatch):
    def denied(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(socket.socket, "bind", denied)
    assert "CAP_NET_BIND_SERVICE" in refusal("127.0.0.1", 80)


@pytest.mark.parametrize(
    ("host", "port", "hint"),
    [
        ("192.0.2.1", 0, "this machine does not have that address"),
        ("127.0.0.256", 0, "no such host name"),
        ("no such host", 0, "no such host name"),
        ("a" * 70 + ".invalid", 0, "no such host name"),
        ("127.0.0.1", 65536, "from 0 to 65535"),
        ("127.0.0.1", -1, "from 0 to 65535"),
    ],
)
def test_a_bad_address_is_refused_in_one_clear_line(host, port, hint):
    assert hint in refusal(host, port)


def test_a_failed_start_exits_without_a_traceback_when_its_message_is_printed():
    script = """
        import sys
        from exporter.errors import ListenError
        from exporter.http.server.listener import HttpServer
        try:
            HttpServer("127.0.0.1", int(sys.argv[1]), lambda _: None)
        except ListenError as error:
            sys.exit(str(error))
    """
    with socket.create_server(("127.0.0.1", 0)) as taken:
        command = [sys.executable, "-W", "error", "-c", textwrap.dedent(script), str(taken.getsockname()[1])]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "the port is taken" in done.stderr


def test_a_name_is_listened_on_at_its_ipv4_address(monkeypatch):
    look_up = socket.getaddrinfo

    def both(*args, **kwargs):
        return [(socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", 0, 0, 0)), *look_up(*args, **kwargs)]

    monkeypatch.setattr(socket, "getaddrinfo", both)
    listener = HttpServer("localhost", 0, page)
    listener.stop()
    assert listener.address[0] == "127.0.0.1"


def ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


@pytest.mark.skipif(not ipv6(), reason="this machine has no IPv6")
def test_the_ipv6_wildcard_listens_on_ipv4_too():
    listener = HttpServer("::", 0, page)
    listener.start()
    try:
        for host in ("127.0.0.1", "::1"):
            with socket.create_connection((host, listener.address[1]), timeout=10) as sock:
                sock.sendall(GET_CLOSE)
                assert to_the_end(sock).endswith(PAGE)
    finally:
        listener.stop()


def test_a_machine_without_ipv6_gets_that_message(monkeypatch):
    def refuse(*_):
        raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")

    monkeypatch.setattr("exporter.http.server.listener.socket.socket", refuse)
    with pytest.raises(ListenError, match="IPv4"):
        HttpServer("::1", 0, page)
