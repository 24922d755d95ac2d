from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest

from exporter import __version__
from exporter.errors import EndpointError
from exporter.http.client import client, connection
from exporter.http.client.client import FetchResult, HttpClient, Target
from exporter.http.client.resolver import Address
from exporter.http.client.sockets import DeadlineSocket
from tests.support.endpoint_probe import SLACK, D, failure, fetch, full_backlog, refused_port
from tests.support.malicious_pages import PAGE
from tests.support.malicious_server import MaliciousServer
from tests.support.waiting import until

pytestmark = pytest.mark.usefixtures("either_client")


@pytest.fixture
def server() -> Iterator[MaliciousServer]:
    with MaliciousServer() as running:
        yield running


@pytest.fixture
def black_hole() -> Iterator[int]:
    with full_backlog() as port:
        yield port


@pytest.mark.parametrize(
    "path", ["good", "good_chunked", "good_gzip", "good_until_close", "good_after_continue", "redirect_same"]
)
def test_a_whole_page_comes_back_byte_for_byte_however_it_is_framed(server: MaliciousServer, path: str) -> None:
    page = fetch(server.url(path))
    assert page.body == PAGE
    assert page.certificate_expires is None
    assert 0 < page.duration < 5


def test_the_content_type_is_not_judged_here(server: MaliciousServer) -> None:
    assert fetch(server.url("html")).body == b"<html>login<"


@pytest.mark.parametrize("path", ["good", "good_chunked", "good_gzip", "redirect_same"])
def test_one_connection_and_no_thread_serve_many_polls(server: MaliciousServer, path: str) -> None:
    with closing(HttpClient(Target(url=server.url(path), timeout=5))) as endpoint:
        endpoint.fetch()
        threads = threading.active_count()
        for _ in range(100):
            assert endpoint.fetch().body == PAGE
        assert threading.active_count() == threads
        assert server.connections == 1


def test_the_request_holds_exactly_the_headers_it_should(server: MaliciousServer) -> None:
    fetch(server.url("good?x=1"))
    line, *fields = server.heads("good")[0].decode().removesuffix("\r\n\r\n").split("\r\n")
    assert line == "GET /good?x=1 HTTP/1.1"
    assert sorted(fields) == [
        "Accept-Encoding: identity",
        "Accept: text/plain;version=0.0.4",
        f"Host: 127.0.0.1:{server.port}",
        f"User-Agent: shardwatch/{__version__}",
    ]


def test_gzip_is_asked_for_beyond_loopback(server: MaliciousServer, monkeypatch: pytest.MonkeyPatch) -> None:
    connect = connection._connect
    local: Address = (socket.AF_INET, ("127.0.0.1", 0))
    monkeypatch.setattr(connection, "_connect", lambda _, *rest: connect(local, *rest))
    assert fetch(server.url("good_gzip", host="192.0.2.1")).body == PAGE
    assert b"\r\nAccept-Encoding: gzip\r\n" in server.heads("good_gzip")[0]


def test_another_path_of_the_same_origin_can_be_read_on_the_same_connection(server: MaliciousServer) -> None:
    with closing(HttpClient(Target(url=server.url("good?secret=1"), timeout=5))) as endpoint:
        assert endpoint.fetch().body == PAGE
        assert endpoint.fetch("/html?version").body == b"<html>login<"
        assert server.heads("html")[0].startswith(b"GET /html?version HTTP/1.1\r\n")
        assert server.connections == 1


def test_e1_a_closed_port_is_refused() -> None:
    assert failure(f"http://127.0.0.1:{refused_port()}/metrics").reason == "refused"


def test_whatever_is_slow_ends_at_the_deadline(server: MaliciousServer, black_hole: int) -> None:
    """E2 to E6 side by side: together they may take one deadline, because none waits longer than its own."""
    slow = ["silent", "drip_head", "drip_body", "drip_chunks", "drip_trailers", "drip_gzip", "late"]
    urls = {path: server.url(path) for path in slow} | {"black hole": f"http://127.0.0.1:{black_hole}/"}

    def attempt(url: str) -> tuple[str, float]:
        started = time.monotonic()
        return failure(url, D).reason, time.monotonic() - started

    with ThreadPoolExecutor(len(urls)) as pool:
        outcomes = dict(zip(urls, pool.map(attempt, urls.values()), strict=True))
    assert {name: reason for name, (reason, _) in outcomes.items()} == dict.fromkeys(urls, "timeout")
    assert all(D <= seconds < D + SLACK for _, seconds in outcomes.values()), outcomes


def test_the_timeout_says_what_the_exchange_was_waiting_for(server: MaliciousServer, black_hole: int) -> None:
    assert "connecting" in str(failure(f"http://127.0.0.1:{black_hole}/", 0.1))
    assert "head of the answer" in str(failure(server.url("silent"), 0.1))
    assert "the body" in str(failure(server.url("drip_body"), 0.1))


def test_e6_a_second_exchange_waits_its_turn_and_no_longer_than_its_deadline(server: MaliciousServer) -> None:
    with closing(HttpClient(Target(url=server.url("silent"), timeout=D))) as endpoint, ThreadPoolExecutor(4) as pool:
        started = time.monotonic()
        caught = [pool.submit(endpoint.fetch).exception(10)]
        together = threading.Barrier(4)  # a thread that starts late has a later deadline, and gets its turn
        running = [pool.submit(lambda: (together.wait(), endpoint.fetch())) for _ in range(4)]
        until(lambda: len(server.heads("silent")) == 2)
        caught += [future.exception(10) for future in running]
        assert [getattr(problem, "reason", problem) for problem in caught] == ["timeout"] * 5
        assert len(server.heads("silent")) <= 3, "one under way, and at most one that got its turn late"
        assert time.monotonic() - started < 2 * D + SLACK


def test_a_connection_that_comes_too_late_is_closed(server: MaliciousServer, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def slow(sock: socket.socket, address: Any) -> None:
        socket.socket.connect(sock, address)
        made.append(sock)
        time.sleep(0.2)

    monkeypatch.setattr(DeadlineSocket, "connect", slow)
    assert failure(server.url("good"), 0.1).reason == "timeout"
    assert [sock.fileno() for sock in made] == [-1]


def test_a_slow_poll_does_not_spoil_the_next(server: MaliciousServer) -> None:
    with closing(HttpClient(Target(url=server.url("good"), timeout=D))) as endpoint:
        assert endpoint.fetch().body == PAGE
        with pytest.raises(EndpointError, match="not done within"):
            endpoint.fetch("/drip_body")
        assert endpoint.fetch().body == PAGE


@pytest.mark.parametrize("path", ["once_a_connection", "dies_at_the_second", "resets_the_second"])
def test_e45_a_kept_connection_that_died_is_replaced_without_an_error(server: MaliciousServer, path: str) -> None:
    with closing(HttpClient(Target(url=server.url(path), timeout=5))) as endpoint:
        for _ in range(6):
            assert endpoint.fetch().body == PAGE


def test_e45_a_fresh_connection_that_closes_is_not_retried(server: MaliciousServer) -> None:
    assert failure(server.url("no_answer")).reason == "closed"
    assert len(server.heads("no_answer")) == 1


def test_e35_a_flapping_engine_fails_and_works_in_turn(server: MaliciousServer) -> None:
    outcomes: list[str | bool] = []
    with closing(HttpClient(Target(url=server.url("flap"), timeout=5))) as endpoint:
        for _ in range(6):
            try:
                outcomes.append(endpoint.fetch().body == PAGE)
            except EndpointError as problem:
                outcomes.append(problem.reason)
    assert outcomes == ["closed", True] * 3


def test_an_engine_that_restarted_between_polls_is_read_at_once() -> None:
    with MaliciousServer() as before:
        endpoint = HttpClient(Target(url=before.url("good"), timeout=5))
        assert endpoint.fetch().body == PAGE
    with pytest.raises(EndpointError) as caught:
        endpoint.fetch()
    assert caught.value.reason == "refused"
    with MaliciousServer("127.0.0.1", before.port), closing(endpoint):
        assert endpoint.fetch().body == PAGE


def test_closing_ends_an_exchange_under_way_and_every_later_one(server: MaliciousServer) -> None:
    endpoint = HttpClient(Target(url=server.url("silent"), timeout=20))
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(endpoint.fetch)
        until(lambda: server.heads("silent"))
        endpoint.close()
        problem = running.exception(15)
    assert isinstance(problem, EndpointError)
    assert problem.reason == "closed"
    with pytest.raises(EndpointError) as caught:
        endpoint.fetch()
    assert caught.value.reason == "closed"
    endpoint.close()


def test_an_unforeseen_error_below_becomes_an_endpoint_error(
    server: MaliciousServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> FetchResult:
        raise ZeroDivisionError("canary")

    monkeypatch.setattr(client, "collect", broken)
    problem = failure(server.url("good"))
    assert problem.reason == "protocol"
    assert "ZeroDivisionError while reading the body" in str(problem)
    assert "canary" not in str(problem)


def test_descriptors_that_ran_out_are_named_as_such(server: MaliciousServer, monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(*_: object) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(connection, "_connect", exhausted)
    problem = failure(server.url("good"))
    assert problem.reason == "unreachable"
    assert "too many open files" in str(problem)
