from __future__ import annotations

import logging
import os
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext
from pathlib import Path

import pytest

from exporter.errors import EndpointError
from exporter.http.client.client import HttpClient, Target
from tests.support.endpoint_probe import REFUSED, failure, fetch, refused_port
from tests.support.malicious_pages import PAGE
from tests.support.malicious_server import MaliciousServer, Peer, fault, head
from tests.support.tools import without_root

pytestmark = pytest.mark.usefixtures("either_client")


@pytest.fixture
def server() -> Iterator[MaliciousServer]:
    with MaliciousServer() as running:
        yield running


def test_e40_proxies_and_netrc_of_the_environment_are_ignored(
    server: MaliciousServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    netrc = tmp_path / ".netrc"
    netrc.write_text("default login canary password canary\n")
    netrc.chmod(0o600)
    with MaliciousServer() as proxy:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy", "HTTPS_PROXY"):
            monkeypatch.setenv(name, proxy.url(""))
        monkeypatch.setenv("NO_PROXY", "")
        monkeypatch.setenv("NETRC", str(netrc))
        monkeypatch.setenv("HOME", str(tmp_path))
        assert fetch(server.url("good")).body == PAGE
        assert proxy.connections == 0
    assert b"Authorization" not in server.heads("good")[0]


def test_e42_a_rotated_token_is_used_at_the_next_poll(server: MaliciousServer, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("one\n")
    target = Target(url=server.url("good"), timeout=5, bearer_token_file=str(token))
    with closing(HttpClient(target)) as endpoint:
        endpoint.fetch()
        endpoint.fetch()
        token.write_text("two\n")  # same length, same inode
        os.utime(token, ns=(1, 1))
        endpoint.fetch()
        (tmp_path / "next").write_text("three")
        (tmp_path / "next").replace(token)
        endpoint.fetch()
        (tmp_path / "next").write_text("seven")  # same length, same time
        os.utime(tmp_path / "next", ns=(token.stat().st_atime_ns, token.stat().st_mtime_ns))
        (tmp_path / "next").replace(token)
        endpoint.fetch()
        assert server.connections == 1
    sent = [head.partition(b"Authorization: ")[2].split(b"\r\n")[0] for head in server.heads("good")]
    assert sent == [b"Bearer one", b"Bearer one", b"Bearer two", b"Bearer three", b"Bearer seven"]


def test_basic_authorization_is_sent_as_the_standard_says(server: MaliciousServer, tmp_path: Path) -> None:
    (tmp_path / "password").write_text("open sesame\n")
    fetch(server.url("good"), username="Aladdin", password_file=str(tmp_path / "password"))
    assert b"\r\nAuthorization: Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==\r\n" in server.heads("good")[0]


def spoil_missing(path: Path) -> None:
    path.unlink()


def spoil_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def spoil_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


SPOILED: dict[str, Callable[[Path], object]] = {
    "missing": spoil_missing,
    "directory": spoil_directory,
    "named pipe": spoil_pipe,
    "empty": lambda path: path.write_text(" \n"),
    "too long": lambda path: path.write_text("x" * 20_000),
    "not text": lambda path: path.write_bytes(b"\xff\xfe"),
    "two lines": lambda path: path.write_text("canary\r\nX-Injected: canary"),
    "forbidden": lambda path: path.chmod(0),
}


@pytest.mark.parametrize("how", sorted(SPOILED))
def test_e42_a_token_that_cannot_be_used_is_credentials_until_it_can(
    server: MaliciousServer, tmp_path: Path, how: str
) -> None:
    token = tmp_path / "token"
    token.write_text("abc")
    target = Target(url=server.url("good"), timeout=5, bearer_token_file=str(token))
    with closing(HttpClient(target)) as endpoint:
        endpoint.fetch()
        SPOILED[how](token)
        for _ in range(2):
            with without_root() if how == "forbidden" else nullcontext(), pytest.raises(EndpointError) as caught:
                endpoint.fetch()
            assert caught.value.reason == "credentials"
            assert str(token) in str(caught.value)
            assert "canary" not in str(caught.value)
        assert len(server.heads("good")) == 1
        if token.is_dir():
            token.rmdir()
        else:
            token.unlink(missing_ok=True)
        token.write_text("def")
        assert endpoint.fetch().body == PAGE
        assert b"Bearer def" in server.heads("good")[1]


def test_a_username_without_a_password_file_is_credentials(server: MaliciousServer) -> None:
    assert failure(server.url("good"), username="me").reason == "credentials"
    assert server.connections == 0


@fault
def echo_and_malform(peer: Peer) -> None:
    """Set back all that was sent, in every place where a library might quote it."""
    sent = peer.request.replace(b"\r\n", b" ")
    peer.raw(b"HTTP/1.1 200 OK\r\n" + sent + b"\r\n" + b"Location: " + sent + b"\r\n\r\n" + sent)


@fault
def echo_as_status(peer: Peer) -> None:
    peer.raw(peer.request)


@fault
def echo_as_redirect(peer: Peer) -> None:
    peer.redirect("http://127.0.0.2:1/?" + peer.path)


@fault
def echo_as_chunk(peer: Peer) -> None:
    peer.raw(head(b"Transfer-Encoding: chunked"), peer.request)


def test_secrets_appear_in_no_message_repr_traceback_or_log(
    server: MaliciousServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    server.state["other"] = refused_port()
    for name in ("token", "password"):
        (tmp_path / name).write_text("canary")
    echoes = ["echo_and_malform", "echo_as_status", "echo_as_redirect", "echo_as_chunk"]
    urls = [server.url(f"{path}?token=canary") for path in [*REFUSED, *echoes]]
    urls += [
        server.url("silent?token=canary"),
        f"http://user:canary@127.0.0.1:{server.port}/",
        f"http://canary@127.0.0.1:{server.port}/",
        f"http://user:1/canary@127.0.0.1:{server.port}/",
        f"http://user:can/canary@127.0.0.1:{server.port}/",
        "http://[canary/",
        "http://x:canary/",
        "canary",
        f"http://127.0.0.1:{refused_port()}/?token=canary",
    ]
    secrets = {"bearer_token_file": str(tmp_path / "token")}
    basic = {"username": "me", "password_file": str(tmp_path / "password")}
    texts = []
    for url in urls:
        for settings in (secrets, basic):
            target = Target(url=url, timeout=0.3, **settings)  # type: ignore[arg-type]
            with closing(HttpClient(target)) as endpoint:
                with pytest.raises(EndpointError) as caught:
                    endpoint.fetch()
                assert (caught.value.__cause__, caught.value.__context__) == (None, None)
                texts += [repr(caught.value), *traceback.format_exception(caught.value)]
                texts += [repr(endpoint), repr(target), str(target), repr(endpoint.__dict__)]
    everything = "\n".join(texts) + caplog.text
    assert "canary" not in everything
    assert "Y2FuYXJ5" not in everything  # as base64
    assert any(b"canary" in head for _, head in server.requests)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "metrics",
        "ftp://127.0.0.1/",
        "file:///etc/passwd",
        "unix:///run/x.sock",
        "http://",
        "http:///metrics",
        "http://127.0.0.1:0/",
        "http://127.0.0.1:65536/",
        "http://127.0.0.1:port/",
        "http://[::1/",
        "http://127.0.0.1/a b",
        "http://127.0.0.1/\r\nX-Injected: 1",
        "http://127.0.0.1/\x00",
        "http://exämple/",
        "http://user:pw@127.0.0.1/",
        "http://user@127.0.0.1/",
        "http://@127.0.0.1/",
    ],
)
def test_a_url_that_cannot_be_used_is_refused_before_anything_is_opened(url: str) -> None:
    problem = failure(url)
    assert problem.reason == "url"
    assert "pw" not in str(problem)


@pytest.mark.parametrize("path", ["", "good", "http://127.0.0.2/", "/a b", "/a\r\nX-Injected: 1", "/ä", "/a#b"])
def test_a_path_that_cannot_be_asked_for_is_refused(server: MaliciousServer, path: str) -> None:
    with closing(HttpClient(Target(url=server.url("good"), timeout=5))) as endpoint:
        with pytest.raises(EndpointError) as caught:
            endpoint.fetch(path)
        assert caught.value.reason == "url"
    assert server.connections == 0
