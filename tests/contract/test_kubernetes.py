"""The manifests: Kubernetes' own schemas of several versions, schemas of ours for what it does not know, and sense."""

from __future__ import annotations

import json
import os
import re
import subprocess

import jsonschema
import kubernetes_validate
import promql_parser
import pytest
import yaml

from alerts.render import RESOURCES, RULES
from alerts.tuning import Tuning
from exporter.catalog import CATALOG
from tests.support import stack_files
from tests.support.manifests import CRDS, MOST_ANNOTATION, VERSIONS, validated
from tests.support.tools import tool

KUBERNETES = stack_files.COMPOSE / "kubernetes"
FOLDERS = (
    "base", "overlays/kernel-log", "overlays/prometheus-operator", "overlays/without-root", "examples/vllm"
)  # fmt: skip
EXAMPLE = KUBERNETES / "examples" / "vllm"
FROM_THE_SCRAPE = {"instance", "job", "namespace", "pod"}


def load(path):
    return yaml.safe_load(path.read_text())


def manifest_of(folder, kind):
    (manifest,) = [made for made in stack_files.rendered(KUBERNETES / folder) if made["kind"] == kind]
    return manifest


def container(folder, kind):
    (container_spec,) = manifest_of(folder, kind)["spec"]["template"]["spec"]["containers"]
    return container_spec


# ---------------------------------------------------------------------- schemas


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("folder", FOLDERS)
def test_every_object_fits_its_schema(folder, version):
    made = stack_files.rendered(KUBERNETES / folder)
    assert len(made) >= 6
    for manifest in made:
        validated(manifest, version)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_autoscaler_that_is_not_listed_fits_too(version):
    kubernetes_validate.validate(load(EXAMPLE / "horizontal-pod-autoscaler.yaml"), version, strict=True)


@pytest.mark.parametrize("kind", sorted(set(CRDS) - {"podmonitor"}))
def test_a_misspelt_key_does_not_fit(kind):
    folders = ("overlays/prometheus-operator", "examples/vllm")
    manifest = next(made for folder in folders for made in stack_files.rendered(KUBERNETES / folder)
              if made["kind"].lower() == kind)  # fmt: skip
    validated(manifest)
    manifest["spec"]["selectro"] = {}
    with pytest.raises(jsonschema.ValidationError, match="selectro"):
        validated(manifest)


def test_a_misspelt_key_of_kubernetes_does_not_fit():
    manifest = manifest_of("base", "DaemonSet")
    manifest["spec"]["template"]["spec"]["hostPid"] = True
    with pytest.raises(kubernetes_validate.ValidationError, match="hostPid"):
        validated(manifest)


@pytest.mark.parametrize("folder", FOLDERS)
def test_kubectl_makes_the_same_of_it(folder):
    command = [tool("kubectl"), "kustomize", str(KUBERNETES / folder)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, env={**os.environ, "HOME": "/nowhere"})
    assert run.returncode == 0, run.stderr
    text = re.sub(r"\b(shardwatch-config|vllm-chat-drain)-[a-z0-9]{10}\b", r"\1", run.stdout)
    theirs = {(manifest["kind"], manifest["metadata"]["name"]): manifest for manifest in yaml.safe_load_all(text)}
    ours = {
        (manifest["kind"], manifest["metadata"]["name"]): manifest
        for manifest in stack_files.rendered(KUBERNETES / folder)
    }
    assert theirs == ours


def test_every_file_is_used_or_offered():
    offered = {EXAMPLE / "horizontal-pod-autoscaler.yaml", EXAMPLE / "prometheus-adapter.yaml"}
    for place in KUBERNETES.rglob("kustomization.yaml"):
        kustomization = load(place)
        listed = {place.parent / name for name in kustomization.get("resources", ())}
        listed |= {
            place.parent / name for made in kustomization.get("configMapGenerator", ()) for name in made["files"]
        }
        present = {path for path in place.parent.iterdir() if path.is_file()} - {place} - offered
        assert present <= listed


# ---------------------------------------------------------------------- the daemon


def test_the_pod_has_the_capabilities_that_it_needs_and_no_others():
    context = container("base", "DaemonSet")["securityContext"]
    assert context["capabilities"] == {"drop": ["ALL"], "add": ["SYS_PTRACE", "DAC_READ_SEARCH"]}
    assert context["readOnlyRootFilesystem"] is True
    assert context["allowPrivilegeEscalation"] is False
    assert "privileged" not in context


def test_only_the_overlay_for_the_kernels_log_is_privileged():
    assert container("overlays/kernel-log", "DaemonSet")["securityContext"] == {
        "privileged": True, "runAsUser": 0, "readOnlyRootFilesystem": True,
    }  # fmt: skip
    mounted = {mount["mountPath"] for mount in container("overlays/kernel-log", "DaemonSet")["volumeMounts"]}
    assert "/dev/kmsg" in mounted and "/etc/shardwatch" in mounted


def test_where_the_configuration_names_gpus_it_runs_without_root():
    pod = manifest_of("overlays/without-root", "DaemonSet")["spec"]["template"]["spec"]
    context = container("overlays/without-root", "DaemonSet")["securityContext"]
    assert (context["runAsNonRoot"], context["runAsUser"]) == (True, 65532)
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert (context["readOnlyRootFilesystem"], context["allowPrivilegeEscalation"]) == (True, False)
    assert pod["hostPID"] is False and not [volume for volume in pod["volumes"] if "hostPath" in volume]


def test_the_web_configuration_that_is_offered_fits_its_schema(tmp_path):
    manifest = manifest_of("base", "DaemonSet")
    path = KUBERNETES / "base" / "daemonset.yaml"
    offered = re.sub(r"^( *)#(- \{name: web.*)$", r"\1\2", path.read_text(), flags=re.MULTILINE)
    manifest["spec"]["template"]["spec"] = yaml.safe_load(offered)["spec"]["template"]["spec"]
    validated(manifest)
    (container_spec,) = manifest["spec"]["template"]["spec"]["containers"]
    mounted = {mount["name"]: mount["mountPath"] for mount in container_spec["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in manifest["spec"]["template"]["spec"]["volumes"]}
    assert mounted["web"] == "/etc/shardwatch-web"
    assert "secret" in volumes["web"]
    configuration = (path.parent / "shardwatch.yaml").read_text()
    assert f"#web_config_file: {mounted['web']}/web.yml" in configuration


def test_it_may_list_pods_and_nothing_else():
    (rule,) = manifest_of("base", "ClusterRole")["rules"]
    assert rule == {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}


def test_probes_ask_the_paths_that_are_made_for_it():
    container_spec = container("base", "DaemonSet")
    assert (
        container_spec["livenessProbe"]["httpGet"]["path"]
        == container_spec["startupProbe"]["httpGet"]["path"]
        == "/-/healthy"
    )
    assert container_spec["readinessProbe"]["httpGet"]["path"] == "/-/ready"
    assert container_spec["ports"] == [{"name": "metrics", "containerPort": 9853}]


def test_it_goes_where_gpus_are_and_stays_when_the_node_is_in_trouble():
    spec = manifest_of("base", "DaemonSet")["spec"]["template"]["spec"]
    assert spec["hostPID"] is True
    assert spec["nodeSelector"] == {"nvidia.com/gpu.present": "true"}
    assert {"key": "nvidia.com/gpu", "operator": "Exists"} in spec["tolerations"]
    assert {"operator": "Exists", "effect": "NoExecute"} in spec["tolerations"]


def test_the_mounted_configuration_is_the_one_that_is_read():
    assert container("base", "DaemonSet")["args"] == ["run", "--config", "/etc/shardwatch/shardwatch.yaml"]
    assert set(manifest_of("base", "ConfigMap")["data"]) == {"shardwatch.yaml"}


# ---------------------------------------------------------------------- Prometheus Operator


def test_the_monitor_finds_the_service_under_the_job_that_alerts_ask_for():
    monitor, service = (manifest_of("overlays/prometheus-operator", kind) for kind in ("ServiceMonitor", "Service"))
    labels = service["metadata"]["labels"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert labels[monitor["spec"]["jobLabel"]] == Tuning().job
    assert monitor["spec"]["endpoints"][0]["port"] in {port["name"] for port in service["spec"]["ports"]}


def test_a_monitored_pod_is_not_scraped_by_its_annotations_as_well():
    def annotations(folder):
        return manifest_of(folder, "DaemonSet")["spec"]["template"]["metadata"]["annotations"]

    assert annotations("base")["prometheus.io/scrape"] == "true"
    assert annotations("overlays/prometheus-operator")["prometheus.io/scrape"] == "false"


def test_the_overlay_leaves_out_what_kube_prometheus_stack_has():
    generated = stack_files.ROOT / "alerts/generated/en"
    own = [load(generated / file) for file, name in RESOURCES.items() if name != "shardwatch-monitoring"]
    left_out = load(generated / "prometheusrule-monitoring.yaml")["spec"]["groups"]
    made = stack_files.rendered(KUBERNETES / "overlays/prometheus-operator")
    brought = [manifest for manifest in made if manifest["kind"] == "PrometheusRule"]
    assert [manifest["spec"] for manifest in brought] == [resource["spec"] for resource in own]
    assert [group["name"] for group in left_out] == ["shardwatch-watchdog", "shardwatch-monitoring"]
    groups = [group for resource in own for group in resource["spec"]["groups"]] + left_out
    assert {group["name"]: group for group in groups} == {
        group["name"]: group for group in load(generated / RULES)["groups"]
    }


def test_the_overlay_brings_all_dashboards():
    made = stack_files.rendered(KUBERNETES / "overlays/prometheus-operator")
    brought = [manifest for manifest in made if manifest["metadata"].get("labels", {}).get("grafana_dashboard")]
    names = sorted(name for manifest in brought for name in manifest["data"])
    assert names == sorted(path.name for path in (stack_files.ROOT / "dashboards/generated/en").glob("*.json"))


@pytest.mark.parametrize("folder", FOLDERS)
def test_nothing_is_too_big_for_the_annotation_that_a_client_side_apply_keeps(folder):
    for manifest in stack_files.rendered(KUBERNETES / folder):
        size = len(json.dumps(manifest, ensure_ascii=False, separators=(",", ":")).encode())
        assert size < MOST_ANNOTATION, f"{manifest['kind']} {manifest['metadata']['name']}: {size} bytes"


@pytest.mark.parametrize("language", ["en", "zh"])
def test_generated_folders_can_be_listed_in_an_overlay(language):
    assert [
        manifest["kind"] for manifest in stack_files.rendered(stack_files.ROOT / "alerts/generated" / language)
    ] == ["PrometheusRule"] * len(RESOURCES)
    folder = stack_files.ROOT / "dashboards/generated" / language / "kubernetes"
    assert {manifest["kind"] for manifest in stack_files.rendered(folder)} == {"ConfigMap"}


# ---------------------------------------------------------------------- the engine


def test_a_roll_out_never_takes_capacity_away():
    spec = manifest_of("examples/vllm", "Deployment")["spec"]
    assert spec["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}
    assert "replicas" not in spec


def test_a_start_may_last_as_long_as_fetching_weights_and_the_roll_out_waits_longer():
    probe = container("examples/vllm", "Deployment")["startupProbe"]
    patience = probe["periodSeconds"] * probe["failureThreshold"]
    assert patience >= 1800
    assert manifest_of("examples/vllm", "Deployment")["spec"]["progressDeadlineSeconds"] > patience


def test_a_stop_waits_longer_than_the_drain():
    spec = manifest_of("examples/vllm", "Deployment")["spec"]["template"]["spec"]
    patience = float(re.search(r'"DRAIN_PATIENCE", "(\d+)"', (EXAMPLE / "drain.py").read_text())[1])
    assert spec["terminationGracePeriodSeconds"] >= patience + 30
    container_spec = spec["containers"][0]
    assert container_spec["lifecycle"]["preStop"]["exec"]["command"] == ["python3", "/drain/drain.py"]
    assert {"name": "drain", "mountPath": "/drain", "readOnly": True} in container_spec["volumeMounts"]
    assert set(manifest_of("examples/vllm", "ConfigMap")["data"]) == {"drain.py"}


def test_gpus_are_as_many_as_the_engine_splits_over():
    container_spec = container("examples/vllm", "Deployment")
    (split,) = (arg for arg in container_spec["args"] if arg.startswith("--tensor-parallel-size="))
    assert {container_spec["resources"][kind]["nvidia.com/gpu"] for kind in ("requests", "limits")} == {
        int(split[-1])
    }


def test_a_drain_of_a_node_takes_one_replica_at_a_time():
    budget, deployment = (manifest_of("examples/vllm", kind) for kind in ("PodDisruptionBudget", "Deployment"))
    assert budget["spec"]["maxUnavailable"] == 1
    assert budget["spec"]["selector"] == deployment["spec"]["selector"]


def test_the_daemon_finds_the_pod_by_its_annotations():
    annotations = manifest_of("examples/vllm", "Deployment")["spec"]["template"]["metadata"]["annotations"]
    port = container("examples/vllm", "Deployment")["ports"][0]["containerPort"]
    assert annotations == {"prometheus.io/scrape": "true", "prometheus.io/port": str(port)}


# ---------------------------------------------------------------------- scaling


def _queries():
    for trigger in load(EXAMPLE / "scaled-object.yaml")["spec"]["triggers"]:
        yield trigger["metadata"]["query"]
    for rule in load(EXAMPLE / "prometheus-adapter.yaml")["rules"]["external"]:
        series, matchers = re.fullmatch(r"(\w+)\{(.*)\}", rule["seriesQuery"]).groups()
        filled = rule["metricsQuery"].replace("<<.Series>>", series)
        yield filled.replace("<<.LabelMatchers>>", matchers)


def _selectors(node):
    """Yield every (metric, labels) that a query selects or groups by."""
    kind = type(node).__name__
    if kind == "VectorSelector":
        yield node.name, {matcher.name for matcher in node.matchers.matchers}
    elif kind == "MatrixSelector":
        yield from _selectors(node.vector_selector)
    elif kind == "AggregateExpr":
        labels = set(node.modifier.labels) if node.modifier else set()
        yield from ((name, asked | labels) for name, asked in _selectors(node.expr))
    elif kind == "Call":
        for argument in node.args:
            yield from _selectors(argument)
    else:
        raise AssertionError(f"{kind}: not understood here")


@pytest.mark.parametrize("query", list(_queries()))
def test_what_scales_engines_exists(query):
    metrics = {metric.name: metric for metric in CATALOG}
    asked = list(_selectors(promql_parser.parse(query)))
    assert len(asked) == 1
    for name, labels in asked:
        assert name in metrics
        assert labels - FROM_THE_SCRAPE <= set(metrics[name].all_labels)


def test_both_autoscalers_query_the_same():
    keda, adapter = list(_queries())[:2], list(_queries())[2:]
    assert [query.replace('model="chat"', "") for query in keda] == [
        query.replace('model!=""', "") for query in adapter
    ]
    hpa, scaled = (
        load(EXAMPLE / "horizontal-pod-autoscaler.yaml")["spec"],
        load(EXAMPLE / "scaled-object.yaml")["spec"],
    )
    assert (hpa["minReplicas"], hpa["maxReplicas"]) == (scaled["minReplicaCount"], scaled["maxReplicaCount"])
    assert hpa["behavior"] == scaled["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    offered = {rule["name"]["as"] for rule in load(EXAMPLE / "prometheus-adapter.yaml")["rules"]["external"]}
    assert {metric["external"]["metric"]["name"] for metric in hpa["metrics"]} == offered


def test_the_model_that_scales_is_the_one_that_is_served():
    args = container("examples/vllm", "Deployment")["args"]
    assert "--served-model-name=chat" in args
    assert all('model="chat"' in query for query in list(_queries())[:2])


def test_no_answer_is_no_reason_to_take_replicas_away():
    scaled = load(EXAMPLE / "scaled-object.yaml")["spec"]
    assert {trigger["metadata"]["ignoreNullValues"] for trigger in scaled["triggers"]} == {"false"}
    assert scaled["fallback"]["behavior"] == "currentReplicasIfHigher"
    assert scaled["fallback"]["replicas"] >= scaled["minReplicaCount"]
