"""What is answered: routes as a function of a request, negotiation as a table, and once through a real socket."""

from __future__ import annotations

import gzip
import itertools
import socket
from dataclasses import dataclass

import pytest

from exporter.http.server.listener import DeferredResponse, HttpServer, Request, RequestHandler, Response
from exporter.http.server.routes import OPENMETRICS, TEXT, routes
from exporter.model import Outcome
from tests.support.waiting import until

PROMETHEUS_2_42 = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
PROMETHEUS_3_5 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,"
    "text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)
PROTOBUF = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited"
PROMETHEUS_3_5_NATIVE_HISTOGRAMS = (
    f"{PROTOBUF};q=0.6,application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,"
    "application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3,"
    "text/plain;version=0.0.4;q=0.2,*/*;q=0.1"
)


@dataclass
class FakePages:
    fresh: bool = True

    def page(self, *, openmetrics: bool, gzip: bool) -> bytes | None:
        return f"openmetrics={openmetrics} gzip={gzip}".encode() if self.fresh else None


@dataclass
class FakeHealth:
    verdict: Outcome = Outcome(True, "all is well")
    data: Outcome = Outcome(True, "3 of 3 sources are fresh")

    def healthy(self) -> Outcome:
        return self.verdict

    def ready(self) -> Outcome:
        return self.data


@pytest.fixture
def handler() -> RequestHandler:
    return routes(FakePages(), FakeHealth(), reload=None)


def get(handler: RequestHandler, path: str, method: str = "GET", query: str = "", **headers: str) -> Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    answer = handler(Request(method=method, path=path, query=query, headers=named))
    if isinstance(answer, DeferredResponse):
        until(lambda: answer.response is not None)
        assert answer.response is not None
        return answer.response
    return answer


# -- negotiation

ACCEPT = {
    # What real clients send.
    PROMETHEUS_2_42: OPENMETRICS,
    PROMETHEUS_3_5: OPENMETRICS,
    PROMETHEUS_3_5.replace("allow-utf-8", "underscores"): OPENMETRICS,
    PROMETHEUS_3_5_NATIVE_HISTOGRAMS: OPENMETRICS,
    "*/*": TEXT,
    "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8": TEXT,
    "text/plain;version=0.0.4": TEXT,
    "text/plain;version=0.0.4;q=1,*/*;q=0.1": TEXT,
    f"{PROTOBUF};q=0.7,text/plain;version=0.0.4;q=0.3": TEXT,
    # OpenMetrics, asked for in other ways.
    "application/openmetrics-text": OPENMETRICS,
    "application/openmetrics-text; version=1.0.0; charset=utf-8": OPENMETRICS,
    "application/openmetrics-text;version=0.0.1": OPENMETRICS,
    'APPLICATION/OpenMetrics-Text ; Version="1.0.0" ; Q=0.2': OPENMETRICS,
    "application/openmetrics-text,text/plain": OPENMETRICS,
    "application/openmetrics-text;q=0.5,*/*;q=0.4": OPENMETRICS,
    "*/*,application/openmetrics-text": OPENMETRICS,
    "text/plain;q=0,*/*;q=0.1": OPENMETRICS,
    "application/*": OPENMETRICS,
    "text/plain;version=1.0.0,application/openmetrics-text;q=0.001": OPENMETRICS,
    # Text, because it is wanted as much or more.
    "text/plain,application/openmetrics-text": TEXT,
    "text/plain;q=0.6,application/openmetrics-text;q=0.5": TEXT,
    "application/openmetrics-text;q=0,*/*;q=0.1": TEXT,
    "text/*": TEXT,
    "text/plain;charset=utf-8": TEXT,
    "application/*;q=0.5,text/*;q=0.5,text/plain;q=0.5": TEXT,
    # Text, because nothing that we have is wanted, or nothing can be read.
    "": TEXT,
    PROTOBUF: TEXT,
    "application/json": TEXT,
    "application/openmetrics-text;version=2.0.0": TEXT,
    "application/openmetrics-text;q=0": TEXT,
    "*/*;q=0": TEXT,
    "text/plain;version=1.0.0": TEXT,
    "application/openmetrics-text;q=nan": TEXT,
    "application/openmetrics-text;q=inf": TEXT,
    "application/openmetrics-text;q=2": TEXT,
    "application/openmetrics-text;q=-1": TEXT,
    "application/openmetrics-text;q=": TEXT,
    "application/openmetrics-text;q=0.5;q=x": TEXT,
    ",,,;;;q=1,/,=,;version=1.0.0": TEXT,
    "application/openmetrics-textual": TEXT,
    "a/b," * 5000 + "application/openmetrics-text": TEXT,
    "\x80\xff": TEXT,
}
ENCODINGS = {
    "gzip": True,
    "GZIP": True,
    "x-gzip": True,
    "gzip, deflate, br, zstd": True,
    "deflate, gzip;q=0.1": True,
    "gzip;q=0.001": True,
    "*": True,
    "*;q=0.1": True,
    "identity;q=0, *": True,
    "identity;q=0, gzip;q=0.2": True,
    "identity;q=0.5, gzip;q=0.5": True,
    "gzip;q=1.0, identity; q=0.5, *;q=0": True,
    "": False,
    "identity": False,
    "gzip;q=0": False,
    "gzip;q=0.000": False,
    "gzip ; q=0, *": False,
    "*;q=0": False,
    "gzip;q=0.4, identity;q=0.5": False,
    "identity;q=0": False,  # nothing else is welcome either: what all can read is sent
    "gzip;q=0, identity;q=0": False,
    "br": False,
    "gzip;q=nan": False,
    "gzip;q=7": False,
    "gzipped": False,
    "," * 8000: False,
}


@pytest.mark.parametrize(("accept", "content_type"), ACCEPT.items(), ids=[key[:60] or "none" for key in ACCEPT])
def test_the_format_follows_the_accept_header(handler, accept, content_type):
    for _ in range(2):  # the second answer may come from memory
        answer = get(handler, "/metrics", accept=accept)
        assert (answer.status, answer.content_type) == (200, content_type)
        assert answer.body == f"openmetrics={content_type == OPENMETRICS} gzip=False".encode()


@pytest.mark.parametrize(("encoding", "gzipped"), ENCODINGS.items(), ids=[key[:60] or "none" for key in ENCODINGS])
def test_the_coding_follows_the_accept_encoding_header(handler, encoding, gzipped):
    for _ in range(2):
        answer = get(handler, "/metrics", accept_encoding=encoding)
        assert answer.status == 200
        assert dict(answer.headers).get("Content-Encoding") == ("gzip" if gzipped else None)
        assert answer.body == f"openmetrics=False gzip={gzipped}".encode()


def test_format_and_coding_are_chosen_independently(handler):
    for (accept, content_type), (encoding, gzipped) in itertools.product(ACCEPT.items(), ENCODINGS.items()):
        answer = get(handler, "/metrics", accept=accept, accept_encoding=encoding)
        assert answer.body == f"openmetrics={content_type == OPENMETRICS} gzip={gzipped}".encode()


def test_the_content_types_are_those_that_prometheus_knows():
    assert TEXT == "text/plain; version=0.0.4; charset=utf-8"
    assert OPENMETRICS == "application/openmetrics-text; version=1.0.0; charset=utf-8"


def test_caches_get_what_the_page_depends_on(handler):
    for headers in ({}, {"accept_encoding": "gzip"}, {"accept": PROMETHEUS_3_5}):
        assert ("Vary", "Accept, Accept-Encoding") in get(handler, "/metrics", **headers).headers


def test_what_is_cached_of_clients_is_bounded(handler):
    from exporter.http.server.negotiation import _cached

    for n in range(1000):
        get(handler, "/metrics", accept=f"text/x{n}")
    full = _cached.cache_info()
    assert full.currsize == full.maxsize <= 64
    get(handler, "/metrics", accept="a" * 8000)
    assert _cached.cache_info().misses == full.misses, "a long header is not kept"


@pytest.mark.parametrize("value", ["0.1", "0", "-1", "NaN", "1e309", "", "ten", "1" * 5000])
def test_no_scrape_timeout_is_ever_an_error(handler, value):
    assert get(handler, "/metrics", x_prometheus_scrape_timeout_seconds=value).status == 200


# -- routes


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/snapshot", "/metrics/dcgm", "/metrics/", "//metrics", "/metrics/../metrics", "/./metrics", "/METRICS",
        "/%6detrics", "/metrics%00", "/metrics%20", "/metrics;a=b", "/metrics#", "/-/healthy/", "/-", "/-/quit",
        "/", "/favicon.ico", "/index.html", "/web/page.js", "/..%2f..%2fetc/passwd", "\\metrics", "",
    ],
)  # fmt: skip
def test_there_is_nothing_off_the_known_paths(handler, path):
    for method in ("GET", "HEAD", "POST"):
        answer = get(handler, path, method=method)
        assert answer.status == 404
        assert b"/metrics" in answer.body, "it says what there is"


@pytest.mark.parametrize("path", ["/metrics", "/-/healthy", "/-/ready"])
def test_a_query_changes_nothing_and_head_is_answered_like_get(handler, path):
    plain = get(handler, path)
    assert plain.status == 200
    assert get(handler, path, query="a=b&<script>&%00") == plain
    assert get(handler, path, method="HEAD") == plain


@pytest.mark.parametrize(
    ("path", "method", "allow"),
    [
        ("/metrics", "POST", "GET, HEAD"),
        ("/-/ready", "POST", "GET, HEAD"),
        ("/-/reload", "GET", "POST"),
        ("/-/reload", "HEAD", "POST"),
    ],
)
def test_a_wrong_method_gets_the_allowed_one(path, method, allow):
    reloads = []
    handler = routes(FakePages(), FakeHealth(), reload=lambda: reloads.append(1) or Outcome(True, ""))
    answer = get(handler, path, method=method)
    assert answer.status == 405
    assert ("Allow", allow) in answer.headers
    assert reloads == []


def test_without_a_page_the_answer_is_503_and_a_reason_never_an_old_page():
    pages = FakePages()
    handler = routes(pages, FakeHealth(), reload=None)
    assert get(handler, "/metrics").status == 200
    pages.fresh = False
    answer = get(handler, "/metrics", accept=PROMETHEUS_3_5, accept_encoding="gzip")
    assert (answer.status, answer.content_type) == (503, "text/plain; charset=utf-8")
    assert b"/-/ready" in answer.body
    assert "Content-Encoding" not in dict(answer.headers)


def test_liveness_and_readiness_differ_and_have_a_sentence_each():
    health = FakeHealth(verdict=Outcome(True, "poll loop running"), data=Outcome(False, "no cycle has finished yet"))
    handler = routes(FakePages(), health, reload=None)
    alive, ready = get(handler, "/-/healthy"), get(handler, "/-/ready")
    assert (alive.status, alive.body) == (200, b"poll loop running\n")
    assert (ready.status, ready.body) == (503, b"no cycle has finished yet\n")
    health.verdict, health.data = Outcome(False, "poll loop not running"), Outcome(True, "fresh")
    assert get(handler, "/-/healthy").status == 503
    assert get(handler, "/-/ready").status == 200


def test_reload_is_off_unless_the_configuration_allows_it(handler):
    answer = get(handler, "/-/reload", method="POST")
    assert answer.status == 403
    assert b"reload_endpoint: true" in answer.body
    assert b"SIGHUP" in answer.body


@pytest.mark.parametrize(("good", "status"), [(True, 200), (False, 500)])
def test_reload_reports_its_result(good, status):
    reloads = []
    handler = routes(
        FakePages(), FakeHealth(), reload=lambda: Outcome(reloads.append(1) or good, "engines[2].url: no scheme")
    )
    answer = get(handler, "/-/reload", method="POST")
    assert (answer.status, answer.body) == (status, b"engines[2].url: no scheme\n")
    assert reloads == [1]


@pytest.mark.parametrize(
    ("origin", "status"),
    [("http://node1:9853", 200), ("https://node1:9853", 200), ("http://evil.example", 403), ("null", 403)],
)
def test_a_page_of_another_origin_reloads_nothing(origin, status):
    reloads = []
    handler = routes(FakePages(), FakeHealth(), reload=lambda: Outcome(reloads.append(1) or True, "good"))
    answer = get(handler, "/-/reload", method="POST", host="node1:9853", origin=origin)
    assert answer.status == status and len(reloads) == (status == 200)


# -- once through everything


def test_a_scrape_through_the_socket_is_the_page_of_the_moment():
    class Pages:
        body = b"# EOF\n"

        def page(self, *, openmetrics: bool, gzip: bool) -> bytes:
            return compress(self.body) if gzip else self.body

    pages, compress = Pages(), gzip.compress
    listener = HttpServer("127.0.0.1", 0, routes(pages, FakeHealth(), reload=None))
    listener.start()
    try:
        for pages.body in (b"a 1\n# EOF\n", b"a 2\n# EOF\n"):
            request = (
                "GET /metrics HTTP/1.1\r\nHost: x\r\nUser-Agent: Prometheus/3.5.3\r\n"
                f"Accept: {PROMETHEUS_3_5}\r\nAccept-Encoding: gzip\r\n"
                "X-Prometheus-Scrape-Timeout-Seconds: 10\r\nConnection: close\r\n\r\n"
            )
            head, body = exchange(listener, request.encode())
            assert head.startswith("HTTP/1.1 200 OK\r\n")
            assert f"Content-Type: {OPENMETRICS}\r\n" in head + "\r\n"
            assert "Content-Encoding: gzip" in head
            assert gzip.decompress(body) == pages.body
        assert listener.errors == 0
    finally:
        listener.stop()


def exchange(listener: HttpServer, raw: bytes) -> tuple[str, bytes]:
    with socket.create_connection(listener.address, timeout=10) as sock:
        sock.sendall(raw)
        data = b"".join(iter(lambda: sock.recv(65536), b""))
    head, _, body = data.partition(b"\r\n\r\n")
    return head.decode(), body


def test_requests_speaks_to_it_on_one_connection():
    import requests

    listener = HttpServer("127.0.0.1", 0, routes(FakePages(), FakeHealth(), reload=lambda: Outcome(True, "reloaded")))
    listener.start()
    try:
        with requests.Session() as session:
            session.trust_env = False
            base = f"http://127.0.0.1:{listener.address[1]}"
            session.headers["Accept-Encoding"] = "identity"
            assert session.get(f"{base}/metrics", timeout=10).text == "openmetrics=False gzip=False"
            assert session.head(f"{base}/metrics", timeout=10).headers["Content-Length"] == "28"
            assert session.post(f"{base}/-/reload", data={"a": "b"}, timeout=10).text == "reloaded\n"
            assert session.get(f"{base}/nothing", timeout=10).status_code == 404
            assert listener.accepted == 1
    finally:
        listener.stop()
