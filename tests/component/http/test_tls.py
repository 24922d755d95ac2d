"""TLS and client certificates of the metrics endpoint over real sockets."""

from __future__ import annotations

import contextlib
import socket
import ssl
import subprocess
import threading

import pytest

from exporter.http.server.listener import Response
from tests.support.raw_http import GET_CLOSE, PAGE, to_the_end
from tests.support.waiting import until
from tests.support.web_config import (
    REFUSED,
    ask,
    client_context,
    connection_to,
    fetch,
    make_keys,
    mutual,
    protected,
    tls,
)


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    return make_keys(tmp_path_factory.mktemp("keys"))


def test_a_page_larger_than_a_record_arrives_whole_over_tls_on_a_kept_connection(keys, tmp_path):
    with protected(tls(keys), tmp_path) as server:
        with connection_to(server, client_context(keys)) as connection:
            for _ in range(3):
                response = ask(connection)
                assert (response.status, response.body) == (200, PAGE)
        assert server.accepted == 1 and server.errors == 0


def test_a_slow_reader_gets_a_large_page_whole_over_tls(keys, tmp_path):
    large = bytes(range(256)) * 40_000

    def handler(request):
        return Response(status=200, content_type="text/plain", body=large)

    with protected(tls(keys), tmp_path, handler) as server:
        assert fetch(server, client_context(keys)).body == large


def test_requests_in_one_record_are_all_answered(keys, tmp_path):
    with protected(tls(keys), tmp_path, header_bytes=512, body_bytes=0) as server:
        with client_context(keys).wrap_socket(
            socket.create_connection(server.address), server_hostname="localhost"
        ) as s:
            s.settimeout(10)
            get = b"GET /metrics HTTP/1.1\r\nHost: x\r\nX-Fill: " + b"x" * 300 + b"\r\n\r\n"
            s.sendall(get * 10 + get.replace(b"Host: x", b"Host: x\r\nConnection: close"))
            assert to_the_end(s, strict=True).count(b"HTTP/1.1 200 OK") == 11


def test_plain_http_on_a_tls_port_is_answered_with_what_to_write(keys, tmp_path):
    with protected(tls(keys), tmp_path) as server:
        response = fetch(server)
        assert response.status == 400 and b"https://" in response.body


def test_500_mute_tls_clients_keep_no_scrape_out(keys, tmp_path):
    threads = threading.active_count()
    with (
        protected(tls(keys), tmp_path, header_seconds=60.0, backlog=1024) as server,
        contextlib.ExitStack() as stack,
    ):
        serving_threads = threading.active_count()
        for number in range(500):
            sock = stack.enter_context(socket.create_connection(server.address))
            sock.sendall(b"\x16\x03\x01"[: number % 4])
        until(lambda: server.accepted == 500)
        for _ in range(5):
            assert fetch(server, client_context(keys)).body == PAGE
        assert threading.active_count() == serving_threads <= threads + 2
        assert len(server._connections) <= 64 and server.errors == 0


@pytest.mark.parametrize("begun", [0, 3, 200, "shaken"])
def test_a_client_that_falls_silent_is_cut_off_wherever_it_stops(begun, keys, tmp_path):
    with protected(tls(keys), tmp_path, header_seconds=0.5) as server, contextlib.ExitStack() as stack:
        sock = stack.enter_context(socket.create_connection(server.address, timeout=60))
        if begun == "shaken":
            sock = stack.enter_context(client_context(keys).wrap_socket(sock, server_hostname="localhost"))
        else:
            sock.sendall(client_hello()[:begun])
        assert to_the_end(sock) == b""
        until(lambda: server.timed_out == 1 and not server._connections)
        assert server.errors == 0


def client_hello(name="localhost"):
    outgoing = ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=name).do_handshake()
    return outgoing.read()


def test_a_handshake_in_single_bytes_is_completed(keys, tmp_path):
    with (
        protected(tls(keys), tmp_path, header_seconds=60.0) as server,
        socket.create_connection(server.address) as sock,
    ):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.settimeout(60)
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = client_context(keys).wrap_bio(incoming, outgoing, server_hostname="localhost")
        shaken = False
        while not shaken:
            try:
                client.do_handshake()
                shaken = True
            except ssl.SSLWantReadError:
                pass
            for byte in outgoing.read():
                sock.sendall(bytes([byte]))
            if not shaken:
                incoming.write(sock.recv(65536))
        client.write(GET_CLOSE)
        sock.sendall(outgoing.read())
        incoming.write(to_the_end(sock))
        assert client.read(65536).startswith(b"HTTP/1.1 200 OK")


NOISE = {
    "another protocol": b"SSH-2.0-client\r\n",
    "zeros": b"\0" * 4096,
    "a record that is too large": b"\x16\x03\x01\xff\xff" + b"\x01" * 70_000,
    "an alert": b"\x15\x03\x03\x00\x02\x02\x28",
    "data before the handshake": b"\x17\x03\x03\x00\x10" + b"x" * 16,
    "a server name of nonsense": client_hello("a" * 60).replace(b"a" * 60, bytes(range(1, 61))),
    "a server name with zeros": client_hello("a" * 60).replace(b"a" * 60, b"\0" * 60),
    "a hello cut short": client_hello()[:100],
}


@pytest.mark.parametrize("noise", NOISE)
def test_noise_instead_of_a_handshake_ends_its_connection_only(noise, keys, tmp_path):
    with protected(tls(keys), tmp_path) as server:
        with socket.create_connection(server.address, timeout=60) as sock:
            with contextlib.suppress(OSError):  # the server may have reset the connection: ENOTCONN from shutdown
                sock.sendall(NOISE[noise])
                sock.shutdown(socket.SHUT_WR)
            to_the_end(sock)
        until(lambda: not server._connections)
        assert fetch(server, client_context(keys)).status == 200
        assert server.errors == 0 and server.alive


def test_a_huge_chain_of_client_certificates_is_refused(keys, tmp_path):
    chain = tmp_path / "chain.pem"
    text = (keys.folder / "client.pem").read_text()
    chain.write_text(text + (keys.folder / "of-foreign.pem").read_text() * 400)
    context = client_context(keys)
    context.load_cert_chain(chain, keys.path("client.key"))
    with protected(mutual(keys), tmp_path) as server:
        with pytest.raises(REFUSED):
            fetch(server, context)
        until(lambda: server.access.handshake_failures == 1)
        assert fetch(server, client_context(keys, "client")).status == 200 and server.errors == 0


def test_ambiguous_lengths_are_refused_over_tls_as_well(keys, tmp_path):
    smuggled = (
        b"POST /-/reload HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    )
    with protected(tls(keys), tmp_path) as server:
        raw = socket.create_connection(server.address, timeout=60)
        with client_context(keys).wrap_socket(raw, server_hostname="localhost") as sock:
            sock.sendall(smuggled + GET_CLOSE)
            answer = to_the_end(sock)
        assert answer.startswith(b"HTTP/1.1 4") and answer.count(b"HTTP/1.1") == 1


def test_only_certificates_of_the_authority_are_admitted(keys, tmp_path):
    with protected(mutual(keys), tmp_path) as server:
        assert fetch(server, client_context(keys, "client")).status == 200
        for name in (None, "of-foreign"):
            with pytest.raises(REFUSED):
                fetch(server, client_context(keys, name))
        assert server.errors == 0


@pytest.mark.parametrize(
    ("client_auth_type", "admitted"),
    [
        ("NoClientCert", {None, "client", "of-foreign", "expired"}),
        ("RequestClientCert", {None, "client", "of-foreign", "expired"}),
        ("VerifyClientCertIfGiven", {None, "client"}),
        ("RequireAndVerifyClientCert", {"client"}),
    ],
)
def test_each_type_of_client_authentication_admits_whom_it_says(client_auth_type, admitted, keys, tmp_path):
    verifies = "Verify" in client_auth_type
    more = f"  client_auth_type: {client_auth_type}\n" + f"  client_ca_file: {keys.path('ca.pem')}\n" * verifies
    with protected(tls(keys, more=more), tmp_path) as server:
        for name in (None, "client", "of-foreign", "expired"):
            if name in admitted:
                assert fetch(server, client_context(keys, name)).status == 200
            else:
                with pytest.raises(REFUSED):
                    fetch(server, client_context(keys, name))
        until(lambda: server.access.handshake_failures == 4 - len(admitted))
        assert server.errors == 0


@pytest.mark.parametrize(
    ("client", "name", "admitted"),
    [
        ("client", "localhost", True),
        ("client", "127.0.0.1", True),
        ("client", "other.example", False),
        ("every", "other.example", True),
        ("every", "2001:db8::1", True),
        ("every", "spiffe://example/prometheus", True),
        ("every", "ops@example", True),
        ("every", "every", False),  # its common name is no subject alternative name
    ],
)
def test_only_certificates_with_an_allowed_name_are_admitted(client, name, admitted, keys, tmp_path):
    with protected(mutual(keys, f'  client_allowed_sans: [none.example, "{name}"]\n'), tmp_path) as server:
        if admitted:
            assert fetch(server, client_context(keys, client)).status == 200
        else:
            with pytest.raises(REFUSED):
                fetch(server, client_context(keys, client))
            until(lambda: server.access.handshake_failures == 1)


def test_failed_handshakes_are_logged_once_a_minute(keys, tmp_path, caplog):
    with protected(mutual(keys), tmp_path) as server:
        for _ in range(5):
            with pytest.raises(REFUSED):
                fetch(server, client_context(keys))
        until(lambda: server.access.handshake_failures == 5)
        lines = [record.getMessage() for record in caplog.records if "tls_handshake_failed" in record.getMessage()]
        assert len(lines) == 1 and "client=127.0.0.1" in lines[0] and "certificate" in lines[0]


@pytest.mark.parametrize(
    ("more", "options", "accepted"),
    [
        ("", ("-tls1_2",), True),
        ("", ("-tls1_3",), True),
        ("", ("-tls1", "-cipher", "ALL:@SECLEVEL=0"), False),
        ("", ("-tls1_1", "-cipher", "ALL:@SECLEVEL=0"), False),
        ("", ("-tls1_2", "-cipher", "AES128-SHA:@SECLEVEL=0"), False),
        ("", ("-tls1_2", "-cipher", "NULL:@SECLEVEL=0"), False),
        ("", ("-tls1_2", "-cipher", "aNULL:@SECLEVEL=0"), False),
        ("  min_version: TLS13\n", ("-tls1_2",), False),
        ("  max_version: TLS12\n", ("-tls1_3",), False),
        ("  max_version: TLS12\n", ("-tls1_2",), True),
        (
            "  cipher_suites: [TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384]\n",
            ("-tls1_2", "-cipher", "ECDHE-ECDSA-AES256-GCM-SHA384"),
            True,
        ),
        (
            "  cipher_suites: [TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384]\n",
            ("-tls1_2", "-cipher", "ECDHE-ECDSA-AES128-GCM-SHA256"),
            False,
        ),
        ("  curve_preferences: [CurveP384]\n", ("-groups", "P-384"), True),
        ("  curve_preferences: [CurveP384]\n", ("-groups", "X25519"), False),
    ],
)
def test_openssl_agrees_on_versions_ciphers_and_curves(more, options, accepted, keys, tmp_path):
    with protected(tls(keys, more=more), tmp_path) as server:
        done = subprocess.run(
            ["openssl", "s_client", "-connect", "{}:{}".format(*server.address), "-verify_return_error"]
            + ["-CAfile", keys.path("ca.pem"), *options],
            input="",
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        assert (done.returncode == 0) == accepted, done.stderr


def test_renegotiation_is_refused(keys, tmp_path):
    with protected(tls(keys), tmp_path) as server:
        done = subprocess.run(
            ["openssl", "s_client", "-connect", "{}:{}".format(*server.address), "-tls1_2"],
            input="R\nR\n",
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        assert "no renegotiation" in done.stderr
        assert fetch(server, client_context(keys)).status == 200
