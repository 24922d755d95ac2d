"""Which container image a replica runs: from Kubernetes, a list or the configuration, to a fact on the page."""

from __future__ import annotations

import json

import pytest

from exporter.config import settings
from exporter.errors import SettingsError
from exporter.render.exposition import ExpositionRenderer
from exporter.runtime.discovery.registry import TargetRegistry
from exporter.sources.discovery.kubernetes import _engine, _pods
from exporter.sources.discovery.provider import engine_at
from tests.support.builders import Clock, replica, snapshot
from tests.support.engine_pages import make_poller, page
from tests.support.promtool import check_rows

DIGEST = "sha256:" + "0123456789abcdef" * 4
IMAGE = "vllm/vllm-openai:v0.11.0"


def container(name="engine", image=IMAGE, *ports):
    return {
        "name": name,
        "image": image,
        "ports": [{"containerPort": port} for port in ports],
        "env": [{"name": "S"}],
    }


def running(name="engine", identity=f"docker.io/vllm/vllm-openai@{DIGEST}"):
    return {"name": name, "image": "docker.io/" + IMAGE, "imageID": identity, "ready": True}


def image_of(containers, statuses, port="8000"):
    """Read one pod as the API server's answer is read."""
    item = {
        "metadata": {"name": "chat-0", "annotations": {"prometheus.io/scrape": "true", "prometheus.io/port": port}},
        "spec": {"nodeName": "n1", "containers": containers},
        "status": {"phase": "Running", "podIP": "10.1.0.1", "containerStatuses": statuses},
    }
    (read,) = _pods(json.dumps({"kind": "PodList", "items": [item]}).encode())
    return _engine(read).image


@pytest.mark.parametrize(
    "identity",
    [
        f"docker.io/vllm/vllm-openai@{DIGEST}",
        f"docker-pullable://vllm/vllm-openai@{DIGEST}",
        DIGEST,
        f"docker://{DIGEST}",
    ],
)
def test_a_pods_image_is_the_name_that_was_asked_for_and_the_digest_that_runs(identity):
    assert image_of([container()], [running(identity=identity)]) == f"{IMAGE}@{DIGEST}"


@pytest.mark.parametrize(
    "identity", ["", "docker.io/x@sha256:0123", f"{DIGEST}0", "sha256:" + "g" * 64, None, 7, [DIGEST]]
)
def test_an_identity_that_is_no_digest_leaves_the_name(identity):
    assert image_of([container()], [running(identity=identity)]) == IMAGE


def test_of_several_containers_the_one_with_the_port_is_meant():
    mesh, engine = container("mesh", "istio/proxyv2:1", 15090), container("engine", IMAGE, 8000, 8001)
    statuses = [running("mesh", "x@sha256:" + "f" * 64), running()]
    assert image_of([mesh, engine], statuses) == f"{IMAGE}@{DIGEST}"
    assert image_of([mesh, engine], statuses, port="9000") == ""
    assert image_of([mesh, container("engine", IMAGE)], statuses, port="8000") == ""
    assert image_of([container("engine", IMAGE, 9999)], statuses, port="8000") == f"{IMAGE}@{DIGEST}"


@pytest.mark.parametrize(
    "containers", [[], None, 7, [None], [{}], [{"image": ["x"]}], [container(image="two words")]]
)
def test_a_pod_whose_containers_make_no_sense_has_no_image(containers):
    assert image_of(containers, [running()]) == ""


@pytest.mark.parametrize("statuses", [[], None, 7, [None], [{}], [running("other")]])
def test_a_pod_whose_states_make_no_sense_still_has_the_name(statuses):
    assert image_of([container()], statuses) == IMAGE


@pytest.mark.parametrize("pinned", [f"{IMAGE}@{DIGEST}", f"{IMAGE}@sha256:" + "9" * 64])
def test_an_image_asked_for_by_digest_shows_the_one_that_runs(pinned):
    assert image_of([container(image=pinned)], [running()]) == f"{IMAGE}@{DIGEST}"


@pytest.mark.parametrize(
    ("label", "image"), [(IMAGE, IMAGE), (None, ""), (7, ""), ("a\nb", ""), ("x" * 513, ""), ("x" * 512, "x" * 512)]
)
def test_a_list_may_name_the_image(label, image):
    target = engine_at("10.0.0.1:8000", {"image": label})
    assert target.image == image
    registry = TargetRegistry(clock=Clock(), is_local={"127.0.0.1", "::1"}.__contains__)
    registry.update("file_sd", [target], ())
    assert [engine.image for engine in registry.engines(())] == [image]


def test_the_configuration_may_name_the_image(tmp_path):
    path = tmp_path / "shardwatch.yaml"
    path.write_text(f"engines: [{{url: 'http://a:1/metrics', image: '{IMAGE}'}}]\n")
    assert settings.load(str(path), {}).engines[0].image == IMAGE
    path.write_text("engines: [{url: 'http://a:1/metrics', image: 'two words'}]\n")
    with pytest.raises(SettingsError, match=r"engines\[0\]\.image.*container image"):
        settings.load(str(path), {})


def shown(*replicas):
    body = ExpositionRenderer(openmetrics=False).render(snapshot(replicas=replicas)).body.decode()
    return [line for line in body.splitlines() if line.startswith("llm_image_info{")]


def test_the_page_shows_name_and_digest_apart_and_nothing_where_the_image_is_not_known():
    labels = 'llm_image_info{replica="a",engine="vllm",model="m"'
    assert shown(replica("a", image=f"{IMAGE}@{DIGEST}")) == [f'{labels},image="{IMAGE}",digest="{DIGEST}"}} 1.0']
    assert shown(replica("a", image=IMAGE)) == [f'{labels},image="{IMAGE}",digest=""}} 1.0']
    assert shown(replica("a"), replica("b", up=False, image=IMAGE)) == []


def test_a_poller_carries_the_image_of_its_plan():
    poller = make_poller([page("vllm-0.32.0-real-cpu-idle")], Clock(), image=IMAGE)
    assert poller.state.image == IMAGE
    poller.poll()
    assert poller.state.image == IMAGE
    assert poller.state.reading is not None


def test_nodes_of_one_service_that_run_different_bytes_under_one_tag_are_found(promtool, tmp_path):
    def on(node, digest):
        return (
            shown(replica("a", image=f"{IMAGE}@{digest}"))[0].replace("{", f'{{instance="{node}",').rpartition(" ")[0]
        )

    differ = "count by (engine, model) (count by (engine, model, image, digest) (llm_image_info)) > 1"
    other = "sha256:" + "f" * 64
    rows = {'{engine="vllm", model="m"}': 2}
    for digests, expected in (((DIGEST, other, DIGEST), rows), ((DIGEST, DIGEST, DIGEST), {})):
        series = [on(f"node-{place}", digest) for place, digest in enumerate(digests)]
        code, output = check_rows(promtool, tmp_path, series, differ, expected)
        assert code == 0, output
