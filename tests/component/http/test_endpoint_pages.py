from __future__ import annotations

import os
import threading
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from exporter.errors import EndpointError
from exporter.http.client import body_buffer
from exporter.http.client.client import HttpClient, Limits, Target
from tests.support.endpoint_probe import REFUSED, D, failure, fetch, refused_port
from tests.support.malicious_pages import LARGE_PAGE, PAGE, bomb
from tests.support.malicious_server import MaliciousServer
from tests.support.waiting import until

pytestmark = pytest.mark.usefixtures("either_client")

MIB = 1024 * 1024


@pytest.fixture
def server() -> Iterator[MaliciousServer]:
    with MaliciousServer() as running:
        yield running


@pytest.mark.parametrize(("path", "reason"), REFUSED.items())
def test_a_page_that_is_wrong_is_refused_whole_with_its_reason(
    server: MaliciousServer, path: str, reason: str
) -> None:
    server.state["other"] = refused_port()
    problem = failure(server.url(path))
    assert problem.reason == reason
    assert str(problem).startswith(server.url(path) + ": ")
    assert len(server.heads(path)) == (2 if path == "redirect_loop" else 1)


@pytest.mark.parametrize("path", sorted(REFUSED))
def test_a_refused_page_does_not_spoil_the_next_poll(server: MaliciousServer, path: str) -> None:
    server.state["other"] = refused_port()
    with closing(HttpClient(Target(url=server.url("good"), timeout=5))) as endpoint:
        endpoint.fetch()
        with pytest.raises(EndpointError):
            endpoint.fetch(f"/{path}")
        assert endpoint.fetch().body == PAGE


def test_bytes_after_the_announced_body_are_not_taken_for_the_next_answer(server: MaliciousServer) -> None:
    with closing(HttpClient(Target(url=server.url("length_surplus"), timeout=5))) as endpoint:
        assert [endpoint.fetch().body for _ in range(5)] == [PAGE] * 5


@pytest.mark.parametrize(
    ("path", "limits", "growth"),
    [
        ("endless_body", Limits(), 10),
        ("endless_chunks", Limits(), 10),
        ("big_page", Limits(), 1),
        ("huge_chunk", Limits(), 1),
        ("huge_head_line", Limits(), 1),
        ("negative_chunk", Limits(), 1),
        ("tiny_chunks", Limits(wire_bytes=MIB // 2), 1),
        ("gzip_bomb", Limits(), 20),
    ],
)
def test_e7_to_e11_stop_at_the_caps_with_little_memory(
    server: MaliciousServer, path: str, limits: Limits, growth: float
) -> None:
    bomb()
    endpoint = HttpClient(Target(url=server.url(path), timeout=20), limits)
    tracemalloc.start()
    try:
        with closing(endpoint), pytest.raises(EndpointError) as caught:
            endpoint.fetch()
        assert caught.value.reason in ("too_large", "head_too_large", "protocol")
        assert tracemalloc.get_traced_memory()[1] < growth * MIB
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("path", ["good", "good_chunked", "good_gzip", "good_until_close"])
def test_a_page_at_the_cap_passes_and_one_byte_more_does_not(server: MaliciousServer, path: str) -> None:
    for size, fits in ((len(PAGE), True), (len(PAGE) - 1, False)):
        with closing(HttpClient(Target(url=server.url(path), timeout=5), Limits(body_bytes=size))) as endpoint:
            if fits:
                assert endpoint.fetch().body == PAGE
            else:
                with pytest.raises(EndpointError, match=f"larger than {size} bytes") as caught:
                    endpoint.fetch()
                assert caught.value.reason == "too_large"


@pytest.mark.parametrize("path", ["good_large", "good_large_gzip"])
def test_a_large_page_within_the_caps_comes_back_whole(server: MaliciousServer, path: str) -> None:
    with closing(HttpClient(Target(url=server.url(path), timeout=20))) as endpoint:
        assert [endpoint.fetch().body == LARGE_PAGE for _ in range(3)] == [True] * 3


def test_many_hostile_pages_at_once_take_little_more_than_one(server: MaliciousServer) -> None:
    endpoints = [
        HttpClient(Target(url=server.url(path), timeout=20))
        for path in ["endless_body", "endless_chunks", "gzip_bomb"] * 3
    ]
    bomb()
    with ThreadPoolExecutor(len(endpoints)) as pool:
        tracemalloc.start()
        try:
            caught = [future.exception(30) for future in [pool.submit(each.fetch) for each in endpoints]]
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert [getattr(problem, "reason", problem) for problem in caught] == ["too_large"] * 9
    # What is being read beyond 1 MiB a page lies outside the heap, one page at a time: 9 pages, 1 MiB and a little.
    assert peak < 24 * MIB
    for each in endpoints:
        each.close()


def test_the_turn_of_a_large_page_ends_with_its_deadline(server: MaliciousServer) -> None:
    holder = HttpClient(Target(url=server.url("drip_after_large"), timeout=4 * D))
    waiter = HttpClient(Target(url=server.url("good_large"), timeout=D))
    with closing(holder), closing(waiter), ThreadPoolExecutor(2) as pool:
        held = pool.submit(holder.fetch)
        until(lambda: body_buffer._one_large_body._value == 0)
        with pytest.raises(EndpointError, match="another large page") as caught:
            waiter.fetch()
        assert caught.value.reason == "timeout"
        assert "not done within" in str(held.exception(10))
        assert waiter.fetch("/good").body == PAGE
    assert fetch(server.url("good_large")).body == LARGE_PAGE


def test_a_large_page_holds_its_turn_until_it_is_dropped(server: MaliciousServer) -> None:
    with closing(HttpClient(Target(url=server.url("good_large"), timeout=D))) as endpoint:
        page = endpoint.fetch()
        with pytest.raises(EndpointError, match="another large page"):
            endpoint.fetch()
        assert endpoint.fetch("/good").body == PAGE
        assert page.body == LARGE_PAGE
        del page
        assert endpoint.fetch().body == LARGE_PAGE


def test_e15_descriptors_and_threads_are_given_back_after_failures(server: MaliciousServer) -> None:
    def resources() -> tuple[int, int]:
        return len(os.listdir("/proc/self/fd")), threading.active_count()

    with closing(HttpClient(Target(url=server.url("good"), timeout=0.1))) as endpoint:
        for path in [*("reset_in_body", "not_http", "gzip_bomb", "no_answer") * 3, "silent"]:
            with pytest.raises(EndpointError):
                endpoint.fetch(f"/{path}")
    server.__exit__()
    with MaliciousServer() as fresh:
        before = resources()
        with closing(HttpClient(Target(url=fresh.url("good"), timeout=5))) as endpoint:
            for _ in range(5):
                with pytest.raises(EndpointError):
                    endpoint.fetch("/status_500")
        until(lambda: resources() == before)


@pytest.mark.parametrize("path", ["redirect_port", "redirect_host", "redirect_no_scheme", "redirect_userinfo"])
def test_e17_neither_the_request_nor_the_credentials_go_to_another_place(
    server: MaliciousServer, tmp_path: Path, path: str
) -> None:
    (tmp_path / "token").write_text("canary")
    with MaliciousServer() as other, MaliciousServer("127.0.0.2", server.port) as same_port:
        server.state["other"] = other.port
        problem = failure(server.url(path), bearer_token_file=str(tmp_path / "token"))
        assert problem.reason == "redirect"
        assert (other.connections, same_port.connections) == (0, 0)
    assert server.heads("good") == []


def test_credentials_go_along_with_a_redirect_inside_the_origin(server: MaliciousServer, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("abc")
    page = fetch(server.url("redirect_same"), bearer_token_file=str(tmp_path / "token"))
    assert page.body == PAGE
    assert b"\r\nAuthorization: Bearer abc\r\n" in server.heads("good")[0]


def test_the_body_of_a_redirect_is_not_taken_for_the_page(server: MaliciousServer) -> None:
    assert fetch(server.url("redirect_with_body")).body == PAGE
