"""Engines that come and go, as a list: one replica for each, names that are never shared, few changes at a look."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

import tests.support.living_engines  # noqa: F401 - whose faults are served by name
from exporter.config.settings import EngineSettings
from exporter.runtime.discovery import manager
from exporter.runtime.discovery.manager import MAX_PROBES, PROBE_PERIOD, ProbeFilter
from exporter.runtime.discovery.registry import MAX_CHANGES, MAX_DISCOVERED, TARGET_TTL, TargetRegistry
from exporter.sources.discovery.provider import DiscoveredEngine
from tests.support.builders import Clock
from tests.support.malicious_server import FAULTS, MaliciousServer


def at(place, name="", **more):
    return DiscoveredEngine(url=f"http://{place}/metrics", name=name, **more)


def configured(url, name):
    return EngineSettings(name=name, url=url)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def registry(clock):
    return TargetRegistry(clock=clock, is_local={"10.0.0.9", "127.0.0.1", "::1"}.__contains__)


def names(registry, engines=()):
    return [engine.name for engine in registry.engines(engines)]


# ---------------------------------------------------------------------- the registry


def test_a_process_at_another_address_with_the_same_port_replaces_none(registry):
    """A forged command line on 127.0.0.1 must not replace the engine that has the port on another address."""
    engine = at("10.0.0.9:8000", owner="1000")
    registry.update("processes", [engine], ())
    registry.update("processes", [at("127.0.0.1:8000", owner="1001"), engine], ())
    assert [engine.url for engine in registry.engines(())] == [
        "http://10.0.0.9:8000/metrics", "http://127.0.0.1:8000/metrics",
    ]  # fmt: skip
    assert names(registry, [configured("http://10.0.0.9:8000/metrics", "mine")]) == []


def test_an_engine_at_one_loopback_address_does_not_hide_that_at_the_other(registry):
    own = DiscoveredEngine(url="http://127.0.0.1:8000/metrics", owner="0")
    other = DiscoveredEngine(url="http://[::1]:8000/metrics", owner="1000")
    registry.update("processes", [other, own], ())
    assert sorted(names(registry)) == ["127.0.0.1:8000", "[::1]:8000"]
    assert names(registry, [configured(own.url, "mine")]) == []


def test_whoever_was_first_at_an_address_keeps_it_while_it_lives(registry, clock):
    first = at("127.0.0.1:8000")
    second = DiscoveredEngine(url="https://127.0.0.1:8000/metrics")
    registry.update("processes", [first], ())
    registry.update("processes", [second, first], ())
    assert [engine.url for engine in registry.engines(())] == [first.url]
    registry.update("processes", [replace(second, uses_gpu=True), first], ())
    assert [engine.url for engine in registry.engines(())] == [second.url], "what holds a GPU is no fake"


def test_fakes_of_one_user_leave_room_for_other_users_engines(registry):
    fakes = [at(f"127.0.0.1:{9000 + n}", owner="1001") for n in range(40)]
    registry.update("processes", fakes, ())
    assert len(registry.engines(())) == MAX_DISCOVERED
    engines = [at("127.0.0.1:8000", owner="1000"), at("127.0.0.1:8001", owner="1001", uses_gpu=True)]
    registry.update("processes", [*fakes, *engines], ())
    assert {"127.0.0.1:8000", "127.0.0.1:8001"} <= set(names(registry))
    assert len(registry.engines(())) == MAX_DISCOVERED
    registry.update("processes", [*fakes, *engines], ())
    assert {"127.0.0.1:8000", "127.0.0.1:8001"} <= set(names(registry))


def test_an_owner_with_fakes_above_one_gpu_leaves_room_for_another_owners_gpu(registry):
    fakes = [at(f"127.0.0.1:{9000 + n}", owner="1001", uses_gpu=True) for n in range(MAX_DISCOVERED)]
    registry.update("processes", fakes, ())
    registry.update("processes", [*fakes, at("127.0.0.1:8000", owner="1000", uses_gpu=True)], ())
    assert "127.0.0.1:8000" in names(registry)
    registry.update("processes", [*fakes, at("127.0.0.1:8001", owner="1000")], ())
    assert "127.0.0.1:8001" not in names(registry), "without a GPU it makes nobody's place who has one"


def test_no_two_lists_together_exceed_the_limit(registry):
    """An engine that makes room frees no place while another list has it, too."""
    processes = [at(f"127.0.0.1:{9000 + n}", owner="1001") for n in range(MAX_DISCOVERED)]
    registry.update("processes", processes, ())
    registry.update("ray", [at(f"127.0.0.1:{9000 + n}") for n in range(MAX_DISCOVERED)], ())
    on_gpus = [at(f"127.0.0.1:{8000 + n}", owner="1000", uses_gpu=True) for n in range(MAX_CHANGES)]
    registry.update("processes", [*processes, *on_gpus], ())
    assert len(registry.engines(())) == MAX_DISCOVERED
    assert registry.limit_reached
    registry.remove("processes")
    assert not registry.limit_reached


def test_pods_of_one_namespace_leave_room_for_those_of_another(registry):
    pods = [at(f"10.1.0.{n}:8000", owner="namespace a") for n in range(MAX_DISCOVERED)]
    registry.update("kubernetes", pods, ())
    registry.update("kubernetes", [*pods, at("10.1.1.1:8000", owner="namespace b")], ())
    assert "10.1.1.1:8000" in names(registry)
    registry.update("file_sd", [at(f"10.2.0.{n}:8000") for n in range(MAX_DISCOVERED)], ())
    registry.update("kubernetes", [*pods, at("10.1.1.2:8000", owner="namespace c")], ())
    assert all(name.startswith("10.2.") for name in names(registry)), "lists of the operator come first"


def test_an_engine_listed_anywhere_under_any_name_of_its_place_is_one_replica(registry):
    registry.update("processes", [at("127.0.0.1:8000"), at("[::1]:8001")], ())
    registry.update("kubernetes", [at("10.0.0.9:8000", "pod-0")], ())
    registry.update("ray", [at("localhost:8002"), at("127.0.0.2:8000")], ())
    registry.update("file_sd", [at("10.0.0.9:8000", "chat"), at("Localhost.:8001".lower(), "other")], ())
    assert names(registry) == ["chat", "other", "localhost:8002", "127.0.0.2:8000"]
    assert registry.engines(())[0].url == "http://10.0.0.9:8000/metrics"


def test_an_engine_configured_by_a_name_of_this_machine_is_found_once(clock):
    own = {"127.0.0.1", "node-7"}
    registry = TargetRegistry(clock=clock, is_local=lambda host: host in own)
    mine = [configured("http://node-7:8000/metrics", "chat"), configured("http://other:8000/metrics", "b")]
    assert not registry.update("processes", [at("127.0.0.1:8000")], mine) or not registry.engines(mine)
    assert names(registry, mine) == []


def test_a_name_that_turns_out_to_lead_here_takes_the_engine_that_was_found_back(clock):
    own = {"127.0.0.1"}
    registry = TargetRegistry(clock=clock, is_local=lambda host: host in own)
    mine = [configured("http://chat.example:8000/metrics", "chat")]
    targets = [at("127.0.0.1:8000")]
    assert registry.update("processes", targets, mine) and names(registry, mine) == ["127.0.0.1:8000"]
    assert not registry.update("processes", targets, mine)
    own.add("chat.example")
    assert registry.update("processes", targets, mine), "whoever asks must know that the engines are others now"
    assert names(registry, mine) == []


def test_an_address_that_this_machine_gave_up_is_another_machine_s(clock):
    own = {"127.0.0.1", "10.0.0.9"}
    registry = TargetRegistry(clock=clock, is_local=lambda host: host in own)
    registry.update("file_sd", [at("10.0.0.9:8000", "a")], ())
    registry.update("processes", [at("127.0.0.1:8000")], ())
    assert names(registry) == ["a"]
    own.remove("10.0.0.9")
    assert registry.update("file_sd", [at("10.0.0.9:8000", "a")], ())
    assert names(registry) == ["a", "127.0.0.1:8000"]
    assert [engine.url for engine in registry.engines(())] == [
        "http://10.0.0.9:8000/metrics",
        "http://127.0.0.1:8000/metrics",
    ]


def test_a_configured_engine_wins_by_its_page_and_against_processes_by_its_port(registry):
    mine = [configured("http://127.0.0.1:8000/custom", "mine")]
    registry.update("processes", [at("127.0.0.1:8000")], mine)
    assert names(registry, mine) == []
    registry.update(
        "file_sd", [at("127.0.0.1:8000"), DiscoveredEngine(url="http://10.0.0.9:8000/custom", name="same")], mine
    )
    assert names(registry, mine) == ["127.0.0.1:8000"]
    later = [*mine, configured("http://localhost:8000/metrics", "later")]
    assert names(registry, later) == []


def test_names_are_never_shared_whoever_chose_them(registry):
    registry.update("file_sd", [at("a:1", "chat"), at("b:1", "chat"), at("c:1", "d:1"), at("d:1")], ())
    assert names(registry) == ["chat", "b:1", "d:1", "http://d:1/metrics"]
    mine = [configured("http://127.0.0.1:1/metrics", "chat"), configured("http://127.0.0.1:2/metrics", "b:1")]
    assert names(registry, mine) == ["http://a:1/metrics", "http://b:1/metrics", "d:1", "http://d:1/metrics"]
    assert names(registry) == ["chat", "b:1", "d:1", "http://d:1/metrics"]


def test_a_name_does_not_depend_on_whether_the_process_or_the_list_was_seen_first(clock):
    given = []
    for order in (("processes", "file_sd"), ("file_sd", "processes")):
        registry = TargetRegistry(clock=clock, is_local={"127.0.0.1", "::1"}.__contains__)
        for place in order:
            path = "metrics" if place == "processes" else "m"
            registry.update(place, [DiscoveredEngine(url=f"http://127.0.0.1:8000/{path}")], ())
        given.append([(engine.name, engine.url) for engine in registry.engines(())])
    assert given == [[("127.0.0.1:8000", "http://127.0.0.1:8000/m")]] * 2


def test_the_kind_is_heeded_only_where_there_is_such_a_kind(registry):
    registry.update("file_sd", [at("a:1", kind="vllm"), at("b:1", kind="nonsense"), at("c:1")], ())
    assert [engine.kind for engine in registry.engines(())] == ["vllm", "auto", "auto"]


def test_one_that_is_listed_no_more_stays_a_minute_and_one_that_flickers_stays(registry, clock):
    both = [at("a:1"), at("b:1")]
    assert registry.update("file_sd", both, ())
    assert not registry.update("file_sd", both, ())
    for _ in range(3):
        clock.now += TARGET_TTL - 1
        assert not registry.update("file_sd", both[:1], ())
        clock.now += 1
        assert not registry.update("file_sd", both, ())
    clock.now += TARGET_TTL
    assert not registry.update("file_sd", both[1:], ())
    clock.now += 0.1
    assert registry.update("file_sd", both[1:], ())
    assert names(registry) == ["b:1"]


def test_a_provider_without_an_answer_keeps_its_engines(registry, clock):
    registry.update("file_sd", [at("a:1")], ())
    clock.now += 10 * TARGET_TTL
    registry.update("ray", [], ())
    assert names(registry) == ["a:1"]
    registry.remove("file_sd")
    assert names(registry) == []


def test_an_unstable_list_makes_few_changes_per_refresh_and_never_more_engines_than_the_bound(
    registry, clock, caplog
):
    registry.update("file_sd", [at(f"a{n}:1") for n in range(500)], ())
    assert len(names(registry)) == MAX_DISCOVERED
    assert sum("event=target_limit_reached" in line for line in caplog.messages) == 1
    for look in range(200):
        before = set(names(registry))
        clock.now += 2
        registry.update("file_sd", [at(f"b{look}-{n}:1") for n in range(500)], ())
        registry.update("ray", [at(f"r{look}-{n}:1") for n in range(500)], ())
        now = set(names(registry))
        assert len(now) <= MAX_DISCOVERED
        if look:
            assert len(before ^ now) <= 2 * MAX_CHANGES
    assert len(names(registry)) == MAX_DISCOVERED
    assert all(not name.startswith("a") for name in names(registry))
    assert sum("event=target_limit_reached" in line for line in caplog.messages) == 2


def test_a_pod_that_moved_takes_its_name_along_at_once(registry, clock):
    registry.update("kubernetes", [at("10.1.0.1:1", "chat-0"), at("10.1.0.2:1", "chat-1")], ())
    clock.now += 2
    assert registry.update("kubernetes", [at("10.1.0.7:1", "chat-0"), at("10.1.0.2:1", "chat-1")], ())
    assert {(e.name, e.url) for e in registry.engines(())} == {
        ("chat-0", "http://10.1.0.7:1/metrics"), ("chat-1", "http://10.1.0.2:1/metrics"),
    }  # fmt: skip


def test_a_changed_name_or_kind_is_adopted_and_other_targets_are_not_touched(registry):
    registry.update("file_sd", [at("a:1", "x"), at("b:1", "y")], ())
    before = registry.engines(())
    assert registry.update("file_sd", [at("a:1", "z", kind="tgi"), at("b:1", "y")], ())
    after = registry.engines(())
    assert [(e.name, e.kind) for e in after] == [("z", "tgi"), ("y", "auto")]
    assert after[1] == before[1]


# ---------------------------------------------------------------------- tentative engines


def test_a_tentative_engine_passes_once_its_page_is_an_engines(clock):
    asked = []
    vetting = ProbeFilter(clock, lambda url: asked.append(url) or "good" in url)
    targets = [at("good:1", tentative=True), at("bad:1", tentative=True), at("certain:1")]
    assert [target.url for target in vetting.confirmed(targets)] == [
        "http://good:1/metrics",
        "http://certain:1/metrics",
    ]
    clock.now += PROBE_PERIOD - 1
    assert len(vetting.confirmed(targets)) == 2
    assert len(asked) == 2
    clock.now += 1
    vetting.confirmed(targets)
    assert asked[2:] == ["http://bad:1/metrics"]
    vetting.confirmed([])
    vetting.confirmed(targets)
    assert len(asked) == 5  # who was gone proves itself anew


def test_a_page_of_something_else_is_looked_at_ever_less_often_and_a_silent_pod_every_minute(clock):
    asked = []
    vetting = ProbeFilter(clock, lambda url: asked.append((url, clock.now)) or (None if "silent" in url else False))
    targets = [at("other:1", tentative=True), at("silent:1", tentative=True)]
    begun = clock.now
    while clock.now < begun + 2400:
        vetting.confirmed(targets)
        clock.now += 10
    times = {url: [at - begun for probed, at in asked if probed == url] for url in dict(asked)}
    assert times["http://other:1/metrics"] == [0, 60, 180, 420, 900, 1500, 2100]
    assert times["http://silent:1/metrics"] == list(range(0, 2400, 60))


def test_few_pages_are_looked_at_at_once_and_each_gets_its_turn(clock):
    asked = []
    vetting = ProbeFilter(clock, lambda url: bool(asked.append(url)))
    targets = [at(f"a{n}:1", tentative=True) for n in range(100)]
    for _ in range(8):
        before = len(asked)
        vetting.confirmed(targets)
        assert len(asked) - before <= MAX_PROBES
        clock.now += 2
    assert sorted(asked) == sorted(target.url for target in targets)


def test_fakes_with_new_ports_at_every_refresh_delay_no_other_users_probe(clock):
    """Neither an engine of another user, nor one of the same user that was listed before them."""
    probed = []
    probe_filter = ProbeFilter(clock, probed.append)
    own = DiscoveredEngine(url="http://z:1/metrics", tentative=True, owner="0")
    same = DiscoveredEngine(url="http://z:2/metrics", tentative=True, owner="1000")
    on_gpu = DiscoveredEngine(url="http://z:3/metrics", tentative=True, owner="1000", uses_gpu=True)
    for refresh in range(3):
        clock.now += 2.0
        fakes = [
            DiscoveredEngine(url=f"http://a:{100 * refresh + i}/metrics", tentative=True, owner="1000")
            for i in range(40)
        ]
        probe_filter.confirmed([*fakes, same, own, on_gpu] if refresh == 0 else [*fakes, same, own])
    assert probed[0] == on_gpu.url
    assert own.url in probed[:3]
    assert same.url in probed[:32]


def test_a_page_is_an_engines_or_it_is_not(monkeypatch):
    monkeypatch.setitem(FAULTS, "other", lambda peer: peer.reply(b"node_cpu_seconds_total 1\n"))
    monkeypatch.setitem(FAULTS, "large", lambda peer: peer.reply(b"kube_pod_info 1\n" * 200_000))
    with MaliciousServer() as server:
        assert manager.probe_engine(server.url("living"))
        assert manager.probe_engine(server.url("no-such")) is None
        assert manager.probe_engine(server.url("other")) is False
        assert manager.probe_engine(server.url("large")) is False
    assert manager.probe_engine("http://127.0.0.1:1/metrics") is None
