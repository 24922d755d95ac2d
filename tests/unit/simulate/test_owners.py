"""The owners of a simulated node are read and joined as those of a real one."""

from __future__ import annotations

from exporter.derive.owners import process_owners
from exporter.model.process import Process, ProcessTable
from exporter.simulate import owners
from exporter.sources.processes.cgroup import parse_cgroup


def test_replicas_are_pods_and_everything_else_is_a_job():
    texts = {**owners.cgroups({"chat-a": (1, 2), "chat-b": (3,)}), 4: owners.other_cgroup()}
    table = ProcessTable(
        processes={pid: Process(pid=pid, parent=1, owner=parse_cgroup(text)) for pid, text in texts.items()}
    )
    found = process_owners(texts, table, owners.pods(["chat-a", "chat-b"]))
    assert {pid: known.owner.name for pid, known in found.items()} == {
        1: "ml/chat-a-0/engine",
        2: "ml/chat-a-0/engine",
        3: "ml/chat-b-0/engine",
        4: f"job {owners.JOB}",
    }
    assert (found[1].owner.workload, found[1].owner.workload_type) == ("chat-a", "statefulset")
