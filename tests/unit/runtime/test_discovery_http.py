"""Lists of engines that servers give: http_sd and Ray's dashboard, honest, slow and hostile."""

from __future__ import annotations

import json
import time

import pytest

import tests.support.malicious_pages  # noqa: F401 - whose faults are served by name
from exporter.config.settings import parse
from exporter.http.client.client import Target
from exporter.runtime.discovery import manager
from exporter.runtime.discovery.manager import DiscoveryManager
from exporter.sources.discovery.http_sd import HttpList, HttpSd
from exporter.sources.discovery.ray import Ray
from tests.support.malicious_server import FAULTS, MaliciousServer
from tests.support.waiting import CEILING, until


@pytest.fixture
def server():
    with MaliciousServer() as running:
        yield running


@pytest.fixture
def served(monkeypatch):
    """What each path of the server answers with; None hangs."""
    bodies = {}

    def give(peer, name):
        body = bodies[name]
        if body is None:
            return peer.silence()
        return peer.reply(body if isinstance(body, bytes) else json.dumps(body).encode())

    for name in ("one", "two"):
        monkeypatch.setitem(FAULTS, name, lambda peer, name=name: give(peer, name))
    return bodies


def group(*targets, **labels):
    return {"targets": list(targets), "labels": labels}


def urls(result):
    return [engine.url for engine in result.engines]


def lists(server, *names, timeout=CEILING):
    return HttpSd([Target(url=server.url(name), timeout=timeout) for name in names])


def test_lists_of_several_servers_are_read_like_files_and_followed(server, served):
    labels = {"__scheme__": "https", "__metrics_path__": "/m", "replica": "chat", "engine": "vllm", "job": "x"}
    served["one"] = [group("10.0.0.1:8000", **labels), group("b:1")]
    served["two"] = [group("b:1", "c:1"), group("no/host")]
    place = lists(server, "one", "two")
    result = place.refresh()
    assert urls(result) == ["https://10.0.0.1:8000/m", "http://b:1/metrics", "http://c:1/metrics"]
    assert (result.engines[0].name, result.engines[0].kind, result.problem) == ("chat", "vllm", None)
    assert result.warning.startswith("ignored=1:")
    served["one"] = []
    assert urls(place.refresh()) == ["http://b:1/metrics", "http://c:1/metrics"], "an empty list lists nothing"
    place.close()


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "empty"),
        (b"[{", "malformed"),
        (b"\xff\xfe", "malformed"),
        (b'{"targets": []}', "malformed"),
        (b"- targets: [a:1]", "malformed"),
        (b"[" * 60_000, "too_large"),
        (b"[" + b" " * (2 << 20) + b"]", "too_large"),
        (None, "timeout"),
    ],
)
def test_a_bad_answer_keeps_the_last_good_list_of_its_own_server_alone(server, served, body, reason):
    served["one"], served["two"] = [group("a:1")], [group("b:1")]
    place = lists(server, "one", "two", timeout=CEILING if body else 1.0)
    place.refresh()
    served["one"], served["two"] = body, [group("b:2")]
    result = place.refresh()
    assert result.problem.reason == reason
    assert urls(result) == ["http://a:1/metrics", "http://b:2/metrics"]
    served["one"] = [group("a:2")]
    healed = place.refresh()
    assert healed.problem is None and urls(healed) == ["http://a:2/metrics", "http://b:2/metrics"]
    place.close()


def test_a_server_that_refuses_is_named_without_its_query(server):
    place = lists(server, "no-such?team=x")
    problem = place.refresh().problem
    assert problem.reason == "http_404" and "team" not in str(problem)
    place.close()


def test_the_agents_of_this_machine_are_taken_out_of_what_ray_s_dashboard_lists(server, served, tmp_path):
    served["one"] = [group("10.0.0.1:19180", "10.0.0.2:19180", "10.0.0.1:44217", "10.0.0.1:44227", job="ray")]
    (tmp_path / "token").write_text("t0ken")
    target = Target(url=server.url("one"), timeout=CEILING, bearer_token_file=str(tmp_path / "token"))
    ray = Ray(HttpList(target), addresses=lambda: frozenset({"10.0.0.1"}))
    assert urls(ray.refresh()) == ["http://10.0.0.1:19180/metrics"]
    assert b"Authorization: Bearer t0ken" in server.heads("one")[0]
    served["one"] = b"<html>log in</html>"
    result = ray.refresh()
    assert urls(result) == ["http://10.0.0.1:19180/metrics"] and result.problem.reason == "malformed"
    ray.close()


def test_the_settings_lists_become_engines_and_their_health_is_shown(server, served, monkeypatch):
    monkeypatch.setattr(manager, "LISTS_PERIOD", 0.05)
    served["one"], served["two"] = [group("a:1", replica="chat")], [group("127.0.0.1:19180")]
    wanted = parse(
        f"discovery: {{processes: false, http_sd: [{{url: '{server.url('one')}'}}], ray_url: '{server.url('two')}'}}",
        "test",
        {},
    )
    discovery = DiscoveryManager(configured=tuple, on_change=lambda: None)
    discovery.configure(wanted.discovery)
    try:
        until(lambda: {engine.name for engine in discovery.engines()} == {"chat", "127.0.0.1:19180"})
        until(
            lambda: (
                {status.source for status in discovery.statuses if status.up}
                == {"discovery:http_sd", "discovery:ray"}
            )
        )
        served["one"] = b"nonsense"
        until(lambda: {status.reason for status in discovery.statuses} == {"", "malformed"})
        assert len(discovery.engines()) == 2
        served["one"] = [group("b:1", replica="chat")]
        until(lambda: "http://b:1/metrics" in {engine.url for engine in discovery.engines()})
        assert all(b"Authorization" not in head for head in server.heads("one"))
        discovery.configure(parse("discovery: {processes: false}", "test", {}).discovery)
        assert discovery.engines() == ()
    finally:
        discovery.stop()


def test_servers_that_hang_are_done_within_their_deadlines(server, served):
    served["one"] = served["two"] = None
    begun = time.monotonic()
    place = lists(server, "one", "two", timeout=0.3)
    assert place.refresh().problem.reason == "timeout"
    assert time.monotonic() - begun < CEILING  # they hang for ever
    place.close()
