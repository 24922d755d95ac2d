"""The pods of a node: names, workloads and container ids from recorded lists of both API servers and kubelets."""

from __future__ import annotations

import pytest

from exporter.model import Pod
from exporter.model.owner import PodGroup
from exporter.sources.discovery.pods import MAX_PODS, pods_of_node

UID, ID = "8f1c2d3e-4a5b-6c7d-8e9f-0a1b2c3d4e5f", "c" * 64


def pod(*, owners=(), labels=None, statuses=None, node="n1", **metadata):
    return {
        "metadata": {
            "uid": UID, "namespace": "ml", "name": "chat-0", "labels": labels or {}, "ownerReferences": list(owners),
            **metadata,
        },
        "spec": {"nodeName": node},
        "status": statuses if statuses is not None else {
            "containerStatuses": [{"name": "vllm", "containerID": f"containerd://{ID}"}]
        },
    }  # fmt: skip


def controller(kind, name):
    return {"kind": kind, "name": name, "controller": True}


def workload(**options):
    (read,) = pods_of_node([pod(**options)], "n1")
    return read.workload, read.workload_type


def test_a_pod_has_its_names_and_the_ids_of_its_containers():
    statuses = {
        "containerStatuses": [
            {"name": "vllm", "containerID": f"containerd://{ID}"},
            {"name": "waiting"},
            {"name": "old", "containerID": "docker://" + "d" * 64},
        ],
        "initContainerStatuses": [{"name": "sidecar", "containerID": "cri-o://" + "e" * 64}],
    }
    (read,) = pods_of_node([pod(statuses=statuses, owners=[controller("StatefulSet", "chat")])], "n1")
    assert read == Pod(
        uid=UID, namespace="ml", name="chat-0", workload="chat", workload_type="statefulset",
        containers={ID: "vllm", "d" * 64: "old", "e" * 64: "sidecar"},
    )  # fmt: skip


def test_a_pod_of_a_leader_worker_set_has_its_group():
    prefix = "leaderworkerset.sigs.k8s.io"
    labels = {f"{prefix}/name": "big", f"{prefix}/group-index": "3", f"{prefix}/worker-index": "1"}
    listed = pod(labels=labels, annotations={f"{prefix}/size": "2"})
    assert pods_of_node([listed], "n1")[0].group is None  # without a subdomain its leader has no host name
    listed["spec"]["subdomain"] = "big"
    assert pods_of_node([listed], "n1")[0].group == PodGroup(leader="big-3.big.ml", size=2, index=1)
    labels[f"{prefix}/worker-index"], labels[f"{prefix}/group-index"] = 1, "3\n"
    assert pods_of_node([listed], "n1")[0].group is None


@pytest.mark.parametrize(
    "options, expected",
    [
        ({}, ("", "")),
        ({"owners": [controller("Job", "eval-7")]}, ("eval-7", "job")),
        (
            {"owners": [controller("ReplicaSet", "chat-7d9f8")], "labels": {"pod-template-hash": "7d9f8"}},
            ("chat", "deployment"),
        ),
        ({"owners": [controller("ReplicaSet", "chat-7d9f8")]}, ("chat-7d9f8", "replicaset")),
        ({"owners": [{"kind": "Node", "name": "n1"}]}, ("", "")),
        (
            {"owners": [controller("StatefulSet", "big-0")], "labels": {"leaderworkerset.sigs.k8s.io/name": "big"}},
            ("big", "leaderworkerset"),
        ),
        ({"owners": [controller("Job", "a\nb")]}, ("", "")),
        ({"owners": ["x", None, 7]}, ("", "")),
    ],
)
def test_a_workload_is_what_created_the_pod(options, expected):
    assert workload(**options) == expected


ODD = {
    "another node": pod(node="n2"),
    "no uid": pod(uid=None),
    "a uid that is none": pod(uid="../../x"),
    "a name with a newline": pod(name="a\n"),
    "a namespace that is a list": pod(namespace=["ml"]),
    "a number": 7,
    "nothing": None,
}


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
def test_what_is_no_pod_of_this_node_is_left_out(odd):
    assert pods_of_node([odd], "n1") == ()


@pytest.mark.parametrize("identity", ["", "containerd://", "containerd://" + "C" * 64, f"x\n://{ID}", 7, None, [ID]])
def test_an_id_that_is_none_is_no_container(identity):
    (read,) = pods_of_node([pod(statuses={"containerStatuses": [{"name": "a", "containerID": identity}]})], "n1")
    assert read.containers == {}


def test_a_node_has_so_many_pods():
    assert len(pods_of_node([pod()] * (MAX_PODS + 5), "n1")) == MAX_PODS
