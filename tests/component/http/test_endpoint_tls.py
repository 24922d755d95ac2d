from __future__ import annotations

import calendar
import os
import shutil
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from exporter.errors import EndpointError
from exporter.http.client.client import HttpClient, Target
from tests.support.certificates import CONFIGURATION, Keys
from tests.support.endpoint_probe import SLACK, D, failure, fetch
from tests.support.malicious_pages import PAGE
from tests.support.malicious_server import MaliciousServer
from tests.support.waiting import until

pytestmark = pytest.mark.usefixtures("either_client")

if shutil.which("openssl") is None and os.environ.get("CI") != "true":
    pytest.skip("the openssl command makes the certificates and is not installed", allow_module_level=True)

EXPIRES = float(calendar.timegm((2048, 1, 2, 3, 4, 5)))


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    made = Keys(tmp_path_factory.mktemp("keys"))
    made.folder.joinpath("conf").write_text(CONFIGURATION)
    made.folder.joinpath("index").touch()
    made.authority("ca")
    made.authority("stranger")
    valid = ("20200101000000Z", "20480102030405Z")
    made.certificate("good", "ca", "here", *valid)
    made.certificate("wrong-name", "ca", "elsewhere", *valid)
    made.certificate("expired", "ca", "here", "20200101000000Z", "20210101000000Z")
    made.certificate("not-yet", "ca", "here", "20470101000000Z", "20480101000000Z")
    made.certificate("of-a-stranger", "stranger", "here", *valid)
    made.certificate("client-one", "ca", "here", *valid)
    made.certificate("client-two", "ca", "here", *valid)
    made.openssl("ec", "-in", "good.key", "-aes128", "-passout", "pass:canary", "-out", "locked.key")
    return made


def server_context(keys: Keys, name: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(keys.path(f"{name}.pem"), keys.path(f"{name}.key"))
    return context


@pytest.fixture
def server(keys: Keys) -> Iterator[MaliciousServer]:
    with MaliciousServer(tls=server_context(keys, "good")) as running:
        yield running


class Raw:
    """A listener whose connections get ``first`` and then a zero byte now and then, or nothing at all."""

    def __init__(self, first: bytes, *, drip: bool) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._ending = threading.Event()
        self._first = first
        self._drip = drip
        self._thread = threading.Thread(target=self._serve)
        self.url = f"https://127.0.0.1:{self._listener.getsockname()[1]}/"

    def _serve(self) -> None:
        with suppress(OSError), self._listener.accept()[0] as conn:
            conn.sendall(self._first)
            while not self._ending.wait(0.03):
                if self._drip:
                    conn.sendall(b"\0")

    def __enter__(self) -> Raw:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join(10)
        self._listener.close()


def test_a_page_over_tls_says_when_the_certificate_ends(server: MaliciousServer, keys: Keys) -> None:
    page = fetch(server.url("good"), ca_file=keys.path("ca.pem"))
    assert page.body == PAGE
    assert page.certificate_expires == EXPIRES


def test_a_name_is_verified_as_well_as_an_address(server: MaliciousServer, keys: Keys) -> None:
    assert fetch(server.url("good", host="localhost"), ca_file=keys.path("ca.pem")).body == PAGE


@pytest.mark.parametrize("path", ["good", "good_chunked", "good_gzip", "redirect_same"])
def test_the_connection_is_kept_over_tls(server: MaliciousServer, keys: Keys, path: str) -> None:
    target = Target(url=server.url(path), timeout=5, ca_file=keys.path("ca.pem"))
    with closing(HttpClient(target)) as endpoint:
        pages = [endpoint.fetch() for _ in range(20)]
        assert {page.body for page in pages} == {PAGE}
        assert {page.certificate_expires for page in pages} == {EXPIRES}
        assert server.connections == 1


@pytest.mark.parametrize("path", ["once_a_connection", "dies_at_the_second", "resets_the_second"])
def test_e45_a_kept_tls_connection_that_died_is_replaced(server: MaliciousServer, keys: Keys, path: str) -> None:
    target = Target(url=server.url(path), timeout=5, ca_file=keys.path("ca.pem"))
    with closing(HttpClient(target)) as endpoint:
        for _ in range(4):
            assert endpoint.fetch().body == PAGE


@pytest.mark.parametrize(
    ("certificate", "reason"),
    [
        ("expired", "tls_expired"),
        ("wrong-name", "tls_name"),
        ("of-a-stranger", "tls_unknown_ca"),
        ("stranger", "tls_unknown_ca"),
        ("not-yet", "tls"),
    ],
)
def test_e41_each_bad_certificate_has_its_reason_and_nothing_is_sent(
    keys: Keys, tmp_path: Path, certificate: str, reason: str
) -> None:
    (tmp_path / "token").write_text("canary")
    settings: dict[str, Any] = {"ca_file": keys.path("ca.pem"), "bearer_token_file": str(tmp_path / "token")}
    with MaliciousServer(tls=server_context(keys, certificate)) as server:
        problem = failure(server.url("good"), **settings)
        assert problem.reason == reason
        assert str(problem).startswith(server.url("good"))
        assert server.requests == []
        assert fetch(server.url("good"), insecure_skip_verify=True).body == PAGE


def test_without_a_ca_file_the_systems_authorities_decide(server: MaliciousServer) -> None:
    assert failure(server.url("good")).reason == "tls_unknown_ca"


def test_server_name_decides_which_name_the_certificate_must_have(keys: Keys) -> None:
    with MaliciousServer(tls=server_context(keys, "wrong-name")) as server:
        ca = keys.path("ca.pem")
        assert fetch(server.url("good"), ca_file=ca, server_name="other.example").body == PAGE
        assert failure(server.url("good"), ca_file=ca, server_name="third.example").reason == "tls_name"
        assert failure(server.url("good", host="localhost"), ca_file=ca).reason == "tls_name"


def test_without_verification_no_end_of_the_certificate_is_claimed(server: MaliciousServer) -> None:
    assert fetch(server.url("good"), insecure_skip_verify=True).certificate_expires is None


def test_e41_versions_below_1_2_are_refused(keys: Keys) -> None:
    context = server_context(keys, "good")
    context.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="TLS"):
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    with MaliciousServer(tls=context) as server:
        assert failure(server.url("good"), insecure_skip_verify=True).reason == "tls"


def test_plain_http_behind_an_https_url_is_tls_and_never_downgraded() -> None:
    with MaliciousServer() as plain:
        assert failure(plain.url("good").replace("http:", "https:"), 0.3).reason == "timeout"
        assert plain.requests == []
    with Raw(b"HTTP/1.1 400 Bad Request\r\n\r\n", drip=False) as talkative:
        assert failure(talkative.url).reason == "tls"


def test_e41_whatever_is_slow_under_tls_ends_at_the_deadline(server: MaliciousServer, keys: Keys) -> None:
    record = b"\x16\x03\x03\x3f\xff\x02\x00\x3f\xfb"  # a handshake record of 16 KiB, to be filled byte by byte
    slow = ["silent", "drip_head", "drip_body", "drip_chunks"]

    def attempt(url: str) -> tuple[str, float]:
        started = time.monotonic()
        return failure(url, D, ca_file=keys.path("ca.pem")).reason, time.monotonic() - started

    with Raw(b"", drip=False) as mute, Raw(record, drip=True) as dripping:
        urls = [mute.url, dripping.url, *(server.url(path) for path in slow)]
        with ThreadPoolExecutor(len(urls)) as pool:
            outcomes = list(pool.map(attempt, urls))
    assert [reason for reason, _ in outcomes] == ["timeout"] * len(urls)
    assert all(D <= seconds < D + SLACK for _, seconds in outcomes), outcomes


def test_a_mute_handshake_is_named_in_the_message() -> None:
    with Raw(b"", drip=False) as mute:
        assert "shaking hands over TLS" in str(failure(mute.url, 1.0))


def test_a_page_that_ends_without_tls_saying_so_is_refused(server: MaliciousServer, keys: Keys) -> None:
    """Without a length, only the announced end of TLS tells a whole page from one that somebody cut."""
    problem = failure(server.url("good_until_close"), ca_file=keys.path("ca.pem"))
    assert problem.reason == "closed"


@pytest.mark.parametrize(
    ("path", "reasons"),
    [
        ("reset_in_body", ("reset", "closed")),  # which of them is the TLS library's choice
        ("length_short", ("closed",)),
        ("no_answer", ("closed",)),
        ("status_500", ("http_500",)),
    ],
)
def test_a_broken_answer_over_tls_is_refused(
    server: MaliciousServer, keys: Keys, path: str, reasons: tuple[str, ...]
) -> None:
    assert failure(server.url(path), ca_file=keys.path("ca.pem")).reason in reasons


def mutual(keys: Keys) -> ssl.SSLContext:
    context = server_context(keys, "good")
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(keys.path("ca.pem"))
    return context


def test_e42_a_rotated_client_certificate_is_used_at_the_next_poll(keys: Keys, tmp_path: Path) -> None:
    subjects: list[object] = []

    class Watching(MaliciousServer):
        def _one(self, peer: object) -> bool:
            subjects.append(peer.conn.getpeercert()["subject"][0][0][1])  # type: ignore[attr-defined]
            return super()._one(peer)  # type: ignore[arg-type]

    def install(name: str) -> None:
        for kind in ("pem", "key"):
            shutil.copy(keys.path(f"{name}.{kind}"), tmp_path / f"new.{kind}")
            (tmp_path / f"new.{kind}").replace(tmp_path / f"client.{kind}")

    install("client-one")
    with Watching(tls=mutual(keys)) as server:
        target = Target(
            url=server.url("good"),
            timeout=5,
            ca_file=keys.path("ca.pem"),
            cert_file=str(tmp_path / "client.pem"),
            key_file=str(tmp_path / "client.key"),
        )
        with closing(HttpClient(target)) as endpoint:
            assert [endpoint.fetch().body for _ in range(3)] == [PAGE] * 3
            assert server.connections == 1
            install("client-two")
            assert [endpoint.fetch().body for _ in range(3)] == [PAGE] * 3
            assert server.connections == 2
            assert set(subjects) == {"client-one", "client-two"}
            (tmp_path / "client.key").write_text("")
            for _ in range(2):
                with pytest.raises(EndpointError) as caught:
                    endpoint.fetch()
                assert caught.value.reason == "credentials"
            install("client-one")
            assert endpoint.fetch().body == PAGE


def test_a_server_that_requires_a_client_certificate_gives_no_page_without(keys: Keys) -> None:
    with MaliciousServer(tls=mutual(keys)) as server:
        problem = failure(server.url("good"), ca_file=keys.path("ca.pem"))
        assert problem.reason in ("tls", "closed", "reset")  # with TLS 1.3 the refusal comes after the handshake
        assert server.requests == []


@pytest.mark.parametrize(
    "settings",
    [
        {"cert_file": "missing.pem", "key_file": "good.key"},
        {"cert_file": "good.pem", "key_file": "missing.key"},
        {"cert_file": "good.pem", "key_file": "expired.key"},
        {"cert_file": "good.pem", "key_file": "locked.key"},
        {"cert_file": "conf", "key_file": "good.key"},
        {"cert_file": "good.pem"},
        {"key_file": "good.key"},
        {"ca_file": "missing.pem"},
        {"ca_file": "conf"},
        {"ca_file": "index"},
        {"ca_file": "."},
    ],
    ids=lambda settings: " ".join(settings.values()),
)
def test_e42_pem_files_that_cannot_be_used_are_credentials(
    server: MaliciousServer, keys: Keys, settings: dict[str, str]
) -> None:
    paths: dict[str, Any] = {name: keys.path(file) for name, file in settings.items()}
    paths.setdefault("ca_file", keys.path("ca.pem"))
    problem = failure(server.url("good"), **paths)
    assert problem.reason == "credentials"
    assert "canary" not in str(problem)
    assert server.connections == 0


def test_closing_ends_an_exchange_over_tls(server: MaliciousServer, keys: Keys) -> None:
    endpoint = HttpClient(Target(url=server.url("drip_body"), timeout=20, ca_file=keys.path("ca.pem")))
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(endpoint.fetch)
        until(lambda: server.heads("drip_body"))
        endpoint.close()
        problem = running.exception(15)
    assert isinstance(problem, EndpointError)
    assert problem.reason in ("closed", "content_length", "reset")
