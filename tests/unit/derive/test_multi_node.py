"""Which GPUs belong to a replica that spans nodes: one key on all nodes, and no name of another replica."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from exporter.derive.assignment import Assignment, Endpoint, assign_gpus
from exporter.model import Pod
from exporter.model.owner import PodGroup
from exporter.sources.processes.owners import OwnerReader
from tests.support.fake_proc import HOST_NET, FakeProc
from tests.support.owned_cards import assign, card, endpoint, rows
from tests.support.processes import read_processes

POD = "11111111-2222-3333-4444-555555555555"
CONTAINER = "ab" * 32
IN_POD = f"0::/kubepods.slice/kubepods-pod{POD.replace('-', '_')}.slice/cri-containerd-{CONTAINER}.scope"
IN_DOCKER = f"0::/system.slice/docker-{'cd' * 32}.scope"
CLUSTER = "499bb75b14ced344b68ca13b562fd28dd0ee602d6ae981aabae309a1"


@pytest.fixture
def node(tmp_path: Path) -> FakeProc:
    return FakeProc(tmp_path)


def serve(
    node: FakeProc, first: int, *flags: str, program: tuple[str, ...] = ("vllm", "serve", "m"), **more: Any
) -> int:
    """Start a server and one worker below it; gives the worker's pid."""
    node.add(first, 1, [*program, *flags], **more)
    more.pop("listens", None)
    more.pop("environment", None)
    node.add(first + 1, first, ["VLLM::Worker_PP1_TP3"], **more)
    return first + 1


def places(result: Assignment) -> list[tuple[str, str, str, str, int | None, int | None]]:
    return [
        (gpu.uuid, gpu.replica, gpu.key, gpu.role, gpu.node_rank, gpu.nodes)
        for gpu in sorted(result.multi_node, key=lambda gpu: gpu.uuid)
    ]


VLLM_NODES = ("--nnodes", "2", "--master-addr", "10.0.0.1")


def test_head_and_worker_of_vllm_have_one_key(tmp_path: Path) -> None:
    head, worker = FakeProc(tmp_path / "a"), FakeProc(tmp_path / "b")
    pid = serve(head, 100, *VLLM_NODES, listens=[("0.0.0.0", 8000)])
    on_head = assign(head, [card(0, pid)], endpoint("chat", 8000))
    assert places(on_head) == [("GPU-0", "chat", "vllm://10.0.0.1:29501", "head", 0, 2)]
    assert rows(on_head) == [("GPU-0", "chat", "")]

    pid = serve(worker, 100, *VLLM_NODES, "--master_port=29501", "--node-rank", "1", "--headless")
    on_worker = assign(worker, [card(0, pid)], endpoint("other", 8000))
    key = "vllm://10.0.0.1:29501"
    assert places(on_worker) == [("GPU-0", key, key, "worker", 1, 2)]
    assert rows(on_worker) == [("GPU-0", key, "")]
    (gpu,) = on_worker.multi_node
    assert (gpu.engine, gpu.pipeline_rank, gpu.tensor_rank) == ("vllm", "1", "3")


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (
            ("-dp", "4", "-dpl", "2", "-dpa", "Node-A.example.", "-dpp", "13345", "-dpr", "2", "--headless"),
            ("vllm://node-a.example:13345", "worker", None, None),
        ),
        (
            ("--data-parallel-size=5", "--data-parallel-size-local=2", "--data-parallel-address=::ffff:10.0.0.1"),
            ("vllm://10.0.0.1:29550", "head", 0, None),
        ),
        (("--headless", "-dpa", "fd00::1", "-dpr", "2"), ("vllm://[fd00::1]:29550", "worker", None, None)),
        # What one node has alone is no replica that spans nodes.
        (("-dp", "4", "-dpa", "10.0.0.1"), None),
        (("-dp", "4", "-dpl", "4", "-dpa", "10.0.0.1"), None),
        (("--nnodes", "1", "--master-addr", "10.0.0.1"), None),
        # Its address says nothing on other nodes.
        (("--nnodes", "2", "--node-rank", "1"), None),
        (("--nnodes", "2", "--node-rank", "1", "--master-addr", "127.0.0.1"), None),
        (("--nnodes", "2", "--node-rank", "1", "--master-addr", "127.1"), None),
        (("--nnodes", "2", "--node-rank", "1", "--master-addr", "2130706433"), None),
        (("--nnodes", "2", "--node-rank", "1", "--master-addr", "ip6-localhost"), None),
        # What is no address.
        (("--nnodes", "2", "--master-addr", "2001:db8::1%AKIA-secret x"), None),
        (("--nnodes", "2", "--master-addr", "fe80::1%eth0"), None),
        (("--nnodes", "2", "--master-addr", "a..b"), None),
        (("--nnodes", "2", "--master-addr", "1.2.3.4.5"), None),
        (("--nnodes", "2", "--master-addr", 'x"} 1\ny{'), None),
        (("--nnodes", "9" * 30, "--master-addr", "10.0.0.1"), None),
        (("--nnodes", "2", "--master-addr", "a" * 300), None),
    ],
)
def test_what_the_flags_of_vllm_say(node: FakeProc, flags: tuple[str, ...], expected: tuple[Any, ...] | None) -> None:
    head = expected is not None and expected[1] == "head"
    pid = serve(node, 100, *flags, listens=[("0.0.0.0", 8000)] if head else [])
    result = assign(node, [card(0, pid)], endpoint("chat", 8000))
    assert [place[2:] for place in places(result)] == ([expected] if expected else [])


def test_sglang_names_host_and_port_in_one_flag(node: FakeProc) -> None:
    program = ("python3", "-m", "sglang.launch_server")
    pid = serve(node, 100, "--dist-init-addr", "10.0.0.1:20000", "--nnodes", "2", "--node-rank", "1", program=program)
    assert [place[2:] for place in places(assign(node, [card(0, pid)]))] == [
        ("sglang://10.0.0.1:20000", "worker", 1, 2)
    ]


def test_a_head_that_meets_at_its_own_loopback_is_known_by_its_only_address(node: FakeProc) -> None:
    node.address(HOST_NET, "192.0.2.10")
    pid = serve(node, 100, "--nnodes", "2", "--master-addr", "0.0.0.0", listens=[("0.0.0.0", 8000)])
    result = assign(node, [card(0, pid)], endpoint("chat", 8000))
    assert [place[2] for place in places(result)] == ["vllm://192.0.2.10:29501"]
    node.address(HOST_NET, "192.0.2.10", "198.51.100.1")
    assert places(assign(node, [card(0, pid)], endpoint("chat", 8000))) == []


def raylet(*flags: str) -> list[str]:
    worker = f"/usr/bin/python3 default_worker.py --gcs-address=10.0.0.1:6379 --cluster-id={CLUSTER} X"
    return ["/ray/raylet", *flags, f"--python_worker_command={worker}"]


def test_a_ray_worker_is_known_by_its_cluster(node: FakeProc) -> None:
    node.add(100, 1, raylet(), title="raylet")
    node.add(101, 100, ["ray::RayWorkerWrapper.execute_method"], title="ray::RayWorkerW")
    node.add(102, 100, ["ray::IDLE"], title="ray::IDLE")
    node.add(103, 100, ["ray::ProxyActor.run"], title="ray::ProxyActor")
    key = f"ray://{CLUSTER[:16]}"
    result = assign(node, [card(0, 101), card(1, 102)])
    assert places(result) == [("GPU-0", key, key, "worker", None, None)]
    assert result.multi_node[0].engine == "vllm"


@pytest.mark.parametrize(
    ("parent", "title"),
    [(100, "ray::ServeReplica:llm:VLLMDeployment"), (100, "ray::train"), (1, "VLLM::EngineCore")],
)
def test_a_ray_worker_whose_replica_may_be_complete_here_is_left_out(node: FakeProc, parent: int, title: str) -> None:
    """Ray Serve's replicas of one node, of which a cluster may have many."""
    node.add(100, 1, raylet(), title="raylet")
    node.add(101, 100, ["ray::RayWorkerWrapper.execute_method"], title="ray::RayWorkerW")
    node.add(102, 100, ["ray::RayWorkerWrapper.execute_method"], title="ray::RayWorkerW")
    node.add(103, parent, [title], title=title[:15])
    result = assign(node, [card(0, 101), card(1, 102)], endpoint("serve", 8000, gpus=(1,)))
    assert places(result) == []
    assert rows(result) == [("GPU-1", "serve", "")]


def test_ray_workers_of_a_leader_worker_set_have_its_key(node: FakeProc) -> None:
    node.add(100, 1, raylet(), title="raylet")
    node.add(101, 100, ["ray::RayWorkerWrapper"], title="ray::RayWorkerW", environment=LWS)
    node.add(102, 100, ["ray::ServeReplica:llm:A"], title="ray::ServeRepli")
    assert [place[2:] for place in places(assign(node, [card(0, 101)]))] == [("lws://chat-3.chat.ml", "worker", 1, 2)]


def test_a_ray_head_spans_nodes_where_it_has_more_gpus_than_are_here(node: FakeProc) -> None:
    def start(first: int, container: str, size: str, port: int) -> int:
        group = f"0::/docker/{container * 64}"
        node.add(first, 1, raylet(), title="raylet", cgroup=group)
        node.add(first + 1, first, ["ray::RayWorkerWrapper"], title="ray::RayWorkerW", cgroup=group)
        command = ["vllm", "serve", "m", "-tp", size, "--distributed-executor-backend", "ray"]
        node.add(first + 2, 1, command, cgroup=group, listens=[("0.0.0.0", port)])
        return first + 1

    pids = start(100, "a", "2", 8000), start(200, "b", "1", 8001)
    serve(node, 300, "-tp", "1", cgroup=f"0::/docker/{'a' * 64}")  # of another replica, with workers of its own
    result = assign(node, [card(0, pids[0]), card(1, pids[1])], endpoint("wide", 8000), endpoint("narrow", 8001))
    assert rows(result) == [("GPU-0", "wide", ""), ("GPU-1", "narrow", "")]
    assert places(result) == [("GPU-0", "wide", f"ray://{CLUSTER[:16]}", "head", None, None)]


def test_configured_gpus_make_the_node_of_a_ray_server_the_head(node: FakeProc) -> None:
    node.add(100, 1, raylet(), title="raylet")
    node.add(101, 100, ["ray::RayWorkerWrapper"], title="ray::RayWorkerW")
    node.add(200, 1, ["vllm", "serve", "m", "-tp", "2"], listens=[("0.0.0.0", 8000)])
    assert places(assign(node, [card(0, 101)], endpoint("chat", 8000)))[0][3] == "worker"
    result = assign(node, [card(0, 101)], endpoint("chat", 8000, gpus=(0,)))
    assert [place[1:4] for place in places(result)] == [("chat", f"ray://{CLUSTER[:16]}", "head")]
    assert rows(result) == [("GPU-0", "chat", "")]


LWS = {"LWS_LEADER_ADDRESS": "chat-3.chat.ml", "LWS_GROUP_SIZE": "2", "LWS_WORKER_INDEX": "1", "HF_TOKEN": "secret"}


def test_the_environment_of_a_leader_worker_set_names_its_leader(node: FakeProc) -> None:
    pid = serve(node, 100, environment=LWS)
    assert places(assign(node, [card(0, pid)])) == [
        ("GPU-0", "lws://chat-3.chat.ml", "lws://chat-3.chat.ml", "worker", 1, 2)
    ]


def test_a_group_of_one_pod_does_not_span_nodes(node: FakeProc) -> None:
    pid = serve(node, 100, environment={**LWS, "LWS_GROUP_SIZE": "1"})
    assert places(assign(node, [card(0, pid)])) == []


def test_pods_name_their_group_where_the_environment_does_not(node: FakeProc) -> None:
    pid = serve(node, 100, cgroup=IN_POD)
    table = read_processes([pid], [], root=str(node.root), owners=OwnerReader())
    group = PodGroup(leader="chat-3.chat.ml", size=2, index=0)
    pod = Pod(uid=POD, namespace="ml", name="chat-3", containers={CONTAINER: "engine"}, group=group)
    (gpu,) = assign_gpus([card(0, pid)], [], table, pods=[pod]).multi_node
    assert (gpu.key, gpu.node_rank, gpu.nodes) == ("lws://chat-3.chat.ml", 0, 2)


# Who may claim what.


def test_a_claim_takes_neither_the_gpus_nor_the_name_of_another_replica(node: FakeProc) -> None:
    """A tenant's process names the rendezvous of a replica of this node, and a key that is spelt like its name."""
    own = serve(node, 100, *VLLM_NODES, listens=[("0.0.0.0", 8000)])
    forged = serve(node, 200, *VLLM_NODES, cgroup=IN_DOCKER)
    named: list[Endpoint] = [endpoint("vllm://10.0.0.9:29501", 8001), endpoint("chat", 8000)]
    other = serve(node, 300, "--nnodes", "2", "--node-rank", "1", "--master-addr", "10.0.0.9", cgroup=IN_DOCKER)
    result = assign(node, [card(0, own), card(1, forged), card(2, other)], *named)
    assert rows(result) == [("GPU-0", "chat", "")]
    assert [place[:2] for place in places(result)] == [("GPU-0", "chat")]


def test_two_owners_that_claim_one_place_get_none_and_are_named(node: FakeProc) -> None:
    flags = (*VLLM_NODES, "--node-rank", "1", "--headless")
    pids = serve(node, 100, *flags), serve(node, 200, *flags, cgroup=IN_DOCKER)
    result = assign(node, [card(0, pids[0]), card(1, pids[1])])
    assert places(result) == []
    (place,) = result.disputed
    assert (place.key, place.node_rank) == ("vllm://10.0.0.1:29501", 1)
    uid = node.root.stat().st_uid
    assert set(place.claims) == {(pids[0], f"uid {uid}"), (pids[1], f"container docker-{'cd' * 32}.scope"[:74])}
    assert result.among([]).disputed == result.disputed


def test_one_owner_of_a_place_disputes_nothing(node: FakeProc) -> None:
    flags = (*VLLM_NODES, "--node-rank", "1", "--headless")
    assert assign(node, [card(0, serve(node, 100, *flags)), card(1, serve(node, 200, *flags))]).disputed == ()


def test_the_owners_that_dispute_a_place_are_bounded(node: FakeProc) -> None:
    flags = (*VLLM_NODES, "--node-rank", "1", "--headless")
    groups = [f"0::/system.slice/docker-{number:064x}.scope" for number in range(9)]
    pids = [serve(node, 100 + 10 * number, *flags, cgroup=group) for number, group in enumerate(groups)]
    (place,) = assign(node, [card(0, *pids)]).disputed
    assert len(place.claims) == 4


def test_two_pods_of_one_group_on_one_node_are_two_places(node: FakeProc) -> None:
    flags = (*VLLM_NODES, "--headless", "--node-rank")
    pids = serve(node, 100, *flags, "1"), serve(node, 200, *flags, "2", cgroup=IN_DOCKER)
    result = assign(node, [card(0, pids[0]), card(1, pids[1])])
    assert [place[4] for place in places(result)] == [1, 2]


def test_many_claims_on_one_gpu_are_bounded(node: FakeProc) -> None:
    pids = [
        serve(node, 100 + 10 * number, "--nnodes", "2", "--node-rank", "1", "--master-addr", f"10.0.0.{number}")
        for number in range(1, 9)
    ]
    assert len(assign(node, [card(0, *pids)]).multi_node) == 4


def test_a_worker_is_not_joined_to_a_published_port(node: FakeProc) -> None:
    """A container without a known address, and a replica without known GPUs: else the last of each belong together."""
    pid = serve(node, 100, *VLLM_NODES, "--node-rank", "1", cgroup=IN_DOCKER, net=77, listens=[("0.0.0.0", 30000)])
    node.add(90, 1, ["docker-proxy"], title="docker-proxy", listens=[("0.0.0.0", 8000)])
    result = assign(node, [card(0, pid)], endpoint("chat", 8000))
    assert rows(result) == [("GPU-0", "vllm://10.0.0.1:29501", "")]


def test_a_replica_that_is_polled_no_more_takes_its_rows_along_and_those_of_other_nodes_stay(node: FakeProc) -> None:
    head = serve(node, 100, *VLLM_NODES, listens=[("0.0.0.0", 8000)])
    worker = serve(node, 200, "--nnodes", "2", "--node-rank", "1", "--master-addr", "10.0.0.7")
    result = assign(node, [card(0, head), card(1, worker)], endpoint("chat", 8000))
    assert len(result.among(["chat"]).multi_node) == 2
    assert [gpu.uuid for gpu in result.among([]).multi_node] == ["GPU-1"]
    assert [row.uuid for row in result.among([]).gpus] == ["GPU-1"]
