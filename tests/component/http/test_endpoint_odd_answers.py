"""Interim answers, answers longer than announced, gzip in several members: what is legal is read, the rest refused."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

import tests.support.odd_answers  # noqa: F401 - whose answers are served by name
from exporter.http.client.client import HttpClient, Target
from tests.support.endpoint_probe import SLACK, D, failure, fetch
from tests.support.malicious_pages import PAGE, bomb
from tests.support.malicious_server import MaliciousServer

pytestmark = pytest.mark.usefixtures("either_client")

POLLS = 3


@pytest.fixture
def server() -> Iterator[MaliciousServer]:
    with MaliciousServer() as running:
        yield running


def polls(server: MaliciousServer, path: str) -> list[bytes]:
    with closing(HttpClient(Target(url=server.url(path), timeout=5))) as endpoint:
        return [endpoint.fetch().body for _ in range(POLLS)]


REFUSED = {
    "switches": ("http_101", "status 101"),
    "many_interim": ("head_too_large", "interim"),
    "endless_hint": ("head_too_large", "too many fields"),
    "interim_and_no_more": ("closed", "without an answer"),
    "cut_number": ("content_length", "more follows"),
    "cut_number_then_closed": ("content_length", "more follows"),
    "cut_after_the_point": ("content_length", "more follows"),
    "cut_comment": ("content_length", "more follows"),
    "cut_number_kept": ("content_length", "more follows"),
    "cut_number_late": ("content_length", "more follows"),
    "no_end_and_cut": ("closed", "final newline"),
    "members_without_end": ("encoding", "members"),
    "second_member_cut": ("encoding", "cut off"),
    "second_member_broken": ("encoding", "broken one, or none"),
    "junk_after_members": ("encoding", "broken one, or none"),
    "zeros_after_members": ("encoding", "broken one, or none"),
    "second_member_bomb": ("too_large", "larger than"),
    "two_codings": ("encoding", "coding"),
}


@pytest.mark.parametrize("path", REFUSED)
def test_an_odd_answer_that_cannot_be_trusted_is_refused_with_its_reason(server: MaliciousServer, path: str) -> None:
    problem = failure(server.url(path))
    reason, words = REFUSED[path]
    assert problem.reason == reason
    assert words in str(problem).removeprefix(server.url(path))


@pytest.mark.parametrize("path", REFUSED)
def test_a_refused_odd_answer_does_not_spoil_the_next_poll(server: MaliciousServer, path: str) -> None:
    with closing(HttpClient(Target(url=server.url("good"), timeout=5))) as endpoint:
        for asked in (f"/{path}", None, f"/{path}", None):
            if asked is None:
                assert endpoint.fetch().body == PAGE
            else:
                with pytest.raises(Exception, match=r"http://"):
                    endpoint.fetch(asked)


# ---------------------------------------------------------------------- interim answers


def test_interim_answers_are_passed_over_and_the_connection_is_kept(server: MaliciousServer) -> None:
    assert polls(server, "after_hints") == [PAGE] * POLLS
    assert server.connections == 1


@pytest.mark.parametrize("path", ["hints_then_silence", "drip_hints"])
def test_interim_answers_buy_no_time(server: MaliciousServer, path: str) -> None:
    started = time.monotonic()
    problem = failure(server.url(path), D)
    assert problem.reason == "timeout"
    assert "head of the answer" in str(problem)
    assert D <= time.monotonic() - started < D + SLACK


# ---------------------------------------------------------------------- more than was announced


@pytest.mark.parametrize("path", ["surplus", "surplus_chunked", "surplus_gzip"])
def test_a_connection_with_more_on_it_than_was_announced_is_not_used_again(
    server: MaliciousServer, path: str
) -> None:
    assert [body.rstrip(b"\n") for body in polls(server, path)] == [b"x 1"] * POLLS
    assert server.connections == POLLS


def test_what_follows_a_redirect_is_not_taken_for_the_page(server: MaliciousServer) -> None:
    assert fetch(server.url("surplus_redirect")).body == PAGE
    assert server.connections == 2


def test_what_follows_inside_a_tls_record_is_not_taken_for_the_next_answer(tmp_path: Path) -> None:
    from tests.component.http.test_endpoint_tls import CONFIGURATION, Keys, server_context

    keys = Keys(tmp_path)
    (tmp_path / "conf").write_text(CONFIGURATION)
    (tmp_path / "index").touch()
    keys.authority("ca")
    keys.certificate("good", "ca", "here", "20200101000000Z", "20480102030405Z")
    with MaliciousServer(tls=server_context(keys, "good")) as server:
        target = Target(url=server.url("surplus_large"), timeout=5, ca_file=keys.path("ca.pem"))
        with closing(HttpClient(target)) as endpoint:
            assert [endpoint.fetch().body for _ in range(POLLS)] == [b"x 1\n" * 500] * POLLS
            assert [endpoint.fetch("/good").body for _ in range(POLLS)] == [PAGE] * POLLS
        assert server.connections == POLLS + 1


def test_a_page_that_ends_in_a_number_is_whole_where_nothing_follows(server: MaliciousServer) -> None:
    assert polls(server, "whole_number_kept") == [b'vllm:generation_tokens_total{engine="0"} 123'] * POLLS
    assert server.connections == 1
    assert fetch(server.url("no_last_newline")).body == PAGE.rstrip(b"\n")


@pytest.mark.parametrize("path", ["chunked_without_newline", "gzip_without_newline"])
def test_chunks_and_checksums_vouch_for_the_end_of_a_page(server: MaliciousServer, path: str) -> None:
    assert fetch(server.url(path)).body == b"x 1"


# ---------------------------------------------------------------------- gzip in several members


def test_gzip_members_are_read_one_after_the_other(server: MaliciousServer) -> None:
    assert fetch(server.url("empty_members")).body == PAGE
    assert fetch(server.url("many_members")).body == b"".join(b"x %d\n" % i for i in range(128))


def test_the_seam_between_gzip_members_may_fall_anywhere_between_chunks(server: MaliciousServer) -> None:
    assert polls(server, "members_in_pieces") == [PAGE] * POLLS
    assert server.connections == 1


def test_a_bomb_in_a_later_gzip_member_stops_at_the_cap(server: MaliciousServer) -> None:
    bomb()
    tracemalloc.start()
    try:
        assert failure(server.url("second_member_bomb"), 20.0).reason == "too_large"
        assert tracemalloc.get_traced_memory()[1] < 20 * 1024 * 1024
    finally:
        tracemalloc.stop()


# ---------------------------------------------------------------------- when a connection is over


@pytest.mark.parametrize("path", ["old_and_chunked", "keeps_and_closes"])
def test_a_connection_whose_end_is_in_doubt_is_not_used_again(server: MaliciousServer, path: str) -> None:
    assert polls(server, path) == [PAGE] * POLLS
    assert server.connections == POLLS
