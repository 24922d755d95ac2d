from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from exporter.errors import EndpointError
from exporter.http.client.client import HttpClient, Target
from exporter.http.client.deadline import Deadline
from exporter.http.client.resolver import Address, Resolver
from tests.support.endpoint_probe import SLACK, full_backlog
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


LOOPBACK: Address = (socket.AF_INET, ("127.0.0.1", 0))


def named(server: MaliciousServer, resolver: Resolver, timeout: float = 5.0) -> HttpClient:
    url = server.url("good", host="engine.example")
    return HttpClient(Target(url=url, timeout=timeout), resolver=resolver)


def resolver_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("resolve-")]


def test_e39_a_resolver_that_hangs_keeps_the_deadline_and_one_thread(server: MaliciousServer) -> None:
    release = threading.Event()

    def hang(_host: str) -> list[Address]:
        release.wait(30)
        return [LOOPBACK]

    resolver = Resolver(hang)
    endpoints = [named(server, resolver, 0.2) for _ in range(4)]
    try:
        with ThreadPoolExecutor(4) as pool:
            started = time.monotonic()
            for _ in range(3):
                caught = [future.exception(10) for future in [pool.submit(each.fetch) for each in endpoints]]
                assert [getattr(problem, "reason", None) for problem in caught] == ["dns"] * 4
                assert resolver_threads() == ["resolve-engine.example"]
            assert time.monotonic() - started < 3 * 0.2 + SLACK
    finally:
        release.set()
    until(lambda: resolver_threads() == [])
    assert [each.fetch().body for each in endpoints] == [PAGE] * 4
    for each in endpoints:
        each.close()


def test_e39_an_unknown_name_is_tried_again_the_next_time(server: MaliciousServer) -> None:
    asked = []

    def unknown_then_known(host: str) -> list[Address]:
        asked.append(host)
        if len(asked) == 1:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        if len(asked) == 2:
            return []
        if len(asked) == 3:
            raise UnicodeError
        return [LOOPBACK]

    with closing(named(server, Resolver(unknown_then_known))) as endpoint:
        for _ in range(3):
            with pytest.raises(EndpointError) as caught:
                endpoint.fetch()
            assert caught.value.reason == "dns"
        assert endpoint.fetch().body == PAGE
    assert asked == ["engine.example"] * 4


def test_a_resolver_keeps_no_failed_answer() -> None:
    asked = []

    def unknown(host: str) -> list[Address]:
        asked.append(host)
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    resolver = Resolver(unknown)
    for _ in range(2):
        with pytest.raises(EndpointError, match="Temporary failure"):
            resolver.addresses("engine.example", Deadline(5))
    assert len(asked) == 2


def test_e39_an_address_is_kept_while_it_works_and_looked_up_after_a_failure(server: MaliciousServer) -> None:
    answers = [("127.0.0.9", 0), ("127.0.0.1", 0), ("127.0.0.1", 0)]
    asked = []

    def moving(host: str) -> list[Address]:
        asked.append(host)
        return [(socket.AF_INET, answers[len(asked) - 1])]

    resolver = Resolver(moving)
    with closing(named(server, resolver)) as endpoint, closing(named(server, resolver)) as neighbour:
        with pytest.raises(EndpointError) as caught:
            endpoint.fetch()
        assert caught.value.reason == "refused"
        for _ in range(5):
            assert endpoint.fetch().body == PAGE
        assert neighbour.fetch().body == PAGE
        assert endpoint.fetch("/once_a_connection").body == PAGE
        assert endpoint.fetch("/once_a_connection").body == PAGE
        assert len(asked) == 2
        with pytest.raises(EndpointError):
            endpoint.fetch("/status_500")
        assert endpoint.fetch().body == PAGE
        assert len(asked) == 3


def test_an_address_that_is_a_minute_old_is_looked_up_before_a_new_connection(
    server: MaliciousServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def count(host: str) -> list[Address]:
        asked.append(host)
        return [LOOPBACK]

    with closing(named(server, Resolver(count))) as endpoint:
        endpoint.fetch("/once_a_connection")
        endpoint.fetch("/once_a_connection")
        assert len(asked) == 1
        monkeypatch.setattr("exporter.http.client.resolver._MAX_AGE", -1.0)
        assert endpoint.fetch("/once_a_connection").body == PAGE
        assert len(asked) == 2


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "LocalHost", "engine.localhost"])
def test_an_address_or_localhost_needs_no_query(server: MaliciousServer, host: str) -> None:
    def never(_host: str) -> list[Address]:
        raise AssertionError

    endpoint = HttpClient(Target(url=server.url("good", host=host), timeout=5), resolver=Resolver(never))
    with closing(endpoint):
        assert endpoint.fetch().body == PAGE


def test_a_dead_address_leaves_time_for_the_living_one(server: MaliciousServer, black_hole: int) -> None:
    dead: Address = (socket.AF_INET, ("127.0.0.1", 0))
    with MaliciousServer("127.0.0.2", black_hole) as living:
        resolver = Resolver(lambda _: [dead, (socket.AF_INET, ("127.0.0.2", 0))])
        url = f"http://engine.example:{living.port}/good"
        with closing(HttpClient(Target(url=url, timeout=2), resolver=resolver)) as endpoint:
            assert endpoint.fetch().body == PAGE


def test_no_thread_to_resolve_with_is_a_failure_and_no_crash(
    server: MaliciousServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with closing(named(server, Resolver(lambda _: [LOOPBACK]))) as endpoint:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            with pytest.raises(EndpointError) as caught:
                endpoint.fetch()
        assert caught.value.reason == "dns"
        assert endpoint.fetch().body == PAGE
