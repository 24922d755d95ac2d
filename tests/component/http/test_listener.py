"""The listener against clients that are mute, slow or too many: small limits, 127.0.0.1 only."""

from __future__ import annotations

import contextlib
import selectors
import threading
import time
import tracemalloc

import pytest

from exporter.http.server.listener import HttpServer, Request, Response
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
    split_head,
    to_the_end,
)
from tests.support.waiting import until

# -- deadlines


def test_clients_that_let_us_wait_are_closed_in_time_and_counted():
    with serving(header_seconds=0.3, idle_seconds=0.6) as listener:
        with (
            connect(listener) as mute,
            connect(listener) as half,
            connect(listener) as body,
            connect(listener) as idle,
        ):
            half.sendall(b"GET /metrics HT")
            body.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nabc")
            idle.sendall(GET)
            assert one_answer(idle)[0] == 200
            assert to_the_end(mute) == b""
            assert split_head(to_the_end(half))[0] == 408
            assert split_head(to_the_end(body))[0] == 408
            assert to_the_end(idle) == b""
            assert listener.timed_out == 3, "idling between two scrapes is no fault"


def test_the_header_deadline_is_for_the_whole_header():
    with serving(header_seconds=0.5) as listener, connect(listener) as sock:
        began = time.monotonic()
        with contextlib.suppress(ConnectionError):
            for byte in b"GET /metrics HTTP/1.1\r\nA: " + b"a" * 400:
                sock.sendall(bytes([byte]))
                time.sleep(0.02)
                if listener.timed_out:
                    break
        assert listener.timed_out == 1
        assert time.monotonic() - began < 5


def test_the_header_deadline_holds_for_later_requests_too():
    with serving(header_seconds=0.3, idle_seconds=60) as listener, connect(listener) as sock:
        sock.sendall(GET)
        one_answer(sock)
        sock.sendall(b"GET /")
        assert split_head(to_the_end(sock))[0] == 408


def test_slow_readers_are_cut_off_and_share_one_page():
    big = Response(status=200, content_type="text/plain", body=bytes(16 << 20))

    def handler(request: Request) -> Response:
        return big if request.path == "/big" else page(request)

    with serving(handler, write_seconds=1.0) as listener, contextlib.ExitStack() as stack:
        slow = [stack.enter_context(connect(listener, receive_buffer=4096)) for _ in range(20)]
        tracemalloc.start()
        try:
            for sock in slow:
                sock.sendall(b"GET /big HTTP/1.1\r\nHost: x\r\n\r\n")
            for sock in slow:
                assert sock.recv(1) == b"H"
            assert ask(listener, GET_CLOSE)[2] == PAGE
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        until(lambda: listener.timed_out == 20)
        assert peak < 2 << 20, "the page was copied for its readers"
        with pytest.raises(ConnectionResetError):  # what the kernel still had queued is dropped, not offered on
            while slow[0].recv(65536):
                pass


def test_a_client_that_never_closes_after_its_last_answer_is_dropped():
    with serving(linger_seconds=0.2) as listener:
        before = descriptors()
        with connect(listener) as sock:
            sock.sendall(GET_CLOSE)
            assert to_the_end(sock).endswith(PAGE)
            until(lambda: descriptors() == before + 1)  # the client's own is left
        assert listener.timed_out == 0


# -- too many


def test_500_mute_clients_keep_no_scrape_out():
    threads, before = threading.active_count(), descriptors()
    with serving(header_seconds=2.0, backlog=1024) as listener, contextlib.ExitStack() as stack:
        mute = [stack.enter_context(connect(listener)) for _ in range(500)]
        until(lambda: listener.accepted == 500)
        for _ in range(5):
            assert ask(listener, GET_CLOSE)[2] == PAGE
        assert threading.active_count() == threads + 1
        assert descriptors() - before - len(mute) <= 64 + 4, "64 clients, the listening socket, selector and pipe"
        answers = [to_the_end(sock) for sock in mute]
        refusals = [split_head(answer) for answer in answers if answer]
        assert len(refusals) == listener.refused
        until(lambda: listener.refused + listener.timed_out == 500)
        for status, headers in refusals:
            assert (status, headers["retry-after"], headers["connection"]) == (503, "1", "close")
        assert listener.accepted == 505


def test_clients_that_drip_their_header_keep_no_scrape_out():
    with serving(connections=8) as listener, contextlib.ExitStack() as stack:
        drip = [stack.enter_context(connect(listener)) for _ in range(8)]
        for sock in drip:
            sock.sendall(b"GET /met")
        until(lambda: listener.accepted == 8)
        assert ask(listener, GET_CLOSE)[0] == 200
        assert split_head(to_the_end(drip[0]))[0] == 503, "the one that we waited for longest"


def test_idle_connections_give_way_in_silence():
    with serving(connections=2) as listener, connect(listener) as first, connect(listener) as second:
        for sock in (first, second):
            sock.sendall(GET)
            one_answer(sock)
        assert ask(listener, GET_CLOSE)[0] == 200
        assert to_the_end(first) == b""
        second.sendall(GET)
        assert one_answer(second)[0] == 200
        assert listener.refused == 0


def test_a_newcomer_is_turned_away_while_all_places_are_being_written_to():
    big = Response(status=200, content_type="text/plain", body=bytes(16 << 20))
    with serving(lambda _: big, connections=2, write_seconds=60) as listener:
        with connect(listener, 4096) as first, connect(listener, 4096) as second:
            for sock in (first, second):
                sock.sendall(GET)
                assert sock.recv(1) == b"H"
            status, headers, _ = ask(listener, GET)
            assert (status, headers["connection"], headers["retry-after"]) == (503, "close", "1")
            assert listener.refused == 1
            first.close()
            until(lambda: ask(listener, GET_CLOSE.replace(b"GET", b"HEAD"))[0] == 200)


def test_a_client_that_is_turned_away_with_its_request_unread_gets_no_reset():
    big = Response(status=200, content_type="text/plain", body=bytes(16 << 20))
    waiting, release = threading.Event(), threading.Event()

    def handler(request: Request) -> Response:
        if request.path == "/wait":
            waiting.set()
            assert release.wait(10)
        return big

    with serving(handler, connections=2) as listener, contextlib.ExitStack() as stack:
        first, second = (stack.enter_context(connect(listener, 4096)) for _ in range(2))
        first.sendall(GET)
        assert first.recv(1) == b"H"
        second.sendall(b"GET /wait HTTP/1.1\r\nHost: x\r\n\r\n")
        assert waiting.wait(10)  # the loop stands still: who comes now waits in the backlog, request and all
        late = stack.enter_context(connect(listener))
        late.sendall(GET)
        time.sleep(0.05)
        release.set()
        assert split_head(to_the_end(late, strict=True))[0] == 503


@pytest.mark.parametrize("connect_first", [False, True])
def test_200_scrapes_at_once_all_get_200_or_503(connect_first):
    with serving(lambda _: Response(status=200, content_type="text/plain", body=bytes(300_000))) as listener:
        answers = many_at_once(listener, 200, connect_first=connect_first)
    statuses = [split_head(answer)[0] for answer in answers if answer]
    assert len(statuses) == 200
    assert set(statuses) <= {200, 503}
    assert statuses.count(200) >= 64
    for answer, status in zip(answers, statuses, strict=True):
        assert status == 503 or len(answer.partition(b"\r\n\r\n")[2]) == 300_000


def many_at_once(listener: HttpServer, count: int, connect_first: bool) -> list[bytes]:
    answers = [bytearray() for _ in range(count)]
    with selectors.DefaultSelector() as selector, contextlib.ExitStack() as stack:
        socks = []
        for index in range(count):
            sock = stack.enter_context(connect(listener))
            if not connect_first:
                sock.sendall(GET_CLOSE)
            socks.append(sock)
            selector.register(sock, selectors.EVENT_READ, index)
        if connect_first:
            for sock in socks:
                with contextlib.suppress(ConnectionError):  # told 503 and closed already
                    sock.sendall(GET_CLOSE)
        end = time.monotonic() + 20
        while selector.get_map() and time.monotonic() < end:
            for key, _ in selector.select(1):
                data = b""
                with contextlib.suppress(ConnectionResetError):
                    data = key.fileobj.recv(65536)
                answers[key.data] += data
                if not data:
                    selector.unregister(key.fileobj)
    return [bytes(answer) for answer in answers]
