"""Posting to receivers that misbehave: one deadline, bounded answers, no redirect followed, no secret shown."""

from __future__ import annotations

import contextlib
import http.server
import logging
import shutil
import ssl
import threading
import time
from contextlib import closing

import pytest

from exporter.errors import EndpointError
from exporter.http.client.post import PostClient
from exporter.http.client.target import Target
from tests.support.certificates import CONFIGURATION, Keys
from tests.support.endpoint_probe import refused_port

DEADLINE = 1.0
CANARY = "c4n4ry-0123456789"
BODY = b"\x00\xff" * 20_000


class Receiver(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, tls=None):
        super().__init__(("127.0.0.1", 0), Handler)
        self.seen, self.connections, self.ending = [], 0, threading.Event()
        self.scheme = "https" if tls else "http"
        if tls:
            self.socket = tls.wrap_socket(self.socket, server_side=True)

    def url(self, path):
        return f"{self.scheme}://127.0.0.1:{self.server_address[1]}/{path}"

    def process_request(self, request, address):
        self.connections += 1
        super().process_request(request, address)

    def handle_error(self, request, address):
        pass


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.seen.append((self.path, dict(self.headers), body))
        getattr(self, self.path.strip("/").partition("?")[0])()

    def answer(self, status, body=b"", **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def good(self):
        self.answer(204, X_Prometheus_Remote_Write_Samples_Written="7")

    def talkative(self):
        self.answer(200, b"accepted")

    def redirect(self):
        self.answer(307, Location=self.server.url("good"))

    def busy(self):
        self.answer(429, b"later\n", Retry_After="30")

    def hang(self):
        self.server.ending.wait(30)

    def huge(self):
        self.send_response(200)
        self.send_header("Content-Length", str(1 << 40))
        self.end_headers()
        with contextlib.suppress(OSError):
            while not self.server.ending.is_set():
                self.wfile.write(bytes(65536))

    def drip(self):
        self.send_response(200)
        self.send_header("Content-Length", "1000")
        self.end_headers()
        with contextlib.suppress(OSError):
            while not self.server.ending.wait(0.02):
                self.wfile.write(b"x")

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def serving(tls=None):
    with Receiver(tls) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield server
        finally:
            server.ending.set()
            server.shutdown()
            thread.join()


@pytest.fixture
def receiver():
    with serving() as server:
        yield server


def client(url, *, headers=None, header_files=None, **target):
    wanted = Target(url=url, timeout=DEADLINE, accept="*/*", **target)
    return closing(PostClient(wanted, headers=headers or {}, header_files=header_files or {}))


def test_the_body_arrives_as_it_is_with_every_header(receiver, tmp_path):
    secret, token = tmp_path / "key", tmp_path / "token"
    secret.write_text(f"{CANARY}\n")
    token.write_text("t0ken\n")
    files = {"X-Api-Key": str(secret)}
    with client(
        receiver.url("good?tenant=1"), headers={"X-Scope-OrgID": "gpu"}, header_files=files,
        bearer_token_file=str(token),
    ) as posting:  # fmt: skip
        answer = posting.post(BODY, {"Content-Type": "application/x-protobuf"})
        posting.post(BODY, {})
    path, headers, body = receiver.seen[0]
    assert (path, body) == ("/good?tenant=1", BODY)
    assert headers["Content-Type"] == "application/x-protobuf"
    assert headers["X-Scope-OrgID"] == "gpu"
    assert headers["X-Api-Key"] == CANARY
    assert headers["Authorization"] == "Bearer t0ken"
    assert headers["User-Agent"].startswith("shardwatch/")
    assert (answer.status, answer.body) == (204, b"")
    assert answer.headers["x-prometheus-remote-write-samples-written"] == "7"
    assert receiver.connections == 1, "one connection is kept"


def test_a_short_answer_is_read_and_leaves_the_connection_open(receiver):
    with client(receiver.url("talkative")) as posting:
        assert [posting.post(BODY, {}).body for _ in range(3)] == [b"accepted"] * 3
    assert receiver.connections == 1


@pytest.mark.parametrize("path", ["huge", "drip"])
def test_an_answer_without_end_is_cut_and_its_status_counts(receiver, path):
    with client(receiver.url(path)) as posting:
        started = time.monotonic()
        answer = posting.post(BODY, {})
        assert (answer.status, answer.body) == (200, b"")
        assert time.monotonic() - started < 10 * DEADLINE, "the deadline ended it"
        posting.post(BODY, {})
    assert receiver.connections == 2, "what stands unread is no next answer"


def test_a_receiver_that_hangs_is_left_at_the_deadline(receiver):
    with client(receiver.url("hang")) as posting, pytest.raises(EndpointError) as caught:
        posting.post(BODY, {})
    assert caught.value.reason == "timeout"


def test_a_redirect_is_an_answer_and_nobody_else_gets_the_body(receiver):
    with client(receiver.url("redirect")) as posting:
        assert posting.post(BODY, {}).status == 307
    assert [path for path, _, _ in receiver.seen] == ["/redirect"]


def test_what_a_busy_receiver_asks_for_is_handed_on(receiver):
    with client(receiver.url("busy")) as posting:
        answer = posting.post(BODY, {})
    assert (answer.status, answer.headers["retry-after"]) == (429, "30")


def test_nobody_listening_is_said():
    with client(f"http://127.0.0.1:{refused_port()}/good") as posting, pytest.raises(EndpointError) as caught:
        posting.post(BODY, {})
    assert caught.value.reason == "refused"


@pytest.mark.parametrize("text", ["two\nlines", "", "caf\u00e9"])
def test_a_file_that_holds_no_header_is_named_and_not_shown(receiver, tmp_path, text, caplog):
    caplog.set_level(logging.DEBUG)
    file = tmp_path / "key"
    file.write_text(f"{CANARY}{text}" if text else "")
    with client(receiver.url("good"), header_files={"X-Api-Key": str(file)}) as posting:
        with pytest.raises(EndpointError) as caught:
            posting.post(BODY, {})
        assert caught.value.reason == "credentials"
        assert str(file) in str(caught.value)
        assert CANARY not in f"{caught.value!r} {posting!r} {caplog.text}"
    assert receiver.seen == []


def test_no_secret_is_in_a_failure(receiver, tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    file = tmp_path / "key"
    file.write_text(CANARY)
    url = receiver.url(f"hang?tenant={CANARY}")
    with client(url, header_files={"X-Api-Key": str(file)}, bearer_token_file=str(file)) as posting:
        with pytest.raises(EndpointError) as caught:
            posting.post(BODY, {})
        assert CANARY not in f"{caught.value} {caught.value!r} {posting!r} {caplog.text}"


def test_proxies_of_the_environment_are_ignored(receiver, monkeypatch):
    with serving() as proxy:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy.url("good"))
        with client(receiver.url("good")) as posting:
            assert posting.post(BODY, {}).status == 204
        assert proxy.seen == []


def test_a_client_certificate_and_a_stranger(tmp_path):
    if shutil.which("openssl") is None:
        pytest.skip("the openssl command makes the certificates and is not installed")
    keys = Keys(tmp_path)
    tmp_path.joinpath("conf").write_text(CONFIGURATION)
    tmp_path.joinpath("index").touch()
    keys.authority("ca")
    valid = ("20200101000000Z", "20480102030405Z")
    keys.certificate("good", "ca", "here", *valid)
    keys.certificate("client", "ca", "here", *valid)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(keys.path("good.pem"), keys.path("good.key"))
    context.load_verify_locations(keys.path("ca.pem"))
    context.verify_mode = ssl.CERT_REQUIRED
    own = {"cert_file": keys.path("client.pem"), "key_file": keys.path("client.key")}
    with serving(context) as receiver:
        with client(receiver.url("good"), ca_file=keys.path("ca.pem"), **own) as posting:
            assert posting.post(BODY, {}).status == 204
        with client(receiver.url("good"), **own) as posting, pytest.raises(EndpointError) as caught:
            posting.post(BODY, {})
    assert caught.value.reason == "tls_unknown_ca"
