"""Engines that come and go, as they happen: watchers of files and pods, the app that adopts them, the daemon."""

from __future__ import annotations

import json
import logging
import os
import threading
import time

import pytest

import tests.support.living_engines  # noqa: F401 - whose faults are served by name
from exporter.config.settings import DiscoverySettings, parse
from exporter.model.process import ListeningEngine
from exporter.model.server import ServerRole
from exporter.runtime.app import App
from exporter.runtime.discovery import manager
from exporter.runtime.discovery.manager import PROBE_PERIOD, DiscoveryManager
from exporter.runtime.discovery.registry import TARGET_TTL
from exporter.sources.discovery.file_sd import FileSd
from tests.support.builders import Clock
from tests.support.fault_matrix import programs
from tests.support.malicious_server import FAULTS, MaliciousServer
from tests.support.page_figures import Figures
from tests.support.waiting import until

# ---------------------------------------------------------------------- watchers


@pytest.fixture
def watch(monkeypatch):
    """Yield a Discovery that looks every 50 ms; its threads end with the test."""
    monkeypatch.setattr(manager, "FILES_PERIOD", 0.05)
    made, engines = [], []

    def make(settings="", **more):
        discovery = DiscoveryManager(configured=lambda: engines, on_change=lambda: None, **more)
        made.append(discovery)
        discovery.configure(parse(f"discovery: {{processes: false{settings}}}", "test", {}).discovery)
        return discovery

    yield make
    watchers = [watcher for discovery in made for watcher in discovery._loops.values()]
    for discovery in made:
        discovery.stop()
    for watcher in watchers:
        watcher.poll_loop.join(5)
        assert not watcher.poll_loop._thread.is_alive()


def write(path, *targets, **labels):
    (path.parent / "new").write_text(json.dumps([{"targets": list(targets), "labels": labels}]))
    os.replace(path.parent / "new", path)


def engine_names(discovery):
    return [engine.name for engine in discovery.engines()]


def status(discovery, name):
    return next(status for status in discovery.statuses if status.source == f"discovery:{name}")


def test_a_bad_file_is_a_source_that_is_down_counted_once_and_said_once(watch, tmp_path, caplog):
    path = tmp_path / "a.json"
    write(path, "127.0.0.1:1")
    caplog.set_level(logging.INFO)
    discovery = watch(f", file_sd: ['{path}']")
    until(lambda: engine_names(discovery) == ["127.0.0.1:1"] and status(discovery, "file_sd").up)
    path.write_text('[{"targets"')
    until(lambda: status(discovery, "file_sd").reason == "malformed")
    time.sleep(0.5)
    assert status(discovery, "file_sd").failures == {"malformed": 1}
    assert engine_names(discovery) == ["127.0.0.1:1"]
    write(path, "127.0.0.1:2")
    until(lambda: status(discovery, "file_sd").up and "127.0.0.1:2" in engine_names(discovery))
    states = [line.split()[1:4] for line in caplog.messages if "state=" in line]
    down = ["source=discovery:file_sd", "state=down", "reason=malformed"]
    assert states == [["source=discovery:file_sd", "state=up"], down, ["source=discovery:file_sd", "state=up"]]


def test_targets_that_are_ignored_are_said_once(watch, tmp_path, caplog):
    write(tmp_path / "a.json", "127.0.0.1:1", "what is this")
    discovery = watch(f", file_sd: ['{tmp_path}/*.json']")
    until(lambda: status(discovery, "file_sd").up)
    time.sleep(0.3)
    assert [line for line in caplog.messages if "ignored" in line] == [
        'event=discovery_warning source=discovery:file_sd msg="ignored=1: targets that are no HOST:PORT, or too many"'
    ]


def test_places_are_adopted_and_left_and_those_that_stay_go_on(watch, tmp_path):
    write(tmp_path / "a.json", "127.0.0.1:1")
    write(tmp_path / "ray.json", "127.0.0.1:2", "127.0.0.1:44217")
    discovery = watch(f", file_sd: ['{tmp_path}/a.json'], ray_file: '{tmp_path}/ray.json'")
    until(lambda: engine_names(discovery) == ["127.0.0.1:1", "127.0.0.1:2"])
    assert discovery.loop_restarts == {"discovery": 0}
    thread = discovery._loops["ray"].poll_loop._thread
    old_loop = discovery._loops["file_sd"].poll_loop
    discovery.configure(DiscoverySettings(processes=False, ray=True, ray_file=f"{tmp_path}/ray.json"))
    assert engine_names(discovery) == ["127.0.0.1:2"]
    assert discovery._loops["ray"].poll_loop._thread is thread
    old_loop.join(5)
    assert [status.source for status in discovery.statuses] == ["discovery:ray"]
    discovery.configure(DiscoverySettings(processes=False))
    assert (engine_names(discovery), discovery.statuses, discovery.loop_restarts) == ([], [], {})
    thread.join(5)
    assert not thread.is_alive()


def test_a_place_whose_disk_hangs_is_down_and_keeps_its_engines(watch, tmp_path, monkeypatch):
    write(tmp_path / "a.json", "127.0.0.1:1")
    clock, go_on = Clock(), threading.Event()
    discovery = watch(f", file_sd: ['{tmp_path}/a.json']", clock=clock)
    until(lambda: status(discovery, "file_sd").up)
    hanging, look = threading.Event(), FileSd.refresh

    def hang(self):
        hanging.set()
        go_on.wait(10)
        return look(self)

    monkeypatch.setattr(FileSd, "refresh", hang)
    try:
        clock.now += 1
        assert hanging.wait(5)
        clock.now += 30
        assert (status(discovery, "file_sd").hung, status(discovery, "file_sd").reason) == (True, "hung")
        assert engine_names(discovery) == ["127.0.0.1:1"]
    finally:
        go_on.set()


def test_a_watcher_that_was_replaced_while_it_looked_says_nothing_any_more(watch, tmp_path, monkeypatch):
    write(tmp_path / "a.json", "127.0.0.1:1")
    begun, go_on = threading.Event(), threading.Event()
    look = FileSd.refresh

    def slow(self):
        result = look(self)
        begun.set()
        go_on.wait(10)
        return result

    monkeypatch.setattr(FileSd, "refresh", slow)
    discovery = watch(f", file_sd: ['{tmp_path}/a.json']")
    assert begun.wait(5)
    polling = discovery._loops["file_sd"].poll_loop
    discovery.configure(DiscoverySettings(processes=False))
    go_on.set()
    polling.join(5)
    assert engine_names(discovery) == []


def test_a_bug_in_a_place_is_survived_and_shown(watch, tmp_path, monkeypatch):
    write(tmp_path / "a.json", "127.0.0.1:1")
    looks = []

    def buggy(self):
        looks.append(1)
        raise RuntimeError("on purpose")

    with monkeypatch.context() as patch:
        patch.setattr(FileSd, "refresh", buggy)
        discovery = watch(f", file_sd: ['{tmp_path}/a.json']")
        until(lambda: len(looks) >= 2)
        until(lambda: status(discovery, "file_sd").reason == "internal")
    until(lambda: status(discovery, "file_sd").up)
    assert discovery.loop_restarts["discovery"] >= 2


def test_pods_come_and_go_with_the_api_servers_list_and_only_engines_count(watch, tmp_path, monkeypatch):
    (tmp_path / "token").write_text("t")

    def pod(name, port, path):
        annotations = {"prometheus.io/scrape": "true", "prometheus.io/port": str(port), "prometheus.io/path": path}
        return {
            "metadata": {"name": name, "annotations": annotations}, "spec": {"nodeName": "n1"},
            "status": {"phase": "Running", "podIP": "127.0.0.1"},
        }  # fmt: skip

    with MaliciousServer() as server:
        body = []
        monkeypatch.setitem(FAULTS, "api", lambda peer: peer.reply(body[0]))
        good = [pod("chat-0", server.port, "/living/0"), pod("chat-1", server.port, "/living/1")]
        body.append(json.dumps({"kind": "PodList", "items": [*good, pod("web", server.port, "/no-such")]}).encode())
        url = f"http://127.0.0.1:{server.port}"
        discovery = watch(
            f", kubernetes: {{enabled: true, interval: 1s, url: '{url}', bearer_token_file: '{tmp_path}/token'}}",
            environ={"NODE_NAME": "n1"},
        )
        until(lambda: engine_names(discovery) == ["chat-0", "chat-1"])
        assert status(discovery, "kubernetes").up
        body[0] = b"nonsense"
        until(lambda: status(discovery, "kubernetes").reason == "malformed")
        assert engine_names(discovery) == ["chat-0", "chat-1"]
        body[0] = json.dumps({"kind": "PodList", "items": [*good, pod("chat-2", server.port, "/living/2")]}).encode()
        until(lambda: engine_names(discovery) == ["chat-0", "chat-1", "chat-2"])
        assert len(server.heads("no-such")) == 1
        assert all(b"Authorization" not in head for head in server.heads("living"))


# ---------------------------------------------------------------------- the app and the daemon


def test_a_vanished_engine_is_polled_no_more_and_the_others_go_on(tmp_path):
    clock = Clock()
    app = App(parse("gpu: {enabled: false}", "test", {}), clock=clock)
    try:
        both = [ListeningEngine(host="127.0.0.1", port=port, pid=1, kind="vllm") for port in (1, 2)]
        app.discovery.on_processes(both)
        vanished, stays = app.pollers.replicas.values()
        # An exchange under way would look as if it had taken a minute.
        loops = [poller.poll_loop for poller in (vanished, stays)]
        until(lambda: {(loop.status.reason, loop._exchange_began) for loop in loops} == {("refused", None)})
        clock.now += TARGET_TTL + 1
        app.discovery.on_processes(both[1:])
        assert list(app.pollers.replicas.values()) == [stays]
        vanished.poll_loop.join(5)
        assert not vanished.poll_loop._thread.is_alive()
    finally:
        app.stop()
        stays.poll_loop.join(5)
    app.discovery.on_processes(both)
    assert list(app.pollers.replicas.values()) == [stays]  # nothing begins after the end


def test_a_server_that_may_show_nothing_becomes_a_replica_once_its_page_is_seen_to_be_an_engine_s(monkeypatch):
    clock, pages, asked = Clock(), {}, []

    def probe(url, *, unverified=False):
        asked.append((url, unverified))
        return pages.get(url)

    monkeypatch.setattr(manager, "probe_engine", probe)
    discovery = DiscoveryManager(configured=tuple, on_change=lambda: None, clock=clock)
    triton = ListeningEngine(host="127.0.0.1", port=8002, pid=1, kind="triton", probe=True)
    safe = ListeningEngine(host="::1", port=8000, pid=2, kind="vllm", tls=True)
    discovery.on_processes([triton, safe])
    (engine,) = discovery.engines()
    assert (engine.url, engine.tls.insecure_skip_verify) == ("https://[::1]:8000/metrics", True)
    assert asked == [("http://127.0.0.1:8002/metrics", True)], "who is certain is not asked"
    pages["http://127.0.0.1:8002/metrics"] = True
    discovery.on_processes([triton, safe])
    assert len(discovery.engines()) == 1, "not at every look"
    clock.tick(PROBE_PERIOD)
    discovery.on_processes([triton, safe])
    assert {target.url: target.tls.insecure_skip_verify for target in discovery.engines()} == {
        "https://[::1]:8000/metrics": True, "http://127.0.0.1:8002/metrics": False
    }  # fmt: skip


def test_dynamos_frontend_is_ignored_where_its_workers_report_the_same_requests(monkeypatch):
    clock, shown = Clock(), {"http://127.0.0.1:8000/metrics"}
    monkeypatch.setattr(manager, "probe_engine", lambda url, **_: url in shown)
    discovery = DiscoveryManager(configured=tuple, on_change=lambda: None, clock=clock)
    front = ListeningEngine(host="127.0.0.1", port=8000, pid=1, kind="dynamo", role=ServerRole.FRONTEND, probe=True)
    worker = ListeningEngine(host="127.0.0.1", port=8081, pid=2, kind="dynamo", role=ServerRole.WORKER, probe=True)
    discovery.on_processes([front, worker])
    assert [engine.name for engine in discovery.engines()] == ["127.0.0.1:8000"]
    shown.add("http://127.0.0.1:8081/metrics")
    for _ in range(3):
        clock.tick(TARGET_TTL)
        discovery.on_processes([front, worker])
    assert [engine.name for engine in discovery.engines()] == ["127.0.0.1:8081"]


def test_a_reload_adopts_another_list_and_an_engine_on_both_is_not_disturbed(tmp_path, monkeypatch):
    monkeypatch.setattr(manager, "FILES_PERIOD", 0.05)
    write(tmp_path / "a.json", "127.0.0.1:1", "127.0.0.1:2")
    write(tmp_path / "b.json", "127.0.0.1:2", "127.0.0.1:3")

    def settings(text):
        return parse(
            f"gpu: {{enabled: false}}\ndiscovery: {{processes: false{text}}}", "test", {}, base=str(tmp_path)
        )

    now = [settings(", file_sd: [a.json]")]
    app = App(now[0], reread=lambda: now[0])

    def replicas():
        return {engine.name: poller for engine, poller in app.pollers.replicas.items()}

    threads = set(threading.enumerate())
    app.start()
    try:
        until(lambda: set(replicas()) == {"127.0.0.1:1", "127.0.0.1:2"})
        stays = replicas()["127.0.0.1:2"]
        now[0] = settings(", file_sd: [b.json]")
        assert app.reload().ok
        until(lambda: "127.0.0.1:3" in replicas())
        assert replicas()["127.0.0.1:2"] is stays
        now[0] = settings("")
        assert app.reload().ok
        assert replicas() == {}
    finally:
        app.stop()
    for thread in set(threading.enumerate()) - threads:
        thread.join(5)
        assert not thread.is_alive(), thread.name


def listing(path, *rows):
    text = "".join(f"- {{targets: ['{target}'], labels: {labels}}}\n" for target, labels in rows)
    (path.parent / "new").write_text(text)
    os.replace(path.parent / "new", path)


@pytest.mark.slow
def test_the_daemon_follows_a_rewritten_list_within_seconds_and_a_half_written_one_costs_nothing(tmp_path):
    targets = tmp_path / "targets.yml"
    with MaliciousServer() as server, programs() as start:
        place = f"127.0.0.1:{server.port}"
        listing(targets, (place, "{__metrics_path__: /living/a, replica: a}"))
        (tmp_path / "c.yaml").write_text(
            f"listen: 127.0.0.1:0\ngpu: {{enabled: false}}\nwindows: [10s]\nquantiles: [0.5]\n"
            f"engines: [{{name: mine, url: '{server.url('living/mine')}', interval: 1s, timeout: 800ms}}]\n"
            f"discovery: {{file_sd: [targets.yml], ray_file: ray.json}}\n"
        )
        program = start(tmp_path / "c.yaml")
        page = program.wait_for(lambda page: page.all("llm_up") == [1.0, 1.0])
        assert page.labels("llm_up", "replica") == {"mine", "a"}
        assert page.value("shardwatch_source_up", source="discovery:file_sd") == 1.0
        assert page.labels("shardwatch_source_down_info", "reason", source="discovery:ray") == {"missing"}
        assert page.all("shardwatch_loop_restarts_total", loop="discovery") == [0.0]

        # Beside the configured engine's page, a new one; and the configured page again, which is no other engine.
        rows = [(place, "{__metrics_path__: /living/a, replica: a}"), (place, "{__metrics_path__: /living/mine}")]
        listing(targets, *rows, (place, "{__metrics_path__: /living/b, replica: mine, engine: vllm}"))
        page = program.wait_for(lambda page: page.all("llm_up") == [1.0, 1.0, 1.0], 10)
        assert page.labels("llm_up", "replica") == {"mine", "a", place}

        targets.write_text("- targets: ['half")
        (tmp_path / "ray.json").write_text(json.dumps([{"labels": {"job": "ray"}, "targets": [place]}]))
        page = program.wait_for(
            lambda page: (
                page.labels("shardwatch_source_down_info", "reason", source="discovery:file_sd") == {"malformed"}
                and page.all("shardwatch_source_up", source="discovery:ray") == [1.0]
            ),
            10,
        )
        assert page.value("shardwatch_source_failures_total", source="discovery:file_sd", reason="malformed") == 1.0
        assert page.all("llm_up", replica="a") == [1.0]
        listing(targets, *rows)
        page = program.wait_for(
            lambda page: page.all("shardwatch_source_up", source="discovery:file_sd") == [1.0], 10
        )
        assert page.labels("llm_up", "replica") >= {"mine", "a"}
        code, seconds = program.end()
        assert (code, seconds < 7) == (0, True)
        assert "event=internal_error" not in program.text()
        assert "Traceback" not in program.text()


@pytest.mark.slow
def test_a_single_page_shows_the_engines_of_a_list(tmp_path):
    import subprocess
    import sys

    from tests.support.fault_matrix import bare_environment

    with MaliciousServer() as server:
        listing(tmp_path / "t.yml", (f"127.0.0.1:{server.port}", "{__metrics_path__: /living/a, replica: a}"))
        (tmp_path / "c.yaml").write_text("gpu: {enabled: false}\ndiscovery: {processes: false, file_sd: [t.yml]}\n")
        command = [sys.executable, "-m", "exporter", "once", "--config", str(tmp_path / "c.yaml")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=bare_environment())
    assert done.returncode == 0, done.stderr
    page = Figures(done.stdout)
    assert page.value("llm_up", replica="a") == 1.0
    assert page.value("shardwatch_source_up", source="discovery:file_sd") == 1.0
