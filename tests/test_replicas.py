"""Which card serves which replica: joined where the evidence is unequal, and said so where it is not."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.derive.replicas import Assignment, Endpoint, owners
from exporter.model import CardFacts, CardProcess, CardReading, CardState, Missing, Signal, SourceStatus
from exporter.sources.processes.table import Listener, Process, ProcessTable, read_processes
from tests.fake_proc import HOST_ADDRESS, FakeProc

A, B, C = "a" * 64, "b" * 64, "c" * 64


def card(index: int, *pids: int, known: bool = True, read: bool = True, missing: Missing | None = None) -> CardState:
    uuid = f"GPU-{index}"
    reading = CardReading(
        at=1.0,
        signals={},
        missing={Signal.PROCESSES: missing} if missing else {},
        processes=tuple(CardProcess(pid=pid) for pid in pids) if known else None,
    )
    return CardState(
        facts=CardFacts(index=index, uuid=uuid),
        status=SourceStatus(source=f"gpu:{uuid}", up=read),
        reading=reading if read else None,
        last_read_at=1.0 if read else None,
        labels=(str(index), uuid),
    )


def endpoint(replica: str, port: int, host: str = "127.0.0.1", gpus: tuple[int | str, ...] | None = None) -> Endpoint:
    return Endpoint(replica=replica, host=host, port=port, gpus=gpus)


def rows(result: Assignment) -> list[tuple[str, str, str]]:
    return [(one.uuid, one.replica, one.rank) for one in result.owners]


def assign(node: FakeProc, cards: Sequence[CardState], *endpoints: Endpoint) -> Assignment:
    pids = [one.pid for state in cards if state.reading for one in state.reading.processes or ()]
    table = read_processes(pids, [one.port for one in endpoints], root=str(node.root))
    return owners(cards, endpoints, table)


@pytest.fixture
def node(tmp_path: Path) -> FakeProc:
    return FakeProc(tmp_path)


def vllm(node: FakeProc, first: int, parent: int, port: int, workers: int = 2, **where: Any) -> list[int]:
    """Start a server at pid ``first``, its engine core and workers; gives the workers' pids."""
    node.add(
        first,
        parent,
        ["python3", "/usr/bin/vllm", "serve", "m", "--port", str(port)],
        title="vllm",
        listens=[("0.0.0.0", port)],
        **where,
    )
    node.add(first + 1, first, ["VLLM::EngineCore"], **where)
    pids = list(range(first + 2, first + 2 + workers))
    for number, pid in enumerate(pids):
        node.add(pid, first + 1, [f"VLLM::Worker_TP{number}"], **where)
    return pids


# Configuration.


def test_configured_cards_are_taken_by_index_or_uuid_without_looking_at_processes() -> None:
    cards = [card(0), card(1), card(2, read=False)]
    result = owners(
        cards, [endpoint("a", 1, gpus=(0, "gpu-2")), endpoint("b", 2, host="far.example", gpus=("1",))], None
    )
    assert rows(result) == [("GPU-0", "a", ""), ("GPU-1", "b", ""), ("GPU-2", "a", "")]
    assert result.unassigned == {}


def test_a_configured_card_that_is_not_there_is_said_and_the_others_stay() -> None:
    result = owners([card(0)], [endpoint("a", 1, gpus=(0, 7))], None)
    assert rows(result) == [("GPU-0", "a", "")]
    assert result.unassigned == {"a": "unknown_gpu"}


def test_no_cards_means_no_driver_whatever_is_configured() -> None:
    assert owners([], [endpoint("a", 1, gpus=(0,)), endpoint("b", 2)], None).unassigned == {
        "a": "no_driver",
        "b": "no_driver",
    }


def test_configured_cards_get_the_rank_that_their_processes_show(node: FakeProc) -> None:
    node.add(100, 1, ["vllm", "serve", "m"], listens=[("127.0.0.1", 8000)])
    node.add(101, 100, ["VLLM::EngineCore_DP3"])
    assert rows(assign(node, [card(0, 101), card(1)], endpoint("a", 8000, gpus=(0, 1)))) == [
        ("GPU-0", "a", "3"),
        ("GPU-1", "a", ""),
    ]


# Process trees.


def test_a_tensor_parallel_server_owns_the_cards_of_its_workers(node: FakeProc) -> None:
    pids = vllm(node, 100, 1, 8000, workers=4)
    result = assign(node, [card(index, pid) for index, pid in enumerate(pids)] + [card(4)], endpoint("a", 8000))
    assert rows(result) == [(f"GPU-{index}", "a", "") for index in range(4)]
    assert result.unassigned == {}


def test_a_server_that_uses_the_card_itself_owns_it(node: FakeProc) -> None:
    node.add(100, 1, ["python3", "serve.py"], listens=[("127.0.0.1", 8000)])
    assert rows(assign(node, [card(0, 100)], endpoint("a", 8000, host="localhost"))) == [("GPU-0", "a", "")]


def test_several_api_servers_that_inherit_one_socket_are_one_replica_and_ranks_come_from_titles(
    node: FakeProc,
) -> None:
    shared = node.add(
        100,
        1,
        ["vllm", "serve", "m", "--data-parallel-size", "2", "--api-server-count", "2"],
        listens=[("0.0.0.0", 8000)],
    )
    node.add(101, 100, ["VLLM::APIServer_0"], shares=shared)
    node.add(102, 100, ["VLLM::APIServer_1"], shares=shared)
    node.add(103, 100, ["VLLM::DPCoordinator"])
    for rank in (0, 1):
        core = 110 + 10 * rank
        node.add(core, 100, [f"VLLM::EngineCore_DP{rank}"])
        node.add(core + 1, core, [f"VLLM::Worker_DP{rank}_TP0_EP0"])
        node.add(core + 2, core, [f"VLLM::Worker_DP{rank}_TP1_EP1"])
    result = assign(node, [card(0, 111), card(1, 112), card(2, 121), card(3, 122)], endpoint("a", 8000))
    assert rows(result) == [("GPU-0", "a", "0"), ("GPU-1", "a", "0"), ("GPU-2", "a", "1"), ("GPU-3", "a", "1")]


def test_api_servers_whose_parent_let_the_socket_go_still_meet_the_engine_in_the_parent(node: FakeProc) -> None:
    node.add(100, 1, ["vllm", "serve", "m"])
    shared = node.add(101, 100, ["VLLM::APIServer_0"], listens=[("0.0.0.0", 8000)])
    node.add(102, 100, ["VLLM::APIServer_1"], shares=shared)
    node.add(110, 100, ["VLLM::EngineCore_DP0"])
    assert rows(assign(node, [card(0, 110)], endpoint("a", 8000))) == [("GPU-0", "a", "0")]


@pytest.mark.parametrize(
    ("title", "rank"),
    [
        ("VLLM::Worker_DP1_TP0", "1"),
        ("MINE::Worker_DP12", "12"),
        ("sglang::scheduler_DP1_TP0", "1"),
        ("sglang::scheduler_TP3", ""),
        ("VLLM::DPCoordinator", ""),
        ("VLLM::Worker_DP1x", ""),
        ("/models/DP7_x", ""),
        ("VLLM::Worker_DP1234567", ""),
    ],
)
def test_a_rank_is_read_only_from_a_whole_title(node: FakeProc, title: str, rank: str) -> None:
    node.add(100, 1, ["python3", "-m", "sglang.launch_server"], listens=[("127.0.0.1", 30000)])
    node.add(101, 100, [title])
    assert rows(assign(node, [card(0, 101)], endpoint("a", 30000))) == [("GPU-0", "a", rank)]


@pytest.mark.parametrize("flag", [["--data-parallel-rank", "1"], ["--data-parallel-rank=1"], ["-dpn", "1"]])
def test_one_server_per_rank_says_its_rank_on_the_command_line(node: FakeProc, flag: list[str]) -> None:
    node.add(100, 1, ["vllm", "serve", "m", *flag], listens=[("127.0.0.1", 8000)])
    node.add(101, 100, ["VLLM::EngineCore"])
    assert rows(assign(node, [card(0, 101)], endpoint("a", 8000))) == [("GPU-0", "a", "1")]


def test_a_title_cut_by_the_kernel_gives_no_rank(node: FakeProc) -> None:
    node.add(100, 1, ["vllm", "serve", "m"], listens=[("127.0.0.1", 8000)])
    node.add(101, 100, b"", title="V::Worker_DP123")
    node.add(102, 100, b"", title="V::Worker_DP1")
    assert rows(assign(node, [card(0, 101), card(1, 102)], endpoint("a", 8000))) == [
        ("GPU-0", "a", ""),
        ("GPU-1", "a", "1"),
    ]


def test_a_card_with_a_ranked_and_an_unranked_process_shows_the_rank_once(node: FakeProc) -> None:
    node.add(100, 1, ["vllm", "serve", "m"], listens=[("127.0.0.1", 8000)])
    node.add(101, 100, ["VLLM::EngineCore_DP1"])
    assert rows(assign(node, [card(0, 100, 101)], endpoint("a", 8000))) == [("GPU-0", "a", "1")]


def test_text_generation_inference_meets_in_the_launcher(node: FakeProc) -> None:
    node.add(90, 1, ["bash"], title="bash")
    for base, port in ((100, 3000), (200, 3001)):
        node.add(base, 90, ["text-generation-launcher", "--port", str(port)])
        node.add(base + 1, base, ["text-generation-router", "--port", str(port)], listens=[("0.0.0.0", port)])
        node.add(base + 2, base, ["python3", "/opt/conda/bin/text-generation-server", "serve", "m"])
        node.add(base + 3, base, ["python3", "/opt/conda/bin/text-generation-server", "serve", "m"])
    result = assign(
        node, [card(0, 102), card(1, 103), card(2, 202), card(3, 203)], endpoint("a", 3000), endpoint("b", 3001)
    )
    assert rows(result) == [("GPU-0", "a", ""), ("GPU-1", "a", ""), ("GPU-2", "b", ""), ("GPU-3", "b", "")]


def test_sglang_schedulers_belong_to_their_launcher(node: FakeProc) -> None:
    node.add(100, 1, ["python3", "-m", "sglang.launch_server", "--port", "30000"], listens=[("0.0.0.0", 30000)])
    node.add(101, 100, ["sglang::scheduler_DP0_TP0"])
    node.add(102, 100, ["sglang::scheduler_DP1_TP0"])
    node.add(103, 100, ["sglang::detokenizer"])
    assert rows(assign(node, [card(0, 101), card(1, 102)], endpoint("a", 30000))) == [
        ("GPU-0", "a", "0"),
        ("GPU-1", "a", "1"),
    ]


@pytest.mark.parametrize(
    "above",
    ["tmux: server", "bash", "systemd", "supervisord", "sshd", "containerd-shim", "raylet", "kubelet", "launch.py"],
)
def test_two_servers_below_one_ancestor_stay_two(node: FakeProc, above: str) -> None:
    node.add(90, 1, [above], title=above)
    first, second = vllm(node, 100, 90, 8000), vllm(node, 200, 90, 8001)
    cards = [card(0, first[0]), card(1, first[1]), card(2, second[0]), card(3, second[1])]
    expected = [("GPU-0", "a", ""), ("GPU-1", "a", ""), ("GPU-2", "b", ""), ("GPU-3", "b", "")]
    assert rows(assign(node, cards, endpoint("a", 8000), endpoint("b", 8001))) == expected
    # The neighbour stays a stranger also when nobody asked for it.
    alone = assign(node, cards, endpoint("a", 8000))
    assert rows(alone) == expected[:2]


@pytest.mark.parametrize(
    "above", ["tmux: server", "bash", "systemd", "supervisord", "sshd", "containerd-shim", "raylet", "kubelet"]
)
def test_a_shared_ancestor_does_not_make_a_job_part_of_a_server(node: FakeProc, above: str) -> None:
    node.add(90, 1, [above], title=above)
    node.add(100, 90, ["python3", "serve.py"], listens=[("127.0.0.1", 8000)])
    node.add(101, 100, ["python3", "worker.py"])
    node.add(200, 90, ["python3", "train.py"])
    assert rows(assign(node, [card(0, 200), card(1, 101)], endpoint("a", 8000))) == [("GPU-1", "a", "")]
    assert assign(node, [card(0, 200)], endpoint("a", 8000)).unassigned == {"a": "no_processes"}


def test_neither_pid_1_nor_the_daemon_joins_its_children(node: FakeProc) -> None:
    for parent, base, port in ((1, 100, 8000), (900, 1000, 8001)):
        node.add(base, parent, ["python3", "serve.py"], listens=[("127.0.0.1", port)])
        node.add(base + 1, base, ["python3", "worker.py"])
        node.add(base + 2, parent, ["python3", "train.py"])
    cards = [card(0, 101), card(1, 102), card(2, 1001), card(3, 1002)]
    result = assign(node, cards, endpoint("a", 8000), endpoint("b", 8001))
    assert rows(result) == [("GPU-0", "a", ""), ("GPU-2", "b", "")]


def test_pid_1_joins_nothing_whatever_it_is_called(node: FakeProc) -> None:
    (node.root / "1" / "stat").write_text("1 (our-own-init) S 0 " + "0 " * 17 + "1 0\n")
    (node.root / "1" / "cmdline").write_bytes(b"/our-own-init\0")
    node.add(100, 1, ["python3", "serve.py"], listens=[("127.0.0.1", 8000)])
    node.add(101, 100, ["python3", "worker.py"])
    node.add(200, 1, ["python3", "train.py"])
    assert rows(assign(node, [card(0, 101), card(1, 200)], endpoint("a", 8000))) == [("GPU-0", "a", "")]


def test_an_engine_beside_a_server_below_a_launcher_is_no_part_of_it(node: FakeProc) -> None:
    node.add(90, 1, ["python3", "launch.py"])
    node.add(100, 90, ["python3", "serve.py"], listens=[("127.0.0.1", 8000)])
    node.add(101, 100, ["python3", "worker.py"])
    pids = vllm(node, 200, 90, 8001, 1)
    assert rows(assign(node, [card(0, 101), card(1, *pids)], endpoint("a", 8000))) == [("GPU-0", "a", "")]


def test_a_supervisor_that_holds_the_socket_too_is_not_the_server() -> None:
    processes = {
        90: Process(pid=90, parent=1, title="supervisord", netns=7),
        100: Process(pid=100, parent=90, title="python3", netns=7),
        200: Process(pid=200, parent=90, title="python3", netns=7),
    }
    listeners = (Listener(port=8000, address="0.0.0.0", netns=7, pids=frozenset((90, 100))),)
    table = ProcessTable(processes=processes, listeners=listeners, home=7, outer=7)
    assert rows(owners([card(0, 100), card(1, 200)], [endpoint("a", 8000)], table)) == [("GPU-0", "a", "")]


def test_a_socket_opened_by_the_supervisor_belongs_to_its_child(node: FakeProc) -> None:
    node.add(90, 1, ["supervisord"], title="supervisord", listens=[("127.0.0.1", 8000)])
    node.add(100, 90, ["python3", "serve.py"], shares=[node.inode])
    node.add(200, 90, ["python3", "train.py"])
    assert rows(assign(node, [card(0, 100), card(1, 200)], endpoint("a", 8000))) == [("GPU-0", "a", "")]


def test_a_custom_launcher_joins_its_front_and_its_worker_but_not_two_fronts(node: FakeProc) -> None:
    node.add(100, 1, ["python3", "launch.py"])
    node.add(101, 100, ["python3", "front.py"], listens=[("127.0.0.1", 8000)])
    node.add(102, 100, ["python3", "worker.py"])
    node.add(103, 100, ["python3", "front.py"], listens=[("127.0.0.1", 8001)])
    assert rows(assign(node, [card(0, 102)], endpoint("a", 8000))) == [("GPU-0", "a", "")]
    both = assign(node, [card(0, 102)], endpoint("a", 8000), endpoint("b", 8001))
    assert rows(both) == []
    assert both.unassigned == {"a": "ambiguous", "b": "ambiguous"}


def test_the_nearer_listener_wins(node: FakeProc) -> None:
    node.add(100, 1, ["python3", "gateway.py"], listens=[("127.0.0.1", 8000)])
    node.add(110, 100, ["python3", "serve.py"], listens=[("127.0.0.1", 8001)])
    node.add(111, 110, ["python3", "worker.py"])
    result = assign(node, [card(0, 111)], endpoint("outer", 8000), endpoint("inner", 8001))
    assert rows(result) == [("GPU-0", "inner", "")]
    assert result.unassigned == {"outer": "no_processes"}


def test_a_card_used_by_two_replicas_has_two_rows(node: FakeProc) -> None:
    first, second = vllm(node, 100, 1, 8000, 1), vllm(node, 200, 1, 8001, 1)
    result = assign(node, [card(0, *first, *second)], endpoint("a", 8000), endpoint("b", 8001))
    assert rows(result) == [("GPU-0", "a", ""), ("GPU-0", "b", "")]


def test_the_multi_process_service_owns_nothing_but_its_clients_do(node: FakeProc) -> None:
    node.add(100, 1, ["vllm", "serve", "m"], listens=[("127.0.0.1", 8000)])
    node.add(101, 100, ["nvidia-cuda-mps-server"])
    assert assign(node, [card(0, 101)], endpoint("a", 8000)).unassigned == {"a": "no_processes"}
    node.add(102, 100, ["VLLM::EngineCore"])
    assert rows(assign(node, [card(0, 101, 102)], endpoint("a", 8000))) == [("GPU-0", "a", "")]


def test_a_pid_that_was_reused_for_a_parent_joins_nothing(node: FakeProc) -> None:
    node.add(100, 1, ["python3", "serve.py"], listens=[("127.0.0.1", 8000)], started=9000)
    node.add(101, 100, ["python3", "orphan.py"], started=500)
    assert rows(assign(node, [card(0, 101)], endpoint("a", 8000))) == []


def test_a_cycle_of_parents_is_walked_once(node: FakeProc) -> None:
    node.add(100, 101, ["a"], started=5)
    node.add(101, 102, ["b"], started=5)
    node.add(102, 100, ["c"], started=5, listens=[("127.0.0.1", 8000)])
    node.add(103, 103, ["d"])
    assert rows(assign(node, [card(0, 100, 103)], endpoint("a", 8000))) == [("GPU-0", "a", "")]


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
    node.address(net, address) if net in node.members else node.addresses.__setitem__(net, [address])
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


def test_a_published_port_of_another_container_is_not_given_to_the_one_with_cards(node: FakeProc) -> None:
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


def test_a_container_without_an_engine_is_nobodys_replica(node: FakeProc) -> None:
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


def test_two_engines_in_one_container_stay_two(node: FakeProc) -> None:
    where: dict[str, Any] = {"cgroup": f"0::/docker/{A}", "net": 77}
    node.add(300, 1, ["bash", "entry.sh"], title="bash", **where)
    first, second = vllm(node, 310, 300, 8000, 1, **where), vllm(node, 320, 300, 8001, 1, **where)
    node.address(77, "172.17.0.2")
    cards = [card(0, *first), card(1, *second)]
    assert rows(assign(node, cards, endpoint("a", 8001, host="172.17.0.2"))) == [("GPU-1", "a", "")]


# Why not.


def test_every_reason_is_said(node: FakeProc) -> None:
    pids = vllm(node, 100, 1, 8000, 1)
    asked = endpoint("a", 8001)
    assert assign(node, [card(0, *pids)], asked).unassigned == {"a": "no_listener"}
    assert assign(node, [card(0)], asked).unassigned == {"a": "no_processes"}
    assert assign(node, [card(0, read=False)], asked).unassigned == {"a": "no_driver"}
    assert assign(node, [card(0, known=False, missing=Missing.NO_PERMISSION)], asked).unassigned == {
        "a": "no_permission"
    }
    assert assign(node, [card(0, 4242)], asked).unassigned == {"a": "pid_namespace"}
    assert owners([card(0, *pids)], [asked], None).unassigned == {"a": "no_processes"}


def test_a_listener_that_may_not_be_looked_up_is_a_matter_of_permission() -> None:
    processes = {100: Process(pid=100, parent=1, netns=7)}
    listeners = (Listener(port=8000, address="0.0.0.0", netns=7),)
    for problems, reason in (({"no_permission": 3}, "no_permission"), ({}, "no_processes")):
        table = ProcessTable(processes=processes, listeners=listeners, problems=problems, home=7, outer=7)
        assert owners([card(0, 100)], [endpoint("a", 8000)], table).unassigned == {"a": reason}


def test_pids_that_are_over_leave_the_others_joined(node: FakeProc) -> None:
    pids = vllm(node, 100, 1, 8000, 1)
    assert rows(assign(node, [card(0, *pids), card(1, 4242)], endpoint("a", 8000))) == [("GPU-0", "a", "")]


# Anything at all.

NUMBERS = st.integers(0, 12)
TITLES = st.sampled_from(["", "bash", "docker-proxy", "nvidia-cuda-mps", "VLLM::Worker_DP1", "python3", "vllm"])
WORDS = st.lists(
    st.sampled_from(["vllm", "serve", "text-generation-router", "text-generation-launcher", "python3", "-m", "sglang.launch_server", "VLLM::Worker_DP2_TP0", "--data-parallel-rank", "-host-port", "-container-ip", "10.0.0.1", "-container-port", "8000", "3"]),
    max_size=6,
).map(tuple)  # fmt: skip
PROCESSES = st.dictionaries(
    NUMBERS,
    st.builds(lambda **more: more, parent=NUMBERS, command=WORDS, title=TITLES, cgroup=st.sampled_from(["", "/docker/x", "/docker/y"]), netns=st.integers(0, 3), started=st.none() | st.floats(0, 3)),
).map(lambda found: {pid: Process(pid=pid, **more) for pid, more in found.items()})  # fmt: skip
LISTENERS = st.lists(
    st.builds(Listener, port=st.sampled_from([8000, 8001]), address=st.sampled_from(["0.0.0.0", "::", "127.0.0.1", "10.0.0.1", "junk"]), netns=st.integers(0, 3), pids=st.frozensets(NUMBERS, max_size=3)),
    max_size=6,
).map(tuple)  # fmt: skip
TABLES = st.builds(
    ProcessTable,
    processes=PROCESSES,
    listeners=LISTENERS,
    problems=st.dictionaries(st.sampled_from(["no_permission", "pid_namespace", "vanished"]), st.integers(1, 9)),
    home=st.integers(0, 3),
    outer=st.integers(0, 3),
    addresses=st.dictionaries(st.integers(0, 3), st.frozensets(st.sampled_from(["10.0.0.1", "10.0.0.2"]))),
    reader=NUMBERS,
)
ENDPOINTS = st.lists(
    st.builds(
        Endpoint,
        replica=st.sampled_from(["a", "b", "c"]),
        host=st.sampled_from(
            ["127.0.0.1", "localhost", "10.0.0.1", "::1", "[::1]", "fe80::1%eth0", "far.example", "", "%", "\n"]
        ),
        port=st.sampled_from([8000, 8001, -1]),
        gpus=st.none()
        | st.lists(st.integers(-1, 4) | st.sampled_from(["GPU-0", "gpu-1", "MIG-9", ""]), max_size=3).map(tuple),
    ),
    max_size=4,
    unique_by=lambda one: one.replica,
)


@settings(max_examples=400, deadline=None)
@given(
    cards=st.lists(
        st.builds(card, st.integers(0, 3), NUMBERS, NUMBERS, known=st.booleans(), read=st.booleans()), max_size=4
    ),
    endpoints=ENDPOINTS,
    table=st.none() | TABLES,
)
def test_whatever_is_read_every_row_names_a_known_card_and_replica(
    cards: list[CardState], endpoints: list[Endpoint], table: ProcessTable | None
) -> None:
    result = owners(cards, endpoints, table)
    names = {one.replica for one in endpoints}
    found = rows(result)
    assert {uuid for uuid, _, _ in found} <= {one.facts.uuid for one in cards}
    assert {name for _, name, _ in found} <= names
    assert set(result.unassigned) <= names
    assert len(found) == len(set(found))
    served = {name for _, name, _ in found}
    for one in endpoints:
        if one.gpus is None:
            assert (one.replica in served) != (one.replica in result.unassigned)
    assert set(result.unassigned.values()) <= {
        "remote", "no_driver", "no_processes", "pid_namespace", "no_permission", "no_listener", "ambiguous", "unknown_gpu",
    }  # fmt: skip


# For real.

SERVER = """
import socket, subprocess, sys
s = socket.create_server(("127.0.0.1", 0))
child = subprocess.Popen([sys.executable, "-c", "import sys; print('up', flush=True); sys.stdin.read()"],
                         stdin=subprocess.PIPE, stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, s.getsockname()[1], flush=True)
sys.stdin.read()
child.stdin.close()
child.wait(10)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_two_real_servers_own_the_cards_of_their_real_children() -> None:
    command = [sys.executable, "-c", SERVER]
    with (
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as first,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as second,
    ):
        children, ports = [], []
        for server in (first, second):
            assert server.stdout is not None
            child, port = map(int, server.stdout.readline().split())
            children.append(child)
            ports.append(port)
        cards = [card(0, children[1]), card(1, children[0])]
        endpoints = [endpoint("a", ports[0]), endpoint("b", ports[1])]
        result = owners(cards, endpoints, read_processes(children, ports))
        for server in (first, second):
            assert server.stdin is not None
            server.stdin.close()
            server.wait(20)
    assert rows(result) == [("GPU-0", "b", ""), ("GPU-1", "a", "")]
    assert result.unassigned == {}
