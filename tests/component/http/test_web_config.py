"""TLS, client certificates and users of the metrics endpoint over real sockets, and node_exporter beside ours."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import os
import shutil
import socket
import ssl
import subprocess
import threading
import time
from urllib.request import urlopen

import bcrypt
import pytest

from exporter.cli.main import main
from exporter.errors import SettingsError
from exporter.http.server import basic_auth
from exporter.http.server.basic_auth import MAX_WAITING_OF_PEER, Authenticator
from exporter.http.server.listener import DeferredResponse, HttpServer, Request, Response, ServerLimits
from exporter.http.server.web_config import WebConfigFile, read_access
from tests.component.http.test_endpoint_tls import CONFIGURATION, Keys
from tests.support.raw_http import PAGE, page, serving, to_the_end
from tests.support.waiting import until

PROMETHEUS = shutil.which("prometheus")
NODE_EXPORTER = shutil.which("prometheus-node-exporter")
HASH = bcrypt.hashpw(b"right", bcrypt.gensalt(4)).decode()
USERS = f"basic_auth_users:\n  prometheus: {HASH}\n"


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    made = Keys(tmp_path_factory.mktemp("keys"))
    made.folder.joinpath("conf").write_text(CONFIGURATION)
    made.folder.joinpath("index").touch()
    made.authority("ca")
    made.authority("foreign")
    valid = ("20200101000000Z", "20480102030405Z")
    for name in ("server", "renewed", "client"):
        made.certificate(name, "ca", "here", *valid)
    made.certificate("of-foreign", "foreign", "here", *valid)
    return made


def tls(keys, name="server", more=""):
    return f"tls_server_config:\n  cert_file: {keys.path(name)}.pem\n  key_file: {keys.path(name)}.key\n{more}"


def mutual(keys, more=""):
    return tls(
        keys,
        more=f"  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: {keys.path('ca.pem')}\n{more}",
    )


def up(request):
    return Response(status=200, content_type="text/plain", body=b"a 1\n")


@contextlib.contextmanager
def protected(text, tmp_path, handler=page, **limits):
    path = tmp_path / "web.yml"
    path.write_text(text)
    config = WebConfigFile(str(path), interval=0.02)
    server = HttpServer("127.0.0.1", 0, handler, ServerLimits(**limits), access=config.current)
    config.start()
    server.start()
    try:
        yield server
    finally:
        server.stop()
        config.stop()


def client_context(keys, name=None):
    context = ssl.create_default_context(cafile=keys.path("ca.pem"))
    if name:
        context.load_cert_chain(keys.path(f"{name}.pem"), keys.path(f"{name}.key"))
    return context


def connection_to(server, context=None):
    host, port = server.address
    if context is None:
        return contextlib.closing(http.client.HTTPConnection(host, port, timeout=10))
    return contextlib.closing(http.client.HTTPSConnection(host, port, timeout=10, context=context))


def fetch(server, context=None, user=None):
    with connection_to(server, context) as connection:
        return ask(connection, user)


def ask(connection, user=None):
    """Return the response of one GET, its body read."""
    headers = {"Authorization": "Basic " + base64.b64encode(user.encode()).decode()} if user else {}
    connection.request("GET", "/metrics", headers=headers)
    response = connection.getresponse()
    response.body = response.read()
    return response


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


@pytest.mark.parametrize("text", ["", "x"])
def test_mute_tls_clients_keep_no_scrape_out_and_are_cut_off(text, keys, tmp_path):
    with (
        protected(tls(keys), tmp_path, header_seconds=1.0, connections=16) as server,
        contextlib.ExitStack() as stack,
    ):
        mute = [stack.enter_context(socket.create_connection(server.address)) for _ in range(40)]
        for sock in mute:
            sock.sendall(b"\x16\x03\x01"[: 3 * len(text)])
        began = time.monotonic()
        assert fetch(server, client_context(keys)).status == 200
        assert time.monotonic() - began < 1.0
        until(lambda: not server._connections)
        assert server.timed_out > 0 and server.errors == 0


def test_only_certificates_of_the_authority_are_admitted(keys, tmp_path):
    with protected(mutual(keys), tmp_path) as server:
        assert fetch(server, client_context(keys, "client")).status == 200
        for name in (None, "of-foreign"):
            with pytest.raises((ssl.SSLError, ConnectionError, http.client.RemoteDisconnected)):
                fetch(server, client_context(keys, name))
        assert server.errors == 0


def test_a_certificate_is_optional_but_verified_where_it_is_given(keys, tmp_path):
    with protected(
        mutual(keys).replace("RequireAndVerify", "Verify").replace("Cert\n", "CertIfGiven\n"), tmp_path
    ) as server:
        assert fetch(server, client_context(keys)).status == 200
        assert fetch(server, client_context(keys, "client")).status == 200
        with pytest.raises((ssl.SSLError, ConnectionError, http.client.RemoteDisconnected)):
            fetch(server, client_context(keys, "of-foreign"))


@pytest.mark.parametrize(("name", "admitted"), [("localhost", True), ("127.0.0.1", True), ("other.example", False)])
def test_only_certificates_with_an_allowed_name_are_admitted(name, admitted, keys, tmp_path):
    with protected(mutual(keys, f'  client_allowed_sans: ["{name}"]\n'), tmp_path) as server:
        if admitted:
            assert fetch(server, client_context(keys, "client")).status == 200
        else:
            with pytest.raises((ssl.SSLError, ConnectionError, http.client.RemoteDisconnected)):
                fetch(server, client_context(keys, "client"))


@pytest.mark.parametrize(
    ("more", "options", "accepted"),
    [
        ("", ("-tls1_2",), True),
        ("", ("-tls1_3",), True),
        ("", ("-tls1_1", "-cipher", "ALL:@SECLEVEL=0"), False),
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


def test_only_users_with_their_password_are_answered_and_every_response_has_the_headers(tmp_path):
    headers = "http_server_config:\n  headers:\n    X-Frame-Options: deny\n"
    with protected(USERS + headers, tmp_path) as server:
        response = fetch(server, user="prometheus:right")
        assert (response.status, response.body, response.headers["X-Frame-Options"]) == (200, PAGE, "deny")
        for wrong in (None, "prometheus:wrong", "nobody:right", ":right", "prometheus:", "prometheus"):
            response = fetch(server, user=wrong)
            assert (response.status, response.headers["WWW-Authenticate"]) == (401, "Basic"), wrong
            assert response.headers["X-Frame-Options"] == "deny"
        assert server.errors == 0


def test_passwords_beyond_what_bcrypt_reads_are_cut_as_others_cut_them(tmp_path):
    hashed = bcrypt.hashpw(b"x" * 72, bcrypt.gensalt(4)).decode()
    with protected(f"basic_auth_users:\n  a: {hashed}\n", tmp_path) as server:
        assert fetch(server, user="a:" + "x" * 80).status == 200
        assert fetch(server, user="a:" + "x" * 71).status == 401


class SlowCheck:
    """Stands in for bcrypt: a check ends when it is released, and is right for the password ``right``."""

    def __init__(self):
        self.running = self.most = self.calls = 0
        self.release = threading.Event()

    def __call__(self, password, hashed):
        self.calls += 1
        self.running += 1
        self.most = max(self.most, self.running)
        self.release.wait(10)
        self.running -= 1
        return password == b"right"


def request(user):
    return Request(
        method="GET",
        path="/metrics",
        query="",
        headers={"authorization": "Basic " + base64.b64encode(user.encode()).decode()},
    )


def test_guessing_costs_a_verified_client_nothing(tmp_path, monkeypatch):
    check = SlowCheck()
    check.release.set()
    monkeypatch.setattr(basic_auth, "_check", check)
    with protected(USERS, tmp_path, connections=8) as server:
        assert fetch(server, user="prometheus:right").status == 200
        check.release.clear()
        statuses = []
        guesses = [
            threading.Thread(target=lambda n=n: statuses.append(fetch(server, user=f"prometheus:{n}").status))
            for n in range(7)
        ]
        for guess in guesses:
            guess.start()
        until(lambda: 429 in statuses)
        assert fetch(server, user="prometheus:right").status == 200  # while no guess is decided
        check.release.set()
        for guess in guesses:
            guess.join(10)
        assert set(statuses) == {401, 429} and check.most == 1


def test_addresses_take_turns_and_each_has_few_places():
    check = SlowCheck()
    authenticator = Authenticator(check)
    users = {"prometheus": HASH}
    answered = []

    def ask(user, peer):
        found = authenticator.authenticate(request(user), peer, users, lambda: page(request(user)))
        if isinstance(found, DeferredResponse):
            found.add_done_callback(lambda: answered.append((peer, user)))
        return found

    first = ask("prometheus:0", "a")
    until(lambda: check.running == 1)
    found = [ask(f"prometheus:{n}", "a") for n in range(1, 2 + MAX_WAITING_OF_PEER)]
    assert isinstance(first, DeferredResponse) and found[-1].status == 429
    ask("prometheus:right", "b")
    check.release.set()
    until(lambda: len(answered) == 2 + MAX_WAITING_OF_PEER)
    assert [peer for peer, _ in answered].index("b") <= 2


def test_a_verified_pair_is_removed_with_its_hash():
    check = SlowCheck()
    check.release.set()
    authenticator = Authenticator(check)
    for hashed, calls in ((HASH, 1), (HASH, 1), (HASH.replace("$04", "$05"), 2)):
        found = authenticator.authenticate(request("prometheus:right"), "a", {"prometheus": hashed}, lambda: None)
        if found is not None:
            until(lambda found=found: found.resume is not None)
        assert check.calls == calls


def test_a_name_and_a_password_do_not_run_into_each_other():
    authenticator = Authenticator()
    pairs = [("ab", "c", b"d"), ("a", "bc", b"d"), ("a", "b", b"cd"), ("", "abcd", b"")]
    assert len({authenticator._digest(*pair) for pair in pairs}) == len(pairs)


def test_a_new_certificate_is_used_without_a_scrape_that_fails(keys, tmp_path):
    context = client_context(keys)
    with protected(tls(keys), tmp_path) as server, connection_to(server, context) as kept:
        assert ask(kept).status == 200
        (tmp_path / "web.yml").write_text(tls(keys, "renewed"))

        def subject():
            with context.wrap_socket(socket.create_connection(server.address), server_hostname="localhost") as sock:
                return dict(part for parts in sock.getpeercert()["subject"] for part in parts)["commonName"]

        until(lambda: subject() == "renewed")
        response = ask(kept)
        assert response.status == 200 and response.headers["Connection"] == "close"
        assert server.errors == 0


def test_users_are_added_and_removed_without_a_restart_and_a_bad_file_changes_nothing(tmp_path, caplog):
    with protected(USERS, tmp_path) as server:
        web = tmp_path / "web.yml"
        web.write_text("basic_auth_users:\n  prometheus: none\n")
        until(lambda: "web_config_refused" in caplog.text)
        assert fetch(server, user="prometheus:right").status == 200
        assert fetch(server).status == 401
        web.write_text(f"basic_auth_users:\n  other: {HASH}\n")
        until(lambda: fetch(server, user="other:right").status == 200)
        assert fetch(server, user="prometheus:right").status == 401


def test_a_key_that_does_not_belong_to_the_certificate_is_refused_with_its_line(keys, tmp_path):
    path = tmp_path / "web.yml"
    path.write_text(tls(keys).replace("server.key", "client.key"))
    with pytest.raises(
        SettingsError, match=r"line 2: tls_server_config.cert_file: cannot be used: key values mismatch"
    ):
        read_access(str(path))


def test_check_asks_a_protected_daemon(keys, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    shutil.copy(keys.path("ca.pem"), "ca.pem")
    tmp_path.joinpath("password").write_text("right\n")
    with protected(tls(keys) + USERS, tmp_path) as server:
        url = f"https://127.0.0.1:{server.address[1]}"
        assert main(["check", "--ca-file", "ca.pem", url]) == 3
        assert "status 401" in capsys.readouterr().out
        main(["check", "--ca-file", "ca.pem", "--user", "prometheus", "--password-file", "password", url])
        assert "is no Shardwatch of this version" in capsys.readouterr().out  # the page of this test is none


def test_prometheus_scrapes_over_mutual_tls_with_a_user(keys, tmp_path):
    if PROMETHEUS is None:
        pytest.skip("prometheus is not installed")
    tmp_path.joinpath("password").write_text("right")
    with protected(mutual(keys) + USERS, tmp_path, handler=up) as server, socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{reserved.getsockname()[1]}"
        reserved.close()
        job = {
            "job_name": "x",
            "scrape_interval": "1s",
            "scheme": "https",
            "tls_config": {
                "ca_file": keys.path("ca.pem"),
                "cert_file": keys.path("client.pem"),
                "key_file": keys.path("client.key"),
            },
            "basic_auth": {"username": "prometheus", "password_file": str(tmp_path / "password")},
            "static_configs": [{"targets": [f"127.0.0.1:{server.address[1]}"]}],
        }
        tmp_path.joinpath("prometheus.yml").write_text(json.dumps({"scrape_configs": [job]}))
        arguments = [f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/data"]
        command = [PROMETHEUS, *arguments, f"--web.listen-address={address}"]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            try:

                def value():
                    with contextlib.suppress(OSError), urlopen(f"http://{address}/api/v1/query?query=up") as response:
                        results = json.load(response)["data"]["result"]
                        return results[0]["value"][1] if results else None
                    return None

                until(lambda: value() == "1", 60)
            finally:
                process.kill()
        assert server.errors == 0


CASES = {
    "empty": ("", True),
    "tls": ("{tls}", True),
    "users": (USERS, True),
    "versions": ("{tls}  min_version: TLS12\n  max_version: TLS13\n", True),
    "ciphers": ("{tls}  cipher_suites: [TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256]\n", True),
    "curve": ("{tls}  curve_preferences: [CurveP256]\n", True),
    "server preference": ("{tls}  prefer_server_cipher_suites: false\n", True),
    "client certificates": ("{tls}  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: {ca}\n", True),
    "headers": ("{tls}http_server_config:\n  http2: true\n  headers:\n    X-Frame-Options: deny\n", True),
    "unknown key": ("tls_config: {{}}\n", False),
    "unknown nested key": ("{tls}  certificate: x\n", False),
    "no key": ("tls_server_config:\n  cert_file: {cert}\n", False),
    "missing file": ("{tls}  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: none.pem\n", False),
    "authorities without a policy": ("{tls}  client_ca_file: {ca}\n", False),
    "unknown policy": ("{tls}  client_auth_type: Sometimes\n", False),
    "unknown version": ("{tls}  min_version: TLS111\n", False),
    "unknown cipher": ("{tls}  cipher_suites: [TLS_NONE]\n", False),
    "unknown curve": ("{tls}  curve_preferences: [CurveP25]\n", False),
    "password instead of a hash": ("basic_auth_users:\n  prometheus: right\n", False),
    "forbidden header": ("{tls}http_server_config:\n  headers:\n    Server: x\n", False),
    "forbidden value": ("{tls}http_server_config:\n  headers:\n    X-Frame-Options: maybe\n", False),
    "not YAML": ("tls_server_config: [\n", False),
}


@pytest.mark.parametrize("case", CASES)
def test_node_exporter_agrees_on_which_files_are_good(case, keys, tmp_path):
    text, good = CASES[case]
    path = tmp_path / "web.yml"
    path.write_text(text.format(tls=tls(keys), ca=keys.path("ca.pem"), cert=keys.path("server.pem")))
    if good:
        assert read_access(str(path)).files[0] == str(path)
    else:
        with pytest.raises(SettingsError):
            read_access(str(path))
    if NODE_EXPORTER is not None:
        assert node_exporter_accepts(path) == good


def node_exporter_accepts(path):
    arguments = ["--web.listen-address=127.0.0.1:0", "--collector.disable-defaults", f"--web.config.file={path}"]
    environment = {**os.environ, "GOMAXPROCS": "1"}
    with subprocess.Popen([NODE_EXPORTER, *arguments], stderr=subprocess.PIPE, text=True, env=environment) as process:
        try:
            # It logs whether TLS is enabled, and then the address, once the file has been accepted.
            return any("TLS is" in line for line in process.stderr)
        finally:
            process.kill()


def test_the_listener_without_a_web_configuration_serves_as_before():
    with serving() as server:
        assert fetch(server).status == 200
