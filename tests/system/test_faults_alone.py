"""Rows E39, E41, E43, E44 and E46 of the fault matrix, each alone: hung engines, names, certificates, identity."""

from __future__ import annotations

import shutil
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

import exporter.runtime.poll.targets
import tests.support.living_engines  # noqa: F401 - whose faults are served by name
from exporter.config.settings import parse
from exporter.http.client import resolver
from exporter.runtime.app import App
from tests.support.endpoint_probe import refused_port
from tests.support.fault_matrix import OPENMETRICS, cards, configure, programs
from tests.support.malicious_server import MaliciousServer
from tests.support.page_figures import Figures, strictly
from tests.support.waiting import until

pytestmark = pytest.mark.slow

WITHDRAWN = 2.0  # seconds: one interval, and one exchange's deadline
SLACK = 10.0  # seconds that a machine with other work may add; a figure that is not withdrawn stays for ever


STAMP = "shardwatch_source_last_success_timestamp_seconds"


# ---------------------------------------------------------------------- E43, E44: hung engines


def test_e43_e44_one_hung_engine_disturbs_no_other_and_sixteen_leave_a_good_page(tmp_path):
    names = [f"e{number:02}" for number in range(16)]
    with MaliciousServer() as server, programs() as start:
        pace = "interval: 500ms, timeout: 400ms"
        config = configure(tmp_path, [(name, server.url(f"turned/{name}/silent")) for name in names], pace=pace)
        program = start(config, cards(tmp_path))
        program.wait_for(lambda page: page.all("llm_up") == [1.0] * 16)
        threads = program.threads

        server.state["e07"] = 1
        pages_read = []
        for _ in range(14):
            time.sleep(0.25)
            pages_read.append(program.page())
        until(lambda: program.threads <= threads)  # one that looks at processes comes and goes
        assert pages_read[-1].reason("e07") == "timeout"
        for name in names:
            if name != "e07":
                tokens = [page.value("llm_generation_tokens_total", replica=name) for page in pages_read]
                assert len(set(tokens)) >= 4
                assert pages_read[-1].all("shardwatch_source_failures_total", source=f"engine:{name}") == []

        server.state["turned"] = 1
        page = program.wait_for(lambda page: page.all("llm_up") == [0.0] * 16, WITHDRAWN + SLACK)
        strictly(page.text, program.get(accept=OPENMETRICS)[1])
        assert {page.reason(name) for name in names} == {"timeout"}
        until(lambda: program.threads <= threads)
        assert page.all("gpu_up") == [1.0, 1.0]
        assert program.get("/-/healthy")[0] == 200
        assert program.get("/-/ready") == (200, "2 of 2 GPUs and 0 of 16 replicas answer\n")
        code, seconds = program.end()
        assert (code, seconds < 2.0 + SLACK) == (0, True)


# ---------------------------------------------------------------------- E39: names


@pytest.fixture
def no_cards_app() -> Iterator[object]:
    made: list[App] = []

    def make(engines: list[tuple[str, str]], *extra: str) -> App:
        rows = "".join(f"  - {{name: {n}, url: '{u}', interval: 500ms, timeout: 400ms}}\n" for n, u in engines)
        text = "\n".join(["listen: 127.0.0.1:0", "gpu: {enabled: false}", *extra, "engines:", rows])
        made.append(App(parse(text, "test", {})))
        made[-1].start()
        return made[-1]

    yield make
    for app in made:
        pollers = list(app.pollers.replicas.values())
        app.stop()
        for poller in pollers:
            poller.join(5)
        assert app.assignments._thread is not None
        app.assignments._thread.join(5)


def page_of(app: App) -> Figures | None:
    body = app.pages.page(openmetrics=False, gzip=False)
    return Figures(body.decode()) if body is not None else None


def test_e39_names_that_hang_fail_or_move_cost_one_thread_each_and_no_other_engine(no_cards_app, monkeypatch):
    release = threading.Event()
    answers = ["127.0.0.3", "127.0.0.1"]

    def look_up(host: str) -> list[resolver.Address]:
        if host == "hangs.example":
            release.wait(60)
            return []
        if host == "unknown.example":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, (answers.pop(0) if len(answers) > 1 else answers[0], 0))]

    shared = resolver.Resolver(look_up)
    client = exporter.runtime.poll.targets.HttpClient
    monkeypatch.setattr(
        exporter.runtime.poll.targets, "HttpClient", lambda target, *limits: client(target, *limits, resolver=shared)
    )
    monkeypatch.setattr("exporter.runtime.assignment.default_resolver", shared)
    with MaliciousServer() as server:
        url = server.url
        app = no_cards_app(
            [
                ("well", url("living/well")),
                ("hangs", url("living/a", host="hangs.example")),
                ("hangs-too", url("living/b", host="hangs.example")),
                ("unknown", url("living/c", host="unknown.example")),
                ("moves", url("living/d", host="moves.example")),
            ]
        )
        try:
            wanted = {"hangs": "dns", "hangs-too": "dns", "unknown": "dns", "moves": "", "well": ""}
            until(lambda: (page := page_of(app)) and {name: page.reason(name) for name in wanted} == wanted, 10)
            for _ in range(10):
                time.sleep(0.2)
                resolving = [t.name for t in threading.enumerate() if t.name.startswith("resolve-hangs")]
                assert resolving == ["resolve-hangs.example"]
            page = page_of(app)
            assert page.at - page.value(STAMP, source="engine:well") < 1.0 + SLACK
            spent = {status.source: status.duration for status in app.publisher.snapshot.sources}
            assert 0.4 <= spent["engine:hangs"] < 0.4 + SLACK
            assert {name: page.reason(name) for name in wanted} == wanted
        finally:
            release.set()


# ---------------------------------------------------------------------- E41: TLS


def test_e41_each_bad_certificate_has_its_reason_and_the_good_one_its_expiry(tmp_path):
    if shutil.which("openssl") is None:
        pytest.skip("the openssl command makes the certificates and is not installed")
    from tests.component.http.test_endpoint_tls import CONFIGURATION, EXPIRES, Keys, Raw, server_context

    keys = Keys(tmp_path)
    (tmp_path / "conf").write_text(CONFIGURATION)
    (tmp_path / "index").touch()
    keys.authority("ca")
    keys.authority("stranger")
    valid = ("20200101000000Z", "20480102030405Z")
    keys.certificate("good", "ca", "here", *valid)
    keys.certificate("wrong-name", "ca", "elsewhere", *valid)
    keys.certificate("expired", "ca", "here", "20200101000000Z", "20210101000000Z")
    keys.certificate("of-a-stranger", "stranger", "here", *valid)
    wanted = {
        "good": "", "expired": "tls_expired", "wrong-name": "tls_name", "of-a-stranger": "tls_unknown_ca",
        "mute": "timeout", "plain": "timeout",
    }  # fmt: skip
    with ExitStack() as stack:
        servers = {
            name: stack.enter_context(MaliciousServer(tls=server_context(keys, name)))
            for name in ("good", "wrong-name", "expired", "of-a-stranger")
        }
        plain = stack.enter_context(MaliciousServer())
        mute = stack.enter_context(Raw(b"", drip=False))
        engines = [(name, server.url("living")) for name, server in servers.items()]
        engines += [("mute", mute.url), ("plain", plain.url("living").replace("http:", "https:"))]
        tls = f", tls: {{ca_file: {keys.path('ca.pem')}}}"
        start = stack.enter_context(programs())
        program = start(
            configure(tmp_path, engines, more=dict.fromkeys(wanted, tls), extra="gpu: {enabled: false}\n")
        )
        page = program.wait_for(lambda page: {name: page.reason(name) for name in wanted} == wanted)
        assert page.value("llm_certificate_expiry_timestamp_seconds", replica="good") == EXPIRES
        assert page.value("llm_up", replica="good") == 1.0
        assert [name for name, server in servers.items() if server.requests] == ["good"]
        assert all(b"HTTP" not in head for _, head in plain.requests)  # never downgraded


# ---------------------------------------------------------------------- E46: identity


def test_e46_engines_of_one_name_or_one_page_are_refused_at_load():
    from exporter.errors import SettingsError

    url = "http://127.0.0.1:8000/metrics"
    for second in ("{name: a, url: 'http://127.0.0.1:8001/metrics'}", f"{{name: b, url: '{url}'}}"):
        with pytest.raises(SettingsError, match=r"engines\[1\]"):
            parse(f"engines:\n  - {{name: a, url: '{url}'}}\n  - {second}\n", "test", {})


def test_e46_a_found_engine_never_shares_the_name_of_a_configured_one(no_cards_app):
    """Somebody calls the engine on port 1 by the name that discovery would give to the one on port 2."""
    from exporter.model.process import ListeningEngine

    with MaliciousServer() as first, MaliciousServer() as other:
        name = f"127.0.0.1:{other.port}"
        app = no_cards_app([(f"'{name}'", first.url("living"))])
        places = [("127.0.0.1", other.port), ("127.0.0.1", first.port), ("::1", other.port)]
        listening = [ListeningEngine(host=host, port=port, pid=1, kind="vllm") for host, port in places]
        app.discovery.on_processes(listening)
        names = [engine.name for engine in app.pollers.replicas]
        assert len(set(names)) == len(names)
        until(lambda: (page := page_of(app)) and page.all("llm_up", replica=name) == [1.0])
        urls = {poller._fetcher._target.url for poller in app.pollers.replicas.values() if poller.state.name == name}
        assert urls == {first.url("living")}


def test_a_refused_port_is_tried_again_within_five_seconds_however_long_it_was_closed(tmp_path):
    port = refused_port()
    with programs() as start:
        config = configure(
            tmp_path, [("a", f"http://127.0.0.1:{port}/living")], pace="interval: 200ms, timeout: 150ms",
            extra="gpu: {enabled: false}\n",
        )  # fmt: skip
        program = start(config)
        program.wait_for(
            lambda page: sum(page.all("shardwatch_source_failures_total", source="engine:a", reason="refused")) >= 8
        )
        with MaliciousServer("127.0.0.1", port):
            program.wait_for(lambda page: page.all("llm_up") == [1.0], 5.5 + SLACK)
