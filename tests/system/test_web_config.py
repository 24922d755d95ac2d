"""The daemon under a web configuration: changes on disk and SIGHUP, what it exposes of them, and no scrape lost."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import ssl
import threading
from types import SimpleNamespace

import pytest

from tests.support.fault_matrix import configure, programs
from tests.support.page_figures import Figures
from tests.support.waiting import until
from tests.support.web_config import USERS, ask, client_context, connection_to, fetch, make_keys

USER = "prometheus:right"
LOADED = "shardwatch_config_last_reload_successful"
REFUSALS = "shardwatch_authentication_failures_total"


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    return make_keys(tmp_path_factory.mktemp("keys"))


@pytest.fixture
def start():
    with programs() as begin:
        yield begin


class Daemon:
    """A running daemon that is asked over TLS, as the user."""

    def __init__(self, program, context):
        self.program, self.context = program, context
        self.address = ("127.0.0.1", program.port)

    def get(self, path="/metrics", user=USER):
        return fetch(SimpleNamespace(address=self.address), self.context, user, path)

    def page(self):
        return Figures(self.get().body.decode())

    def common_name(self):
        with connection_to(SimpleNamespace(address=self.address), self.context) as connection:
            connection.connect()
            subject = connection.sock.getpeercert()["subject"]
        return dict(part for parts in subject for part in parts)["commonName"]

    def hang_up(self):
        self.program.process.send_signal(signal.SIGHUP)


@pytest.fixture
def daemon(start, keys, tmp_path):
    for name in ("server.pem", "server.key"):
        shutil.copy(keys.path(name), tmp_path)
    (tmp_path / "web.yml").write_text("tls_server_config: {cert_file: server.pem, key_file: server.key}\n" + USERS)
    extra = "gpu: {enabled: false}\nweb_config_file: web.yml\nunauthenticated_health: true\n"
    return Daemon(start(configure(tmp_path, [], extra=extra)), client_context(keys))


def test_every_path_needs_the_user_and_health_does_not_where_that_is_asked_for(daemon):
    until(lambda: daemon.get().status == 200)
    for path in ("/metrics", "/metrics/dcgm", "/", "/api/v1/node", "/api/v1/verdicts", "/-/reload", "/none"):
        assert daemon.get(path, user=None).status == 401, path
        assert daemon.get(path, user="prometheus:wrong").status == 401, path
    assert daemon.get("/api/v1/node").status == 200
    assert daemon.get("/-/healthy", user=None).status == 200
    assert daemon.get("/-/ready", user=None).status in {200, 503}


def test_refused_clients_and_the_end_of_the_certificate_are_exposed(daemon):
    until(lambda: daemon.get().status == 200)
    until(lambda: daemon.page().all("shardwatch_certificate_expiry_timestamp_seconds") == [2461547045.0])
    assert daemon.get(user=None).status == daemon.get(user="prometheus:wrong").status == 401
    with contextlib.suppress(OSError, ssl.SSLError):
        fetch(SimpleNamespace(address=daemon.address), ssl.create_default_context())
    until(lambda: daemon.page().value("shardwatch_tls_handshake_failures_total") == 1.0)
    counted = {"missing": 1.0, "wrong": 1.0, "limited": 0.0}
    until(lambda: all(daemon.page().value(REFUSALS, reason=reason) == counted[reason] for reason in counted))


@pytest.mark.parametrize("how", ["looks itself", "SIGHUP"])
def test_new_files_take_effect_and_bad_ones_change_nothing_while_no_scrape_fails(how, daemon, keys, tmp_path):
    until(lambda: daemon.get().status == 200)
    ending = threading.Event()
    failures = []
    scrapes = []

    def scrape(kept):
        while not ending.is_set():
            try:
                with connection_to(SimpleNamespace(address=daemon.address), daemon.context) as connection:
                    for _ in range(20 if kept else 1):
                        response = ask(connection, USER)
                        scrapes.append(response.status)
                        if response.headers["Connection"] == "close":
                            break
            except OSError as error:
                failures.append(error)

    scrapers = [threading.Thread(target=scrape, args=(kept,)) for kept in (True, False)]
    for scraper in scrapers:
        scraper.start()
    try:
        web = tmp_path / "web.yml"
        good = web.read_text()
        web.write_text(good.replace("cert_file", "certfile"))
        if how == "SIGHUP":
            daemon.hang_up()
        until(lambda: daemon.page().value(LOADED) == 0.0)
        findings = json.loads(daemon.get("/api/v1/findings").body)["findings"]
        assert "ConfigurationNotLoaded" in {finding["id"] for finding in findings}
        assert daemon.common_name() == "server"

        for name in ("pem", "key"):
            shutil.copy(keys.path(f"renewed.{name}"), tmp_path / f"server.{name}")
        web.write_text(good)
        if how == "SIGHUP":
            daemon.hang_up()
        until(lambda: daemon.common_name() == "renewed")
        until(lambda: daemon.page().value(LOADED) == 1.0)
    finally:
        ending.set()
        for scraper in scrapers:
            scraper.join(60)
    assert not failures and set(scrapes) == {200}


def test_without_a_web_configuration_nothing_of_it_is_exposed(start, tmp_path):
    program = start(configure(tmp_path, [], extra="gpu: {enabled: false}\n"))
    page = program.wait_for(lambda page: page.value(LOADED) == 1.0)
    names = {name for name, _ in page.rows}
    assert not {name for name in names if "certificate" in name or "handshake" in name or "authentication" in name}


def test_listening_everywhere_without_one_is_hinted_at(start, tmp_path):
    config = configure(tmp_path, [], extra="gpu: {enabled: false}\n")
    config.write_text(config.read_text().replace("listen: 127.0.0.1:0", "listen: 0.0.0.0:0"))
    program = start(config)
    assert any("web_config_file" in line for line in program.log)


def test_listening_everywhere_with_one_that_protects_nothing_is_hinted_at(start, tmp_path):
    (tmp_path / "web.yml").write_text("# nothing yet\n")
    config = configure(tmp_path, [], extra=f"gpu: {{enabled: false}}\nweb_config_file: {tmp_path}/web.yml\n")
    config.write_text(config.read_text().replace("listen: 127.0.0.1:0", "listen: 0.0.0.0:0"))
    program = start(config)
    until(lambda: any("neither users nor TLS" in line for line in program.log))


def test_the_protection_is_named_in_no_log_line(daemon):
    assert daemon.get(user="secret-name:secret-password").status == 401
    assert daemon.get().status == 200
    log = "".join(daemon.program.log)
    assert "authentication_failed" in log and "secret" not in log and "$2" not in log
