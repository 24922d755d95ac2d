"""Who holds which GPU: names, pods, sums of memory, and processes that are left over."""

from __future__ import annotations

import pytest

from exporter.derive.owners import MAX_OWNERS, gpu_owners, process_owners
from exporter.model import CardProcess, OwnedProcess, Owner, Pod
from exporter.model.owner import ProcessOwner
from exporter.model.process import Process, ProcessTable
from tests.support.builders import card
from tests.support.fake_proc import FakeProc, bare_metal
from tests.support.processes import read_processes
from tests.support.records import replace

UID, ID = "8f1c2d3e-4a5b-6c7d-8e9f-0a1b2c3d4e5f", "c" * 64
CHAT = Pod(
    uid=UID, namespace="ml", name="chat-0", workload="chat", workload_type="statefulset", containers={ID: "vllm"}
)


def named(known, *pods):
    table = ProcessTable(processes={7: Process(pid=7, parent=1, owner=known)})
    return process_owners([7], table, pods)[7].owner


@pytest.mark.parametrize(
    "known, name",
    [
        (ProcessOwner(pod_uid=UID, container_id=ID, user="root"), "ml/chat-0/vllm"),
        (ProcessOwner(container_id=ID), "ml/chat-0/vllm"),
        (ProcessOwner(pod_uid=UID, container_id="d" * 64), "ml/chat-0"),
        (
            ProcessOwner(pod_uid="a" * 32, container_id=ID),
            "ml/chat-0/vllm",
        ),  # a static pod: its mirror has another uid
        (ProcessOwner(pod_uid="a" * 32), "pod " + "a" * 32),
        (ProcessOwner(slurm_job="4711", user="alice"), "job 4711"),
        (ProcessOwner(unit="vllm.service", user="vllm"), "vllm.service"),
        (ProcessOwner(unit="vllm.service", container_id="e" * 64), "vllm.service"),
        (ProcessOwner(unit="session-1.scope", session=True, user="alice"), "alice"),
        (ProcessOwner(session=True, container_id="e" * 64, user="alice"), "container " + "e" * 12),
        (ProcessOwner(user="1000"), "1000"),
        (ProcessOwner(), ""),
        (None, ""),
    ],
)
def test_the_name_of_an_owner(known, name):
    assert named(known, CHAT).name == name


def test_everything_that_is_known_of_a_pod():
    assert named(ProcessOwner(pod_uid=UID, container_id=ID, user="root"), CHAT) == Owner(
        name="ml/chat-0/vllm", namespace="ml", pod="chat-0", pod_uid=UID, container="vllm", container_id="c" * 12,
        workload="chat", workload_type="statefulset", user="root",
    )  # fmt: skip


def holding(*processes):
    held = tuple(CardProcess(pid=pid, memory=memory) for pid, memory in processes)
    return replace(card(0), reading=replace(card(0).reading, processes=held))


def owned(**names):
    return {int(pid[1:]): OwnedProcess(owner=Owner(name=name, user=name)) for pid, name in names.items()}


def rows(*processes, **names):
    return [(held.owner.name, held.memory, held.pids) for held in gpu_owners([holding(*processes)], owned(**names))]


def test_memory_is_summed_by_owner_and_the_largest_comes_first():
    assert rows((1, 5.0), (2, 90.0), (3, 6.0), p1="a", p2="b", p3="a") == [("b", 90.0, (2,)), ("a", 11.0, (1, 3))]


def test_memory_that_the_driver_does_not_report_makes_no_sum():
    assert rows((1, 5.0), (2, None), (3, 6.0), p1="a", p2="a", p3="b") == [("b", 6.0, (3,)), ("a", None, (1, 2))]


def test_a_process_that_was_not_looked_up_yet_is_nobodys():
    assert rows((1, 5.0), (2, 6.0), p1="a") == [("a", 5.0, (1,))]


def test_what_processes_of_one_owner_differ_in_is_not_known():
    known = {
        1: OwnedProcess(owner=Owner(name="j", user="a", slurm_job="7")),
        2: OwnedProcess(owner=Owner(name="j", user="b", slurm_job="7")),
    }
    (held,) = gpu_owners([holding((1, 1.0), (2, 1.0))], known)
    assert held.owner == Owner(name="j", slurm_job="7")


def test_a_gpu_has_so_many_owners_and_one_without_a_name():
    many = {pid: OwnedProcess(owner=Owner(name=f"u{pid}" if pid else "")) for pid in range(10_000)}
    found = gpu_owners([holding(*((pid, float(pid)) for pid in range(10_000)))], many)
    assert len(found) == MAX_OWNERS + 1
    assert [held.owner.name for held in found[1:4]] == ["u9999", "u9998", "u9997"]
    assert found[0].owner == Owner() and sum(held.memory for held in found) == sum(range(10_000))


# ---------------------------------------------------------------------- what kubelet has allocated

UUID = card(0).facts.uuid
ALLOCATED = Pod(uid="", namespace="ml", name="chat-0", devices={UUID: "vllm"})
OTHER = Pod(uid="", namespace="ml", name="eval-7", devices={UUID: ""})


def allocations(owner, *pods):
    """Return the owners of a GPU with one process, as (name, namespace, pod UID, pids)."""
    found = gpu_owners([holding((1, 5.0))], {1: OwnedProcess(owner=owner)}, pods)
    return [(held.owner.name, held.owner.namespace, held.owner.pod_uid, held.pids) for held in found]


def test_a_pod_owns_a_gpu_that_is_allocated_to_it_without_a_process():
    (held,) = gpu_owners([holding()], {}, [ALLOCATED, Pod(uid="", namespace="ml", name="x", devices={"GPU-9": "c"})])
    assert held.owner == Owner(name="ml/chat-0/vllm", namespace="ml", pod="chat-0", container="vllm")
    assert (held.uuid, held.memory, held.pids) == (UUID, None, ())
    assert [owner.owner.pod for owner in gpu_owners([card(0, up=False)], {}, [ALLOCATED])] == ["chat-0"]


def test_the_pod_of_a_process_of_which_only_the_uid_is_known_is_the_one_that_has_the_gpu():
    by_uid = Owner(name=f"pod {UID}", pod_uid=UID)
    assert allocations(by_uid, ALLOCATED) == [("ml/chat-0/vllm", "ml", UID, (1,))]
    assert [row[0] for row in allocations(by_uid, ALLOCATED, OTHER)] == [f"pod {UID}", "ml/chat-0/vllm", "ml/eval-7"]


def test_a_process_of_somebody_else_stays_theirs_and_one_of_the_pod_is_not_counted_twice():
    assert [row[0] for row in allocations(Owner(name="alice", user="alice"), ALLOCATED)] == [
        "alice",
        "ml/chat-0/vllm",
    ]
    listed = Owner(name="ml/chat-0/vllm", namespace="ml", pod="chat-0", container="vllm", pod_uid=UID)
    assert allocations(listed, ALLOCATED) == [("ml/chat-0/vllm", "ml", UID, (1,))]


def test_an_allocation_names_no_process_without_a_container():
    assert named(ProcessOwner(user="alice"), ALLOCATED).name == "alice"


def test_a_gpu_without_a_reading_has_no_owners():
    assert gpu_owners([card(0, up=False)], owned(p1="a")) == ()


# ---------------------------------------------------------------------- leftover processes


@pytest.fixture
def node(tmp_path):
    found = FakeProc(tmp_path)
    bare_metal(found)
    return found


def orphans(node, *pids):
    table = read_processes(pids, (), root=str(node.root))
    return {pid for pid, process in process_owners(pids, table).items() if process.orphaned}


def test_the_workers_of_a_living_engine_are_not_left_over(node):
    assert orphans(node, 100, 110, 111, 112) == set()


def parentless(node, parent=1):
    node.add(210, parent, b"VLLM::EngineCore\0\0\0\0", title="VLLM::EngineCore")
    node.add(211, 210, b"VLLM::Worker_TP0\0\0\0\0")


def test_workers_whose_server_has_exited_are_left_over_as_a_tree(node):
    parentless(node)
    assert orphans(node, 111, 210, 211) == {210, 211}


@pytest.mark.parametrize("title", ["bash", "systemd", "tini", "containerd-shim", "slurmstepd: [1", "sh"])
def test_whoever_takes_over_orphans_did_not_start_them(node, title):
    node.add(60, 1, [f"/bin/{title}"], title=title.rstrip(": [1"))
    parentless(node, parent=60)
    assert orphans(node, 210, 211) == {210, 211}


def test_ray_starts_workers_itself(node):
    node.add(60, 1, ["/usr/bin/raylet"], title="raylet")
    parentless(node, parent=60)
    assert orphans(node, 210, 211) == set()


@pytest.mark.parametrize(
    "command",
    [
        ["/usr/bin/python3", "-c", "from multiprocessing.spawn import spawn_main; spawn_main(5)", "--multiprocessing-fork"],
        ["/usr/bin/python3", "-B", "-c", "from multiprocessing.forkserver import main; main(1)"],
        ["sglang::scheduler_TP0"],
    ],
)  # fmt: skip
def test_other_workers(node, command):
    node.add(220, 1, command)
    assert orphans(node, 220) == {220}


@pytest.mark.parametrize(
    "command",
    [
        ["/usr/bin/python3", "train.py"],  # nohup, or a service
        ["/usr/bin/python3", "/usr/local/bin/vllm", "serve", "m"],
        ["VLLM::APIServer_0"],
        ["/usr/bin/python3", "-m", "sglang.launch_server"],
        [],
    ],
)
def test_a_program_that_somebody_started_is_not_left_over(node, command):
    node.add(220, 1, command, title="python3")
    assert orphans(node, 220) == set()


def test_a_worker_of_a_program_of_any_kind_is_not_left_over(node):
    node.add(220, 1, ["/usr/bin/python3", "launcher.py"], title="python3")
    node.add(221, 220, ["VLLM::EngineCore"])
    assert orphans(node, 221) == set()


def test_a_process_that_has_exited_and_still_holds_its_gpu(node):
    node.add(230, 100, [], title="python3", state="Z")
    assert orphans(node, 100, 230, 231) == {230, 231}


def test_a_missing_process_may_be_hidden_and_then_nothing_is_known(node):
    table = ProcessTable(processes={}, problems={"no_permission": 1})
    assert not process_owners([5], table)[5].orphaned
    table = ProcessTable(processes={}, problems={"pid_namespace": 1})
    assert not process_owners([5], table)[5].orphaned
    table = ProcessTable(processes={}, limits=frozenset({"processes"}))
    assert not process_owners([5], table)[5].orphaned
    # A worker whose parent cannot be read may have one.
    node.add(240, 999, ["VLLM::EngineCore"])
    assert orphans(node, 240) == set()
