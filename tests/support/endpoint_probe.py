"""What the tests of the endpoint share: one fetch, one failed fetch, and ports that nobody answers on."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from exporter.errors import EndpointError
from exporter.http.client.client import FetchResult, HttpClient, Target

D = 0.5  # seconds, the deadline of those tests that wait for it
SLACK = 15.0  # what a busy machine may add; a peer that beats the deadline takes minutes


def fetch(url: str, timeout: float = 5.0, **settings: object) -> FetchResult:
    with closing(HttpClient(Target(url=url, timeout=timeout, **settings))) as endpoint:  # type: ignore[arg-type]
        return endpoint.fetch()


def failure(url: str, timeout: float = 5.0, **settings: object) -> EndpointError:
    with pytest.raises(EndpointError) as caught:
        fetch(url, timeout, **settings)
    return caught.value


def refused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def full_backlog() -> Iterator[int]:
    """A port whose queue of connections is full, so that further ones get no answer at all."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        yield listener.getsockname()[1]
        for filler in fillers:
            filler.close()


# Path of a fault → reason.
REFUSED = {
    "endless_body": "too_large",  # E7
    "endless_chunks": "too_large",  # E8
    "huge_chunk": "too_large",
    "endless_head": "head_too_large",  # E9
    "huge_head_line": "head_too_large",
    "huge_status_line": "head_too_large",
    "many_fields": "head_too_large",
    "endless_continue": "head_too_large",
    "endless_trailers": "head_too_large",
    "big_page": "too_large",  # E10
    "gzip_bomb": "too_large",  # E11
    "endless_gzip": "too_large",
    "gzip_cut": "encoding",  # E12
    "gzip_without_checksum": "encoding",
    "gzip_wrong_checksum": "encoding",
    "gzip_lie": "encoding",
    "gzip_trailing": "encoding",
    "gzip_trailing_later": "encoding",
    "twice_gzip": "encoding",
    "unknown_coding": "encoding",  # E13
    "other_transfer_coding": "encoding",
    "length_short": "content_length",  # E14
    "length_negative": "content_length",
    "length_two": "content_length",
    "length_words": "content_length",
    "length_huge": "content_length",
    "chunked_with_length": "content_length",
    "reset_in_body": "reset",  # E15
    "cut_in_chunk": "closed",
    "cut_before_last_chunk": "closed",
    "cut_in_head": "closed",
    "cut_between_fields": "closed",
    "no_answer": "closed",
    "not_http": "protocol",  # E16
    "no_status": "protocol",
    "malformed_field": "protocol",
    "folded_field": "protocol",
    "negative_chunk": "protocol",
    "bad_chunk_end": "protocol",
    "endless_chunk_line": "protocol",
    "redirect_port": "redirect",  # E17
    "redirect_host": "redirect",
    "redirect_no_scheme": "redirect",
    "redirect_scheme": "redirect",
    "redirect_file": "redirect",
    "redirect_userinfo": "redirect",
    "redirect_broken": "redirect",
    "redirect_nowhere": "redirect",
    "redirect_loop": "redirect",  # E18
    "status_204": "http_204",  # E19
    "status_401": "http_401",
    "status_404": "http_404",
    "status_500": "http_500",
    "odd_status": "http_5xx",
    "empty": "empty",  # E21
    "empty_until_close": "empty",
    "gzip_empty": "empty",
}
