"""HTTP/1.1 as spoken through a real socket: what good requests get, and how bad ones are refused."""

from __future__ import annotations

import socket
import time
import tracemalloc

import pytest

from exporter.http.server.request import Response, format_head
from tests.support.raw_http import (
    GET,
    GET_CLOSE,
    PAGE,
    ask,
    connect,
    echo,
    one_answer,
    page,
    serving,
    split_head,
    to_the_end,
)

# -- what a good client gets


def test_one_connection_carries_many_requests():
    with serving() as listener, connect(listener) as sock:
        for _ in range(3):
            sock.sendall(GET)
            status, headers, body = one_answer(sock)
            assert (status, body) == (200, PAGE)
            assert "connection" not in headers
        assert listener.accepted == 1


def test_every_answer_says_its_length_its_date_and_that_it_must_not_be_stored():
    with serving() as listener:
        _, headers, _ = ask(listener, GET_CLOSE)
    assert headers["content-length"] == str(len(PAGE))
    assert headers["cache-control"] == "no-store"
    assert headers["x-content-type-options"] == "nosniff"
    assert time.strptime(headers["date"], "%a, %d %b %Y %H:%M:%S GMT")
    assert headers["connection"] == "close"


@pytest.mark.parametrize(
    "raw",
    [
        GET_CLOSE,
        b"GET / HTTP/1.1\r\nhost:x\r\nconnection: Keep-Alive, CLOSE\r\n\r\n",
        b"GET / HTTP/1.0\r\n\r\n",
        b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
    ],
)
def test_the_connection_ends_when_the_client_requests_it_or_speaks_http_1_0(raw):
    with serving() as listener:
        status, headers, body = ask(listener, raw)
        assert (status, headers["connection"], body) == (200, "close", PAGE)


def test_pipelined_requests_are_answered_one_after_another_in_order():
    with serving(echo) as listener, connect(listener) as sock:
        sock.sendall(b"".join(b"GET /%d?q HTTP/1.1\r\nHost: x\r\n\r\n" % n for n in range(50)))
        for n in range(50):
            assert one_answer(sock)[2] == b"GET /%d q" % n


def test_a_pipelined_half_request_waits_for_its_other_half():
    with serving(echo) as listener, connect(listener) as sock:
        sock.sendall(GET + GET[:20])
        assert one_answer(sock)[2] == b"GET /metrics "
        sock.sendall(GET[20:])
        assert one_answer(sock)[2] == b"GET /metrics "


def test_head_is_get_without_the_body():
    with serving() as listener, connect(listener) as sock:
        sock.sendall(GET.replace(b"GET", b"HEAD") + GET)
        status, headers, _ = one_answer(sock, bodiless=True)
        assert (status, headers["content-length"]) == (200, str(len(PAGE)))
        assert one_answer(sock)[2] == PAGE


def test_a_request_may_come_byte_by_byte():
    with serving(echo) as listener, connect(listener) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in GET:
            sock.sendall(bytes([byte]))
        assert one_answer(sock)[2] == b"GET /metrics "


def test_a_target_may_name_the_host():
    with serving(echo) as listener:
        raw = b"GET http://x:1/metrics?a=b HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        assert ask(listener, raw)[2] == b"GET /metrics a=b"


def test_a_small_post_body_is_thrown_away_and_the_connection_goes_on():
    with serving(echo, body_bytes=1024) as listener, connect(listener) as sock:
        sock.sendall(b"POST /-/reload HTTP/1.1\r\nHost: x\r\nContent-Length: 1024\r\n\r\n" + b"G" * 1000)
        time.sleep(0.05)
        sock.sendall(b"G" * 24 + GET)
        assert one_answer(sock)[2] == b"POST /-/reload "
        assert one_answer(sock)[2] == b"GET /metrics "


def test_a_post_without_a_body_needs_no_length():
    with serving(echo) as listener, connect(listener) as sock:
        sock.sendall(b"POST /-/reload HTTP/1.1\r\nHost: x\r\n\r\n")
        assert one_answer(sock)[2] == b"POST /-/reload "


def test_a_client_that_closes_its_half_still_gets_its_answer():
    with serving() as listener, connect(listener) as sock:
        sock.sendall(GET)
        sock.shutdown(socket.SHUT_WR)
        assert to_the_end(sock).endswith(PAGE)


def test_repeated_fields_reach_the_handler_as_one():
    results = []
    with serving(lambda request: results.append(request.headers) or page(request)) as listener:
        ask(listener, b"GET / HTTP/1.1\r\nHost: x\r\nAccept: a\r\nACCEPT:  b \t\r\nX-E:\r\nConnection: close\r\n\r\n")
    assert results == [{"host": "x", "accept": "a, b", "x-e": "", "connection": "close"}]


# -- what a bad one gets

WITH_HOST = b" HTTP/1.1\r\nHost: x\r\n"
BAD = {
    "http 0.9": (b"GET /metrics\r\n", 400),
    "no request at all": (b"hello there\r\n\r\n", 400),
    "empty line": (b"\r\n\r\n", 400),
    "binary": (bytes(range(256)), 400),
    "tls": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"a" * 100, 400),
    "two spaces": (b"GET  /" + WITH_HOST + b"\r\n", 400),
    "four words": (b"GET / / HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "tab in the target": (b"GET /\t" + WITH_HOST + b"\r\n", 400),
    "raw utf-8 in the target": ("GET /ü".encode() + WITH_HOST + b"\r\n", 400),
    "relative target": (b"GET metrics" + WITH_HOST + b"\r\n", 400),
    "other scheme": (b"GET file:///etc/passwd" + WITH_HOST + b"\r\n", 400),
    "no host": (b"GET / HTTP/1.1\r\n\r\n", 400),
    "two hosts": (b"GET /" + WITH_HOST + b"Host: y\r\n\r\n", 400),
    "bare line feeds": (b"GET / HTTP/1.1\nHost: x\n\n", 400),
    "bare line feed after a blank": (b"GET / HTTP/1.1 \nHost: x\n\n", 400),
    "bare line feed in a field": (b"GET /" + WITH_HOST + b"A: b\nC: d\r\n\r\n", 400),
    "folded field": (b"GET /" + WITH_HOST + b"A: b\r\n c\r\n\r\n", 400),
    "space before the colon": (b"GET /" + WITH_HOST + b"Content-Length : 3\r\n\r\n", 400),
    "no colon": (b"GET /" + WITH_HOST + b"A\r\n\r\n", 400),
    "nameless field": (b"GET /" + WITH_HOST + b": a\r\n\r\n", 400),
    "nul in a value": (b"GET /" + WITH_HOST + b"A: \x00\r\n\r\n", 400),
    "carriage return in a value": (b"GET /" + WITH_HOST + b"A: b\rc\r\n\r\n", 400),
    "length and chunks": (b"POST /" + WITH_HOST + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\nabc", 400),
    "chunks and length": (b"POST /" + WITH_HOST + b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\nabc", 400),
    "two lengths": (b"POST /" + WITH_HOST + b"Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc", 400),
    "two lengths in one": (b"POST /" + WITH_HOST + b"Content-Length: 3, 3\r\n\r\nabc", 400),
    "signed length": (b"POST /" + WITH_HOST + b"Content-Length: +3\r\n\r\nabc", 400),
    "negative length": (b"POST /" + WITH_HOST + b"Content-Length: -3\r\n\r\nabc", 400),
    "hexadecimal length": (b"POST /" + WITH_HOST + b"Content-Length: 0x3\r\n\r\nabc", 400),
    "empty length": (b"POST /" + WITH_HOST + b"Content-Length:\r\n\r\nabc", 400),
    "superscript length": (b"POST /" + WITH_HOST + b"Content-Length: \xb3\r\n\r\nabc", 400),
    "chunked body": (b"POST /" + WITH_HOST + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", 411),
    "body too long": (b"POST /" + WITH_HOST + b"Content-Length: 1025\r\n\r\n" + b"a" * 1025, 413),
    "absurd length": (b"POST /" + WITH_HOST + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n", 413),
    "body of a get": (b"GET /" + WITH_HOST + b"Content-Length: 3\r\n\r\nabc", 413),
    "expectation": (b"POST /" + WITH_HOST + b"Content-Length: 3\r\nExpect: 100-continue\r\n\r\n", 417),
    "long request line": (b"GET /" + b"a" * 9000 + WITH_HOST + b"\r\n", 414),
    "long field": (b"GET /" + WITH_HOST + b"A: " + b"a" * 9000 + b"\r\n\r\n", 431),
    "65 fields": (b"GET /" + WITH_HOST + b"A: b\r\n" * 64 + b"\r\n", 431),
    "10000 fields": (b"GET /" + WITH_HOST + b"A: b\r\n" * 10000 + b"\r\n", 431),
    "trace": (b"TRACE /" + WITH_HOST + b"\r\n", 405),
    "put": (b"PUT /" + WITH_HOST + b"Content-Length: 3\r\n\r\nabc", 405),
    "lower case get": (b"get /" + WITH_HOST + b"\r\n", 405),
    "options *": (b"OPTIONS *" + WITH_HOST + b"\r\n", 405),
    "connect": (b"CONNECT x:443" + WITH_HOST + b"\r\n", 405),
    "http 2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
    "http 3.7": (b"GET / HTTP/3.7\r\nHost: x\r\n\r\n", 505),
    "http 1": (b"GET / HTTP/1\r\nHost: x\r\n\r\n", 400),
}


@pytest.fixture
def default_listener():
    with serving(echo) as listener:
        yield listener
        assert listener.errors == listener.loop_restarts == listener.timed_out == 0


@pytest.mark.parametrize(("raw", "status"), BAD.values(), ids=BAD)
def test_a_bad_request_is_answered_and_ends_its_connection(default_listener, raw, status):
    answer, headers, body = ask(default_listener, raw)
    assert (answer, headers["connection"]) == (status, "close")
    assert headers["content-length"] == str(len(body)), "one answer, then nothing"
    assert headers["content-type"] == "text/plain; charset=utf-8"
    assert headers.get("allow") == ("GET, HEAD, POST" if status == 405 else None)
    assert ask(default_listener, GET_CLOSE)[0] == 200


def test_64_fields_are_still_taken(default_listener):
    assert ask(default_listener, b"GET /" + WITH_HOST + b"A: b\r\n" * 62 + b"Connection: close\r\n\r\n")[0] == 200


def test_nothing_behind_a_refused_request_is_taken_for_a_request():
    results = []
    with serving(lambda request: results.append(request.path) or page(request)) as listener:
        smuggled = b"POST /" + WITH_HOST + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + GET
        assert ask(listener, smuggled)[0] == 400
    assert results == []


def test_a_request_line_of_1_mib_costs_no_memory_and_gets_a_reason():
    raw = b"GET /" + b"a" * (1 << 20)
    with serving() as listener, connect(listener) as sock:
        tracemalloc.start()
        try:
            sock.sendall(raw)
            data = to_the_end(sock, strict=True)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert split_head(data)[0] == 414
    assert peak < 1 << 20


def test_a_response_without_a_body_by_definition_has_no_length():
    """RFC 9110, 8.6: with 304 it would be the length of what the client has."""
    for status, has_length in ((200, True), (304, False)):
        head = format_head(Response(status=status, content_type="text/plain", body=b""), keep=True)
        assert (b"Content-Length" in head) is has_length
