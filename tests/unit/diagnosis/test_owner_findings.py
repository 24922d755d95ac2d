"""Findings that name owners: processes that an engine left behind, and the tenant that a replica waits for."""

from __future__ import annotations

from exporter.diagnosis.diagnose import find
from exporter.model import Cause, GpuAssignment, GpuOwner, Owner, Straggler, Stragglers
from exporter.model.card import CardProcess
from tests.support.builders import card, replica, snapshot
from tests.support.records import replace

CHAT, ALICE = Owner(name="ml/chat-0/vllm"), Owner(name="alice", user="alice")


def gpu(index, *processes, **signals):
    state = card(index, **signals)
    held = tuple(CardProcess(pid=pid, memory=memory) for pid, memory in processes)
    return replace(state, reading=replace(state.reading, processes=held))


def held_by(index, owner, *pids, orphans=(), memory=None):
    return GpuOwner(uuid=card(index).facts.uuid, owner=owner, memory=memory, pids=pids, orphans=orphans)


def found(name, **parts):
    return [finding for finding in find(snapshot(**parts)) if finding.id == name]


def test_leftover_processes_are_named_with_their_owner_and_their_memory():
    cards = (gpu(0, (7, 60 * 2.0**30), (8, 10 * 2.0**30), (9, 2.0**30)), gpu(1, (10, 2.0**30)))
    owners = (held_by(0, CHAT, 7, 8, orphans=(7, 8)), held_by(0, ALICE, 9), held_by(1, ALICE, 10))
    (finding,) = found("GpuOrphanProcesses", cards=cards, owners=owners)
    assert finding.subject.name == card(0).facts.uuid
    assert finding.summary.en == "Leftover processes of ml/chat-0/vllm hold 70.0 GiB of GPU 0"
    assert finding.summary.zh == "残留进程（ml/chat-0/vllm）占用 0 号卡 70.0 GiB 显存"
    assert "kill 7 8" in finding.actions[0].en and "kill 7 8" in finding.actions[0].zh


def test_memory_that_is_not_known_is_not_said():
    owners = (held_by(0, Owner(), 7, orphans=(7,)),)
    (finding,) = found("GpuOrphanProcesses", cards=(gpu(0, (7, None)),), owners=owners)
    assert finding.summary.en == "Leftover processes hold GPU 0"
    assert "memory_used" not in {item.name for item in finding.evidence}


def test_owners_without_leftover_processes_are_no_finding():
    assert not found("GpuOrphanProcesses", cards=(gpu(0, (7, 1.0)),), owners=(held_by(0, CHAT, 7),))


def waited_for(*owners, cause=Cause.OTHER_TENANT):
    uuids = [card(index).facts.uuid for index in (0, 1)]
    (finding,) = found(
        "GpuStraggler",
        cards=(gpu(0, (7, 1.0), (9, 4.0)), gpu(1, (8, 1.0))),
        replicas=(replica("chat"),),
        assignments=tuple(GpuAssignment(uuid=uuid, replica="chat") for uuid in uuids),
        stragglers=Stragglers(
            judged={"chat": True}, found=(Straggler(uuid=uuids[0], replica="chat", cause=cause, slowdown=1.5),)
        ),
        owners=owners,
    )
    return finding


def test_the_tenant_that_a_replica_waits_for_has_a_name():
    finding = waited_for(held_by(0, CHAT, 7), held_by(0, ALICE, 9), held_by(1, CHAT, 8))
    assert "(alice)" in finding.summary.en and "（alice）" in finding.summary.zh
    assert [item.value for item in finding.evidence if item.name == "other_owner"] == ["alice"]


def test_the_step_names_the_process_that_the_evidence_names():
    finding = waited_for(held_by(0, CHAT, 7), held_by(0, ALICE, 9), held_by(1, CHAT, 8))
    assert [(step.en, step.zh) for step in finding.actions] == [
        ("End or move process 9 (alice).", "结束或迁走进程 9（alice）。")
    ]


def test_no_tenant_is_named_where_owners_are_not_known_or_another_cause_holds():
    assert "(" not in waited_for().summary.en
    assert "(" not in waited_for(held_by(0, ALICE, 9)).summary.en  # no peer shows whose the replica is
    owners = (held_by(0, CHAT, 7), held_by(0, ALICE, 9), held_by(1, CHAT, 8))
    assert "alice" not in waited_for(*owners, cause=Cause.THERMAL).summary.en
