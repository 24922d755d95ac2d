"""A reload of the configuration: every key is applied at once or named as waiting for the next start."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import json
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from exporter.config.reader import ListOf, join
from exporter.config.section import Section
from exporter.config.settings import SECTION, parse
from exporter.model import Outcome, Window
from exporter.runtime import gateway
from exporter.runtime.app import App
from tests.support.fault_matrix import programs
from tests.support.waiting import until

ONE = "url: http://127.0.0.1:1/m, name: a, interval: 600s"
OTHER = "url: http://127.0.0.1:1/m, name: a, interval: 600s, {more}"


def _endpoint(name, **values):
    """Two texts for each key of an engine or a gateway, the second with another value."""
    start, end = f"{name}: [{{", "}]"
    changes = {
        "name": ("url: http://127.0.0.1:1/m, name: a", "url: http://127.0.0.1:1/m, name: b"),
        "url": ("url: http://127.0.0.1:1/m, name: a", "url: http://127.0.0.1:2/m, name: a"),
        "interval": ("url: http://127.0.0.1:1/m, interval: 600s", "url: http://127.0.0.1:1/m, interval: 60s"),
        "timeout": (f"{ONE}, timeout: 1s", f"{ONE}, timeout: 2s"),
        "bearer_token_file": (ONE, f"{ONE}, bearer_token_file: SECRET"),
        "basic_auth.username": (
            f"{ONE}, basic_auth: {{username: a, password_file: SECRET}}",
            f"{ONE}, basic_auth: {{username: b, password_file: SECRET}}",
        ),
        "basic_auth.password_file": (
            f"{ONE}, basic_auth: {{username: a, password_file: SECRET}}",
            f"{ONE}, basic_auth: {{username: a, password_file: OTHER}}",
        ),
        **{f"tls.{key}": tuple(_over_tls(text) for text in texts) for key, texts in TLS.items()},
        **{key: tuple(f"{ONE}, {text}" for text in texts) for key, texts in values.items()},
    }
    return {f"{name}[].{key}": (start + old + end, start + new + end) for key, (old, new) in changes.items()}


def _over_tls(text):
    return f"url: https://127.0.0.1:1/m, interval: 600s, tls: {{{text}}}"


TLS = {
    "ca_file": ("ca_file: SECRET", "ca_file: OTHER"),
    "cert_file": ("cert_file: SECRET, key_file: SECRET", "cert_file: OTHER, key_file: SECRET"),
    "key_file": ("cert_file: SECRET, key_file: SECRET", "cert_file: SECRET, key_file: OTHER"),
    "server_name": ("server_name: a", "server_name: b"),
    "insecure_skip_verify": ("insecure_skip_verify: false", "insecure_skip_verify: true"),
}


def _pods(old, new):
    begin = "discovery: {kubernetes: {enabled: true, url: 'https://127.0.0.1:1', node_name: a, interval: 600s"
    return f"{begin}, {old}}}}}", f"{begin}, {new}}}}}"


def _list(old, new):
    return tuple(f"discovery: {{http_sd: [{{url: 'https://127.0.0.1:1/a', {text}}}]}}" for text in (old, new))


def _push(old, new):
    return tuple(f"push: [{{{text}}}]" for text in (old, new))


_RECEIVER = "url: 'https://127.0.0.1:1/w'"
PUSH = {
    "url": ("url: 'http://127.0.0.1:1/w', name: a", "url: 'http://127.0.0.1:1/x', name: a"),
    **{
        key: (f"{_RECEIVER}, {old}", f"{_RECEIVER}, {new}")
        for key, (old, new) in {
            "name": ("name: a", "name: b"),
            "protocol": ("protocol: remote_write", "protocol: otlp"),
            "interval": ("interval: 20s", "interval: 30s"),
            "timeout": ("timeout: 1s", "timeout: 2s"),
            "labels": ("labels: {job: a}", "labels: {job: b}"),
            "headers": ("headers: {X-A: a}", "headers: {X-A: b}"),
            "header_files": ("header_files: {X-A: SECRET}", "header_files: {X-A: OTHER}"),
            "bearer_token_file": ("bearer_token_file: SECRET", "bearer_token_file: OTHER"),
            "basic_auth.username": tuple(f"basic_auth: {{username: {name}, password_file: SECRET}}" for name in "ab"),
            "basic_auth.password_file": tuple(
                f"basic_auth: {{username: a, password_file: {name}}}" for name in ("SECRET", "OTHER")
            ),
            "queue.max_age": ("queue: {max_age: 1h}", "queue: {max_age: 2h}"),
            "queue.max_bytes": ("queue: {max_bytes: 100000}", "queue: {max_bytes: 200000}"),
            **{f"tls.{key}": tuple(f"tls: {{{text}}}" for text in texts) for key, texts in TLS.items()},
        }.items()
    },
}

# Each key with two texts that differ in it alone.
CHANGES: dict[str, tuple[str, str]] = {
    "listen": ("listen: 127.0.0.1:0", "listen: 127.0.0.1:9"),
    "agent_check": ("agent_check: 127.0.0.1:0", "agent_check: localhost:0"),
    "gpu.enabled": ("gpu: {enabled: true}", "gpu: {enabled: false}"),
    "gpu.interval": ("gpu: {interval: 1s}", "gpu: {interval: 3s}"),
    "gpu.deadline": ("gpu: {deadline: 1s}", "gpu: {deadline: 3s}"),
    **{
        f"gpu.{key}": tuple(f"gpu: {{enabled: false, {text}}}" for text in texts)
        for key, texts in _endpoint("pages", kind=("kind: dcgm", "kind: auto")).items()
    },
    "kernel_log.enabled": ("kernel_log: {enabled: false}", "kernel_log: {enabled: true}"),
    "kernel_log.path": ("kernel_log: {path: SECRET}", "kernel_log: {path: OTHER}"),
    "owners.enabled": ("owners: {enabled: true}", "owners: {enabled: false}"),
    "owners.dcgm_labels": ("owners: {dcgm_labels: false}", "owners: {dcgm_labels: true}"),
    "nics.enabled": ("nics: {enabled: false}", "nics: {enabled: true}"),
    "nics.sysfs": ("nics: {sysfs: /sys}", "nics: {sysfs: /nonexistent}"),
    **_endpoint(
        "engines",
        kind=("kind: vllm", "kind: tgi"),
        gpus=("gpus: [0]", "gpus: [1]"),
        image=("image: a:1", "image: a:2"),
    ),
    **_endpoint("gateways", kind=("kind: envoy", "kind: haproxy")),
    **_endpoint("stores", kind=("kind: mooncake", "kind: lmcache")),
    "discovery.processes": ("discovery: {processes: true}", "discovery: {processes: false}"),
    "discovery.ray": ("discovery: {ray: false}", "discovery: {ray: true}"),
    "discovery.ray_file": ("discovery: {ray_file: SECRET}", "discovery: {ray_file: OTHER}"),
    "discovery.ray_users": tuple(f"discovery: {{ray: true, ray_users: [{user}]}}" for user in ("daemon", "bin")),
    "discovery.ray_url": tuple(f"discovery: {{ray_url: 'http://127.0.0.1:1/{path}'}}" for path in "ab"),
    "discovery.ray_bearer_token_file": tuple(
        f"discovery: {{ray_url: 'http://127.0.0.1:1', ray_bearer_token_file: {name}}}" for name in ("SECRET", "OTHER")
    ),
    "discovery.http_sd[].url": tuple(
        f"discovery: {{http_sd: [{{url: 'http://127.0.0.1:1/{path}'}}]}}" for path in "ab"
    ),
    "discovery.http_sd[].bearer_token_file": _list("bearer_token_file: SECRET", "bearer_token_file: OTHER"),
    "discovery.http_sd[].basic_auth.username": _list(
        "basic_auth: {username: a, password_file: SECRET}", "basic_auth: {username: b, password_file: SECRET}"
    ),
    "discovery.http_sd[].basic_auth.password_file": _list(
        "basic_auth: {username: a, password_file: SECRET}", "basic_auth: {username: a, password_file: OTHER}"
    ),
    **{
        f"discovery.http_sd[].tls.{key}": _list(f"tls: {{{old}}}", f"tls: {{{new}}}")
        for key, (old, new) in TLS.items()
    },
    "discovery.pod_resources": tuple(f"discovery: {{pod_resources: /{name}.sock}}" for name in "ab"),
    "discovery.file_sd": ("discovery: {file_sd: [a.yaml]}", "discovery: {file_sd: [b.yaml]}"),
    "discovery.kubernetes.enabled": (
        "discovery: {kubernetes: {enabled: false, interval: 600s}}",
        "discovery: {kubernetes: {enabled: true, interval: 600s}}",
    ),
    "discovery.kubernetes.url": tuple(
        f"discovery: {{kubernetes: {{enabled: true, url: 'https://127.0.0.1:{port}', interval: 600s}}}}"
        for port in (1, 2)
    ),
    "discovery.kubernetes.node_name": tuple(
        f"discovery: {{kubernetes: {{enabled: true, url: 'https://127.0.0.1:1', node_name: {name}}}}}"
        for name in "ab"
    ),
    "discovery.kubernetes.interval": tuple(
        f"discovery: {{kubernetes: {{enabled: true, url: 'https://127.0.0.1:1', interval: {seconds}s}}}}"
        for seconds in (100, 200)
    ),
    "discovery.kubernetes.bearer_token_file": _pods("bearer_token_file: SECRET", "bearer_token_file: OTHER"),
    **{
        f"discovery.kubernetes.tls.{key}": _pods(f"tls: {{{old}}}", f"tls: {{{new}}}")
        for key, (old, new) in TLS.items()
    },
    "windows": (f"engines: [{{{ONE}}}]\nwindows: [1m, 5m]", f"engines: [{{{ONE}}}]\nwindows: [2m, 5m]"),
    "quantiles": (f"engines: [{{{ONE}}}]\nquantiles: [0.5]", f"engines: [{{{ONE}}}]\nquantiles: [0.9]"),
    "costs.currency": ("costs: {currency: USD}", "costs: {currency: EUR}"),
    "costs.gpu_hour": (
        "costs: {currency: USD, gpu_hour: {A: 1}}",
        "costs: {currency: USD, gpu_hour: {A: 2}}",
    ),
    "costs.models": (
        "costs: {currency: USD, models: {m: {output: 1}}}",
        "costs: {currency: USD, models: {m: {output: 2}}}",
    ),
    **{f"push[].{key}": _push(*texts) for key, texts in PUSH.items()},
    "series": ("series: common", "series: full"),
    "reload_endpoint": ("reload_endpoint: true", "reload_endpoint: false"),
    "web_page": ("web_page: true", "web_page: false"),
    "web_config_file": ("web_config_file: EMPTY", "web_config_file: BLANK"),
    "unauthenticated_health": ("unauthenticated_health: false", "unauthenticated_health: true"),
    "log.level": ("log: {level: info}", "log: {level: debug}"),
    "log.format": ("log: {format: logfmt}", "log: {format: json}"),
}
WAITING = {"listen", "web_config_file", "unauthenticated_health", "agent_check", "gpu.enabled", "web_page"}


def keys(section=SECTION, path=""):
    for name, key in section.keys.items():
        listed = isinstance(key.reader, ListOf)
        inner = key.reader.item if listed else key.reader
        where = join(path, name)
        if isinstance(inner, Section):
            yield from keys(inner, f"{where}[]" if listed else where)
        else:
            yield where


def in_use(app, log):
    """What the daemon goes by, taken from the parts and not from the settings that they were given."""
    watch = app.events._watch
    notifications = []
    app._cost_tracker.update = lambda *_, **more: notifications.append(more)
    app._economy((), (), ())
    return {
        "cards": app.cards and (app.cards._freshness.interval, app.cards._freshness.deadline),
        "kernel_log": (watch is not None, watch and watch.path),
        "nics": app.nics._root,
        "engines": [(made_of, poller.config) for made_of, poller in app.pollers.replicas.items()],
        "gateways": list(app.pollers.gateways),
        "stores": list(app.pollers.stores),
        "gpu_pages": list(app.pollers.gpu_pages),
        "discovery": {name: loop.config for name, loop in app.discovery._loops.items()},
        "owners": (app.assignments._names_owners(), app.dcgm._with_pods()),
        "processes": app.assignments._on_engines is not None,
        "costs": notifications,
        "push": [wanted for wanted, _ in app.pushes._running] if app.pushes is not None else [],
        "series": len(app.pages._renderers[False]._families),
        "reload_endpoint": response(app, "POST", "/-/reload")[0],
        "log": log[-1],
    }


def response(app, method, path):
    connection = http.client.HTTPConnection(*app.listener.address, timeout=5)
    with contextlib.closing(connection):
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode().strip()


@contextlib.contextmanager
def daemon(text, later, folder):
    """An app that serves and reads nothing but what a reload makes it read; ``later`` is what it rereads."""
    for name in ("SECRET", "OTHER"):
        (folder / name).write_text("x")
        (folder / name).chmod(0o600)
    for name in ("EMPTY", "BLANK"):
        (folder / name).touch()
    quiet = "" if text.startswith("kernel_log") else "kernel_log: {enabled: false}\n"
    quiet += "" if text.startswith("listen") else "listen: 127.0.0.1:0\n"
    quiet += "" if text.startswith("discovery") else "discovery: {processes: false}\n"

    def read(text):
        whole = quiet + text
        for name in ("SECRET", "OTHER", "EMPTY", "BLANK"):
            whole = whole.replace(name, f"{folder}/{name}")
        return parse(whole, "t", {})

    settings = read(text)
    log = [settings.log]
    app = App(settings, reread=lambda: read(later[0]), on_settings=lambda found: log.append(found.log))
    app.listen()
    try:
        yield app, log
    finally:
        app.stop()


def test_every_key_of_the_schema_has_a_row_here():
    assert set(CHANGES) == set(keys())


@pytest.mark.parametrize("key", CHANGES)
def test_a_changed_key_is_applied_at_once_or_named_as_waiting(key, tmp_path, caplog):
    old, new = CHANGES[key]
    with daemon(new, [new], tmp_path) as (app, log):
        assert app.reload().ok
        wanted = in_use(app, log)
    with daemon(old, [new], tmp_path) as (app, log):
        app._reread, reread = (lambda: app.settings), app._reread
        assert app.reload().ok
        before = in_use(app, log)
        assert before != wanted or key in WAITING, "this row shows nothing"
        app._reread = reread
        caplog.clear()
        outcome = app.reload()
        assert outcome.ok
        assert (key in outcome.message) == (key in WAITING), outcome.message
        waits = [record.message for record in caplog.records if "event=restart_required" in record.message]
        assert bool(waits) is (key in WAITING) and all(key in text for text in waits)
        if key not in WAITING:
            assert in_use(app, log) == wanted


def test_what_waits_is_named_until_it_is_taken_back(tmp_path, caplog):
    later = ["listen: 127.0.0.1:9\ngpu: {enabled: false}"]
    with daemon("listen: 127.0.0.1:0", later, tmp_path) as (app, _):
        for _ in range(2):
            outcome = app.reload()
            assert outcome.ok and "\n" not in outcome.message
            assert "listen and gpu.enabled" in outcome.message and "restart" in outcome.message
        assert caplog.text.count("event=restart_required") == 2
        later[0] = "listen: 127.0.0.1:0"
        assert app.reload() == Outcome(True, "the new configuration is in use")


def test_a_reload_that_changes_nothing_says_so(tmp_path):
    with daemon("series: full", ["series: full"], tmp_path) as (app, _):
        outcome = app.reload()
        assert outcome.ok and "nothing" in outcome.message


def test_the_endpoint_is_closed_by_the_very_reload_that_takes_its_key_away(tmp_path):
    with daemon("reload_endpoint: true", ["series: full"], tmp_path) as (app, _):
        assert response(app, "POST", "/-/reload") == (200, "the new configuration is in use")
        assert response(app, "POST", "/-/reload")[0] == 403
    with daemon("series: full", ["reload_endpoint: true"], tmp_path) as (app, _):
        assert response(app, "POST", "/-/reload")[0] == 403
        assert app.reload().ok
        assert response(app, "POST", "/-/reload")[0] == 200


def test_a_configuration_on_a_disk_that_hangs_holds_up_neither_scrapes_nor_another_reload_nor_the_end(tmp_path):
    gate, entered = threading.Event(), threading.Event()
    with daemon("reload_endpoint: true", ["series: full"], tmp_path) as (app, _):
        reread = app._reread

        def hanging():
            entered.set()
            assert gate.wait(20)
            return reread()

        app._reread = hanging
        with ThreadPoolExecutor(1) as pool:
            first = pool.submit(response, app, "POST", "/-/reload")
            assert entered.wait(10)
            assert response(app, "GET", "/-/healthy")[0] in (200, 503)
            assert response(app, "POST", "/-/reload") == (
                500, "refused, another reload is under way; ask again when it has ended"
            )  # fmt: skip
            assert not first.done()
            app.stop()
            gate.set()
            with pytest.raises((OSError, http.client.HTTPException)):
                first.result(10)
        until(lambda: not app._reloading.locked())
        assert app.settings.series == "common", "stopped is stopped"


def test_a_reload_that_fails_half_way_leaves_the_old_configuration_whole(tmp_path, monkeypatch, caplog):
    def engines(*names):
        listed = ", ".join(f"{{url: 'http://127.0.0.1:1/{name}', name: {name}, interval: 600s}}" for name in names)
        return f"engines: [{listed}]\n"

    texts = [engines("a", "b") + "windows: [1m]"]
    with daemon("series: common", texts, tmp_path) as (app, _):
        assert app.reload().ok
        texts[0] = engines("b", "x", "y") + "windows: [5m]\nseries: full"
        make, old = app.pollers.make_replica, app.settings

        def failing(engine):
            if engine.name == "y":
                raise RuntimeError("can't start new thread")
            return make(engine)

        monkeypatch.setattr(app.pollers, "make_replica", failing)
        outcome = app.reload()
        assert not outcome.ok and "can't start new thread" in outcome.message and "event=reload_failed" in caplog.text
        assert app.settings == old and not app.publisher.reload_successful
        plans = {key.name: poller.config for key, poller in app.pollers.replicas.items()}
        assert {name: plan.windows for name, plan in plans.items()} == dict.fromkeys("ab", (Window("1m", 60.0),))
        names = {f"engine:{name}" for name in "abxy"}
        until(lambda: names & {running.name for running in threading.enumerate()} == {"engine:a", "engine:b"})


FIGURES = (  # what is asked of an engine, and what is asked of it after the reload
    ("quantiles: [0.5]", "quantiles: [0.5, 0.9]"),
    ("windows: [1m]", "windows: [30s, 5m]"),
    ("series: common", "series: full"),
    ("interval: 100s", "interval: 90s"),
    ("gpus: [0]", "gpus: [1]"),
    ("timeout: 1s", "timeout: 500ms"),
    ("image: a:1", "image: a:2"),
)


class Numbers(http.server.BaseHTTPRequestHandler):
    """An engine whose counter grows from page to page."""

    protocol_version = "HTTP/1.1"
    pages = 0

    def do_GET(self):
        type(self).pages += 1
        label = 'engine="0",model_name="m"'
        body = (
            f"vllm:num_requests_running{{{label}}} 1\nvllm:generation_tokens_total{{{label}}} {self.pages * 100}\n"
        ).encode()
        self.send_response(200 if self.path == "/metrics" else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


@pytest.fixture
def engine():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Numbers)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/metrics"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(("old", "new"), FIGURES, ids=[old.partition(":")[0] for old, _ in FIGURES])
def test_a_reload_that_requests_other_figures_leaves_every_engine_on_every_page_and_its_windows_filled(
    engine, tmp_path, old, new
):
    def text(change):
        inside = change.startswith(("interval", "gpus", "timeout", "image"))
        entry = f"url: '{engine}', name: a" + (f", {change}" if inside else "")
        entry += "" if "interval" in entry else ", interval: 100s"
        return f"engines: [{{{entry}}}]\n" + ("" if inside else change)

    with daemon(text(old), [text(new)], tmp_path) as (app, _):
        app._apply_engines(app.settings.engines)
        (poller,) = app.pollers.replicas.values()
        until(lambda: poller.state.reading is not None)
        poller.reconfigure(poller.config, None, time.monotonic())  # a second page, so that there is a past
        until(lambda: poller.state.windows)
        before, plan = poller.state, poller.config
        assert app.reload().ok
        assert list(app.pollers.replicas.values()) == [poller]
        shown = [app.publisher.compose().replicas[0]]
        if poller.config != plan:
            until(lambda: shown.append(poller.state) or shown[-1].last_read_at != before.last_read_at)
        shown.append(app.publisher.compose().replicas[0])
        assert all(state.status.up and state.reading is not None and state.windows for state in shown)
        asked_for = {window.label for window in app.settings.windows}
        after = shown[-1].windows
        assert after.keys() == asked_for
        assert all(figures.seconds >= before.windows["1m"].seconds for figures in after.values())
        assert shown[-1].labels == before.labels and shown[-1].restarts == 0


def test_an_engine_of_the_same_name_at_another_page_begins_anew(engine, tmp_path):
    text = f"engines: [{{url: '{engine}', name: a, interval: 100s}}]"
    with daemon(text, [text.replace("/metrics", "/metrics?x=1")], tmp_path) as (app, _):
        app._apply_engines(app.settings.engines)
        (poller,) = app.pollers.replicas.values()
        until(lambda: poller.state.reading is not None)
        assert app.reload().ok
        (other,) = app.pollers.replicas.values()
        assert other is not poller
        poller.join(5.0)
        assert not poller.poll_loop._thread.is_alive()


def test_gateways_that_cannot_all_be_polled_are_polled_as_before(tmp_path, monkeypatch):
    def gateways(*names):
        listed = ", ".join(f"{{url: 'http://127.0.0.1:1/{name}', name: {name}, interval: 600s}}" for name in names)
        return f"gateways: [{listed}]\n"

    texts = [gateways("a", "b")]
    with daemon("series: common", texts, tmp_path) as (app, _):
        assert app.reload().ok
        texts[0] = gateways("b", "x", "y")
        make = gateway.gateway_poller

        def failing(plan, *more, **named):
            if plan.name == "y":
                raise RuntimeError("can't start new thread")
            return make(plan, *more, **named)

        monkeypatch.setattr(gateway, "gateway_poller", failing)
        outcome = app.reload()
        assert not outcome.ok and "can't start new thread" in outcome.message
        names = {f"gateway:{name}" for name in "abxy"}
        until(lambda: names & {running.name for running in threading.enumerate()} == {"gateway:a", "gateway:b"})
        assert sorted(gateway.name for gateway in app.pollers.gateways) == ["a", "b"]


@pytest.mark.slow
def test_the_running_daemon_takes_the_log_s_level_and_format_from_a_reload(tmp_path):
    config = tmp_path / "c.yaml"
    alone = "listen: 127.0.0.1:0\ngpu: {enabled: false}\ndiscovery: {processes: false}\n"
    config.write_text(alone)
    with programs() as begin:
        program = begin(config)
        config.write_text(f"{alone}log: {{format: json}}\n")
        program.process.send_signal(signal.SIGHUP)
        until(lambda: "reloaded" in program.text())
        (line,) = [line for line in program.log if "reloaded" in line]
        assert json.loads(line)["event"] == "reloaded"
        config.write_text(f"{alone}log: {{format: json, level: error}}\nseries: full\n")
        program.process.send_signal(signal.SIGHUP)
        program.wait_for(lambda page: page.value("shardwatch_config_last_reload_successful") == 1.0)
        program.end()  # the log is written by then
        assert program.text().count("reloaded") == 1
