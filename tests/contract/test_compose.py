"""The Compose file: the specification, and what it leaves to whoever writes one."""

from __future__ import annotations

import ipaddress
import re
import subprocess

import pytest
import yaml
from compose_spec import PyCompose

from alerts.tuning import Tuning
from dashboards import provisioning
from exporter.config import settings
from tests.support import stack_files

COMPOSE, ROOT = stack_files.COMPOSE, stack_files.ROOT
SERVICES = stack_files.compose()["services"]
ENGINES = ("vllm", "tgi")
WITHOUT_A_PROGRAM_TO_ASK_WITH = {"otel/opentelemetry-collector-contrib"}
each_service = pytest.mark.parametrize("name", sorted(SERVICES))
each_env_file = pytest.mark.parametrize("env_file", stack_files.ENV_FILES)


@each_env_file
def test_it_meets_the_compose_specification(env_file):
    made = stack_files.compose(env_file)
    assert PyCompose.from_yaml(yaml.safe_dump(made)).to_spec() is not None
    made["services"]["prometheus"]["prots"] = made["services"]["prometheus"].pop("ports")
    with pytest.raises(ValueError, match="prots"):
        PyCompose.from_yaml(yaml.safe_dump(made)).to_spec()


@pytest.mark.parametrize(
    "env_file, services",
    [
        ("demo.env", {"demo"}),
        ("node.env", {"node"}),
        ("engines.env", {"node", "vllm", "tgi", "otel-traces", "jaeger"}),
        ("fleet.env", {"victoria-metrics"}),
    ],
)
def test_each_env_file_starts_its_part(env_file, services):
    shown = {"prometheus", "alertmanager", "grafana", "receiver"}
    assert set(stack_files.started(env_file)) == services | shown


def test_every_variable_that_is_offered_does_something():
    known = set(re.findall(r"\$\{([A-Z_]+):-", (COMPOSE / "compose.yaml").read_text())) | {"COMPOSE_PROFILES"}
    offered = {name for env_file in stack_files.ENV_FILES
               for name in re.findall(r"^(?:# )?([A-Z_]+)=", (COMPOSE / env_file).read_text(), re.MULTILINE)}  # fmt: skip
    assert offered <= known
    of_the_image = {"PYTHON_IMAGE", "VERSION", "REVISION", "SOURCE_DATE_EPOCH"}
    documented = set(re.findall(r"`([A-Z]+(?:_[A-Z]+)+)[`=]", (COMPOSE / "README.md").read_text()))
    of_the_kernel = {"SYS_PTRACE", "DAC_READ_SEARCH"}
    assert documented - of_the_image - of_the_kernel <= known
    assert len(documented) > 15


@each_env_file
def test_what_is_mounted_exists_and_docker_makes_no_folder_in_its_place(env_file):
    mount_count = 0
    for name, service in stack_files.started(env_file).items():
        for mount in service.get("volumes", ()):
            if mount["type"] == "bind":
                assert (COMPOSE / mount["source"]).resolve().exists(), f"{name}: {mount['source']}"
                assert mount["bind"] == {"create_host_path": False}, f"{name}: {mount['source']}"
                assert mount["read_only"] is True, f"{name}: {mount['source']}"
                mount_count += 1
            else:
                assert mount["source"] in stack_files.compose()["volumes"]
        for path in service.get("env_file", ()):
            assert (COMPOSE / path).is_file(), f"{name}: {path}"
    assert mount_count > 5


def test_another_language_finds_its_files_too():
    text = (COMPOSE / "compose.yaml").read_text()
    paths = re.findall(r"(\.\./\S+\$\{SHARDWATCH_LANGUAGE:-en\}[\w/.]*)", text)
    assert len(paths) >= 4
    for path in paths:
        assert (COMPOSE / path.replace("${SHARDWATCH_LANGUAGE:-en}", "zh")).exists(), path


@each_service
def test_every_image_is_pinned_by_a_whole_version(name):
    image = SERVICES[name]["image"]
    if "build" in SERVICES[name]:
        assert (COMPOSE / SERVICES[name]["build"]["context"] / SERVICES[name]["build"]["dockerfile"]).is_file()
        assert image == "shardwatch:local"
    else:
        assert re.fullmatch(r"[a-z0-9./-]+:v?\d+\.\d+\.\d+", image), image


@each_service
def test_every_service_is_limited_restarted_and_confined(name):
    service = SERVICES[name]
    assert service["restart"] == "unless-stopped"
    limits = service["deploy"]["resources"]["limits"]
    assert "memory" in limits
    assert "no-new-privileges:true" in service["security_opt"]
    assert service["cap_drop"] == ["ALL"]
    if name not in ENGINES:  # they write caches where they like
        assert service["read_only"] is True
        assert "cpus" in limits
    assert not service.get("privileged")
    assert service["init"] is (service.get("pid") != "host")


@each_service
def test_every_service_says_how_it_is(name):
    service = SERVICES[name]
    check = service.get("healthcheck")
    if service["image"].split(":")[0] in WITHOUT_A_PROGRAM_TO_ASK_WITH:
        assert check == {"disable": True}
    elif check is None:
        assert "build" in service and "HEALTHCHECK" in (COMPOSE / "Dockerfile").read_text()
    else:
        assert check["test"][0] == "CMD" and "127.0.0.1" in check["test"][-1]
        assert {"interval", "timeout", "retries", "start_period"} <= set(check)


@each_service
def test_ports_are_on_loopback(name):
    for port in SERVICES[name].get("ports", ()):
        assert re.fullmatch(r"127\.0\.0\.1:\d+:\d+", port), port


def test_no_two_services_use_the_same_port():
    ports = [port.rsplit(":", 1)[0] for service in SERVICES.values() for port in service.get("ports", ())]
    assert len(set(ports)) == len(ports) > 6


def test_no_port_is_fixed_so_that_an_occupied_one_can_be_avoided():
    text = (COMPOSE / "compose.yaml").read_text()
    assert len(re.findall(r'"127\.0\.0\.1:\$\{[A-Z_]+_PORT:-\d+\}:\d+"', text)) == text.count('"127.0.0.1:$')


def test_there_is_no_password_and_no_account():
    text = (COMPOSE / "compose.yaml").read_text()
    assert not re.search(r"(PASSWORD|SECRET_KEY|TOKEN)\s*[:=]\s*(?!/)\S", text)
    grafana = SERVICES["grafana"]["environment"]
    assert grafana["GF_SECURITY_DISABLE_INITIAL_ADMIN_CREATION"] == "true"
    assert grafana["GF_AUTH_ANONYMOUS_ORG_ROLE"] == "Viewer"
    assert grafana["GF_AUTH_DISABLE_LOGIN_FORM"] == "true"


def test_the_node_may_do_what_it_needs_and_nothing_else():
    node = SERVICES["node"]
    assert sorted(node["cap_add"]) == ["DAC_READ_SEARCH", "SYSLOG", "SYS_PTRACE"]
    assert (node["pid"], node["network_mode"]) == ("host", "host")
    assert node["devices"] == ["/dev/kmsg:/dev/kmsg:r"]
    (device,) = node["deploy"]["resources"]["reservations"]["devices"]
    assert (device["driver"], device["count"], "utility" in device["capabilities"]) == ("nvidia", "all", True)
    assert "ports" not in node


@pytest.mark.parametrize("more", [{}, {"SHARDWATCH_SUBNET": "10.9.8.0/24", "SHARDWATCH_GATEWAY": "10.9.8.1"}])
def test_prometheus_reaches_the_node_where_it_listens(more):
    made = stack_files.compose("node.env", **more)
    (bridge,) = made["networks"]["default"]["ipam"]["config"]
    assert ipaddress.ip_address(bridge["gateway"]) in ipaddress.ip_network(bridge["subnet"])
    assert made["services"]["node"]["environment"]["SHARDWATCH_LISTEN"] == f"{bridge['gateway']}:9853"
    for name in ("prometheus", "otel-metrics"):
        assert made["services"][name]["extra_hosts"] == [f"shardwatch-node:{bridge['gateway']}"]
    assert bridge["gateway"] == more.get("SHARDWATCH_GATEWAY", "172.30.53.1")


@pytest.mark.parametrize("name, hosts", [("demo", {"demo"}), ("node", {"shardwatch-node"})])
def test_targets_are_names_of_the_stack(name, hosts):
    (group,) = yaml.safe_load((COMPOSE / f"prometheus/targets/{name}.yaml").read_text())
    assert group["targets"] == [f"{host}:9853" for host in hosts]
    assert "demo" in SERVICES


@pytest.mark.parametrize("name", ["prometheus", "fleet"])
def test_prometheus_takes_its_configuration(name, promtool, tmp_path):
    text = (COMPOSE / f"prometheus/{name}.yaml").read_text()
    for inside, outside in _mounts("prometheus"):
        text = text.replace(inside, str(outside))
    place = tmp_path / "prometheus.yaml"
    place.write_text(text)
    run = subprocess.run([promtool, "check", "config", str(place)], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "rules found" in run.stdout


def _mounts(service):
    for mount in SERVICES[service]["volumes"]:
        if mount["type"] == "bind" and not mount["target"].endswith("prometheus.yaml"):
            yield mount["target"], (COMPOSE / mount["source"]).resolve()


@pytest.mark.parametrize("name", ["prometheus", "fleet"])
def test_the_scrape_job_is_the_one_that_alerts_ask_for(name):
    config = yaml.safe_load((COMPOSE / f"prometheus/{name}.yaml").read_text())
    assert [job["job_name"] for job in config["scrape_configs"]] == [Tuning().job, "prometheus", "alertmanager"]
    (alertmanager,) = config["alerting"]["alertmanagers"]
    assert alertmanager["static_configs"] == [{"targets": ["alertmanager:9093"]}]


@pytest.mark.parametrize(
    "name", ["prometheus/prometheus", "prometheus/fleet", "fleet/regional", "fleet/regional-remote-write"]
)
def test_alerts_about_the_watchers_find_what_they_read(name):
    config = yaml.safe_load((COMPOSE / f"{name}.yaml").read_text())
    jobs = {job["job_name"]: job for job in config["scrape_configs"]}
    assert jobs["prometheus"]["static_configs"] == [{"targets": ["localhost:9090"]}]
    (alertmanager,) = config["alerting"]["alertmanagers"]
    assert jobs["alertmanager"]["static_configs"] == alertmanager["static_configs"]


def test_the_fleet_writes_to_the_store_that_its_dashboards_query():
    (write,) = yaml.safe_load((COMPOSE / "prometheus/fleet.yaml").read_text())["remote_write"]
    (source,) = yaml.safe_load((COMPOSE / "grafana/fleet.yaml").read_text())["datasources"]
    assert write["url"] == source["url"] + "/api/v1/write" == "http://victoria-metrics:8428/api/v1/write"
    assert source["uid"] == provisioning.DATA_SOURCE_UID
    assert "-httpListenAddr=:8428" in SERVICES["victoria-metrics"]["command"]


@pytest.mark.parametrize("language", ["en", "zh"])
def test_notifications_go_where_the_receiver_listens(language):
    """As generated they go to loopback, which both share."""
    assert SERVICES["alertmanager"]["network_mode"] == "service:receiver"
    assert SERVICES["receiver"]["networks"]["default"]["aliases"] == ["alertmanager"]
    config = yaml.safe_load((ROOT / "alerts/generated/alertmanager" / language / "alertmanager.yaml").read_text())
    urls = [webhook["url"] for receiver in config["receivers"] for webhook in receiver["webhook_configs"]]
    listens = SERVICES["receiver"]["command"][-1].replace("0.0.0.0", "127.0.0.1")
    assert urls and all(url.startswith(f"http://{listens}/") for url in urls)


def test_what_alertmanager_publishes_is_published_by_who_owns_its_network():
    assert "ports" not in SERVICES["alertmanager"] and "networks" not in SERVICES["alertmanager"]
    assert {port.rpartition(":")[2] for port in SERVICES["receiver"]["ports"]} == {"5001", "9093"}


def test_secrets_of_channels_are_kept_out_of_the_repository():
    assert (COMPOSE / "alertmanager/secrets/.gitignore").read_text() == "*\n!.gitignore\n"


def test_grafana_finds_the_boards_where_they_are_mounted():
    targets = {mount["target"] for mount in SERVICES["grafana"]["volumes"]}
    assert provisioning.BOARDS_PATH in targets
    assert "/etc/grafana/provisioning/datasources/shardwatch.yaml" in targets


@pytest.mark.parametrize(
    "path",
    ["node/shardwatch.yaml", "node/engines.yaml", "systemd/shardwatch.yaml", "kubernetes/base/shardwatch.yaml"],
)
def test_the_daemon_takes_each_configuration(path):
    parsed = settings.load(str(COMPOSE / path), {"NODE_NAME": "node"})
    assert parsed.discovery.processes or parsed.engines


@pytest.mark.parametrize(
    "path", ["node/shardwatch.yaml", "systemd/shardwatch.yaml", "kubernetes/base/shardwatch.yaml"]
)
def test_the_web_configuration_that_is_offered_is_a_setting(path, tmp_path):
    text = (COMPOSE / path).read_text()
    offered = re.sub(r"^#(web_config_file|unauthenticated_health)(?=: )", r"\1", text, flags=re.MULTILINE)
    changed = tmp_path / "shardwatch.yaml"
    web = tmp_path / "web.yml"
    web.write_text("{}\n")
    changed.write_text(re.sub(r"(?<=^web_config_file: )/etc/\S+/web.yml$", str(web), offered, flags=re.MULTILINE))
    assert settings.load(str(changed), {"NODE_NAME": "node"}).web_config_file == str(web)


def test_the_mount_of_a_web_configuration_that_is_offered_meets_the_specification():
    text = (COMPOSE / "compose.yaml").read_text()
    (offered,) = re.findall(r"^ *#- (\{type: bind, .*shardwatch-web.*\})$", text, flags=re.MULTILINE)
    made = stack_files.compose("node.env")
    volume = yaml.safe_load(offered)
    made["services"]["node"]["volumes"].append(volume)
    assert PyCompose.from_yaml(yaml.safe_dump(made)).to_spec() is not None
    configuration = (COMPOSE / "node" / "shardwatch.yaml").read_text()
    assert f"#web_config_file: {volume['target']}/web.yml" in configuration


def test_engines_and_the_daemon_agree_on_gpus_ports_and_names():
    engines = {engine.name: engine for engine in settings.load(str(COMPOSE / "node/engines.yaml"), {}).engines}
    assert set(engines) == set(ENGINES)
    for name, engine in engines.items():
        service = SERVICES[name]
        (device,) = service["deploy"]["resources"]["reservations"]["devices"]
        assert [str(card) for card in engine.gpus] == device["device_ids"]
        (port,) = service["ports"]
        assert engine.url == f"http://127.0.0.1:{port.split(':')[1]}/metrics"
        assert service["environment"]["OTEL_SERVICE_NAME"] == name
        split = [
            argument
            for argument in service["command"]
            if argument.startswith(("--tensor-parallel-size=", "--num-shard="))
        ]
        assert [argument.partition("=")[2] for argument in split] == [str(len(device["device_ids"]))]


def test_the_engines_are_versions_whose_pages_were_read():
    captures = [path.name for path in (ROOT / "tests/captures").iterdir()]
    vllm, tgi = (SERVICES[name]["image"].rpartition(":")[2].removeprefix("v") for name in ENGINES)
    assert [name for name in captures if name.startswith(f"vllm-{vllm}-real")]
    assert [name for name in captures if name.startswith(f"tgi-{tgi}-")]


def test_a_slow_first_start_of_an_engine_is_no_illness():
    for name in ENGINES:
        assert SERVICES[name]["healthcheck"]["start_period"] == "30m"


def test_traces_of_engines_have_a_way_to_jaeger():
    assert "--otlp-traces-endpoint=grpc://otel-traces:4317" in SERVICES["vllm"]["command"]
    assert "--otlp-endpoint=http://otel-traces:4317" in SERVICES["tgi"]["command"]
    for name in (*ENGINES, "otel-traces", "jaeger"):
        assert "engines" in SERVICES[name]["profiles"]
    for profile in ENGINES:  # one engine alone still has its traces
        assert profile in SERVICES["otel-traces"]["profiles"]
        assert profile in SERVICES["jaeger"]["profiles"]
