"""Which card serves which replica behind addresses and containers: bound sockets, published ports, pods."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from exporter.derive.assignment import assign_gpus
from exporter.sources.processes.table import ListeningSocket, Process, ProcessTable
from tests.support.fake_proc import HOST_ADDRESS, FakeProc
from tests.support.owned_cards import assign, card, endpoint, rows, vllm

A, B, C = "a" * 64, "b" * 64, "c" * 64


@pytest.fixture
def node(tmp_path: Path) -> FakeProc:
    return FakeProc(tmp_path)


# Addresses.


@pytest.mark.parametrize(
    ("bound", "asked", "joined"),
    [
        ("0.0.0.0", "127.0.0.1", True),
        ("0.0.0.0", "127.9.9.9", True),
        ("0.0.0.0", HOST_ADDRESS, True),
        ("::", "localhost", True),
        ("::", "127.0.0.1", True),
        ("::1", "[::1]", True),
        ("127.0.0.1", "0.0.0.0", True),
        ("127.0.0.1", "::ffff:127.0.0.1", True),
        ("127.0.0.1", "LOCALHOST.", True),
        ("127.0.0.2", "127.0.0.1", False),
        ("0.0.0.0", "::1", False),
        ("127.0.0.1", HOST_ADDRESS, False),
    ],
)
def test_an_endpoint_reaches_only_a_socket_bound_to_its_address(
    node: FakeProc, bound: str, asked: str, joined: bool
) -> None:
    node.add(100, 1, ["vllm", "serve", "m"], listens=[(bound, 8000)])
    result = assign(node, [card(0, 100)], endpoint("a", 8000, host=asked))
    assert rows(result) == ([("GPU-0", "a", "")] if joined else [])
    assert result.unassigned == ({} if joined else {"a": "no_listener"})


def test_one_port_on_two_addresses_is_two_servers(node: FakeProc) -> None:
    node.add(100, 1, ["vllm", "serve", "m"], listens=[("127.0.0.1", 8000)])
    node.add(200, 1, ["vllm", "serve", "m"], listens=[(HOST_ADDRESS, 8000)])
    result = assign(node, [card(0, 100), card(1, 200)], endpoint("a", 8000), endpoint("b", 8000, host=HOST_ADDRESS))
    assert rows(result) == [("GPU-0", "a", ""), ("GPU-1", "b", "")]


@pytest.mark.parametrize("host", ["198.51.100.7", "engine.example", "", "2001:db8::1", "::ffff:198.51.100.7"])
def test_a_url_that_leads_elsewhere_is_remote_even_on_a_port_in_use_here(node: FakeProc, host: str) -> None:
    pids = vllm(node, 100, 1, 8000)
    assert assign(node, [card(0, *pids)], endpoint("a", 8000, host=host)).unassigned == {"a": "remote"}


# Containers.


def docker(node: FakeProc, base: int, ident: str, net: int, address: str, inside: int = 8000) -> list[int]:
    group = f"0::/system.slice/docker-{ident}.scope"
    node.add(base, 1, ["/usr/bin/containerd-shim-runc-v2", "-id", ident], title="containerd-shim")
    node.address(net, address)
    return vllm(node, base + 1, base, inside, workers=1, cgroup=group, net=net)


def proxy(node: FakeProc, pid: int, outside: int, address: str, inside: int = 8000) -> None:
    node.add(
        pid, 1,
        ["/usr/bin/docker-proxy", "-proto", "tcp", "-host-ip", "0.0.0.0", "-host-port", str(outside), "-container-ip", address, "-container-port", str(inside)],
        listens=[("0.0.0.0", outside)],
    )  # fmt: skip


def test_published_ports_are_followed_into_their_containers(node: FakeProc) -> None:
    first = docker(node, 300, A, 77, "172.17.0.2")
    second = docker(node, 400, B, 78, "172.17.0.3")
    proxy(node, 250, 9001, "172.17.0.3")
    proxy(node, 251, 9002, "172.17.0.2")
    result = assign(node, [card(0, *first), card(1, *second)], endpoint("a", 9001), endpoint("b", 9002))
    assert rows(result) == [("GPU-0", "b", ""), ("GPU-1", "a", "")]


def test_a_published_port_of_another_container_is_not_given_to_the_one_with_gpus(node: FakeProc) -> None:
    pids = docker(node, 300, A, 77, "172.17.0.2")
    proxy(node, 250, 9001, "172.17.0.99")
    assert assign(node, [card(0, *pids)], endpoint("a", 9001)).unassigned == {"a": "no_processes"}


def test_without_a_proxy_the_last_replica_gets_the_last_container(node: FakeProc) -> None:
    pids = docker(node, 300, A, 77, "172.17.0.2")
    local = vllm(node, 500, 1, 8500)
    result = assign(node, [card(0, *pids), card(1, *local)], endpoint("a", 9001), endpoint("b", 8500))
    assert rows(result) == [("GPU-0", "a", ""), ("GPU-1", "b", "")]


def test_without_a_proxy_two_containers_are_not_dealt_out(node: FakeProc) -> None:
    first = docker(node, 300, A, 77, "172.17.0.2")
    second = docker(node, 400, B, 78, "172.17.0.3")
    cards = [card(0, *first), card(1, *second)]
    for endpoints in ([endpoint("a", 9001)], [endpoint("a", 9001), endpoint("b", 9002)]):
        result = assign(node, cards, *endpoints)
        assert rows(result) == []
        assert set(result.unassigned.values()) == {"no_listener"}
    # What the configuration says of one card decides the other.
    result = assign(node, cards, endpoint("a", 9001), endpoint("b", 9002, gpus=(1,)))
    assert rows(result) == [("GPU-0", "a", ""), ("GPU-1", "b", "")]


def test_two_replicas_do_not_share_out_one_container(node: FakeProc) -> None:
    pids = docker(node, 300, A, 77, "172.17.0.2")
    assert rows(assign(node, [card(0, *pids)], endpoint("a", 9001), endpoint("b", 9002))) == []


def test_a_container_without_an_engine_is_no_replica(node: FakeProc) -> None:
    group = f"0::/docker/{A}"
    node.add(300, 1, ["containerd-shim"], title="containerd-shim")
    node.add(301, 300, ["torchrun", "train.py"], cgroup=group, net=77, listens=[("0.0.0.0", 29500)])
    node.add(302, 301, ["python3", "train.py"], cgroup=group, net=77)
    assert rows(assign(node, [card(0, 302)], endpoint("a", 9001))) == []


def test_a_cpu_engine_on_the_host_is_not_taken_for_a_published_container(node: FakeProc) -> None:
    pids = docker(node, 300, A, 77, "172.17.0.2")
    node.add(500, 1, ["vllm", "serve", "small", "--port", "9001"], listens=[("0.0.0.0", 9001)])
    assert assign(node, [card(0, *pids)], endpoint("a", 9001)).unassigned == {"a": "no_processes"}


def test_a_container_is_reached_by_its_own_address(node: FakeProc) -> None:
    first = docker(node, 300, A, 77, "172.17.0.2")
    second = docker(node, 400, B, 78, "172.17.0.3")
    result = assign(
        node,
        [card(0, *first), card(1, *second)],
        endpoint("a", 8000, host="172.17.0.2"),
        endpoint("b", 8000, host="172.17.0.3"),
    )
    assert rows(result) == [("GPU-0", "a", ""), ("GPU-1", "b", "")]


@pytest.mark.parametrize(
    "shape",
    [
        "4:memory:/kubepods/burstable/pod1234/{}\n3:cpu:/kubepods/burstable/pod1234/{}",
        "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1_2.slice/cri-containerd-{}.scope",
        "0::/kubepods.slice/kubepods-pod1_2.slice/crio-{}.scope",
        "0::/machine.slice/libpod-{}.scope/container",
    ],
)
def test_a_shell_in_a_host_network_container_leaves_the_control_group_to_join(node: FakeProc, shape: str) -> None:
    for base, ident, port in ((300, A, 8000), (400, B, 8001)):
        group = shape.replace("{}", ident)
        node.add(base, 1, ["containerd-shim"], title="containerd-shim")
        node.add(base + 1, base, ["bash", "entry.sh"], cgroup=group)
        node.add(base + 2, base + 1, ["python3", "front.py"], cgroup=group, listens=[("0.0.0.0", port)])
        node.add(base + 3, base + 1, ["python3", "worker.py"], cgroup=group)
    result = assign(node, [card(0, 303), card(1, 403)], endpoint("a", 8000), endpoint("b", 8001))
    assert rows(result) == [("GPU-0", "a", ""), ("GPU-1", "b", "")]


def test_two_containers_of_one_pod_are_joined_by_their_network(node: FakeProc) -> None:
    shape = "0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-{}.scope"
    node.add(300, 1, ["containerd-shim"], title="containerd-shim")
    node.add(301, 300, ["/pause"], cgroup=shape.replace("{}", C), net=80)
    node.add(302, 300, ["front"], cgroup=shape.replace("{}", A), net=80, listens=[("0.0.0.0", 8443)])
    node.add(303, 300, ["vllm", "serve", "m"], cgroup=shape.replace("{}", B), net=80, listens=[("127.0.0.1", 8000)])
    node.add(304, 303, ["VLLM::EngineCore"], cgroup=shape.replace("{}", B), net=80)
    node.address(80, "10.244.1.5")
    assert rows(assign(node, [card(0, 304)], endpoint("a", 8443, host="10.244.1.5"))) == [("GPU-0", "a", "")]
    # The engine is bound to loopback: from outside of the pod nobody answers on its port.
    assert assign(node, [card(0, 304)], endpoint("a", 8000, host="10.244.1.5")).unassigned == {"a": "no_listener"}
    node.add(305, 300, ["vllm", "serve", "x"], cgroup=shape.replace("{}", C), net=80, listens=[("0.0.0.0", 8001)])
    assert rows(assign(node, [card(0, 304)], endpoint("a", 8001, host="10.244.1.5"))) == []


@pytest.mark.parametrize(("space", "joined"), [(5, False), (7, False), (8, True)])
def test_only_a_network_of_its_own_joins_processes_and_neither_the_daemons_nor_the_nodes_is_one(
    space: int, joined: bool
) -> None:
    processes = {
        pid: Process(pid=pid, parent=1, title=title, netns=space) for pid, title in ((100, "front"), (200, "x"))
    }
    listeners = (ListeningSocket(port=8000, address="0.0.0.0", netns=space, pids=frozenset((100,))),)
    table = ProcessTable(
        processes=processes, listeners=listeners, home=5, outer=7,
        addresses={space: frozenset(("10.0.0.9",))},
    )  # fmt: skip
    assignment = assign_gpus([card(0, 200)], [endpoint("a", 8000, host="10.0.0.9")], table)
    assert rows(assignment) == ([("GPU-0", "a", "")] if joined else [])


def test_two_engines_in_one_container_stay_two(node: FakeProc) -> None:
    where: dict[str, Any] = {"cgroup": f"0::/docker/{A}", "net": 77}
    node.add(300, 1, ["bash", "entry.sh"], title="bash", **where)
    first, second = vllm(node, 310, 300, 8000, 1, **where), vllm(node, 320, 300, 8001, 1, **where)
    node.address(77, "172.17.0.2")
    cards = [card(0, *first), card(1, *second)]
    assert rows(assign(node, cards, endpoint("a", 8001, host="172.17.0.2"))) == [("GPU-1", "a", "")]
