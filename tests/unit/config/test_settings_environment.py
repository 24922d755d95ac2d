"""Variables of the environment: each overrides its key, and a bad one is a problem under its own name."""

from __future__ import annotations

import pytest

from exporter.config import settings
from exporter.config.environment import variables
from exporter.config.settings import SECTION, Address, Settings, Window
from tests.support.settings_texts import CONFIGS, GOOD_BASE, parse, refused


def test_the_variables_follow_from_the_record():
    assert set(variables(SECTION)) == {
        "SHARDWATCH_AGENT_CHECK",
        "SHARDWATCH_WEB_PAGE",
        "SHARDWATCH_LISTEN",
        "SHARDWATCH_UNAUTHENTICATED_HEALTH",
        "SHARDWATCH_GPU_ENABLED",
        "SHARDWATCH_GPU_INTERVAL",
        "SHARDWATCH_GPU_DEADLINE",
        "SHARDWATCH_KERNEL_LOG_ENABLED",
        "SHARDWATCH_KERNEL_LOG_PATH",
        "SHARDWATCH_OWNERS_ENABLED",
        "SHARDWATCH_OWNERS_DCGM_LABELS",
        "SHARDWATCH_NICS_ENABLED",
        "SHARDWATCH_NICS_SYSFS",
        "SHARDWATCH_DISCOVERY_PROCESSES",
        "SHARDWATCH_DISCOVERY_RAY",
        "SHARDWATCH_DISCOVERY_RAY_FILE",
        "SHARDWATCH_DISCOVERY_RAY_USERS",
        "SHARDWATCH_DISCOVERY_RAY_URL",
        "SHARDWATCH_DISCOVERY_POD_RESOURCES",
        "SHARDWATCH_DISCOVERY_RAY_BEARER_TOKEN_FILE",
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
        ("DISCOVERY_KUBERNETES_TLS_CA_FILE", f"{GOOD_BASE}/files/ca.pem", f"{GOOD_BASE}/files/ca.pem"),
        ("LOG_LEVEL", "debug", "debug"),
        ("LOG_FORMAT", "json", "json"),
    ],
)
def test_every_variable_overrides_its_key_with_and_without_a_file(name, text, value):
    dotted = variables(SECTION)[f"SHARDWATCH_{name}"]
    for read in (
        settings.default({f"SHARDWATCH_{name}": text}),
        settings.load(str(CONFIGS / "good" / "full.yaml"), {f"SHARDWATCH_{name}": text}),
    ):
        setting = read
        for part in dotted.split("."):
            setting = getattr(setting, part)
        assert setting == value


def test_what_a_variable_does_not_name_stays_as_the_file_says():
    read = parse("gpu: {interval: 3s, deadline: 4s}", GPU_INTERVAL="5s")
    assert (read.gpu.interval, read.gpu.deadline) == (5.0, 4.0)


def test_a_mistake_in_the_file_is_reported_though_a_variable_hides_it():
    assert [path for _, path, _ in refused("series: al", SERIES="full")] == ["series"]


@pytest.mark.parametrize(
    "name, text, fragment",
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
        ("CONFIG", "/etc/shardwatch.yaml", "--config FILE"),
        ("COSTS_CURRENCY", "dollar", "three capital letters"),
        ("COSTS_GPU_HOUR", "1", "unknown variable"),
        ("ENGINES", "http://a", "unknown variable"),
        ("PORT", "9853", "unknown variable"),
        ("SERIES", "\udc80", "UTF-8"),
    ],
)
def test_a_bad_variable_is_a_problem_under_its_own_name(name, text, fragment):
    ((line, path, message),) = refused("", **{name: text})
    assert (line, path) == (None, f"$SHARDWATCH_{name}")
    assert fragment in message


def test_bad_variables_are_reported_together_with_a_bad_file():
    problems = refused("foo: 1\n- x", LISTEN="nowhere", FOO="1")
    assert {path for _, path, _ in problems} == {"", "$SHARDWATCH_LISTEN", "$SHARDWATCH_FOO"}


def test_service_links_of_a_cluster_are_no_error():
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
