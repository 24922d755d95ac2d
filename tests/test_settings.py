"""The configuration is read whole or refused whole: every problem with its path and line, and never a secret."""

from __future__ import annotations

import dataclasses
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from conftest import without_root
from hypothesis import HealthCheck, example, given
from hypothesis import settings as profile
from hypothesis import strategies as st

from exporter import settings
from exporter.config.environment import variables
from exporter.config.notation import identity, written
from exporter.errors import SettingsError
from exporter.settings import (
    Address,
    BasicAuth,
    DiscoverySettings,
    EngineSettings,
    GatewaySettings,
    KubernetesSettings,
    Settings,
    TlsSettings,
    Window,
)

CONFIGS = Path(__file__).parent / "configs"
GOOD = sorted((CONFIGS / "good").glob("*.yaml"))
BAD = sorted((CONFIGS / "bad").glob("*.yaml"))
FULL = (CONFIGS / "good" / "full.yaml").read_text()
GOOD_BASE = str(CONFIGS / "good")
CANARY = "s3cr3t:C4n4ry/0123456789"


def parse(text: str, **environ: str) -> Settings:
    return settings.parse(text, "test.yaml", {f"SHARDWATCH_{name}": value for name, value in environ.items()})


def refused(text: str, **environ: str) -> list[tuple[int | None, str, str]]:
    with pytest.raises(SettingsError) as caught:
        parse(text, **environ)
    return [(problem.line, problem.path, problem.message) for problem in caught.value.problems]


def engine(lines: str = "", url: str = "http://127.0.0.1:8000") -> str:
    return f"engines:\n  - url: {url}\n" + "".join(f"    {line}\n" for line in lines.splitlines())


@pytest.fixture(params=["CSafeLoader", "SafeLoader"])
def each_loader(request, monkeypatch):
    if request.param == "SafeLoader":
        monkeypatch.delattr(yaml, "CSafeLoader", raising=False)
    elif not hasattr(yaml, "CSafeLoader"):
        pytest.skip("PyYAML is built without libyaml")
    return request.param


# --- what is accepted -------------------------------------------------------------------------------------------


def test_an_empty_text_gives_the_defaults_of_the_records():
    assert parse("") == Settings() == settings.default({})
    assert parse("# a comment\n---\n") == Settings()
    assert parse("").listen == Address(host="0.0.0.0", port=9853)
    assert parse("").windows == (Window(label="1m", seconds=60.0), Window(label="5m", seconds=300.0))
    assert parse("").quantiles == (0.5, 0.95, 0.99, 0.999)
    assert (parse("").gpu.interval, parse("").gpu.deadline, parse("").gpu.enabled) == (1.0, 2.0, True)
    assert (parse("").series, parse("").reload_endpoint, parse("").web_config_file) == ("common", False, None)


@pytest.mark.parametrize("path", GOOD, ids=lambda path: path.name)
def test_every_good_example_loads_with_either_yaml_library(path, each_loader):
    assert isinstance(settings.load(str(path), {}), Settings)


@pytest.mark.parametrize("path", BAD, ids=lambda path: path.name)
def test_every_bad_example_is_refused_with_its_name_and_a_line(path, each_loader):
    with pytest.raises(SettingsError) as caught:
        settings.load(str(path), {})
    assert str(caught.value).startswith(f"{path}: ")
    assert "line " in str(caught.value)


def test_the_full_example_shows_every_key_that_exists():
    shown = yaml.safe_load(FULL)

    def missing(cls, entries):
        wanted = {spec.name for spec in dataclasses.fields(cls)}
        return wanted - set().union(*entries)

    assert missing(Settings, [shown]) == set()
    assert missing(EngineSettings, shown["engines"]) == set()
    assert missing(TlsSettings, [shown["engines"][1]["tls"]]) == set()
    assert missing(BasicAuth, [shown["engines"][1]["basic_auth"]]) == set()
    assert missing(GatewaySettings, shown["gateways"]) == set()
    for name in ("gpu", "kernel_log", "discovery", "costs", "log"):
        assert missing(type(getattr(Settings(), name)), [shown[name]]) == set()
    assert missing(KubernetesSettings, [shown["discovery"]["kubernetes"]]) == set()


def test_the_full_example_states_the_true_defaults():
    full = settings.load(str(CONFIGS / "good" / "full.yaml"), {})
    unsaid = {"engines", "gateways", "costs", "web_config_file", "discovery", "kernel_log"}
    for spec in dataclasses.fields(Settings):
        if spec.name not in unsaid:
            assert getattr(full, spec.name) == getattr(Settings(), spec.name), spec.name
    assert full.kernel_log.enabled is Settings().kernel_log.enabled
    for name in ("processes", "ray", "ray_file"):
        assert getattr(full.discovery, name) == getattr(DiscoverySettings(), name), name
    for name in ("enabled", "interval"):
        assert getattr(full.discovery.kubernetes, name) == getattr(KubernetesSettings(), name), name


def test_the_full_example_is_read_as_it_is_meant():
    full = settings.load(str(CONFIGS / "good" / "full.yaml"), {})
    chat_a, chat_b = full.engines
    assert chat_a.gpus == (0, 1, 2, 3)
    assert chat_a.bearer_token_file == f"{GOOD_BASE}/files/token"
    assert chat_b.basic_auth == BasicAuth(username="shardwatch", password_file=f"{GOOD_BASE}/files/password")
    assert chat_b.tls.key_file == f"{GOOD_BASE}/files/client.key"
    edge, router = full.gateways
    password = BasicAuth(username="shardwatch", password_file=f"{GOOD_BASE}/files/password")
    assert edge == GatewaySettings(
        name="edge", kind="haproxy", url="http://127.0.0.1:8404/metrics", basic_auth=password
    )
    assert (router.name, router.kind, router.bearer_token_file) == (
        "127.0.0.1:9443", "auto", f"{GOOD_BASE}/files/token",
    )  # fmt: skip
    assert router.tls.ca_file == f"{GOOD_BASE}/files/ca.pem"
    assert dict(full.costs.gpu_hour) == {"NVIDIA H100 80GB HBM3": 2.5, "NVIDIA L40S": 0.8}


def test_an_engine_needs_only_a_url_and_gets_name_path_and_timeout():
    (only,) = parse(engine()).engines
    assert only == EngineSettings(name="127.0.0.1:8000", url="http://127.0.0.1:8000/metrics", timeout=2.0)
    (fast,) = parse(engine("interval: 500ms")).engines
    assert fast.timeout == 0.4
    assert [
        e.name for e in parse("engines: [{url: 'https://Engine.Example'}, {url: 'http://[::1]:80/x'}]").engines
    ] == [
        "engine.example:443",
        "[::1]:80",
    ]


@pytest.mark.parametrize(
    "text, on",
    [
        ("", True),
        ("engines: []", False),
        (engine(), False),
        (engine() + "discovery: {processes: true}", True),
        (engine() + "discovery:", False),
        ("discovery: {processes: false}", False),
        ("engines:\n  # none yet", True),
    ],
)
def test_discovery_is_off_when_engines_are_given_unless_switched_on(text, on):
    assert parse(text).discovery == DiscoverySettings(processes=on)


def test_lists_of_engines_are_followed_beside_configured_ones_and_beside_processes():
    text = "discovery: {file_sd: [lists/*.yml, /etc/a.json], ray_file: ray.json, kubernetes: {enabled: true}}"
    for before, processes in (("", True), (engine() + "\n", False)):
        found = settings.parse(before + text, "test.yaml", {}, base="/base").discovery
        assert found.file_sd == ("/base/lists/*.yml", "/etc/a.json")
        assert (found.processes, found.ray, found.ray_file) == (processes, True, "/base/ray.json")
        assert found.kubernetes.enabled
    assert parse("", DISCOVERY_RAY="true").discovery == DiscoverySettings(ray=True)
    assert parse("", DISCOVERY_FILE_SD="a.json, b.yaml").discovery.file_sd == ("a.json", "b.yaml")
    off = parse("discovery: {ray: false, ray_file: ray.json}").discovery
    assert not off.ray


@pytest.mark.parametrize(
    "text, path, part",
    [
        ("file_sd: [targets.txt]", "discovery.file_sd[0]", ".json, .yml or .yaml"),
        ("file_sd: ['/*/targets.json']", "discovery.file_sd[0]", "only the last part"),
        ("file_sd: targets.json", "discovery.file_sd", "a list of file names"),
        ("file_sd: [a.json, a.json]", "discovery.file_sd[1]", "repeats"),
        ("file_sd: [" + ",".join(f"{n}.json" for n in range(17)) + "]", "discovery.file_sd", "at most 16"),
        ("ray: /tmp/ray", "discovery.ray", "true or false"),
        ("ray_file: ''", "discovery.ray_file", "the name of a file"),
        ("ray_file: [a]", "discovery.ray_file", "the name of a file, found a list"),
        ("kubernetes: true", "discovery.kubernetes", "a mapping of keys"),
        ("kubernetes: {enable: true}", "discovery.kubernetes.enable", "did you mean enabled"),
        ("kubernetes: {token: x}", "discovery.kubernetes.token", "bearer_token_file"),
        ("kubernetes: {url: 'http://10.96.0.1'}", "discovery.kubernetes.url", "in clear"),
        ("kubernetes: {url: 'https://10.96.0.1/api'}", "discovery.kubernetes.url", "/pods"),
        ("kubernetes: {interval: 100ms}", "discovery.kubernetes.interval", "between 1s and 10m"),
        ("kubernetes: {tls: {cert_file: files/client.pem}}", "discovery.kubernetes.tls.cert_file", "needs key_file"),
    ],
)
def test_a_wrong_place_of_discovery_is_refused_with_its_cure(text, path, part):
    with pytest.raises(SettingsError) as caught:
        settings.parse(f"discovery: {{{text}}}", "test.yaml", {}, base=GOOD_BASE)
    assert [(problem.path, part in problem.message) for problem in caught.value.problems] == [(path, True)]


def test_the_pods_are_asked_for_at_an_api_server_or_a_kubelet():
    def url(text):
        return parse(f"discovery: {{kubernetes: {{url: '{text}'}}}}").discovery.kubernetes.url

    assert url("https://10.96.0.1") == url("https://10.96.0.1/") == "https://10.96.0.1"
    assert url("https://[FD00::1]:10250/pods") == "https://[fd00::1]:10250/pods"
    assert url("http://127.0.0.1:8001") == "http://127.0.0.1:8001"


def test_discovery_can_be_switched_on_beside_engines_from_the_environment():
    assert parse(engine(), DISCOVERY_PROCESSES="true").discovery.processes is True


@pytest.mark.parametrize(
    "text, host, port, shown",
    [
        ("0.0.0.0:9853", "0.0.0.0", 9853, "0.0.0.0:9853"),
        ("'[::]:9853'", "::", 9853, "[::]:9853"),
        ("'[fe80::1%eth0]:0'", "fe80::1%eth0", 0, "[fe80::1%eth0]:0"),
        ("node-7.example:65535", "node-7.example", 65535, "node-7.example:65535"),
    ],
)
def test_addresses_read_and_show_alike(text, host, port, shown):
    listen = parse(f"listen: {text}").listen
    assert (listen, str(listen)) == (Address(host=host, port=port), shown)


def test_an_address_on_the_command_line_is_judged_by_the_same_rule():
    assert settings.parse_listen("[::1]:0") == Address(host="::1", port=0)
    with pytest.raises(SettingsError, match="--listen: 1 problem.*HOST:PORT"):
        try:
            settings.parse_listen("9853")
        except SettingsError as error:
            raise SettingsError(error.problems, " ".join(str(error).split())) from None


@pytest.mark.parametrize(
    "text, seconds", [("100ms", 0.1), ("1s", 1), ("1500ms", 1.5), ("59s999ms", 59.999), ("1m", 60), ("0m30s", 30)]
)
def test_durations_have_units(text, seconds):
    assert parse(f"gpu: {{interval: {text}}}").gpu.interval == seconds


@given(st.integers(min_value=10_000, max_value=3_600_000))
@profile(max_examples=100, deadline=None)
def test_a_canonical_duration_reads_back_as_itself(milliseconds):
    label = written(milliseconds / 1000)
    assert parse(f"windows: [{label}]").windows == (Window(label=label, seconds=milliseconds / 1000),)


def test_windows_and_quantiles_ascend_and_carry_canonical_labels():
    read = parse("windows: [1h, 90s, 300s]\nquantiles: [0.9, 5.e-1]")
    assert [window.label for window in read.windows] == ["1m30s", "5m", "1h"]
    assert read.quantiles == (0.5, 0.9)


def test_two_engines_may_share_a_card():
    both = parse("engines: [{url: 'http://a', gpus: [3]}, {url: 'http://b', gpus: [3, GPU-1b2c]}]").engines
    assert [one.gpus for one in both] == [(3,), (3, "GPU-1b2c")]


def test_words_of_old_yaml_stay_text():
    assert [
        one.name for one in parse("engines: [{name: on, url: 'http://a'}, {name: no, url: 'http://b'}]").engines
    ] == [
        "on",
        "no",
    ]


def test_an_alias_stands_for_its_anchor():
    both = parse("engines: [{url: 'http://a', gpus: &c [1, 2]}, {url: 'http://b', gpus: *c}]").engines
    assert both[0].gpus == both[1].gpus == (1, 2)


def test_records_cannot_be_changed():
    read = parse("costs: {currency: EUR, gpu_hour: {L4: 1}}")
    with pytest.raises(dataclasses.FrozenInstanceError):
        read.series = "full"
    with pytest.raises(TypeError):
        read.costs.gpu_hour["L4"] = 0.0


# --- what is refused --------------------------------------------------------------------------------------------

TABLE = {
    # unknown keys
    "misspelt top-level key": ("gpuu: {}", [(1, "gpuu", "did you mean gpu?")]),
    "misspelt nested key": ("gpu:\n  intervall: 1s", [(2, "gpu.intervall", "did you mean interval?")]),
    "key with a hyphen": ("\nreload-endpoint: true", [(2, "reload-endpoint", "did you mean reload_endpoint?")]),
    "key that resembles nothing": ("zzz: 1", [(1, "zzz", "there are: listen, gpu, kernel_log, engines")]),
    "misspelt engine key": (engine("tiemout: 1s"), [(3, "engines[0].tiemout", "did you mean timeout?")]),
    "merge key": ("a: &a {}\ngpu:\n  <<: *a", [(1, "a", "unknown"), (3, "gpu.<<", "merge keys")]),
    "key that may be a secret": ("http://u:hunter2@h/: 1", [(1, "?", "unknown key")]),
    # wrong types
    "number for a truth": ("gpu: {enabled: 1}", [(1, "gpu.enabled", "expected true or false, found a number")]),
    "yes for a truth": ("reload_endpoint: yes", [(1, "reload_endpoint", "expected true or false, found text")]),
    "truth for a number": ("quantiles: [true]", [(1, "quantiles[0]", "found true or false")]),
    "truth for a duration": ("gpu: {interval: true}", [(1, "gpu.interval", "found true or false")]),
    "truth for text": (engine("name: true"), [(3, "engines[0].name", "quotes")]),
    "number for text": (engine("name: 8000"), [(3, "engines[0].name", "put it between quotes")]),
    "list for a mapping": ("gpu: []", [(1, "gpu", "expected a mapping of keys, found a list")]),
    "mapping for a list": (
        "engines:\n  url: http://a",
        [(1, "engines", "expected a list of engines, found a mapping")],
    ),
    "text for a list": ("windows: 1m", [(1, "windows", "expected a list of durations, found text")]),
    "text for an engine": ("engines: [http://a]", [(1, "engines[0]", "expected a mapping of keys, found text")]),
    "nothing for a scalar": ("series:", [(1, "series", "has no value")]),
    "null for a file": ("\nweb_config_file: null", [(2, "web_config_file", "has no value")]),
    "nothing for a url": ("engines:\n  - url:", [(2, "engines[0].url", "has no value")]),
    "nothing for an engine": ("engines:\n  -\n", [(2, "engines[0]", "has no value")]),
    # durations
    "bare number": ("gpu: {interval: 5}", [(1, "gpu.interval", "write 5s")]),
    "bare number in quotes": ("gpu: {interval: '5'}", [(1, "gpu.interval", "write 5s")]),
    "bare fraction": ("gpu: {interval: 0.5}", [(1, "gpu.interval", "needs a unit")]),
    "zero": ("gpu: {deadline: 0s}", [(1, "gpu.deadline", "more than zero")]),
    "negative": ("gpu: {deadline: -2s}", [(1, "gpu.deadline", "more than zero")]),
    "unknown unit": ("gpu: {deadline: 2 sec}", [(1, "gpu.deadline", "expected a number with a unit")]),
    "units in the wrong order": ("gpu: {deadline: 1s1m}", [(1, "gpu.deadline", "largest unit first")]),
    "old sexagesimal": ("gpu: {deadline: 1:30}", [(1, "gpu.deadline", "expected a number with a unit")]),
    "gpu interval too short": ("gpu: {interval: 99ms}", [(1, "gpu.interval", "between 100ms and 1m, is 99ms")]),
    "gpu interval too long": ("gpu: {interval: 1m1ms}", [(1, "gpu.interval", "between 100ms and 1m")]),
    "deadline too long": ("gpu: {deadline: 2m}", [(1, "gpu.deadline", "at most 1m, is 2m")]),
    "engine interval too short": (engine("interval: 199ms"), [(3, "engines[0].interval", "between 200ms and 10m")]),
    "engine interval too long": (engine("interval: 1h"), [(3, "engines[0].interval", "between 200ms and 10m")]),
    "timeout above interval": (
        engine("timeout: 2s\ninterval: 1s"),
        [(3, "engines[0].timeout", "2s is above the interval of 1s")],
    ),
    "timeout above the default interval": (engine("timeout: 6s"), [(3, "engines[0].timeout", "interval of 5s")]),
    # addresses
    "port alone": ("listen: 9853", [(1, "listen", "write 0.0.0.0:9853")]),
    "colon and port": ("listen: ':9853'", [(1, "listen", "write 0.0.0.0:9853")]),
    "no port": ("listen: localhost", [(1, "listen", "expected HOST:PORT")]),
    "port too large": ("listen: 0.0.0.0:65536", [(1, "listen", "above 65535")]),
    "bare ipv6": ("listen: '::1:9853'", [(1, "listen", "in brackets")]),
    "no ipv6 in brackets": ("listen: '[host]:9853'", [(1, "listen", "no IPv6 address")]),
    "impossible ipv4": ("listen: 10.0.0.300:9853", [(1, "listen", "neither a host name nor an IPv4")]),
    # urls
    "url without scheme": (engine(url="127.0.0.1:8000/metrics"), [(2, "engines[0].url", "http://")]),
    "url with other scheme": (engine(url="file:///etc/passwd"), [(2, "engines[0].url", "http://")]),
    "url without host": (engine(url="http:///metrics"), [(2, "engines[0].url", "host is missing")]),
    "url with user": (engine(url="http://u:hunter2@h/"), [(2, "engines[0].url", "user name or password")]),
    "url with fragment": (engine(url="http://h/m#top"), [(2, "engines[0].url", "fragment")]),
    "url with a bad port": (engine(url="http://h:99999/"), [(2, "engines[0].url", "port is malformed")]),
    "url with port 0": (engine(url="http://h:0/"), [(2, "engines[0].url", "port 0")]),
    "url with a space": (engine(url="http://h/a b"), [(2, "engines[0].url", "percent-encode")]),
    "url with a broken ipv6": (engine(url="'http://[::1'"), [(2, "engines[0].url", "malformed")]),
    "url with a token": (engine(url="http://h/m?a=1&API-Key=x"), [(2, "engines[0].url", "secret (api_key)")]),
    "url too long": (engine(url=f"http://h/{'a' * 2048}"), [(2, "engines[0].url", "longer than 2048")]),
    "url missing": ("engines:\n  - name: a", [(2, "engines[0].url", "is missing")]),
    # engines
    "unknown kind": (engine("kind: vlm"), [(3, "engines[0].kind", "did you mean vllm?")]),
    "duplicate name": (
        "engines:\n- {name: a, url: 'http://a'}\n- {name: b, url: 'http://b'}\n- {name: a, url: 'http://c'}",
        [(4, "engines[2].name", "repeats the name of engines[0]")],
    ),
    "name that equals another's default": (
        "engines:\n- {url: 'http://a:1'}\n- {name: 'a:1', url: 'http://c'}",
        [(3, "engines[1].name", "repeats the name of engines[0]")],
    ),
    "default names that clash": (
        "engines:\n- {url: 'http://a:1'}\n- {url: 'http://a:1/other'}",
        [(3, "engines[1].name", "repeats the name of engines[0]")],
    ),
    "duplicate url, spelt otherwise": (
        "engines:\n- {url: 'http://a'}\n- {url: 'http://A:80/metrics'}",
        [(3, "engines[1].url", "repeats the url of engines[0]")],
    ),
    "duplicate name and a wrong url": (
        "engines:\n- {name: a, url: 'http://a'}\n- {name: a, url: 'ftp://a'}",
        [(3, "engines[1].url", "http://"), (3, "engines[1].name", "repeats the name")],
    ),
    "empty name": (engine("name: ''"), [(3, "engines[0].name", "at least one")]),
    "name with a newline": (engine('name: "a\\nb"'), [(3, "engines[0].name", "printable")]),
    "name too long": (engine(f"name: {'n' * 129}"), [(3, "engines[0].name", "longer than 128")]),
    "negative card": (engine("gpus: [-1]"), [(3, "engines[0].gpus[0]", "an index from 0")]),
    "card in quotes": (engine("gpus: ['0']"), [(3, "engines[0].gpus[0]", "without quotes")]),
    "card as a truth": (engine("gpus: [true]"), [(3, "engines[0].gpus[0]", "expected a card")]),
    "card as a fraction": (engine("gpus: [1.0]"), [(3, "engines[0].gpus[0]", "expected a card")]),
    "card that is no uuid": (engine("gpus: [cuda:0]"), [(3, "engines[0].gpus[0]", "GPU-…")]),
    "no cards": (engine("gpus: []"), [(3, "engines[0].gpus", "is empty")]),
    "card twice": (engine("gpus: [0, 1, 0]"), [(3, "engines[0].gpus[2]", "repeats engines[0].gpus[0]")]),
    "uuid twice": (
        engine("gpus: [GPU-00aa, GPU-00AA]"),
        [(3, "engines[0].gpus[1]", "repeats engines[0].gpus[0]")],
    ),
    # secrets and files
    "inline token": (
        engine("bearer_token: hunter2"),
        [(3, "engines[0].bearer_token", "name the file in bearer_token_file")],
    ),
    "inline password of an engine": (engine("password: hunter2"), [(3, "engines[0].password", "password_file")]),
    "inline password": (
        engine("basic_auth: {username: u, password: hunter2}"),
        [
            (3, "engines[0].basic_auth.password", "password_file"),
            (3, "engines[0].basic_auth.password_file", "missing"),
        ],
    ),
    "inline key": (
        engine("tls: {key: hunter2}", url="https://h"),
        [(3, "engines[0].tls.key", "key_file")],
    ),
    "headers": (engine("headers: {Authorization: hunter2}"), [(3, "engines[0].headers", "bearer_token_file")]),
    "token file that is a token": (
        engine("bearer_token_file: hunter2"),
        [(3, "engines[0].bearer_token_file", "cannot be opened: No such file")],
    ),
    "token file that is a folder": (
        engine("bearer_token_file: /"),
        [(3, "engines[0].bearer_token_file", "not a regular file")],
    ),
    "token file with a nul": (
        engine('bearer_token_file: "a\\0b"'),
        [(3, "engines[0].bearer_token_file", "malformed")],
    ),
    "unreadable authority": (
        engine("tls:\n  ca_file: /nonexistent/ca.pem", url="https://h"),
        [(4, "engines[0].tls.ca_file", "cannot be opened")],
    ),
    "unreadable web configuration": ("web_config_file: /nonexistent", [(1, "web_config_file", "cannot be opened")]),
    "user with a colon": (
        engine("basic_auth: {username: 'a:b', password_file: /nonexistent}"),
        [
            (3, "engines[0].basic_auth.username", "must not contain ':'"),
            (3, "engines[0].basic_auth.password_file", "cannot be opened"),
        ],
    ),
    "tls over http": (engine("tls: {insecure_skip_verify: true}"), [(3, "engines[0].tls", "no effect")]),
    # gateways
    "gateway without a url": ("gateways:\n- name: a", [(2, "gateways[0].url", "is missing")]),
    "gateway with tls over http": (
        "gateways:\n- url: http://a\n  tls: {insecure_skip_verify: true}",
        [(3, "gateways[0].tls", "no effect")],
    ),
    "gateway of unknown kind": (
        "gateways:\n- url: http://a\n  kind: traefik",
        [(3, "gateways[0].kind", "there are: auto, haproxy, nginx, envoy, production_stack")],
    ),
    "gateway with cards": (
        "gateways:\n- url: http://a\n  kind: nginx\n  gpus: [0]",
        [(4, "gateways[0].gpus", "unknown key")],
    ),
    "gateways of one name": (
        "gateways:\n- {url: 'http://a', kind: nginx, name: x}\n- {url: 'http://b', kind: nginx, name: x}",
        [(3, "gateways[1].name", "repeats the name of gateways[0]")],
    ),
    # windows, quantiles, costs, the rest
    "window too short": ("windows: [9s]", [(1, "windows[0]", "between 10s and 1h")]),
    "window too long": ("windows: [2h]", [(1, "windows[0]", "between 10s and 1h")]),
    "too many windows": ("windows: [1m, 2m, 3m, 4m, 5m]", [(1, "windows", "at most 4")]),
    "no windows": ("windows: []", [(1, "windows", "is empty")]),
    "window twice": ("windows: [1m, 60s]", [(1, "windows[1]", "repeats windows[0]")]),
    "quantile 1": ("quantiles: [0.5, 1]", [(1, "quantiles[1]", "above 0 and below 1")]),
    "quantile 0": ("quantiles: [0]", [(1, "quantiles[0]", "above 0 and below 1")]),
    "quantile nan": ("quantiles: [.nan]", [(1, "quantiles[0]", "above 0 and below 1")]),
    "quantile as text": ("quantiles: ['0.5']", [(1, "quantiles[0]", "found text")]),
    "quantile twice": ("quantiles: [0.5, 0.50]", [(1, "quantiles[1]", "repeats quantiles[0]")]),
    "too many quantiles": (f"quantiles: {[n / 10 for n in range(1, 10)]}", [(1, "quantiles", "at most 8")]),
    "currency in small letters": ("costs: {currency: usd}", [(1, "costs.currency", "three capital letters")]),
    "price that is text": (
        "costs:\n  currency: USD\n  gpu_hour:\n    L4: 2 USD",
        [(4, "costs.gpu_hour.L4", "expected a price")],
    ),
    "negative price": (
        "costs:\n  currency: USD\n  gpu_hour: {L4: -1, L40S: .inf}",
        [(3, "costs.gpu_hour.L4", "a price from 0"), (3, "costs.gpu_hour.?", "a price from 0")],
    ),
    "prices without a currency": ("costs: {gpu_hour: {L4: 1}}", [(1, "costs.gpu_hour", "without a currency")]),
    "nameless card": ("costs: {currency: USD, gpu_hour: {'': 1}}", [(1, "costs.gpu_hour.?", "a card's name")]),
    "unknown profile": ("series: all", [(1, "series", "common, full")]),
    "unknown level": ("log: {level: warn}", [(1, "log.level", "did you mean warning?")]),
    "unknown format": ("log: {format: text}", [(1, "log.format", "logfmt, json")]),
    # the document
    "repeated key": ("series: full\nlog: {}\nseries: common", [(3, "series", "repeats the key of line 1")]),
    "repeated nested key": (
        "engines:\n  - url: http://a\n    url: http://b",
        [(3, "engines[0].url", "repeats the key of line 2")],
    ),
    "list at the top": ("- a\n- b", [(1, "", "must be a mapping")]),
    "text at the top": ("hunter2", [(1, "", "must be a mapping")]),
    "two documents": ("series: full\n---\nseries: full", [(2, "", "second document")]),
    "tag": ("gpu: !!python/object/apply:os.system [id]", [(1, "gpu", "tag"), (1, "gpu", "a mapping of keys")]),
    "plain tag": ("series: !!str full", [(1, "series", "YAML tag")]),
    "key that is a list": ("? [a]\n: 1", [(1, "", "a key must be a word")]),
    "alias without anchor": ("gpu: *a", [(1, "gpu", "without an anchor")]),
    "alias inside its own anchor": ("gpu: &a {interval: *a}", [(1, "gpu.interval", "without an anchor")]),
    "unclosed bracket": ("engines: [\n", [(None, "", "is not YAML")]),
    "tab": ("gpu:\n\tinterval: 1s", [(2, "", "indent with spaces")]),
    "unquoted ipv6": ("listen: [::]:9853", [(1, "", '"[::]:9853"')]),
    "undefined tag handle": ("series: !hunter2!x", [(1, "", "undefined tag handle")]),
    "control character": ("series: \x07", [(None, "", "is not YAML")]),
    "lone surrogate": ("\nseries: \udc80", [(2, "", "UTF-8")]),
    "too deep": ("gpu: " + "[" * 51 + "]" * 51, [(1, "gpu", "more than 50 deep")]),
    "too many values": (f"windows: [{'a,' * 20_000}]", [(1, "", "more than 20000 values")]),
    "too large": ("#" * (1 << 20) + "\n", [(None, "", "larger than 1024 KiB")]),
    # several at once
    "one of each": (
        "listen: nowhere\ngpu: {interval: 5}\nfoo: 1\nlog:\n  level: loud\nwindows: [1m, 1m, 3]\n",
        [
            (1, "listen", "HOST:PORT"),
            (2, "gpu.interval", "write 5s"),
            (3, "foo", "unknown key"),
            (5, "log.level", "debug, info"),
            (6, "windows[1]", "repeats"),
            (6, "windows[2]", "write 3s"),
        ],
    ),
    "a wrong interval does not make its timeout wrong": (
        engine("interval: 500\ntimeout: 400s"),
        [(3, "engines[0].interval", "needs a unit")],
    ),
    "three engines, each with its own": (
        "engines:\n- url: http://a\n  gpus: [x]\n- url: nowhere\n  kind: tgi3\n- url: http://a/metrics\n  timeout: 0s",
        [
            (3, "engines[0].gpus[0]", "expected a card"),
            (4, "engines[1].url", "http://"),
            (5, "engines[1].kind", "did you mean tgi?"),
            (6, "engines[2].url", "repeats the url of engines[0]"),
            (7, "engines[2].timeout", "more than zero"),
        ],
    ),
}


@pytest.mark.parametrize("text, wanted", TABLE.values(), ids=TABLE)
def test_a_bad_configuration_is_refused_with_every_path_line_and_reason(text, wanted, each_loader):
    problems = refused(text)
    assert sorted(path for _, path, _ in problems) == sorted(path for _, path, _ in wanted)
    for line, path, word in wanted:
        fitting = [found for found in problems if found[1] == path and word in found[2]]
        assert fitting, (path, word, problems)
        if line is not None:
            assert fitting[0][0] == line
    assert "hunter2" not in str(problems)


def test_the_table_is_as_large_as_it_should_be():
    assert len(TABLE) >= 40


def test_problems_come_in_the_order_of_the_file():
    lines = [line for line, _, _ in refused(TABLE["one of each"][0])]
    assert lines == sorted(lines)


def test_certificate_and_key_go_together(tmp_path):
    (tmp_path / "pem").write_text("x")
    (tmp_path / "pem").chmod(0o600)
    for key, other in (("cert_file", "key_file"), ("key_file", "cert_file")):
        problems = refused(engine(f"tls: {{{key}: '{tmp_path}/pem'}}", url="https://h"))
        assert problems == [(3, f"engines[0].tls.{key}", f"needs {other} beside it")]


def test_a_request_carries_a_token_or_a_password_not_both(tmp_path):
    (tmp_path / "t").write_text("x")
    (tmp_path / "t").chmod(0o600)
    lines = f"bearer_token_file: {tmp_path}/t\nbasic_auth: {{username: u, password_file: '{tmp_path}/t'}}"
    assert [(line, path) for line, path, _ in refused(engine(lines))] == [(4, "engines[0].basic_auth")]


def test_a_secret_file_must_hold_something_and_not_be_everybodys(tmp_path, caplog):
    secret = tmp_path / "token"
    secret.touch(0o600)
    assert "is empty" in refused(engine(f"bearer_token_file: {secret}"))[0][2]
    secret.write_text(CANARY)
    secret.chmod(0o602)
    assert "chmod o-w" in refused(engine(f"bearer_token_file: {secret}"))[0][2]
    secret.chmod(0o604)
    with caplog.at_level(logging.WARNING):
        assert parse(engine(f"bearer_token_file: {secret}")).engines[0].bearer_token_file == str(secret)
    assert "secret_file_readable_by_everybody path=engines[0].bearer_token_file" in caplog.text
    caplog.clear()
    secret.chmod(0o600)
    parse(engine(f"bearer_token_file: {secret}"))
    assert caplog.text == ""


def test_a_file_without_the_right_to_read_it_is_refused(tmp_path):
    (tmp_path / "t").touch(0)
    with without_root():
        assert "Permission denied" in refused(engine(f"bearer_token_file: {tmp_path}/t"))[0][2]


def test_a_pipe_nobody_writes_to_holds_nothing_up(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert "not a regular file" in refused(engine(f"bearer_token_file: {tmp_path}/pipe"))[0][2]
    with pytest.raises(SettingsError, match="not a regular file"):
        settings.load(str(tmp_path / "pipe"), {})


def test_refused_files_leave_no_descriptor_behind(tmp_path):
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        refused(engine(f"bearer_token_file: {tmp_path}\ntls: {{ca_file: /dev/null}}", url="https://h"))
        with pytest.raises(SettingsError):
            settings.load(str(tmp_path), {})
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_file_that_cannot_be_read_does_not_hide_a_bad_variable(tmp_path):
    with pytest.raises(SettingsError) as caught:
        settings.load(str(tmp_path / "none.yaml"), {"SHARDWATCH_SERIES": "al"})
    assert [problem.path for problem in caught.value.problems] == ["", "$SHARDWATCH_SERIES"]


def test_relative_files_start_from_the_folder_of_the_configuration(tmp_path, monkeypatch):
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "web.yaml").write_text("{}")
    (tmp_path / "conf" / "a.yaml").write_text("web_config_file: web.yaml")
    monkeypatch.chdir(tmp_path)
    assert settings.load("conf/a.yaml", {}).web_config_file == str(tmp_path / "conf" / "web.yaml")
    with pytest.raises(SettingsError):
        settings.default({"SHARDWATCH_WEB_CONFIG_FILE": "web.yaml"})


@pytest.mark.parametrize(
    "content, word",
    [
        (b"\xff\xfes\x00", "UTF-8"),
        (b"\n\n\xe9", "line 3"),
        ("#é".encode() * (1 << 20), "larger"),
        (None, "No such file"),
    ],
)
def test_a_file_that_cannot_be_a_configuration_is_refused(tmp_path, content, word):
    path = tmp_path / "a.yaml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SettingsError, match=word) as caught:
        settings.load(str(path), {})
    assert len(caught.value.problems) == 1
    with pytest.raises(SettingsError, match="malformed"):
        settings.load("a\0b", {})


def test_a_byte_order_mark_and_windows_line_ends_do_no_harm(tmp_path, each_loader):
    (tmp_path / "a.yaml").write_bytes(b"\xef\xbb\xbfseries: full\r\ngpu:\r\n  interval: 2s\r\n")
    read = settings.load(str(tmp_path / "a.yaml"), {})
    assert (read.series, read.gpu.interval) == ("full", 2.0)


def test_an_alias_bomb_meets_the_bound_on_values(each_loader):
    rows = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    rows += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
    problems = refused("\n".join(rows))
    assert [(line, message[:26]) for line, _, message in problems] == [(5, "has more than 20000 values")]


def test_aliases_cannot_nest_deeper_than_the_bound(each_loader):
    rows = ["a0: &a0 [x]", *(f"a{n}: &a{n} [*a{n - 1}]" for n in range(1, 60))]
    assert "nested more than 50 deep" in refused("\n".join(rows))[0][2]


def test_only_so_many_engines_fit_one_node():
    assert "at most 256" in refused("engines: [" + "{url: 'http://a'}," * 257 + "]")[0][2]


# --- the environment --------------------------------------------------------------------------------------------


def test_the_variables_follow_from_the_record():
    assert set(variables(Settings)) == {
        "SHARDWATCH_LISTEN",
        "SHARDWATCH_GPU_ENABLED",
        "SHARDWATCH_GPU_INTERVAL",
        "SHARDWATCH_GPU_DEADLINE",
        "SHARDWATCH_KERNEL_LOG_ENABLED",
        "SHARDWATCH_KERNEL_LOG_PATH",
        "SHARDWATCH_DISCOVERY_PROCESSES",
        "SHARDWATCH_DISCOVERY_RAY",
        "SHARDWATCH_DISCOVERY_RAY_FILE",
        "SHARDWATCH_DISCOVERY_FILE_SD",
        "SHARDWATCH_DISCOVERY_KUBERNETES_ENABLED",
        "SHARDWATCH_DISCOVERY_KUBERNETES_URL",
        "SHARDWATCH_DISCOVERY_KUBERNETES_NODE_NAME",
        "SHARDWATCH_DISCOVERY_KUBERNETES_INTERVAL",
        "SHARDWATCH_DISCOVERY_KUBERNETES_BEARER_TOKEN_FILE",
        "SHARDWATCH_DISCOVERY_KUBERNETES_TLS_CA_FILE",
        "SHARDWATCH_DISCOVERY_KUBERNETES_TLS_CERT_FILE",
        "SHARDWATCH_DISCOVERY_KUBERNETES_TLS_KEY_FILE",
        "SHARDWATCH_DISCOVERY_KUBERNETES_TLS_SERVER_NAME",
        "SHARDWATCH_DISCOVERY_KUBERNETES_TLS_INSECURE_SKIP_VERIFY",
        "SHARDWATCH_WINDOWS",
        "SHARDWATCH_QUANTILES",
        "SHARDWATCH_COSTS_CURRENCY",
        "SHARDWATCH_SERIES",
        "SHARDWATCH_RELOAD_ENDPOINT",
        "SHARDWATCH_WEB_CONFIG_FILE",
        "SHARDWATCH_LOG_LEVEL",
        "SHARDWATCH_LOG_FORMAT",
    }


@pytest.mark.parametrize(
    "name, text, value",
    [
        ("LISTEN", "[::1]:0", Address(host="::1", port=0)),
        ("GPU_ENABLED", "false", False),
        ("GPU_INTERVAL", "250ms", 0.25),
        ("GPU_DEADLINE", "3s", 3.0),
        ("DISCOVERY_PROCESSES", "false", False),
        ("WINDOWS", "10m, 30s", (Window(label="30s", seconds=30.0), Window(label="10m", seconds=600.0))),
        ("QUANTILES", "0.9,0.5", (0.5, 0.9)),
        ("COSTS_CURRENCY", "EUR", "EUR"),
        ("SERIES", "full", "full"),
        ("RELOAD_ENDPOINT", "true", True),
        (
            "WEB_CONFIG_FILE",
            os.path.join(GOOD_BASE, "files", "web.yaml"),
            os.path.join(GOOD_BASE, "files", "web.yaml"),
        ),
        ("LOG_LEVEL", "debug", "debug"),
        ("LOG_FORMAT", "json", "json"),
    ],
)
def test_every_variable_overrides_its_key_with_and_without_a_file(name, text, value):
    dotted = variables(Settings)[f"SHARDWATCH_{name}"]
    for read in (
        settings.default({f"SHARDWATCH_{name}": text}),
        settings.load(str(CONFIGS / "good" / "full.yaml"), {f"SHARDWATCH_{name}": text}),
    ):
        found = read
        for part in dotted.split("."):
            found = getattr(found, part)
        assert found == value


def test_what_a_variable_does_not_name_stays_as_the_file_says():
    read = parse("gpu: {interval: 3s, deadline: 4s}", GPU_INTERVAL="5s")
    assert (read.gpu.interval, read.gpu.deadline) == (5.0, 4.0)


def test_a_mistake_in_the_file_is_reported_though_a_variable_hides_it():
    assert [path for _, path, _ in refused("series: al", SERIES="full")] == ["series"]


@pytest.mark.parametrize(
    "name, text, word",
    [
        ("LISTE", "x", "did you mean SHARDWATCH_LISTEN?"),
        ("GPU_INTERVAL", "5", "write 5s"),
        ("GPU_ENABLED", "yes", "expected true or false"),
        ("LISTEN", "9853", "write 0.0.0.0:9853"),
        ("SERIES", "", "is set but empty"),
        ("SERIES", " ", "is set but empty"),
        ("WINDOWS", "1m,", "expected a number with a unit"),
        ("WINDOWS", "1m,60s", "repeats an earlier entry"),
        ("QUANTILES", "0.5,high", "above 0 and below 1"),
        ("WEB_CONFIG_FILE", "/nonexistent", "cannot be opened"),
        ("COSTS_CURRENCY", "dollar", "three capital letters"),
        ("COSTS_GPU_HOUR", "1", "no such variable"),
        ("ENGINES", "http://a", "no such variable"),
        ("PORT", "9853", "no such variable"),
        ("SERIES", "\udc80", "UTF-8"),
    ],
)
def test_a_bad_variable_is_a_problem_under_its_own_name(name, text, word):
    ((line, path, message),) = refused("", **{name: text})
    assert (line, path) == (None, f"$SHARDWATCH_{name}")
    assert word in message


def test_bad_variables_are_reported_together_with_a_bad_file():
    problems = refused("foo: 1\n- x", LISTEN="nowhere", FOO="1")
    assert {path for _, path, _ in problems} == {"", "$SHARDWATCH_LISTEN", "$SHARDWATCH_FOO"}


def test_service_links_of_a_cluster_are_nobodys_mistake():
    links = {
        "SHARDWATCH_SERVICE_HOST": "10.0.0.1",
        "SHARDWATCH_SERVICE_PORT": "9853",
        "SHARDWATCH_SERVICE_PORT_METRICS": "9853",
        "SHARDWATCH_PORT": "tcp://10.0.0.1:9853",
        "SHARDWATCH_PORT_9853_TCP": "tcp://10.0.0.1:9853",
        "SHARDWATCH_PORT_9853_TCP_ADDR": "10.0.0.1",
        "SHARDWATCH_METRICS_SERVICE_HOST": "10.0.0.1",
        "SHARDWATCHX": "of another program",
        "PATH": "/bin",
    }
    assert settings.default(links) == Settings()


# --- secrets ----------------------------------------------------------------------------------------------------


def places(node, path=()):
    if isinstance(node, dict):
        for name, child in node.items():
            yield from places(child, (*path, name))
    elif isinstance(node, list):
        for position, child in enumerate(node):
            yield from places(child, (*path, position))
    yield path


def with_canary(path, value):
    tree = {"root": yaml.safe_load(FULL)}
    node, last = tree, "root"
    for step in path:
        node, last = node[last], step
    node[last] = value
    return yaml.safe_dump(tree["root"], sort_keys=False)


@pytest.mark.parametrize(
    "value",
    [
        CANARY,
        f"http://user:{CANARY}@host/",
        f"http://host/?q={CANARY}#",
        {CANARY: CANARY},
        [CANARY],
        {"password": CANARY},
    ],
    ids=["text", "userinfo", "query", "key", "list", "password"],
)
def test_no_message_shows_a_secret_wherever_it_was_pasted(value, caplog):
    said = []
    for path in places(yaml.safe_load(FULL)):
        try:
            settings.parse(with_canary(path, value), "test.yaml", {}, base=GOOD_BASE)
        except SettingsError as error:
            said.append(f"{error} {error!r} {error.__cause__} {error.problems}")
    assert len(said) > 30
    assert [text for text in (*said, caplog.text) if CANARY in text] == []


@pytest.mark.parametrize(
    "text", [f"a: '{CANARY}", f"a: !{CANARY}", f"- {CANARY}: [", f'"\\{CANARY}"', f"%{CANARY} x", f"*{CANARY}"]
)
def test_no_syntax_error_shows_what_stands_around_it(text, each_loader):
    with pytest.raises(SettingsError) as caught:
        parse(text)
    for part in (CANARY, "s3cr3t", "C4n4ry"):
        assert part not in str(caught.value)


@pytest.mark.parametrize("name", [*variables(Settings), "SHARDWATCH_TOKEN"])
def test_no_variable_shows_its_value(name):
    with pytest.raises(SettingsError) as caught:
        settings.default({name: CANARY, "SHARDWATCH_NONSENSE": "so that names, which take any text, are refused too"})
    assert CANARY not in str(caught.value)


def test_settings_hold_file_names_and_show_neither_secrets_nor_queries(tmp_path):
    secret = tmp_path / "token"
    secret.write_text(CANARY)
    secret.chmod(0o600)
    (only,) = parse(engine(f"bearer_token_file: {secret}", url=f"http://h/m?q={CANARY}")).engines
    assert CANARY not in repr(only)
    assert only.shown_url == "http://h/m?…"
    assert CANARY in only.url


# --- nothing else happens ---------------------------------------------------------------------------------------

ALONE = """
import sys

def watch(event, _):
    if event.split(".")[0] in {"socket", "subprocess", "ftplib", "http", "urllib"} or event == "os.system":
        raise RuntimeError(event)

sys.addaudithook(watch)
from exporter import errors, settings

for path in sys.argv[1:]:
    try:
        settings.load(path, {})
    except errors.SettingsError as error:
        print(len(error.problems))
    else:
        print(0)
"""


def alone(code, *arguments):
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_reading_a_configuration_takes_no_network_and_starts_nothing(tmp_path):
    (tmp_path / "bad.yaml").write_text("engines: [{url: 'http://engine.example:1', kind: no}]\nlisten: localhost:1x")
    counts = alone(ALONE, str(tmp_path / "bad.yaml"), str(CONFIGS / "bad" / "many_problems.yaml"), str(GOOD[0]))
    assert counts == ["2", "8", "0"]


def test_a_daemon_without_a_file_does_not_load_yaml():
    code = "import sys; from exporter import settings; settings.default({}); print(*sys.modules)"
    assert {"yaml", "difflib", "requests", "urllib3", "asyncio", "http.server", "ssl"}.isdisjoint(alone(code))


# --- whatever is thrown at it -----------------------------------------------------------------------------------


def survives(text):
    problems, read = [], None
    try:
        read = settings.parse(text, "test.yaml", {}, base=GOOD_BASE)
    except SettingsError as error:
        problems = error.problems
        str(error).encode()
    if read is None:
        assert problems
        assert all(problem.message and "\n" not in str(problem) for problem in problems)
    else:
        assert len({one.name for one in read.engines}) == len({identity(one.url) for one in read.engines})
        assert all(0 < one.timeout <= one.interval for one in (*read.engines, *read.gateways))


HOSTILE = [
    '"\\UFFFFFFFF"',
    'a: "\\uD800"',
    "%YAML 1." + "9" * 5000 + "\n---\na: 1",
    "? ? ? :",
    "<<: *x",
    "\0",
    "a: !<",
    "&a *a",
]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_what_breaks_a_yaml_library_is_a_problem_like_any_other(text, each_loader):
    assert refused(text)


@given(st.text())
@example('"\\UFFFFFFFF"')
@example('gpu: {interval: "\\uD800"}')
@example("%YAML 1." + "9" * 5000 + "\n---\na: 1")
@example("? ? ? :")
@example("<<: *x")
@example("\ud800")
@example("engines: [{url: 'http://[v1.x]/'}, {url: 'http://\u2100/'}, {url: 'http://h:٣/'}]")
@profile(max_examples=150, deadline=None)
def test_no_text_raises_anything_else(text):
    survives(text)


@given(st.text(alphabet=" \n\t:-[]{}&*!|>'\"%@`#,?<ae01.~\\", max_size=60))
@profile(max_examples=300, deadline=None)
def test_no_text_of_yaml_signs_raises_anything_else(text):
    survives(text)


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["1s", "http://a", "http://[::1", "GPU-0000", "a:1", "1" * 5000, "vllm"]),
    lambda child: (
        st.lists(child, max_size=3)
        | st.dictionaries(
            st.text(max_size=4) | st.sampled_from(["url", "name", "tls", "interval", "kind"]), child, max_size=3
        )
    ),
    max_leaves=6,
)


@given(path=st.sampled_from(list(places(yaml.safe_load(FULL)))), value=values)
@profile(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_no_value_in_the_place_of_another_raises_anything_else(path, value):
    survives(with_canary(path, value))


@given(start=st.integers(0, len(FULL)), length=st.integers(0, 40), instead=st.text(max_size=6))
@profile(max_examples=250, deadline=None)
def test_no_damage_to_a_good_file_raises_anything_else(start, length, instead):
    survives(FULL[:start] + instead + FULL[start + length :])
