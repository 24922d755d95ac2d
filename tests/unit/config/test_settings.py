"""What a configuration may say: every good example is read as it is meant, with true defaults."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from exporter.config import settings
from exporter.config.parsers import format_duration
from exporter.config.settings import (
    Address,
    BasicAuth,
    DiscoverySettings,
    EngineSettings,
    GatewaySettings,
    GpuPageSettings,
    GpuSettings,
    HttpSdSettings,
    KubernetesSettings,
    ModelPrice,
    PushSettings,
    Settings,
    StoreSettings,
    TlsSettings,
    Window,
)
from exporter.errors import SettingsError
from tests.support.examples import examples
from tests.support.settings_texts import BAD, CONFIGS, FULL, GOOD, GOOD_BASE, engine, parse


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
        return set(cls.__struct_fields__) - set().union(*entries)

    assert missing(Settings, [shown]) == set()
    assert missing(EngineSettings, shown["engines"]) == set()
    assert missing(TlsSettings, [shown["engines"][1]["tls"]]) == set()
    assert missing(BasicAuth, [shown["engines"][1]["basic_auth"]]) == set()
    assert missing(GatewaySettings, shown["gateways"]) == set()
    assert missing(StoreSettings, shown["stores"]) == set()
    assert missing(GpuPageSettings, shown["gpu"]["pages"]) == set()
    for name in ("gpu", "kernel_log", "nics", "owners", "discovery", "costs", "log"):
        assert missing(type(getattr(Settings(), name)), [shown[name]]) == set()
    assert missing(KubernetesSettings, [shown["discovery"]["kubernetes"]]) == set()
    assert missing(HttpSdSettings, shown["discovery"]["http_sd"]) == set()
    assert missing(PushSettings, shown["push"]) == set()


def test_the_full_example_states_the_true_defaults():
    full = settings.load(str(CONFIGS / "good" / "full.yaml"), {})
    unsaid = {
        "agent_check",
        "web_config_file",
        "engines",
        "gateways",
        "stores",
        "gpu",
        "costs",
        "discovery",
        "kernel_log",
        "push",
    }
    for name in Settings.__struct_fields__:
        if name not in unsaid:
            assert getattr(full, name) == getattr(Settings(), name), name
    assert full.kernel_log.enabled is Settings().kernel_log.enabled
    for name in ("processes", "ray", "ray_file"):
        assert getattr(full.discovery, name) == getattr(DiscoverySettings(), name), name
    for name in ("enabled", "interval", "deadline"):
        assert getattr(full.gpu, name) == getattr(GpuSettings(), name), name
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
    assert dict(full.costs.models) == {"llama-3.3-70b-instruct": ModelPrice(input=0.1, output=0.4)}
    assert dict(full.costs.gpu_hour) == {"NVIDIA H100 80GB HBM3": 2.5, "NVIDIA L40S": 0.8}


def test_an_engine_needs_only_a_url_and_gets_name_path_and_timeout():
    (only,) = parse(engine()).engines
    assert only == EngineSettings(name="127.0.0.1:8000", url="http://127.0.0.1:8000/metrics", timeout=2.0)
    (fast,) = parse(engine("interval: 500ms")).engines
    assert fast.timeout == 2.0, "the deadline may reach past the interval"
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
        discovery = settings.parse(before + text, "test.yaml", {}, base="/base").discovery
        assert discovery.file_sd == ("/base/lists/*.yml", "/etc/a.json")
        assert (discovery.processes, discovery.ray, discovery.ray_file) == (processes, True, "/base/ray.json")
        assert discovery.kubernetes.enabled
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
        ("file_sd: [" + ",".join(f"{n}.json" for n in range(17)) + "]", "discovery.file_sd", "the maximum is 16"),
        ("ray: /tmp/ray", "discovery.ray", "true or false"),
        ("ray_file: ''", "discovery.ray_file", "a file name"),
        ("ray_file: [a]", "discovery.ray_file", "a file name, found a list"),
        ("ray_url: head", "discovery.ray_url", "begins with http"),
        ("ray_url: 'http://u:p@head'", "discovery.ray_url", "token file"),
        ("ray_bearer_token_file: files/token", "discovery.ray_bearer_token_file", "without ray_url"),
        ("http_sd: ['http://a/']", "discovery.http_sd[0]", "a mapping of keys"),
        ("http_sd: [{}]", "discovery.http_sd[0].url", "missing"),
        ("http_sd: [{url: 'http://a/x?token=y'}]", "discovery.http_sd[0].url", "secret"),
        ("http_sd: [{url: 'http://a/x'}, {url: 'http://A:80/x'}]", "discovery.http_sd[1].url", "repeats"),
        ("http_sd: [{url: 'http://a/', tls: {insecure_skip_verify: true}}]", "discovery.http_sd[0].tls", "no effect"),
        (
            "http_sd: [{url: 'https://a/', tls: {cert_file: files/client.pem}}]",
            "discovery.http_sd[0].tls.cert_file",
            "needs key_file",
        ),
        (
            "http_sd: [" + ", ".join(f"{{url: 'http://a/{n}'}}" for n in range(9)) + "]",
            "discovery.http_sd",
            "the maximum is 8",
        ),
        ("kubernetes: true", "discovery.kubernetes", "a mapping of keys"),
        ("kubernetes: {enable: true}", "discovery.kubernetes.enable", "did you mean enabled"),
        ("kubernetes: {token: x}", "discovery.kubernetes.token", "bearer_token_file"),
        ("kubernetes: {url: 'http://10.96.0.1'}", "discovery.kubernetes.url", "unencrypted"),
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


def test_ray_s_dashboard_is_asked_for_its_list_wherever_it_stands():
    def url(text):
        return parse(f"discovery: {{ray_url: '{text}'}}").discovery.ray_url

    assert url("http://head:8265") == url("http://head:8265/") == "http://head:8265/api/prometheus/sd"
    assert url("https://gate/ray/api/prometheus/sd") == "https://gate/ray/api/prometheus/sd"
    assert parse("discovery: {ray_url: 'http://head:8265'}").discovery.ray
    assert not parse("discovery: {ray: false, ray_url: 'http://head:8265'}").discovery.ray
    assert parse("", DISCOVERY_RAY_URL="http://head:8265").discovery.ray


def test_discovery_can_be_switched_on_beside_engines_from_the_environment():
    assert parse(engine(), DISCOVERY_PROCESSES="true").discovery.processes is True


@pytest.mark.parametrize(
    "text, host, port, shown",
    [
        ("0.0.0.0:9853", "0.0.0.0", 9853, "0.0.0.0:9853"),
        ("'[::]:9853'", "::", 9853, "[::]:9853"),
        ("'[fe80::1%eth0]:0'", "fe80::1%eth0", 0, "[fe80::1%eth0]:0"),
        ("node-7.example:65535", "node-7.example", 65535, "node-7.example:65535"),
        ("node-7.example.:1", "node-7.example.", 1, "node-7.example.:1"),
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
@examples(100)
def test_a_canonical_duration_reads_back_as_itself(milliseconds):
    label = format_duration(milliseconds / 1000)
    assert parse(f"windows: [{label}]").windows == (Window(label=label, seconds=milliseconds / 1000),)


def test_windows_and_quantiles_ascend_and_carry_canonical_labels():
    read = parse("windows: [1h, 90s, 300s]\nquantiles: [0.9, 5.e-1]")
    assert [window.label for window in read.windows] == ["1m30s", "5m", "1h"]
    assert read.quantiles == (0.5, 0.9)


def test_two_engines_may_share_a_gpu():
    both = parse("engines: [{url: 'http://a', gpus: [3]}, {url: 'http://b', gpus: [3, GPU-1b2c]}]").engines
    assert [engine.gpus for engine in both] == [(3,), (3, "GPU-1b2c")]


def test_words_of_old_yaml_stay_text():
    assert [
        engine.name for engine in parse("engines: [{name: on, url: 'http://a'}, {name: no, url: 'http://b'}]").engines
    ] == [
        "on",
        "no",
    ]


def test_an_alias_stands_for_its_anchor():
    both = parse("engines: [{url: 'http://a', gpus: &c [1, 2]}, {url: 'http://b', gpus: *c}]").engines
    assert both[0].gpus == both[1].gpus == (1, 2)


def test_records_cannot_be_changed():
    read = parse("costs: {currency: EUR, gpu_hour: {L4: 1}}")
    with pytest.raises(AttributeError):
        read.series = "full"
    with pytest.raises(TypeError):
        read.costs.gpu_hour["L4"] = 0.0
