"""The web configuration file: reread, asked by check and Prometheus, and node_exporter beside ours."""

from __future__ import annotations

import calendar
import contextlib
import json
import os
import pathlib
import re
import shlex
import shutil
import socket
import ssl
import subprocess
import time
from urllib.request import urlopen

import pytest

from exporter.cli.config import EXPIRES_SOON, web_hints
from exporter.cli.main import main
from exporter.config.settings import parse
from exporter.diagnosis.thresholds import CERTIFICATE_REMAINING
from exporter.errors import SettingsError
from exporter.http.server.listener import Response
from exporter.http.server.tls_context import certificate_expires
from exporter.http.server.web_config import WebConfigFile, read_access
from tests.support.raw_http import serving
from tests.support.waiting import until
from tests.support.web_config import (
    HASH,
    USERS,
    ask,
    client_context,
    connection_to,
    fetch,
    make_keys,
    mutual,
    protected,
    tls,
)

ROOT = pathlib.Path(__file__).parents[3]
PROMETHEUS = shutil.which("prometheus")
NODE_EXPORTER = shutil.which("prometheus-node-exporter")


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    return make_keys(tmp_path_factory.mktemp("keys"))


def up(request):
    return Response(status=200, content_type="text/plain", body=b"a 1\n")


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


@pytest.mark.parametrize("gone", ["basic_auth_users", "client_allowed_sans", "client_auth_type", "tls_server_config"])
def test_a_file_that_protects_less_than_before_is_refused_until_a_restart(gone, keys, tmp_path, caplog):
    allowed = "  client_allowed_sans: [localhost]\n"
    texts = {
        "basic_auth_users": mutual(keys, allowed),  # cut off after the TLS section
        "client_allowed_sans": mutual(keys) + USERS,
        "client_auth_type": tls(keys) + USERS,
        "tls_server_config": USERS,
    }
    web = tmp_path / "web.yml"
    web.write_text(mutual(keys, allowed) + USERS)
    config = WebConfigFile(str(web))
    before = config.current()
    web.write_text(texts[gone])
    config.refresh()
    assert config.current() is before and not config.last_load_successful
    (refusal,) = refusals(caplog)
    assert gone in refusal and "restart" in refusal and str(web) in refusal
    assert gone not in WebConfigFile(str(web)).current().protections


def refusals(caplog):
    return [record.getMessage() for record in caplog.records if "web_config_refused" in record.getMessage()]


def test_a_refused_file_is_logged_once_and_tried_again_when_a_file_that_it_names_appears(keys, tmp_path, caplog):
    with protected(tls(keys), tmp_path) as server:
        web = tmp_path / "web.yml"
        web.write_text(tls(keys).replace("server.key", "later.key"))
        until(lambda: not server.config.last_load_successful)
        until(lambda: server.config._idle_looks > 3)
        assert len(refusals(caplog)) == 1 and "later.key" not in server.config.current().files
        shutil.copy(keys.path("server.key"), keys.path("later.key"))
        until(lambda: server.config.last_load_successful)
        assert fetch(server, client_context(keys)).status == 200
        assert len(refusals(caplog)) == 1


def test_a_file_replaced_while_it_is_read_is_read_again(tmp_path):
    web = tmp_path / "web.yml"
    web.write_text("")
    reads = []

    def read(path):
        access = read_access(path)
        reads.append(access)
        if len(reads) == 1:
            web.write_text(USERS)  # after it was read, and before anything else is done
        return access

    config = WebConfigFile(str(web), interval=0.02, read=read)
    config.start()
    try:
        until(lambda: config.current().users)
    finally:
        config.stop()


def replaced(path, how):
    path.unlink()
    if how == "missing":
        return
    if how == "a pipe":
        os.mkfifo(path)
    elif how == "a directory":
        path.mkdir()
    elif how == "a device":
        path.symlink_to("/dev/zero")
    elif how == "a loop of links":
        path.symlink_to(path)
    else:
        path.write_bytes({"empty": b"", "noise": os.urandom(4096), "large": b"#" * (5 << 20)}[how])


HOW = ("missing", "a pipe", "a directory", "a device", "a loop of links", "empty", "noise", "large")


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("which", ["web.yml", "server.pem", "server.key", "ca.pem"])
def test_a_file_replaced_by_something_else_changes_nothing(which, how, keys, tmp_path, caplog):
    for name in ("server.pem", "server.key", "ca.pem"):
        shutil.copy(keys.path(name), tmp_path)
    text = mutual(keys).replace(str(keys.folder), ".") + USERS
    with protected(text, tmp_path) as server:
        replaced(tmp_path / which, how)
        until(lambda: not server.config.last_load_successful)
        assert fetch(server, client_context(keys, "client"), user="prometheus:right").status == 200
        assert len(refusals(caplog)) == 1 and "Traceback" not in caplog.text


@pytest.mark.parametrize("ends", ["20480102030405Z", "20491231235959Z", "20600607080910Z", "20210101000000Z"])
def test_when_the_certificate_ends_is_read_from_it(ends, keys, tmp_path, caplog):
    name = f"ends-{ends}"
    if not (keys.folder / f"{name}.pem").exists():
        keys.certificate(name, "ca", "here", "20200101000000Z", ends)
    path = tmp_path / "web.yml"
    path.write_text(tls(keys, name))
    moment = calendar.timegm(time.strptime(ends, "%Y%m%d%H%M%SZ"))
    assert WebConfigFile(str(path)).current().certificate_expires == moment
    assert ("certificate_expired" in caplog.text) == (ends < "2026")


@pytest.mark.parametrize(
    ("before", "hint"),
    [
        (-1, ["web_config_file: the certificate has expired; clients that verify it refuse it"]),
        (90_000, ["web_config_file: the certificate expires in 25h"]),
        (15 * 86_400, []),
    ],
)
def test_check_config_hints_at_a_certificate_that_has_expired_or_soon_will(before, hint, keys, tmp_path):
    if not (keys.folder / "soon.pem").exists():
        keys.certificate("soon", "ca", "here", "20200101000000Z", "20480102030405Z")
    (tmp_path / "web.yml").write_text(tls(keys, "soon"))
    settings = parse(f"listen: 127.0.0.1:0\nweb_config_file: {tmp_path / 'web.yml'}\n", "shardwatch.yaml", {})
    assert EXPIRES_SOON == CERTIFICATE_REMAINING
    assert web_hints(settings, calendar.timegm((2048, 1, 2, 3, 4, 5)) - before) == hint


def test_the_documented_command_makes_a_certificate_that_is_served(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (command,) = re.findall(r"^openssl req .*$", (ROOT / "docs" / "security.md").read_text(), re.MULTILINE)
    subprocess.run(shlex.split(command), check=True, capture_output=True, timeout=60)
    text = "tls_server_config:\n  cert_file: server.pem\n  key_file: server.key\n"
    with protected(text, tmp_path) as server:
        assert fetch(server, ssl.create_default_context(cafile="server.pem")).status == 200


def test_a_bundle_without_a_readable_date_has_none(tmp_path):
    path = tmp_path / "x.pem"
    for text in ("", "x", "-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n"):
        path.write_text(text)
        assert certificate_expires(str(path)) is None


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("server.key", "client.key", "line 3: tls_server_config.key_file: cannot be used: key values mismatch"),
        ("server.key", "broken", "line 3: tls_server_config.key_file: cannot be used: "),
        ("server.pem", "broken", "line 2: tls_server_config.cert_file: cannot be used: "),
    ],
)
def test_a_certificate_or_key_that_cannot_be_used_is_refused_with_its_line(old, new, problem, keys, tmp_path):
    keys.folder.joinpath("broken").write_text("-----BEGIN PRIVATE KEY-----\nAAAA\n")
    keys.folder.joinpath("broken").chmod(0o600)
    path = tmp_path / "web.yml"
    path.write_text(tls(keys).replace(old, new))
    with pytest.raises(SettingsError, match=re.escape(problem)):
        read_access(str(path))


def test_the_default_ciphers_of_tls_1_2_are_authenticated_and_have_forward_secrecy(keys, tmp_path):
    path = tmp_path / "web.yml"
    path.write_text(tls(keys))
    ciphers = [cipher for cipher in read_access(str(path)).context.get_ciphers() if cipher["protocol"] == "TLSv1.2"]
    assert ciphers and all(cipher["aead"] and cipher["name"].startswith("ECDHE-") for cipher in ciphers)


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
    "certificates that are not verified": ("{tls}  client_auth_type: RequestClientCert\n", True),
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
        assert read_access(str(path)).files[0][0] == str(path)
    else:
        with pytest.raises(SettingsError):
            read_access(str(path))
    if NODE_EXPORTER is None and os.environ.get("CI") != "true":
        pytest.skip("prometheus-node-exporter is not installed")
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
