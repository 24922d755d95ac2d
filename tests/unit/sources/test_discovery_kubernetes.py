"""Engines among a node's pods: what a Kubernetes API may say, and who is ever shown the token."""

from __future__ import annotations

import json
import shutil
import tracemalloc

import pytest

from exporter.config.discovery import KubernetesSettings
from exporter.config.endpoint import TlsSettings
from exporter.sources.discovery.kubernetes import Kubernetes
from tests.support.malicious_server import FAULTS, MaliciousServer


def urls(result):
    return [engine.url for engine in result.engines]


def pod(name, ip="10.1.0.1", *, node="n1", phase="Running", ports=(), **annotations):
    return {
        "metadata": {
            "name": name, "uid": "u" * 36, "managedFields": [{"x": [1, 2, {}]}],
            "annotations": {f"prometheus.io/{key}": value for key, value in annotations.items()},
        },
        "spec": {"nodeName": node, "containers": [{"ports": [{"containerPort": p, "protocol": "TCP"} for p in ports]}]},
        "status": {"phase": phase, "podIP": ip},
    }  # fmt: skip


@pytest.fixture
def api(monkeypatch):
    """A fake API server; ``api.body`` is what it answers."""
    with MaliciousServer() as server:

        def answer(peer):
            peer.keep = True
            if peer.server.status != b"200 OK":
                peer.reply(b"{}", status=peer.server.status)
                return
            peer.reply(peer.server.body)

        monkeypatch.setitem(FAULTS, "api", answer)
        monkeypatch.setitem(FAULTS, "pods", answer)
        server.status, server.body = b"200 OK", b""
        yield server


def pods(*items):
    return json.dumps({"kind": "PodList", "items": list(items)}).encode()


@pytest.fixture
def token(tmp_path):
    path = tmp_path / "token"
    path.write_text("t0ken\n")
    return str(path)


def access(api, token, **more):
    return KubernetesSettings(url=f"http://127.0.0.1:{api.port}", node_name="n1", bearer_token_file=token, **more)


def test_the_annotated_running_pods_of_this_node_are_found(api, token):
    api.body = pods(
        pod("chat-0", scrape="true", port="8000"),
        pod("chat-1", "fd00::7", scrape="true", port="8001", path="/m", scheme="https"),
        pod("one-port", "10.1.0.3", ports=[9000], scrape="true"),
        pod("two-ports", "10.1.0.4", ports=[1, 2], scrape="true"),
        pod("no-port", "10.1.0.5", scrape="true"),
        pod("bad-port", "10.1.0.5", scrape="true", port="80/../"),
        pod("no-address", "", scrape="true", port="1"),
        pod("odd-address", "evil.example", scrape="true", port="1"),
        pod("silent", port="1"),
        pod("off", scrape="false", port="1"),
        pod("elsewhere", node="n2", scrape="true", port="1"),
        pod("over", phase="Succeeded", scrape="true", port="1"),
        {"metadata": None}, 7, {}, {"spec": {"nodeName": "n1"}, "status": {"phase": "Running"}},
    )  # fmt: skip
    place = Kubernetes(access(api, token), {})
    try:
        result = place.refresh()
    finally:
        place.close()
    assert [(target.name, target.url) for target in result.engines] == [
        ("chat-0", "http://10.1.0.1:8000/metrics"),
        ("chat-1", "https://[fd00::7]:8001/m"),
        ("one-port", "http://10.1.0.3:9000/metrics"),
    ]
    assert all(target.tentative for target in result.engines)
    assert result.problem is None
    assert result.warning.startswith("ignored=5:")
    ((_, head),) = api.requests
    assert head.startswith(b"GET /api/v1/pods?fieldSelector=spec.nodeName%3Dn1&resourceVersion=0 HTTP/1.1\r\n")
    assert b"\r\nAuthorization: Bearer t0ken\r\n" in head
    assert b"\r\nAccept: application/json\r\n" in head


def test_the_pods_of_the_node_are_listed_whether_or_not_they_ask_to_be_scraped(api, token):
    uid, container = "8f1c2d3e-4a5b-6c7d-8e9f-0a1b2c3d4e5f", "c" * 64
    silent = pod("train-0")
    silent["metadata"] |= {"uid": uid, "namespace": "ml", "labels": {"pod-template-hash": "7d9f8"}}
    silent["metadata"]["ownerReferences"] = [{"kind": "ReplicaSet", "name": "train-7d9f8", "controller": True}]
    silent["status"]["containerStatuses"] = [{"name": "main", "containerID": f"containerd://{container}"}]
    api.body = pods(silent, pod("elsewhere", node="n2"))
    place = Kubernetes(access(api, token), {})
    try:
        first = place.refresh()
        api.body = b"{"
        second = place.refresh()
    finally:
        place.close()
    (read,) = first.pods
    assert (read.namespace, read.name, read.workload, read.workload_type) == ("ml", "train-0", "train", "deployment")
    assert read.uid == uid and read.containers == {container: "main"}
    assert second.problem is not None and second.pods == first.pods


def test_a_kubelet_is_asked_for_its_own_list(api, token):
    api.body = pods(pod("a", scrape="true", port="1"))
    place = Kubernetes(
        KubernetesSettings(url=f"http://127.0.0.1:{api.port}/pods", bearer_token_file=token), {"NODE_NAME": "n1"}
    )
    try:
        assert [target.name for target in place.refresh().engines] == ["a"]
    finally:
        place.close()
    assert api.requests[0][1].startswith(b"GET /pods HTTP/1.1\r\n")


ANSWERS = {
    "half": (pods(pod("b"))[:-9], "malformed"),
    "status": (b'{"kind": "Status", "code": 200}', "malformed"),
    "list": (b"[]", "malformed"),
    "bytes": (b"\xff\xfe", "malformed"),
    "deep": (b"[" * 100_000, "malformed"),
    "wide": (b'{"items": [' + b"[]," * 400_000 + b"[]]}", "too_large"),
    "nothing": (b"", "empty"),
}


def test_an_answer_that_is_of_no_use_keeps_the_last_good_list(api, token):
    place = Kubernetes(access(api, token), {})
    api.body = good = pods(pod("a", scrape="true", port="1"))
    assert len(place.refresh().engines) == 1
    for name, (body, reason) in ANSWERS.items():
        api.body = body
        result = place.refresh()
        assert (name, len(result.engines), result.problem.reason) == (name, 1, reason)
        assert "t0ken" not in str(result.problem)
    api.status = b"403 Forbidden"
    assert place.refresh().problem.reason == "http_403"
    with open(token, "w") as emptied:
        emptied.write("")
    assert place.refresh().problem.reason == "credentials"
    with open(token, "w") as rotated:
        rotated.write("an0ther")
    api.status, api.body = b"200 OK", good
    result = place.refresh()
    assert (len(result.engines), result.problem) == (1, None)
    assert b"an0ther" in api.requests[-1][1]
    api.body = pods()
    assert place.refresh().engines == ()
    place.close()


def test_outside_of_a_cluster_or_without_a_nodes_name_it_says_what_to_give(tmp_path):
    for environ, reason in (({}, "no_node_name"), ({"NODE_NAME": "n1"}, "no_api_server")):
        place = Kubernetes(KubernetesSettings(), environ)
        result = place.refresh()
        assert (result.engines, result.problem.reason) == ((), reason)
        assert place.refresh().problem is result.problem
        place.close()


def test_in_a_pod_the_server_the_token_and_the_authority_are_those_of_every_pod():
    place = Kubernetes(
        KubernetesSettings(),
        {"NODE_NAME": "n1", "KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443"},
    )
    target = place._endpoint._target
    assert target.url == "https://[fd00::1]:6443/api/v1/pods?fieldSelector=spec.nodeName%3Dn1&resourceVersion=0"
    assert target.bearer_token_file == "/var/run/secrets/kubernetes.io/serviceaccount/token"
    assert target.ca_file == "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt"
    place.close()


def test_the_token_goes_only_to_a_server_whose_authority_is_known(tmp_path, token, monkeypatch):
    if shutil.which("openssl") is None:
        pytest.skip("the openssl command makes the certificates and is not installed")
    from tests.component.http.test_endpoint_tls import CONFIGURATION, Keys, server_context

    keys = Keys(tmp_path)
    (tmp_path / "conf").write_text(CONFIGURATION)
    (tmp_path / "index").touch()
    for authority in ("ca", "stranger"):
        keys.authority(authority)
        keys.certificate(f"of-{authority}", authority, "here", "20200101000000Z", "20480102030405Z")
    monkeypatch.setitem(FAULTS, "api", lambda peer: peer.reply(pods(pod("a", scrape="true", port="1"))))
    outcomes = {}
    for authority in ("ca", "stranger"):
        with MaliciousServer(tls=server_context(keys, f"of-{authority}")) as server:
            place = Kubernetes(
                KubernetesSettings(
                    url=server.url("").rstrip("/"),
                    node_name="n1",
                    bearer_token_file=token,
                    tls=TlsSettings(ca_file=keys.path("ca.pem")),
                ),
                {},
            )
            result = place.refresh()
            place.close()
            outcomes[authority] = (
                len(result.engines),
                result.problem and result.problem.reason,
                len(server.requests),
            )
    assert outcomes == {"ca": (1, None, 1), "stranger": (0, "tls_unknown_ca", 0)}


def test_a_full_nodes_list_takes_little_memory_beyond_its_own_size(api, token):
    filler = [{"name": f"E{n}", "value": "v" * 20, "from": {"a": {"b": [n]}}} for n in range(90)]
    everything = [pod(f"p{n}", f"10.1.{n // 250}.{n % 250 + 1}", scrape="true", port="80") for n in range(250)]
    for listed_pod in everything:
        listed_pod["spec"]["volumes"] = filler
    api.body = pods(*everything)
    assert 1 << 20 < len(api.body) < 8 << 20
    place = Kubernetes(access(api, token), {})
    tracemalloc.start()
    try:
        assert len(place.refresh().engines) == 250
        assert tracemalloc.get_traced_memory()[1] < 3 * len(api.body) + (2 << 20)
    finally:
        tracemalloc.stop()
        place.close()
