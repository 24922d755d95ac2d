"""Which card serves which replica: by configuration, by the tree of processes, and said so where it is not known."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from exporter.derive.assignment import Assignment, assign_gpus
from exporter.model import GpuAssignment, Missing
from exporter.model.process import ListeningSocket, Process, ProcessTable
from tests.support.fake_proc import FakeProc
from tests.support.owned_cards import assign, card, endpoint, rows, vllm
from tests.support.processes import read_processes


@pytest.fixture
def node(tmp_path: Path) -> FakeProc:
    return FakeProc(tmp_path)


# Configuration.


def test_configured_gpus_are_taken_by_index_or_uuid_without_looking_at_processes() -> None:
    cards = [card(0), card(1), card(2, read=False)]
    result = assign_gpus(
        cards, [endpoint("a", 1, gpus=(0, "gpu-2")), endpoint("b", 2, host="far.example", gpus=("1",))], None
    )
    assert rows(result) == [("GPU-0", "a", ""), ("GPU-1", "b", ""), ("GPU-2", "a", "")]
    assert result.unassigned == {}


def test_a_configured_gpu_that_is_not_there_is_said_and_the_others_stay() -> None:
    result = assign_gpus([card(0)], [endpoint("a", 1, gpus=(0, 7))], None)
    assert rows(result) == [("GPU-0", "a", "")]
    assert result.unassigned == {"a": "unknown_gpu"}


def test_no_gpus_means_no_driver_whatever_is_configured() -> None:
    assert assign_gpus([], [endpoint("a", 1, gpus=(0,)), endpoint("b", 2)], None).unassigned == {
        "a": "no_driver",
        "b": "no_driver",
    }


def test_configured_gpus_get_the_rank_that_their_processes_show(node: FakeProc) -> None:
    node.add(100, 1, ["vllm", "serve", "m"], listens=[("127.0.0.1", 8000)])
    node.add(101, 100, ["VLLM::EngineCore_DP3"])
    assert rows(assign(node, [card(0, 101), card(1)], endpoint("a", 8000, gpus=(0, 1)))) == [
        ("GPU-0", "a", "3"),
        ("GPU-1", "a", ""),
    ]


# Process trees.


def test_a_tensor_parallel_server_owns_the_gpus_of_its_workers(node: FakeProc) -> None:
    pids = vllm(node, 100, 1, 8000, workers=4)
    result = assign(node, [card(index, pid) for index, pid in enumerate(pids)] + [card(4)], endpoint("a", 8000))
    assert rows(result) == [(f"GPU-{index}", "a", "") for index in range(4)]
    assert result.unassigned == {}


def test_a_server_that_uses_the_gpu_itself_owns_it(node: FakeProc) -> None:
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


@pytest.mark.parametrize(
    ("titles", "tensor", "pipeline"),
    [
        (["VLLM::Worker_TP0", "VLLM::Worker_TP1"], 2, 1),
        (["VLLM::Worker_PP0", "VLLM::Worker_PP1"], 1, 2),
        (["VLLM::EngineCore_DP0", "VLLM::EngineCore_DP1"], 1, 1),
        (["VLLM::Worker_DP0_TP0", "VLLM::Worker_DP0_TP1", "VLLM::Worker_DP1_TP0", "VLLM::Worker_DP1_TP1"], 2, 1),
        (["sglang::scheduler_DP0_TP0", "sglang::scheduler_DP1_TP1"], 2, 1),  # data-parallel attention
        (["sglang::scheduler_PP0_TP0", "sglang::scheduler_PP0_TP1", "sglang::scheduler_PP1_TP0",
          "sglang::scheduler_PP1_TP1"], 2, 2),
        (["VLLM::EngineCore"], 1, 1),
    ],
)  # fmt: skip
def test_parallel_sizes_are_counted_from_the_titles_of_the_processes_on_the_gpus(
    node: FakeProc, titles: list[str], tensor: int, pipeline: int
) -> None:
    node.add(100, 1, ["vllm", "serve", "m"], listens=[("127.0.0.1", 8000)])
    for index, title in enumerate(titles):
        node.add(110 + index, 100, [title])
    cards = [card(index, 110 + index) for index in range(len(titles))]
    sizes = assign(node, cards, endpoint("a", 8000)).parallel_sizes["a"]
    assert (sizes.tensor, sizes.pipeline) == (tensor, pipeline)


@pytest.mark.parametrize("titles", [["python3", "python3"], ["VLLM::Worker_TP0", "VLLM::EngineCore"]])
def test_parallel_sizes_that_the_titles_do_not_tell_are_unknown(node: FakeProc, titles: list[str]) -> None:
    node.add(100, 1, ["vllm", "serve", "m"], listens=[("127.0.0.1", 8000)])
    for index, title in enumerate(titles):
        node.add(110 + index, 100, [title])
    cards = [card(index, 110 + index) for index in range(len(titles))]
    assert assign(node, cards, endpoint("a", 8000)).parallel_sizes == {}


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


def test_a_rank_is_read_neither_from_a_shell_above_the_server_nor_from_beyond_it(node: FakeProc) -> None:
    node.add(80, 1, ["python3", "launch.py", "--data-parallel-rank", "4"])
    node.add(90, 80, ["bash", "start.sh", "--data-parallel-rank", "3"], title="bash")
    node.add(100, 90, ["vllm", "serve", "m"], listens=[("127.0.0.1", 8000)])
    node.add(101, 100, ["VLLM::EngineCore"])
    assert rows(assign(node, [card(0, 101)], endpoint("a", 8000))) == [("GPU-0", "a", "")]


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


def test_a_gpu_with_a_ranked_and_an_unranked_process_shows_the_rank_once(node: FakeProc) -> None:
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
        90: Process(pid=90, parent=1, title="supervisord", netns=7, shared=True),
        100: Process(pid=100, parent=90, title="python3", netns=7),
        200: Process(pid=200, parent=90, title="python3", netns=7),
    }
    listeners = (ListeningSocket(port=8000, address="0.0.0.0", netns=7, pids=frozenset((90, 100))),)
    table = ProcessTable(processes=processes, listeners=listeners, home=7, outer=7)
    assert rows(assign_gpus([card(0, 100), card(1, 200)], [endpoint("a", 8000)], table)) == [("GPU-0", "a", "")]


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


def test_a_gpu_used_by_two_replicas_has_two_rows(node: FakeProc) -> None:
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
    node.add(102, 100, ["python3", "worker.py"], started=9001)
    assert rows(assign(node, [card(0, 101), card(1, 102)], endpoint("a", 8000))) == [("GPU-1", "a", "")]


def test_a_cycle_of_parents_is_walked_once(node: FakeProc) -> None:
    node.add(100, 101, ["a"], started=5)
    node.add(101, 102, ["b"], started=5)
    node.add(102, 100, ["c"], started=5, listens=[("127.0.0.1", 8000)])
    node.add(103, 103, ["d"])
    assert rows(assign(node, [card(0, 100, 103)], endpoint("a", 8000))) == [("GPU-0", "a", "")]


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
    assert assign_gpus([card(0, *pids)], [asked], None).unassigned == {"a": "no_processes"}


def test_a_listener_that_may_not_be_looked_up_is_a_matter_of_permission() -> None:
    processes = {100: Process(pid=100, parent=1, netns=7)}
    listeners = (ListeningSocket(port=8000, address="0.0.0.0", netns=7),)
    for problems, reason in (({"no_permission": 3}, "no_permission"), ({}, "no_processes")):
        table = ProcessTable(processes=processes, listeners=listeners, problems=problems, home=7, outer=7)
        assert assign_gpus([card(0, 100)], [endpoint("a", 8000)], table).unassigned == {"a": reason}


def test_a_replica_that_is_gone_is_left_out_before_anybody_looks_again() -> None:
    kept, departed = (GpuAssignment(uuid=f"GPU-{name}", replica=name) for name in ("kept", "gone"))
    assignment = Assignment(gpus=(kept, departed), unassigned={"lost": "remote", "near": "no_listener"})
    assert assignment.among({"kept", "near", "new"}) == Assignment(gpus=(kept,), unassigned={"near": "no_listener"})
    assert assignment.among({"kept", "gone", "lost", "near"}) is assignment


def test_pids_that_are_over_leave_the_others_joined(node: FakeProc) -> None:
    pids = vllm(node, 100, 1, 8000, 1)
    assert rows(assign(node, [card(0, *pids), card(1, 4242)], endpoint("a", 8000))) == [("GPU-0", "a", "")]


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
def test_two_real_servers_own_the_gpus_of_their_real_children() -> None:
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
        result = assign_gpus(cards, endpoints, read_processes(children, ports))
        for server in (first, second):
            assert server.stdin is not None
            server.stdin.close()
            server.wait(20)
    assert rows(result) == [("GPU-0", "b", ""), ("GPU-1", "a", "")]
    assert result.unassigned == {}
