"""The Helm chart, rendered by Helm itself: its defaults and the kustomize folders make the same objects."""

from __future__ import annotations

import base64
import functools
import gzip
import json
import re
import shlex
import subprocess

import jsonschema
import pytest
import yaml

from alerts.registry import groups
from alerts.render import RESOURCES, files
from alerts.tuning import Tuning
from exporter import __version__
from exporter.config.settings import parse
from exporter.model.text import Language
from tests.support import stack_files
from tests.support.manifests import MOST_ANNOTATION, VERSIONS, validated
from tests.support.tools import tool

KUBERNETES = stack_files.COMPOSE / "kubernetes"
CHART = KUBERNETES / "chart"
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
IMAGE = {"image": {"repository": "shardwatch", "tag": "local"}}  # what the base says
OPERATOR = {
    "commonLabels": {"release": "kube-prometheus-stack"}, "scrape": {"by": "ServiceMonitor"},
    "alerts": {"enabled": True}, "dashboards": {"enabled": True},
}  # fmt: skip
SAME = {  # a kustomize folder, and the values that make the same
    "base": {},
    "overlays/kernel-log": {"access": "kernelLog"},
    "overlays/without-root": {"access": "none"},
    "overlays/prometheus-operator": OPERATOR,
}
EVERYTHING = {
    "access": "kernelLog",
    "alerts": {"enabled": True, "monitoring": True, "language": "zh"},
    "dashboards": {"enabled": True, "language": "zh", "label": "sidecar", "labelValue": "yes", "folder": "GPUs"},
    "scrape": {"by": "PodMonitor", "tlsConfig": {"insecureSkipVerify": True}, "basicAuth": {"username": {"name": "s", "key": "k"}}},
    "web": {"secretName": "shardwatch-web"},
    "networkPolicy": {"enabled": True},
    "imagePullSecrets": [{"name": "registry"}],
    "serviceAccount": {"annotations": {"example.com/role": "reader"}},
    "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": [{"matchExpressions": [{"key": "gpu", "operator": "Exists"}]}]}}},
    "podAnnotations": {"example.com/a": "1"}, "podLabels": {"team": "inference"},
    "extraEnv": [{"name": "A", "value": "b"}],
    "extraVolumes": [{"name": "lists", "configMap": {"name": "lists"}}],
    "extraVolumeMounts": [{"name": "lists", "mountPath": "/lists", "readOnly": True}],
}  # fmt: skip
LEAST = {
    "priorityClass": {"create": False}, "rbac": {"create": False}, "serviceAccount": {"create": False},
    "scrape": {"by": "none"}, "runtimeClassName": "", "nodeSelector": None, "tolerations": [],
}  # fmt: skip
OF_THE_CHART = {
    "app.kubernetes.io/instance", "app.kubernetes.io/version", "app.kubernetes.io/managed-by", "helm.sh/chart"
}  # fmt: skip


def helm(*words, values=None, cwd=None):
    """Run Helm; without a cluster, and without the user's own settings."""
    return subprocess.run(
        [tool("helm"), *words, *(["--values", "-"] if values is not None else ())],
        input=json.dumps(values) if values is not None else None, capture_output=True, text=True, timeout=120, cwd=cwd,
        env={"HOME": "/nowhere", "HELM_CACHE_HOME": "/nowhere", "KUBECONFIG": "/nowhere/config"},
    )  # fmt: skip


def rendered(values, release="shardwatch", namespace="shardwatch"):
    """Return the objects that ``helm template`` makes; those of ``helm test`` are left out."""
    return _rendered(json.dumps(values), release, namespace)


@functools.cache
def _rendered(values, release, namespace, chart=CHART):
    words = ("template", release, str(chart), "--namespace", namespace, "--skip-tests")
    run = helm(*words, values=json.loads(values))
    assert run.returncode == 0, run.stderr
    return [manifest for manifest in yaml.load_all(run.stdout, Loader=LOADER) if manifest]


def refusal(values, namespace="shardwatch"):
    """Return what Helm says where it refuses values."""
    run = helm("template", "shardwatch", str(CHART), "--namespace", namespace, values=values)
    assert run.returncode != 0
    return run.stderr


def one(made, kind):
    (manifest,) = [manifest for manifest in made if manifest["kind"] == kind]
    return manifest


def pod(made):
    return one(made, "DaemonSet")["spec"]["template"]["spec"]


def without_what_helm_adds(tree):
    """Return an object without the labels that only charts have, and with the configuration parsed."""
    if isinstance(tree, dict):
        return {
            key: yaml.safe_load(value) if key == "shardwatch.yaml" else without_what_helm_adds(value)
            for key, value in tree.items()
            if key not in OF_THE_CHART and key != "checksum/config"
        }
    return [without_what_helm_adds(item) for item in tree] if isinstance(tree, list) else tree


def by_name(made):
    named = {(manifest["kind"], manifest["metadata"]["name"]): without_what_helm_adds(manifest) for manifest in made}
    assert len(named) == len(made)
    return named


# ---------------------------------------------------------------------- the same as kustomize


@pytest.mark.parametrize("folder", SAME)
def test_the_chart_makes_what_the_kustomize_folder_makes(folder):
    ours = by_name(rendered({**IMAGE, **SAME[folder]}))
    theirs = by_name(stack_files.rendered(KUBERNETES / folder))
    del theirs["Namespace", "shardwatch"]  # helm install --create-namespace
    assert ours == theirs


def test_every_kustomize_folder_for_the_daemon_is_compared():
    folders = {str(path.parent.relative_to(KUBERNETES)) for path in KUBERNETES.rglob("kustomization.yaml")}
    assert folders - {"examples/vllm"} == set(SAME)


# ---------------------------------------------------------------------- schemas


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    "values", [{}, OPERATOR, EVERYTHING, LEAST], ids=["defaults", "operator", "everything", "least"]
)
def test_every_object_fits_its_schema(values, version):
    for manifest in rendered(values, release="mine"):
        validated(manifest, version)
        size = len(json.dumps(manifest, ensure_ascii=False, separators=(",", ":")).encode())
        assert size < MOST_ANNOTATION, f"{manifest['kind']} {manifest['metadata']['name']}: {size} bytes"


def test_what_helm_test_starts_fits_its_schema():
    run = helm("template", "mine", str(CHART), "--show-only", "templates/tests/answers.yaml", values={})
    assert run.returncode == 0, run.stderr
    tested = yaml.safe_load(run.stdout)
    validated(tested)
    (container,) = tested["spec"]["containers"]
    service = one(rendered({}, release="mine"), "Service")
    assert f'"{service["metadata"]["name"]}", {service["spec"]["ports"][0]["port"]}' in container["command"][-1]
    selected = one(rendered({}, release="mine"), "DaemonSet")["spec"]["selector"]["matchLabels"]
    assert not selected.items() <= tested["metadata"]["labels"].items(), "the Service must not select it"


def test_helms_own_check_finds_nothing():
    run = helm("lint", "--strict", str(CHART))
    assert run.returncode == 0, run.stdout
    assert "[WARNING]" not in run.stdout and "[ERROR]" not in run.stdout


@pytest.mark.parametrize(
    "values, said",
    [
        ({"tolerationz": []}, "tolerationz"),
        ({"scrape": {"by": "serviceMonitor"}}, "scrape/by"),
        ({"access": "root"}, "access"),
        ({"alerts": {"language": "de"}}, "alerts/language"),
        ({"scrape": {"interval": "15"}}, "scrape/interval"),
        ({"priorityClass": {"value": 2_000_000_000}}, "priorityClass/value"),
        ({"image": {"tag": 1.5}}, "image/tag"),
        ({"image": {"digest": "sha256:12"}}, "image/digest"),
        ({"fullnameOverride": "1gpu"}, "fullnameOverride"),
        ({"fullnameOverride": "gpu.east"}, "fullnameOverride"),
        ({"alerts": {"dashboardUrl": "grafana.example.org"}}, "alerts/dashboardUrl"),
        ({"alerts": {"runbookUrl": "https://wiki.example.org/a b"}}, "alerts/runbookUrl"),
        ({"networkPolicy": {"enabled": True, "from": []}}, "networkPolicy/from"),
        ({"config": {"listen": "0.0.0.0:9999"}}, "config.listen: 0.0.0.0:9999"),
        ({"config": {"listen": "127.0.0.1:9853"}}, "config.listen: 127.0.0.1:9853"),
        ({"config": {"web_config_file": "/etc/web.yml"}}, "web.secretName"),
        ({"scrape": {"by": "PodMonitor", "interval": "500ms", "timeout": "1s"}}, "scrape.timeout: 1s is longer"),
    ],
)
def test_a_wrong_value_is_refused_by_name(values, said):
    assert said in refusal(values)


@pytest.mark.parametrize("listen", ["0.0.0.0:9853", "[::]:9853", "10.0.0.1:9853"])
def test_the_port_of_the_probes_may_be_named(listen):
    assert listen in one(rendered({"config": {"listen": listen}}), "ConfigMap")["data"]["shardwatch.yaml"]


def test_a_release_whose_name_no_service_may_have_is_refused():
    run = helm("template", "1", str(CHART), values={})
    assert run.returncode != 0 and "fullnameOverride" in run.stderr
    assert helm("template", "1", str(CHART), values={"fullnameOverride": "gpu"}).returncode == 0


def test_the_schema_knows_every_value():
    def compare(values, schema, path):
        if schema.get("additionalProperties") is False:
            assert set(values) == set(schema["properties"]) - {"global"}, path
            for name, value in values.items():
                compare(value, schema["properties"][name], f"{path}.{name}")

    schema = json.loads((CHART / "values.schema.json").read_text())
    jsonschema.Draft7Validator.check_schema(schema)
    compare(yaml.safe_load((CHART / "values.yaml").read_text()), schema, "values")


# ---------------------------------------------------------------------- what values do


@pytest.mark.parametrize("by", ["annotations", "ServiceMonitor", "PodMonitor", "none"])
def test_a_pod_is_scraped_in_one_way(by):
    made = rendered({"scrape": {"by": by}})
    annotated = one(made, "DaemonSet")["spec"]["template"]["metadata"]["annotations"]["prometheus.io/scrape"]
    ways = ["annotations"] * (annotated == "true") + [m["kind"] for m in made if m["kind"].endswith("Monitor")]
    assert ways == [by] * (by != "none")


@pytest.mark.parametrize("by, endpoints", [("ServiceMonitor", "endpoints"), ("PodMonitor", "podMetricsEndpoints")])
def test_a_monitor_selects_the_pods_of_its_release(by, endpoints):
    made = rendered({"scrape": {"by": by}}, release="second")
    monitor, daemon, service = one(made, by), one(made, "DaemonSet"), one(made, "Service")
    wanted = monitor["spec"]["selector"]["matchLabels"]
    labelled = service["metadata"] if by == "ServiceMonitor" else daemon["spec"]["template"]["metadata"]
    assert wanted["app.kubernetes.io/instance"] == "second"
    assert wanted.items() <= labelled["labels"].items()
    assert labelled["labels"][monitor["spec"]["jobLabel"]] == "shardwatch"
    (endpoint,) = monitor["spec"][endpoints]
    assert endpoint["port"] == "metrics" and endpoint["honorLabels"] is True


def test_objects_of_another_release_have_its_name():
    made = rendered({}, release="second", namespace="gpus")
    assert {manifest["metadata"]["name"] for manifest in made} == {"second-shardwatch", "second-shardwatch-config"}
    (subject,) = one(made, "ClusterRoleBinding")["subjects"]
    account = one(made, "ServiceAccount")["metadata"]
    assert (
        (subject["name"], subject["namespace"])
        == (account["name"], account["namespace"])
        == ("second-shardwatch", "gpus")
    )
    assert pod(made)["priorityClassName"] == one(made, "PriorityClass")["metadata"]["name"] == "second-shardwatch"
    assert pod(made)["volumes"][0]["configMap"]["name"] == one(made, "ConfigMap")["metadata"]["name"]


def test_a_web_configuration_comes_from_a_secret():
    made = rendered(
        {"web": {"secretName": "mine"}, "scrape": {"by": "ServiceMonitor", "tlsConfig": {"serverName": "gpu"}}}
    )
    (container,) = pod(made)["containers"]
    assert {"name": "web", "secret": {"secretName": "mine"}} in pod(made)["volumes"]
    assert {"name": "web", "mountPath": "/etc/shardwatch-web", "readOnly": True} in container["volumeMounts"]
    probes = [container[f"{kind}Probe"]["httpGet"]["scheme"] for kind in ("startup", "liveness", "readiness")]
    assert probes == ["HTTPS"] * 3
    config = yaml.safe_load(one(made, "ConfigMap")["data"]["shardwatch.yaml"])
    assert config["web_config_file"] == "/etc/shardwatch-web/web.yml" and config["unauthenticated_health"] is True
    (endpoint,) = one(made, "ServiceMonitor")["spec"]["endpoints"]
    assert (endpoint["scheme"], endpoint["tlsConfig"]) == ("https", {"serverName": "gpu"})


def test_users_without_tls_are_probed_over_http():
    (container,) = pod(rendered({"web": {"secretName": "mine", "tls": False}}))["containers"]
    assert "scheme" not in container["livenessProbe"]["httpGet"]


def test_the_daemon_accepts_the_configuration():
    made = rendered({"config": {"engines": [{"name": "a", "url": "http://10.0.0.1:8000/metrics", "gpus": [0]}]}})
    text = one(made, "ConfigMap")["data"]["shardwatch.yaml"]
    settings = parse(text, "shardwatch.yaml", {})
    assert [engine.name for engine in settings.engines] == ["a"]
    assert settings.discovery.kubernetes.enabled is True


def test_a_changed_configuration_restarts_the_pods():
    def checksum(values):
        return one(rendered(values), "DaemonSet")["spec"]["template"]["metadata"]["annotations"]["checksum/config"]

    assert checksum({}) == checksum({"image": {"tag": "2"}}) != checksum({"config": {"gpu": {"enabled": False}}})


@pytest.mark.parametrize("page", ["docs/deployment.md", "docs/zh/deployment.md"])
def test_the_command_of_the_documentation_is_accepted(page):
    (command,) = re.findall(r"^helm install (.+)", (stack_files.ROOT / page).read_text(), re.MULTILINE)
    run = helm("template", *shlex.split(command), cwd=stack_files.ROOT)
    assert run.returncode == 0, run.stderr
    assert "image: registry.example/shardwatch:1\n" in run.stdout


@pytest.mark.parametrize(
    "image, named",
    [
        ({"tag": 20261125}, "r/s:20261125"),
        ({"tag": "1.10"}, "r/s:1.10"),
        ({"tag": "1", "digest": "sha256:" + 64 * "a"}, "r/s@sha256:" + 64 * "a"),
    ],
)
def test_an_image_is_named_by_tag_or_by_digest(image, named):
    (container,) = pod(rendered({"image": {"repository": "r/s", **image}}))["containers"]
    assert container["image"] == named


def test_labels_and_annotations_of_the_user_replace_those_of_the_chart_but_never_the_selector():
    own = {
        "app.kubernetes.io/name": "mine",
        "app.kubernetes.io/instance": "mine",
        "app.kubernetes.io/version": "mine",
    }
    values = {"commonLabels": own, "podLabels": own, "podAnnotations": {"prometheus.io/port": "1"}}
    run = helm("template", "shardwatch", str(CHART), values=values)
    for text in run.stdout.split("\n---\n"):
        keys = re.findall(r"^ +app.kubernetes.io/version:.*$", text, re.MULTILINE)
        assert len({len(key) - len(key.lstrip()) for key in keys}) == len(keys), "a key twice in one object"
    daemon = one(rendered(values), "DaemonSet")
    selected = daemon["spec"]["selector"]["matchLabels"]
    assert selected == one(rendered({}), "DaemonSet")["spec"]["selector"]["matchLabels"]
    for metadata in (daemon["metadata"], daemon["spec"]["template"]["metadata"]):
        assert selected.items() <= metadata["labels"].items()
        assert metadata["labels"]["app.kubernetes.io/version"] == "mine"
    annotations = daemon["spec"]["template"]["metadata"]["annotations"]
    assert annotations["prometheus.io/port"] == "1" and run.stdout.count("prometheus.io/port:") == 1


def test_what_helm_test_starts_is_admitted_by_the_network_policy():
    values = {"networkPolicy": {"enabled": True}}
    run = helm("template", "mine", str(CHART), "--show-only", "templates/tests/answers.yaml", values=values)
    tested = yaml.safe_load(run.stdout)
    (rule,) = one(rendered(values, release="mine"), "NetworkPolicy")["spec"]["ingress"]
    of_this_namespace = [
        peer["podSelector"]["matchLabels"] for peer in rule["from"] if "namespaceSelector" not in peer
    ]
    assert any(labels.items() <= tested["metadata"]["labels"].items() for labels in of_this_namespace)
    assert all("app.kubernetes.io/instance" in labels for labels in of_this_namespace)


def test_only_prometheus_reaches_the_endpoint_under_the_network_policy():
    made = rendered({"networkPolicy": {"enabled": True}})
    spec = one(made, "NetworkPolicy")["spec"]
    assert spec["podSelector"] == one(made, "DaemonSet")["spec"]["selector"]
    assert spec["policyTypes"] == ["Ingress"], "the daemon's own connections are not restricted"
    (rule,) = spec["ingress"]
    assert rule["ports"] == [{"port": "metrics", "protocol": "TCP"}]
    assert rule["from"][0]["podSelector"] == {"matchLabels": {"app.kubernetes.io/name": "prometheus"}}


def test_dashboards_have_the_label_of_the_sidecar_and_the_language_that_is_asked_for():
    brought = [m for m in rendered(EVERYTHING) if m["kind"] == "ConfigMap" and "sidecar" in m["metadata"]["labels"]]
    wanted = {
        path.name: json.loads(path.read_text())
        for path in (stack_files.ROOT / "dashboards/generated/zh").glob("*.json")
    }
    assert {name: json.loads(text) for m in brought for name, text in m["data"].items()} == wanted
    assert {m["metadata"]["annotations"]["grafana_folder"] for m in brought} == {"GPUs"}


def test_alerts_about_prometheus_come_only_if_they_are_asked_for():
    groups = stack_files.ROOT / "alerts/generated/zh/rules.yaml"
    wanted = [group["name"] for group in yaml.load(groups.read_text(), Loader=LOADER)["groups"]]
    brought = [m for m in rendered(EVERYTHING) if m["kind"] == "PrometheusRule"]
    assert sorted(group["name"] for m in brought for group in m["spec"]["groups"]) == sorted(wanted)
    names = [m["metadata"]["name"] for m in rendered(OPERATOR) if m["kind"] == "PrometheusRule"]
    assert sorted(names) == ["shardwatch", "shardwatch-serving"]


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("runbook", ["https://wiki.example.org/runbook.md", "https://wiki.example.org/gpus"])
def test_links_of_alerts_are_those_that_the_generator_writes(language, runbook):
    links = {"dashboardUrl": "https://grafana.example.org/sub/", "runbookUrl": runbook}
    made = rendered({"alerts": {"enabled": True, "monitoring": True, "language": language, **links}})
    brought = {m["metadata"]["name"]: m["spec"] for m in made if m["kind"] == "PrometheusRule"}
    tuning = Tuning(dashboards="https://grafana.example.org/sub", runbook=runbook)
    written = files(groups(tuning), tuning, Language(language))
    resources = [yaml.load(written[name], Loader=LOADER) for name in RESOURCES]
    assert brought == {m["metadata"]["name"]: m["spec"] for m in resources}


@pytest.mark.parametrize("page", ["docs/deployment.md", "docs/zh/deployment.md"])
def test_prometheus_accepts_the_job_of_the_documentation(page, tmp_path):
    blocks = re.findall(r"^```yaml\n(.*?)^```", (stack_files.ROOT / page).read_text(), re.DOTALL | re.MULTILINE)
    (block,) = (block for block in blocks if "kubernetes_sd_configs" in block)
    (job,) = yaml.safe_load(block)["scrape_configs"]
    assert (job["job_name"], job["honor_labels"]) == (Tuning().job, True)
    (monitored,) = one(rendered(OPERATOR), "ServiceMonitor")["spec"]["endpoints"][0]["relabelings"]
    assert {"source_labels": monitored["sourceLabels"], "target_label": monitored["targetLabel"]} in job[
        "relabel_configs"
    ]
    sd = "kubernetes_sd_configs: [{role: pod}]"  # which Debian's build does not know
    (tmp_path / "prometheus.yml").write_text(block.replace(sd, "static_configs: [{targets: [node1]}]"))
    run = subprocess.run(
        [tool("promtool"), "check", "config", str(tmp_path / "prometheus.yml")], capture_output=True, text=True
    )
    assert run.returncode == 0, run.stdout + run.stderr


# ---------------------------------------------------------------------- priority


@pytest.mark.parametrize("name", ["system-node-critical", "system-cluster-critical"])
def test_a_class_of_the_system_is_used_but_never_created(name):
    assert "exists already" in refusal({"priorityClass": {"create": True, "name": name}}, "kube-system")
    # Kubernetes admits it in any namespace, unless a ResourceQuota guards it.
    made = rendered({"priorityClass": {"create": False, "name": name}})
    assert pod(made)["priorityClassName"] == name
    assert "PriorityClass" not in {manifest["kind"] for manifest in made}


def test_without_a_class_the_pod_has_none():
    assert "priorityClassName" not in pod(rendered(LEAST))


# ---------------------------------------------------------------------- the package


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    out = tmp_path_factory.mktemp("chart")
    run = helm("package", str(CHART), "--destination", str(out))
    assert run.returncode == 0, run.stderr
    (path,) = out.iterdir()
    return path


def test_the_package_has_the_version_of_the_program(package):
    described = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert described["version"] == described["appVersion"] == __version__
    assert package.name == f"shardwatch-{__version__}.tgz"


def test_the_package_makes_the_same_without_the_checkout(package, tmp_path):
    alone = tmp_path / package.name
    alone.write_bytes(package.read_bytes())
    assert by_name(_rendered(json.dumps(OPERATOR), "shardwatch", "shardwatch", alone)) == by_name(rendered(OPERATOR))


def test_a_release_fits_the_secret_in_which_helm_keeps_it():
    """Helm stores the chart's files and the manifest in one Secret, compressed, of at most 1 MiB."""
    files = [
        {"name": str(path), "data": base64.b64encode(path.read_bytes()).decode()}
        for path in CHART.rglob("*")
        if path.is_file()
    ]
    manifest = helm("template", "shardwatch", str(CHART), values=OPERATOR).stdout
    kept = base64.b64encode(gzip.compress(json.dumps({"files": files, "manifest": manifest}).encode()))
    assert len(files) > 15 and len(manifest) > 500_000
    assert len(kept) < 900_000


def test_generated_files_are_linked_and_not_copied():
    linked = {path for path in (CHART / "files").rglob("*") if not path.is_dir()}
    assert len(linked) == 2 * (len(RESOURCES) + 1), "rules and dashboards, in two languages"
    for path in linked:
        assert path.is_symlink()
        assert path.resolve().is_relative_to(stack_files.ROOT)


def test_the_notes_say_what_the_values_leave_to_do():
    def notes(values):
        run = helm("install", "shardwatch", str(CHART), "--dry-run=client", values=values)
        assert run.returncode == 0, run.stderr
        return run.stdout.partition("NOTES:")[2]

    assert "pod-security.kubernetes.io/enforce=privileged" in notes({})
    assert "pod-security" not in notes({"access": "none"})
    assert 'job="shardwatch"' in notes({}) and 'job="shardwatch"' not in notes(OPERATOR)
    grafana = {"dashboardUrl": "https://grafana.example.org"}
    assert "alerts.dashboardUrl" in notes(OPERATOR) and "alerts.dashboardUrl" not in notes({})
    assert "alerts.dashboardUrl" not in notes({"alerts": {"enabled": True, **grafana}})
    https = {"scrape": {"by": "PodMonitor"}, "web": {"secretName": "web"}}
    assert "scrape.tlsConfig" in notes(https) and "scrape.tlsConfig" not in notes(OPERATOR)
    assert "ShardwatchAbsent" in notes({"scrape": {"by": "none"}, "alerts": {"enabled": True}})
